"""The page that the benchmarks write."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cases import MEASURED
from benchmarks.report import write_report
from benchmarks.result import CaseResult, Column, read_result
from benchmarks.sample import Spread


def test_report_shows_what_was_written(tmp_path: Path) -> None:
    columns = [Column("path", "path"), Column("tok_s", "tok/s", 1)]
    result = CaseResult("paced", "A title", "A text.", columns)
    result.add(path="ours", tok_s=Spread(2000.0, 1990.0, 2030.0))
    result.find("A finding.")
    assert read_result(result.write(tmp_path)) == result
    page = write_report(tmp_path, tmp_path / "docs", ["paced"]).read_text()
    assert "## A title" in page
    assert "| ours | 2,000.0 ±20.0 |" in page
    assert "- A finding." in page


def write_case(folder: Path, name: str, *findings: str) -> None:
    result = CaseResult(name, "A title", "A text.", [Column("path", "path")])
    result.machine |= {"cores": "2", "memory": "128 GiB"}
    for finding in findings:
        result.find(finding)
    result.write(folder)


def sentences(page: Path) -> list[str]:
    """Return the lines above the first section."""
    top = page.read_text().partition("All figures come from")[0]
    return [line for line in top.splitlines() if line.startswith("- ")]


def test_report_opens_with_the_ratios(tmp_path: Path) -> None:
    write_case(
        tmp_path,
        "zero-cost",
        "With 8 at once, trtllm-truss carries 9.00 × a loop.",
        "With 512 at once, trtllm-truss carries 2.10 × a loop, 10.00 × HTTP (all).",
    )
    write_case(
        tmp_path,
        "cpu-engine",
        "With 8 at once, trtllm-truss carries 0.97 × (0.80 to 1.10) the model alone.",
    )
    names = ["zero-cost", "cpu-engine"]
    assert sentences(write_report(tmp_path, tmp_path, names)) == [
        "- With an engine that costs nothing, the serving path carries 2.10 × a loop, "
        "10.00 × HTTP (all) over 512 streams (medians on 2 cores).",
        "- With SmolLM2-135M on the CPU, where the model is the limit, it carries "
        "0.97 × the model alone over 8 streams (medians on 2 cores).",
    ]


def test_report_opens_with_the_cost_of_a_request(tmp_path: Path) -> None:
    findings = [
        f"{load}: trtllm-truss has 0.80 × (0.10 to 1.20) of its requests/s, "
        f"1.50 × (1.10 to 1.90) its CPU time."
        for load in ("at once, 32", "steady, 1", "steady, 32", "steady, 512")
    ]
    write_case(tmp_path, "host-floor", *findings)
    assert sentences(write_report(tmp_path, tmp_path, ["host-floor"])) == [
        "- Beside Truss's bare server, which only streams two pieces, it has 0.80 × of its "
        "requests/s, 1.50 × its CPU time with 32 steady clients (medians on 2 cores)."
    ]


def test_a_partial_run_keeps_the_other_cases(tmp_path: Path) -> None:
    columns = [Column("streams", "streams"), Column("path", "path"), Column("tok_s", "tok/s")]

    def write(name: str, tokens_s: float) -> None:
        result = CaseResult(name, f"Title of {name}", "A text.", columns)
        result.add(streams=8.0, path="trtllm-truss", tok_s=tokens_s)
        result.find(f"With 8 at once, trtllm-truss carries {tokens_s:g} × another path.")
        result.write(tmp_path)

    for name in ("paced", "zero-cost", "cpu-engine"):
        write(name, 100.0)
    before = write_report(tmp_path, tmp_path, MEASURED).read_text()
    for name in ("paced", "zero-cost"):
        (tmp_path / f"{name}.json").unlink()
    write("cpu-engine", 200.0)
    after = write_report(tmp_path, tmp_path, ["cpu-engine"]).read_text()
    changed = {line for line in after.splitlines() if line not in before.splitlines()}
    assert after.count("\n## ") == 3
    assert {"200 × another" in line or "| 200 |" in line for line in changed} == {True}
    assert len(changed) == 3, "the summary, a row and a finding"
    assert after.index("zero-cost -->\n## ") < after.index("cpu-engine -->\n## ")
    write("zero-cost", 300.0)
    assert write_report(tmp_path, tmp_path, ["cpu-engine"]).read_text() == after


def test_the_page_has_one_machine(tmp_path: Path) -> None:
    for label, cores in (("", "2"), ("big", "16")):
        result = CaseResult("paced", "A title", "A text.", [Column("path", "path")])
        result.machine |= {"cores": cores, "memory": "128 GiB"}
        result.find(f"On {cores} cores.")
        result.write(tmp_path, label)
    page = write_report(tmp_path, tmp_path, ["paced"]).read_text()
    assert page.count("A title") == 1
    assert "- On 2 cores." in page
    assert "16 cores" not in page
