"""How long a request may take, and what is said when it took longer."""

from __future__ import annotations

from trtllm_truss.errors import DeadlineExceeded
from trtllm_truss.settings.model import Serving


class Deadlines:
    """One request's deadlines on one clock: for its first token, for each next one, for all."""

    __slots__ = ("_begun", "_limits", "_token_at", "_total_at")

    def __init__(self, limits: Serving, arrived: float, admitted: float) -> None:
        """Starts them; times are in seconds of one clock.

        Args:
            limits: `first_token_timeout_s`, `idle_timeout_s` and `request_timeout_s`.
            arrived: when the request came.
            admitted: when it got its place in the engine.
        """
        self._limits = limits
        self._total_at = arrived + limits.request_timeout_s
        self._token_at = admitted + limits.first_token_timeout_s
        self._begun = False

    def tokens_came(self, now: float) -> None:
        """Starts the time for the next token."""
        self._token_at = now + self._limits.idle_timeout_s
        self._begun = True

    def at(self) -> float:
        """When the request is out of time, unless a token comes."""
        return min(self._total_at, self._token_at)

    def exceeded(self) -> DeadlineExceeded:
        """The error of a request that is out of time."""
        limits = self._limits
        if self._total_at <= self._token_at:
            return _exceeded("the answer is not complete", "request_timeout_s", limits)
        if not self._begun:
            return _exceeded("there is no first token", "first_token_timeout_s", limits)
        return _exceeded("there is no further token", "idle_timeout_s", limits)


def _exceeded(what: str, name: str, limits: Serving) -> DeadlineExceeded:
    return DeadlineExceeded(f"{what} after {getattr(limits, name):g} s (serving.{name}).")
