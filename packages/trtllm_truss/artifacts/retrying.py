"""Trying again: what passes by itself, and how long to wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from trtllm_truss.errors import ArtifactError

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.5
_LONGEST_WAIT_S = 300
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """Something that may work a moment later.

    Attributes:
        problem: what happened, without a subject: "is unreachable (ConnectError)".
        remedy: what helps if it does not pass.
        retry_after_s: how long the other side asked to wait, if it did.
    """

    def __init__(self, problem: str, remedy: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.retry_after_s = retry_after_s


class Unreachable(ArtifactError):
    """The other side did not answer, or only with failures, however often it was asked."""


def retrying(name: str, attempt: Callable[[], _Result], *, tries: int = 4) -> _Result:
    """Calls until it works.

    Args:
        name: what is being read, for messages.
        attempt: raises `Interrupted` for what may pass.
        tries: calls at most; they are half a second apart at first, then twice as long each time,
            or as long as the other side asks.

    Raises:
        Unreachable: it never worked, or the other side asked for more than five minutes.
    """
    delay_s = _FIRST_DELAY_S
    for left in reversed(range(tries)):
        try:
            return attempt()
        except Interrupted as problem:
            asked_s = problem.retry_after_s
            if left == 0 or (asked_s or 0) > _LONGEST_WAIT_S:
                raise Unreachable(f"{name} {problem.problem}; {problem.remedy}.") from problem
            wait_s = delay_s if asked_s is None else asked_s
            logger.warning("%s %s; trying again in %.1f s", name, problem.problem, wait_s)
            time.sleep(wait_s)
            delay_s *= 2
    raise AssertionError("tries is at least 1")
