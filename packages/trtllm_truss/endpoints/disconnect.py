"""Cancel the work for a client that disconnects, before and during the response.

Before a response Starlette does not read the connection's events; during one it does, at the cost
of a task group. Here one task listens and cancels the working one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class SelfCancel:
    """Cancels the task that created it, and distinguishes that from other cancellations.

    Call `consume` on a CancelledError. Costs a tenth of anyio's cancel scope per response.
    """

    __slots__ = ("_requested", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._requested = False

    def request(self) -> None:
        """Cancel the task, from another task or callback of the same event loop."""
        if not self._requested:
            self._requested = True
            self._task.cancel()

    def consume(self) -> bool:
        """Uncancel; return True if no other cancellation is pending."""
        if not self._requested:
            return False
        uncancel = getattr(self._task, "uncancel", None)  # they are counted from Python 3.11 on
        return uncancel is None or uncancel() == 0


class ClientGone(Exception):
    """The client closed the connection."""


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await `work` in the calling task; cancel it when the client disconnects.

    The request's body must have been read.

    Args:
        receive: ASGI's `receive`.
        work: the work for the client.

    Raises:
        ClientGone: the client disconnected first; `work` was cancelled and has ended.
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
    """Call `act` on a disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass
    act()
