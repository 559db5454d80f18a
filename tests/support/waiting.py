"""Waiting for what other processes and threads do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""Longer than anything here takes on a busy machine: only what never happens meets it."""


def settles(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Whether a condition comes to hold in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return condition()
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Lets the event loop run until a condition holds; fails when it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)
