"""When silence counts: only while somebody waits for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from trtllm_truss.serving.activity import Activity


async def tokens(gate: asyncio.Event) -> AsyncGenerator[int, None]:
    yield 1
    await gate.wait()
    yield 2


async def test_silence_is_measured_while_a_request_waits() -> None:
    activity, gate = Activity(), asyncio.Event()
    items = activity.watched(tokens(gate))
    assert activity.silent_for_s == 0
    assert await anext(items) == 1
    await asyncio.sleep(0.05)
    assert activity.silent_for_s == 0  # the reader is slow, not the engine
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0.05)
    assert activity.silent_for_s >= 0.04
    gate.set()
    assert await waiting == 2
    assert activity.silent_for_s == 0
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_a_new_request_does_not_hide_a_hang() -> None:
    activity, gate = Activity(), asyncio.Event()
    first, second = (activity.watched(tokens(gate)) for _ in range(2))
    await anext(first)
    await anext(second)
    waiting = [asyncio.ensure_future(anext(first))]
    await asyncio.sleep(0.05)
    waiting.append(asyncio.ensure_future(anext(second)))
    await asyncio.sleep(0)
    assert activity.silent_for_s >= 0.04
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert activity.silent_for_s == 0
