"""The processes in which the LLM runs its engine."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

from trtllm_truss.processes.process_guard import (
    is_alive,
    living_processes,
    name_of,
    read_proc,
)

_MARK = b"mpi4py"
_DAEMONS = {"orted", "prted", "prte"}


class _Process(NamedTuple):
    name: str
    started: int
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
        processes = living_processes()
        children = defaultdict(list)
        for pid, (parent, _) in processes.items():
            children[parent].append(pid)
        below = [*children[os.getpid()]]
        for pid in below:
            is_worker, name = _MARK in read_proc(pid, "cmdline"), name_of(pid)
            if is_worker or name in _DAEMONS:
                self._known.setdefault(pid, _Process(name, processes[pid][1]))
            if not is_worker:  # a child looks like its worker until it executes a program
                below += children[pid]

    @property
    def pids(self) -> list[int]:
        return [*self._known]

    def dead(self) -> list[str]:
        """Return descriptions of dead workers."""
        return [
            f"{process.name} ({pid})"
            for pid, process in self._known.items()
            if not is_alive(pid, process.started)
        ]

    def kill(self) -> None:
        for pid, process in self._known.items():
            if is_alive(pid, process.started):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
