"""Return a server's memory to the system after peaks."""

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
"""Free memory once RSS has grown by this much since it was last freed."""


AGAIN_S = 5.0
"""After this time, growth is measured from the lowest RSS, not from the RSS last left."""


_LEAST_PAUSE = 100
"""Pause after each time by this multiple of its duration: a hundredth of the time at most."""


_LOOK_S = 1.0


_OBJECTS_BEFORE_COLLECTION = 200_000  # 512 requests in flight hold fewer


_YOUNG, _ALL = 1, 2


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


_STATM = Path("/proc/self/statm")


class MemoryKeeper:
    """Decides when to collect garbage and to return freed memory to the system.

    The garbage collector counts objects, and a body of 8 MB is one object; the C library keeps
    memory that is freed between two live objects.

    Args:
        resident: returns the resident memory in bytes.
        trim: returns freed memory to the system.
        collect: collects garbage up to a generation.
        is_idle: returns True if no request is running. While one is, memory is trimmed, and young
            objects are collected if that is not enough: with 512 streams a collection takes 50 ms.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        resident: Callable[[], int],
        trim: Callable[[], object],
        collect: Callable[[int], object],
        is_idle: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resident = resident
        self._trim = trim
        self._collect = collect
        self._is_idle = is_idle
        self._clock = clock
        self._lowest = self._last = resident()
        self._rests_until_s = self._again_s = clock()

    def look(self) -> None:
        """Return memory to the system if RSS has grown enough and the last pause is over."""
        now_s, size = self._clock(), self._resident()
        self._lowest = min(self._lowest, size)
        since = self._lowest if now_s >= self._again_s else self._last
        if size < since + GROWTH_BYTES or now_s < self._rests_until_s:
            return
        self._trim()
        is_idle = self._is_idle()
        if is_idle or self._resident() >= self._last + GROWTH_BYTES:
            self._collect(_ALL if is_idle else _YOUNG)
            self._trim()
        end_s = self._clock()
        self._last = self._resident()
        self._again_s = end_s + AGAIN_S
        self._rests_until_s = end_s + _LEAST_PAUSE * (end_s - now_s)


def settle_memory(is_idle: Callable[[], bool]) -> Callable[[], None]:
    """Exempt long-lived objects from garbage collection, collect rarely, and watch memory growth.

    Returns:
        A function that stops the watch.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    keeper = MemoryKeeper(_resident_bytes, _trim_heap, gc.collect, is_idle)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            keeper.look()

    threading.Thread(target=watch, name="memory", daemon=True).start()
    return over.set


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


def _trim_heap() -> None:
    with suppress(AttributeError, OSError):  # the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)
