"""The deadlines of one choice."""

from __future__ import annotations

from trtllm_truss.errors import DeadlineExceeded
from trtllm_truss.settings.model import Serving


class Deadlines:
    """The deadlines of one request: first token, next token, whole response.

    Args:
        limits: `first_token_timeout_s`, `idle_timeout_s` and `request_timeout_s`.
        arrived: time of arrival, on the clock that all methods use.
        admitted: time of admission.
    """

    __slots__ = ("_limits", "_started", "_token_at", "_total_at")

    def __init__(self, limits: Serving, arrived: float, admitted: float) -> None:
        self._limits = limits
        self._total_at = arrived + limits.request_timeout_s
        self._token_at = admitted + limits.first_token_timeout_s
        self._started = False

    def tokens_came(self, now: float) -> None:
        """Restart the deadline for the next token."""
        self._token_at = now + self._limits.idle_timeout_s
        self._started = True

    def begin_again(self, now: float) -> None:
        """Wait for the first token of a further request."""
        self._token_at = now + self._limits.first_token_timeout_s
        self._started = False

    def at(self) -> float:
        """Return the earliest deadline."""
        return min(self._total_at, self._token_at)

    def exceeded(self) -> DeadlineExceeded:
        """Build the error for the deadline that passed."""
        limits = self._limits
        if self._total_at <= self._token_at:
            return _exceeded("the answer is not complete", "request_timeout_s", limits)
        if not self._started:
            return _exceeded("no first token", "first_token_timeout_s", limits)
        return _exceeded("no further token", "idle_timeout_s", limits)


def _exceeded(what: str, name: str, limits: Serving) -> DeadlineExceeded:
    return DeadlineExceeded(f"{what} after {getattr(limits, name):g} s (serving.{name}).")
