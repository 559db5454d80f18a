"""A client that leaves cancels what is done for it, whether or not there is a response yet.

Until a response is sent nobody reads the connection's events, and while one is sent Starlette
reads them at the price of a task group. Here one task listens, and cancels the one that works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

from trtllm_truss.endpoints.cancellation import OwnCancellation

Result = TypeVar("Result")


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
    cancellation = OwnCancellation()
    leaving = asyncio.ensure_future(_when_gone(receive, cancellation.request))
    try:
        return await work
    except asyncio.CancelledError:
        if cancellation.is_reason():
            raise ClientGone from None
        raise
    finally:
        leaving.cancel()


async def _when_gone(receive: Receive, act: Callable[[], None]) -> None:
    """Acts when the client has left; events are pushed, nothing is polled."""
    while (await receive())["type"] != "http.disconnect":
        pass
    act()
