"""What nodes with a finding or a shifted metric share: known probabilities, seeded fleets, confounded factors."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.shared_causes import FactorValue, Question, SharedCause, shared_causes, upper_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NODES = [f"n{i:03}" for i in range(400)]


def factor(name: str, size: int, order: Iterable[str] = NODES) -> list[FactorValue]:
    nodes = [*order]
    return [
        FactorValue(name, f"{i // size}", frozenset(nodes[i : i + size])) for i in range(0, len(nodes), size)
    ]


def shuffled(seed: int) -> list[str]:
    return random.Random(seed).sample(NODES, len(NODES))


def finding(having: Iterable[str], judged: Iterable[str] = NODES) -> Question:
    marked = {*having}
    return Question("finding", {node: float(node in marked) for node in judged}, counted=True)


def metric(shift: Callable[[int], float], seed: int = 1) -> Question:
    dice = random.Random(seed)
    return Question("metric", {node: dice.gauss(shift(i), 1) for i, node in enumerate(NODES)})


def named(causes: Iterable[SharedCause]) -> list[set[tuple[str, str]]]:
    return [{it[:2] for it in cause.values} for cause in causes]


@pytest.mark.parametrize(
    ("inside", "strata", "p"),
    [
        (3, [(10, 3, 3)], 1 / 120),
        (2, [(10, 3, 3)], 22 / 120),
        (0, [(10, 3, 3)], 1.0),
        (2, [(4, 1, 2), (6, 1, 3)], 1 / 4),  # each stratum has its own half
        (5, [(10, 8, 5)], 56 / 252),
    ],
)
def test_the_tail_of_findings_is_exact(inside: int, strata: list[tuple[int, int, int]], p: float) -> None:
    assert upper_tail(inside, strata) == pytest.approx(p)


@pytest.mark.parametrize("fewest", [4, 5])
def test_a_small_rack_has_the_exact_rank_sum(fewest: int) -> None:
    """Without ties the p is that of all subsets: at the end of the distribution it is exact, elsewhere never too small."""
    n = 14
    nodes, rack = NODES[:n], frozenset(NODES[:fewest])
    values = [FactorValue("rack", "a", rack)] + [FactorValue("rack", "b", frozenset(nodes) - rack)]
    (cause, *_) = shared_causes(
        values, [Question("m", {node: -float(i) for i, node in enumerate(nodes)})], chance=0.1
    )
    subsets = len([*itertools.combinations(range(n), fewest)])
    assert cause.p == pytest.approx(2 * 2 / subsets)  # of two values
    assert (cause.inside.nodes, cause.inside.median) == (fewest, -(fewest - 1) / 2)


def test_eleven_of_twelve_hot_nodes_are_on_one_loop() -> None:
    loop = factor("loop", 50)
    (cause,) = shared_causes(loop + factor("rack", 20, shuffled(1)), [finding([*NODES[50:61], NODES[300]])])
    assert named([cause]) == [{("loop", "1")}]
    assert (cause.inside[:2], cause.outside[:2]) == ((50, 11), (350, 1))
    assert cause.p < 1e-6
    assert cause.nodes == loop[1].nodes


def test_confounded_values_are_one_pair_and_wider_ones_are_not_named() -> None:
    feed = factor("feed", 20)  # the racks of the site
    almost = [
        FactorValue("leaf", "x", frozenset(NODES[1:21])),
        FactorValue("leaf", "y", frozenset(NODES[21:])),
    ]
    asked = [finding([*NODES[:12:1], NODES[200], NODES[333]])]
    same = shared_causes(factor("rack", 20) + feed + factor("row", 100), asked)
    assert named(same) == [{("rack", "0"), ("feed", "0")}]
    assert same[0].same
    (cause,) = shared_causes(factor("rack", 20) + almost, asked)
    assert named([cause]) == [{("rack", "0"), ("leaf", "x")}]
    assert not cause.same


def test_the_wider_value_is_named_where_all_of_it_is_affected() -> None:
    assert named(
        shared_causes(factor("rack", 20) + factor("row", 100), [metric(lambda i: 2.0 * (i < 100))])
    ) == [{("row", "0")}]


def test_two_causes_of_one_question_are_two() -> None:
    other = factor("feed", 40, shuffled(2))
    both = metric(lambda i: 2.0 * (i < 40) + 2.0 * (NODES[i] in other[3].nodes))
    found = named(shared_causes(factor("rack", 40) + other, [both]))
    assert sorted(map(sorted, found)) == [[("feed", "3")], [("rack", "0")]]


def test_a_count_that_is_zero_almost_everywhere_is_counted() -> None:
    errors = {node: float(i < 9) * (i + 1) for i, node in enumerate(NODES)}
    (cause,) = shared_causes(factor("rack", 20), [Question("errors", errors)])
    assert named([cause]) == [{("rack", "0")}]
    assert (cause.question.side, cause.question.level, cause.inside.having) == (">", 0.0, 9)


@pytest.mark.parametrize(
    "question",
    [
        finding(NODES[:2]),  # two of a rack may both be sick
        finding(NODES),
        finding([]),
        Question("m", dict.fromkeys(NODES, 5.0)),
        Question("m", {}),
        metric(lambda i: 0.3 * (i < 100)),  # sure with enough nodes, and no use
        finding(random.Random(3).sample(NODES, 12)),
    ],
)
def test_nothing_is_named_without_a_reason(question: Question) -> None:
    assert shared_causes(factor("rack", 20) + factor("row", 100), [question]) == []


def test_nodes_without_a_value_take_no_part() -> None:
    known = [it for it in factor("delivery", 20) if it.value in "01"]
    (cause,) = shared_causes(known, [finding([*NODES[:15], *NODES[200:215]])])
    assert (cause.inside[:2], cause.outside[:2]) == ((20, 15), (20, 0))


def test_healthy_fleets_have_no_cause() -> None:
    found = []
    for seed in range(25):
        dice = random.Random(seed)
        factors = [
            value
            for i, size in enumerate((20, 25, 50, 100))
            for value in factor(str(i), size, shuffled(seed + 99 * i))
        ]
        asked = [finding(node for node in NODES if dice.random() < 0.03) for _ in range(5)]
        asked += [metric(lambda _: 0.0, seed=seed * 50 + i) for i in range(10)]
        found += shared_causes(factors, asked)
    assert found == []
