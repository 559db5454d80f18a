"""The right to use the engine, for one request."""

from __future__ import annotations

from collections.abc import Callable


class Ticket:
    """Whoever has one releases it; doing so twice is harmless."""

    __slots__ = ("_release", "since_s", "tokens")

    def __init__(self, release: Callable[[Ticket], None], tokens: int, since_s: float) -> None:
        """Made by `Admission` alone.

        Args:
            release: is given this ticket when it is released.
            tokens: reserved in the KV cache.
            since_s: when it was granted, by the admission's clock.
        """
        self._release: Callable[[Ticket], None] | None = release
        self.tokens = tokens
        self.since_s = since_s

    def release(self) -> None:
        """Gives it on: the engine is done with the request, or has been told to stop it."""
        release, self._release = self._release, None
        if release is not None:
            release(self)
