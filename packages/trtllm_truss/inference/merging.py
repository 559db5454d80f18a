"""Merge the streams of several choices into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


def merge_streams(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Merge streams in order of arrival; a single stream is returned as it is.

    Streams run concurrently, at most one item ahead of the reader. All are closed when it finishes,
    also after an error.

    Args:
        streams: at least one; none of them started.

    Raises:
        Exception: the error of the first stream that fails.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    # A tuple wraps each item to distinguish it from the end of a stream.
    queue: asyncio.Queue[tuple[Item] | Exception | None] = asyncio.Queue(1)
    readers = [asyncio.create_task(_read(stream, queue)) for stream in streams]
    running = len(readers)
    try:
        while running:
            event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield event[0]
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    stream: AsyncGenerator[Item, None],
    queue: asyncio.Queue[tuple[Item] | Exception | None],
) -> None:
    """Queue the items of a stream, then None or its error."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((item,))
    except Exception as error:
        await queue.put(error)
        raise
    await queue.put(None)
