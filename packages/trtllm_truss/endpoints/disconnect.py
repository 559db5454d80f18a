"""A client that leaves cancels what is done for it, before there is a response as well.

Starlette notices a lost client only while a response is being sent. Until then nobody reads the
connection's events, so this module does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Awaits `work`, and cancels it as soon as the client of `request` is gone.

    The request's body must have been read.

    Raises:
        ClientGone: the client left first; `work` has been cancelled and has ended.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has left; events are pushed, nothing is polled."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
