"""One connection of our own server: pipelines, disconnects, and invalid HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from trtllm_truss.cli.http_connection import Connection

REQUEST = b"POST /%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"POST /3 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}
PATIENCE_S = 60
Client = Callable[["Answers", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Answers:
    """Streams a first chunk, and a last one when it may end or the client has left."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.client_left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.begun.append(scope["path"])
        self.headers += scope["headers"]
        await send(START)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        watching = asyncio.create_task(self._watch(receive))
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"last"})
        await watching

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.may_end.is_set():
            self.client_left.set()


def talk(client: Client) -> None:
    """Run a client with a connection to a server of `Answers`."""

    async def run() -> None:
        answers, state = Answers(), ServerState()

        class Watched(Connection):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                answers.came.put_nowait(bytes(data))

        config = uvicorn.Config(answers, lifespan="off", log_config=None)
        config.load()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Watched(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await asyncio.wait_for(client(answers, reader, writer), PATIENCE_S)
            writer.close()
            answers.may_end.set()
            while state.tasks:
                await asyncio.gather(*state.tasks)

    asyncio.run(run())


def test_a_client_that_leaves_cancels_the_first_request_of_a_pipeline() -> None:
    async def client(
        answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(REQUEST % b"1" + REQUEST % b"2")
        await reader.readuntil(b"first")
        writer.close()
        await answers.client_left.wait()
        assert answers.begun == ["/1"]

    talk(client)


@pytest.mark.parametrize("second", [b"", REQUEST % b"2"])
@pytest.mark.parametrize(
    "wrong", [b"GARBAGE\r\n\r\n", CHUNKED + b"nonsense\r\n", b"GET /3 HTTP/1.1\r\nX : 1\r\n\r\n"]
)
def test_answers_end_before_a_connection_with_what_is_not_http(
    wrong: bytes, second: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def client(
        answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(REQUEST % b"1" + second)
        got = await reader.readuntil(b"first")
        writer.write(wrong)
        while wrong not in await answers.came.get():
            pass
        answers.may_end.set()
        got += await reader.read()
        assert got.count(b"HTTP/1.1 200") == got.count(b"HTTP/1.1") == len(answers.begun)
        assert answers.begun == (["/1", "/2"] if second else ["/1"])
        assert got.endswith(b"last\r\n0\r\n\r\n")

    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        talk(client)
    assert not caplog.records


def test_what_is_not_http_is_named_where_no_answer_has_begun() -> None:
    async def idle(_: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GARBAGE\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")

    async def in_body(
        answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(CHUNKED + b"nonsense\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")

    talk(idle)
    talk(in_body)


def answer_to(request: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> bytes:
    """Return the status line of the response to a request that closes its connection.

    Args:
        headers: receives those that the application gets.
    """
    got: list[bytes] = []

    async def client(
        answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if headers is not None:
            answers.headers = headers
        answers.may_end.set()
        writer.write(request)
        got.append((await reader.read()).partition(b"\r\n")[0])

    talk(client)
    return got[0]


LAST = b"Connection: close\r\n\r\n"
OK, BAD = b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request"


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([b"localhost"], OK),
        ([b"localhost:8080"], OK),
        ([b"[::1]:8080"], OK),
        ([b"LocalHost."], OK),
        ([b""], OK),
        ([], BAD),
        ([b"localhost", b"localhost"], BAD),
        ([b"evil@localhost"], BAD),
        ([b"localhost/evil"], BAD),
        ([b"localhost, evil"], BAD),
        ([b"localhost:80a"], BAD),
        ([b"[::1"], BAD),
        ([b"local\xe4"], BAD),
        ([b"http://localhost"], BAD),
    ],
)
def test_one_valid_host_is_needed(hosts: list[bytes], status: bytes) -> None:
    head = b"".join(b"Host: %b\r\n" % host for host in hosts)
    assert answer_to(b"GET / HTTP/1.1\r\n" + head + LAST) == status


@pytest.mark.parametrize(
    ("request_bytes", "code", "part"),
    [
        (b"\x16\x03\x01garbage\r\n\r\n", "invalid_request", "not valid HTTP/1.1"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", "invalid_request", "no valid Host"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "unsupported_encoding",
            "Transfer-Encoding",
        ),
    ],
)
def test_what_is_not_http_gets_json(request_bytes: bytes, code: str, part: str) -> None:
    got = []

    async def client(
        answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(request_bytes)
        got.append(await asyncio.wait_for(reader.read(), PATIENCE_S))

    talk(client)
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == code
    assert part in error["message"]


def test_the_first_version_needs_no_host() -> None:
    assert answer_to(b"GET / HTTP/1.0\r\n\r\n") == OK
    assert answer_to(b"GET / HTTP/1.0\r\nHost: a@b\r\n\r\n") == BAD


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"http://evil.example/v1/models?x=1", b"evil.example"),
        (b"HTTP://localhost:8080/", b"localhost:8080"),
        (b"https://evil.example/", b"evil.example"),
    ],
)
def test_the_host_is_that_of_an_absolute_target(target: bytes, host: bytes) -> None:
    headers: list[tuple[bytes, bytes]] = []
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\n" % target
    assert answer_to(request + LAST, headers) == OK
    assert [value for name, value in headers if name == b"host"] == [host]
    assert answer_to(b"GET http://a@b/ HTTP/1.1\r\nHost: localhost\r\n" + LAST) == BAD


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        (b"chunked", OK),
        (b"Chunked", OK),
        (b"gzip, chunked", b"HTTP/1.1 501 Not Implemented"),
        (b"identity, chunked", b"HTTP/1.1 501 Not Implemented"),
        (b"gzip\r\nTransfer-Encoding: chunked", b"HTTP/1.1 501 Not Implemented"),
    ],
)
def test_no_transfer_coding_but_chunked_is_read(coding: bytes, status: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: %b\r\n" % coding
    assert answer_to(head + LAST + b"2\r\n{}\r\n0\r\n\r\n") == status


@pytest.mark.parametrize("size", [60_000, 66_000])
def test_heads_and_trailers_in_one_segment_have_a_limit(size: int) -> None:
    status = OK if size < 1 << 16 else BAD
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    assert answer_to(head + b"X: %b\r\n" % (b"a" * size) + LAST) == status
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 990) for number in range(size // 1000))
    assert answer_to(head + fields + LAST) == status
    assert answer_to(head.replace(b"/ ", b"/%b " % (b"a" * size)) + LAST) == status
    body = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + LAST
    trailers = b"X: %b\r\n\r\n" % (b"a" * size)
    assert answer_to(body + b"2\r\n{}\r\n0\r\n" + trailers) == status
