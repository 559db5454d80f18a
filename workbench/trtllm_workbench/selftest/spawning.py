"""Check that MPI spawns workers here, as TensorRT-LLM's LLM API does."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_truss.processes.child import GuardedChild, child_environment
from trtllm_truss.triton.server.mpi import mpi_environment, spawning_environment, with_one_interface
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.selftest.served_model import Failed, Passed, Skipped

LIMIT_S = 20.0
_GRACE_S = 0.5
_DAEMONS = ("prte", "orted")
"""Daemons of Open MPI 5 and 4. Without one on `PATH` a spawn hangs (seen with Open MPI 5.0.11)."""

_NO_MPI4PY = "No module named 'mpi4py'"
_SPAWNED = "spawned by "
_PROGRAM = f"""
import sys
from mpi4py import MPI, __version__
from mpi4py.futures import MPIPoolExecutor

workers = int(sys.argv[1])
with MPIPoolExecutor(max_workers=workers, path=sys.path) as pool:
    assert list(pool.map(abs, range(workers))) == list(range(workers))
version = MPI.Get_library_version().split(",")[0]
print(f"\\n{_SPAWNED}{{version}}, mpi4py {{__version__}}", flush=True)
"""
"""The program that spawns workers.

Source: `MpiPoolSession` in tensorrt_llm/llmapi/mpi_session.py of 1.2.1. It runs as `python -c`,
because the workers would import a main file.
"""


def spawn_workers(
    runtime: TensorRtLlm, workers: int, folder: Path, limit_s: float | None = None
) -> Passed:
    """Spawn workers in the environment of a checkpoint's server, and stop them.

    Args:
        runtime: TensorRT-LLM, whose Python spawns; without it this Python, or ``python3`` on
            ``PATH``.
        folder: for MPI's files.
        limit_s: time limit of a spawn; None for `LIMIT_S`.

    Raises:
        Skipped: mpi4py is not installed, or MPI fails where TensorRT-LLM is not installed.
        Failed: MPI spawned no workers in time.
    """
    count = f"{workers} worker{'s' if workers > 1 else ''}"
    for python in _pythons(runtime):
        started = time.monotonic()
        environment = _environment(folder)
        status, output = _run([python, "-c", _PROGRAM, str(workers)], environment, folder, limit_s)
        seconds = round(time.monotonic() - started, 1)
        versions = [line.removeprefix(_SPAWNED) for line in output if line.startswith(_SPAWNED)]
        if status == 0 and versions:
            detail = f"spawned {count} in {seconds:.1f} s ({versions[-1].strip()})"
            return Passed(detail, {"seconds": seconds})
        if status is not None and _NO_MPI4PY in "\n".join(output):
            continue
        remedy = "check the OMPI_, PRTE_ and UCX_ variables of the environment"
        if not any(shutil.which(name, path=environment.get("PATH")) for name in _DAEMONS):
            remedy = f"put the folder of Open MPI's {' or '.join(_DAEMONS)} on PATH"
        limit = f"within {LIMIT_S:.0f} s" if status is None else "at all"
        problem = f"cannot spawn: {count} did not start {limit}; {remedy}"
        if runtime.installed:
            raise Failed(problem)
        raise Skipped(f"{problem}; only a checkpoint in the LLM API needs it")
    raise Skipped("mpi4py is not installed in the Python of TensorRT-LLM, or in this one")


def _run(
    command: list[str], environment: Mapping[str, str], folder: Path, limit_s: float | None
) -> tuple[int | None, list[str]]:
    """Return a program's exit status, None after `limit_s`, with its output.

    Kill everything it started.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    lines: list[str] = []
    child = GuardedChild(
        command,
        environment,
        run_id=f"truss-spawn-{secrets.token_hex(8)}",
        orphan_grace_s=_GRACE_S,
        cwd=folder,
        on_line=lines.append,
        name="spawn",
    )
    try:
        status = child.wait(limit_s)
    finally:
        child.end(0)
    if status is not None:
        child.wait_for_output(limit_s)  # its reader may lag behind on a busy machine
    return status, lines


def _pythons(runtime: TensorRtLlm) -> list[str]:
    if runtime.python is not None:
        return [str(runtime.python)]
    on_path = shutil.which("python3")
    return list(dict.fromkeys([sys.executable, *([on_path] if on_path else [])]))


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of a checkpoint's server (`triton.server.command`)."""
    (port,) = unused_ports(1)
    as_root = os.geteuid() == 0
    variables = {**spawning_environment(as_root=as_root), **child_environment(os.environ)}
    return {**with_one_interface(variables), **mpi_environment(folder, port)}
