"""Write docs/performance.md and its plots from the JSON of cases.

Every case has a sentence at the top and a section; a marker before each lets a later run replace
its own cases and keep the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from benchmarks.cases import MEASURED
from benchmarks.result import CaseResult, Chart, read_result, shown_cell

_HEADING = "# Performance\n\n"
_MARKER = "<!-- {} -->\n"
_MARKED = re.compile(r"^<!-- (.+) -->\n", re.MULTILINE)
_SUMMARIES = {
    "zero-cost": "With an engine that costs nothing, the serving path carries",
    "cpu-engine": "With SmolLM2-135M on the CPU, where the model is the limit, it carries",
    "host-floor": "Beside Truss's bare server, which only streams two pieces,",
}
_ELSEWHERE = " Elsewhere:"
_READING = """\
Figures and ratios are those of the machine named under each table, and other machines give others;
`make bench` (`python -m benchmarks --help`) measures yours and writes this page.

![Tokens per second](plots/zero-cost-tok_s.svg)

"""


def write_report(results: Path, docs: Path, names: Collection[str]) -> Path:
    """Write the parts of some cases into `performance.md`, and their `plots/*.svg`.

    Args:
        results: the folder of `CASE.json`, and of `CASE@LABEL.json` for other machines; cases
            without a file are skipped.
        docs: the folder of the page; the page's parts of other cases are kept.
        names: the cases to write.
    """
    (docs / "plots").mkdir(parents=True, exist_ok=True)
    page = docs / "performance.md"
    parts = _read_parts(page)
    for name in set(names) & set(MEASURED):
        if (file := results / f"{name}.json").exists():
            case = read_result(file)
            parts[name] = _section(case, docs) + "\n"
            if name in _SUMMARIES:
                parts[f"summary: {name}"] = f"{_SUMMARIES[name]} {_summary(case)}\n"
        others = [(file.stem, read_result(file)) for file in sorted(results.glob(f"{name}@*.json"))]
        for key, case in others:
            parts[key] = _other_machine(case) + "\n"
        if others and f"summary: {name}" in parts:
            first = parts[f"summary: {name}"].partition(_ELSEWHERE)[0].rstrip("\n")
            elsewhere = "".join(f"{_ELSEWHERE} {_summary(case)}" for _, case in others)
            parts[f"summary: {name}"] = f"{first}{elsewhere}\n"
    parts["reading"] = _READING
    order = [*(f"summary: {name}" for name in _SUMMARIES), "reading"]
    for name in MEASURED:
        order += [name, *sorted(key for key in parts if key.startswith(f"{name}@"))]
    marked = [_MARKER.format(key) + parts[key] for key in order if key in parts]
    page.write_text(_HEADING + "".join(marked).rstrip("\n") + "\n", encoding="utf-8")
    return page


def _read_parts(page: Path) -> dict[str, str]:
    """Return the parts of an existing page by marker."""
    if not page.exists():
        return {}
    _, *marked = _MARKED.split(page.read_text(encoding="utf-8"))
    return dict(zip(marked[::2], marked[1::2], strict=True))


def _summary(result: CaseResult) -> str:
    return (_ratios if result.name == "host-floor" else _carried)(result)


def _carried(result: CaseResult) -> str:
    """Format trtllm-truss's throughput at the most streams, and the case's own comparison."""
    columns = {column.key: column for column in result.columns}
    row = [row for row in result.rows if row["path"] == "trtllm-truss"][-1]
    streams, tokens_s = (shown_cell(row[key], columns[key]) for key in ("streams", "tok_s"))
    ratios = result.findings[-1].partition(" carries ")[2]
    return (
        f"{tokens_s} tokens/s over {streams} streams on {result.machine['cores']} cores: {ratios}"
    )


def _ratios(result: CaseResult) -> str:
    """Return the comparison of the second number of steady clients, 32 by default."""
    steady = [finding for finding in result.findings if finding.startswith("steady")]
    load, _, ratios = steady[min(1, len(steady) - 1)].partition(": ")
    return f"{ratios.removesuffix('.')} ({load} clients on {result.machine['cores']} cores)."


def _section(result: CaseResult, docs: Path) -> str:
    lines = [f"## {result.title}", "", result.text, "", *_table(result)]
    for chart in result.charts:
        draw(chart, docs / "plots" / f"{chart.name}.svg")
        lines += [f"![{chart.title}](plots/{chart.name}.svg)", ""]
    return "\n".join([*lines, _origin(result), ""])


def _other_machine(result: CaseResult) -> str:
    """Format the table of a second kind of machine, without method and plots."""
    machine = result.machine
    heading = f"### {result.title}: {machine['cores']} cores, {machine['memory']}"
    return "\n".join([heading, "", *_table(result), _origin(result), ""])


def _table(result: CaseResult) -> list[str]:
    heads = [column.title for column in result.columns]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in result.rows:
        lines.append(_line([shown_cell(row.get(c.key, ""), c) for c in result.columns]))
    return [*lines, "", *(f"- {sentence}" for sentence in result.findings), ""]


def _origin(result: CaseResult) -> str:
    machine = result.machine
    where = f"{machine['cores']} cores, {machine['cpu']}, {machine['memory']}, {machine['date']}"
    return f"Measured on {where}; {machine['versions']}."


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(chart: Chart, file: Path) -> None:
    """Draw one chart.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (requirements-bench.txt).
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": chart.name, "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for label, points in chart.curves.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        if chart.log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if chart.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None})
