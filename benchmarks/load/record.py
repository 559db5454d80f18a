"""Collect the figures of single requests and aggregate them."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.load.spec import LoadResult


class Record:
    """All requests of one load, which starts now.

    Attributes:
        last_byte_s: time of the last byte to any client, on the monotonic clock.
    """

    def __init__(self) -> None:
        self._start_s = self._end_s = self.last_byte_s = time.perf_counter()
        self._start_cpu_s = time.process_time()
        self._outcomes: Counter[str] = Counter()
        self._tokens = 0
        self._arrivals = 0
        self._ttfts_s: list[float] = []
        self._gaps_s: list[float] = []
        self._connects_s: list[float] = []
        self._paces_tok_s: list[float] = []

    def add(self, start_s: float, arrivals_s: Sequence[float], tokens: int) -> None:
        """Add a complete answer with the arrival times of its tokens."""
        self._end_s = time.perf_counter()
        self._outcomes["200"] += 1
        self._tokens += tokens
        self._arrivals += len(arrivals_s)
        if arrivals_s:
            self._ttfts_s.append(arrivals_s[0] - start_s)
        self._gaps_s += [b - a for a, b in itertools.pairwise(arrivals_s)]
        if len(arrivals_s) > 1:
            self._paces_tok_s.append((tokens - 1) / (arrivals_s[-1] - arrivals_s[0]))

    def add_failure(self, outcome: str) -> None:
        """Add a request without a complete answer."""
        self._outcomes[outcome] += 1

    def add_connect(self, took_s: float) -> None:
        """Add the time to open a connection."""
        self._connects_s.append(took_s)

    def result(self) -> LoadResult:
        return LoadResult(
            tokens=self._tokens,
            elapsed_s=self._end_s - self._start_s,
            cpu_s=time.process_time() - self._start_cpu_s,
            outcomes=dict(sorted(self._outcomes.items())),
            ttft_ms=quantiles_ms(self._ttfts_s),
            gap_ms=quantiles_ms(self._gaps_s),
            connect_ms=quantiles_ms(self._connects_s),
            pace_tok_s=statistics.median(self._paces_tok_s) if self._paces_tok_s else 0.0,
            tokens_per_arrival=self._tokens / self._arrivals if self._arrivals else 0.0,
        )


def quantiles_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and max by nearest rank; empty without values."""
    if not values_s:
        return {}
    ordered = sorted(values_s)

    def at(share: float) -> float:
        return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {"p50": at(0.5), "p99": at(0.99), "max": at(1)}
