"""Requests at twice the capacity of the engine."""

from __future__ import annotations

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.load.process import run_load
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.sample import figures
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
    seconds = options.seconds or 60.0
    text = (
        f"The engine runs {_BATCH} requests of {_TOKENS} tokens at once, one step in "
        f"{_STEP_MS:g} ms: {_CAPACITY:g} requests a second. Clients arrive independently of one "
        f"another for {seconds:g} s, each on a connection of its own; none of them retries. TTFT "
        "is that of requests with a whole answer. RSS is that of all processes of the server."
    )
    result = CaseResult("overload", "Overload: twice the capacity of the engine", text, _COLUMNS)
    result.begin()
    bench = set_up(options, "overload", step_ms=_STEP_MS, max_batch_size=_BATCH)
    bench.note_backend(result)
    with serve(bench.config, bench.backend.folder) as truss:
        run_load(predict_load(truss, _TOKENS, 2, requests=4))
        for load in _LOADS:
            rate = load * _CAPACITY
            before_mib = _rss_mib(truss)
            seen = run_load(predict_load(truss, _TOKENS, 0, rate=rate, duration_s=seconds))
            answered, refused = (seen.outcomes.get(outcome, 0) for outcome in ("200", "429"))
            result.add(
                **figures(seen),
                load=f"{load:g} ×",
                arrivals=rate,
                answered=float(answered),
                refused=float(refused),
                others=float(sum(seen.outcomes.values()) - answered - refused),
                answered_s=answered / seen.elapsed_s,
                rss_before_mib=before_mib,
                rss_after_mib=_rss_mib(truss),
            )
            result.find(f"{load:g} ×: {seen.outcomes}")
    return result


def _rss_mib(target: Target) -> float:
    return total(usage_by_role(target.pid)).rss_bytes / 2**20
