"""A histogram cheap enough to be fed from the token stream.

prometheus_client's own takes a lock for every observation; this one is written by the event loop
alone and counts in plain integers. What a scrape sees of an observation under way is off by that
one at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts of values in fixed buckets, and their sum."""

    __slots__ = ("_bounds", "_counts", "_documentation", "_name", "_sum")

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        """An empty histogram.

        Args:
            name: the family's, with its unit.
            documentation: one sentence for `# HELP`.
            bounds: the buckets' upper bounds, each part of its bucket, ascending; what is above
                the last one is counted too.
        """
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Counts a value as often as `weight` says."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def family(self) -> HistogramMetricFamily:
        """What a scrape shows."""
        return HistogramMetricFamily(
            self._name, self._documentation, buckets=list(self._buckets()), sum_value=self._sum
        )

    def _buckets(self) -> Iterator[tuple[str, float]]:
        labels = (*map(str, self._bounds), "+Inf")
        return zip(labels, accumulate(self._counts), strict=True)
