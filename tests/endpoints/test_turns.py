"""Large bodies are read one after another, with time for other clients in between."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message
from tests.support.virtual_time import virtually

from trtllm_truss.endpoints.connection import ClientGone
from trtllm_truss.endpoints.encoded_body import LARGE_BYTES, Turns

READING_S = 5.0


class Readers:
    """Bodies whose reading takes `READING_S` each, in virtual time."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._turns = Turns(lambda: self._now_s)
        self.gone = asyncio.Event()
        self.read: list[tuple[int, float]] = []

    async def start(self, size_bytes: int) -> asyncio.Task[None]:
        task = asyncio.create_task(self._read(size_bytes))
        await asyncio.sleep(0)
        return task

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _read(self, size_bytes: int) -> None:
        async with self._turns.turn(size_bytes, self._receive):
            self.read.append((size_bytes, asyncio.get_running_loop().time()))
            self._now_s += READING_S


@virtually
async def test_the_shortest_is_next_after_as_long_a_pause() -> None:
    readers = Readers()
    start_s = asyncio.get_running_loop().time()
    sizes = [LARGE_BYTES + extra for extra in (3, 2, 4, 1)]
    await asyncio.gather(*[await readers.start(size) for size in sizes])
    first, *others = sizes
    assert readers.read == [
        (size, start_s + place * READING_S) for place, size in enumerate([first, *sorted(others)])
    ]


@virtually
async def test_a_small_body_never_waits() -> None:
    readers = Readers()
    start_s = asyncio.get_running_loop().time()
    large = [await readers.start(LARGE_BYTES) for _ in range(3)]
    await readers.start(LARGE_BYTES - 1)
    assert readers.read == [(LARGE_BYTES, start_s), (LARGE_BYTES - 1, start_s)]
    await asyncio.gather(*large)


@virtually
async def test_a_cancelled_reader_hands_on_the_turn() -> None:
    readers = Readers()
    first, second, third, last = [await readers.start(LARGE_BYTES) for _ in range(4)]
    await first
    second.cancel()
    asyncio.get_running_loop().call_later(READING_S, third.cancel)  # gets its turn in this moment
    await last
    assert second.cancelled()
    assert third.cancelled()
    assert len(readers.read) == 2


@virtually
async def test_a_body_is_not_read_after_its_client_has_left() -> None:
    readers = Readers()
    await (await readers.start(LARGE_BYTES))
    waiting = await readers.start(LARGE_BYTES)
    readers.gone.set()
    with pytest.raises(ClientGone):
        await waiting
    await asyncio.sleep(READING_S)
    await (await readers.start(LARGE_BYTES))
    assert len(readers.read) == 2


@virtually
async def test_the_turn_after_a_pause_is_free() -> None:
    readers = Readers()
    for _ in range(2):
        await (await readers.start(LARGE_BYTES))
        await asyncio.sleep(2 * READING_S)
    assert [at_s for _, at_s in readers.read] == [readers.read[0][1], readers.read[0][1] + 10]
