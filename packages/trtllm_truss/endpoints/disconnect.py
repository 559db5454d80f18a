"""A client that leaves cancels what is done for it, whether or not there is a response yet.

Until a response is sent nobody reads the connection's events, and while one is sent Starlette
reads them at the price of a task group. Here one task listens, and cancels the one that works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class SelfCancel:
    """Cancels the task that made it, and tells this from being cancelled by somebody else.

    Do what it may interrupt inside ``try``, and call `consume` when a CancelledError arrives.
    This is what a cancel scope is for; made for one response each, it costs a tenth of anyio's.
    """

    __slots__ = ("_requested", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._requested = False

    def request(self) -> None:
        """Cancels the task; to be called from elsewhere in the same event loop."""
        if not self._requested:
            self._requested = True
            self._task.cancel()

    def consume(self) -> bool:
        """Uncancel; True if nobody else cancelled the task."""
        if not self._requested:
            return False
        uncancel = getattr(self._task, "uncancel", None)  # they are counted from Python 3.11 on
        return uncancel is None or uncancel() == 0


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Awaits `work`, and cancels it as soon as the client is gone.

    The request's body must have been read.

    Args:
        receive: gives the connection's events.
        work: what is done for the client, in the calling task.

    Raises:
        ClientGone: the client left first; `work` has been cancelled and has ended.
    """
    cancellation = SelfCancel()
    leaving = asyncio.ensure_future(_when_gone(receive, cancellation.request))
    try:
        return await work
    except asyncio.CancelledError:
        if cancellation.consume():
            raise ClientGone from None
        raise
    finally:
        leaving.cancel()


async def _when_gone(receive: Receive, act: Callable[[], None]) -> None:
    """Acts when the client has left; events are pushed, nothing is polled."""
    while (await receive())["type"] != "http.disconnect":
        pass
    act()
