"""Whether the engine gives signs of life while it has something to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Counts the requests in flight and remembers the engine's last sign of life.

    Written by the event loop, read by the supervisor's thread.

    Attributes:
        answered: requests that the engine has answered to the end.
    """

    def __init__(self) -> None:
        self.answered = 0
        self._in_flight = 0
        self._last_sign = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Holds while a request is with the engine."""
        if self._in_flight == 0:
            self._last_sign = time.monotonic()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def sign_of_life(self) -> None:
        """Notes that the engine has answered something."""
        self._last_sign = time.monotonic()

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds without a sign of life; 0 while there is nothing to do."""
        return time.monotonic() - self._last_sign if self._in_flight else 0.0
