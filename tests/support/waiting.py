"""Wait for other processes and threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""Above any wait on a busy machine; only a failure reaches it."""


def settles(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Wait for a condition; return False if it is not met in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return condition()
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Run the event loop until a condition is met; fail if it is not met in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.01)
