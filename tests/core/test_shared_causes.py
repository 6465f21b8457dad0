"""What nodes with a finding or a shifted metric share: known probabilities, seeded fleets, confounded factors."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.shared_causes import FactorValue, Question, SharedCause, shared_causes, upper_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NODES = [f"n{i:03}" for i in range(400)]


def factor(name: str, size: int, order: list[str] = NODES) -> list[FactorValue]:
    starts = range(0, len(order), size)
    return [FactorValue(name, str(i // size), frozenset(order[i : i + size])) for i in starts]


def finding(having: Iterable[str]) -> Question:
    marked = {*having}
    return Question("finding", {node: float(node in marked) for node in NODES}, counted=True)


def metric(shift: Callable[[int], float]) -> Question:
    dice = random.Random(1)
    return Question("metric", {node: dice.gauss(shift(i), 1) for i, node in enumerate(NODES)})


def named(causes: Iterable[SharedCause]) -> list[set[tuple[str, str]]]:
    return [{it[:2] for it in cause.values} for cause in causes]


def test_the_tail_of_findings_is_exact() -> None:
    assert upper_tail(3, [(10, 3, 3)]) == pytest.approx(1 / 120)
    assert upper_tail(2, [(10, 3, 3)]) == pytest.approx(22 / 120)
    assert upper_tail(5, [(10, 8, 5)]) == pytest.approx(56 / 252)
    assert upper_tail(2, [(4, 1, 2), (6, 1, 3)]) == pytest.approx(1 / 4)  # each stratum has its own half


def test_a_small_rack_has_the_exact_rank_sum() -> None:
    nodes, rack = NODES[:14], frozenset(NODES[:4])
    values = [FactorValue("rack", "a", rack), FactorValue("rack", "b", frozenset(nodes) - rack)]
    falling = Question("m", {node: -float(i) for i, node in enumerate(nodes)})
    (cause, *_) = shared_causes(values, [falling], chance=0.1)
    assert cause.p == pytest.approx(2 * 2 / math.comb(14, 4))  # two-sided, of two values
    assert cause.inside[::2] == (4, -1.5)


def test_confounded_values_are_one_pair_and_wider_ones_are_named_where_all_of_them_are_affected() -> None:
    leaf = [FactorValue("leaf", "x", frozenset(NODES[1:21])), FactorValue("leaf", "y", frozenset(NODES[21:]))]
    asked = [finding([*NODES[:12], NODES[200], NODES[333]])]
    (cause,) = shared_causes(factor("rack", 20) + factor("feed", 20) + factor("row", 100), asked)
    assert (named([cause]), cause.same) == ([{("rack", "0"), ("feed", "0")}], True)
    (cause,) = shared_causes(factor("rack", 20) + leaf, asked)
    assert named([cause]) == [{("rack", "0"), ("leaf", "x")}]
    assert not cause.same
    wide = shared_causes(factor("rack", 20) + factor("row", 100), [metric(lambda i: 2.0 * (i < 100))])
    assert named(wide) == [{("row", "0")}]


def test_two_causes_of_one_question_are_two() -> None:
    other = factor("feed", 40, random.Random(2).sample(NODES, 400))
    both = metric(lambda i: 2.0 * (i < 40) + 2.0 * (NODES[i] in other[3].nodes))
    found = named(shared_causes(factor("rack", 40) + other, [both]))
    assert sorted(map(sorted, found)) == [[("feed", "3")], [("rack", "0")]]


def test_a_count_that_is_zero_almost_everywhere_is_counted() -> None:
    errors = {node: float(i < 9) * (i + 1) for i, node in enumerate(NODES)}
    (cause,) = shared_causes(factor("rack", 20), [Question("errors", errors)])
    assert named([cause]) == [{("rack", "0")}]
    assert (cause.question.side, cause.question.level, cause.inside.having) == (">", 0.0, 9)


def test_nothing_is_named_without_a_reason() -> None:
    asked = [
        finding(NODES[:2]),  # two of a rack may both be sick
        finding(NODES),
        finding([]),
        finding(random.Random(3).sample(NODES, 12)),
        Question("m", dict.fromkeys(NODES, 5.0)),
        Question("m", {}),
        metric(lambda i: 0.3 * (i < 100)),  # too small to be of use
    ]
    assert [shared_causes(factor("rack", 20) + factor("row", 100), [it]) for it in asked] == [[]] * len(asked)


def test_nodes_without_a_value_take_no_part() -> None:
    known = [it for it in factor("delivery", 20) if it.value in "01"]
    (cause,) = shared_causes(known, [finding([*NODES[:15], *NODES[200:215]])])
    assert (cause.inside[:2], cause.outside[:2]) == ((20, 15), (20, 0))
