"""The processes in which the LLM runs its engine."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_MARK = b"mpi4py"
_DAEMONS = {"orted", "prted", "prte"}


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    started: str
    """Distinguishes processes that had the same id."""


class Workers:
    """Workers below this process: MPI's daemon, and what it starts.

    Up to TensorRT-LLM 1.2 nothing is raised when a worker dies, and a wait for its next token never
    returns. A worker that was found and is gone, or a zombie, is dead.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}

    def find(self) -> None:
        """Look for workers that have started since the last call."""
        processes = {found.pid: found for found in map(_read, _pids()) if found is not None}
        children = defaultdict(list)
        for process in processes.values():
            children[process.parent].append(process)
        below = [*children[os.getpid()]]
        for process in below:
            is_worker = _has_mark(process)
            if is_worker or process.name in _DAEMONS:
                self._known.setdefault(process.pid, process)
            if not is_worker:  # a child looks like its worker until it executes a program
                below += children[process.pid]

    @property
    def pids(self) -> list[int]:
        return [*self._known]

    def dead(self) -> list[str]:
        """Return descriptions of dead workers."""
        return [f"{p.name} ({p.pid})" for p in self._known.values() if not _is_alive(p)]

    def kill(self) -> None:
        for process in self._known.values():
            if _is_alive(process):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


def _read(pid: int) -> _Process | None:
    """Return a process; None if it is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    return _Process(pid, int(fields[1]), head.partition("(")[2], fields[19])


def _is_alive(process: _Process) -> bool:
    found = _read(process.pid)
    return found is not None and found.started == process.started


def _has_mark(process: _Process) -> bool:
    try:
        return _MARK in (_PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return False
