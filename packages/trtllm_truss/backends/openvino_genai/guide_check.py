"""Finds out whether the engine can follow a guide, without asking the engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from trtllm_truss.backends.openvino_genai import guide_trial
from trtllm_truss.backends.openvino_genai.guides import TEXT, Guide
from trtllm_truss.backends.openvino_genai.refusal import Refusal

_REMEMBERED_GUIDES = 256
_REASON_CHARACTERS = 300
_SMALL_STACK = 'ulimit -s 4096; exec "$@"'  # KiB; see guide_trial
_SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+: (Check failed: .*? is false: )?")


class GuideCheck:
    """Checks guides one after another in `guide_trial`, which runs from the first one on.

    Args:
        folder: the engine folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._thread = ThreadPoolExecutor(1, "guide-check")
        self._program: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._fault = lru_cache(_REMEMBERED_GUIDES)(self._find_fault)

    def check(self, guide: Guide) -> Future[None]:
        """Begin to check a guide.

        Returns:
            What holds nothing once the engine may have the guide, a `Refusal` if it may not, and
            another exception if that cannot be known.
        """
        return self._thread.submit(self._check, guide)

    def close(self) -> None:
        """End the program, and with it the check that it is at."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._program is not None:
            self._program.kill()
        self._thread.shutdown()
        if self._program is not None:
            _buried(self._program)

    def _check(self, guide: Guide) -> None:
        fault = self._fault(guide)
        if fault is not None:
            raise Refusal(f"{TEXT} cannot be followed: {fault}")

    def _find_fault(self, guide: Guide) -> str | None:
        program = self._program or self._start()
        answer = _ask(program, json.dumps(guide))
        if answer:
            reason = json.loads(answer)
            return None if reason is None else _brief(reason)
        self._program = None
        if _buried(program) == -signal.SIGPROF:
            return f"it takes more than {guide_trial.CPU_LIMIT_S:g} s to compile; simplify it."
        return "it is too large or too deeply nested; simplify it."

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program and wait until it is ready.

        Raises:
            RuntimeError: it ended before it was.
        """
        program = [sys.executable, "-m", guide_trial.__name__, str(self._folder)]
        self._program = subprocess.Popen(
            ["sh", "-c", _SMALL_STACK, "guide-trial", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries repeat parts of guides
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=os.sep,
        )
        if self._closed:
            self._program.kill()
        assert self._program.stdout is not None
        if not self._program.stdout.readline():
            status, self._program = _buried(self._program), None
            raise RuntimeError(f"Guides cannot be checked: the program for it ended ({status}).")
        return self._program


def _ask(program: subprocess.Popen[bytes], question: str) -> bytes:
    """Send a line and read one; it is empty if the program has ended."""
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        program.stdin.write(question.encode() + b"\n")
        program.stdin.flush()
    except BrokenPipeError:
        return b""
    return program.stdout.readline()


def _buried(program: subprocess.Popen[bytes]) -> int:
    """Close the pipes of a program that has ended or is about to, and return its status."""
    program.communicate()
    return program.returncode


def _brief(reason: str) -> str:
    """The first line of XGrammar's words, without the place in its source."""
    return _SOURCE_PLACE.sub("", reason.strip()).partition("\n")[0][:_REASON_CHARACTERS]
