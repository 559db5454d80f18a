"""Start a command behind a `process_guard`, which ends it when this process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_truss.processes import process_guard
from trtllm_truss.processes.leftovers import lock_folder, lock_segments


def spawn_guarded(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    run_id: str,
    orphan_grace_s: float,
    shm_prefix: str = "",
    folder: Path | None = None,
    cwd: Path | None = None,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start the guard of a command; its standard input takes orders, its output is the command's.

    Args:
        command: the argument vector.
        environment: of the command; the mark of the run is added.
        run_id: marks every process of the run in its environment.
        orphan_grace_s: time to end that the command gets once this process has died.
        shm_prefix: of the names of the run's shared-memory segments, which the guard removes.
        folder: the run's folder, which the guard removes.
        cwd: of the command.
        umask: of the command; -1 for ours.

    Raises:
        OSError: no process can be started.
    """
    names = (run_id, shm_prefix, str(folder or ""), str(orphan_grace_s))
    interpreter = (sys.executable, "-I", "-S")
    held = (
        lock_folder(folder, run_id) if folder else None,
        lock_segments(shm_prefix, run_id) if shm_prefix else None,
    )
    locks = [lock for lock in held if lock is not None]
    try:
        return subprocess.Popen(
            [*interpreter, str(Path(process_guard.__file__)), str(os.getpid()), *names, *command],
            env={**environment, process_guard.RUN_MARKER: run_id},
            cwd=cwd,
            umask=umask,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=locks,
        )
    finally:
        for lock in locks:  # the guard holds them now
            os.close(lock)


def kill_guard(child: subprocess.Popen[bytes]) -> None:
    """Kill a guard and with it its command, and wait until it is gone."""
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
