"""Turns of large bodies, between which the event loop serves other clients."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive

from trtllm_truss.endpoints.disconnect import Client

LARGE_BYTES = 1 << 16
"""Size from which bodies take turns. Smaller ones take 20 ms at most."""


class Turns:
    """Lets one large body be read at a time, the shortest first.

    After each one as much time passes as its reading took: large bodies take half of the event
    loop at most. A thread would not help, because the parser of JSON holds Python's lock.

    Args:
        clock: measures the reading, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, size_bytes: int, receive: Receive) -> AsyncIterator[None]:
        """Wait for the turn of a body, and end it; a small one does not wait.

        Args:
            size_bytes: size of the body.
            receive: ASGI's `receive`.

        Raises:
            ClientGone: the client disconnected first.
        """
        if size_bytes < LARGE_BYTES:
            yield
            return
        if self._is_taken:
            await self._wait(size_bytes, Client(receive))
        self._is_taken = True
        start_s = self._clock()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self._clock() - start_s, self._pass_on)

    async def _wait(self, size_bytes: int, client: Client) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size_bytes, next(self._numbers), turn))
        try:
            await client.while_connected(turn)
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise
        finally:
            client.stop_listening()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
