"""The compiler worker as a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trtllm_truss.guides.guide import CheckFailed

_SMALL_STACK = 'ulimit -s 4096; exec "$@"'  # KiB; threads of the engine have 8192
_ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}  # each arena reserves 64 MiB of address space


class WorkerProcess:
    """A child that runs `compiler_worker.serve` in its own session.

    Args:
        program: Python's arguments.
        environment: variables; PYTHONPATH is set to this process's search path.
    """

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        python_path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            ["sh", "-c", _SMALL_STACK, "guide-trial", sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries repeat parts of guides
            env={**environment, **_ONE_ARENA, "PYTHONPATH": python_path},
            cwd=os.sep,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id, session id and process group of the program."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the vocabulary is loaded.

        Raises:
            CheckFailed: the program ended.
        """
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise self.ended()

    def send(self, question: Sequence[Any]) -> None:
        """Send a line; does nothing once the program has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def answers(self) -> Iterator[list[Any]]:
        """Yield lines until the program ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def ended(self) -> CheckFailed:
        """Reap the program and build the error that reports its end."""
        self.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        status = self._process.returncode
        return CheckFailed(f"Guides cannot be checked: the compiler worker ended ({status}).")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
