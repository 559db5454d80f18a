"""Tests in virtual time: exact, minutes in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from benchmarks.fleet.virtual_time import VirtualTimeLoop


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate an asynchronous test to run in virtual time."""

    @wraps(test)
    def play(*args: Any, **fixtures: Any) -> None:
        loop = VirtualTimeLoop()
        try:
            loop.run_until_complete(test(*args, **fixtures))
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    return play
