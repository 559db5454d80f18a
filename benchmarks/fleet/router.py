"""Ways to choose a replica for a request."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.fleet.replica import Replica

Router = Callable[[Sequence[Replica]], Replica]
"""Chooses one of the replicas that are ready; there is at least one."""

_SCRAPE_S = 5.0


def at_random(rng: random.Random, clock: Callable[[], float]) -> Router:
    return lambda replicas: replicas[int(rng.random() * len(replicas))]


def in_turn(rng: random.Random, clock: Callable[[], float]) -> Router:
    turn = 0

    def choose(replicas: Sequence[Replica]) -> Replica:
        nonlocal turn
        turn += 1
        return replicas[turn % len(replicas)]

    return choose


def better_of_two(rng: random.Random, clock: Callable[[], float]) -> Router:
    """Take the less loaded one of two random replicas; the router counts requests itself."""
    one = at_random(rng, clock)

    def choose(replicas: Sequence[Replica]) -> Replica:
        first, second = one(replicas), one(replicas)
        return first if first.in_flight <= second.in_flight else second

    return choose


def least_scraped(rng: random.Random, clock: Callable[[], float]) -> Router:
    """Take the least loaded one by metrics that are up to five seconds old."""
    seen: list[Replica] = []
    scraped_s = -_SCRAPE_S

    def choose(replicas: Sequence[Replica]) -> Replica:
        nonlocal seen, scraped_s
        if clock() - scraped_s >= _SCRAPE_S or any(one.is_lost for one in seen[:1]):
            seen, scraped_s = sorted(replicas, key=lambda one: one.in_flight), clock()
        return seen[0]

    return choose


ROUTERS: dict[str, Callable[[random.Random, Callable[[], float]], Router]] = {
    "random": at_random,
    "round robin": in_turn,
    "better of two": better_of_two,
    "least, metrics 5 s old": least_scraped,
}
