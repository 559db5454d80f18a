"""Measure the serving path with an engine that costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.cases.setup import bare_load, native_load, predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Chart, Column
from benchmarks.sample import Sample, Spread, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.target import Target
from benchmarks.servers.triton import triton
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_TOKENS = 128
_STREAMS = (1, 8, 32, 128, 512)
_PATIENCE_S = 3.0  # Triton's HTTP front end drops streams when responses come fast
_BARE, _TRUSS = "bare gRPC loop", "trtllm-truss"
COLUMNS = [
    Column("streams", "streams"),
    Column("path", "path"),
    Column("tok_s", "tok/s"),
    Column("ttft_p50_ms", "TTFT p50 ms", 1),
    Column("ttft_p99_ms", "TTFT p99 ms", 1),
    Column("gap_p50_ms", "gap p50 ms", 1),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("server_cpu_us", "server µs/tok", 1),
    Column("client_cpu_us", "client µs/tok", 1),
    Column("truss_cpu_us", "Truss µs/tok", 1),
    Column("stream_rss_kib", "KiB/stream"),
    Column("failed", "failed"),
]
_TEXT = f"""\
Every answer is {_TOKENS} tokens, and the engine makes them as fast as Triton takes them: what is
measured is the path alone. The client runs on the same cores in another process. The paths
take turns; figures are medians over the rounds, ± half of the range between the lowest and the
highest. “bare gRPC loop” is `tritonclient.grpc.aio` on `tensorrt_llm`, without text or HTTP: the
client itself is the path there. “Triton HTTP” is Triton's own `generate_stream` on
`{{model}}`. “{_TRUSS}” is `POST …:predict` with server-sent events, text included. TTFT is the time
to the first token, connecting included; a gap lies between two arrivals of tokens of one answer.
CPU time is that of all processes of the server, “Truss” that of
Truss's process alone. Requests without a whole answer count as failed and
for nothing else: Triton's HTTP front end forgets streams when responses come faster than it sends
them."""


def run(options: Options) -> CaseResult:
    """Measure all paths at every number of streams."""
    text = _TEXT.replace("{model}", options.native_model)
    title = "Zero-cost engine: tokens per second of the path alone"
    return measure_paths(options, CaseResult("zero-cost", title, text, COLUMNS), _TOKENS, _STREAMS)


def measure_paths(
    options: Options,
    result: CaseResult,
    tokens: int,
    default_streams: Sequence[int],
    *,
    with_native: bool = True,
) -> CaseResult:
    """Fill a result with all paths at every number of streams.

    Args:
        options: may override the numbers.
        result: empty result with `COLUMNS`.
        tokens: tokens per answer.
        default_streams: numbers of streams.
        with_native: include Triton's own `generate_stream`.
    """
    native = f"Triton HTTP ({options.native_model})"
    bench = set_up(options, "zero-cost")
    native_bench = bench
    if options.native_model != "tensorrt_llm":
        native_bench = set_up(options, "zero-cost-native", triton_native=True)
    result.begin()
    bench.note_backend(result)
    with (
        triton(native_bench.config, bench.backend.folder, options.native_model) as alone,
        serve(bench.config, bench.backend.folder) as truss,
    ):
        loads = {
            _BARE: partial(bare_load, alone, tokens),
            native: partial(
                native_load, alone, options.native_model, tokens, patience_s=_PATIENCE_S
            ),
            _TRUSS: partial(predict_load, truss, tokens),
        }
        if not with_native:
            del loads[native]
        targets = {_BARE: alone, native: alone, _TRUSS: truss}
        for name, load in loads.items():
            measure(targets[name], load(2, requests=4))
        idle = {name: _rss_bytes(targets[name]) for name in loads}
        others = [name for name in loads if name != _TRUSS]
        for streams in options.streams or default_streams:
            seconds = options.seconds or 2.0
            paths = {
                name: partial(measure, targets[name], load(streams, duration_s=seconds), idle[name])
                for name, load in loads.items()
            }
            samples = in_turns(paths, options.rounds)
            for name, taken in samples.items():
                cells: dict[str, Cell] = {**spreads(taken)}
                result.add(streams=float(streams), path=name, **cells)
            shown = ", ".join(_ratio(samples, other) for other in others)
            result.find(f"With {streams} at once, {_TRUSS} carries {shown}.")
    _draw(result, (*others, _TRUSS))
    return result


def _rss_bytes(target: Target) -> int:
    return total(usage_by_role(target.pid)).rss_bytes


def _ratio(samples: dict[str, list[Sample]], other: str) -> str:
    ratio = paired_ratios(samples[_TRUSS], samples[other]).get("tok_s")
    failed = spreads(samples[other])["failed"].median
    note = f" (which left {failed:.0f} streams unfinished)" if failed else ""
    return f"{ratio.as_ratio} {other}{note}" if ratio else f"more than {other}"


def _draw(result: CaseResult, names: Sequence[str]) -> None:
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for row in result.rows:
        cell = row.get("tok_s")
        median = cell.median if isinstance(cell, Spread) else 0.0
        curves[str(row["path"])].append((float(str(row["streams"])), median))
    title = "Tokens per second"
    result.charts.append(Chart(f"{result.name}-tok_s", title, "streams", "tokens/s", curves))
