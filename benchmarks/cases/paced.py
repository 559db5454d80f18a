"""Measure the delay that the path adds to the gaps of a slow engine."""

from __future__ import annotations

from functools import partial

from benchmarks.cases.setup import bare_load, chunk_interval_ms, predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, spreads
from benchmarks.servers.triton import triton
from benchmarks.servers.truss import serve

_STEP_MS = 10.0
_TOKENS = 128
_STREAMS = (32, 128, 256)
_BARE, _TRUSS = "bare gRPC loop", "trtllm-truss"
_COLUMNS = [
    Column("streams", "streams"),
    Column("path", "path"),
    Column("pace_tok_s", "tok/s each", 1),
    Column("ttft_p50_ms", "TTFT p50 ms", 1),
    Column("ttft_p99_ms", "TTFT p99 ms", 1),
    Column("gap_p50_ms", "gap p50 ms", 1),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("gap_max_ms", "gap max ms", 1),
    Column("added_p50_ms", "added p50 ms", 1),
    Column("added_p99_ms", "added p99 ms", 1),
    Column("failed", "failed"),
]


def run(options: Options) -> CaseResult:
    """Measure gaps at every number of streams."""
    interval_ms = chunk_interval_ms()
    held_ms = {_BARE: 0.0, _TRUSS: interval_ms}
    text = (
        f"The engine makes a token for every stream each {_STEP_MS:g} ms. “tok/s each” is what one "
        "answer brings from its first token to its last (the median). A gap lies between two "
        f"arrivals at the client; “added” is what a gap has beyond a step and, for {_TRUSS}, "
        f"beyond the {interval_ms:g} ms for which it may hold tokens back to send them together "
        "(`serving.chunk_interval_ms`); below 0 the gap is shorter than both together."
    )
    title = f"Paced engine, {_STEP_MS:g} ms a step: what the path adds to each gap"
    result = CaseResult("paced", title, text, _COLUMNS).begin()
    bench = set_up(options, "paced", engine={"step_ms": _STEP_MS})
    bench.note_backend(result)
    with (
        triton(bench.config, bench.backend.folder, "tensorrt_llm") as alone,
        serve(bench.config, bench.backend.folder) as truss,
    ):
        loads = {
            _BARE: (alone, partial(bare_load, alone, _TOKENS)),
            _TRUSS: (truss, partial(predict_load, truss, _TOKENS)),
        }
        for target, load in loads.values():
            measure(target, load(2, requests=2))
        for streams in options.streams or _STREAMS:
            seconds = options.seconds or 4.0
            paths = {
                name: partial(measure, target, load(streams, duration_s=seconds))
                for name, (target, load) in loads.items()
            }
            for name, samples in in_turns(paths, options.rounds).items():
                for sample in samples:
                    _add_delays(sample, held_ms[name])
                cells: dict[str, Cell] = {**spreads(samples)}
                result.add(streams=float(streams), path=name, **cells)
    return result


def _add_delays(sample: Sample, held_ms: float) -> None:
    for quantile in ("p50", "p99"):
        gap_ms = sample.get(f"gap_{quantile}_ms", 0.0)
        sample[f"added_{quantile}_ms"] = gap_ms - _STEP_MS - held_ms
