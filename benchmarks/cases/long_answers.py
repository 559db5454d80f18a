"""Long answers with an engine that costs nothing: tokens per second and CPU time per token."""

from __future__ import annotations

from benchmarks.cases.zero_cost import COLUMNS, measure_paths
from benchmarks.options import Options
from benchmarks.result import CaseResult

_TOKENS = 1024
_STREAMS = (32,)
_TEXT = f"""\
The paths of the zero-cost engine above with answers of {_TOKENS:,} tokens, where the cost of a
request is small beside that of its tokens."""


def run(options: Options) -> CaseResult:
    """Measure the bare loop and the Truss."""
    title = "Long answers: tokens per second of the path alone"
    result = CaseResult("long-answers", title, _TEXT, COLUMNS)
    measure_paths(options, result, _TOKENS, _STREAMS, with_native=False)
    result.charts.clear()  # one point each
    return result
