"""Sends signals to the processes of a server that it is to survive."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.servers.usage import descendants, truss_server

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
_GOES_ON = 0.5
_STOPPED_S = (0.2, 6.0)


class Killer:
    """Strikes at random, the same way for the same seed as far as the processes are the same.

    Truss's server and what stands above it are spared: without them nothing is left to answer.

    Attributes:
        strikes: how often which process got which signal.
    """

    def __init__(self, root: int, seed: int, every_s: tuple[float, float]) -> None:
        """Describes a killer.

        Args:
            root: from which the server's processes descend.
            seed: of its random choices.
            every_s: least and most seconds between two strikes.
        """
        self.strikes: Counter[str] = Counter()
        self._root = root
        self._chance = random.Random(seed)
        self._every_s = every_s
        self._stopped: set[int] = set()

    async def run(self) -> None:
        """Strikes until it is cancelled; what is stopped goes on then."""
        waking: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(self._chance.uniform(*self._every_s))
                pid = self._strike()
                if pid is not None and self._chance.random() < _GOES_ON:
                    after_s = self._chance.uniform(*_STOPPED_S)
                    waking.add(asyncio.create_task(self._wake_later(pid, after_s)))
        finally:
            for task in waking:
                task.cancel()
            self._stopped &= descendants(self._root)
            for pid in tuple(self._stopped):
                self._wake(pid)

    def _strike(self) -> int | None:
        """Signals one process; gives its id if it stands still now."""
        victims = self._victims()
        if not victims:
            return None
        name = self._chance.choice(sorted(victims))
        pid = self._chance.choice(sorted(victims[name]))
        number = self._chance.choice(_SIGNALS)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            self.strikes[f"{signal.Signals(number).name} {name}"] += 1
            if number == signal.SIGSTOP:
                self._stopped.add(pid)
                return pid
        return None

    def _victims(self) -> dict[str, list[int]]:
        """The processes below Truss's server, by name and rank."""
        found: dict[str, list[int]] = {}
        for pid in descendants(truss_server(self._root)):
            found.setdefault(_name(pid), []).append(pid)
        found.pop("", None)
        return found

    async def _wake_later(self, pid: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if pid in descendants(self._root):
            self._wake(pid)

    def _wake(self, pid: int) -> None:
        self._stopped.discard(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _name(pid: int) -> str:
    """As `ps` shows it, with the rank in a job of several; empty for a process that has ended."""
    with suppress(OSError):
        folder = Path(f"/proc/{pid}")
        name = (folder / "comm").read_text().strip()
        for variable in (folder / "environ").read_bytes().split(b"\0"):
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                return f"{name} of rank {variable.partition(b'=')[2].decode()}"
        return name
    return ""
