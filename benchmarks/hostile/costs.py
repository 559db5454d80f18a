"""The cost of an attack for others: the wait of another client, and memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.hostile.neighbour import Neighbour
from benchmarks.servers.target import Target
from benchmarks.servers.usage import PeakMemory, total, truss_server, usage_by_role

MAX_WAIT_MS = 500.0
"""Maximum wait of another client, beyond its usual longest wait."""

MAX_PEAK_MIB = 600.0
MAX_KEPT_MIB = 100.0
SETTLE_S = 10.0

_MIB = 1 << 20
_TAIL_S = 0.2
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one attack.

    Attributes:
        name: name of the attack.
        statuses: statuses of its responses.
        wait_ms: the neighbour's longest wait, beyond its usual longest one.
        peak_mib: peak memory of Truss's server during the attack.
        kept_mib: growth of all processes of the server, `SETTLE_S` later.
    """

    name: str
    statuses: Counter[int]
    wait_ms: float
    peak_mib: float
    kept_mib: float

    @property
    def shortfalls(self) -> list[str]:
        """The missed targets, with their figures."""
        missed = [
            (self.wait_ms > MAX_WAIT_MS, f"wait +{self.wait_ms / 1000:.2f} s"),
            (self.peak_mib > MAX_PEAK_MIB, f"peak {self.peak_mib:.0f} MiB"),
            (self.kept_mib > MAX_KEPT_MIB, f"kept {self.kept_mib:+.0f} MiB"),
        ]
        return [text for is_missed, text in missed if is_missed]


class Gauge:
    """Measures attacks on one server.

    Args:
        target: the server.
        neighbour: the well-behaved client.
        usual_s: duration of the observation of the neighbour's usual waits.

    Attributes:
        usual_ms: the neighbour's usual waits.
    """

    def __init__(self, target: Target, neighbour: Neighbour, usual_s: float) -> None:
        self._target = target
        self._neighbour = neighbour
        started = time.monotonic()
        time.sleep(usual_s)
        self.usual_ms = neighbour.waits_ms(started, time.monotonic())

    def measure(self, name: str, attack: Callable[[], Iterable[int]]) -> Cost:
        """Run an attack, which returns the statuses of its responses."""
        before = self.rss_mib()
        started = time.monotonic()
        with PeakMemory(truss_server(self._target.pid), with_descendants=False) as memory:
            statuses = Counter(attack())
            waits = self._neighbour.waits_ms(started, time.monotonic() + _TAIL_S)
        return Cost(
            name=name,
            statuses=statuses,
            wait_ms=max(0.0, max(waits, default=0.0) - max(self.usual_ms)),
            peak_mib=memory.rss_bytes / _MIB,
            kept_mib=self.settled_mib(before) - before,
        )

    def rss_mib(self) -> float:
        """Return the memory of all processes of the server."""
        return total(usage_by_role(self._target.pid)).rss_bytes / _MIB

    def settled_mib(self, before: float) -> float:
        """Return the memory after `SETTLE_S`, or as soon as it is back within the target."""
        deadline = time.monotonic() + SETTLE_S
        while (now := self.rss_mib()) > before + MAX_KEPT_MIB and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return now
