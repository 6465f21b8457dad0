"""The smallest fault that rounds of pairs would have shown: how much slower, and in which share of the time. Pure.

A node with n measurements shows a fault if one of them is slow. A fault that lowers the healthy median to f times is
below the bound with 95% probability if f x median x exp(1.645 x noise) is; the noise is its upper 95% bound, since few pairs estimate
it badly (relative error 1.17 / sqrt(n) of a MAD, whose efficiency is 37%: Rousseeuw and Croux, JASA 88, 1993). With a share s of slow measurements all n are fast with
probability (1 - 0.95 s)^n, which the rule of three, generalised, sets to 5%.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Metric, Remark
from pytest_gpucluster.core.outliers import FEWEST
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.nccl.measurement import GroupKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucluster.kit.nccl.measurement import Bound, JudgedMeasurement

CONFIDENCE = 0.95
_DEVIATIONS = statistics.NormalDist().inv_cdf(CONFIDENCE)
_MAD_FACTOR = 1.4826  # of a normal distribution: its standard deviation over its MAD
_MAD_ERROR = 1.17


@dataclass(frozen=True)
class SmallestFault:
    """A fault that is larger, and shows more often, was seen with 95% probability.

    `slowdown`: share of the healthy bandwidth that is lost; `share`: of the measurements, 1.0 if it must show in all;
    `measurements`: the fewest of a node; `noise`: relative standard deviation of good pairs.
    """

    slowdown: float
    share: float
    measurements: int
    noise: float

    def __str__(self) -> str:
        how_often = f"{self.share:.0%} of its measurements" if self.share < 1 else "every measurement"
        return (
            f"a node that is slower by {self.slowdown:.0%} in {how_often} would have been seen with {CONFIDENCE:.0%} probability "
            f"(at least {count(self.measurements, 'measurement')} per node, noise {self.noise:.1%}); smaller or rarer faults "
            "may be present"
        )


def smallest_fault(judged: Iterable[JudgedMeasurement], bounds: Mapping[GroupKind, Bound]) -> SmallestFault | None:
    """Return the smallest fault of a node that its pairs would have shown; None where too few pairs are good to know the noise."""
    good: defaultdict[GroupKind, list[float]] = defaultdict(list)
    measured: Counter[str] = Counter()
    for it in judged:
        if it.kind not in (GroupKind.WITHIN, GroupKind.ACROSS):
            continue
        if it.status in (Status.GOOD, Status.SLOW, Status.FAILED):
            measured.update(it.measured.members)
        if it.status is Status.GOOD and it.measured.busbw:
            good[it.kind].append(it.measured.busbw)
    found = [
        _of_kind(values, bounds[kind].value, min(measured.values()))
        for kind, values in good.items()
        if len(values) >= FEWEST and kind in bounds
    ]
    return max(found, key=lambda it: it.slowdown, default=None)


def _of_kind(values: list[float], bound: float, measurements: int) -> SmallestFault:
    median = statistics.median(values)
    noise = _MAD_FACTOR * statistics.median(abs(value - median) for value in values) / median
    most = noise * (1 + _DEVIATIONS * _MAD_ERROR / math.sqrt(len(values)))
    lowest = bound / median * math.exp(-_DEVIATIONS * most)
    share = (1 - math.pow(1 - CONFIDENCE, 1 / measurements)) / CONFIDENCE
    # rounding makes one measurement a little less than every one
    return SmallestFault(1 - lowest, min(1.0, round(share, 9)), measurements, noise)


def sensitivity(found: Iterable[SmallestFault | None]) -> Iterator[Metric | Remark]:
    """Yield the largest of the smallest faults, as numbers and as a sentence; nothing if none is known."""
    known = [it for it in found if it]
    if known:
        worst = max(known, key=lambda it: (it.share, it.slowdown))
        yield Metric("smallest_fault", 100 * worst.slowdown, "%")
        yield Metric("smallest_fault_share", 100 * worst.share, "%")
        yield Remark(str(worst))
