"""Our own HTTP server as a process: its end, its key, and clients that send no head."""

from __future__ import annotations

import http.client
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.truss_process import Served, alive
from tests.support.waiting import settles

from trtllm_workbench.scaffold.docker_server import own_server_section

KEY = "sk-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {KEY}"}
LONG = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
SECTIONS = {"docker_server": own_server_section(None), "secrets": {"server_api_key": None}}
VARIABLE = "TRUSS_SECRET_server_api_key"


def begin(folder: Path, **serving: float) -> Served:
    """Start a server with a key."""
    engine = write_engine(folder / "engine", step_ms=10, end_file=folder / "ended")
    config = config_for(engine, sections=SECTIONS, serving=serving)
    return Served(config, {**FAKE_ENGINE, VARIABLE: KEY})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a server that the test may end."""
    started: list[Served] = []

    def begin_one(**serving: float) -> Served:
        started.append(begin(tmp_path, **serving))
        return started[0].wait_until_ready()

    yield begin_one
    for served in started:
        if served.process.poll() is None:
            served.end()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A shared server that waits a second for clients; tests must leave it running."""
    folder = tmp_path_factory.mktemp("impatient")
    served = begin(folder, body_timeout_s=1, reader_timeout_s=1)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()


def test_sigterm_turns_readiness_off_before_it_closes_the_port(
    start: Callable[..., Served],
) -> None:
    own = start(drain_notice_s=3600, drain_timeout_s=3600)
    base, pids = f"http://127.0.0.1:{own.port}", own.processes()
    commands = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    assert b"trtllm_truss.cli.main" in commands
    assert KEY.encode() not in commands
    assert own.post(LONG).status_code == 401
    with httpx.stream("POST", own.url, json=LONG, headers=HEADERS, timeout=60) as answer:
        chunks = answer.iter_text()
        text = next(chunks)
        own.process.send_signal(signal.SIGTERM)
        assert settles(lambda: httpx.get(f"{base}/health", timeout=60).status_code == 503)
        assert httpx.get(f"{base}/health/live", timeout=60).status_code == 200
        late = own.post({**LONG, "max_tokens": 2}, headers=HEADERS)
        assert (late.status_code, late.headers["Connection"]) == (200, "close")
        text += "".join(chunks)
    assert text.count("Once") == LONG["max_tokens"]
    assert own.end() == 0, own.log  # a second signal does not wait
    assert not alive(pids)
    assert own.leftovers() == []
    assert KEY not in own.log


def test_an_answer_that_outlasts_the_drain_is_cut(start: Callable[..., Served]) -> None:
    own = start(drain_timeout_s=0.5)
    body = {**LONG, "max_tokens": 2000}
    with httpx.stream("POST", own.url, json=body, headers=HEADERS, timeout=60) as answer:
        chunks = answer.iter_text()
        next(chunks)
        own.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            "".join(chunks)
    assert own.wait() == 0
    assert "1 connections cut" in own.log
    assert "status=cancelled" in own.log
    assert "Traceback" not in own.log
    assert own.leftovers() == []


@pytest.mark.parametrize("requests", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_the_engine_ends_by_itself(
    start: Callable[..., Served], tmp_path: Path, requests: int
) -> None:
    """Triton keeps its model until its exit timeout if a client leaves a call without an end."""
    own = start()
    for _ in range(requests):
        own.post({**LONG, "max_tokens": 2}, headers=HEADERS)
    assert own.end() == 0
    assert (tmp_path / "ended").exists()


def test_connections_without_a_whole_head_are_closed(impatient: Served) -> None:
    own = impatient
    begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    for sent in (b"", begun):
        with socket.create_connection(("127.0.0.1", own.port), timeout=60) as connection:
            connection.sendall(sent)
            assert connection.recv(4096) == b""
    with socket.create_connection(("127.0.0.1", own.port), timeout=60) as connection:
        connection.sendall(begun + b"X-A: " + b"a" * (80 << 10))
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_only_bodies_are_large_and_only_heads_have_headers(impatient: Served) -> None:
    own = impatient
    body = b'{"prompt": "Once", "max_tokens": 2}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    key = b"X-Api-Key: " + KEY.encode() + b"\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    # As Java's HttpClient begins a connection (JDK 21, `HttpClient.Version.HTTP_2`, its default).
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    with connected(own) as connection:
        for parts in ((head + key + length + upgrade + b"\r\n", body),) * 2:
            for part in parts:
                connection.sendall(part)
            assert answer(connection).startswith(b"HTTP/1.1 200 ")
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    with connected(own) as connection:
        connection.sendall(chunked + key + b"\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
    with connected(own) as connection:
        connection.sendall(chunked)
        assert is_closed_within([b"X-A: " + b"a" * (80 << 10)] * 200, connection)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(own) as connection:  # whose answers nobody reads
        assert is_closed_within([request * 32] * 10_000, connection)
    assert httpx.get(f"http://127.0.0.1:{own.port}/health", timeout=60).status_code == 200


def connected(own: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", own.port), timeout=60)


def is_closed_within(parts: list[bytes], connection: socket.socket) -> bool:
    try:
        for part in parts:
            connection.sendall(part)
    except ConnectionError:
        return True
    return False


def answer(connection: socket.socket) -> bytes:
    """Read an answer of known length."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return b"HTTP/1.1 %d %b" % (response.status, response.read())


def test_a_declared_key_without_a_value_fails_the_start(tmp_path: Path) -> None:
    config = config_for(write_engine(tmp_path / "engine"), sections=SECTIONS)
    served = Served(config, {**FAKE_ENGINE, VARIABLE: ""})
    assert served.wait() == 1
    assert "the secret server_api_key, which has no value" in served.lines[-1]
