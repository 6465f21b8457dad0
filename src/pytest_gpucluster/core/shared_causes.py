"""What the nodes with a finding, or with a shifted metric, have in common: a factor's value. Pure; docs/verdicts.md.

A factor is what a site or a run states of each node: its rack, its cooling loop, its VBIOS. A hypothesis is one question (a
finding, a metric) against one value of a factor; the unit of all tests is the node.

- A finding: Fisher's exact test, the upper tail of the hypergeometric distribution (Fisher 1935).
- A metric: the rank-sum test (Mann and Whitney 1947), two-sided, with midranks and the permutation variance for ties
  (Lehmann, Nonparametrics, 1975). Up to SMALL nodes on a side, its exact distribution is counted instead: there the normal
  approximation hides what four nodes of a rack share. If at least half of the nodes have the same number, the
  ranks are too skewed for it: the nodes above that number, and those below it, are counted like a finding.
- Correction: Holm (1979), since a named cause sends people to a rack: the probability of any false one in a run is at most CHANCE,
  however the hypotheses depend on one another. The rate of false ones among the named (Benjamini and Yekutieli 2001) promises less.
  Each hypothesis takes part with the largest p that it can have up to the observed one, not with the observed one (Tarone 1990;
  Westfall and Wolfinger 1997): with a rare finding, most values cannot have a small p at all. Findings and metrics have half of
  CHANCE each, so that many metrics do not hide a finding.
- Several rejected values of one question: the first is named. Another one is named too only if it still explains what is left
  within the first (Mantel and Haenszel 1959; the sum of hypergeometric variables, or ranks within strata: van Elteren 1960).
  That test has CHANCE for each question, not for the run.
- Values that the data cannot tell apart from the named one are reported with it: they hold almost the same nodes (Jaccard's index
  of at least ALIKE), or hold most of its nodes, and with them given the named one explains nothing more.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.intermittent import log_comb

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

__all__ = ["CHANCE", "FactorValue", "NodeSample", "Question", "SharedCause", "shared_causes", "upper_tail"]

CHANCE = 0.01  # probability of any false cause in one call
FEWEST = 3  # nodes: two of a rack may both be sick
SMALL = 10  # nodes; the sum of more ranks is close to normal, and its tail is lighter
ALIKE = 0.9
MOST, MOST_TRIED = 4, 12  # causes of one question, and rejected values that may be some
LEAST_RATIO, LEAST_SHIFT = (2.0, 0.5)  # a smaller effect is no use: the rate's ratio, the shift in robust deviations
_ROUNDING = 1e-9  # of sums of probabilities
_FAR = 3.5  # deviations below which no exact tail is counted, or this share of the greatest possible ones
_FAR_SHARE = 0.8
_MAD_TO_DEVIATION = 1.4826


class FactorValue(NamedTuple):
    """One value of a factor, and its nodes. A node may have several values of one factor: firmware of its parts."""

    factor: str
    value: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class Question:
    """What is asked of each value. `values`: {node: number}; `counted`: 1 for a node with the finding, 0 for one without.

    `level`, `side`: of a metric that is counted since most nodes have the number `level`: '>' or '<' it.
    """

    subject: Hashable
    values: Mapping[str, float]
    counted: bool = False
    level: float | None = None
    side: str = ""


class NodeSample(NamedTuple):
    """Nodes on one side: how many, how many of them have the finding (number other than 0), and the median of the metric."""

    nodes: int
    having: int
    median: float


@dataclass(frozen=True)
class SharedCause:
    """A value of a factor that explains a question, and values that cannot be told from it; `p` is corrected."""

    question: Question
    values: tuple[FactorValue, ...]
    same: bool  # all values hold the same nodes
    inside: NodeSample
    outside: NodeSample
    p: float
    nodes: frozenset[str]


class _Shape(NamedTuple):
    """What limits the p of a test before its result: nodes, those with the finding (None: a metric), those of the value."""

    nodes: int
    having: int | None
    inside: int


@dataclass
class _Hypothesis:
    """One question against the values with the same nodes."""

    question: Question
    names: list[FactorValue]
    members: frozenset[str]
    scores: _Scores
    p: float
    shape: _Shape


def shared_causes(
    factors: Iterable[FactorValue], questions: Iterable[Question], *, chance: float = CHANCE
) -> list[SharedCause]:
    """Return what explains the questions, findings first, then the surest; on healthy nodes the result is empty with probability 1 - `chance`.

    A node without a value of a factor takes no part in its tests. Values and their opposites with fewer than FEWEST nodes are left out.
    """
    by_factor = grouped((it.factor, it) for it in factors).values()
    with_nodes = [(frozenset().union(*(it.nodes for it in values)), values) for values in by_factor]
    asked = [_asked(question, with_nodes) for it in questions for question in _forms(it)]
    rejected = _holm([it for found in asked for it in found], chance)
    causes = [cause for found in asked for cause in _named(found, rejected, chance)]
    return sorted(causes, key=lambda it: (not it.question.counted, it.p))


def _forms(question: Question) -> Iterator[Question]:
    """Yield a question as it is tested: of a metric with one number on half of the nodes, who is above and who below it."""
    values = question.values
    level, often = next(iter(Counter(values.values()).most_common(1)), (0.0, 0))
    if question.counted or 2 * often < len(values):
        yield question
        return
    for side, sign in ((">", 1), ("<", -1)):
        marked = {node: float(sign * value > sign * level) for node, value in values.items()}
        yield Question(question.subject, marked, True, level, side)


def _asked(question: Question, factors: Iterable[tuple[frozenset[str], Sequence[FactorValue]]]) -> list[_Hypothesis]:
    """Return the hypotheses of a question; values with the same nodes are one."""
    found: dict[tuple[frozenset[str], int], _Hypothesis] = {}
    values = question.values
    if len(values) < 2 * FEWEST or (question.counted and sum(values.values()) < FEWEST):
        return []
    whole = _Scores(question, tuple(values))
    for known, of_factor in factors:
        scores = whole if whole.names <= known else _Scores(question, tuple(node for node in values if node in known))  # fmt: skip
        for value in of_factor:
            members = value.nodes & scores.names
            key = members, len(scores.names)
            if key in found:
                found[key].names.append(value)
            elif FEWEST <= len(members) <= len(scores.names) - FEWEST:
                found[key] = _Hypothesis(question, [value], members, scores, *scores.test(members))
    return list(found.values())


class _Scores:
    """The nodes of one test, with their 0 and 1 or their midranks."""

    def __init__(self, question: Question, domain: tuple[str, ...]) -> None:
        self.domain, self.counted = domain, question.counted
        own = {node: question.values[node] for node in domain}
        self.of = own if question.counted else _midranks(own)
        self.total = sum(self.of.values())
        self.names = frozenset(domain)
        mean = self.total / len(domain) if domain else 0.0
        self.squares = sum((it - mean) ** 2 for it in self.of.values())

    def test(self, members: Collection[str]) -> tuple[float, _Shape]:
        """Return the p of the members, and what limits it."""
        n, m = len(self.domain), len(members)
        inside = sum(map(self.of.__getitem__, members))
        if self.counted:
            shape = _Shape(n, round(self.total), m)
            return upper_tail(round(inside), [shape]), shape
        far, few = abs(inside - m * self.total / n), min(m, n - m)
        variance = _variance(n, m, self.squares)
        near = min(_FAR, _FAR_SHARE * math.sqrt(3 * few * (n - few) / (n + 1)))
        if few > SMALL or far * far <= near * near * variance:
            return _two_sided(far, variance), _Shape(n, None, few)
        # the statistic U: pairs of a node inside and one outside that stand against the shift
        return _few_ranks(n, few, math.ceil(m * (n - m) / 2 - far)), _Shape(n, None, few)


def _midranks(values: Mapping[str, float]) -> dict[str, float]:
    """Return ranks from 1; equal numbers share the mean of theirs."""
    ranks: dict[str, float] = {}
    for _, nodes in sorted(grouped((value, node) for node, value in values.items()).items()):
        first = len(ranks)
        ranks |= dict.fromkeys(nodes, first + (len(nodes) + 1) / 2)
    return ranks


def _variance(n: int, m: int, squares: float) -> float:
    """Return the variance of the sum of m of n scores drawn without replacement; `squares`: of their deviations from the mean."""
    return m * (n - m) * squares / (n * (n - 1)) if n > 1 else 0.0


def _two_sided(far: float, variance: float) -> float:
    """Return the normal p of a sum of ranks, with the correction for continuity."""
    return math.erfc(max(0.0, far - 0.5) / math.sqrt(2 * variance)) if variance > 0 else 1.0


def _few_ranks(n: int, few: int, pairs: int) -> float:
    """Return the exact two-sided p of the statistic U <= `pairs` for `few` of n nodes.

    Subsets with U = s are the partitions of s into at most `few` parts, none larger than n - few; without that bound the p is
    a little too large. Ties make it larger too.
    """
    ways = [1] + [0] * max(0, pairs)
    for part in range(1, few + 1):
        for at in range(part, len(ways)):
            ways[at] += ways[at - part]
    return min(1.0, 2 * sum(ways) / math.comb(n, few))


@lru_cache(1 << 12)
def _hypergeometric(n: int, marked: int, m: int) -> tuple[float, ...]:
    """Return the probability of each number of marked nodes among m of n, from the least possible number on."""
    lowest, highest = max(0, m + marked - n), min(m, marked)
    whole = log_comb(n, m)
    return tuple(
        math.exp(log_comb(marked, k) + log_comb(n - marked, m - k) - whole) for k in range(lowest, highest + 1)
    )


def upper_tail(inside: int, strata: Iterable[tuple[int, int | None, int]]) -> float:
    """Return the probability of at least `inside` marked nodes; strata: (nodes, marked ones, nodes inside)."""
    least, chances = 0, [1.0]
    for n, having, m in strata:
        marked = having or 0
        own = _hypergeometric(n, marked, m)
        least += max(0, m + marked - n)
        joined = [0.0] * (len(chances) + len(own) - 1)
        for i, one in enumerate(chances):
            for j, other in enumerate(own):
                joined[i + j] += one * other
        chances = joined
    return min(1.0, sum(chances[max(0, inside - least) :]))


@lru_cache(1 << 12)
def _attainable(shape: _Shape) -> tuple[float, ...]:
    """Return each p that a finding's test can have, in ascending order."""
    n, having, m = shape.nodes, shape.having or 0, shape.inside
    return tuple(itertools.accumulate(reversed(_hypergeometric(n, having, m))))


def _largest(shape: _Shape, p: float) -> float:
    """Return the largest p up to this one that a test can have; 0 if all of its are larger."""
    if shape.having is None:
        return p if shape.inside > SMALL or 2 / math.comb(shape.nodes, shape.inside) <= p else 0.0
    known = _attainable(shape)
    at = bisect.bisect_right(known, p * (1 + _ROUNDING))
    return known[at - 1] if at else 0.0


def _holm(hypotheses: Sequence[_Hypothesis], chance: float) -> dict[int, float]:
    """Return {id of a rejected hypothesis: its corrected p}."""
    kinds = [*grouped((it.question.counted, it) for it in hypotheses).values()]
    rejected: dict[int, float] = {}
    for kind in kinds:
        left, corrected = Counter(it.shape for it in kind), 0.0
        for it in sorted(kind, key=lambda it: it.p):
            by_chance = sum(often * _largest(shape, it.p) for shape, often in left.items())
            corrected = max(corrected, min(1.0, len(kinds) * by_chance))
            if corrected > chance:
                break
            rejected[id(it)] = corrected
            left[it.shape] -= 1
    return rejected


def _named(every: Sequence[_Hypothesis], rejected: Mapping[int, float], chance: float) -> Iterator[SharedCause]:
    """Yield the causes of one question, each with those that cannot be told from it."""
    own = {id(it): it.p for it in every if id(it) in rejected and _is_worth_naming(it)}
    left = sorted((it for it in every if id(it) in own), key=lambda it: it.p)[:MOST_TRIED]
    chosen: list[_Hypothesis] = []
    while left and len(chosen) < MOST:
        # of a factor with two values both have the same p
        best = min(left, key=lambda it: (own[id(it)], len(it.members)))
        same = [it for it in every if it is not best and _is_alike(it, best)]
        same += [it for it in left if it not in same and _cannot_be_told(it, best, chosen, chance)]
        names = (*best.names, *(name for it in same for name in it.names))
        inside, outside = map(_sample, _sides(best))
        yield SharedCause(best.question, names, not same, inside, outside, rejected[id(best)], best.members)
        chosen.append(best)
        left = [it for it in left if it is not best and it not in same]
        own = {id(it): _given(it, chosen) for it in left}
        left = [it for it in left if own[id(it)] <= chance / len(left)]


def _is_alike(one: _Hypothesis, other: _Hypothesis) -> bool:
    """Return whether two values hold almost the same nodes."""
    return len(one.members & other.members) >= ALIKE * len(one.members | other.members)


def _cannot_be_told(it: _Hypothesis, best: _Hypothesis, chosen: Sequence[_Hypothesis], chance: float) -> bool:
    """Return whether another value holds most nodes of the best one, which explains nothing more beside it."""
    holds = 2 * len(it.members & best.members) > len(best.members)
    return it is not best and holds and _given(best, [*chosen, it]) > chance


def _given(one: _Hypothesis, others: Iterable[_Hypothesis]) -> float:
    """Return the p of a hypothesis among nodes that are alike in the others."""
    pieces = grouped((tuple(node in it.members for it in others), node) for node in one.scores.domain)
    scores, strata = one.scores.of, []
    inside = expected = variance = 0.0
    for nodes in pieces.values():
        n, m = len(nodes), len(one.members & set(nodes))
        total = sum(scores[node] for node in nodes)
        strata.append((n, round(total), m))
        inside += sum(scores[node] for node in nodes if node in one.members)
        expected += m * total / n
        variance += _variance(n, m, sum((scores[node] - total / n) ** 2 for node in nodes))
    if one.question.counted:
        return upper_tail(round(inside), strata)
    return _two_sided(abs(inside - expected), variance)


def _jaccard(one: _Hypothesis, other: _Hypothesis) -> float:
    return len(one.members & other.members) / len(one.members | other.members)


def _shares(one: _Hypothesis, other: _Hypothesis) -> bool:
    """Return whether a value holds most nodes of the other one: the rest of the fleet is no explanation."""
    return 2 * len(one.members & other.members) > len(other.members)


def _is_worth_naming(it: _Hypothesis) -> bool:
    sides = _sides(it)
    inside, outside = map(_sample, sides)
    if it.question.counted:
        rates = inside.having / inside.nodes, outside.having / outside.nodes
        return inside.having >= FEWEST and rates[0] >= LEAST_RATIO * rates[1]
    spread = _MAD_TO_DEVIATION * statistics.median(abs(value - outside.median) for value in sides[1])
    return abs(inside.median - outside.median) >= LEAST_SHIFT * spread


def _sides(it: _Hypothesis) -> tuple[list[float], list[float]]:
    """Return the numbers of the nodes with the value, and of the others."""
    found = grouped((node in it.members, it.question.values[node]) for node in it.scores.domain)
    return found[True], found[False]


def _sample(values: Sequence[float]) -> NodeSample:
    return NodeSample(len(values), sum(map(bool, values)), statistics.median(values))
