"""Writes docs/performance.md and its plots from the JSON of all cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.cases import MEASURED
from benchmarks.plots import draw
from benchmarks.result import CaseResult, read_result, shown_cell

_HEADING = "# Performance\n"
_READING = (
    "Ratios carry over to other machines, absolute figures do not; `make bench` "
    "(`python -m benchmarks --help`) writes this page."
)


def write_report(results: Path, docs: Path) -> Path:
    """Writes `performance.md` and `plots/*.svg` into a folder.

    Args:
        results: holds `CASE.json` of the cases that were run, now or earlier.
        docs: the folder.
    """
    (docs / "plots").mkdir(parents=True, exist_ok=True)
    files = [results / f"{name}.json" for name in MEASURED]
    cases = {file.stem: read_result(file) for file in files if file.exists()}
    opening = "\n".join([*_opening(cases), _READING])
    sections = [_section(case, docs) for case in cases.values()]
    page = docs / "performance.md"
    page.write_text("\n".join([_HEADING, opening + "\n", *sections]), encoding="utf-8")
    return page


def _opening(cases: Mapping[str, CaseResult]) -> Iterator[str]:
    """Summarize the path alone and the path with a real model, one sentence each."""
    if path := cases.get("zero-cost"):
        yield f"With an engine that costs nothing, the serving path carries {_carried(path)}"
    if model := cases.get("cpu-engine"):
        carried = _carried(model)
        yield f"With SmolLM2-135M on the CPU, where the model is the limit, it carries {carried}"


def _carried(result: CaseResult) -> str:
    """Format trtllm-truss's throughput at the most streams, and the case's own comparison."""
    columns = {column.key: column for column in result.columns}
    row = [row for row in result.rows if row["path"] == "trtllm-truss"][-1]
    streams, tokens_s = (shown_cell(row[key], columns[key]) for key in ("streams", "tok_s"))
    ratios = result.findings[-1].partition(" carries ")[2]
    return (
        f"{tokens_s} tokens/s over {streams} streams on {result.machine['cores']} cores: {ratios}"
    )


def _section(result: CaseResult, docs: Path) -> str:
    heads = [column.title for column in result.columns]
    lines = [f"## {result.title}", "", result.text, "", _line(heads), _line(["---"] * len(heads))]
    for row in result.rows:
        lines.append(_line([shown_cell(row.get(c.key, ""), c) for c in result.columns]))
    lines += ["", *(f"- {sentence}" for sentence in result.findings), ""]
    for chart in result.charts:
        draw(chart, docs / "plots" / f"{chart.name}.svg")
        lines += [f"![{chart.title}](plots/{chart.name}.svg)", ""]
    machine = result.machine
    where = f"{machine['cores']} cores, {machine['cpu']}, {machine['memory']}, {machine['date']}"
    return "\n".join([*lines, f"Measured on {where}; {machine['versions']}.", ""])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
