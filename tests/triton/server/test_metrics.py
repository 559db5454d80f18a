"""Metrics of a real Triton in our scrape."""

from __future__ import annotations

import http.client
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client.openmetrics.exposition as openmetrics
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import parser as openmetrics_parser
from tests.support.serving import serving
from tests.support.triton_server import FakeEngineServer, triton_servers
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.observability import exposition
from trtllm_truss.observability.exposition import TritonMetrics, fetch_metrics
from trtllm_truss.triton.client.client import Trial, warm_up
from trtllm_truss.triton.client.engine_messages import EngineRequest

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
CHANGING = ("nv_cpu_", "nv_gpu_")
SUCCESSES = ("nv_inference_request_success", (("model", "tensorrt_llm"), ("version", "1")))

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TRIAL = Trial("", EngineRequest("warm-up", [11], 1))


def samples(text: str) -> Samples:
    """Return every sample by name and labels, without the parser under test."""
    return {
        (name, tuple(sorted(re.findall(r'(\w+)="(.*?)"', labels)))): float(value)
        for name, labels, value in SAMPLE.findall(text)
    }


def steady(values: Samples) -> Samples:
    """Return the samples that do not change between two scrapes of an idle server."""
    return {key: value for key, value in values.items() if not key[0].startswith(CHANGING)}


def shown(metrics: TritonMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def scraped(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def wait_for(metrics: TritonMetrics, expected: float | None) -> None:
    assert settles(lambda: samples(shown(metrics)).get(SUCCESSES) == expected), shown(metrics)


@pytest.fixture(scope="module")
def warm_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeEngineServer]:
    """A server that has answered exactly one request."""
    with triton_servers(tmp_path_factory) as start:
        server = start()
        warm_up(server.grpc_address, [TRIAL], PATIENCE_S, PINNED_VERSION)
        port = metrics_port(server)  # Triton counts a request shortly after its last token
        assert settles(lambda: samples(scraped(port)).get(SUCCESSES) == 1)
        yield server


def metrics_port(server: FakeEngineServer) -> int:
    assert server.launch is not None
    return server.launch.ports.metrics


def test_every_sample_keeps_name_labels_and_value(warm_triton: FakeEngineServer) -> None:
    """Triton increments the counters of a request one after the other, during the first scrapes."""
    port = metrics_port(warm_triton)
    seen: list[tuple[Samples, Samples]] = []

    def agree() -> bool:
        with TritonMetrics(lambda: port) as metrics:
            seen.append((samples(scraped(port)), samples(shown(metrics))))
        raw, again = seen[-1]
        return raw.keys() == again.keys() and steady(raw) == steady(again)

    assert settles(agree), seen[-1]
    assert seen[-1][1][SUCCESSES] == 1


def test_openmetrics_accepts_it(warm_triton: FakeEngineServer) -> None:
    with TritonMetrics(lambda: metrics_port(warm_triton)) as metrics:
        registry = CollectorRegistry()
        registry.register(metrics)
        text = openmetrics.generate_latest(registry).decode()
    families = openmetrics_parser.text_string_to_metric_families(text)
    assert SUCCESSES[0] in {family.name for family in families}


def test_values_stay_fresh_until_triton_is_gone(make_triton, monkeypatch) -> None:
    monkeypatch.setattr(exposition, "_REFRESH_S", 0.02)
    own = make_triton()
    with TritonMetrics(lambda: own.launch.ports.metrics) as metrics:
        wait_for(metrics, 0)
        warm_up(own.grpc_address, [TRIAL], PATIENCE_S, PINNED_VERSION)
        wait_for(metrics, 1)
        own.stop(0)
        wait_for(metrics, None)
        assert shown(metrics) == ""


def test_nothing_without_a_server() -> None:
    with TritonMetrics(lambda: None) as metrics:
        assert shown(metrics) == ""


@contextmanager
def stranger(answer: bytes | None) -> Iterator[int]:
    """Yield the port of a server that sends one response, or none."""
    leaving = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            if answer is None:
                leaving.wait(PATIENCE_S)
            else:
                self.request.sendall(answer)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        try:
            yield server.server_address[1]
        finally:
            leaving.set()


OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\na 1\n\n",
        OK + b"# TYPE a gauge\na{b= 1\n",
        OK + b"a \xff\n",
    ],
    ids=["silent", "closed", "not-http", "busy", "not-metrics", "not-text"],
)
def test_an_invalid_response_has_no_metrics(answer: bytes | None) -> None:
    with stranger(answer) as port:
        assert fetch_metrics(port) == ()


@pytest.mark.parametrize(
    "head", [OK, b"HTTP/1.1 200 ", OK[:-2] + b"X: "], ids=["body", "status", "head"]
)
@pytest.mark.parametrize(
    ("piece", "pause_s"), [(b"a" * 65_536, 0), (b"a", 0.05)], ids=["huge", "slow"]
)
def test_an_answer_without_an_end_is_left(head: bytes, piece: bytes, pause_s: float) -> None:
    """The engine's server may be broken, and its reader is a thread that must end."""
    has_left = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            try:
                self.request.sendall(head)
                while not has_left.wait(pause_s):
                    self.request.sendall(piece)
            except OSError:
                has_left.set()

    with serving(server := socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)):
        try:
            assert fetch_metrics(server.server_address[1]) == ()
            assert has_left.wait(PATIENCE_S)
        finally:
            has_left.set()


def test_the_largest_answer_has_a_limit() -> None:
    for samples, count in ((20_000, 1), (100_000, 0)):
        with stranger(OK + b"# TYPE a gauge\n" + b'a{b="c"} 1\n' * samples) as port:
            assert len(fetch_metrics(port)) == count


def test_a_proper_answer_of_that_server_is_read() -> None:
    with stranger(OK + b"# TYPE a gauge\na 1\n") as port:
        assert [family.name for family in fetch_metrics(port)] == ["a"]


def test_the_reading_goes_on_after_an_error(monkeypatch):
    """An unexpected exception must not end the thread either."""
    monkeypatch.setattr("trtllm_truss.observability.exposition._REFRESH_S", 0.01)
    asked = threading.Semaphore(0)

    def port():
        asked.release()
        raise KeyError("port")

    with TritonMetrics(port):
        assert all(asked.acquire(timeout=PATIENCE_S) for _ in range(4))
