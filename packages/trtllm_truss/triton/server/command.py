"""Argument vector and environment of the Triton server, or of a job with one process per GPU.

One segment per rank: a single-GPU server is the segment of rank 0. The ranks communicate through
MPI, so an engine for N GPUs is a job of N servers: ``mpirun -n 1 <segment 0> : -n 1 <segment 1> :
…``, as NVIDIA's ``launch_triton_server.py`` builds it; the environment isolates the job. Only
options and variables are used that Open MPI 4 (in NVIDIA's images up to 2025) and Open MPI 5 read
alike, or that one of them ignores.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from trtllm_truss.engines.engine import RankLauncher
from trtllm_truss.errors import TritonError
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.machine.describe import usable_cpus
from trtllm_truss.machine.runtime import TritonInstallation, find_mpirun
from trtllm_truss.mpi_job import job_variables
from trtllm_truss.processes.child import RUN_PREFIX, child_environment, make_folder
from trtllm_truss.processes.process_guard import (
    listening_sockets,
    marked_processes,
    open_files,
)
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.triton.server import GRPC_ADDRESS_VARIABLE

_SESSION_VARIABLES = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")
_BACKING_VARIABLES = (
    *("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory"),
    *("OMPI_MCA_osc_sm_backing_directory", "OMPI_MCA_osc_rdma_backing_directory"),
)
_CONTROL_PORT_VARIABLES = tuple(
    f"{prefix}_MCA_oob_tcp_static_ipv{version}_ports"
    for prefix in ("PRTE", "OMPI")
    for version in (4, 6)
)
ONE_HOST_DEFAULTS = {"OMPI_MCA_btl": "^tcp"}
"""Keep ranks from listening for other hosts on every address; the environment may override it.

They are one MPI job, and share memory.
"""
END_DEFAULTS = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}
"""End a job at once when a rank dies; the environment may override it.

Open MPI 4 waits a second for the other ranks, twice: with 4.1.8 a job outlives its rank 1 by 2.0 s,
and with this by 0.01 s (measured). Open MPI 5 has no such wait.
"""
_SHARING_CORES = ("--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1")
"""Let ranks share cores, and give them up while they wait.

A rank above 0 waits in a busy loop: on a core that another program wants, it took 0.55 s of 5 with
Open MPI 5.0.11 and 0.77 s with 4.1.8, and with this 0.13 and 0.07 s (measured).
"""
_TCP_INTERFACE, _EXCLUDED = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"
_SPAWNING = {
    # A spawned worker is another MPI job, and Open MPI shares memory within a job only
    # (opal/mca/btl/sm/btl_sm_module.c, 4.1 and 5.0); NVIDIA/TensorRT issue 4501 advises the same.
    _TCP_INTERFACE: "lo",
    # Open MPI 4 counts one slot per core and one for the parent: without this two workers on two
    # cores end in MPI_ERR_SPAWN (measured with 4.1.8; NVIDIA/TensorRT-LLM issues 5495 and 5854).
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    # Open MPI 4 binds a single worker, with its threads, to one core (measured with 4.1.8). Source:
    # docs/source/deployment-guide/configuring-cpu-affinity.md of TensorRT-LLM 1.2.1.
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_inherit": "1",
}
_SPAWNING_AS_ROOT = ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Let Open MPI 5 start its daemon as root, where no `mpirun` has an option for it; 4 asks nobody.

Without them a spawn ends in MPI_ERR_UNKNOWN (measured with 5.0.11).
"""

_CLOSING_LIMIT_S = 5.0
_CLOSING_TICK_S = 0.02


def mpi_command(
    mpirun: Path,
    segments: Sequence[Sequence[str]],
    *,
    as_root: bool,
    oversubscribe: bool,
) -> list[str]:
    """Join one command line per rank into one job on this host.

    No rank is bound to a core: Triton has many threads, and ranks above 0 wait in a busy loop. Open
    MPI refuses root and more ranks than cores unless `as_root` and `oversubscribe` are set.

    Open MPI 4 takes the folder of an absolute `mpirun` for ``--prefix`` and puts it first on the
    ranks' ``PATH``, before the Python that runs the backends: ``/usr/bin`` with Debian's 4.1.4
    (measured). Open MPI 5.0.11 does not.
    """
    command = [str(mpirun), "--noprefix"]
    if as_root:
        command.append("--allow-run-as-root")
    if oversubscribe:
        command += _SHARING_CORES
    command += ["--bind-to", "none"]
    for rank, segment in enumerate(segments):
        command += [*([":"] if rank else []), "-n", "1", *segment]
    return command


def needs_oversubscription(ranks: int, cpus: int) -> bool:
    """Return True if ranks may outnumber cores; Open MPI counts two threads as one core."""
    return 2 * ranks > cpus


def mpi_environment(folder: Path, control_port: int) -> dict[str, str]:
    """Keep MPI's files and shared memory in the folder of one start.

    A killed job leaves its session's folder and its memory behind, under names that do not identify
    us and that a second job of the same user may share. A server of one rank starts MPI too,
    without ``mpirun``.

    Args:
        control_port: of ``mpirun``; one number for IPv4 and IPv6, so that only one of the two finds
            it free.
    """
    variables = ("TMPDIR", *_SESSION_VARIABLES, *_BACKING_VARIABLES)
    return {
        **dict.fromkeys(variables, str(folder)),
        **dict.fromkeys(_CONTROL_PORT_VARIABLES, str(control_port)),
    }


def home(folder: Path) -> str:
    """Return `HOME` where it is unset: the user's, or a folder for a user without one.

    Open MPI 5 starts nothing without it, neither a job nor a single rank (measured with 5.0.11:
    "Unable to get the user home directory"); 4 needs none.
    """
    try:
        return str(Path.home())
    except RuntimeError:
        return str(folder)


def spawning_environment(*, as_root: bool) -> dict[str, str]:
    """Let a server without ``mpirun`` start workers by ``MPI_Comm_spawn``, on this host.

    TensorRT-LLM's LLM API does, for one GPU too. Server and workers then listen on every address:
    Open MPI has no option for that (`docs/security.md`), and connects over the named interface
    only. Open MPI 5 neither counts slots nor binds here.
    """
    return {**_SPAWNING, **(dict.fromkeys(_SPAWNING_AS_ROOT, "1") if as_root else {})}


def connects_by_tcp(environment: Mapping[str, str]) -> bool:
    """Return True if processes of an environment connect to those of other jobs."""
    return _TCP_INTERFACE in environment


def with_one_interface(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the interfaces that an image excludes, where one is chosen.

    With both, Open MPI takes none: a spawn then never ends (measured with 5.0.11).
    """
    chosen = connects_by_tcp(environment)
    return {k: v for k, v in environment.items() if not (chosen and k == _EXCLUDED)}


def close_control_port(run_id: str, port: int) -> bool:
    """Make ``mpirun`` stop listening once its ranks run; on one host no client needs the port.

    It listens on every address, regardless of options, as does the daemon that Open MPI 4 starts
    for a single rank. A connection blocks it until the peer has identified itself or left:
    meanwhile it notices neither a dead rank nor an order to stop. But without a file descriptor for
    a connection it stops listening for good. So its limit is lowered to its open files, a
    connection is made, and the limit is restored.

    Args:
        run_id: marks the processes of this host.
        port: as for :func:`mpi_environment`.

    Returns:
        True if nothing listens there, as without ``mpirun``.
    """
    deadline = time.monotonic() + _CLOSING_LIMIT_S
    patience_s = _CLOSING_TICK_S
    while found := [*_listening_processes(run_id, port)]:
        if time.monotonic() > deadline:
            return False
        for pid in found:
            with suppress(OSError):
                _refuse_a_connection(pid, port, patience_s)
        time.sleep(_CLOSING_TICK_S)
        patience_s *= 2  # a busy machine may not run the process at once
    return True


def _refuse_a_connection(pid: int, port: int, patience_s: float) -> None:
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    next_file = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_file, limits[1]))
    try:
        with socket.create_connection((LOOPBACK, port), _CLOSING_LIMIT_S) as connection:
            connection.settimeout(patience_s)
            connection.recv(1)  # resets the connection where it works
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _listening_processes(run_id: str, port: int) -> Iterator[int]:
    """Yield the job's processes that listen on a port; another program may have taken it."""
    links = {link for link, (_, number) in listening_sockets().items() if number == port}
    if links:
        for pid in marked_processes(run_id):
            if links & open_files(pid):
                yield pid


_CLOSED_TO_ALL = "shared-memory,trace,logging:closed:to:all=x"
"""APIs that Triton opens to clients that send the header `closed:to:all`.

No client can: a colon ends the name of a header in HTTP/1, and gRPC resets a call whose header's
name holds one. A secret instead would be visible in the argument vector to all users.
"""
SITE_VARIABLE = "TRTLLM_TRUSS_SITE"
"""Names the packages of this process for Python models, which may run in another Python.

They come last: TensorRT-LLM's own packages in its virtual environment win over ours.
"""
_EXIT_TIMEOUT_S = 5  # what a stopping server gives requests in flight
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
class Ports:
    """The server's ports, all on loopback; `http` is None while that endpoint is closed.

    `mpi` is the port on which `mpirun` listens while it starts several ranks.
    """

    grpc: int
    http: int | None
    metrics: int
    mpi: int


def free_ports(http_port: int | None = None, grpc_port: int | None = None) -> Ports:
    """Return free ports, all chosen at once by the kernel.

    Another program may take them before the server opens them; a caller must be ready to retry with
    others.

    Args:
        http_port: the HTTP port, free or not; 0 for any free one, None to keep HTTP closed.
        grpc_port: the gRPC port, free or not; None for any free one.

    Raises:
        OSError: the machine has no free port.
    """
    grpc, http, metrics, mpi = unused_ports(4)
    return Ports(grpc_port or grpc, http if http_port == 0 else http_port, metrics, mpi)


def unused_ports(count: int) -> list[int]:
    """Return different TCP ports that are unused on loopback at this moment.

    Raises:
        OSError: the machine has no free port.
    """
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True, slots=True)
class Launch:
    """Values unique to one start of the server.

    Attributes:
        run_id: marks every process of this run in its environment; also the server's name.
        ports: of rank 0; other ranks receive the same and never open them.
        shm_prefix: of the name of every shared-memory segment of this run.
        folder: for temporary files; removed with the run.
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
        RuntimeError: this process is ending.
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
    """Return the command line of each start, as a function for :class:`ServerProcess`.

    A single rank runs without ``mpirun``, and so does `rank` of a job that runs already. The
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
    """Build the server's environment from ours: without secrets, with the server's paths.

    The engine is on disk before Triton starts, so nothing in the child needs a token.

    Args:
        passed: names of further variables for the server.
        python: runs Python models; default: the one of `installation`.
        library_paths: searched before all others, such as the image's own CUDA driver.
        huge_pages: allocate weights in huge pages, where the kernel has them. A CPU reads all
            weights for each token; with pages of 4 KiB, it spends up to 8 % more time on that.
        spawns: the engine starts processes by MPI; the variables of `parent` come first.
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
        **({} if job_variables(environment) else defaults),  # else the options are the launcher's
        "HOME": home(launch.folder),
        **with_one_interface(environment),
        **_NO_USAGE_STATISTICS,
        **mpi_environment(launch.folder, launch.ports.mpi),
        GRPC_ADDRESS_VARIABLE: f"{LOOPBACK}:{launch.ports.grpc}",
    }


def _finds_python(environment: Mapping[str, str], folder: Path) -> bool:
    """Return True if ``python3`` of a folder is already the first on ``PATH``."""
    found = shutil.which("python3", path=environment.get("PATH", ""))
    return found is not None and Path(found).parent == folder


def _prepend(environment: dict[str, str], name: str, folders: Sequence[Path]) -> None:
    parts = [*map(str, folders), *filter(None, environment.get(name, "").split(os.pathsep))]
    if parts:
        environment[name] = os.pathsep.join(dict.fromkeys(parts))
