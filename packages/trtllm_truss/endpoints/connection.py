"""The connection of one client; its disconnect cancels the work for it.

Starlette does not read a connection's events before a response; during one it does, at the cost of
a task group. Here one task listens in both cases and cancels the working task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

from trtllm_truss.endpoints.guard import SelfCancel

Result = TypeVar("Result")


_LISTEN_AFTER_S = 0.1
"""Short requests finish sooner and never start the listener."""


class ClientGone(Exception):
    """The client closed the connection."""


class ClientConnection:
    """The connection of one client, whose disconnect cancels the work for it.

    One task listens for all work, from a tenth of a second after the first work began until
    `stop_listening`.

    Args:
        receive: ASGI's `receive`. The request's body must have been read.
    """

    __slots__ = ("_cancel", "_is_gone", "_listening", "_receive", "_timer")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None
        self._cancel: Callable[[], None] | None = None
        self._is_gone = False

    async def while_connected(self, work: Awaitable[Result]) -> Result:
        """Await `work` in the calling task; cancel it if the client disconnects or already has.

        Raises:
            ClientGone: the client disconnected first; `work` was cancelled and has finished.
        """
        cancellation = SelfCancel()
        loop = asyncio.get_running_loop()
        late: asyncio.Handle | None = None
        if self._is_gone:  # cancels at the first suspension; without one, the work is already done
            late = loop.call_soon(cancellation.request)
        elif self._timer is None:
            self._timer = loop.call_later(_LISTEN_AFTER_S, self._start_listening)
        self._cancel = cancellation.request
        try:
            return await work
        except asyncio.CancelledError:
            if cancellation.consume():
                raise ClientGone from None
            raise
        finally:
            self._cancel = None
            if late is not None:
                late.cancel()

    def stop_listening(self) -> None:
        """Stop listening for a disconnect; call after the last work."""
        if self._timer is not None:
            self._timer.cancel()
        # otherwise a cycle through its traceback
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()

    def _start_listening(self) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        if self._cancel is not None:
            self._cancel()
