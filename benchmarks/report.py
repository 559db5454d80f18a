"""Writes docs/performance.md and its plots from the JSON of all cases."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cases import MEASURED
from benchmarks.plots import draw
from benchmarks.result import CaseResult, read_result, shown_cell

_HEAD = """\
# Performance

Written by `make bench` (`python -m benchmarks --help`); the tables are what it prints. Ratios
carry over to other machines, absolute figures do not.
"""


def write_report(results: Path, docs: Path) -> Path:
    """Writes `performance.md` and `plots/*.svg` into a folder.

    Args:
        results: holds `CASE.json` of the cases that were run, now or earlier.
        docs: the folder.
    """
    (docs / "plots").mkdir(parents=True, exist_ok=True)
    files = [results / f"{name}.json" for name in MEASURED]
    sections = [_section(read_result(file), docs) for file in files if file.exists()]
    page = docs / "performance.md"
    page.write_text("\n".join([_HEAD, *sections]), encoding="utf-8")
    return page


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
