"""Write docs/performance.md and its plots from the JSON of cases.

Every case has a section for each machine; a marker before each lets a later run replace its own
cases and keep the others. Three sentences at the top have the ratios of all machines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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
        for file in sorted(results.glob(f"{name}@*.json")):
            parts[file.stem] = _other_machine(read_result(file)) + "\n"
    machines = {
        name: [key for key in sorted(parts) if key == name or key.startswith(f"{name}@")]
        for name in MEASURED
    }
    parts["summary"] = "".join(
        _summary(sentence, [parts[key] for key in machines[name]])
        for name, sentence in _SENTENCES.items()
    )
    parts["reading"] = _READING
    order = ["summary", "reading", *(key for keys in machines.values() for key in keys)]
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


def _summary(sentence: _Sentence, sections: Sequence[str]) -> str:
    """Format the ratios of a case as ranges over the machines; empty without sections.

    Machines without the number of streams of the first are left out.
    """
    found = [
        {int(streams): ratios for streams, ratios in sentence.finding.findall(section)}
        for section in sections
    ]
    if not found or not found[0]:
        return ""
    streams = min(found[0], key=lambda each: abs(each - sentence.streams))
    medians: dict[str, list[str]] = {}
    cores: list[int] = []
    for section, ratios in zip(sections, found, strict=True):
        if streams in ratios:
            cores += map(int, _CORES.findall(section))
            for median, of in _RATIO.findall(ratios[streams]):
                medians.setdefault(of, []).append(median)
    shown = ", ".join(f"{_range(values)} × {of}" for of, values in medians.items())
    where = " and ".join(map(str, sorted({*cores})))
    load = sentence.load.format(streams)
    return f"- {sentence.text} {shown} {load} (medians on {where} cores).\n"


def _range(medians: Sequence[str]) -> str:
    """Return the lowest and the highest of some formatted figures, or the only one."""
    lowest, highest = min(medians, key=float), max(medians, key=float)
    return lowest if lowest == highest else f"{lowest} to {highest}"


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
        ModuleNotFoundError: matplotlib is not installed (requirements/bench.txt).
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
