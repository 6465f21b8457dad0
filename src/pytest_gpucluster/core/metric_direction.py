"""The direction in which a metric gets worse, and the least change that is more than noise. Pure.

A metric states its direction (`Metric.better`) or has that of its unit. A unit that is not in `RULES`, and
`better="neither"`, has no direction: such a metric is shown and never reported as worse.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.outliers import FEWEST, beyond_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HIGHER", "LOWER", "NEITHER", "RULES", "ComparisonRule", "MetricTrend", "judge", "rule_of"]

HIGHER, LOWER, NEITHER = "higher", "lower", "neither"

# Three consecutive runs of all_reduce on H200, 256 MiB to 4 GiB, two nodes, two programs: no two of three differ by
# more than 1.6% (tests/data/h200x4-slurm/payload-by-nccl-tests.txt). The nccl suite's own tolerance is 5% too.
BANDWIDTH_STEP = 0.05
# Start-up times, small latencies and file system times vary: they are judged by their spread, from FEWEST runs on;
# an operator would investigate a change of a fifth.
COARSE_STEP = 0.2


@dataclass(frozen=True)
class ComparisonRule:
    """How values of a unit are compared.

    `better` is the good direction; `step` the least relative distance; `fewest` the earlier runs that are needed.
    `counted`: a count of parts or errors: every change is real, and the last value is the reference.
    """

    better: str
    step: float = COARSE_STEP
    fewest: int = FEWEST
    counted: bool = False


_BANDWIDTH = ComparisonRule(HIGHER, BANDWIDTH_STEP, fewest=1)
_PARTS = ComparisonRule(HIGHER, 0.0, fewest=1, counted=True)
_ERRORS = ComparisonRule(LOWER, 0.0, fewest=1, counted=True)
RULES: dict[str, ComparisonRule] = {
    **dict.fromkeys(("GB/s", "TFLOP/s"), _BANDWIDTH),
    **dict.fromkeys(("MB/s", "Gb/s", "units/s", "CPUs/task"), ComparisonRule(HIGHER)),
    **dict.fromkeys(("s", "ms", "us"), ComparisonRule(LOWER)),
    **dict.fromkeys(("GPUs", "CPUs", "ports", "links", "lanes", "generation", "targets", "nodes"), _PARTS),
    **dict.fromkeys(("errors", "events", "rows", "alerts", "restarts"), _ERRORS),
}


def rule_of(unit: str, better: str = "") -> ComparisonRule:
    """Return how to compare a metric; `better` takes precedence over the unit's direction."""
    rule = RULES.get(unit, ComparisonRule(NEITHER))
    if not better or better == rule.better:
        return rule
    return replace(rule if rule.better != NEITHER else ComparisonRule(better), better=better)


@dataclass(frozen=True)
class MetricTrend:
    """One value against earlier ones, oldest first.

    `trend` is worse, better, same, new (nothing earlier), 'too few' (earlier runs to judge it by) or 'no direction'.
    `level` is the median of the earlier values (of a count: the last one), `mad` their median absolute deviation,
    `distance` the share of the level by which the value is above it (None: the level is 0, or nothing was measured).
    """

    trend: str
    level: float | None = None
    mad: float = 0.0
    distance: float | None = None
    runs: int = 0


def judge(value: float | None, earlier: Sequence[float], rule: ComparisonRule) -> MetricTrend:
    """Compare a value with earlier ones. None is a value that was no number: worse, if there is a direction."""
    if not earlier:
        return MetricTrend("new")
    level = earlier[-1] if rule.counted else statistics.median(earlier)
    mad = statistics.median(abs(one - level) for one in earlier)
    distance = (value - level) / abs(level) if value is not None and level else None
    return MetricTrend(_trend(value, level, mad, len(earlier), rule), level, mad, distance, len(earlier))


def _trend(value: float | None, level: float, mad: float, runs: int, rule: ComparisonRule) -> str:
    if rule.better == NEITHER:
        return "no direction"
    if value is None:
        return "worse"
    if runs < rule.fewest:
        return "too few"
    far = abs(value - level)
    noise = not rule.counted and runs >= FEWEST and not beyond_spread(far, mad)
    if not far > rule.step * abs(level) or noise:
        return "same"
    return "better" if (value > level) == (rule.better == HIGHER) else "worse"
