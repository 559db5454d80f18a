"""Retries of requests that failed for a moment.

The libraries' own repetition is not used. `http_backoff` of huggingface_hub logs the URL and the
library's words (2.4.0, utils/_http.py:520 and 551; below 1.0 the words hold a signed URL), and
waits as long as a server asks for. botocore's repeats opening a response, not reading it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from trtllm_truss.errors import ArtifactError

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.5
_MAX_WAIT_S = 300
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """A transient error.

    Attributes:
        problem: the error without its subject: "is unreachable (ConnectError)".
        remedy: what to do if it persists.
        retry_after_s: the delay that the remote requested, if any.
    """

    def __init__(self, problem: str, remedy: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.retry_after_s = retry_after_s


class Unreachable(ArtifactError):
    """The remote failed to respond after all retries."""


def retrying(name: str, attempt: Callable[[], _Result], *, tries: int = 4) -> _Result:
    """Call a function until it succeeds.

    Args:
        name: name of the resource, for messages.
        attempt: raises `Interrupted` for transient errors.
        tries: maximum number of calls. The delay starts at 0.5 s and doubles, unless the remote
            requests one.

    Raises:
        Unreachable: all calls failed, or the remote requested more than five minutes.
    """
    delay_s = _FIRST_DELAY_S
    for left in reversed(range(tries)):
        try:
            return attempt()
        except Interrupted as problem:
            asked_s = problem.retry_after_s
            if left == 0 or (asked_s or 0) > _MAX_WAIT_S:
                raise Unreachable(f"{name} {problem.problem}; {problem.remedy}.") from problem
            wait_s = delay_s if asked_s is None else asked_s
            logger.warning("%s %s; retrying in %.1f s", name, problem.problem, wait_s)
            time.sleep(wait_s)
            delay_s *= 2
    raise AssertionError("tries is at least 1")
