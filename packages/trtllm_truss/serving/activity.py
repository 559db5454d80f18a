"""Whether the engine gives signs of life while somebody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """Knows how many requests wait for the engine, and when it last gave them something.

    A request whose client reads slowly does not wait for the engine and is no sign of a hang.
    Written by the event loop, read by the supervisor's thread.

    Attributes:
        answered: requests that the engine has answered to the end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = 0
        self._clock = clock
        self._waiting = 0
        self._last_sign = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A request waits for the engine; leaving this without an error is a sign of life."""
        if self._waiting == 0:
            self._last_sign = self._clock()
        self._waiting += 1
        try:
            yield
            self._last_sign = self._clock()
        finally:
            self._waiting -= 1

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds without a sign of life; 0 while nobody waits for one."""
        return self._clock() - self._last_sign if self._waiting else 0.0
