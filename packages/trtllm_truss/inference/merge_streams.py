"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def side_by_side(
    streams: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[tuple[int, Item], None]:
    """Items of all streams as they come, each with the place of its stream.

    Every stream runs on by itself, but no further than one item ahead of the reader. All are
    closed in the end, whatever that is.

    Args:
        streams: at least one; none of them begun.

    Raises:
        Exception: what the first stream to fail raised.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(1)
    readers = [
        asyncio.create_task(_read(place, stream, queue)) for place, stream in enumerate(streams)
    ]
    running = len(readers)
    try:
        while running:
            event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield event
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    place: int,
    stream: AsyncGenerator[Item, None],
    queue: asyncio.Queue[tuple[int, Item] | Exception | None],
) -> None:
    """Puts the items of a stream into the queue, then None, or what it raised."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((place, item))
    except Exception as error:
        await queue.put(error)
        raise
    await queue.put(None)
