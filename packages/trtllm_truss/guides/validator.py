"""Queue of guides for the compiler worker, and the worker as a child process."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_truss.guides.compiler_worker import GuideVerdict
from trtllm_truss.guides.guide import (
    MAX_CHARACTERS,
    CheckedGuide,
    CheckFailed,
    GuideFault,
    TooManyGuides,
    estimate_work,
)
from trtllm_truss.processes.child import Child
from trtllm_truss.requests import Guide

if TYPE_CHECKING:
    from trtllm_truss.engines.engine import Engine  # imports the settings, into a backend too

logger = logging.getLogger(__name__)

MAX_WAITING = 32
"""Capacity of the queue of unchecked guides."""

MAX_SLOW = 8
"""Capacity of the queue of slow guides, which exceeded `_FIRST_LIMIT_S`."""

_FIRST_LIMIT_S = 0.4
_AT_ONCE, _SLOW_AT_ONCE = 2, 1
_REMEMBERED_GUIDES, _REMEMBERED_CHARACTERS = 256, 2_000_000
_CLOSED = "Guides are no longer checked."
_UNKEPT = (
    "A schema has %s, which the output follows not at all or only in part; with strict: true "
    "it is refused."
)
_SMALL_STACK = 'ulimit -s 4096; exec "$@"'  # KiB; threads of the engine have 8192
_ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}  # each arena reserves 64 MiB of address space


_UNCHECKED = "Guides cannot be checked"
_FAILURE_KEPT_S = 60.0
_COMPLAINT_BYTES = 4096


class _Worker(Child):
    """A child that runs `compiler_worker.serve` in its own session.

    Its standard error is read until it is ready. Later, libraries print parts of guides there.

    Args:
        program: Python's arguments.
        environment: variables; PYTHONPATH is set to this process's search path.
        on_verdict: receives each line of the worker after the first one, "ready".
        on_exit: receives its exit status.
    """

    def __init__(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        on_verdict: Callable[[list[Any]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._on_verdict, self._on_end = on_verdict, on_exit
        self._ready = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `complaint` closes it
        self.has_started = False
        process = subprocess.Popen(
            ["sh", "-c", _SMALL_STACK, "guide-trial", sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                **environment,
                **_ONE_ARENA,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            cwd=os.sep,
            start_new_session=True,
        )
        super().__init__(process, on_line=self._take, on_exit=self._end, name="guides")

    def wait_until_ready(self) -> bool:
        """Wait until the vocabulary is loaded or the worker has exited; return True if loaded."""
        self._ready.wait()
        return self.has_started

    def complaint(self) -> str:
        """Return the end of its standard error; empty once it was ready."""
        with self._errors as file:
            if self.has_started:
                return ""
            file.seek(max(0, file.seek(0, os.SEEK_END) - _COMPLAINT_BYTES))
            return file.read().decode(errors="replace").strip()

    def send(self, question: Sequence[Any]) -> None:
        """Send a line; does nothing once the worker has exited."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def _take(self, line: str) -> None:
        if self._ready.is_set():
            self._on_verdict(json.loads(line))
        self.has_started = True
        self._ready.set()

    def _end(self, status: int) -> None:
        self._on_end(status)
        self._ready.set()

    def _send(self, number: int) -> None:
        """Send a signal to the worker and its forks, which are one process group."""
        os.killpg(self.pid, number)

    def _remove_remains(self) -> None:
        self._send(signal.SIGKILL)


@dataclass(eq=False)
class _Job:
    guide: Guide
    key: bytes
    waiters: list[Future[CheckedGuide]]
    work: int = 0
    is_slow: bool = False

    @property
    def is_unwanted(self) -> bool:
        return all(waiter.cancelled() for waiter in self.waiters)

    def settle(self, outcome: CheckedGuide | Exception) -> None:
        for waiter in self.waiters:
            if not waiter.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, Exception):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)


class GuideValidator:
    """Validates guides in a compiler worker. Thread-safe.

    `start` or the first guide starts the worker. A worker that exits is replaced at once, but at
    most once a minute while there are no guides.

    Two guides run at once, alternating between the smallest and the oldest; if too many wait, the
    largest is refused. So a caller with many large guides does not block others with small ones.
    Each first gets 0.4 s of CPU time. A guide that needs more moves to a second queue, which runs
    one at a time, so quick guides overtake slow ones. The last 256 results are cached, with at most
    two million characters.

    Args:
        program: Python's arguments, which run `compiler_worker.serve`.
        environment: variables of the program; PYTHONPATH is set to this process's search path.
        compile_limit_s: CPU time per guide.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        program: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        compile_limit_s: float = 4.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program = program
        self._environment = environment
        self._limit_s = max(compile_limit_s, _FIRST_LIMIT_S)
        self._changed = threading.Condition()
        self._quick: list[_Job] = []  # the oldest first
        self._slow: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._jobs: dict[bytes, _Job] = {}
        self._known: OrderedDict[bytes, CheckedGuide | str] = OrderedDict()  # or the fault
        self._known_characters = 0
        self._grammars: dict[int, list[str]] = {}  # the parts received so far
        self._worker: _Worker | None = None
        self._renewed_s = -math.inf
        self._clock = clock
        self._failure, self._failed_until_s = "", 0.0
        self._sender: threading.Thread | None = None
        self._last_number = 0
        self._closed = False

    def check(self, guide: Guide) -> Future[CheckedGuide]:
        """Queue a guide and return at once; hashes its text, and reads at most 4,096 characters.

        Returns:
            A future, whose exception is `GuideFault`, `TooManyGuides` or `CheckFailed`. Cancelling
            it drops the guide unless another caller waits for it.
        """
        result: Future[CheckedGuide] = Future()
        if len(guide.text) > MAX_CHARACTERS:
            fault = f"it has {len(guide.text)} characters; at most {MAX_CHARACTERS} are allowed."
            result.set_exception(GuideFault(fault))
            return result
        key = guide.digest()
        with self._changed:
            if key in self._known:
                self._known.move_to_end(key)
                _Job(guide, key, [result]).settle(_outcome(self._known[key]))
            elif (job := self._jobs.get(key)) is not None:
                job.waiters.append(result)
            elif self._closed:
                result.cancel()
            else:
                self._enqueue(_Job(guide, key, [result], estimate_work(guide)))
        return result

    def start(self) -> threading.Thread:
        """Start the program in a thread, which ends once the program is warm or has failed."""

        def start() -> None:
            try:
                worker = self._start()
            except CheckFailed:  # closed meanwhile
                return
            except (OSError, RuntimeError) as error:
                with self._changed:
                    self._has_failed(f"{_UNCHECKED}: {error}.")
                return
            worker.wait_until_ready()

        thread = threading.Thread(target=start, name="guide-start", daemon=True)
        thread.start()
        return thread

    def _has_failed(self, reason: str, complaint: str = "") -> None:
        """Log that the program cannot be started, and do not retry for a minute."""
        self._failure = reason
        self._failed_until_s = self._clock() + _FAILURE_KEPT_S
        logger.error("%s Requests with a guide get 503. %s", reason, complaint)

    def close(self) -> None:
        """Kill the program; running checks fail, queued ones are cancelled."""
        with self._changed:
            self._closed = True
            waiting = [*self._quick, *self._slow]
            self._quick.clear()
            self._slow.clear()
            self._jobs.clear()
            self._changed.notify_all()
            worker = self._worker
        for waiter in (waiter for job in waiting for waiter in job.waiters):
            waiter.cancel()
        if worker is not None:
            worker.kill()
            worker.wait()
        if self._sender is not None:
            self._sender.join()

    def _enqueue(self, job: _Job) -> None:
        """Queue a job; if the queue is full, refuse the job with the most work."""
        for unwanted in [job for job in self._quick if job.is_unwanted]:
            self._remove(unwanted)
        if len(self._quick) >= MAX_WAITING:
            refused = max([job, *reversed(self._quick)], key=lambda job: job.work)
            if refused is not job:
                self._remove(refused)
            refused.settle(_too_many(MAX_WAITING))
            if refused is job:
                return
        self._jobs[job.key] = job
        self._quick.append(job)
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="guide-check", daemon=True)
            self._sender.start()
        self._changed.notify_all()

    def _remove(self, job: _Job) -> None:
        self._quick.remove(job)
        del self._jobs[job.key]

    def _send_all(self) -> None:
        """Send guides to the program and start it as needed; runs in a thread."""
        while (number := self._next()) is not None:
            if self._clock() < self._failed_until_s:
                self._finish(number, GuideVerdict.FAILED, self._failure)
                continue
            try:
                worker = self._start()
            except (OSError, RuntimeError) as error:  # last: no thread available
                self._finish(number, GuideVerdict.FAILED, str(error))
                continue
            worker.wait_until_ready()
            job = self._running.get(number)
            if job is not None:  # None: the program has exited meanwhile
                limit_s = self._limit_s if job.is_slow else _FIRST_LIMIT_S
                worker.send([number, limit_s, *job.guide])

    def _next(self) -> int | None:
        """Wait for a free place and number the next guide; None once closed."""
        with self._changed:
            while not self._closed:
                job = self._pick()
                if job is None:
                    self._changed.wait()
                elif job.is_unwanted:
                    del self._jobs[job.key]
                else:
                    self._last_number += 1
                    self._running[self._last_number] = job
                    return self._last_number
        return None

    def _pick(self) -> _Job | None:
        if len(self._running) >= _AT_ONCE:
            return None
        slow = sum(job.is_slow for job in self._running.values())
        if self._slow and slow < _SLOW_AT_ONCE:
            return self._slow.popleft()
        if not self._quick:
            return None
        oldest_next = self._last_number % 2
        job = self._quick[0] if oldest_next else min(self._quick, key=lambda job: job.work)
        self._quick.remove(job)
        return job

    def _start(self) -> _Worker:
        """Return the program, starting it if it is not running."""
        with self._changed:
            if self._closed:
                raise CheckFailed(_CLOSED)
            if self._worker is None:
                self._worker = _Worker(
                    self._program, self._environment, self._take, self._worker_has_ended
                )
            return self._worker

    def _take(self, line: list[Any]) -> None:
        number, verdict, text, kept_bytes = line
        if verdict == GuideVerdict.PART.value:
            self._grammars.setdefault(number, []).append(text)
        else:
            self._finish(number, GuideVerdict(verdict), text, kept_bytes)

    def _worker_has_ended(self, status: int) -> None:
        with self._changed:
            worker, self._worker = self._worker, None
            running = [*self._running]
            complaint = worker.complaint() if worker else ""
            reason = _ended(status)
            if not self._closed:
                # A signal, such as that of a host out of memory, need not recur.
                if worker is not None and not worker.has_started and status > 0:
                    self._has_failed(reason, complaint)
                else:
                    logger.error("%s Starting another one.", reason)
                    if self._clock() - self._renewed_s > _FAILURE_KEPT_S:
                        self._renewed_s = self._clock()
                        self.start()
        for number in running:
            self._finish(number, GuideVerdict.FAILED, reason)

    def _finish(
        self, number: int, verdict: GuideVerdict, reason: str | None, kept_bytes: int = 0
    ) -> None:
        with self._changed:
            job, parts = self._running.pop(number, None), self._grammars.pop(number, None)
            if job is None:
                return
            self._changed.notify_all()
            if self._closed:
                verdict, reason = GuideVerdict.FAILED, _CLOSED
            if verdict is GuideVerdict.SLOW and not job.is_slow and len(self._slow) < MAX_SLOW:
                job.is_slow = True
                self._slow.append(job)
                return
            self._jobs.pop(job.key, None)
            outcome: CheckedGuide | Exception
            if verdict is GuideVerdict.FAILED:
                outcome = CheckFailed(str(reason))
            elif verdict is GuideVerdict.SLOW and not job.is_slow:
                outcome = _too_many(MAX_SLOW)
            elif verdict is GuideVerdict.SLOW:
                fault = f"it takes more than {self._limit_s:g} s to compile; simplify it."
                outcome = self._remember(job.key, fault)
            else:
                guide = Guide("ebnf_grammar", "".join(parts)) if parts else job.guide
                is_good = verdict is GuideVerdict.GOOD
                known = CheckedGuide(guide, kept_bytes) if is_good else str(reason)
                outcome = self._remember(job.key, known)
                if is_good and reason:
                    logger.info(_UNKEPT, reason.partition(" ")[0])  # not the caller's words
        job.settle(outcome)

    def _remember(self, key: bytes, known: CheckedGuide | str) -> CheckedGuide | GuideFault:
        self._known[key] = known
        self._known_characters += _characters(known)
        while (
            len(self._known) > _REMEMBERED_GUIDES or self._known_characters > _REMEMBERED_CHARACTERS
        ):
            self._known_characters -= _characters(self._known.popitem(last=False)[1])
        return _outcome(known)


def _ended(status: int | None) -> str:
    return f"{_UNCHECKED}: the compiler worker ended ({status})."


def _characters(known: CheckedGuide | str) -> int:
    return len(known if isinstance(known, str) else known.guide.text)


def _outcome(known: CheckedGuide | str) -> CheckedGuide | GuideFault:
    return GuideFault(known) if isinstance(known, str) else known


def _too_many(limit: int) -> TooManyGuides:
    # "maximum queue size" maps to 429 where the message returns through Triton.
    return TooManyGuides(
        f"too many guides wait for their check (maximum queue size {limit}); try again shortly."
    )


def guide_check_for(
    engine: Engine,
    tokenizer_info: Path | None,
    environment: Mapping[str, str],
    compile_limit_s: float,
) -> GuideValidator | None:
    """Build the validator for an engine without starting it; None without guided decoding.

    Args:
        tokenizer_info: TensorRT-LLM's vocabulary file; None without guided decoding.
        environment: environment of the worker process.
        compile_limit_s: CPU time per guide.
    """
    program = engine.guide_check(tokenizer_info)
    if program is None:
        return None
    if tokenizer_info is not None and importlib.util.find_spec("xgrammar") is None:
        logger.warning(
            "XGrammar's Python package is not installed: only length, depth and repetitions of "
            "guides are checked"
        )
    return GuideValidator(program, environment, compile_limit_s)
