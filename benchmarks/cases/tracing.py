"""Measure what spans cost the serving path."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from starlette.datastructures import Headers

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.configuration import changed
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from trtllm_truss.observability.tracing import Tracing, open_tracing
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.triton.server.ports import unused_ports

_STREAMS = (1, 32)
_TOKENS = (128, 512)
_CALLS = 2000
_OFF, _AGAIN, _ON, _BOTH = "off", "off, again", "on", "on, and Truss's own"
_COLUMNS = [
    Column("tokens", "tokens"),
    Column("streams", "streams"),
    Column("tracing", "tracing"),
    Column("tok_s", "tok/s"),
    Column("ttft_p50_ms", "TTFT p50 ms", 1),
    Column("request_cpu_us", "server µs/request"),
    Column("failed", "failed"),
]
_TEXT = f"""\
`runtime.enable_tracing_data`, with a receiver of OTLP over HTTP in another process. “{_ON}” are
the four spans of each request of this project, with `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`;
“{_BOTH}”, with `OTEL_EXPORTER_OTLP_ENDPOINT`, has the spans of Truss's server beside them. The
engine makes tokens as fast as Triton takes them, so that each microsecond shows. “{_AGAIN}” is a
second server without spans: its difference is that of two equal processes. The servers take turns;
client and receiver run on the same cores. Figures are medians over the rounds, ± half of the
range."""


def run(options: Options) -> CaseResult:
    """Measure the same load with and without spans."""
    result = CaseResult("tracing", "Cost of spans", _TEXT, _COLUMNS).begin()
    bench = set_up(options, "tracing")
    bench.note_backend(result)
    traced = changed(bench.config, "on", runtime={"enable_tracing_data": True})
    backends = bench.backend.folder
    with (
        _receiver() as url,
        serve(bench.config, backends) as off,
        serve(bench.config, backends) as again,
        serve(traced, backends, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=url) as on,
        serve(traced, backends, OTEL_EXPORTER_OTLP_ENDPOINT=url) as both,
    ):
        targets = {_OFF: off, _AGAIN: again, _ON: on, _BOTH: both}
        for target in targets.values():
            measure(target, predict_load(target, 8, 8, requests=200))
        cheapest_us = min(
            _compare(options, result, targets, tokens, streams)
            for tokens in _TOKENS
            for streams in options.streams or _STREAMS
        )
        _note_alone(options, result, url, cheapest_us)
    return result


def _note_alone(options: Options, result: CaseResult, url: str, cheapest_us: float) -> None:
    """Add the CPU time of a call's spans without a server, which other processes disturb less.

    Args:
        cheapest_us: CPU time of the cheapest request without spans.
    """
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = url
    os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = str(8 * _CALLS)
    tracing = open_tracing()
    assert tracing is not None
    samples = [_alone(tracing) for _ in range(max(5, options.rounds))]
    tracing.close()
    figures = spreads(samples)
    shown = {name: figure.shown(".0f", " µs") for name, figure in figures.items()}
    result.find(
        f"The spans of a call take {shown['all_us']} of CPU time with their export, "
        f"{shown['loop_us']} of it on the event loop: "
        f"{100 * figures['all_us'].median / cheapest_us:.1f} % of the cheapest request above."
    )


def _alone(tracing: Tracing) -> Sample:
    headers = Headers({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    requests = [GenerationRequest(prompt="", max_tokens=128, model="m")]
    begun_all, begun = time.process_time(), time.thread_time()
    for number in range(_CALLS):
        call_id = f"{number:032x}"
        trace = tracing.begin(headers, "/v1/models/model:predict", call_id)
        assert trace is not None
        trace.describe(requests, is_streamed=True)
        now_s = time.monotonic()
        trace.answered(
            call_id,
            (now_s, now_s, now_s),
            now_s,
            reason="length",
            error=None,
            input_tokens=8,
            cached_tokens=None,
            output_tokens=128,
        )
        trace.responds(200)
        trace.end()
    loop_s = time.thread_time() - begun
    tracing.flush()
    all_s = time.process_time() - begun_all
    return {"loop_us": 1e6 * loop_s / _CALLS, "all_us": 1e6 * all_s / _CALLS}


def _compare(
    options: Options,
    result: CaseResult,
    targets: dict[str, Target],
    tokens: int,
    streams: int,
) -> float:
    """Add the rows of one load; return the CPU time of a request without spans, in µs."""
    seconds = options.seconds or 4.0
    paths = {
        name: partial(measure, target, predict_load(target, tokens, streams, duration_s=seconds))
        for name, target in targets.items()
    }
    samples = in_turns(paths, options.rounds)
    for name, taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(tokens=float(tokens), streams=float(streams), tracing=name, **cells)
    for name in (_AGAIN, _ON, _BOTH):
        ratios = paired_ratios(samples[name], samples[_OFF])
        cpu, rate = (ratios[key].shown(".3f", " ×") for key in ("request_cpu_us", "tok_s"))
        result.find(
            f"{tokens} tokens, {streams} at once, {name}: {cpu} the CPU time of a request, {rate} "
            "the tokens/s."
        )
    return spreads(samples[_OFF])["request_cpu_us"].median


@contextmanager
def _receiver() -> Iterator[str]:
    """Run a receiver of spans in another process; yield its URL."""
    (port,) = unused_ports(1)
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(port,))
    process.start()
    try:
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        process.terminate()
        process.join()


class _Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def _receive(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), _Receiver).serve_forever()
