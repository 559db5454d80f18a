"""The leader of a group: accepts members, starts MPI's daemon on them, and notices their loss.

`mpirun` hands its launch agent a host and a shell command. Only the few values in it that identify
the job are taken, each in a strict form; a member builds the command itself. So a member runs no
text that came over the network.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_truss.errors import SettingsError, TritonError
from trtllm_truss.hosts.channel import (
    Channel,
    ConnectionLost,
    NotAuthentic,
    accept,
    difference,
    listen_in,
    shut,
)
from trtllm_truss.hosts.launch_agent import SOCKET_NAME
from trtllm_truss.settings.loading import Group
from trtllm_truss.triton.server.command import Launch

_OPTIONS = {"prted": "--prtemca", "orted": "-mca"}
_NAMESPACE = r"prterun-[A-Za-z0-9._-]{1,253}-\d{1,10}@0"
_TCP = r"tcp://(?P<hosts>[\d.,]{7,255}):\d{1,5}(:[\d,]{1,32})?"
_SMALL = re.compile(r"\d{1,4}")
_VALUES = {
    "prted": {
        "ess_base_nspace": re.compile(_NAMESPACE),
        "ess_base_vpid": _SMALL,
        "ess_base_num_procs": _SMALL,
        "prte_hnp_uri": re.compile(rf"{_NAMESPACE}\.0;{_TCP}"),
    },
    "orted": {
        "ess_base_jobid": re.compile(r"\d{1,10}"),
        "ess_base_vpid": _SMALL,
        "ess_base_num_procs": _SMALL,
        "orte_node_regex": re.compile(r"[A-Za-z0-9._,:@()\[\]-]{1,4096}"),
        "orte_hnp_uri": re.compile(rf"\d{{1,10}}\.0;{_TCP}"),
    },
}
"""Values that identify a job, by the daemon's name: Open MPI 5's and Open MPI 4's."""
_URIS = ("prte_hnp_uri", "orte_hnp_uri")


class WrongCommand(Exception):
    """A launch that is not of this job; the text names the value at fault."""


def read_command(words: Sequence[str]) -> dict[str, str]:
    """Return the values that identify the job, from the command that `mpirun` gives to its agent.

    Args:
        words: the agent's arguments after the host; together a line for a POSIX shell, which sets
            variables and then runs the daemon.

    Raises:
        WrongCommand: the line does not run MPI's daemon.
    """
    try:
        lexer = shlex.shlex(" ".join(words), posix=True, punctuation_chars=";")
        lexer.whitespace_split = True
        *_, (program, *arguments) = _commands(lexer)
    except ValueError as error:
        raise WrongCommand(f"mpirun's command cannot be read: {error}") from error
    name = PurePosixPath(program).name
    if name not in _OPTIONS:
        raise WrongCommand(f"mpirun's command runs {name}, not one of {', '.join(_OPTIONS)}")
    found = {"program": name}
    for option, key, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if option == _OPTIONS[name] and key in _VALUES[name]:
            found[key] = value
    return found


def _commands(tokens: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line."""
    for is_end, words in groupby(tokens, ";".__eq__):
        if not is_end:
            yield [*words]


def check_values(values: Mapping[str, object], leader: str) -> None:
    """Accept the values of one launch, and nothing else.

    Args:
        values: a message's.
        leader: the leader's address; the daemon may connect to no other host.

    Raises:
        WrongCommand: a value is missing, unknown or of another form.
    """
    program = values.get("program")
    forms = _VALUES.get(program) if isinstance(program, str) else None
    if forms is None or values.keys() != {"program", *forms}:
        raise WrongCommand(f"the launch has the values {sorted(map(str, values))}")
    for name, form in forms.items():
        value = values[name]
        found = form.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise WrongCommand(f"{name} of the launch is malformed")
        if name in _URIS and found["hosts"] != leader:
            raise WrongCommand(f"{name} of the launch does not name the leader, {leader}, alone")


def daemon_command(mpirun: Path, values: Mapping[str, str], *, as_root: bool) -> list[str]:
    """Build the daemon's argument vector from accepted values.

    The daemon stays in the foreground, so that the process guard above it sees its end.
    """
    program = values["program"]
    command = [str(mpirun.with_name(program))]
    if as_root and program == "prted":
        command.append("--allow-run-as-root")
    if program == "prted":
        command.append("--leave-session-attached")
    for name, value in {"ess": "env", **values}.items():
        if name != "program":
            command += [_OPTIONS[program], name, value]
    return command


ADDRESSES = 32
QUIET_S = 60.0
_OTHERS = "more addresses"


@dataclass
class _Refused:
    """A peer, or all for which the table has no room.

    Attributes:
        why: the latest reason; empty once a peer there has been accepted.
        logged_at_s: of the last line, by the clock.
        silent: refusals since then.
    """

    why: str
    logged_at_s: float
    silent: int = 0


class Refusals:
    """One log line per address and minute, since anyone can ask, and for few addresses.

    All methods may be called from any thread.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}  # the longest known address first

    def note(self, address: str, why: str) -> None:
        """Count a refusal; log it unless this address has had a line in the last minute."""
        now_s = self._clock()
        with self._lock:
            place = address if self._has_room(address, now_s) else _OTHERS
            known = self._refused.get(place)
            if known is not None and now_s - known.logged_at_s < QUIET_S:
                known.why, known.silent = why, known.silent + 1
                return
            silent = known.silent if known is not None else 0
            self._refused[place] = _Refused(why, now_s)
        more = f" ({silent} more since the last such line)" if silent else ""
        logger.error("refused %s: %s%s", place, why, more)

    def forget(self, address: str) -> None:
        """Drop the reason of an address; its minute goes on."""
        with self._lock:
            if known := self._refused.get(address):
                known.why = ""

    def reasons(self) -> list[str]:
        """Return each address with its latest reason."""
        with self._lock:
            known = [*self._refused.items()]
        return [f"{address}: {each.why}" for address, each in known if each.why]

    def _has_room(self, address: str, now_s: float) -> bool:
        """Return whether an address has a row of its own; drop a row whose minute is over."""
        if address in self._refused or len(self._refused) < ADDRESSES:
            return True
        for other, each in self._refused.items():
            if other != _OTHERS and now_s - each.logged_at_s >= QUIET_S:
                del self._refused[other]
                return True
        return False


logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.4
SILENCE_LIMIT_S = 1.5
"""Silence after which a member counts as lost; health turns false within 2 s of a cut."""

_HELLO_LIMIT_S = 10.0
_CLEANUP_LIMIT_S = 20.0
_STRANGERS = 32
_AGENT_BYTES = 1 << 16
_REPORT_S = 30.0


@dataclass(eq=False)
class _Member:
    """A member that was accepted.

    Attributes:
        index: its place in the group.
        address: its IPv4 address.
        hostname: the name that it reported.
        agent: the launch agent of the run in progress; None while its host is idle.
    """

    index: int
    address: str
    hostname: str
    channel: Channel
    agent: socket.socket | None = None
    is_busy: bool = False

    def __str__(self) -> str:
        return f"host {self.index} ({self.address})"


class Leader:
    """The leader's side of a group. All methods may be called from any thread.

    Args:
        address: this host's IPv4 address in the group.

    Attributes:
        on_loss: called with the reason when a run in progress has lost a host.
    """

    def __init__(self, group: Group, key: bytes, address: str) -> None:
        self.on_loss: Callable[[str], None] = lambda _: None
        self._group = group
        self._key = key
        self._address = address
        self._identity: Mapping[str, Any] = {}
        self._changed = threading.Condition()  # its lock is reentrant
        self._members: dict[int, _Member] = {}
        self._strangers: deque[socket.socket] = deque()
        self._refused_strangers, self._refused_hosts = Refusals(), Refusals()
        self._run = 0
        self._loss: str | None = None
        self._closed = False
        self._listener: socket.socket | None = None
        self._agents: socket.socket | None = None

    @property
    def loss(self) -> str | None:
        """The reason why the run cannot go on; None while all its hosts are connected."""
        return self._loss

    def open(self, identity: Mapping[str, Any]) -> None:
        """Accept members from now on.

        Args:
            identity: what members must have in common with this host.

        Raises:
            SettingsError: the port is taken.
        """
        self._identity = identity
        place = (self._address, self._group.port)
        try:
            self._listener = socket.create_server(place, backlog=_STRANGERS)
        except OSError as error:
            raise SettingsError(
                f"the port {place[1]} on {place[0]} cannot be opened for the group's hosts "
                f"({error.strerror}); choose another one in serving.nodes_port."
            ) from error
        threading.Thread(target=self._accept, name="group", daemon=True).start()

    def close(self) -> None:
        """Close every connection; members stop their ranks and wait for the next leader."""
        with self._changed:
            self._closed = True
            members, strangers = [*self._members.values()], [*self._strangers]
            self._changed.notify_all()
        for listener in (self._listener, self._agents):
            shut(listener)
        for member in members:
            member.channel.close()
        for stranger in strangers:
            shut(stranger)

    def wait_until_whole(
        self, is_stopping: Callable[[], bool], limit_s: float | None = None
    ) -> None:
        """Wait until every host is connected and idle.

        Args:
            is_stopping: ends the wait; looked at several times per second.
            limit_s: None to wait without limit.

        Raises:
            TritonError: a host is missing after the limit, or the wait was ended.
        """
        started = reported = time.monotonic()
        with self._changed:
            while missing := self._missing():
                now = time.monotonic()
                if is_stopping() or self._closed:
                    raise TritonError("Triton was stopped.")
                if limit_s is not None and now - started > limit_s:
                    raise TritonError(f"hosts are still missing after {limit_s:g} s: {missing}")
                if now - reported > _REPORT_S:
                    logger.warning("waiting for the group: %s", missing)
                    reported = now
                self._changed.wait(HEARTBEAT_S)

    def begin(self, launch: Launch) -> list[str]:
        """Begin a run, once the hosts are idle: serve its launch agents from now on.

        Returns:
            The address of every host, by index.

        Raises:
            TritonError: a host is missing, or does not end its last run.
        """
        self.wait_until_whole(lambda: False, _CLEANUP_LIMIT_S)
        try:
            listener = listen_in(launch.folder, SOCKET_NAME)
        except OSError as error:
            raise TritonError(
                f"the socket for mpirun's launch agents cannot be opened ({error.strerror})."
            ) from error
        with self._changed:
            if missing := self._missing():
                shut(listener)
                raise TritonError(f"the group is not whole: {missing}")
            self._run += 1
            self._loss = None
            shut(self._agents)
            self._agents = listener
            addresses = [self._members[index].address for index in range(1, self._group.size)]
            arguments = (listener, self._run)
        threading.Thread(
            target=self._accept_agents, args=arguments, name="agents", daemon=True
        ).start()
        return [self._address, *addresses]

    def ready(self) -> None:
        """Notify the hosts that all ranks run, so that their daemons close their ports."""
        with self._changed:
            members = [*self._members.values()]
        for member in members:
            with suppress(ConnectionLost):
                member.channel.send({"type": "ready"})

    def _missing(self) -> str:
        """Describe the hosts that are not there or not idle; empty if none."""
        parts = []
        for index in range(1, self._group.size):
            member = self._members.get(index)
            if member is None:
                parts.append(f"host {index} has not joined")
            elif member.is_busy:
                parts.append(f"{member} is still cleaning up")
        if parts:
            parts += [*self._refused_hosts.reasons(), *self._refused_strangers.reasons()]
        return "; ".join(parts)

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closed:
            try:
                connection, (address, _) = self._listener.accept()
            except OSError:  # closed, or without a free file descriptor
                time.sleep(HEARTBEAT_S)
                continue
            with self._changed:
                self._strangers.append(connection)
                oldest = self._strangers.popleft() if len(self._strangers) > _STRANGERS else None
            shut(oldest)
            try:
                threading.Thread(
                    target=self._meet, args=(connection, address), name="group-host", daemon=True
                ).start()
            except RuntimeError:  # no thread can be started; the peer comes again
                self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._changed, suppress(ValueError):
            self._strangers.remove(connection)
        shut(connection)

    def _meet(self, connection: socket.socket, address: str) -> None:
        """Authenticate a peer, then serve it as a member until it is gone."""
        try:
            channel = accept(connection, self._key)
            hello = channel.receive(_HELLO_LIMIT_S)
        except ConnectionLost as error:
            logger.debug("a connection from %s ended: %s", address, error)
            self._forget(connection)
            return
        except NotAuthentic as error:
            self._refused_strangers.note(address, f"{error}.")
            self._forget(connection)
            return
        with self._changed, suppress(ValueError):
            self._strangers.remove(connection)
        with closing(channel):
            member = self._admit(channel, address, hello or {})
            if member is not None:
                self._serve(member)

    def _admit(self, channel: Channel, address: str, hello: Mapping[str, Any]) -> _Member | None:
        """Compare a host with this one; welcome or refuse it."""
        index, identity = hello.get("index"), hello.get("identity")
        is_mine = type(index) is int and 0 < index < self._group.size
        if not is_mine or not isinstance(identity, dict):
            reason: str | None = (
                f"the index {str(index)[:20]} is not in the group, which has the hosts 1 to "
                f"{self._group.size - 1} beside the leader."
            )
        else:
            reason = difference(self._identity, identity)
        passes = False
        with self._changed:
            if reason is None:
                assert isinstance(index, int)
                assert isinstance(identity, dict)
                hostname = identity["hostname"]
                reason = self._conflict(index, hostname)
                passes = reason is not None
                if reason is None:
                    member = _Member(index, address, hostname, channel)
                    self._members[index] = member
                    self._refused_hosts.forget(address)
                    self._refused_strangers.forget(address)
        if reason is not None:
            self._refused_hosts.note(address, reason)
        with suppress(ConnectionLost, NotAuthentic):
            if reason is None:
                channel.send({"type": "welcome"})
                logger.info("%s joined", member)
                with self._changed:
                    self._changed.notify_all()
                return member
            channel.send({"type": "refused", "reason": reason, "passes": passes})
            channel.receive(HEARTBEAT_S)  # until the peer has read it and left
        if reason is None:
            self._lose(member, "it left at once")
        return None

    def _conflict(self, index: int, hostname: str) -> str | None:
        """Return why a host cannot join beside the others; that may pass."""
        if index in self._members:
            return f"{self._members[index]} is connected already; give every host its own index."
        for other in self._members.values():
            if other.hostname == hostname:
                return f"the hostname is {hostname}, that of {other}; give every host its own."
        return None

    def _serve(self, member: _Member) -> None:
        """Exchange heartbeats with a member until it is lost."""
        beat_at = time.monotonic()
        try:
            while True:
                message = member.channel.receive(HEARTBEAT_S / 2)
                if message is None and member.channel.silent_for_s > SILENCE_LIMIT_S:
                    raise ConnectionLost(f"it was silent for {SILENCE_LIMIT_S:g} s")
                if message is not None:
                    self._obey(member, message)
                if time.monotonic() - beat_at >= HEARTBEAT_S:
                    beat_at = time.monotonic()
                    member.channel.send({"type": "alive"})
        except (ConnectionLost, NotAuthentic) as error:
            self._lose(member, str(error))
        except Exception as error:
            logger.exception("%s cannot be served", member)
            self._lose(member, f"{type(error).__name__}: {error}")

    def _obey(self, member: _Member, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind not in ("ended", "failed"):
            return
        with self._changed:
            agent, member.agent, member.is_busy = member.agent, None, False
            self._changed.notify_all()
        if kind == "failed" and agent is not None:
            self._fail(f"{member} could not start its ranks: {str(message.get('reason'))[:500]}")
        if agent is not None:
            status = message.get("status")
            with suppress(OSError):
                agent.sendall(b"%d\n" % (status if isinstance(status, int) else 1))
            shut(agent)

    def _lose(self, member: _Member, why: str) -> None:
        """Drop a member; end the run that it takes part in."""
        with self._changed:
            if self._members.get(member.index) is member:
                del self._members[member.index]
            agent, member.agent = member.agent, None
            self._changed.notify_all()
        if self._closed:
            return
        logger.error("%s was lost: %s", member, why)
        if agent is not None:
            self._fail(f"{member} was lost: {why}.")
            shut(agent)

    def _fail(self, reason: str) -> None:
        self._loss = reason
        self.on_loss(reason)

    def _accept_agents(self, listener: socket.socket, run: int) -> None:
        while True:
            try:
                agent, _ = listener.accept()
            except OSError:  # the run is over
                return
            threading.Thread(
                target=self._serve_agent, args=(agent, run), name="agent", daemon=True
            ).start()

    def _serve_agent(self, agent: socket.socket, run: int) -> None:
        """Start a daemon for one launch agent; stop it when the agent is gone."""
        member = None
        try:
            with agent.makefile("rb") as lines:
                request = json.loads(lines.readline(_AGENT_BYTES))
                values = read_command(request["words"])
                check_values(values, self._address)
                member = self._assign(request["host"], agent, run)
                member.channel.send({"type": "start", "launch": values})
                lines.read(1)  # ends with the agent or the run
        except (WrongCommand, ValueError, KeyError, TypeError) as error:
            self._fail(f"mpirun's launch agent was refused: {error}.")
        except (ConnectionLost, OSError) as error:
            logger.debug("a launch agent ended: %s", error)
        finally:
            self._dismiss(member, agent)

    def _assign(self, host: str, agent: socket.socket, run: int) -> _Member:
        with self._changed:
            for member in self._members.values():
                if member.address == host and run == self._run and not member.is_busy:
                    member.agent, member.is_busy = agent, True
                    return member
        raise WrongCommand(f"{host} is not an idle host of run {run}")

    def _dismiss(self, member: _Member | None, agent: socket.socket) -> None:
        with self._changed:
            is_running = member is not None and member.agent is agent
            if member is not None and is_running:
                member.agent = None
        if member is not None and is_running:
            with suppress(ConnectionLost):
                member.channel.send({"type": "stop"})
        shut(agent)
