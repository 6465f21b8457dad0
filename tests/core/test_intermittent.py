"""Slow k of n: probabilities by exact fractions, decisions, and the error of the sequential test under continuous looking."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from pytest_gpucluster.core.intermittent import (
    Decision,
    IntermittentLimits,
    SequentialTest,
    SlowCount,
    base_share,
    chance,
    holm,
    judge_parts,
    more_needed,
    slow_among,
    upper_share,
)


def binomial(least: int, trials: int, share: Fraction) -> Fraction:
    terms = (
        math.comb(trials, at) * share**at * (1 - share) ** (trials - at) for at in range(least, trials + 1)
    )
    return sum(terms, Fraction())


def fisher(part: SlowCount, fleet: SlowCount) -> Fraction:
    slow, total = part.slow + fleet.slow, part.measured + fleet.measured
    ways = sum(
        math.comb(slow, at) * math.comb(total - slow, part.measured - at)
        for at in range(part.slow, part.measured + 1)
    )
    return Fraction(ways, math.comb(total, part.measured))


@pytest.mark.parametrize("slow", [0, 1, 2, 7, 30, 59, 60])
@pytest.mark.parametrize(
    "fleet", [SlowCount(0, 40), SlowCount(12, 4000), SlowCount(300, 500), SlowCount(9, 9)]
)
def test_chance_is_the_larger_of_fisher_and_the_binomial_tail_at_the_floor(
    slow: int, fleet: SlowCount
) -> None:
    part = SlowCount(slow, 60)
    exact = max(fisher(part, fleet), binomial(slow, 60, Fraction(1, 500)))
    assert chance(part, fleet, 1 / 500) == pytest.approx(float(exact), rel=1e-8)


def test_fisher_equals_the_beta_binomial_of_the_clopper_pearson_bound() -> None:
    k, n, k0, n0 = 3, 20, 5, 200
    a, b = k0 + 1, n0 - k0

    def beta(x: int, y: int) -> Fraction:
        return Fraction(math.factorial(x - 1) * math.factorial(y - 1), math.factorial(x + y - 1))

    tail = sum((math.comb(n, x) * beta(a + x, b + n - x) / beta(a, b) for x in range(k, n + 1)), Fraction())
    assert tail == fisher(SlowCount(k, n), SlowCount(k0, n0))


def test_upper_bound_and_number_of_measurements() -> None:
    assert upper_share(SlowCount(0, 149)) == pytest.approx(1 - 0.05 ** (1 / 149))
    assert more_needed(SlowCount(0, 0), 0.02) == 149  # rule of three: 3 / 0.02 = 150
    assert more_needed(SlowCount(0, 149), 0.02) == 0
    assert (upper_share(SlowCount(0, 0)), upper_share(SlowCount(4, 4))) == (1.0, 1.0)
    # Clopper and Pearson, one-sided 95%: 1 of 10 -> 0.3942
    assert upper_share(SlowCount(1, 10)) == pytest.approx(0.39416, abs=1e-5)
    needed = more_needed(SlowCount(2, 10), 0.1)
    assert upper_share(SlowCount(2, 10 + needed)) <= 0.1 < upper_share(SlowCount(2, 9 + needed))
    assert base_share(SlowCount(0, 10**6), 0.99) == 0.001
    assert base_share(SlowCount(50, 1000), 0.99) > 0.05
    with pytest.raises(ValueError, match="slow 3 of 2 is no count"):
        SlowCount(3, 2)


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert holm({"a": 0.01, "b": 0.4, "c": 0.011}) == pytest.approx({"a": 0.03, "b": 0.4, "c": 0.03})
    assert holm({}) == {}


def test_three_decisions() -> None:
    fleet = SlowCount(12, 40_000)
    counts = {"bad": SlowCount(7, 60), "good": SlowCount(0, 149), "young": SlowCount(0, 20)}
    found = judge_parts(
        {name: (count, fleet) for name, count in counts.items()}, IntermittentLimits(share=0.02)
    )
    assert {name: it.decision for name, it in found.items()} == {
        "bad": Decision.INTERMITTENT,
        "good": Decision.FREE,
        "young": Decision.OPEN,
    }
    assert found["bad"].corrected == pytest.approx(3 * found["bad"].chance)
    assert found["young"].more == 129


def test_slow_is_a_fact_against_at_least_four_like_parts_of_one_run() -> None:
    values = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 80.0}
    assert slow_among(values, 0.12) == {"d"}
    assert slow_among({key: values[key] for key in "abd"}, 0.12) == frozenset()


def test_sequential_test_decides_with_stated_numbers() -> None:
    test = SequentialTest(base=0.001, share=0.05)
    fast = next(n for n in range(200) if test.decide(SlowCount(0, n)) is Decision.FREE)
    assert fast == 60
    assert test.decide(SlowCount(2, 20)) is Decision.INTERMITTENT
    assert test.decide(SlowCount(1, 20)) is Decision.OPEN
    assert test.expected_more(SlowCount(0, 0), 0.0) == pytest.approx(60, abs=1)
    assert test.expected_more(SlowCount(2, 20), 0.3) == 0
    assert SequentialTest(0.001, parts=8192).expected_more(SlowCount(0, 0), 0.3) == pytest.approx(12, abs=1)
    with pytest.raises(ValueError, match="0 < base < share < 1"):
        SequentialTest(base=0.05, share=0.05)


@pytest.mark.parametrize(
    ("true", "wrong", "most"), [(0.02, Decision.INTERMITTENT, 0.05), (0.1, Decision.FREE, 0.1)]
)
def test_error_under_continuous_looking_is_at_most_the_stated_one(
    true: float, wrong: Decision, most: float
) -> None:
    test, dice, errors, runs = SequentialTest(0.02, 0.1, alpha=0.05, beta=0.1), random.Random(1), 0, 1000
    for _ in range(runs):
        slow = measured = 0
        while (decision := test.decide(SlowCount(slow, measured))) is Decision.OPEN and measured < 2000:
            slow, measured = slow + (dice.random() < true), measured + 1
        errors += decision is wrong
    assert errors / runs <= most + 2 * math.sqrt(most * (1 - most) / runs)
    assert errors > 0
