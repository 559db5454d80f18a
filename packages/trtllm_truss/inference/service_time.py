"""How fast an engine replaces what it runs, as the requests that ended tell."""

from __future__ import annotations

_REQUESTS_REMEMBERED = 64


class Turnover:
    """Smoothed times for which requests, and the tokens reserved for them, are held.

    Little's law turns them into a rate: what is running is replaced once in the mean time for
    which it is held, however unevenly requests end.

    Attributes:
        request_s: seconds for which a request is held; None while none has ended.
        token_s: the same for a reserved token: longer where the larger requests run longer.
    """

    def __init__(self) -> None:
        self.request_s: float | None = None
        self.token_s: float | None = None
        self._ended = 0
        self._tokens = 0.0
        self._token_seconds = 0.0

    def ended(self, tokens: int, held_s: float) -> None:
        """Takes in one request that was held for so long."""
        if self._ended < _REQUESTS_REMEMBERED:
            self._ended += 1
        weight = 1 / self._ended
        self._tokens += weight * (tokens - self._tokens)
        self._token_seconds += weight * (tokens * held_s - self._token_seconds)
        before_s = self.request_s or 0.0
        self.request_s = before_s + weight * (held_s - before_s)
        self.token_s = self._token_seconds / self._tokens
