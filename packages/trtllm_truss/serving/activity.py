"""Whether the engine gives signs of life while somebody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trtllm_truss.errors import EngineUnavailable, TrussError


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
        self._silent_since = 0.0  # on the clock, as if nobody had ever waited in vain before
        self._waited_in_vain_s = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A request waits for the engine; whatever the engine says to it is a sign of life.

        `EngineUnavailable` is none: an engine that only ever fails so is as good as silent.
        """
        if self._waiting == 0:
            self._silent_since = self._clock() - self._waited_in_vain_s
        self._waiting += 1
        try:
            yield
        except EngineUnavailable:
            self._waited_in_vain_s = self._clock() - self._silent_since
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
        self._silent_since = self._clock()
        self._waited_in_vain_s = 0.0

    def request_answered(self) -> None:
        """Notes that the engine has answered a request to the end."""
        self.answered += 1

    @property
    def silent_for_s(self) -> float:
        """Seconds of waiting without a sign of life; 0 while nobody waits."""
        return self._clock() - self._silent_since if self._waiting else 0.0
