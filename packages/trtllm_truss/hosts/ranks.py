"""One run of this host's ranks: MPI's daemon under a process guard, and the ranks' commands."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from trtllm_truss.hosts.daemon import daemon_command
from trtllm_truss.processes.child import GuardedChild
from trtllm_truss.triton.server.command import Launch, launch_environment, new_launch
from trtllm_truss.triton.server.mpi import (
    RANKS_VARIABLE,
    close_daemon_ports,
    mpi_prefix,
)
from trtllm_truss.triton.server.process import UMASK

logger = logging.getLogger(__name__)

_PORT_CLOSED = "limit on number of network connections"
_ORPHAN_GRACE_S = 0.0
"""A daemon without its leader has nothing to finish."""


class HostRun:
    """The ranks of this host in one run of the job, from their start until nothing is left.

    Args:
        values: identify the job (`daemon.check_values`).
        mpirun: MPI's launcher, next to its daemon.
        ranks: this host's ranks.
        command: returns the argument vector of one rank.
        environment: of daemon and ranks.

    Raises:
        OSError: no process, file or port can be had.
        RuntimeError: no thread can be started.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        *,
        mpirun: Path,
        ranks: Sequence[int],
        command: Callable[[Launch, int], Sequence[str]],
        environment: Mapping[str, str],
    ) -> None:
        with ExitStack() as undo:
            launch = self._launch = new_launch()
            undo.callback(shutil.rmtree, launch.folder, ignore_errors=True)
            own = launch_environment(environment, launch, of_daemon=True)
            for rank in ranks:
                _write_script(launch.folder, rank, command(launch, rank), own)
            self._child = GuardedChild(
                daemon_command(mpirun, values, as_root=os.geteuid() == 0),
                {
                    **own,
                    **mpi_prefix(mpirun, environment),
                    RANKS_VARIABLE: str(launch.folder),
                },
                run_id=launch.run_id,
                orphan_grace_s=_ORPHAN_GRACE_S,
                shm_prefix=launch.shm_prefix,
                folder=launch.folder,
                umask=UMASK,
                on_line=_log_line,
                on_exit=_log_end,
                name="daemon",
            )
            undo.pop_all()
        logger.info("ranks %d to %d start", ranks[0], ranks[-1])

    def stop(self) -> None:
        """End daemon and ranks at once; return before they have ended."""
        self._child.stop(0)

    def ready(self) -> None:
        """Close the daemon's ports, which no host needs once all ranks run."""
        if not close_daemon_ports(self._launch.run_id):
            logger.warning("MPI's daemon still listens on every address; see docs/deploy.md")

    def poll(self) -> int | None:
        """Return the daemon's exit status once nothing of the run is left; None before."""
        return self._child.status

    def end(self) -> None:
        """End daemon and ranks, and return when nothing of them is left."""
        self._child.end(0)


def _log_end(status: int) -> None:
    logger.info("the ranks of this host have ended (%d)", status)


def _log_line(line: str) -> None:
    level = logging.DEBUG if _PORT_CLOSED in line else logging.INFO
    logger.log(level, "mpi: %s", line)


def _write_script(
    folder: Path, rank: int, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Write the program of one rank.

    MPI's daemon gives its ranks the leader's MPI options, with the leader's folders and interface;
    the script sets this host's again.
    """
    own = {
        name: value
        for name, value in environment.items()
        if name == "TMPDIR" or name.startswith(("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_"))
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in own.items()]
    lines.append(f"exec {shlex.join(command)}")
    (folder / f"rank{rank}").write_text("\n".join(lines) + "\n", encoding="utf-8")
