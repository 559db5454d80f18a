"""Write docs/performance.md and its plot from the JSON of cases.

Every case has one section with one table, all from one machine. A marker before each lets a later
run replace its own cases and keep the others. Three sentences at the top give the ratios.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tools.docs.contents import with_contents, without_contents

from benchmarks.cases import MEASURED
from benchmarks.result import CaseResult, Chart, read_result, shown_cell

_HEADING = "# Performance\n\n"
_MARKER = "<!-- {} -->\n"
_MARKED = re.compile(r"^<!-- (.+) -->\n", re.MULTILINE)
_RATIO = re.compile(r"([\d.]+) ×(?: \([^)]*\))? ([^,]+?)(?: \(which [^)]*\))?(?:, |$)")
_CORES = re.compile(r"^Measured on (\d+) cores", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence at the top of the page.

    Attributes:
        text: precedes the ratios.
        finding: matches a case's findings; its groups are the number of streams and the ratios.
        load: follows the ratios, with a place for the number of streams.
        streams: the sentence has the ratios at this number, or at the nearest one.
    """

    text: str
    finding: re.Pattern[str]
    load: str
    streams: int


_CARRIED = re.compile(r"^- With (\d+) at once, trtllm-truss carries (.+)\.$", re.MULTILINE)
_STEADY = re.compile(r"^- steady, (\d+): trtllm-truss has (.+)\.$", re.MULTILINE)
_SENTENCES = {
    "zero-cost": _Sentence(
        "With an engine that costs nothing, the serving path carries",
        _CARRIED,
        "over {} streams",
        512,
    ),
    "cpu-engine": _Sentence(
        "With SmolLM2-135M on the CPU, where the model is the limit, it carries",
        _CARRIED,
        "over {} streams",
        32,
    ),
    "host-floor": _Sentence(
        "Beside Truss's bare server, which only streams two pieces, it has",
        _STEADY,
        "with {} steady clients",
        32,
    ),
}
_READING = """\

All figures come from machines with two cores and 24 GiB, named under each table. Ratios carry over
to other machines better than absolute figures. `make bench` (`python -m benchmarks --help`)
measures yours and writes this page.

"""


def write_report(results: Path, docs: Path, names: Collection[str]) -> Path:
    """Write the sections of some cases into `performance.md`, and their `plots/*.png`.

    Args:
        results: folder of `CASE.json`; cases without a file are skipped, as are the files of
            other machines (`CASE@LABEL.json`).
        docs: folder of the page; its sections of other cases are kept.
        names: the cases to write.
    """
    (docs / "plots").mkdir(parents=True, exist_ok=True)
    page = docs / "performance.md"
    parts = _read_parts(page)
    for name in set(names) & set(MEASURED):
        if (file := results / f"{name}.json").exists():
            case = read_result(file)
            parts[name] = _section(case, docs) + "\n"
    parts["summary"] = "".join(
        _summary(sentence, parts.get(name, "")) for name, sentence in _SENTENCES.items()
    )
    parts["reading"] = _READING
    order = ["summary", "reading", *(name for name in MEASURED if name in parts)]
    marked = [_MARKER.format(key) + parts[key] for key in order]
    text = _HEADING + "".join(marked).rstrip("\n") + "\n"
    page.write_text(with_contents(text), encoding="utf-8")
    return page


def _read_parts(page: Path) -> dict[str, str]:
    """Return the parts of an existing page by marker."""
    if not page.exists():
        return {}
    _, *marked = _MARKED.split(without_contents(page.read_text(encoding="utf-8")))
    return dict(zip(marked[::2], marked[1::2], strict=True))


def _summary(sentence: _Sentence, section: str) -> str:
    """Format the ratios of a case; empty without a section."""
    found = {int(streams): ratios for streams, ratios in sentence.finding.findall(section)}
    if not found:
        return ""
    streams = min(found, key=lambda each: abs(each - sentence.streams))
    shown = ", ".join(f"{median} × {of}" for median, of in _RATIO.findall(found[streams]))
    cores = ", ".join(_CORES.findall(section))
    load = sentence.load.format(streams)
    return f"- {sentence.text} {shown} {load} (medians on {cores} cores).\n"


def _section(result: CaseResult, docs: Path) -> str:
    lines = [f"## {result.title}", "", result.text, "", *_table(result)]
    for chart in result.charts:
        draw(chart, docs / "plots" / f"{chart.name}.png")
        lines += [f"![{chart.title}](plots/{chart.name}.png)", ""]
    return "\n".join([*lines, _origin(result), ""])


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
        ModuleNotFoundError: matplotlib is not installed (requirements/bench.txt).
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
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
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
