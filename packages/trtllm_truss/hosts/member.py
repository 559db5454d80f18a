"""A member of a group: joins the leader, starts what it asks for, and cleans up without it.

One run of this host's ranks is MPI's daemon under a process guard, and the ranks' commands.
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from trtllm_truss.errors import SettingsError, StartupError
from trtllm_truss.hosts.channel import (
    Channel,
    ConnectionLost,
    NotAuthentic,
    OtherVersion,
    connect,
    resolve,
)
from trtllm_truss.hosts.leader import HEARTBEAT_S, WrongCommand, check_values, daemon_command
from trtllm_truss.processes.child import GuardedChild, remove_folder
from trtllm_truss.settings.loading import Group
from trtllm_truss.triton.server.command import (
    RANKS_VARIABLE,
    Launch,
    close_daemon_ports,
    launch_environment,
    mpi_prefix,
    new_launch,
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
            undo.callback(remove_folder, launch.folder)
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
        """Close the daemon's ports, which no host needs once all ranks run; return at once."""
        threading.Thread(target=self._close_ports, name="closing-ports", daemon=True).start()

    def _close_ports(self) -> None:
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


SILENCE_LIMIT_S = 10.0
"""Silence after which the leader counts as lost.

Longer than the leader's own limit: its Python may pause for seconds while it loads a tokenizer. A
leader that has given this host up closes the connection, which ends the run here at once.
"""

_TICK_S = 0.1
_RETRY_S = 0.25
_REPORT_S = 30.0


class Member:
    """A member of a group: connects to the leader and runs this host's ranks.

    Args:
        index: this host's place.
        identity: what this host must have in common with the leader.
        start_run: starts this host's part of a run, from the values of its launch; raises OSError.
    """

    def __init__(
        self,
        group: Group,
        index: int,
        key: bytes,
        identity: Mapping[str, Any],
        start_run: Callable[[Mapping[str, str]], HostRun],
    ) -> None:
        self._group = group
        self._index = index
        self._key = key
        self._identity = identity
        self._start_run = start_run
        self._was_welcome = False
        self._said: tuple[str, float] = ("", 0.0)
        self._run: HostRun | None = None

    def serve(self) -> None:
        """Join the leader, and again after each loss, until an exception.

        Raises:
            SettingsError: the leader's key is another one, at the first contact.
            StartupError: the leader refused this host, for a reason that does not pass, or speaks
                another version at the first contact.
        """
        try:
            while True:
                try:
                    self._join()
                except ConnectionLost as error:
                    self._say(f"waiting for the leader {self._group.leader}: {error}")
                except OtherVersion as error:
                    if not self._was_welcome:
                        raise StartupError(
                            f"the leader {self._group.leader} cannot be joined: {error}."
                        ) from error
                    self._say(f"waiting for the leader {self._group.leader}: {error}")
                except NotAuthentic as error:
                    if not self._was_welcome:
                        raise SettingsError(
                            f"the leader {self._group.leader} cannot be trusted: {error}; set the "
                            "secret group_key to the same value on every host."
                        ) from error
                    self._say(f"{self._group.leader} is not this group's leader: {error}")
                self._end_run()
                time.sleep(_RETRY_S)
        finally:
            self._end_run()

    def _join(self) -> None:
        try:
            leader = resolve(self._group.leader)
        except SettingsError as error:  # its name may come up with it
            raise ConnectionLost(error.message) from error
        with closing(connect((leader, self._group.port), self._key)) as channel:
            channel.send({"type": "hello", "index": self._index, "identity": self._identity})
            self._exchange(channel, leader)

    def _exchange(self, channel: Channel, leader: str) -> None:
        """Obey the leader until it is lost."""
        beat_at = time.monotonic()
        while True:
            message = channel.receive(_TICK_S)
            if message is None and channel.silent_for_s > SILENCE_LIMIT_S:
                raise ConnectionLost(f"it was silent for {SILENCE_LIMIT_S:g} s")
            if message is not None:
                self._obey(channel, leader, message)
            self._report_end(channel)
            if time.monotonic() - beat_at >= HEARTBEAT_S:
                beat_at = time.monotonic()
                channel.send({"type": "alive"})

    def _obey(self, channel: Channel, leader: str, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "welcome":
            self._was_welcome = True
            logger.info("joined the leader %s as host %d", leader, self._index)
        elif kind == "refused":
            reason = f"the leader refused this host: {message.get('reason')}"
            if not message.get("passes"):
                raise StartupError(reason)
            raise ConnectionLost(reason)
        elif kind == "start":
            self._start(channel, leader, message.get("launch"))
        elif kind == "stop" and self._run is not None:
            self._run.stop()
        elif kind == "ready" and self._run is not None:
            self._run.ready()

    def _start(self, channel: Channel, leader: str, launch: object) -> None:
        """Start this host's ranks, if nothing runs yet and the launch is of this job."""
        try:
            check_values(launch if isinstance(launch, dict) else {}, leader)
            if self._run is not None:
                raise WrongCommand("the ranks of the last run are still there")
            assert isinstance(launch, dict)
            self._run = self._start_run(launch)
        except (WrongCommand, OSError, RuntimeError) as error:  # the last: no thread
            logger.error("cannot start the ranks of this host: %s", error)
            channel.send({"type": "failed", "reason": str(error)})

    def _report_end(self, channel: Channel) -> None:
        status = None if self._run is None else self._run.poll()
        if status is not None:
            self._run = None
            channel.send({"type": "ended", "status": status})

    def _end_run(self) -> None:
        """Stop this host's ranks and wait until nothing of them is left."""
        run, self._run = self._run, None
        if run is not None:
            run.end()

    def _say(self, what: str) -> None:
        """Log a state once, and again while it lasts."""
        now = time.monotonic()
        if what != self._said[0] or now - self._said[1] > _REPORT_S:
            self._said = (what, now)
            logger.warning("%s", what)
