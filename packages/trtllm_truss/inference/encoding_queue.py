"""A queue of texts to encode: long ones in a thread, within limits."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any, TypeVar

from trtllm_truss.errors import QueueFull

Result = TypeVar("Result")


Checkpoint = Callable[[], None]
"""Called between slices of long jobs; raises if nobody waits for the job any more."""


SHORT_CHARACTERS = 1 << 15
"""Longest prompt with a reserved thread; encoding it takes some 10 ms."""


MAX_WAITING = 4096


MAX_WAITING_CHARACTERS = 64 << 20
"""Maximum characters of all waiting prompts; each keeps its request in memory."""


_CHARACTERS_PER_S = 1 << 17
"""Adds size / rate to a job's virtual deadline, so short prompts go first."""


_MAX_HANDICAP_S = 5.0


_RETRY_AFTER_S = 2


_Call = tuple[Callable[[Checkpoint], Any], "asyncio.Future[Any]"]


class Abandoned(Exception):
    """Raised in a job whose last waiter was cancelled."""


class _Work:
    """A queued job.

    Attributes:
        order: the virtual deadline and the number of the job.
        call: the job and the future of its result; None once it is taken or abandoned.
        abandoned: its caller has left.
    """

    __slots__ = ("abandoned", "call", "characters", "order")

    def __init__(self, call: _Call, characters: int, number: int) -> None:
        handicap_s = min(characters / _CHARACTERS_PER_S, _MAX_HANDICAP_S)
        self.order = (time.monotonic() + handicap_s, number)
        self.characters = characters
        self.call: _Call | None = call
        self.abandoned = False

    def __lt__(self, other: _Work) -> bool:
        return self.order < other.order

    def checkpoint(self) -> None:
        if self.abandoned:
            raise Abandoned


class EncodingQueue:
    """Runs jobs on three threads, one of them for short jobs only.

    There are few threads because each takes a core and a kilobyte per token of the engine's
    context, or of `MAX_COUNTED_TOKENS` for a count.

    Attributes:
        alone: held by a long job while it runs Python, which two threads cannot do faster than one:
            each thread that waits for the interpreter's lock makes the event loop wait once more,
            after each of its system calls.
    """

    def __init__(self) -> None:
        self.alone: AbstractContextManager[Any] = threading.Lock()
        self._any_size = ThreadPoolExecutor(2, "encode")
        self._short_only = ThreadPoolExecutor(1, "encode-short")
        self._lock = threading.Lock()
        self._short: list[_Work] = []
        self._long: list[_Work] = []
        self._numbers = count()
        self.waiting = 0
        self.waiting_characters = 0

    async def run(self, call: Callable[[Checkpoint], Result], characters: int) -> Result:
        """Run a job in a thread. Cancelling the wait drops the job or stops it soon.

        Args:
            call: the job, which calls its argument between slices.
            characters: exact or estimated size.

        Raises:
            QueueFull: too many jobs wait.
        """
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        work = _Work((call, done), characters, next(self._numbers))
        self._add(work)
        try:
            return await done
        except asyncio.CancelledError:
            self._abandon(work)
            raise
        finally:
            del done  # it holds the error, whose traceback holds this frame

    def _add(self, work: _Work) -> None:
        with self._lock:
            characters = self.waiting_characters + work.characters
            if self.waiting and (
                self.waiting >= MAX_WAITING or characters > MAX_WAITING_CHARACTERS
            ):
                raise QueueFull(
                    f"{self.waiting} prompts of {self.waiting_characters} characters wait to be "
                    f"encoded; at most {MAX_WAITING} of {MAX_WAITING_CHARACTERS} can. Try again in "
                    f"{_RETRY_AFTER_S} s.",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self.waiting += 1
            self.waiting_characters = characters
            is_short = work.characters <= SHORT_CHARACTERS
            heapq.heappush(self._short if is_short else self._long, work)
        # Either thread may take the job; the other one then finds nothing.
        self._any_size.submit(self._run_next, (self._short, self._long))
        if is_short:
            self._short_only.submit(self._run_next, (self._short,))

    def _abandon(self, work: _Work) -> None:
        with self._lock:
            work.abandoned = True
            self._taken(work)

    def _taken(self, work: _Work) -> _Call | None:
        """Return a job's call and future, the first time only; a heap may keep the rest."""
        taken, work.call = work.call, None
        if taken is not None:
            self.waiting -= 1
            self.waiting_characters -= work.characters
        return taken

    def _run_next(self, heaps: tuple[list[_Work], ...]) -> None:
        """Run the most urgent job that somebody waits for."""
        taken = None
        with self._lock:
            while taken is None and (filled := [heap for heap in heaps if heap]):
                work = heapq.heappop(min(filled, key=lambda heap: heap[0]))
                taken = self._taken(work)
        if taken is None:
            return
        call, done = taken
        result = failure = None
        try:
            result = call(work.checkpoint)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
        with suppress(RuntimeError):  # the event loop was closed
            done.get_loop().call_soon_threadsafe(_finish, done, result, failure)
        del taken, done, failure  # the error's traceback holds this frame


def _finish(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():  # its caller has left
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)
