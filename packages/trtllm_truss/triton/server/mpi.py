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
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from trtllm_truss.processes.process_guard import marked_processes
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
MPI_DEFAULTS = {"OMPI_MCA_btl": "^tcp"}
"""Keep ranks from listening for other hosts on every address; the environment may override it."""

_CLOSING_LIMIT_S = 1.0
_CLOSING_TICK_S = 0.02


def mpi_command(
    mpirun: Path, segments: Sequence[Sequence[str]], *, as_root: bool, oversubscribe: bool
) -> list[str]:
    """Join one command line per rank into one job.

    No rank is bound to a core: Triton has many threads, and ranks above 0 wait in a busy loop. Open
    MPI refuses root and more ranks than cores unless `as_root` and `oversubscribe` are set.
    """
    command = [str(mpirun)]
    if as_root:
        command.append("--allow-run-as-root")
    if oversubscribe:
        command += ["--map-by", ":OVERSUBSCRIBE"]
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
        folder: of this start.
        control_port: of ``mpirun``; one number for IPv4 and IPv6, so that only one of the two finds
            it free.
    """
    variables = ("TMPDIR", *_SESSION_VARIABLES, *_BACKING_VARIABLES)
    return {
        **dict.fromkeys(variables, str(folder)),
        **dict.fromkeys(_CONTROL_PORT_VARIABLES, str(control_port)),
    }


def close_control_port(run_id: str, port: int) -> bool:
    """Make ``mpirun`` stop listening once its ranks run; on one host no client needs the port.

    It listens on every address, regardless of options, as does the daemon that Open MPI 4 starts
    for a single rank. A connection blocks it until the peer has identified itself or left:
    meanwhile it notices neither a dead rank nor an order to stop. But without a file descriptor for
    a connection it stops listening for good. So its limit is lowered to its open files, a
    connection is made, and the limit is restored.

    Args:
        run_id: marks the job's processes.
        port: as for :func:`mpi_environment`.

    Returns:
        True if nothing listens there, as without ``mpirun``.
    """
    deadline = time.monotonic() + _CLOSING_LIMIT_S
    while (pid := _listening_process(run_id, port)) is not None:
        if time.monotonic() > deadline:
            return False
        with suppress(OSError):
            _refuse_a_connection(pid, port)
        time.sleep(_CLOSING_TICK_S)
    return True


def _refuse_a_connection(pid: int, port: int) -> None:
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_files = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    next_file = next(number for number in count() if number not in open_files)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_file, limits[1]))
    try:
        with socket.create_connection((LOOPBACK, port), _CLOSING_LIMIT_S) as connection:
            connection.settimeout(_CLOSING_TICK_S)
            connection.recv(1)  # resets the connection where it works
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _listening_process(run_id: str, port: int) -> int | None:
    """Return the job's process that listens on a port; another program may have taken it."""
    inode = _listening_socket(port)
    if inode is not None:
        for pid in marked_processes(run_id):
            with suppress(OSError):  # it has ended
                if _has_open(pid, inode):
                    return pid
    return None


def _listening_socket(port: int) -> str | None:
    """Return the inode of the TCP socket that listens on a port, from proc(5) net/tcp."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, address, _, state, *_, inode = line.split()[:10]
                if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                    return inode
    return None


def _has_open(pid: int, inode: str) -> bool:
    files = Path(f"/proc/{pid}/fd").iterdir()
    return any(str(file.readlink()) == f"socket:[{inode}]" for file in files)
