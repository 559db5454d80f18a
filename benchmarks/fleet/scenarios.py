"""The scenarios of docs/scale.md: fleets of 1 to 1,000, a step, the loss of a zone, a day."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.fleet.autoscaler import Scaling
from benchmarks.fleet.fleet import Scenario, mean_steps
from benchmarks.fleet.replica import EngineModel
from benchmarks.fleet.router import ROUTERS

MODEL = EngineModel()
CAPACITY = MODEL.requests_per_s(mean_steps(MODEL))
"""Maximum requests per second of one replica."""

TARGET = 0.7
DAY_S = 86_400
STEP_S, STEP_FACTOR = 300, 10
ZONE_LOST_S = 300
_SLOW_ROUTERS = {"least, metrics 5 s old"}


@dataclass(frozen=True, slots=True)
class Steady:
    requests_per_s: float

    def __call__(self, at_s: float) -> float:
        return self.requests_per_s


@dataclass(frozen=True, slots=True)
class Step:
    before: float
    after: float
    at_s: float

    def __call__(self, at_s: float) -> float:
        return self.before if at_s < self.at_s else self.after


@dataclass(frozen=True, slots=True)
class Day:
    """A cosine with its low at midnight."""

    low: float
    high: float
    day_s: float

    def __call__(self, at_s: float) -> float:
        return self.low + (self.high - self.low) * (1 - math.cos(math.tau * at_s / self.day_s)) / 2


def sizes(counts: tuple[int, ...], seconds: float) -> Mapping[str, Scenario]:
    """Fleets of fixed size at 95 % of their capacity, with every router.

    Args:
        counts: numbers of replicas.
        seconds: duration with one replica; larger fleets run shorter, for the same number of
            requests.
    """
    filled_s = 45.0
    return {
        f"{count} {router}": Scenario(
            Steady(0.95 * CAPACITY * count),
            filled_s + max(20.0, seconds / count),
            count,
            router=router,
            counted_from_s=filled_s,
        )
        for count in counts
        for router in ROUTERS
        if not (router in _SLOW_ROUTERS and count > 100)
    }


def steps(replicas: int, seconds: float) -> Mapping[str, Scenario]:
    """Ten times the load from one second to the next."""
    base = TARGET * CAPACITY * replicas
    load = Step(base, base * STEP_FACTOR, STEP_S)
    blind = Scaling(least=replicas, counts_refused=False)
    seeing = Scaling(least=replicas)
    fast = Scaling(least=replicas, up_share=9)
    variants = {
        "in flight, doubling, 30 s": (blind, 30),
        "in flight, doubling, 120 s": (blind, 120),
        "in flight, doubling, 600 s": (blind, 600),
        "with refused, doubling, 120 s": (seeing, 120),
        "with refused, tenfold, 30 s": (fast, 30),
        "with refused, tenfold, 120 s": (fast, 120),
        "with refused, tenfold, 600 s": (fast, 600),
    }
    return {
        name: Scenario(load, seconds, replicas, scaling, cold_s, counted_from_s=STEP_S)
        for name, (scaling, cold_s) in variants.items()
    }


def zones(replicas: int, seconds: float) -> Mapping[str, Scenario]:
    """One of three zones fails for good, at several loads; the others get its replicas."""
    return {
        f"{load:.0%}": Scenario(
            Steady(load * CAPACITY * replicas),
            seconds,
            replicas,
            Scaling(least=replicas, most=replicas),
            zone_lost_s=ZONE_LOST_S,
            counted_from_s=ZONE_LOST_S - 60,
        )
        for load in (0.5, 0.6, 0.7, 0.8, 0.9)
    }


def days(most: int, day_s: float) -> Mapping[str, Scenario]:
    """A day whose peak is six times its night."""
    high = TARGET * CAPACITY * most
    load = Day(high / 6, high, day_s)
    fixed = Scenario(load, day_s, most, sample_s=60)
    return {
        "fixed": fixed,
        **{
            f"autoscaled, {cold_s} s": Scenario(
                load, day_s, max(1, most // 6), Scaling(), cold_s, sample_s=60
            )
            for cold_s in (120, 600)
        },
    }
