"""Our histogram against prometheus_client's, for any values."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from trtllm_truss.observability.metrics import Histogram

BOUNDS = (0.001, 0.0025, 0.5, 1, 32768)


class Shown(Collector):
    """A collector of one histogram."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram

    def collect(self):
        return [self._histogram.family()]


def without_creation_time(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


values = st.sampled_from(BOUNDS) | st.floats(0, 2**17, width=32)


@given(st.lists(st.tuples(values, st.integers(1, 5))))
def test_equals_the_official_histogram(observed: list[tuple[float, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("a_seconds", "What.", BOUNDS)
    ours.register(Shown(histogram))
    official = prometheus_client.Histogram("a_seconds", "What.", buckets=BOUNDS, registry=theirs)
    for value, weight in observed:
        histogram.observe(value, weight)
        for _ in range(weight):
            official.observe(value)
    mine, other = without_creation_time(ours), without_creation_time(theirs)
    sums = [[float(line.split()[1]) for line in lines if "_sum" in line] for lines in (mine, other)]
    assert abs(sums[0][0] - sums[1][0]) <= 1e-9 * sums[1][0]  # added in another order
    assert [x for x in mine if "_sum" not in x] == [x for x in other if "_sum" not in x]
