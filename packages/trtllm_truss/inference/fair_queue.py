"""A queue that serves callers in turn, so that a call with many items does not hold up others."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items by caller, one from each caller in turn, oldest first.

    Callers with one item each are served in order of arrival.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, caller: Hashable, item: Item) -> None:
        self._lanes.setdefault(caller, deque()).append(item)

    def pop(self) -> Item:
        """Remove and return the next item; the queue must not be empty."""
        caller, lane = next(iter(self._lanes.items()))
        item = lane.popleft()
        if lane:
            self._lanes.move_to_end(caller)
        else:
            del self._lanes[caller]
        return item
