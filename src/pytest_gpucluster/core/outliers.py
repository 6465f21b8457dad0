"""Which value of a fleet stands apart: median and MAD, and a least relative distance. Pure.

The modified z-score of Iglewicz and Hoaglin (1993): 0.6745 x distance / MAD, 3.5 and above is an outlier. Its
estimate of the spread is worth nothing on few values, and a quiet fleet has a MAD near 0, hence the least distance.
Of thousands of good GPUs some are beyond 3.5 by chance: the bound grows with their number (Bonferroni's correction).
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
_CHANCE = 0.001  # that a fleet of any size, good and of normal noise, has a value named on one side
_Z_FACTOR = 0.6745


@dataclass(frozen=True)
class Halves:
    """A fleet without a majority of fast values: at least half are `slow`, apart from at least 2 that are `fast`."""

    slow: tuple[str, ...]
    fast: tuple[str, ...]
    slow_median: float
    fast_median: float


@dataclass(frozen=True)
class Outliers:
    """`low` and `high` are {name: relative distance from the median}; `note` says what could not be told.

    `halves`: the median of such a fleet says nothing, since at least half of it is slow.
    """

    median: float
    mad: float
    low: Mapping[str, float]
    high: Mapping[str, float]
    note: str = ""
    halves: Halves | None = None


def beyond_spread(distance: float, mad: float, *, among: int = 1) -> bool:
    """Tell whether a distance from the median is 3.5 modified z-scores or more; further where `among` many values."""
    return _Z_FACTOR * abs(distance) >= max(_Z, statistics.NormalDist().inv_cdf(1 - _CHANCE / among)) * mad


def outliers(values: Mapping[str, float], *, min_relative: float = 0.05) -> Outliers:
    """Name the values that stand apart by 3.5 modified z-scores (5.2 of 8000) and by `min_relative` of the median.

    With fewer than 4 values nobody is named, and the note says so. ValueError where there is no value at all.
    """
    if not values:
        raise ValueError("no values: outliers of nothing")
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
    """Part the values at their widest gap above the middle; None where that is no wider than noise."""
    names = sorted(values, key=values.__getitem__)
    ordered = [values[name] for name in names]
    # at least half are slow: else they are outliers; and two are fast: one alone may be a wrong measurement
    cut = max(range((len(names) + 1) // 2, len(names) - 1), key=lambda at: ordered[at] - ordered[at - 1])
    slow, fast = ordered[:cut], ordered[cut:]
    medians = statistics.median(slow), statistics.median(fast)
    spread = max(
        statistics.median(abs(value - median) for value in half)
        for half, median in zip((slow, fast), medians, strict=True)
    )
    gap = fast[0] - slow[-1]
    if gap <= min_relative * medians[1] or not beyond_spread(gap, spread, among=len(names)):
        return None
    return Halves(tuple(names[:cut]), tuple(names[cut:]), *medians)
