"""An estimate of how long requests occupy the engine."""

from __future__ import annotations

_REQUESTS_REMEMBERED = 64
"""Number of completed requests over which service times are smoothed."""


class ServiceTimeEstimator:
    """Smoothed service times of requests and of their reserved tokens.

    Little's law turns them into a rate: all running requests are replaced once per mean service
    time, however unevenly they finish.

    Attributes:
        request_s: mean seconds per request; None before the first one finishes.
        token_s: mean seconds per reserved token; larger requests weigh more.
    """

    def __init__(self) -> None:
        self.request_s: float | None = None
        self.token_s: float | None = None
        self._ended = 0
        self._tokens = 0.0
        self._token_seconds = 0.0

    def ended(self, tokens: int, held_s: float) -> None:
        """Update the means with a request that held its slot for `held_s`."""
        if self._ended < _REQUESTS_REMEMBERED:
            self._ended += 1
        weight = 1 / self._ended
        self._tokens += weight * (tokens - self._tokens)
        self._token_seconds += weight * (tokens * held_s - self._token_seconds)
        before_s = self.request_s or 0.0
        self.request_s = before_s + weight * (held_s - before_s)
        self.token_s = self._token_seconds / self._tokens
