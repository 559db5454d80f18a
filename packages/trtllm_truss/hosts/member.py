"""A member of a group: joins the leader, starts what it asks for, and cleans up without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from trtllm_truss.errors import SettingsError, StartupError
from trtllm_truss.hosts.channel import (
    Channel,
    ConnectionLost,
    NotAuthentic,
    OtherVersion,
    connect,
)
from trtllm_truss.hosts.daemon import WrongCommand, check_values
from trtllm_truss.hosts.leader import HEARTBEAT_S
from trtllm_truss.hosts.network import resolve
from trtllm_truss.hosts.ranks import HostRun
from trtllm_truss.settings.groups import Group

logger = logging.getLogger(__name__)

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
        group: the group.
        index: this host's place.
        key: the group's key.
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
