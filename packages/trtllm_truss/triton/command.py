"""Argument vector and environment of the Triton server; pure functions.

One segment per rank: a single-GPU server is the segment of rank 0, and an MPI job is
``mpirun -n 1 <segment 0> : -n 1 <segment 1> : …``, as NVIDIA's launch script builds it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.triton.contract import MODEL_NAME
from trtllm_truss.triton.installation import TritonInstallation
from trtllm_truss.triton.keeper import RUN_MARKER
from trtllm_truss.triton.ports import LOOPBACK, Ports

_SECRET_NAMES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
_SECRET_PREFIXES = ("TRUSS_SECRET_", "AWS_")


@dataclass(frozen=True, slots=True)
class Launch:
    """What belongs to one start of the server and to no other.

    Attributes:
        run_id: marks every process of this run in its environment, and is the server's name.
        ports: of rank 0; the other ranks are given the same and never open them.
        shm_prefix: begins the name of every shared-memory segment of this run.
    """

    run_id: str
    ports: Ports
    shm_prefix: str


def server_command(
    executable: Path,
    launch: Launch,
    *,
    repository: Path,
    backends: Path,
    exit_timeout_s: int = 5,
    log_verbose: int = 0,
    rank: int = 0,
) -> list[str]:
    """Builds one rank's command line.

    Rank 0 loads the whole repository and cannot be told to load or unload anything later; a rank
    above 0 loads the engine alone.

    Args:
        executable: ``tritonserver``.
        launch: what is unique to this start.
        repository: the rendered model repository.
        backends: the one folder in which Triton looks for backends.
        exit_timeout_s: how long a stopping server waits for requests in flight.
        log_verbose: Triton's verbosity, 0 to 3.
        rank: MPI rank.
    """
    ports = launch.ports
    command = [
        str(executable),
        f"--id={launch.run_id}",
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--http-address={LOOPBACK}",
        f"--http-port={ports.http}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={launch.shm_prefix}{rank}_",
        "--strict-readiness=true",
        f"--exit-timeout-secs={exit_timeout_s}",
        f"--log-verbose={log_verbose}",
    ]
    if rank > 0:
        command += ["--model-control-mode=explicit", f"--load-model={MODEL_NAME}"]
    return command


def server_environment(
    parent: Mapping[str, str], installation: TritonInstallation
) -> dict[str, str]:
    """Builds the server's environment from ours: without secrets, with what the server needs.

    The engine is on disk before Triton starts, so nothing in the child needs a token.
    """
    environment = {
        name: value
        for name, value in parent.items()
        if name not in _SECRET_NAMES and not name.startswith(_SECRET_PREFIXES)
    }
    if installation.program_path is not None:
        _prepend(environment, "PATH", [installation.program_path])
    _prepend(environment, "LD_LIBRARY_PATH", installation.library_paths)
    _prepend(environment, "PYTHONPATH", installation.python_paths)
    return environment


def marked(environment: Mapping[str, str], run_id: str) -> dict[str, str]:
    """Adds the mark by which every process of one run is found again, whoever its parent is."""
    return {**environment, RUN_MARKER: run_id}


def _prepend(environment: dict[str, str], name: str, folders: Sequence[Path]) -> None:
    parts = [*map(str, folders), *filter(None, environment.get(name, "").split(os.pathsep))]
    if parts:
        environment[name] = os.pathsep.join(dict.fromkeys(parts))
