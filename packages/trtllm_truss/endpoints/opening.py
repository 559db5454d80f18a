"""How an answer begins: its status stays open until the first item, or until one must be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Generic, TypeVar

from starlette.requests import Request

from trtllm_truss.endpoints.disconnect import while_connected

Item = TypeVar("Item")


class OpenedAnswer(Generic[Item]):
    """An answer whose first item has been asked for. Close it, begun or not."""

    def __init__(self, first: asyncio.Future[Item], answer: AsyncGenerator[Item, None]) -> None:
        """Binds an answer.

        Args:
            first: its first item, which may still be on its way.
            answer: gives the others.
        """
        self._first: asyncio.Future[Item] | None = first
        self._answer = answer

    def __aiter__(self) -> OpenedAnswer[Item]:
        return self

    def __anext__(self) -> Awaitable[Item]:
        first, self._first = self._first, None
        return anext(self._answer) if first is None else first

    async def aclose(self) -> None:
        """Ends the answer; a first item that is still on its way is not waited for."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._answer.aclose()


async def opened(
    request: Request, answer: AsyncGenerator[Item, None], limit_s: float | None = None
) -> OpenedAnswer[Item]:
    """Waits for the first item of an answer, no longer than `limit_s` if that is given.

    The body of `request` must have been read; the answer has at least one item.

    Returns:
        The whole answer, the first item included.

    Raises:
        ClientGone: the client left first; the answer is closed.
        Exception: what the answer raised instead of its first item; it is closed.
    """
    first = asyncio.ensure_future(anext(answer))
    opening = OpenedAnswer(first, answer)
    try:
        await while_connected(request.receive, asyncio.wait([first], timeout=limit_s))
        if first.done():
            first.result()
    except BaseException:
        await opening.aclose()
        raise
    return opening
