"""Spawn workers by MPI, as TensorRT-LLM's LLM API does, and report the outcome.

A program runs with a time limit and leaves none of its processes behind.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_truss.processes.child import GuardedChild, child_environment
from trtllm_truss.triton.server.command import (
    mpi_environment,
    spawning_environment,
    unused_ports,
    with_one_interface,
)

_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Probed:
    """The end of a program.

    Attributes:
        status: its exit status; None if its time was over.
        output: standard output and standard error.
    """

    status: int | None
    output: str

    @property
    def found(self) -> Mapping[str, Any] | None:
        """The last line of JSON in the output; None if there is none or the program failed."""
        for line in reversed(self.output.splitlines() if self.status == 0 else []):
            if line.startswith("{"):
                with suppress(ValueError):  # a library may log such lines
                    content: Mapping[str, Any] = json.loads(line)
                    return content
        return None


def probe(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, limit_s: float
) -> Probed:
    """Run a program in a folder behind a guard; end it and all that it started after `limit_s`."""
    lines: list[str] = []
    child = GuardedChild(
        command,
        environment,
        run_id=f"truss-probe-{secrets.token_hex(8)}",
        orphan_grace_s=_GRACE_S,
        cwd=folder,
        on_line=lines.append,
        name="probe",
    )
    try:
        status = child.wait(limit_s)
    finally:
        child.end(0)
    if status is not None:
        child.wait_for_output(limit_s)  # its reader may lag behind on a busy machine
    return Probed(status, "\n".join(lines))


LIMIT_S = 20.0

_PROGRAM = Path(__file__).with_name("spawn_program.py")
_OPEN_MPI = re.compile(r"Open MPI v(\d[\w.]*)")
_DAEMONS = ("prte", "orted")
"""Of Open MPI 5 and 4."""

_NO_MPI4PY = "No module named 'mpi4py'"

Outcome = Literal["works", "fails", "hangs", "not run"]


@dataclass(frozen=True, slots=True)
class Spawned:
    """The outcome of a spawn.

    Attributes:
        outcome: "not run" without mpi4py.
        workers: so many were asked for.
        seconds: until all had answered, or until the end.
        slots: of this machine, as MPI counts them; None if no worker told.
        cores: usable by each worker.
        open_mpi: its version; None if unknown, or if it is another MPI.
        mpi4py: its version.
        has_daemon: Open MPI's daemon, which starts workers, is on `PATH`. Without it a spawn hangs
            (seen with Open MPI 5.0.11).
    """

    outcome: Outcome
    workers: int
    seconds: float
    slots: int | None = None
    cores: Sequence[int] = ()
    open_mpi: str | None = None
    mpi4py: str | None = None
    has_daemon: bool = True

    @property
    def sentence(self) -> str:
        """The outcome, for people."""
        count = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        if self.outcome == "works":
            versions = f"Open MPI {self.open_mpi or 'unknown'}, mpi4py {self.mpi4py}"
            return f"spawned {count} in {self.seconds:.1f} s; {self.slots} slots ({versions})"
        if self.outcome == "not run":
            return "mpi4py is not installed in the Python of TensorRT-LLM, or in this one"
        limit = f"within {LIMIT_S:.0f} s" if self.outcome == "hangs" else "at all"
        remedy = "look at OMPI_, PRTE_ and UCX_ variables of the environment"
        if not self.has_daemon:
            remedy = f"put the folder of Open MPI's {' or '.join(_DAEMONS)} on PATH"
        return f"cannot spawn: {count} did not start {limit}; {remedy}"


def spawn(runtime: TensorRtLlm, workers: int, folder: Path, limit_s: float = LIMIT_S) -> Spawned:
    """Spawn workers in the environment of a checkpoint's server, and end them.

    Args:
        runtime: TensorRT-LLM, whose Python spawns; without it this one or ``python3`` on ``PATH``.
        workers: as many as the model has ranks.
        folder: for MPI's files.
        limit_s: a spawn that takes longer hangs.
    """
    program = _PROGRAM.read_text(encoding="utf-8")
    found = Spawned("not run", workers, 0.0)
    for python in _pythons(runtime):
        started = time.monotonic()
        environment = _environment(os.environ, folder)
        has_daemon = any(shutil.which(each, path=environment.get("PATH")) for each in _DAEMONS)
        ended = probe([python, "-c", program, str(workers)], environment, folder, limit_s)
        seconds = round(time.monotonic() - started, 1)
        if content := ended.found:
            version = _OPEN_MPI.search(str(content["mpi"]))
            return Spawned(
                "works",
                workers,
                seconds,
                slots=content["slots"],
                cores=content["cores"],
                open_mpi=version[1] if version else None,
                mpi4py=content["mpi4py"],
            )
        if ended.status is None:
            return Spawned("hangs", workers, seconds, has_daemon=has_daemon)
        if _NO_MPI4PY not in ended.output:
            found = Spawned("fails", workers, seconds, has_daemon=has_daemon)
            break
    return found


def _pythons(runtime: TensorRtLlm) -> list[str]:
    if runtime.python is not None:
        return [str(runtime.python)]
    on_path = shutil.which("python3")
    return list(dict.fromkeys([sys.executable, *([on_path] if on_path else [])]))


def _environment(parent: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of a checkpoint's server (`triton.server.command`)."""
    (port,) = unused_ports(1)
    as_root = os.geteuid() == 0
    variables = {**spawning_environment(as_root=as_root), **child_environment(parent)}
    return {**with_one_interface(variables), **mpi_environment(folder, port)}
