"""Argument vector and environment of the Triton server, or of a job with one process per GPU.

One segment per rank: a single-GPU server is the segment of rank 0. The ranks communicate through
MPI, so an engine for N GPUs is a job of N servers: ``mpirun -n 1 <segment 0> : -n 1 <segment 1> :
…``, as NVIDIA's ``launch_triton_server.py`` builds it; the environment isolates the job.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.engine import RankLauncher
from trtllm_truss.errors import TritonError
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.machine.describe import usable_cpus
from trtllm_truss.machine.runtime import TritonInstallation, find_mpirun
from trtllm_truss.processes.child import RUN_PREFIX, child_environment, make_folder
from trtllm_truss.processes.mpi_job import job_variables
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.triton.server import GRPC_ADDRESS_VARIABLE
from trtllm_truss.triton.server.mpi import (
    END_DEFAULTS,
    ONE_HOST_DEFAULTS,
    connects_by_tcp,
    home,
    mpi_command,
    mpi_environment,
    needs_oversubscription,
    spawning_environment,
    with_one_interface,
)
from trtllm_truss.triton.server.ports import Ports, free_ports

_CLOSED_TO_ALL = "shared-memory,trace,logging:closed:to:all=x"
"""APIs that Triton only opens to clients that send the header `closed:to:all`.

No client can: a colon terminates a header's name in HTTP/1, and gRPC resets a call with a colon in
a header's name. A secret instead would be visible in the argument vector to all users.
"""
SITE_VARIABLE = "TRTLLM_TRUSS_SITE"
"""Variable with the packages of this process, for Python models that run in another Python.

They come last, so TensorRT-LLM's packages in its virtual environment take precedence.
"""
_EXIT_TIMEOUT_S = 5  # time that a stopping server gives requests in flight
_ORCHESTRATOR = "TRTLLM_ORCHESTRATOR"
_NO_USAGE_STATISTICS = {
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}
"""TensorRT-LLM 1.3 reports its use to NVIDIA unless one of these is set."""
_HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""Makes glibc 2.35 and later request huge pages for large allocations."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Values unique to one start of the server.

    Attributes:
        run_id: marks every process of this run in its environment; also the server's name.
        ports: of rank 0; other ranks receive the same ones and never open them.
        shm_prefix: of the name of every shared-memory segment of this run.
        folder: for temporary files; removed after the run.
    """

    run_id: str
    ports: Ports
    shm_prefix: str
    folder: Path


def new_launch(http_port: int | None = None, grpc_port: int | None = None) -> Launch:
    """Choose names and ports, and create the folder.

    Args:
        http_port: of Triton; 0 for any free one, None to keep its HTTP endpoint closed.
        grpc_port: of Triton; None for any free one.

    Raises:
        OSError: the machine has no free port, or no place for temporary files.
        RuntimeError: this process is exiting.
    """
    run_id = f"{os.getpid()}_{secrets.token_hex(4)}"
    prefix = f"{RUN_PREFIX}{run_id}_"
    ports = free_ports(http_port, grpc_port)  # may fail, so before the folder
    return Launch(run_id, ports, prefix, make_folder(prefix))


def launcher(
    installation: TritonInstallation,
    *,
    repository: Path,
    backends: Path,
    world_size: int = 1,
    environ: Mapping[str, str] | None = None,
    ranks: RankLauncher | None = None,
    rank: int | None = None,
) -> Callable[[Launch], list[str]]:
    """Return a function that builds the command line of each start, for :class:`ServerProcess`.

    A single rank runs without ``mpirun``, and so does `rank` of a job that is already running. The
    arguments are those of `server_command`; `ranks` launches the rank of a job.

    Raises:
        TritonError: there are several ranks and no ``mpirun``, or orchestrator mode is requested.
    """
    environ = os.environ if environ is None else environ
    if environ.get(_ORCHESTRATOR, "0") not in ("", "0"):
        raise TritonError(
            f"{_ORCHESTRATOR}={environ[_ORCHESTRATOR]} is set, but orchestrator mode is not "
            "offered: its workers outlive a killed server. Unset it; leader mode runs one rank "
            "per GPU."
        )
    mpirun = find_mpirun(environ) if world_size > 1 and rank is None else None

    def segment(launch: Launch, number: int) -> list[str]:
        own = server_command(
            installation.executable,
            launch,
            repository=repository,
            backends=backends,
            rank=number,
        )
        return own if ranks is None else ranks.rank(own, number, launch.folder)

    def command(launch: Launch) -> list[str]:
        if mpirun is None:
            own = segment(launch, rank or 0)
            return own if ranks is None else ranks.job(own)
        return mpi_command(
            mpirun,
            [segment(launch, number) for number in range(world_size)],
            as_root=os.geteuid() == 0,
            oversubscribe=needs_oversubscription(world_size, usable_cpus()),
        )

    return command


def server_command(
    executable: Path,
    launch: Launch,
    *,
    repository: Path,
    backends: Path,
    rank: int = 0,
) -> list[str]:
    """Build one rank's command line.

    Rank 0 loads the whole repository and accepts no later load or unload; a rank above 0 loads the
    engine alone.

    Args:
        repository: the rendered model repository.
        backends: the one folder in which Triton looks for backends.
    """
    ports = launch.ports
    command = [
        str(executable),
        f"--id={launch.run_id}",
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--grpc-restricted-protocol={_CLOSED_TO_ALL}",
        *_http_options(ports.http),
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={launch.shm_prefix}{rank}_",
        "--strict-readiness=true",
        f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
        "--log-verbose=0",
    ]
    if rank > 0:
        command += ["--model-control-mode=explicit", f"--load-model={MODEL_NAME}"]
    return command


def _http_options(port: int | None) -> list[str]:
    if port is None:
        return ["--allow-http=false"]
    return [
        f"--http-address={LOOPBACK}",
        f"--http-port={port}",
        f"--http-restricted-api={_CLOSED_TO_ALL}",
    ]


def server_environment(
    parent: Mapping[str, str],
    installation: TritonInstallation,
    passed: Collection[str] = (),
    *,
    python: Path | None = None,
    library_paths: Sequence[Path] = (),
    huge_pages: bool = False,
    spawns: bool = False,
) -> dict[str, str]:
    """Build the server's environment from ours: secrets removed, the server's paths added.

    The engine is on disk before Triton starts, so the child needs no token.

    Args:
        passed: names of further variables to pass to the server.
        python: runs Python models; default: the Python of `installation`.
        library_paths: searched before all others, such as the image's own CUDA driver.
        huge_pages: allocate weights in huge pages if the kernel supports them. A CPU reads all
            weights for each token; 4 KiB pages cost up to 8 % of that time.
        spawns: the engine starts processes by MPI; the variables of `parent` take precedence.
    """
    environment = child_environment(parent, passed)
    program_path = installation.program_path if python is None else python.parent
    if program_path is not None and not _finds_python(environment, program_path):
        _prepend(environment, "PATH", [program_path])
    _prepend(environment, "LD_LIBRARY_PATH", [*library_paths, *installation.library_paths])
    _prepend(environment, "PYTHONPATH", installation.python_paths)
    environment[SITE_VARIABLE] = os.pathsep.join(map(str, installation.site_paths))
    if huge_pages:
        environment.setdefault(*_HUGE_PAGES)
    if spawns:
        environment = {**spawning_environment(as_root=os.geteuid() == 0), **environment}
    return environment


def launch_environment(environment: Mapping[str, str], launch: Launch) -> dict[str, str]:
    """Complete the server's environment for one start.

    Args:
        environment: the result of `server_environment`.
    """
    defaults = {
        **({} if connects_by_tcp(environment) else ONE_HOST_DEFAULTS),
        **END_DEFAULTS,
    }
    return {
        # otherwise the launcher sets the options
        **({} if job_variables(environment) else defaults),
        "HOME": home(launch.folder),
        **with_one_interface(environment),
        **_NO_USAGE_STATISTICS,
        **mpi_environment(launch.folder, launch.ports.mpi),
        GRPC_ADDRESS_VARIABLE: f"{LOOPBACK}:{launch.ports.grpc}",
    }


def _finds_python(environment: Mapping[str, str], folder: Path) -> bool:
    """Return True if a folder's ``python3`` is already the first on ``PATH``."""
    found = shutil.which("python3", path=environment.get("PATH", ""))
    return found is not None and Path(found).parent == folder


def _prepend(environment: dict[str, str], name: str, folders: Sequence[Path]) -> None:
    parts = [*map(str, folders), *filter(None, environment.get(name, "").split(os.pathsep))]
    if parts:
        environment[name] = os.pathsep.join(dict.fromkeys(parts))
