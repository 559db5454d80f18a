"""Draw curves as SVG, with equal bytes for equal figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.result import Chart


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
