"""A CPU time limit for untrusted Python code, in the thread that calls it.

A watching thread raises an exception in the thread of a call that takes too long
(`PyThreadState_SetAsyncExc`), which also works in the main thread and costs the call nothing while
it runs. The exception arrives between two instructions of the interpreter: an operation in C
finishes first, so callers limit the size of those. It measures CPU time, because a busy machine
must not refuse a good request.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_LOOK_S = 0.05
_AGAIN_S = 1.0
"""Time after which an exception without effect is raised again: a destructor can swallow it."""

_IDLE_LOOKS = 40
"""Number of checks without a call after which the watching thread sleeps until the next call."""

_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class TimeIsUp(BaseException):
    """A call exceeded its CPU time; not an `Exception`, which the call could catch."""


class _Dropped(BaseException):
    """Replaces a `TimeIsUp` that was not raised yet."""


class _Call:
    """A running call.

    Attributes:
        thread: identifier of its thread.
        is_over: nothing may be raised in its thread any more.
        is_late: an exception was raised there.
    """

    __slots__ = ("_limit_s", "_until_s", "is_late", "is_over", "thread")

    def __init__(self, limit_s: float) -> None:
        self.thread = threading.get_ident()
        self.is_over = self.is_late = False
        self._limit_s = limit_s
        self._until_s: float | None = None

    def look(self) -> None:
        """Raise TimeIsUp in the thread of a late call; its time starts with the first check."""
        now_s = time.clock_gettime(time.pthread_getcpuclockid(self.thread))
        if self._until_s is None:
            self._until_s = now_s + self._limit_s
        elif now_s > self._until_s:
            self._until_s = now_s + _AGAIN_S
            self.is_late = True
            _raise_in(self.thread, TimeIsUp)


class _Watch:
    """The calls of this process, and the thread that checks them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._has_calls = threading.Event()
        self._is_awake = False
        self._thread: threading.Thread | None = None

    def begin(self, limit_s: float) -> _Call:
        call = _Call(limit_s)
        with self._lock:
            self._calls.add(call)
            if not self._is_awake:
                self._wake()
        return call

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="time-limit", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started; the next call tries again
                return
            self._thread = thread
        self._is_awake = True
        self._has_calls.set()

    def end(self, call: _Call) -> None:
        """Drop a call, and an exception that was not raised in this thread yet."""
        call.is_over = True
        with self._lock:  # after a check that has begun
            self._calls.discard(call)
            if call.is_late:
                _drop_pending(call.thread)

    def _run(self) -> None:
        idle_looks = 0
        while True:
            self._has_calls.wait()
            time.sleep(_LOOK_S)
            with self._lock:
                idle_looks = 0 if self._calls else idle_looks + 1
                if idle_looks >= _IDLE_LOOKS:
                    self._has_calls.clear()
                    self._is_awake = False
                for call in self._calls:
                    if not call.is_over:
                        call.look()


def _drop_pending(thread: int) -> None:
    """Drop an exception that is pending in this thread by raising and catching another one.

    Setting none would drop it too, but before Python 3.13 leaves the interpreter's flag of pending
    exceptions set (`eval_frame_handle_pending` of Python/ceval.c clears it only if there is one):
    all code runs slower from then on, and 3.11 hangs at the next call that a profiler sees.
    """
    try:
        while True:  # a destructor can swallow it
            _raise_in(thread, _Dropped)
    except _Dropped:
        pass


_watch = _Watch()


def _watch_anew() -> None:
    """Watch the calls of a forked process, which has the calling thread only."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_watch_anew)


def run_limited(call: Callable[[], Result], limit_s: float) -> Result:
    """Return the result of a call limited to `limit_s` of CPU time, plus up to 0.1 s.

    The call must not make a limited call itself.

    Raises:
        TimeIsUp: it takes longer.
    """
    watch = _watch
    running = watch.begin(limit_s)
    try:
        try:
            return call()
        finally:
            watch.end(running)
    except TimeIsUp:
        watch.end(running)  # the exception may have arrived within the first one
        raise
