"""The status of a service: its start phases, restarts and failures.

`ServiceStatus` keeps it in memory. A program that starts the server as another process passes a
file name in `TRTLLM_TRUSS_STATUS`; the server writes its status there, and `StatusReader` reads it.
Log lines are for people; programs do not parse them.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from zlib import crc32

logger = logging.getLogger(__name__)

STATUS_VARIABLE = "TRTLLM_TRUSS_STATUS"
START_FAILED = "start_failed"
"""Field of the log record that states why the service cannot start.

Later errors are consequences.
"""

_EVENTS_KEPT = 6


class State(str, enum.Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


class Change(str, enum.Enum):
    """An event in the life of an engine after it first became ready."""

    EXITED = "exited"
    RESTART = "restart"
    RESTART_FAILED = "restart_failed"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the start, one of `count`; phases may overlap.

    Attributes:
        number: from 1.
        detail: its result.
        took_s: duration; None until it ends.
        at_s: start time, in seconds since the epoch.
    """

    number: int
    count: int
    name: str
    detail: str = ""
    took_s: float | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the engine.

    Attributes:
        at_s: time in seconds since the epoch.
        reason: reason of an exit or a failed restart.
        restart: number of the restart, from 1.
        restart_limit: number of the last restart.
    """

    at_s: float
    change: Change
    reason: str = ""
    restart: int = 0
    restart_limit: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The status at one moment.

    Attributes:
        reason: reason of the last failure; empty once the service is ready again.
        restarts: number of engine restarts since the process started.
        events: the latest events, in order.
    """

    state: State = State.STARTING
    reason: str = ""
    restarts: int = 0
    phases: tuple[Phase, ...] = ()
    events: tuple[Event, ...] = ()


class ServiceStatus:
    """The status of the service in this process; thread-safe.

    Args:
        publish: receives each new status.
        time_s: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        publish: Callable[[Status], None] = lambda status: None,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._publish = publish
        self._time_s = time_s
        self._lock = threading.Lock()
        self._current = Status()

    @classmethod
    def published(cls, variables: Mapping[str, str]) -> ServiceStatus:
        """Create a status that is written to the file given in the environment, if any."""
        path = variables.get(STATUS_VARIABLE)
        return cls(StatusFile(Path(path)).write) if path else cls()

    @property
    def current(self) -> Status:
        return self._current

    def starting(self) -> None:
        self._change(state=State.STARTING, reason="", phases=())

    def phase(self, phase: Phase) -> None:
        """Report the start or end of a phase."""
        with self._lock:
            others = [each for each in self._current.phases if each.number != phase.number]
            phases = sorted([*others, phase], key=lambda each: each.number)
            self._set(replace(self._current, phases=tuple(phases)))

    def ready(self) -> None:
        self._change(state=State.READY, reason="")

    def failed(self, reason: str) -> None:
        """Report that the service cannot start, or gives up."""
        self._change(state=State.FAILED, reason=reason)

    def follow(self, started: Status) -> None:
        """Adopt the engine status reported by a process that this one started.

        The state follows once this service is ready.
        """
        with self._lock:
            own = self._current
            serves = {own.state, started.state} <= {State.READY, State.RESTARTING}
            status = started if serves else replace(started, state=own.state, reason=own.reason)
            if status != own:  # called for each line of a log
                self._set(status)

    def engine_exited(self, reason: str) -> None:
        self._change(Change.EXITED, state=State.RESTARTING, reason=reason)

    def restart(self, number: int, limit: int) -> None:
        """Report a restart of the engine before it begins."""
        with self._lock:
            event = Event(self._time_s(), Change.RESTART, restart=number, restart_limit=limit)
            self._set(replace(self._with(event), restarts=self._current.restarts + 1))

    def restart_failed(self, reason: str) -> None:
        self._change(Change.RESTART_FAILED, reason=reason)

    def restarted(self) -> None:
        self._change(Change.RESTARTED, state=State.READY, reason="")

    def _change(self, change: Change | None = None, **values: Any) -> None:
        with self._lock:
            status = self._current
            if change is not None:
                reason = values.get("reason", "")
                status = self._with(Event(self._time_s(), change, reason))
            self._set(replace(status, **values))

    def _with(self, event: Event) -> Status:
        events = (*self._current.events, event)[-_EVENTS_KEPT:]
        return replace(self._current, events=events)

    def _set(self, status: Status) -> None:
        self._current = status
        self._publish(status)


class StatusFile:
    """Writes a status to a file that only this user can read.

    The file is overwritten in place: a reader that has it open can read the last status even after
    the folder is gone. A checksum reveals to a reader that it has read during a write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, status: Status) -> None:
        """Replace the contents; a failure is logged, because the service works without the file."""
        content = json.dumps(asdict(status)).encode()
        try:
            file = _open_private(self._path, os.O_WRONLY | os.O_CREAT)
            try:
                os.write(file, b"%08x %s\n" % (crc32(content), content))
            finally:
                os.close(file)
        except OSError as error:
            logger.warning("cannot write the status to %s: %s", self._path, error.strerror)


class StatusReader:
    """Reads a process's status from a file, which exists before the process; thread-safe.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(_open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "rb+", 0)
        self._lock = threading.Lock()
        self._content = b""
        self._last: Status | None = None

    def read(self) -> Status | None:
        """Return the latest status; None before the first."""
        with self._lock, suppress(OSError, ValueError, KeyError, TypeError):
            self._file.seek(0)  # raises ValueError once it is closed
            checksum, _, content = self._file.read().partition(b"\n")[0].partition(b" ")
            if content != self._content and int(checksum, 16) == crc32(content):
                self._last = _from_json(json.loads(content))
                self._content = content
        return self._last

    def close(self) -> None:
        """Close the file; `read` keeps returning the last status."""
        self.read()
        with self._lock:
            self._file.close()


def _open_private(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _from_json(value: Mapping[str, Any]) -> Status:
    """Read a status, which another version of this package may have written.

    Raises:
        KeyError: a field is missing.
        TypeError: a field is missing.
        ValueError: a field has an unknown value.
    """
    return Status(
        State(value["state"]),
        str(value["reason"]),
        int(value["restarts"]),
        tuple(Phase(**_known(Phase, each)) for each in value["phases"]),
        tuple(
            replace(Event(**_known(Event, each)), change=Change(each["change"]))
            for each in value["events"]
        ),
    )


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: each for name, each in value.items() if name in names}
