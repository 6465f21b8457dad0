"""Which way of a metric is worse, by its unit, and when a change is more than noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.core.metric_direction import ComparisonRule, MetricTrend, judge, rule_of

FAST = ComparisonRule("higher", 0.05, 1)


def test_what_a_metric_says_of_its_direction_goes_before_its_unit() -> None:
    assert rule_of("GB/s") == rule_of("GB/s", "higher") == FAST
    assert rule_of("GB/s", "lower") == ComparisonRule("lower", 0.05, 1)
    assert rule_of("s", "neither") == ComparisonRule("neither", 0.2, 4)
    assert rule_of("W") == rule_of("W", "neither") == ComparisonRule("neither", 0.2, 4)
    assert rule_of("W", "lower") == ComparisonRule("lower", 0.2, 4)


@pytest.mark.parametrize(
    ("value", "earlier", "unit", "judged"),
    [
        (1.0, [], "GB/s", MetricTrend("new")),
        (95.0, [100.0], "GB/s", MetricTrend("same", 100.0, 0.0, -0.05, 1)),
        (94.0, [100.0], "GB/s", MetricTrend("worse", 100.0, 0.0, -0.06, 1)),
        (106.0, [100.0], "GB/s", MetricTrend("better", 100.0, 0.0, 0.06, 1)),
        (None, [100.0], "GB/s", MetricTrend("worse", 100.0, 0.0, None, 1)),
        (None, [100.0], "W", MetricTrend("no direction", 100.0, 0.0, None, 1)),
        (9.0, [1.0, 1.0, 1.0], "s", MetricTrend("too few", 1.0, 0.0, 8.0, 3)),
        (1.0, [0.0], "GB/s", MetricTrend("better", 0.0, 0.0, None, 1)),
        (9.0, [1.0, 1.0, 1.0, 1.0], "s", MetricTrend("worse", 1.0, 0.0, 8.0, 4)),
        (20.0, [5.0, 10.0, 10.0, 15.0, 20.0], "s", MetricTrend("same", 10.0, 5.0, 1.0, 5)),
        (20.0, [5.0, 10.0, 15.0], "GB/s", MetricTrend("better", 10.0, 5.0, 1.0, 3)),
        (7.0, [8.0, 6.0, 8.0], "GPUs", MetricTrend("worse", 8.0, 0.0, -0.125, 3)),
        (7.0, [9.0, 9.0, 9.0, 6.0], "GPUs", MetricTrend("better", 6.0, 3.0, 1 / 6, 4)),
        (3.0, [2.0], "errors", MetricTrend("worse", 2.0, 0.0, 0.5, 1)),
        (-3.0, [-2.0], "errors", MetricTrend("better", -2.0, 0.0, -0.5, 1)),
    ],
)
def test_a_value_is_held_against_earlier_ones(
    value: float | None, earlier: list[float], unit: str, judged: MetricTrend
) -> None:
    found = judge(value, earlier, rule_of(unit))
    distance: Any = None if judged.distance is None else pytest.approx(judged.distance)
    assert found == replace(judged, distance=distance)
