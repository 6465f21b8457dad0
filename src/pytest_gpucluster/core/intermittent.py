"""Faults that show in some measurements only: which parts are slow more often than chance explains. Pure.

A measurement is slow or fast against the like parts of the same run (`slow_among`), so a part is "slow k of n", and its
fleet, the part left out, "slow k0 of n0". Good parts differ: one is good if its odds of a slow measurement are at most
`odds` times the fleet's, or if it is slow in at most the share `floor`. Measurements of one part are taken as independent.

Fixed number of measurements: `chance` is exact. The conditional test of an odds ratio (Fisher, J. R. Stat. Soc. 98, 1935;
Cornfield, Proc. Third Berkeley Symp. 4, 1956) has no unknown base rate, since k + k0 is given.
The larger of it and the binomial tail at the floor is valid for the union of both (intersection-union test, Berger,
Technometrics 24, 1982). `holm` corrects for the number of parts (Holm, Scand. J. Statist. 6, 1979): the probability that
any good part is accused is at most alpha, whatever the dependence. `upper_share` is exact (Clopper and Pearson,
Biometrika 26, 1934); without a slow measurement it is the rule of three.

Measuring until it is decided: `Looks` is a group-sequential test (Pocock, Biometrika 64, 1977), whose looks share alpha by Bonferroni.
"""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_gpucluster.core.outliers import FEWEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Decision",
    "IntermittentLimits",
    "Looks",
    "PartJudgement",
    "SlowCount",
    "beside_others",
    "binomial_tail",
    "chance",
    "holm",
    "judge_parts",
    "log_comb",
    "more_needed",
    "slow_among",
    "upper_share",
]

ALPHA = 0.01  # accepted probability that any good part is accused
FLOOR = 0.001  # share of slow measurements that is of no interest
ODDS = 2.0  # a good part may be slow twice as often as its like, for its place in the fabric
SHARE = 0.05  # share of slow measurements that a part without faults must not have
CONFIDENCE = 0.95
_NEGLIGIBLE = 1e-17  # of a sum
_PRECISE = 50  # halvings of an interval from 0 to 1

Key = TypeVar("Key")


class Decision(str, enum.Enum):
    """What the measurements of a part prove."""

    INTERMITTENT = "intermittent"  # slow more often than chance explains
    FREE = "free"  # of faults above the stated share, with the stated confidence
    OPEN = "open"


@dataclass(frozen=True)
class SlowCount:
    """Slow in `slow` of `measured` measurements. ValueError for a count that cannot be."""

    slow: int
    measured: int

    def __post_init__(self) -> None:
        if not 0 <= self.slow <= self.measured:
            raise ValueError(f"slow {self.slow} of {self.measured} is no count")

    def __str__(self) -> str:
        return f"{self.slow} of {self.measured:,}"

    def without(self, part: SlowCount) -> SlowCount:
        """Return the fleet's count without that of a part in it."""
        return SlowCount(self.slow - part.slow, self.measured - part.measured)


@dataclass(frozen=True)
class IntermittentLimits:
    """`alpha`, `floor`, `share` and `confidence` are probabilities, `odds` is a ratio; see the constants of these names."""

    alpha: float = ALPHA
    floor: float = FLOOR
    odds: float = ODDS
    share: float = SHARE
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class PartJudgement:
    """One part. `chance`: probability that a good part is slow as often; `corrected`: that any of the good parts is.

    `upper`: the part is slow in at most this share, with the confidence of the limits. `more`: measurements that are needed
    until it is free of faults, if all of them are fast; 0 if it is.
    """

    count: SlowCount
    fleet: SlowCount
    chance: float
    corrected: float
    decision: Decision
    upper: float
    more: int


def slow_among(values: Mapping[Key, float], distance: float) -> frozenset[Key]:
    """Return which of like parts are slow in one run: more than `distance`, a share, below the median.

    With fewer than 4 values none is slow: their median is not that of good parts.
    """
    if len(values) < FEWEST:
        return frozenset()
    bound = (1 - distance) * statistics.median(values.values())
    return frozenset(part for part, value in values.items() if value < bound)


def beside_others(counts: Mapping[Key, SlowCount]) -> dict[Key, tuple[SlowCount, SlowCount]]:
    """Return {part: its count, and that of all others}."""
    fleet = SlowCount(sum(it.slow for it in counts.values()), sum(it.measured for it in counts.values()))
    return {key: (it, fleet.without(it)) for key, it in counts.items()}


def chance(part: SlowCount, fleet: SlowCount, floor: float = FLOOR, odds: float = ODDS) -> float:
    """Return the probability that a good part is slow at least as often; `fleet` is the count of all other parts."""
    if not part.slow:
        return 1.0
    return max(_conditional_tail(part, fleet, odds), binomial_tail(part.slow, part.measured, floor))


def holm(chances: Mapping[Key, float]) -> dict[Key, float]:
    """Return the probabilities corrected for their number."""
    corrected: dict[Key, float] = {}
    least, left = 0.0, len(chances)
    for key in sorted(chances, key=chances.__getitem__):
        least = max(least, min(1.0, left * chances[key]))
        corrected[key] = least
        left -= 1
    return corrected


@lru_cache(maxsize=4096)
def upper_share(count: SlowCount, confidence: float = CONFIDENCE) -> float:
    """Return the share of slow measurements that a part does not exceed, with this confidence; 1 without a measurement."""
    if count.slow == count.measured:
        return 1.0
    if not count.slow:
        return 1 - math.pow(1 - confidence, 1 / count.measured)
    low, high = count.slow / count.measured, 1.0
    for _ in range(_PRECISE):
        middle = (low + high) / 2
        low, high = (low, middle) if _at_most(count, middle) <= 1 - confidence else (middle, high)
    return high


@lru_cache(maxsize=4096)
def more_needed(count: SlowCount, share: float = SHARE, confidence: float = CONFIDENCE) -> int:
    """Return how many more measurements prove that a part is slow in at most this share, if all are fast."""

    def proved(more: int) -> bool:
        return _at_most(SlowCount(count.slow, count.measured + more), share) <= 1 - confidence

    if proved(0):
        return 0
    short, enough = 0, 1
    while not proved(enough):
        short, enough = enough, 2 * enough
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if proved(middle) else (middle, enough)
    return enough


def judge_parts(
    parts: Mapping[Key, tuple[SlowCount, SlowCount]], limits: IntermittentLimits | None = None
) -> dict[Key, PartJudgement]:
    """Judge {part: its count, and that of its fleet without it}, corrected for the number of parts."""
    limits = limits or IntermittentLimits()
    chances = {key: chance(count, fleet, limits.floor, limits.odds) for key, (count, fleet) in parts.items()}
    corrected = holm(chances)
    return {key: _judged(count, fleet, chances[key], corrected[key], limits) for key, (count, fleet) in parts.items()}


def _judged(
    count: SlowCount, fleet: SlowCount, alone: float, corrected: float, limits: IntermittentLimits
) -> PartJudgement:
    upper = upper_share(count, limits.confidence)
    more = more_needed(count, limits.share, limits.confidence)
    decision = Decision.OPEN if more else Decision.FREE
    if corrected <= limits.alpha:
        decision = Decision.INTERMITTENT
    return PartJudgement(count, fleet, alone, corrected, decision, upper, more)


class Looks(Generic[Key]):
    """Looks at all counts after `first` measurements of each part, and after twice and four times as many; a caller may end earlier.

    `accused`: {part that a look accused: its judgement then}. The looks spend half, a quarter and a quarter of alpha, each on a
    fixed number of measurements, so any good part is accused with a probability of at most alpha, whatever decides that another
    look follows.
    """

    TIMES = (1, 2, 4)  # of the first number of measurements
    SPENT = (0.5, 0.25, 0.25)  # of alpha

    def __init__(self, first: int, limits: IntermittentLimits | None = None) -> None:
        self.first = first
        self.limits = limits or IntermittentLimits()
        self.accused: dict[Key, PartJudgement] = {}
        self._taken = 0

    @property
    def measurements(self) -> int:
        """How many measurements each part needs for the next look; 0 after the last one."""
        return self.first * self.TIMES[self._taken] if self._taken < len(self.TIMES) else 0

    def take(self, parts: Mapping[Key, tuple[SlowCount, SlowCount]]) -> None:
        """Judge {part: its count, and that of its fleet without it}; those that are accused need not be there again."""
        alpha = self.limits.alpha * self.SPENT[self._taken]
        found = judge_parts(parts, replace(self.limits, alpha=alpha))
        self.accused |= {key: it for key, it in found.items() if it.decision is Decision.INTERMITTENT}
        self._taken += 1


def _at_most(count: SlowCount, share: float) -> float:
    """Return the probability of at most so many slow measurements."""
    return binomial_tail(count.measured - count.slow, count.measured, 1 - share)


def binomial_tail(least: int, trials: int, share: float) -> float:
    """Return the probability of at least so many successes."""
    if least <= 0:
        return 1.0
    # summed from its largest term on
    if least <= trials * share:
        return 1 - _binomial_sum(trials - least + 1, trials, 1 - share)
    return _binomial_sum(least, trials, share)


def _binomial_sum(least: int, trials: int, share: float) -> float:
    if least > trials or share <= 0:
        return 0.0
    log_first = log_comb(trials, least) + least * math.log(share)
    log_first += (trials - least) * math.log1p(-share) if least < trials else 0.0
    odds = share / (1 - share) if least < trials else 0.0
    return _sum(log_first, ((trials - at) / (at + 1) * odds for at in range(least, trials)))


def _conditional_tail(part: SlowCount, fleet: SlowCount, odds: float) -> float:
    """Return the tail of Fisher's noncentral hypergeometric distribution."""
    slow, fast = part.slow + fleet.slow, part.measured + fleet.measured - part.slow - fleet.slow
    drawn = part.measured
    first = max(0, drawn - fast)
    logs = [0.0]
    for at in range(first, min(drawn, slow)):
        ratio = odds * (slow - at) * (drawn - at) / ((at + 1) * (fast - drawn + at + 1))
        logs.append(logs[-1] + math.log(ratio))
    largest = max(logs)
    weights = [math.exp(it - largest) for it in logs]
    return math.fsum(weights[part.slow - first :]) / math.fsum(weights)


def log_comb(total: int, chosen: int) -> float:
    """Return the logarithm of the binomial coefficient."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _sum(log_first: float, ratios: Iterable[float]) -> float:
    """Return the sum of a falling series: its first term, and the ratio of each term to the one before."""
    total = term = math.exp(log_first)
    for ratio in ratios:
        term *= ratio
        total += term
        if term < _NEGLIGIBLE * total:
            break
    return min(1.0, total)
