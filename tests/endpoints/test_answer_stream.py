"""Streams in virtual time: keep-alive comments, and clients that stall."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest
from starlette.types import Message
from tests.support.virtual_time import virtually

from trtllm_truss.endpoints.streamed_response import StreamedResponse
from trtllm_truss.errors import EngineUnavailable

COMMENT = b": keep-alive\n\n"

Step = float | bytes | Exception


class Answer:
    """A body that plays a script of pauses in seconds, chunks and an error."""

    def __init__(self, *script: Step) -> None:
        self.script = script
        self.over = False
        self.closed = False
        self._chunks = self._play()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()

    async def _play(self) -> AsyncGenerator[bytes, None]:
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, bytes):
                    yield step
                else:
                    await asyncio.sleep(step)
            self.over = True
            yield b""
        finally:
            self.closed = True


class Client:
    """Records messages with their times; reads as the test demands."""

    def __init__(self, block: Callable[[bytes], Awaitable[None]] | None = None) -> None:
        self.sent: list[tuple[float, bytes]] = []
        self.whole = False
        self._block = block

    async def send(self, message: Message) -> None:
        assert not self.whole
        if message["type"] == "http.response.start":
            assert not self.sent
            return
        if self._block is not None:
            await self._block(message["body"])
        self.whole = not message["more_body"]
        if not self.whole:
            self.sent.append((asyncio.get_running_loop().time(), message["body"]))


def events(answer: Answer, reader_timeout_s: float = 60) -> StreamedResponse:
    return StreamedResponse(
        answer, "text/event-stream", keep_alive_s=15, reader_timeout_s=reader_timeout_s
    )


async def received(*script: Step) -> list[tuple[float, bytes]]:
    answer, client = Answer(*script), Client()
    await events(answer).stream_response(client.send)
    assert answer.closed
    assert client.whole
    return client.sent


@virtually
async def test_a_steady_stream_has_no_comments() -> None:
    script = [step for _ in range(40) for step in (b"x", 14.0)]
    assert await received(*script) == [(14.0 * number, b"x") for number in range(40)]


@virtually
async def test_silence_is_filled_with_comments() -> None:
    sent = await received(b"a", 40.0, b"b", 15.5, b"c")
    assert sent == [
        (0, b"a"),
        (15, COMMENT),
        (30, COMMENT),
        (40, b"b"),
        (55, COMMENT),
        (55.5, b"c"),
    ]


@virtually
async def test_a_stream_without_first_chunk_starts_with_a_comment() -> None:
    sent = await received(20.0, b"a")
    assert sent == [(0, COMMENT), (15, COMMENT), (20, b"a")]


@virtually
async def test_plain_text_has_no_comments() -> None:
    client = Client()
    stream = StreamedResponse(Answer(100.0, b"a", 100.0), "text/plain", reader_timeout_s=60)
    await stream.stream_response(client.send)
    assert client.sent == [(100, b"a")]
    assert client.whole


@pytest.mark.parametrize("blocked_s", [0.5, 40.0])
@virtually
async def test_no_comment_is_sent_during_a_send(blocked_s: float) -> None:
    under_way = 0

    async def slowly(body: bytes) -> None:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        await asyncio.sleep(blocked_s)
        under_way -= 1

    client = Client(slowly)
    await events(Answer(b"a", 15.2, b"b", 31.0)).stream_response(client.send)
    assert [body for _, body in client.sent if body != COMMENT] == [b"a", b"b"]
    assert client.sent.count((blocked_s, b"a")) == 1
    assert len(client.sent) >= 4
    assert client.whole


@virtually
async def test_a_stalled_client_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    async def stall_at_b(body: bytes) -> None:
        await asyncio.sleep(1e9 if body == b"b" else 0)

    answer, client = Answer(b"a", 7.0, b"b", b"c"), Client(stall_at_b)
    with caplog.at_level(logging.WARNING):
        await events(answer).stream_response(client.send)
    assert asyncio.get_running_loop().time() == pytest.approx(67)
    assert answer.closed
    assert not client.whole
    (record,) = caplog.records
    assert "60 s (serving.reader_timeout_s)" in record.message


@virtually
async def test_a_client_stalled_at_a_comment_is_disconnected() -> None:
    async def stall(body: bytes) -> None:
        await asyncio.sleep(1e9)

    answer, client = Answer(1e6, b"a"), Client(stall)
    await events(answer, reader_timeout_s=20).stream_response(client.send)
    assert asyncio.get_running_loop().time() == pytest.approx(20)
    assert answer.closed
    assert not client.whole


@virtually
async def test_a_slow_client_gets_everything() -> None:
    async def slowly(body: bytes) -> None:
        await asyncio.sleep(59)

    client = Client(slowly)
    await events(Answer(*[b"x"] * 20)).stream_response(client.send)
    assert [body for _, body in client.sent] == [b"x"] * 20
    assert client.whole


@virtually
async def test_an_error_leaves_the_response_incomplete() -> None:
    answer, client = Answer(b"a", EngineUnavailable("gone")), Client()
    await events(answer).stream_response(client.send)
    assert [body for _, body in client.sent] == [b"a"]
    assert answer.closed
    assert not client.whole


@pytest.mark.parametrize("comment_stalls", [False, True])
@virtually
async def test_a_disconnect_closes_the_answer(comment_stalls: bool) -> None:
    async def stall(body: bytes) -> None:
        await asyncio.sleep(1e9 if body == COMMENT and comment_stalls else 0)

    answer, client = Answer(b"a", 1e6), Client(stall)
    stream = asyncio.create_task(events(answer).stream_response(client.send))
    await asyncio.sleep(16)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert answer.closed
    assert not client.whole
    await asyncio.sleep(100)
    assert len(client.sent) == (1 if comment_stalls else 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtually
async def test_a_failed_comment_ends_the_stream() -> None:
    async def gone(body: bytes) -> None:
        if body == COMMENT:
            raise OSError("connection closed")

    answer = Answer(b"a", 16.0, b"b")
    with pytest.raises(OSError, match="connection closed"):
        await events(answer).stream_response(Client(gone).send)
    assert answer.closed
