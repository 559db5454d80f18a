"""The requests that wait for the engine, in the order in which they will go to it."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from trtllm_truss.inference.slot import Ticket


@dataclass(slots=True, order=True)
class Waiter:
    """A request in the queue; the one that sorts last goes first.

    Attributes:
        urgency: the negated virtual deadline, in seconds of a monotonic clock.
        number: the negated count of requests before it; no two are equal.
        tokens: of the KV cache that it needs.
        handicap_s: by how much its virtual deadline is later than its arrival.
        granted: what it waits for.
    """

    urgency: float
    number: int
    tokens: int = field(compare=False)
    handicap_s: float = field(compare=False)
    granted: asyncio.Future[Ticket] = field(compare=False)


class WaitQueue:
    """A sorted list, so that the place of a request is known before it waits.

    Attributes:
        tokens: that all of them need.
    """

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def head(self) -> Waiter:
        """The one that goes next. There must be one."""
        return self._waiters[-1]

    def ahead_of(self, waiter: Waiter) -> int:
        """How many go before a request, be it in the queue or not yet."""
        return len(self._waiters) - bisect_left(self._waiters, waiter) - (waiter in self)

    def add(self, waiter: Waiter) -> None:
        """Puts a request into its place."""
        insort(self._waiters, waiter)
        self.tokens += waiter.tokens

    def pop(self) -> Waiter:
        """Takes out the one that goes next."""
        waiter = self._waiters.pop()
        self.tokens -= waiter.tokens
        return waiter

    def discard(self, waiter: Waiter) -> None:
        """Takes out a request, if it is still there."""
        if waiter in self:
            del self._waiters[bisect_left(self._waiters, waiter)]
            self.tokens -= waiter.tokens

    def __contains__(self, waiter: Waiter) -> bool:
        at = bisect_left(self._waiters, waiter)
        return at < len(self._waiters) and self._waiters[at] is waiter
