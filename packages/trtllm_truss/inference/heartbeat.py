"""Signs of life of the engine while requests wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from trtllm_truss.errors import EngineBroken, EngineUnavailable, TrussError

_FAILURES = 3
"""Consecutive failures that count as silence."""


_GAP_S = 1.0
"""Silence continues if another request starts to wait within this time of the last one."""


class EngineHeartbeat:
    """Tracks the requests that wait for the engine, and its last sign of life.

    A request with a slow reader or an unchecked guide does not wait for the engine. A request whose
    caller has left still does until the engine has stopped it, because it keeps its slot: otherwise
    callers less patient than `serving.hang_timeout_s` would hide a hang. Written by the event loop,
    read by the supervisor's thread.

    Attributes:
        answered: number of complete choices.
        broken: why the engine fails all requests from now on; None while it may recover.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = 0
        self.broken: str | None = None
        self._clock = clock
        self._waiting = 0
        self._last_sign = 0.0
        self._last_wait = -math.inf
        self._failures = 0
        self._first_failure = self._last_failure = 0.0

    def waiting(self) -> AbstractContextManager[object]:
        """Mark one request as waiting; a token or a rejection is a sign of life."""
        return self

    def begin(self) -> None:
        """Count one more request that waits."""
        now = self._clock()
        if self._waiting == 0 and now - self._last_wait > _GAP_S:
            self._last_sign = now
        self._waiting += 1

    def end(self) -> None:
        """Count one request less, without a sign of life."""
        self._waiting -= 1
        self._last_wait = self._clock()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end()
        if error is None or (
            isinstance(error, TrussError) and not isinstance(error, EngineUnavailable)
        ):
            self.sign_of_life()

    def sign_of_life(self) -> None:
        """Record a sign of life."""
        self._last_sign = self._clock()
        self._failures = 0

    def restarted(self) -> None:
        """Forget the failures of an earlier run."""
        self.broken = None
        self.sign_of_life()

    def request_failed(self, error: EngineUnavailable) -> None:
        """Record that a request could not reach the engine or lost it."""
        if isinstance(error, EngineBroken):
            self.broken = error.message
        self._last_failure = self._clock()
        if self._failures == 0:
            self._first_failure = self._last_failure
        self._failures += 1

    def request_answered(self) -> None:
        """Record a complete choice."""
        self.answered += 1

    @property
    def is_waited_for(self) -> bool:
        """Return whether any request waits for the engine."""
        return self._waiting > 0

    @property
    def silent_for_s(self) -> float:
        """Seconds since the last sign of life while requests wait, or of consecutive failures."""
        failing_for_s = self._last_failure - self._first_failure
        return max(
            self._clock() - self._last_sign if self._waiting else 0.0,
            failing_for_s if self._failures >= _FAILURES else 0.0,
        )
