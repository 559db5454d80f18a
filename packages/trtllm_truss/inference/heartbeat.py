"""Whether the engine gives signs of life while somebody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trtllm_truss.errors import EngineUnavailable, TrussError

_FAILURES = 3
"""In a row, with nothing good in between, before they count as silence."""


class Activity:
    """Knows how many requests wait for the engine, and when it last gave them something.

    A request with a slow reader, or with an unchecked guide, does not wait for the engine.
    Written by the event loop, read by the supervisor's thread.

    Attributes:
        answered: requests that the engine has answered to the end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = 0
        self._clock = clock
        self._waiting = 0
        self._last_sign = 0.0
        self._failures = 0
        self._first_failure = self._last_failure = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A request waits for the engine; a token or a refusal is a sign of life."""
        if self._waiting == 0:
            self._last_sign = self._clock()
        self._waiting += 1
        try:
            yield
        except EngineUnavailable:
            raise
        except TrussError:
            self.sign_of_life()
            raise
        else:
            self.sign_of_life()
        finally:
            self._waiting -= 1

    def sign_of_life(self) -> None:
        """Notes that the engine has just shown that it works."""
        self._last_sign = self._clock()
        self._failures = 0

    def request_failed(self) -> None:
        """Notes that a request found no engine, or lost it."""
        self._last_failure = self._clock()
        if self._failures == 0:
            self._first_failure = self._last_failure
        self._failures += 1

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds in which requests waited for nothing, or in which each of them failed."""
        failing_for_s = self._last_failure - self._first_failure
        return max(
            self._clock() - self._last_sign if self._waiting else 0.0,
            failing_for_s if self._failures >= _FAILURES else 0.0,
        )
