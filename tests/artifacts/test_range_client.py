"""`RangeClient` takes plain responses only; each other one is left to huggingface_hub's client."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from tests.fakes.hub.server import HubServer
from tests.support.certificates import new_certificate
from tests.support.serving import Serving
from tests.support.waiting import PATIENCE_S
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts import range_client, transfer
from trtllm_truss.artifacts.range_client import RangeClient

CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
BODY = bytes(range(256)) * 2000
HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-511999/512000\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = HEAD + LENGTH + b"\r\n" + BODY
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n7d000\r\n" + BODY + b"\r\n0\r\n\r\n"


class _Scripted(ThreadingTCPServer):
    """Sends one response per request; closes a connection after `per_connection` of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/a%20file?signed=1"
        self.response = PLAIN
        self.tls: ssl.SSLContext | None = None
        self.per_connection = 1
        self.connections = 0
        self.targets: list[bytes] = []
        self.lock = threading.Lock()
        self.answered = threading.Event()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)
            if self.tls is not None:
                request.close()


class _Handler(StreamRequestHandler):
    server: _Scripted

    def handle(self) -> None:
        with self.server.lock:
            self.server.connections += 1
        for _ in range(self.server.per_connection):
            target = self.rfile.readline()
            if not target:
                return
            self.server.targets.append(target)
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(self.server.response)
            self.server.answered.set()


@pytest.fixture
def server() -> Iterator[_Scripted]:
    scripted = _Scripted()
    serving = Serving(scripted)
    yield scripted
    serving.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeClient]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "SSL_CERT_DIR", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    direct = RangeClient()
    yield direct
    direct.close()


def get(client: RangeClient, url: str, count: int = len(BODY)) -> bytes | None:
    with client.get(url, {"Range": "bytes=0-511999"}, count) as answer:
        return None if answer is None else b"".join(bytes(chunk) for chunk in answer[1])


def test_connections_are_kept_while_the_server_keeps_them(
    server: _Scripted, client: RangeClient
) -> None:
    server.per_connection = 2
    assert [get(client, server.url) for _ in range(5)] == [BODY] * 5
    assert server.connections == 3
    assert set(server.targets) == {b"GET /a%20file?signed=1 HTTP/1.1\r\n"}
    assert client.is_usable


def test_a_body_that_is_left_is_not_read_as_the_next_response(
    server: _Scripted, client: RangeClient
) -> None:
    server.per_connection = 2
    with client.get(server.url, {}, len(BODY)) as answer:
        assert answer is not None
        assert next(answer[1])
    assert get(client, server.url) == BODY
    assert server.connections == 2


def test_bytes_beyond_the_length_are_not_read(server: _Scripted, client: RangeClient) -> None:
    server.response = PLAIN + b"x" * 1000
    assert get(client, server.url) == BODY


@pytest.mark.parametrize("buffer_bytes", [1, 1000, 256_000])
def test_bodies_of_several_buffers(
    server: _Scripted, client: RangeClient, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    monkeypatch.setattr(range_client, "_BUFFER_BYTES", buffer_bytes)
    server.per_connection = 2
    assert [get(client, server.url) for _ in range(2)] == [BODY] * 2
    assert server.connections == 1


def test_a_body_that_stops(
    server: _Scripted, client: RangeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the bytes that arrived before.

    The kernel has the whole response, with less than it buffers, before the time counts.
    """
    server.per_connection = 2
    body = BODY[:100_000]
    server.response = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1]
    arrived = bytearray()

    def read() -> None:
        with client.get(server.url, {}, len(body)) as answer:
            assert answer is not None
            assert server.answered.wait(PATIENCE_S)
            monkeypatch.setattr(range_client, "_TIMEOUT_S", 0.1)
            for chunk in answer[1]:
                arrived.extend(chunk)

    with pytest.raises(TimeoutError):
        read()
    assert arrived == body[:-1]


def test_a_body_that_ends_early(server: _Scripted, client: RangeClient) -> None:
    server.response = PLAIN[:-1]
    with pytest.raises(ConnectionError):
        get(client, server.url)
    server.response = PLAIN
    assert get(client, server.url) == BODY


@pytest.mark.parametrize(
    "response",
    [
        HEAD + CHUNKED,
        HEAD + LENGTH + CHUNKED,
        HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
        HEAD + LENGTH + b"Content-Encoding: gzip\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 512001\r\n\r\n" + BODY,
        HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
        HEAD + b"\r\n" + BODY,
        PLAIN.replace(b"206 Partial Content", b"200 OK"),
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + PLAIN,
        b"what?\r\n\r\n",
        b"",
    ],
)
def test_what_is_not_plain_ends_its_use(
    server: _Scripted, client: RangeClient, response: bytes
) -> None:
    server.response = response
    assert get(client, server.url) is None
    assert not client.is_usable
    server.response = PLAIN
    assert get(client, server.url) is None
    assert server.connections == 1


def test_a_refusal_does_not(server: _Scripted, client: RangeClient) -> None:
    server.response = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    assert get(client, server.url) is None
    server.response = PLAIN
    assert get(client, server.url) == BODY


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_proxies_end_its_use(server: _Scripted, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert get(RangeClient(), server.url) is None
    assert server.connections == 0


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://user:word@127.0.0.1:{port}/"])
def test_other_urls_are_left(server: _Scripted, client: RangeClient, url: str) -> None:
    assert get(client, url.format(port=server.server_address[1])) is None
    assert server.connections == 0


@pytest.mark.parametrize("name", CERTIFICATES)
@pytest.mark.parametrize(
    ("trusted", "host", "body"),
    [("localhost", "localhost", BODY), ("localhost", "127.0.0.1", None), ("x", "localhost", None)],
)
def test_certificates_are_verified(
    server: _Scripted,
    client: RangeClient,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    trusted: str,
    host: str,
    body: bytes | None,
) -> None:
    for of in ("localhost", "x"):
        (tmp_path / f"{of}.pem").write_bytes(new_certificate(of))
    monkeypatch.setenv(name, str(tmp_path / f"{trusted}.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "localhost.pem")
    server.tls = context
    assert get(client, f"https://{host}:{server.server_address[1]}/") == body
    assert client.is_usable == (body is not None)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_hub_whose_storage_it_leaves(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 100_000)
    hub.add("org/engine", {"rank0.engine": BODY})
    hub.fault("/files/*", times=10**9, headers={"Content-Encoding": encoding})
    assert (fetch_repository("org/engine") / "rank0.engine").read_bytes() == BODY
