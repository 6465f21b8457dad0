"""Outliers by median, MAD and a least relative distance. Pure.

The modified z-score of Iglewicz and Hoaglin (1993): 0.6745 x distance / MAD, 3.5 and above is an outlier. Its
estimate of the spread is unreliable for few values, and almost equal values have a MAD near 0, hence the least
distance. Of thousands of good GPUs some exceed 3.5 by chance: the bound grows with their number (Bonferroni
correction).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FEWEST", "Halves", "Outliers", "beyond_spread", "outliers"]

FEWEST = 4
_Z = 3.5
_CHANCE = 0.001  # probability of an outlier on one side among any number of good, normally distributed values
_Z_FACTOR = 0.6745


@dataclass(frozen=True)
class Halves:
    """Values without a fast majority: at least half are `slow`, at least 2 are `fast`, with a gap between."""

    slow: tuple[str, ...]
    fast: tuple[str, ...]
    slow_median: float
    fast_median: float


@dataclass(frozen=True)
class Outliers:
    """`low` and `high` are {name: relative distance from the median}; `note`: why no outlier can be named.

    `halves`: set if at least half of the values are slow, which makes the median meaningless.
    """

    median: float
    mad: float
    low: Mapping[str, float]
    high: Mapping[str, float]
    note: str = ""
    halves: Halves | None = None


def beyond_spread(distance: float, mad: float, *, among: int = 1) -> bool:
    """Return whether a distance from the median is at least 3.5 modified z-scores; more, the more values (`among`)."""
    return _Z_FACTOR * abs(distance) >= max(_Z, statistics.NormalDist().inv_cdf(1 - _CHANCE / among)) * mad


def outliers(values: Mapping[str, float], *, min_relative: float = 0.05) -> Outliers:
    """Return the values beyond 3.5 modified z-scores (5.2 for 8000 values) and `min_relative` of the median.

    With fewer than 4 values there is no outlier, only a note. ValueError without any value.
    """
    if not values:
        raise ValueError("outliers need at least one value")
    median = statistics.median(values.values())
    mad = statistics.median(abs(value - median) for value in values.values())
    if len(values) < FEWEST:
        spread = max(values.values()) - min(values.values())
        return Outliers(
            median, mad, {}, {}, f"{len(values)} values are too few to name an outlier (spread {spread:.4g})"
        )
    far = {
        name: (value - median) / median
        for name, value in values.items()
        if median and abs(value - median) > min_relative * abs(median)
        and beyond_spread(value - median, mad, among=len(values))
    }  # fmt: skip
    note = "median is 0: no relative distance" if not median else ""
    return Outliers(
        median, mad, {name: share for name, share in far.items() if share < 0},
        {name: share for name, share in far.items() if share > 0}, note, _halves(values, min_relative),
    )  # fmt: skip


def _halves(values: Mapping[str, float], min_relative: float) -> Halves | None:
    """Split the values at their widest gap above the middle; None if that is no wider than noise."""
    names = sorted(values, key=values.__getitem__)
    ordered = [values[name] for name in names]
    # fewer slow values would be outliers; a single fast value may be a wrong measurement
    split = max(range((len(names) + 1) // 2, len(names) - 1), key=lambda at: ordered[at] - ordered[at - 1])
    slow, fast = ordered[:split], ordered[split:]
    medians = statistics.median(slow), statistics.median(fast)
    spread = max(
        statistics.median(abs(value - median) for value in half)
        for half, median in zip((slow, fast), medians, strict=True)
    )
    gap = fast[0] - slow[-1]
    if gap <= min_relative * medians[1] or not beyond_spread(gap, spread, among=len(names)):
        return None
    return Halves(tuple(names[:split]), tuple(names[split:]), *medians)
