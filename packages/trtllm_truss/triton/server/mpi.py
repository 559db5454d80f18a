"""One process per GPU: the ``mpirun`` command line and the environment that isolates a job.

The ranks communicate through MPI, so an engine for N GPUs is a job of N servers:
``mpirun -n 1 <segment 0> : -n 1 <segment 1> : …``, as NVIDIA's ``launch_triton_server.py`` builds
it. Only options and variables are used that Open MPI 4 (in NVIDIA's images up to 2025) and Open
MPI 5 read alike, or that one of them ignores.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from trtllm_truss.errors import TritonError
from trtllm_truss.processes.process_guard import (
    listening_sockets,
    marked_processes,
    name_of,
    open_files,
)
from trtllm_truss.triton.server.ports import LOOPBACK

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
RANKS_VARIABLE = "TRTLLM_TRUSS_RANKS"
"""Environment variable with the folder of a host's rank programs, for several hosts."""
RANK_PROGRAM = ("/bin/sh", "-c", f'exec /bin/sh "${RANKS_VARIABLE}/rank$OMPI_COMM_WORLD_RANK"')
"""Command of a rank on another host, which alone knows its paths."""
ONE_HOST_DEFAULTS = {"OMPI_MCA_btl": "^tcp"}
"""Keep ranks from listening for other hosts on every address; the environment may override it.

They are one MPI job, and share memory.
"""
END_DEFAULTS = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}
"""End a job at once when a rank dies; the environment may override it.

Open MPI 4 waits a second for the other ranks, twice: with 4.1.8 a job outlives its rank 1 by 2.0 s,
and with this by 0.01 s (measured). Open MPI 5 has no such wait.
"""
DAEMONS = frozenset({"prted", "orted"})
"""Names of MPI's daemon on a further host, of Open MPI 5 and 4."""
_SHARING_CORES = ("--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1")
"""Let ranks share cores, and give them up while they wait.

A rank above 0 waits in a busy loop: on a core that another program wants, it took 0.55 s of 5 with
Open MPI 5.0.11 and 0.77 s with 4.1.8, and with this 0.13 and 0.07 s (measured).
"""
_TCP_INTERFACE = "OMPI_MCA_btl_tcp_if_include"
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
_PREFIX_VARIABLES = ("PRTE_PREFIX", "PMIX_PREFIX", "OPAL_PREFIX")

_CLOSING_LIMIT_S = 1.0
_CLOSING_TICK_S = 0.02


def mpi_command(
    mpirun: Path,
    segments: Sequence[Sequence[str]],
    *,
    as_root: bool,
    oversubscribe: bool,
    hosts: Sequence[str] = (),
) -> list[str]:
    """Join one command line per rank into one job.

    Several `hosts` have an equal number of ranks each, in their order. No rank is bound to a core:
    Triton has many threads, and ranks above 0 wait in a busy loop. Open MPI refuses root and more
    ranks than cores unless `as_root` and `oversubscribe` are set.
    """
    command = [str(mpirun)]
    if as_root:
        command.append("--allow-run-as-root")
    if oversubscribe:
        command += _SHARING_CORES
    command += ["--bind-to", "none"]
    each = len(segments) // len(hosts) if hosts else 0
    for rank, segment in enumerate(segments):
        place = ["--host", f"{hosts[rank // each]}:{each}"] if hosts else []
        command += [*([":"] if rank else []), "-n", "1", *place, *segment]
    return command


def needs_oversubscription(ranks: int, cpus: int) -> bool:
    """Return True if ranks may outnumber cores; Open MPI counts two threads as one core."""
    return 2 * ranks > cpus


def mpi_environment(folder: Path, control_port: int | None) -> dict[str, str]:
    """Keep MPI's files and shared memory in the folder of one start.

    A killed job leaves its session's folder and its memory behind, under names that do not identify
    us and that a second job of the same user may share. A server of one rank starts MPI too,
    without ``mpirun``.

    Args:
        folder: of this start.
        control_port: of ``mpirun``; one number for IPv4 and IPv6, so that only one of the two finds
            it free; None for MPI's daemon, which such a number crashes.
    """
    ports = () if control_port is None else _CONTROL_PORT_VARIABLES
    variables = ("TMPDIR", *_SESSION_VARIABLES, *_BACKING_VARIABLES)
    return {
        **dict.fromkeys(variables, str(folder)),
        **dict.fromkeys(ports, str(control_port)),
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


def group_environment(interface: str) -> dict[str, str]:
    """Keep the connections between hosts on the group's interface.

    MPI's sockets listen on every address all the same; only its connections are bound by this.
    """
    names = ("PRTE_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", _TCP_INTERFACE)
    return {
        **dict.fromkeys(names, interface),
        "NCCL_SOCKET_IFNAME": f"={interface}",
    }


def agent_environment(agent: Sequence[str]) -> dict[str, str]:
    """Make `mpirun` start its daemons through a program of ours, each directly from here.

    Raises:
        TritonError: the program's path has a character at which MPI would split it.
    """
    command = " ".join(agent)
    if len(command.split()) != len(agent) or ":" in command:
        raise TritonError(
            f"mpirun cannot run {command!r}; install Python and this package in folders whose "
            "names have no space and no colon."
        )
    return {
        **dict.fromkeys(("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"), command),
        **dict.fromkeys(("PRTE_MCA_plm_ssh_no_tree_spawn", "OMPI_MCA_plm_rsh_no_tree_spawn"), "1"),
    }


def mpi_prefix(mpirun: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which MPI's daemon finds its files, as `mpirun` sets them."""
    prefix = mpirun.resolve().parent.parent
    libraries = environment.get("LD_LIBRARY_PATH")
    paths = [str(prefix / "lib"), *([libraries] if libraries else [])]
    return {
        **dict.fromkeys(_PREFIX_VARIABLES, str(prefix)),
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
    }


def connects_by_tcp(environment: Mapping[str, str]) -> bool:
    """Return True if processes of an environment connect to those of other hosts or jobs."""
    return _TCP_INTERFACE in environment


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
    return _close(lambda: ((pid, port) for pid in _listening_processes(run_id, port)))


def close_daemon_ports(run_id: str) -> bool:
    """Make MPI's daemon stop listening, like `mpirun`; it chooses its ports itself.

    Returns:
        True if nothing of it listens on a public address.
    """
    return _close(lambda: _daemon_ports(run_id))


def _close(listening: Callable[[], Iterable[tuple[int, int]]]) -> bool:
    """Close the ports of processes, (id, port) each, until none is left or the time is over."""
    deadline = time.monotonic() + _CLOSING_LIMIT_S
    while found := [*listening()]:
        if time.monotonic() > deadline:
            return False
        for pid, port in found:
            with suppress(OSError):
                _refuse_a_connection(pid, port)
        time.sleep(_CLOSING_TICK_S)
    return True


def _refuse_a_connection(pid: int, port: int) -> None:
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    next_file = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_file, limits[1]))
    try:
        with socket.create_connection((LOOPBACK, port), _CLOSING_LIMIT_S) as connection:
            connection.settimeout(_CLOSING_TICK_S)
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


def _daemon_ports(run_id: str) -> Iterator[tuple[int, int]]:
    public = {
        link: port
        for link, (address, port) in listening_sockets().items()
        if set(address) == {"0"}  # any address, of either family
    }
    for pid in marked_processes(run_id):
        if name_of(pid) in DAEMONS:
            yield from ((pid, public[link]) for link in public.keys() & open_files(pid))
