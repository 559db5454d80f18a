"""The soak passes for a moment, and its rule distinguishes growth from noise."""

from __future__ import annotations

import pytest
from benchmarks.chaos.trend import trend_of


@pytest.mark.parametrize(
    ("values", "growth", "is_flat"),
    [
        ([100.0] * 5, 0.0, True),
        ([100.0, 110.0, 90.0, 110.0, 100.0], 0.0, True),
        ([100.0, 104.0, 108.0, 112.0, 116.0], 16.0, True),
        ([100.0, 110.0, 120.0, 130.0, 140.0], 40.0, False),
        ([1000.0, 1010.0, 1020.0, 1030.0, 1040.0], 40.0, True),
        ([140.0, 130.0, 120.0, 110.0, 100.0], -40.0, True),
        ([100.0], 0.0, True),
    ],
)
def test_growth_is_that_of_a_straight_line(
    values: list[float], growth: float, is_flat: bool
) -> None:
    trend = trend_of([(10.0 * number, value) for number, value in enumerate(values)])
    assert trend.growth == pytest.approx(growth)
    assert (trend.low, trend.high) == (min(values), max(values))
    assert trend.is_flat(20.0) == is_flat
