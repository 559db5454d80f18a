"""Compare the cost of a request with that of Truss's bare server."""

from __future__ import annotations

from functools import partial

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.configuration import in_own_server
from benchmarks.servers.host_floor import host_floor
from benchmarks.servers.target import Target
from benchmarks.servers.truss import CONTAINERS, serve

_TOKENS = 2
_STREAMS = (1, 32, 128, 512)
_REQUESTS_OF_ONE = 64
"""One after another, because a single client has no quantiles."""

_FLOOR, _TRUSS, _OWN = "Truss's bare server", "trtllm-truss", "trtllm-truss, own server"
_COLUMNS = [
    Column("load", "load"),
    Column("streams", "streams"),
    Column("path", "path"),
    Column("request_s", "requests/s"),
    Column("ttft_p50_ms", "first byte p50 ms", 1),
    Column("ttft_p99_ms", "first byte p99 ms", 1),
    Column("request_cpu_us", "server µs/request"),
    Column("truss_cpu_us", "Truss µs/request"),
    Column("failed", "failed"),
]
_TEXT = f"""\
Every answer is {_TOKENS} tokens of an engine that costs nothing. “{_FLOOR}” is Truss's server with
a model that reads the body and streams two pieces; “{_TRUSS}” is the same server with ours, below
the process of `serve` that prints its log; “{_OWN}” is our model in the
server of `init --server own`, started as in a container. “at once” is a crowd: every client opens a
connection of its own and sends one request; first byte includes connecting. “steady” is every
client sending one request after another on one connection. The servers run side by side and take
turns; the client runs on the same cores. “Truss” is the CPU time of Truss's process alone.
Figures are medians over the rounds, ± half of the range."""
_FIGURES = (
    ("request_s", "of its requests/s"),
    ("ttft_p50_ms", "its first byte p50"),
    ("ttft_p99_ms", "its first byte p99"),
    ("request_cpu_us", "its CPU time"),
)


def run(options: Options) -> CaseResult:
    """Measure both servers at every number of clients."""
    title = f"Cost of a request against {_FLOOR}"
    result = CaseResult("host-floor", title, _TEXT, _COLUMNS).begin()
    bench = set_up(options, "host-floor")
    bench.note_backend(result)
    with (
        host_floor(options.work) as floor,
        serve(bench.config, bench.backend.folder) as truss,
        serve(in_own_server(bench.config), bench.backend.folder, module=CONTAINERS) as own,
    ):
        targets = {_FLOOR: floor, _TRUSS: truss, _OWN: own}
        for target in targets.values():
            measure(target, predict_load(target, _TOKENS, 8, requests=200))
        for streams in options.streams or _STREAMS:
            requests = _REQUESTS_OF_ONE if streams == 1 else streams
            _add(result, "at once", streams, targets, options, requests=requests)
        for streams in options.streams or _STREAMS:
            seconds = options.seconds or 2.0
            _add(result, "steady", streams, targets, options, duration_s=seconds)
    return result


def _add(
    result: CaseResult,
    load: str,
    streams: int,
    targets: dict[str, Target],
    options: Options,
    **limit: float,
) -> None:
    paths = {name: partial(_measure, target, streams, **limit) for name, target in targets.items()}
    samples = in_turns(paths, options.rounds)
    for name, taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(load=load, streams=float(streams), path=name, **cells)
    for name in (_TRUSS, _OWN):
        ratios = paired_ratios(samples[name], samples[_FLOOR])
        shown = (f"{ratios[key].as_ratio} {label}" for key, label in _FIGURES if key in ratios)
        result.find(f"{load}, {streams}: {name} has {', '.join(shown)}.")


def _measure(target: Target, streams: int, **limit: float) -> Sample:
    sample = measure(target, predict_load(target, _TOKENS, streams, **limit))
    sample["truss_cpu_us"] *= sample["tok_s"] / sample["request_s"]  # from per token
    return sample
