"""A disconnect cancels the work for a client, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message
from tests.support.virtual_time import virtually

from trtllm_truss.endpoints.connection import ClientConnection, ClientGone


def leaves_after(seconds: float) -> ClientConnection:
    calls = iter([(seconds / 2, "http.request"), (seconds, "http.disconnect")])

    async def receive() -> Message:
        at, kind = next(calls)
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        return {"type": kind}

    return ClientConnection(receive)


@virtually
async def test_one_task_listens_during_two_works() -> None:
    client = leaves_after(100)
    assert await client.while_connected(asyncio.sleep(10, "first")) == "first"
    assert await client.while_connected(asyncio.sleep(10, "second")) == "second"
    assert len(asyncio.all_tasks()) == 2
    client.stop_listening()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


@virtually
async def test_a_disconnect_cancels_the_second_work() -> None:
    client = leaves_after(15)
    await client.while_connected(asyncio.sleep(10))
    with pytest.raises(ClientGone):
        await client.while_connected(asyncio.sleep(10))
    assert asyncio.get_running_loop().time() == 15


@virtually
async def test_a_disconnect_between_two_works_cancels_the_second_one() -> None:
    client = leaves_after(15)
    await client.while_connected(asyncio.sleep(10))
    await asyncio.sleep(10)
    with pytest.raises(ClientGone):
        await client.while_connected(asyncio.sleep(10))
    assert asyncio.get_running_loop().time() == 20


@virtually
async def test_a_late_work_that_never_waits_is_done() -> None:
    client = leaves_after(15)
    await client.while_connected(asyncio.sleep(10))
    await asyncio.sleep(10)

    async def work() -> str:
        return "done"

    assert await client.while_connected(work()) == "done"
    await asyncio.sleep(1)  # no cancellation is left over


@virtually
async def test_another_cancellation_is_passed_on() -> None:
    client = leaves_after(100)
    working = asyncio.create_task(client.while_connected(asyncio.sleep(10)))
    await asyncio.sleep(1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
