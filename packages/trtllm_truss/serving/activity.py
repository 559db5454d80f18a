"""Whether the engine gives signs of life while somebody waits for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Activity:
    """Knows how many requests wait for the engine, and when it last gave them something.

    A request whose client reads slowly does not wait for the engine and is no sign of a hang.
    Written by the event loop, read by the supervisor's thread.

    Attributes:
        answered: requests that the engine has answered to the end.
    """

    def __init__(self) -> None:
        self.answered = 0
        self._waiting = 0
        self._last_sign = 0.0

    def watched(self, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """The same items; while the next one is awaited, a request waits for the engine."""
        return _Watched(self, items)

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds without a sign of life; 0 while nobody waits for one."""
        return time.monotonic() - self._last_sign if self._waiting else 0.0

    def wait_begins(self) -> None:
        """Notes that a request waits for the engine."""
        if self._waiting == 0:
            self._last_sign = time.monotonic()
        self._waiting += 1

    def wait_ends(self, *, answered: bool) -> None:
        """Notes that it does not wait any more, and whether the engine is the reason."""
        self._waiting -= 1
        if answered:
            self._last_sign = time.monotonic()


class _Watched(Generic[Item]):
    """An iterator that tells an `Activity` when it waits."""

    def __init__(self, activity: Activity, items: AsyncIterator[Item]) -> None:
        self._activity = activity
        self._items = items

    def __aiter__(self) -> _Watched[Item]:
        return self

    async def __anext__(self) -> Item:
        self._activity.wait_begins()
        answered = False
        try:
            item = await anext(self._items)
            answered = True
            return item
        finally:
            self._activity.wait_ends(answered=answered)
