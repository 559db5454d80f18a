"""Open MPI's command line, environment and ports for the ranks of a server.

Uses only options and variables that Open MPI 4 (in NVIDIA's images up to 2025) and Open MPI 5 read
alike, or that one of them ignores.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.processes.process_guard import listening_sockets, marked_processes, open_files

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

They belong to one MPI job, and share memory.
"""


END_DEFAULTS = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}
"""End a job at once when a rank dies; the environment may override it.

Open MPI 4 waits a second for the other ranks, twice: with 4.1.8 a job outlives its rank 1 by 2.0 s,
and with this setting by 0.01 s (measured). Open MPI 5 does not wait.
"""


_SHARING_CORES = ("--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1")
"""Let ranks share cores, and yield them while they wait.

A rank above 0 waits in a busy loop: on a contended core it took 0.55 s of 5 with Open MPI 5.0.11
and 0.77 s with 4.1.8; with this setting 0.13 and 0.07 s (measured).
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
"""Let Open MPI 5 start its daemon as root where no `mpirun` takes an option for it.

Version 4 needs no permission. Without these variables a spawn fails with MPI_ERR_UNKNOWN (measured
with 5.0.11).
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
    MPI refuses to run as root, or more ranks than cores, unless `as_root` and `oversubscribe` are
    set.

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

    A killed job leaves its session's folder and memory behind, under names that do not identify us
    and that a second job of the same user may share. A server of one rank starts MPI too, without
    ``mpirun``.

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
    """Return a `HOME` if it is unset: the user's, or a folder for a user without one.

    Open MPI 5 starts neither a job nor a single rank without it (measured with 5.0.11: "Unable to
    get the user home directory"); 4 does not need it.
    """
    try:
        return str(Path.home())
    except RuntimeError:
        return str(folder)


def spawning_environment(*, as_root: bool) -> dict[str, str]:
    """Let a server without ``mpirun`` start workers on this host with ``MPI_Comm_spawn``.

    TensorRT-LLM's LLM API does so even for one GPU. Server and workers then listen on every
    address, because Open MPI has no option for that (`docs/security.md`), and connect over the
    named interface only. Open MPI 5 neither counts slots nor binds here.
    """
    return {**_SPAWNING, **(dict.fromkeys(_SPAWNING_AS_ROOT, "1") if as_root else {})}


def connects_by_tcp(environment: Mapping[str, str]) -> bool:
    """Return True if processes with this environment connect to other jobs by TCP."""
    return _TCP_INTERFACE in environment


def with_one_interface(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the image's list of excluded interfaces if one interface is selected.

    With both, Open MPI uses no interface: a spawn then never returns (measured with 5.0.11).
    """
    chosen = connects_by_tcp(environment)
    return {k: v for k, v in environment.items() if not (chosen and k == _EXCLUDED)}


def close_control_port(run_id: str, port: int) -> bool:
    """Make ``mpirun`` stop listening once its ranks run; no client on the same host needs the port.

    It listens on every address, regardless of options, like the daemon that Open MPI 4 starts for a
    single rank. A connection blocks it until the peer has identified itself or disconnected:
    meanwhile it notices neither a dead rank nor an order to stop. However, if it has no file
    descriptor for a connection, it stops listening for good. So lower its limit to its open files,
    connect once, and restore the limit.

    Args:
        run_id: identifies the processes on this host.
        port: see :func:`mpi_environment`.

    Returns:
        True if nothing listens there; also without ``mpirun``.
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
        patience_s *= 2  # a busy machine may not schedule the process at once
    return True


def _refuse_a_connection(pid: int, port: int, patience_s: float) -> None:
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    next_file = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_file, limits[1]))
    try:
        with socket.create_connection((LOOPBACK, port), _CLOSING_LIMIT_S) as connection:
            connection.settimeout(patience_s)
            connection.recv(1)  # resets the connection if it works
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _listening_processes(run_id: str, port: int) -> Iterator[int]:
    """Yield the job's processes that listen on a port; another program may have taken the port."""
    links = {link for link, (_, number) in listening_sockets().items() if number == port}
    if links:
        for pid in marked_processes(run_id):
            if links & open_files(pid):
                yield pid
