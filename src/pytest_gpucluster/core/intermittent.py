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

Continuous looking: `SequentialTest` is Wald's (Ann. Math. Statist. 16, 1945).
"""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.core.outliers import FEWEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Decision",
    "IntermittentLimits",
    "PartJudgement",
    "SequentialTest",
    "SlowCount",
    "base_share",
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

    def with_part(self, part: SlowCount) -> SlowCount:
        """Return the count of a fleet with one more part."""
        return SlowCount(self.slow + part.slow, self.measured + part.measured)

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
    return {
        key: _judged(count, fleet, chances[key], corrected[key], limits)
        for key, (count, fleet) in parts.items()
    }


def _judged(
    count: SlowCount, fleet: SlowCount, alone: float, corrected: float, limits: IntermittentLimits
) -> PartJudgement:
    upper = upper_share(count, limits.confidence)
    more = more_needed(count, limits.share, limits.confidence)
    decision = Decision.OPEN if more else Decision.FREE
    if corrected <= limits.alpha:
        decision = Decision.INTERMITTENT
    return PartJudgement(count, fleet, alone, corrected, decision, upper, more)


def base_share(fleet: SlowCount, confidence: float, floor: float = FLOOR, odds: float = ODDS) -> float:
    """Return the base rate of a sequential test: that of `odds` times the fleet's upper bound, at least the floor."""
    most = upper_share(fleet, confidence)
    return max(floor, odds * most / (1 + (odds - 1) * most))


@dataclass(frozen=True)
class SequentialTest:
    """Decides after each measurement whether a part is slow in at most `base`, or in at least `share`, of its measurements.

    The likelihood ratio of `share` against `base` is a supermartingale for every true share up to `base`, and its inverse
    is one for every true share from `share` on. By Ville's inequality (1939) the bounds therefore hold under continuous
    looking, for every rule of stopping, and where the results so far decide what is measured next: any of `parts` good
    parts is called intermittent with a probability of at most `alpha` (Bonferroni), and a part that is slow in `share` or more is called free
    with at most `beta`. `base` must be fixed before the first measurement that counts: add the error of its bound to `alpha`.
    ValueError unless 0 < base < share < 1.
    """

    base: float
    share: float = SHARE
    parts: int = 1
    alpha: float = ALPHA
    beta: float = 1 - CONFIDENCE

    def __post_init__(self) -> None:
        if not 0 < self.base < self.share < 1:
            raise ValueError(f"a test needs 0 < base < share < 1, not {self.base:g} and {self.share:g}")

    @property
    def bounds(self) -> tuple[float, float]:
        """The logarithms of the likelihood ratio at which a part is free, and intermittent."""
        return math.log(self.beta), math.log(self.parts / self.alpha)

    def evidence(self, count: SlowCount) -> float:
        """Return the logarithm of the likelihood ratio of all measurements so far."""
        slow, fast = self._steps()
        return count.slow * slow + (count.measured - count.slow) * fast

    def decide(self, count: SlowCount) -> Decision:
        """Decide by all measurements so far; a test that has decided is over, so do not ask again."""
        free, intermittent = self.bounds
        evidence = self.evidence(count)
        if evidence >= intermittent:
            return Decision.INTERMITTENT
        return Decision.FREE if evidence <= free else Decision.OPEN

    def expected_more(self, count: SlowCount, share: float) -> float:
        """Return how many more measurements of a part that is slow in this share decide; inf if the test has no drift.

        Wald's identity without the last measurement's overshoot.
        """
        slow, fast = self._steps()
        drift = share * slow + (1 - share) * fast
        if self.decide(count) is not Decision.OPEN:
            return 0.0
        bound = self.bounds[drift > 0]
        return (bound - self.evidence(count)) / drift if drift else math.inf

    def _steps(self) -> tuple[float, float]:
        return math.log(self.share / self.base), math.log((1 - self.share) / (1 - self.base))


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
