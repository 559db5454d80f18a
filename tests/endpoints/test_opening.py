"""The status of an answer is open until its first item, its limit, or a disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.support.virtual_time import virtually

from trtllm_truss.endpoints.connection import ClientConnection, ClientGone
from trtllm_truss.endpoints.encoded_body import EncodedBody
from trtllm_truss.errors import QueueFull
from trtllm_truss.protocols.predict import Events, PlainText
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, TextDelta, Usage


class Answer:
    def __init__(self, first_after_s: float, error: Exception | None = None) -> None:
        self.first_after_s = first_after_s
        self.error = error
        self.closed = False

    async def items(self) -> AsyncGenerator[list[AnswerItem], None]:
        try:
            await asyncio.sleep(self.first_after_s)
            if self.error is not None:
                raise self.error
            yield [TextDelta("1")]
            await asyncio.sleep(1)
            yield [TextDelta("2")]
        finally:
            self.closed = True


def request(leaves_after_s: float = 1e6) -> Request:
    async def receive() -> Message:
        await asyncio.sleep(leaves_after_s - now())
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


async def opened(
    request: Request, items: AsyncGenerator[list[AnswerItem], None], limit_s: float | None = None
) -> EncodedBody:
    answer = EncodedBody(items, PlainText(), 1)
    await answer.open(ClientConnection(request.receive), limit_s)
    return answer


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_opens_in_the_round_of_the_loop_after_its_first_item() -> None:
    """With many clients a round takes milliseconds."""
    loop, rounds = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(count)

    came_in: list[int] = []

    async def items() -> AsyncGenerator[list[AnswerItem], None]:
        await asyncio.sleep(0.01)
        came_in.append(rounds)
        yield [TextDelta("a")]

    answer = EncodedBody(items(), PlainText(), 1)
    client = ClientConnection(request().receive)
    loop.call_soon(count)
    await answer.open(client)
    assert rounds - came_in[0] <= 1
    client.stop_listening()
    await answer.aclose()


@pytest.mark.parametrize("limit_s", [None, 15])
@virtually
async def test_opens_with_the_first_item(limit_s: float | None) -> None:
    answer = Answer(first_after_s=3)
    opening = await opened(request(), answer.items(), limit_s)
    assert now() == 3
    assert [chunk async for chunk in opening] == [b"1", b"2", b""]
    assert answer.closed


@virtually
async def test_opens_without_an_item_at_the_limit() -> None:
    answer = Answer(first_after_s=40)
    opening = await opened(request(), answer.items(), 15)
    assert now() == 15
    assert [chunk async for chunk in opening] == [b"1", b"2", b""]
    assert now() == 41


@virtually
async def test_waits_without_a_limit() -> None:
    await opened(request(), Answer(first_after_s=1000).items())
    assert now() == 1000


@virtually
async def test_an_error_before_the_first_item_is_raised() -> None:
    answer = Answer(3, QueueFull("full"))
    with pytest.raises(QueueFull):
        await opened(request(), answer.items(), 15)
    assert answer.closed


@virtually
async def test_an_error_after_the_limit_is_raised_by_the_answer() -> None:
    answer = Answer(40, QueueFull("full"))
    opening = await opened(request(), answer.items(), 15)
    with pytest.raises(QueueFull):
        await anext(aiter(opening))
    await opening.aclose()
    assert answer.closed


@virtually
async def test_a_disconnect_closes_the_answer() -> None:
    answer = Answer(first_after_s=40)
    with pytest.raises(ClientGone):
        await opened(request(leaves_after_s=2), answer.items(), 15)
    assert now() == 2
    assert answer.closed


@virtually
async def test_cancelling_closes_the_answer() -> None:
    answer = Answer(first_after_s=40)
    opening = asyncio.create_task(opened(request(), answer.items(), 15))
    await asyncio.sleep(1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert answer.closed


@pytest.mark.parametrize("items_read", [0, 1])
@virtually
async def test_closing_ends_the_answer_started_or_not(items_read: int) -> None:
    answer, client = Answer(first_after_s=40), ClientConnection(request().receive)
    opening = EncodedBody(answer.items(), PlainText(), 1)
    await opening.open(client, 15)
    for _ in range(items_read):
        await anext(opening)
    await opening.aclose()
    client.stop_listening()
    await asyncio.sleep(0)
    assert now() <= 40
    assert answer.closed
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtually
async def test_a_reader_cancelled_at_the_first_item_can_close() -> None:
    answer = Answer(first_after_s=40)
    opening = await opened(request(), answer.items(), 15)

    async def read() -> None:
        async for _ in opening:
            pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await opening.aclose()
    assert answer.closed


@virtually
async def test_items_that_come_together_share_a_chunk_and_the_last_one_is_known() -> None:
    async def items() -> AsyncGenerator[list[AnswerItem], None]:
        yield [TextDelta("a")]
        yield [TextDelta("b", 1), GenerationEnd(FinishReason.STOP, Usage(1, 1), 1)]
        yield [TextDelta("c"), GenerationEnd(FinishReason.STOP, Usage(1, 2), 0)]

    answer = EncodedBody(items(), Events(), 2)
    await answer.open(ClientConnection(request().receive))
    chunks = [(chunk.count(b"data: "), answer.over) async for chunk in answer]
    assert chunks == [(1, False), (2, False), (2, True)]
