"""Give memory back that requests have left, when the process has grown by it.

The garbage collector counts objects, and one body of 8 MB is one object; the C library keeps what
is freed between two objects that live on.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

GROWTH_BYTES = 64 << 20
"""Growth from which a look gives memory back."""

AGAIN_S = 5.0
"""Time after which a look gives memory back again without growth, above the lowest level."""

_LEAST_PAUSE = 100
"""Rest after each time by this multiple of its duration: a hundredth of the time at most."""

_LOOK_S = 1.0
_OBJECTS_BEFORE_COLLECTION = 200_000  # 512 requests in flight hold fewer
_YOUNG, _ALL = 1, 2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class MemoryKeeper:
    """Decides when to collect garbage and to return freed memory to the system.

    Args:
        resident: returns the resident memory in bytes.
        give_back: collects up to a generation and returns freed memory.
        is_idle: tells whether no request runs. While one does, only young objects are collected: a
            collection of all stops every stream.
        clock: the time in seconds.
    """

    def __init__(
        self,
        resident: Callable[[], int],
        give_back: Callable[[int], None],
        is_idle: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resident = resident
        self._give_back = give_back
        self._is_idle = is_idle
        self._clock = clock
        self._lowest = self._last = resident()
        self._rests_until_s = self._again_s = clock()

    def look(self) -> None:
        """Give memory back if it has grown enough, and long enough after the last time."""
        now_s, size = self._clock(), self._resident()
        self._lowest = min(self._lowest, size)
        since = self._lowest if now_s >= self._again_s else self._last
        if size < since + GROWTH_BYTES or now_s < self._rests_until_s:
            return
        self._give_back(_ALL if self._is_idle() else _YOUNG)
        end_s = self._clock()
        self._last = self._resident()
        self._again_s = end_s + AGAIN_S
        self._rests_until_s = end_s + _LEAST_PAUSE * (end_s - now_s)


def settle_memory(is_idle: Callable[[], bool]) -> Callable[[], None]:
    """Exempt long-lived objects from garbage collection, collect rarely, and watch the growth.

    Args:
        is_idle: see `MemoryKeeper`.

    Returns:
        A function that ends the watch.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    keeper = MemoryKeeper(_resident_bytes, _give_back, is_idle)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            keeper.look()

    threading.Thread(target=watch, name="memory", daemon=True).start()
    return over.set


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


def _give_back(generation: int) -> None:
    gc.collect(generation)
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
