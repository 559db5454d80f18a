"""Wait for other processes and threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""Above any wait on a busy machine; only a failure reaches it."""


def settles(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Wait for a condition; return False if it is not met in time."""
    begin = time.monotonic()
    while not condition():
        if (waited_s := time.monotonic() - begin) > within_s:
            return condition()
        time.sleep(_pause_s(waited_s))
    return True


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Run the event loop until a condition is met; fail if it is not met in time."""
    begin = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begin
        assert waited_s < within_s, "the condition was not met in time"
        await asyncio.sleep(_pause_s(waited_s))


def _pause_s(waited_s: float) -> float:
    """Return 5 % of the wait so far: to ask a server costs milliseconds of CPU."""
    return min(max(0.01, waited_s / 20), 0.1)
