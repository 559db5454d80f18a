"""Merged streams, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.support.virtual_time import virtually

from trtllm_truss.errors import EngineUnavailable
from trtllm_truss.inference.merging import merge_streams


class Stream:
    """Items at fixed times; an error is raised."""

    def __init__(self, *items: int | Exception, every_s: float = 1.0) -> None:
        self.items = items
        self.every_s = every_s
        self.given = 0
        self.closed = False

    async def read(self) -> AsyncGenerator[int, None]:
        try:
            for item in self.items:
                await asyncio.sleep(self.every_s)
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True


def together(*streams: Stream) -> AsyncGenerator[int, None]:
    return merge_streams([stream.read() for stream in streams])


def nothing_is_left(*streams: Stream) -> bool:
    return all(stream.closed for stream in streams) and len(asyncio.all_tasks()) == 1


@virtually
async def test_items_arrive_in_order_of_time() -> None:
    streams = Stream(1, 2, every_s=2.0), Stream(3, 4, 5, every_s=1.5)
    items = [item async for item in together(*streams)]
    assert items == [3, 1, 4, 2, 5]
    assert asyncio.get_running_loop().time() == 4.5
    assert nothing_is_left(*streams)


@virtually
async def test_a_single_stream_is_returned_as_it_is() -> None:
    stream = Stream(1, 2)
    async for _ in together(stream):
        assert len(asyncio.all_tasks()) == 1
    assert nothing_is_left(stream)


@pytest.mark.parametrize("others", [0, 1, 20])
@virtually
async def test_an_error_ends_all(others: int) -> None:
    quiet = [Stream(1, every_s=1000.0) for _ in range(others)]
    streams = [Stream(1, 2, EngineUnavailable("gone")), *quiet]
    items = together(*streams)
    assert [await anext(items), await anext(items)] == [1, 2]
    with pytest.raises(EngineUnavailable):
        await anext(items)
    assert asyncio.get_running_loop().time() == 3
    assert nothing_is_left(*streams)


@pytest.mark.parametrize("number", [1, 3])
@virtually
async def test_closing_ends_all(number: int) -> None:
    streams = [Stream(1, 2, 3) for _ in range(number)]
    async with aclosing(together(*streams)) as items:
        await anext(items)
    assert nothing_is_left(*streams)


@pytest.mark.parametrize("number", [1, 3])
@virtually
async def test_cancelling_the_reader_ends_all(number: int) -> None:
    streams = [Stream(1, every_s=1000.0) for _ in range(number)]

    async def read() -> None:
        async with aclosing(together(*streams)) as items:
            await anext(items)

    reader = asyncio.create_task(read())
    await asyncio.sleep(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert nothing_is_left(*streams)


@virtually
async def test_streams_run_one_item_ahead_at_most() -> None:
    streams = [Stream(*range(100), every_s=0.01) for _ in range(3)]
    async with aclosing(together(*streams)) as items:
        await anext(items)
        await asyncio.sleep(50)
        assert sum(stream.given for stream in streams) <= 1 + 1 + len(streams)
