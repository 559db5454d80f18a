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


def test_report_opens_with_the_throughput_at_the_most_streams(tmp_path: Path) -> None:
    columns = [Column("streams", "streams"), Column("path", "path"), Column("tok_s", "tok/s")]
    for name, other in (("zero-cost", "a loop"), ("cpu-engine", "the model alone")):
        result = CaseResult(name, "A title", "A text.", columns)
        for streams in (8.0, 512.0):
            result.add(streams=streams, path="trtllm-truss", tok_s=Spread(streams, 500.0, 524.0))
            result.find(f"With {streams:g} at once, trtllm-truss carries {streams:g} × {other}.")
        result.machine["cores"] = "2"
        result.write(tmp_path)
    page = write_report(tmp_path, tmp_path, ["zero-cost", "cpu-engine"]).read_text()
    lines = [line for line in page.splitlines() if line and not line.startswith("<!--")]
    heading, first, second, third, *_ = lines
    assert heading == "# Performance"
    carried = "carries 512 ±12 tokens/s over 512 streams on 2 cores: 512 ×"
    assert first.endswith(f"{carried} a loop.")
    assert second.endswith(f"{carried} the model alone.")
    assert third.startswith("Figures and ratios are those of the machine")


def test_report_opens_with_the_cost_of_a_request(tmp_path: Path) -> None:
    result = CaseResult("host-floor", "A title", "A text.", [Column("path", "path")])
    for load in ("at once, 32", "steady, 1", "steady, 32", "steady, 512"):
        result.find(f"{load}: trtllm-truss has 0.8 × of its requests/s.")
    result.machine["cores"] = "2"
    result.write(tmp_path)
    page = write_report(tmp_path, tmp_path, ["host-floor"]).read_text()
    sentence = "trtllm-truss has 0.8 × of its requests/s (steady, 32 clients on 2 cores)."
    assert f"{sentence}\n" in page
    result.machine["cores"] = "16"
    result.write(tmp_path, "big")
    page = write_report(tmp_path, tmp_path, ["host-floor"]).read_text()
    assert f"{sentence} Elsewhere: {sentence.replace('on 2', 'on 16')}\n" in page


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


def test_other_machines_follow_their_case(tmp_path: Path) -> None:
    for label, cores in (("", "2"), ("big", "16")):
        result = CaseResult("paced", "A title", "A text.", [Column("path", "path")])
        result.machine |= {"cores": cores, "memory": "128 GiB"}
        result.find(f"On {cores} cores.")
        result.write(tmp_path, label)
    page = write_report(tmp_path, tmp_path, ["paced"]).read_text()
    assert page.count("A text.") == 1
    first, second = page.split("### A title: 16 cores, 128 GiB")
    assert "- On 2 cores." in first
    assert "- On 16 cores." in second
    (tmp_path / "paced@big.json").unlink()
    assert write_report(tmp_path, tmp_path, ["paced"]).read_text() == page
