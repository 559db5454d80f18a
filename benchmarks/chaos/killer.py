"""Signal processes whose loss a server must survive."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress

from benchmarks.servers.usage import descendants, truss_server
from trtllm_truss.processes.process_guard import name_of, read_proc

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
_RESUMED_SHARE = 0.5
_STOPPED_S = (0.2, 6.0)


class Killer:
    """Signals random processes below Truss's server; equal seeds make equal choices.

    Spares Truss's server and its ancestors: without them no request is answered.

    Args:
        root: the ancestor of the server's processes.
        seed: seed of the random choices.
        every_s: minimum and maximum seconds between two signals.

    Attributes:
        strikes: counts by signal and process.
    """

    def __init__(self, root: int, seed: int, every_s: tuple[float, float]) -> None:
        self.strikes: Counter[str] = Counter()
        self._root = root
        self._chance = random.Random(seed)
        self._every_s = every_s
        self._stopped: set[int] = set()

    async def run(self) -> None:
        """Signal until cancelled; then resume every stopped process."""
        waking: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(self._chance.uniform(*self._every_s))
                pid = self._strike()
                if pid is not None and self._chance.random() < _RESUMED_SHARE:
                    after_s = self._chance.uniform(*_STOPPED_S)
                    waking.add(asyncio.create_task(self._wake_later(pid, after_s)))
        finally:
            for task in waking:
                task.cancel()
            self._stopped &= descendants(self._root).keys()
            for pid in tuple(self._stopped):
                self._wake(pid)

    def _strike(self) -> int | None:
        """Signal one process; return its id if it is stopped now."""
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
        """Return the processes below Truss's server by name and rank."""
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
    """Return the name in `ps` and the MPI rank, if any; empty for a process that has exited."""
    for variable in read_proc(pid, "environ").split(b"\0"):
        if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
            return f"{name_of(pid)} of rank {variable.partition(b'=')[2].decode()}"
    return name_of(pid)
