"""Abandoned requests on a connection that falls silent."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.virtual_time import virtually

from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.client.failures import StatusCode


class Connection:
    """Ends a request, and the orders to stop it, at the first order, unless it `hangs`."""

    is_usable = True

    def __init__(self) -> None:
        self.hangs = False
        self.open = {}

    def exchange(self, message, receiver):
        number = len(self.open)
        self.open[number] = receiver
        if number and not self.hangs:
            for each in self.open.values():
                each.ended(StatusCode.OK, "")
        return number

    def finish(self, number, receiver):
        pass

    def cancel(self, number, receiver):
        assert self.open.pop(number) is receiver

    async def end(self, within_s):
        pass


@pytest.mark.parametrize("instances", [1, 2, 3])
@virtually
async def test_a_request_is_given_up_after_a_minute(instances):
    """However many orders to stop it were sent: its slot is taken until then."""
    connection, loop = Connection(), asyncio.get_running_loop()
    client = TritonClient("", tensorrt_llm_version="1.0.0", instances=instances)
    client._connection = connection
    for hangs in (False, True):
        connection.hangs = hangs
        connection.open.clear()
        began = loop.time()
        async with client.answer(EngineRequest("gone", [1], 9)) as answer:
            pass
        await answer.stopping
        took_s = loop.time() - began
        assert (60 < took_s < 62) if hangs else took_s < 1
    assert not connection.open
    await client.close()
