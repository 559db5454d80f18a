"""Measure what gateways' scrapes cost the serving path."""

from __future__ import annotations

import http.client
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

from prometheus_client import REGISTRY, generate_latest

from benchmarks.cases.setup import predict_load, set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role
from trtllm_truss.observability.metrics import Metrics, exposed

_STREAMS = 32
_TOKENS = 128
_RATE_HZ = 20
_PAGES = 500
_NONE, _SCRAPED = "none", f"{_RATE_HZ} a second"
_COLUMNS = [
    Column("streams", "streams"),
    Column("scrapes", "scrapes"),
    Column("tok_s", "tok/s"),
    Column("gap_p99_ms", "gap p99 ms", 1),
    Column("server_cpu_us", "server µs/tok", 1),
    Column("scrape_p50_ms", "scrape p50 ms", 1),
    Column("failed", "failed"),
]
_TEXT = f"""\
`GET /metrics` {_RATE_HZ} times a second, as endpoint pickers do, with the headers of Go's client on
one connection, beside a load on an engine that makes tokens as fast as Triton takes them. Both
loads take turns on one server; the clients run on the same cores. Figures are medians over the
rounds, ± half of the range."""


def run(options: Options) -> CaseResult:
    """Measure the same load with and without scrapes."""
    result = CaseResult("scrapes", "Cost of scrapes", _TEXT, _COLUMNS).begin()
    streams = options.streams[0] if options.streams else _STREAMS
    bench = set_up(options, "scrapes")
    bench.note_backend(result)
    with serve(bench.config, bench.backend.folder) as truss:
        measure(truss, predict_load(truss, 8, 8, requests=200))
        load = predict_load(truss, _TOKENS, streams, duration_s=options.seconds or 4.0)
        sample = partial(measure, truss, load)
        paths: dict[str, Callable[[], Sample]] = {
            _NONE: sample,
            _SCRAPED: partial(_with_scrapes, truss.port, sample),
        }
        samples = in_turns(paths, options.rounds)
        alone = spreads([_cpu_of_scrapes(truss) for _ in range(5)])
    for name, taken in samples.items():
        cells: dict[str, Cell] = {**spreads(taken)}
        result.add(streams=float(streams), scrapes=name, **cells)
    ratios = paired_ratios(samples[_SCRAPED], samples[_NONE])
    cpu, rate = (ratios[key].shown(".3f", " ×") for key in ("server_cpu_us", "tok_s"))
    result.find(
        f"{_RATE_HZ} scrapes a second leave {rate} the tokens/s at {cpu} the CPU time of a token."
    )
    shown, share = alone["cpu_us"].shown(".0f", " µs"), alone["cpu_us"].median * _RATE_HZ / 1e4
    result.find(
        f"A scrape without a load takes {shown} of the server's CPU time: {share:.2f} % of a core "
        f"at {_RATE_HZ} a second."
    )
    _note_pages(result)
    return result


def _cpu_of_scrapes(truss: Target) -> Sample:
    connection = http.client.HTTPConnection("127.0.0.1", truss.port)
    before_s = total(usage_by_role(truss.pid)).cpu_s
    for _ in range(_PAGES):
        _read_page(connection)
    connection.close()
    used_s = total(usage_by_role(truss.pid)).cpu_s - before_s
    return {"cpu_us": 1e6 * used_s / _PAGES}


def _read_page(connection: http.client.HTTPConnection) -> None:
    headers = {"Accept-Encoding": "gzip", "User-Agent": "Go-http-client/1.1"}
    connection.request("GET", "/metrics", headers=headers)
    connection.getresponse().read()


def _with_scrapes(port: int, sample: Callable[[], Sample]) -> Sample:
    with _scraping(port) as times_s:
        taken = sample()
    return {**taken, "scrape_p50_ms": 1000 * sorted(times_s)[len(times_s) // 2]}


@contextmanager
def _scraping(port: int) -> Iterator[list[float]]:
    """Scrape in a separate process; a thread would take Python's lock from the load's client."""
    times_s: list[float] = []
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_scrape, args=(port, there))
    process.start()
    here.recv()  # it is ready
    here.send(None)
    try:
        yield times_s
    finally:
        here.send(None)
        times_s += here.recv()
        process.join()


def _scrape(port: int, caller: Connection) -> None:
    """Scrape between two messages of the caller, and send the times."""
    times_s: list[float] = []
    caller.send(None)
    caller.recv()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    due = time.monotonic()
    while not caller.poll(max(0.0, due - time.monotonic())):
        due = max(due + 1 / _RATE_HZ, time.monotonic())
        began = time.perf_counter()
        _read_page(connection)
        times_s.append(time.perf_counter() - began)
    connection.close()
    caller.send(times_s)


def _note_pages(result: CaseResult) -> None:
    """Add the CPU time of a single page, which other processes disturb less."""
    with exposed(Metrics(engine_up=lambda: True), lambda: None):
        samples = [{"page": _cpu_us(lambda: generate_latest(REGISTRY))} for _ in range(5)]
    shown = spreads(samples)["page"].shown(".0f", " µs")
    result.find(f"A page takes {shown} of CPU time.")


def _cpu_us(page: Callable[[], object]) -> float:
    begun = time.process_time()
    for _ in range(_PAGES):
        page()
    return 1e6 * (time.process_time() - begun) / _PAGES
