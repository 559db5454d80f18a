"""Kubernetes' horizontal autoscaler, as examples/kubernetes/autoscaling.yaml sets it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """The settings of a ScaledObject.

    Attributes:
        threshold: requests in flight per replica.
        least: fewest replicas.
        most: most replicas.
        interval_s: interval between checks of the metric.
        up_share: growth per period, or `up_replicas` if that is more.
        up_replicas: see above.
        down_share: decline per period.
        period_s: of both.
        stabilization_s: a decline follows the highest target of this period.
        tolerance: smaller deviations change nothing.
        counts_refused: the metric includes the requests that refused ones would have had in flight.
    """

    threshold: float = 45
    least: int = 1
    most: int = 1000
    interval_s: float = 15
    up_share: float = 1.0
    up_replicas: int = 4
    down_share: float = 0.1
    period_s: float = 60
    stabilization_s: float = 600
    tolerance: float = 0.1
    counts_refused: bool = True


class Autoscaler:
    """Turns the metric into a number of replicas."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._wishes: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def desired(self, now_s: float, current: int, in_flight: float) -> int:
        """Return the number of replicas, for `current` and the metric of all of them."""
        scaling = self._scaling
        wish = current
        if abs(in_flight / (scaling.threshold * current) - 1) > scaling.tolerance:
            wish = math.ceil(in_flight / scaling.threshold)
        wish = self._stabilized(now_s, current, min(max(wish, scaling.least), scaling.most))
        while self._changes and self._changes[0][0] <= now_s - scaling.period_s:
            self._changes.popleft()
        if wish > current:
            before = current - sum(change for _, change in self._changes if change > 0)
            grown = max(before + scaling.up_replicas, math.ceil(before * (1 + scaling.up_share)))
            wish = max(current, min(wish, grown))
        elif wish < current:
            before = current - sum(change for _, change in self._changes if change < 0)
            wish = min(current, max(wish, math.floor(before * (1 - scaling.down_share))))
        if wish != current:
            self._changes.append((now_s, wish - current))
        return wish

    def _stabilized(self, now_s: float, current: int, wish: int) -> int:
        """Return the highest target of the last minutes, if all were lower than now."""
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] < now_s - self._scaling.stabilization_s:
            self._wishes.popleft()
        return wish if wish >= current else min(current, max(wish for _, wish in self._wishes))
