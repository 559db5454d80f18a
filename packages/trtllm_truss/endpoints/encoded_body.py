"""The pieces of a streamed body, encoded while others have their turn."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive

from trtllm_truss.endpoints.connection import ClientConnection
from trtllm_truss.errors import InternalError, TrussError, drop_tracebacks
from trtllm_truss.protocols.base import Writer
from trtllm_truss.requests import AnswerItem, GenerationEnd

logger = logging.getLogger(__name__)


LARGE_BYTES = 1 << 16
"""Bodies of at least this size are parsed one at a time; smaller ones take 20 ms at most."""


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

        Raises:
            ClientGone: the client disconnected first.
        """
        if size_bytes < LARGE_BYTES:
            yield
            return
        if self._is_taken:
            await self._wait(size_bytes, ClientConnection(receive))
        self._is_taken = True
        start_s = self._clock()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self._clock() - start_s, self._pass_on)

    async def _wait(self, size_bytes: int, client: ClientConnection) -> None:
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


KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
"""A comment of server-sent events, which clients ignore."""


class EncodedBody:
    """Encodes the answers of one call as chunks, at least one. The first one decides the status.

    Open it once, then iterate or close it. A later error becomes the last chunk, if the protocol
    can represent it.

    Args:
        items: items of the answers; those that come together share a chunk.

    Attributes:
        over: True once the last chunk is known.
    """

    def __init__(
        self, items: AsyncGenerator[list[AnswerItem], None], writer: Writer, answers: int
    ) -> None:
        self._items = items
        self._writer = writer
        self._answers = answers
        self._first: asyncio.Task[bytes] | None = None
        self.over = False

    async def open(self, client: ClientConnection, limit_s: float | None = None) -> None:
        """Wait for the first chunk, at most `limit_s`.

        Raises:
            ClientGone: the client disconnected first; the answers are closed.
            Exception: the answers failed before their first chunk; they are closed.
        """
        loop = asyncio.get_running_loop()
        opened = loop.create_future()

        def wake() -> None:
            if not opened.done():
                opened.set_result(None)

        async def begin() -> bytes:
            try:
                return await self._next()
            finally:
                wake()  # a callback of the task would run a round of the loop later

        first = self._first = loop.create_task(begin())
        timer = None if limit_s is None else loop.call_later(limit_s, wake)
        try:
            await client.while_connected(opened)
            if first.done():
                first.result()
        except BaseException:
            client.stop_listening()
            await self.aclose()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def __aiter__(self) -> EncodedBody:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        if first is None and self.over:
            raise StopAsyncIteration
        try:
            return await (self._next() if first is None else first)
        except TrussError as error:
            self.over = True
            drop_tracebacks(error)
            return self._writer.error(error)
        except Exception:
            self.over = True
            logger.exception("unhandled exception in a stream")
            return self._writer.error(internal_error())

    async def aclose(self) -> None:
        """Cancel the answers, including a pending first chunk."""
        first, self._first = self._first, None  # kept, its error's traceback would lead back here
        if first is not None:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await self._items.aclose()

    async def _next(self) -> bytes:
        chunk = b""
        async for items in self._items:
            for item in items:
                chunk += self._writer.push(item)
                self._answers -= isinstance(item, GenerationEnd)
            if chunk and self._answers:  # else the end follows at once
                return chunk
        self.over = True
        return chunk + self._writer.end()


def internal_error() -> InternalError:
    """Build the error of an unhandled exception, without its message."""
    return InternalError("internal server error; see the server log.")
