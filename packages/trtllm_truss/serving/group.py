"""Several hosts for one engine: the leader's part of a start, and a member's whole life.

A rank above 0 of another launcher's job has a life of its own: `work`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trtllm_truss.errors import ArtifactError, SettingsError, TritonError
from trtllm_truss.hosts import launch_agent
from trtllm_truss.hosts.channel import address_towards, identity_of, interface_of, resolve
from trtllm_truss.hosts.leader import Leader
from trtllm_truss.hosts.member import HostRun, Member
from trtllm_truss.machine.runtime import Mpi, find_mpi
from trtllm_truss.mpi_job import Rank, job_variables
from trtllm_truss.processes.child import sweep, temporary_folder
from trtllm_truss.serving.preparation import PreparedEngine, prepare
from trtllm_truss.serving.repositories import MountedFiles, ReadAhead
from trtllm_truss.settings.loading import Environment, Group, require_key, resolve_group
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.server.command import (
    Launch,
    agent_environment,
    group_environment,
    launcher,
    server_command,
)
from trtllm_truss.triton.server.process import ServerProcess

logger = logging.getLogger(__name__)

_NAME_LIMIT_S = 60.0
_TICK_S = 0.5
_END_MARGIN_S = 15.0  # of rank 0: Triton's own time, and to end the HTTP server


@dataclass(frozen=True)
class GroupLead:
    """The group of a leader that is being started.

    Attributes:
        leader: its side of the channel.
        mpi_variables: variables of `mpirun`, beside the server's.
        variables: the environment of this process.
    """

    group: Group
    leader: Leader
    mpi_variables: Mapping[str, str]
    variables: Mapping[str, str]

    @classmethod
    def prepare(cls, group: Group, environment: Environment) -> GroupLead:
        """Check that this host is the leader and has the key, before anything is downloaded.

        Raises:
            SettingsError: it is not, or has not.
        """
        key = require_key(environment.group_key)
        address = resolve(group.leader, _NAME_LIMIT_S)
        interface = interface_of(address)
        if interface is None or group.index:
            raise SettingsError(
                f"the group's leader is {group.leader} ({address}), not this host; run "
                "`trtllm-truss join` here."
            )
        agent = (sys.executable, "-I", "-S", str(Path(launch_agent.__file__)))
        mpi_variables = {**group_environment(interface), **agent_environment(agent)}
        leader = Leader(group, key, address)
        return cls(group, leader, mpi_variables, environment.variables)

    def open(self, prepared: PreparedEngine) -> None:
        """Accept the other hosts from now on.

        Raises:
            SettingsError: the port is taken.
            TritonError: there is no `mpirun`.
        """
        mpi = find_mpi(self.variables)
        self.leader.open(_identity(prepared, mpi))


def join(settings: Settings, environment: Environment, data_dir: Path, image: str | None) -> None:
    """Be a member of the group until an exception ends it; leave nothing behind.

    Args:
        settings: the operator's settings, equal on every host.
        image: `base_image.image` of config.yaml.

    Raises:
        SettingsError: this host is not one of the others, or the key is another one.
        StartupError: the engine is unusable here, or the leader refused this host.
    """
    settings, group = resolve_group(settings, environment)
    if group is None:
        raise SettingsError(
            "this engine has one host; set model_metadata.nodes, or deploy as a LeaderWorkerSet, "
            "before others join."
        )
    key = require_key(environment.group_key)
    index = _own_index(group)
    sweep()
    ahead = ReadAhead()
    prepared = prepare(settings, environment, image, index, read_ahead=ahead.begin)
    engine = prepared.engine
    each = engine.world_size // group.size
    ranks = range(index * each, (index + 1) * each)
    logger.info("host %d of %d has the ranks %s", index, group.size, [*ranks])
    mpi = find_mpi(environment.variables)
    ranks_program = engine.rank_launcher(environment.variables)
    with temporary_folder() as folder:
        server = prepared.server(folder, in_group=True)
        repository = prepared.render(data_dir, folder / "repository")

        def command(launch: Launch, rank: int) -> Sequence[str]:
            segment = server_command(
                server.installation.executable,
                launch,
                repository=repository,
                backends=server.backends,
                rank=rank,
            )
            if ranks_program is None:
                return segment
            return ranks_program.rank(segment, rank, launch.folder)

        def start_run(values: Mapping[str, str]) -> HostRun:
            own = {**server.variables, **group_environment(_interface_to(group))}
            return HostRun(values, mpirun=mpi.mpirun, ranks=ranks, command=command, environment=own)

        identity = _identity(prepared, mpi)
        end = partial(os.kill, os.getpid(), signal.SIGTERM)  # the leader then loses this host
        with MountedFiles(prepared.resolved.unchecked, end).checking():
            Member(group, index, key, identity, start_run).serve()


def work(
    settings: Settings, environment: Environment, data_dir: Path, image: str | None, rank: Rank
) -> None:
    """Be a rank above 0 of a launcher's job until rank 0 ends the job.

    A launcher sends SIGTERM to all ranks at once. Rank 0 then lets requests finish, for which it
    needs the others: they end with it, or after the time that it has, or at a second signal.

    Args:
        settings: the operator's settings, equal on every rank.
        image: `base_image.image` of config.yaml.

    Raises:
        StartupError: the engine is unusable here, or the rank has failed; the launcher ends the
            others when it sees this process's exit status.
    """
    settings, _ = resolve_group(settings, environment)
    variables = environment.variables
    sweep()
    ahead = ReadAhead()
    prepared = prepare(settings, environment, image, read_ahead=ahead.begin, rank=rank)
    with temporary_folder() as folder:
        server = prepared.server(folder, in_group=True)
        command = launcher(
            server.installation,
            repository=prepared.render(data_dir, folder / "repository"),
            backends=server.backends,
            world_size=rank.size,
            environ=variables,
            ranks=prepared.engine.rank_launcher(variables),
            rank=rank.index,
        )
        run = ServerProcess(
            command,
            {**server.variables, **job_variables(variables)},
            on_line=partial(logger.info, "triton: %s"),
        )
        limits = settings.serving
        patience_s = limits.drain_notice_s + limits.drain_timeout_s + _END_MARGIN_S
        failed = threading.Event()
        with (
            MountedFiles(prepared.resolved.unchecked, failed.set).checking(),
            _Signals() as signals,
        ):
            logger.info("rank %d of %d starts", rank.index, rank.size)
            run.start()
            try:
                run.wait_until_ended(
                    _TICK_S, lambda: failed.is_set() or signals.are_older_than(patience_s)
                )
            except TritonError:
                if not signals.count:  # else rank 0 may have ended first
                    raise
            finally:
                run.stop(0)
            logger.info("rank %d of %d has ended", rank.index, rank.size)
        if failed.is_set():
            raise ArtifactError("a mounted file of the engine differs; the log above names it.")


class _Signals:
    """Counts SIGTERM and SIGINT in the block instead of ending it."""

    def __init__(self) -> None:
        self._at_s: list[float] = []

    def __enter__(self) -> _Signals:
        self._before = {
            number: signal.signal(number, lambda *_: self._at_s.append(time.monotonic()))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def count(self) -> int:
        return len(self._at_s)

    def are_older_than(self, limit_s: float) -> bool:
        """Return True if the first one is, or if there was a second."""
        is_old = self.count and time.monotonic() - self._at_s[0] > limit_s
        return bool(is_old) or self.count > 1


def _own_index(group: Group) -> int:
    """Return this host's place among the hosts.

    Raises:
        SettingsError: it is the leader's, or none.
    """
    index = group.index
    if index is None and group.hosts:
        own = (i for i, name in enumerate(group.hosts) if interface_of(resolve(name)) is not None)
        index = next(own, None)
    if index is None or not 0 <= index < group.size:
        raise SettingsError(
            f"this host has none of the addresses of the group ({', '.join(group.hosts)}); name "
            "it in nodes, or set its number in LWS_WORKER_INDEX."
        )
    if index == 0:
        raise SettingsError("this host is the group's leader; run `trtllm-truss serve` here.")
    return index


def _interface_to(group: Group) -> str:
    address = address_towards(resolve(group.leader))
    interface = interface_of(address)
    if interface is None:
        raise OSError(f"no interface has this host's address {address}")
    return interface


def _identity(prepared: PreparedEngine, mpi: Mpi) -> dict[str, Any]:
    resolved = prepared.resolved
    return identity_of(
        prepared.settings,
        resolved.engine,
        resolved.listing,
        resolved.adapters,
        tensorrt_llm_version=prepared.host.runtime_version,
        mpi_version=mpi.version,
    )
