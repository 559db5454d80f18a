"""The load client parses answers, however they are split."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from benchmarks.load.http import Answer
from benchmarks.load.loops import run_http
from benchmarks.load.record import Record, quantiles_ms
from benchmarks.load.spec import LoadSpec

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FRAMES = [
    b'data: {"text": "Once"}\n\n',
    b'data: {"text": " upon"}\n\ndata: {"text": " a"}\n\n',
    b'data: {"finish_reason": "length", "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n',
]
CHUNKED = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(f), f) for f in FRAMES) + b"0\r\n\r\n"
REFUSED = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789"
)
FAILED = b'HTTP/1.1 200 OK\r\n\r\n1a\r\ndata: {"error": {"code": 1}}\r\n0\r\n\r\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_a_streamed_answer_ends_with_its_last_byte(size: int) -> None:
    answer = Answer()
    pieces = [CHUNKED[at : at + size] for at in range(0, len(CHUNKED), size)]
    ends = [answer.feed(piece, float(number)) for number, piece in enumerate(pieces)]
    assert ends == [False] * (len(pieces) - 1) + [True]
    assert (answer.outcome, answer.tokens, answer.events) == ("200", 3, 4)
    assert all(a < b for a, b in pairwise(answer.arrivals_s))


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_refusal_is_read_to_its_length(size: int) -> None:
    answer = Answer()
    pieces = [REFUSED[at : at + size] for at in range(0, len(REFUSED), size)]
    ends = [answer.feed(piece, 0.0) for piece in pieces]
    assert ends == [False] * (len(pieces) - 1) + [True]
    assert (answer.outcome, answer.closes, answer.arrivals_s) == ("429", True, [])


def test_an_error_event_is_an_error() -> None:
    answer = Answer()
    assert answer.feed(FAILED, 0.0)
    assert answer.outcome == "error"


def test_quantiles_are_given_values() -> None:
    assert quantiles_ms([i / 1000 for i in range(1, 101)]) == {"p50": 50, "p99": 99, "max": 100}
    assert quantiles_ms([]) == {}


@asynccontextmanager
async def served(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Run a server on a free port; wait for the end of every connection."""
    connections: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        with suppress(ConnectionError):
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*connections)


async def test_every_request_has_one_outcome() -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.read(4096):
            asked += 1
            if asked % 4 == 0:
                writer.write(CHUNKED[:-5])
                return
            writer.write(REFUSED if asked % 4 == 2 else CHUNKED)

    record = Record()
    async with served(answer) as port:
        await run_http(LoadSpec("http", port, "/", ("{}",), streams=2, requests=40), record)
    result = record.result()
    assert result.outcomes == {"200": 20, "429": 10, "cut": 10}
    assert result.tokens == 20 * 3
    assert asked == 40


async def test_a_silent_server_does_not_block_the_load() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    record = Record()
    async with served(answer) as port:
        spec = LoadSpec("http", port, "/", ("{}",), streams=3, requests=9, patience_s=0.1)
        await run_http(spec, record)
    assert record.result().outcomes == {"stalled": 3}


def test_the_pace_of_an_answer_is_that_of_what_follows_its_first_token() -> None:
    record = Record()
    record.add(start_s=0.0, arrivals_s=[7.0, 7.5, 8.0], tokens=11)
    record.add(start_s=0.0, arrivals_s=[7.0, 7.5, 8.0], tokens=21)
    record.add(start_s=0.0, arrivals_s=[7.0, 7.5, 8.0], tokens=31)
    record.add(start_s=0.0, arrivals_s=[7.0], tokens=1)
    assert record.result().pace_tok_s == 20
