"""Slow k of n: probabilities by exact fractions, decisions, and the error of repeated looks."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from pytest_gpucluster.core import intermittent
from pytest_gpucluster.core.intermittent import Looks, SlowCount

FLEETS = [SlowCount(*it) for it in ((0, 40), (12, 4000), (300, 500), (9, 9))]


def binomial(least: int, trials: int, share: Fraction) -> Fraction:
    chosen = range(least, trials + 1)
    return sum((math.comb(trials, at) * share**at * (1 - share) ** (trials - at) for at in chosen), Fraction())


def fisher(part: SlowCount, fleet: SlowCount, odds: int) -> Fraction:
    slow, drawn, total = part.slow + fleet.slow, part.measured, part.measured + fleet.measured
    ways = [math.comb(slow, at) * math.comb(total - slow, drawn - at) * odds**at for at in range(drawn + 1)]
    return Fraction(sum(ways[part.slow :]), sum(ways))


@pytest.mark.parametrize("slow", [0, 1, 2, 7, 30, 59, 60])
@pytest.mark.parametrize("fleet", FLEETS)
def test_chance_is_the_larger_of_fisher_and_the_floor(slow: int, fleet: SlowCount) -> None:
    part = SlowCount(slow, 60)
    exact = max(fisher(part, fleet, 3), binomial(slow, 60, Fraction(1, 500)))
    assert intermittent.chance(part, fleet, 1 / 500, 3) == pytest.approx(float(exact), rel=1e-8)


def test_upper_bound_and_number_of_measurements() -> None:
    assert intermittent.upper_share(SlowCount(0, 149)) == pytest.approx(1 - 0.05 ** (1 / 149))
    assert intermittent.more_needed(SlowCount(0, 0), 0.02) == 149  # rule of three: 3 / 0.02 = 150
    assert intermittent.more_needed(SlowCount(0, 149), 0.02) == 0
    assert (intermittent.upper_share(SlowCount(0, 0)), intermittent.upper_share(SlowCount(4, 4))) == (1.0, 1.0)
    # Clopper and Pearson, one-sided 95%: 1 of 10 -> 0.3942
    assert intermittent.upper_share(SlowCount(1, 10)) == pytest.approx(0.39416, abs=1e-5)
    needed = intermittent.more_needed(SlowCount(2, 10), 0.1)
    assert (
        intermittent.upper_share(SlowCount(2, 10 + needed)) <= 0.1 < intermittent.upper_share(SlowCount(2, 9 + needed))
    )
    with pytest.raises(ValueError, match="slow 3 of 2 is no count"):
        SlowCount(3, 2)


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert intermittent.holm({"a": 0.01, "b": 0.4, "c": 0.011}) == pytest.approx({"a": 0.03, "b": 0.4, "c": 0.03})


def test_three_decisions() -> None:
    counts = {"bad": SlowCount(7, 60), "good": SlowCount(0, 149), "young": SlowCount(0, 20)}
    parts = {name: (count, SlowCount(12, 40_000)) for name, count in counts.items()}
    bad, good, young = intermittent.judge_parts(parts, intermittent.IntermittentLimits(share=0.02)).values()
    assert [it.decision.value for it in (bad, good, young)] == ["intermittent", "free", "open"]
    assert bad.corrected == pytest.approx(3 * bad.chance)
    assert young.more == 129


def test_slow_is_a_fact_against_at_least_four_like_parts_of_one_run() -> None:
    values = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 80.0}
    assert intermittent.slow_among(values, 0.12) == {"d"}
    assert intermittent.slow_among({key: values[key] for key in "abd"}, 0.12) == frozenset()


def test_three_looks_accuse_and_who_was_accused_stays_so() -> None:
    fleet, looks = SlowCount(4, 4000), Looks[str](59)
    assert looks.measurements == 59
    looks.take({"bad": (SlowCount(9, 59), fleet), "later": (SlowCount(2, 59), fleet)})
    assert (list(looks.accused), looks.measurements) == (["bad"], 118)
    looks.take({"later": (SlowCount(7, 118), fleet), "good": (SlowCount(0, 118), fleet)})
    assert (list(looks.accused), looks.measurements) == (["bad", "later"], 236)
    looks.take({"good": (SlowCount(0, 236), fleet)})
    assert (looks.accused["bad"].count, looks.measurements) == (SlowCount(9, 59), 0)


def test_error_of_all_looks_together() -> None:
    """Fleets of 20 good parts, each slow in 10%: all looks together accuse in at most 5% of the campaigns."""
    dice, wrong, campaigns = random.Random(1), 0, 200
    for _ in range(campaigns):
        looks: Looks[int] = Looks(20, intermittent.IntermittentLimits(alpha=0.05, odds=1.0))
        slow, measured = [0] * 20, 0
        while measured < (wanted := looks.measurements):
            slow = [it + sum(dice.random() < 0.1 for _ in range(wanted - measured)) for it in slow]
            measured = wanted
            looks.take(intermittent.beside_others({at: SlowCount(it, measured) for at, it in enumerate(slow)}))
        wrong += bool(looks.accused)
    assert wrong / campaigns <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / campaigns)
    assert wrong > 0
