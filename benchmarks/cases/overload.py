"""Requests at twice the capacity of the engine."""

from __future__ import annotations

from functools import partial

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, figures, in_turns, spreads
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_STEP_MS = 10.0
_TOKENS = 64
_BATCH = 32
_CAPACITY = _BATCH / (_TOKENS * _STEP_MS / 1000)
_LOADS = (0.8, 2.0)
_COLUMNS = [
    Column("load", "load"),
    Column("arrivals", "requests/s"),
    Column("answered", "200"),
    Column("refused", "429"),
    Column("others", "others"),
    Column("answered_s", "200/s", 1),
    Column("ttft_p50_ms", "TTFT p50 ms"),
    Column("ttft_p99_ms", "TTFT p99 ms"),
    Column("ttft_max_ms", "TTFT max ms"),
    Column("rss_before_mib", "RSS before MiB"),
    Column("rss_after_mib", "RSS after MiB"),
]


def run(options: Options) -> CaseResult:
    """Load a server below and above the capacity of its engine."""
    seconds = options.seconds or 30.0
    text = (
        f"The engine runs {_BATCH} requests of {_TOKENS} tokens at once, one step in "
        f"{_STEP_MS:g} ms: {_CAPACITY:g} requests a second. Clients arrive independently of one "
        f"another for {seconds:g} s, each on a connection of its own; none of them retries. TTFT "
        "is that of requests with a whole answer. RSS is that of all processes of the server. "
        "Figures are medians over the rounds, ± half of the range."
    )
    result = CaseResult("overload", "Overload: twice the capacity of the engine", text, _COLUMNS)
    result.begin()
    bench = set_up(options, "overload", max_batch_size=_BATCH, engine={"step_ms": _STEP_MS})
    bench.note_backend(result)
    with serve(bench.config, bench.backend.folder) as truss:
        run_load(predict_load(truss, _TOKENS, 2, requests=4))
        paths = {f"{load:g} ×": partial(_measure, truss, load, seconds) for load in _LOADS}
        for name, samples in in_turns(paths, options.rounds).items():
            spread = spreads(samples)
            cells: dict[str, Cell] = {**spread}
            result.add(load=name, **cells)
            result.find(
                f"{name}: {spread['carried'].as_ratio} of the requests for which the engine has "
                f"room are answered; {spread['others'].high:g} get a status other than 200 and 429."
            )
    return result


def _measure(truss: Target, load: float, seconds: float) -> Sample:
    rate = load * _CAPACITY
    before_mib = _rss_mib(truss)
    seen = run_load(predict_load(truss, _TOKENS, 0, rate=rate, duration_s=seconds))
    answered, refused = (float(seen.outcomes.get(outcome, 0)) for outcome in ("200", "429"))
    answered_s = answered / seen.elapsed_s
    return {
        **figures(seen),
        "arrivals": rate,
        "answered": answered,
        "refused": refused,
        "others": sum(seen.outcomes.values()) - answered - refused,
        "answered_s": answered_s,
        "carried": answered_s / min(rate, _CAPACITY),
        "rss_before_mib": before_mib,
        "rss_after_mib": _rss_mib(truss),
    }


def _rss_mib(target: Target) -> float:
    return total(usage_by_role(target.pid)).rss_bytes / 2**20
