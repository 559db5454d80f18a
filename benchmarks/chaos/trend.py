"""The trend of a figure sampled over time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trend:
    """Samples of one figure.

    Attributes:
        low: the least.
        high: the most.
        mean: of all.
        growth: growth of a straight line through the samples (least squares) from first to last.
    """

    low: float
    high: float
    mean: float
    growth: float

    def is_flat(self, least: float) -> bool:
        """Return True if the growth is less than 5 % of the mean, or less than `least`."""
        return self.growth < max(0.05 * self.mean, least)


def trend_of(samples: Sequence[tuple[float, float]]) -> Trend:
    """Return the trend of pairs of a time and a figure; one sample does not grow."""
    times, values = [time for time, _ in samples], [value for _, value in samples]
    growth = 0.0
    if len(samples) > 1:
        growth = statistics.linear_regression(times, values).slope * (times[-1] - times[0])
    return Trend(min(values), max(values), statistics.fmean(values), growth)
