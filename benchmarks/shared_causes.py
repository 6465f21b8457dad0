"""How often the cause that failures or a shifted metric share is named, and how often one is named on healthy fleets.

    PYTHONPATH=src python benchmarks/shared_causes.py [FLEETS]

1,000 nodes, 12 factors with 20 to 250 nodes per value, half of them confounded: three copies, three with 1 node in 40 moved. A run
has 6 findings at 1% of the nodes and 40 metrics. The most that any test can find, beside it: `one`, with the value known before and no
other comparison, at 1%; `all`, with 1% divided by the values and questions. Times are of one run, on this machine.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.core.shared_causes import FactorValue, Question, SharedCause, shared_causes, upper_tail

NODES = [f"gpu{i:04}" for i in range(1000)]
SIZES = {"rack": 20, "date": 40, "delivery": 50, "row": 100, "loop": 125, "feed": 250}
FINDINGS, METRICS, BASE = 6, 40, 0.01
HEALTHY = 10  # times as many healthy fleets
ALPHA = 0.01


def factors(dice: random.Random) -> dict[str, dict[str, str]]:
    """Return {factor: {node: value}}: six at random, and one that is confounded with each."""
    found: dict[str, dict[str, str]] = {}
    for at, (name, size) in enumerate(SIZES.items()):
        order = dice.sample(NODES, len(NODES))
        found[name] = {node: f"{name}{i // size}" for i, node in enumerate(order)}
        twin = dict(found[name])
        for one, other in zip(*[iter(dice.sample(NODES, 26))] * 2, strict=True) if at % 2 else ():
            twin[one], twin[other] = twin[other], twin[one]
        found[f"{name}-twin"] = twin
    return found


def values(of: dict[str, dict[str, str]]) -> list[FactorValue]:
    """Return each value of each factor with its nodes."""
    found: dict[tuple[str, str], set[str]] = {}
    for factor, by_node in of.items():
        for node, value in by_node.items():
            found.setdefault((factor, value), set()).add(node)
    return [FactorValue(*key, frozenset(nodes)) for key, nodes in found.items()]


def questions(dice: random.Random, causes: dict[str, list[tuple[frozenset[str], float]]]) -> list[Question]:
    """Return the findings and metrics of a run. `causes`: subject -> nodes, and their rate or shift."""
    asked = []
    for i in range(FINDINGS):
        own = causes.get(f"finding{i}", [])
        rates = {node: max([BASE, *(rate for nodes, rate in own if node in nodes)]) for node in NODES}
        asked.append(Question(f"finding{i}", {it: float(dice.random() < rate) for it, rate in rates.items()}, True))  # fmt: skip
    for i in range(METRICS):
        own = causes.get(f"metric{i}", [])
        shifts = {node: sum(shift for nodes, shift in own if node in nodes) for node in NODES}
        asked.append(Question(f"metric{i}", {it: dice.gauss(shift, 1) for it, shift in shifts.items()}))
    return asked


def best(size: int, effect: float, level: float, *, counted: bool) -> float:
    """Return the power of the best test of one value at a level: Fisher's exact test, or the comparison of two means."""
    if not counted:
        normal = statistics.NormalDist()
        far = effect * (size * (1 - size / len(NODES))) ** 0.5
        return normal.cdf(far - normal.inv_cdf(1 - level / 2))
    rest, chance = len(NODES) - size, 0.0
    for inside in range(size + 1):
        for outside in range(40):  # of 10
            strata = [(len(NODES), inside + outside, size)]
            if upper_tail(inside, strata) <= level:
                chance += binomial(size, inside, effect) * binomial(rest, outside, BASE)
    return chance


def binomial(n: int, k: int, rate: float) -> float:
    """Return the probability of k of n."""
    return math.comb(n, k) * rate**k * (1 - rate) ** (n - k)


def is_of(cause: SharedCause, subject: str, factor: str, value: str) -> bool:
    """Return whether a cause names this value for this subject."""
    return cause.question.subject == subject and (factor, value) in {it[:2] for it in cause.values}


def cell(fleets: int, factor: str, effect: float, *, counted: bool, count: int = 1) -> list[object]:
    """Return a row: fleets in which all causes are named, are a pair with their twin, and in which another one is named."""
    named = pairs = wrong = 0
    for seed in range(fleets):
        dice = random.Random(f"{factor} {effect} {counted} {count} {seed}")
        of = factors(dice)
        every = values(of)
        wanted = dice.sample([it for it in every if it.factor == factor], 1)
        others = [name for name in SIZES if name != factor and SIZES[name] >= SIZES[factor]]
        wanted += [dice.choice([it for it in every if it.factor == dice.choice(others)])] if count > 1 else []
        kind = "finding" if counted else "metric"
        subjects = [f"{kind}0", f"{kind}{seed % 2}"]  # two causes of one question in half of the fleets
        causes: dict[str, list[tuple[frozenset[str], float]]] = {}
        for subject, one in zip(subjects, wanted, strict=False):
            causes.setdefault(subject, []).append((one.nodes, effect))
        found = shared_causes(every, questions(dice, causes))
        right = [
            [it for it in found if is_of(it, subject, one.factor, one.value)]
            for subject, one in zip(subjects, wanted, strict=False)
        ]
        named += all(right)
        pairs += all(
            any(name.factor == f"{one.factor}-twin" for it in its for name in it.values)
            for its, one in zip(right, wanted, strict=False)
        )
        known = {id(it) for its in right for it in its}
        wrong += any(id(it) not in known for it in found)
    what = f"1% to {effect:.0%}" if counted else f"{effect:g} deviations"
    limits = []
    if count == 1:
        many = len({it.nodes for it in every}) * (FINDINGS if counted else METRICS)
        limits = [best(SIZES[factor], effect, ALPHA / it, counted=counted) for it in (1, 2 * many)]
    return [
        count,
        what,
        SIZES[factor],
        *(f"{it / fleets:.0%}" for it in (named, pairs, wrong)),
        *(f"{it:.0%}" for it in limits),
    ]


def healthy(fleets: int) -> tuple[int, float]:
    """Return how many healthy fleets have a cause, and the longest run in seconds of CPU."""
    wrong, longest = 0, 0.0
    for seed in range(fleets):
        dice = random.Random(seed)
        every, asked = values(factors(dice)), questions(dice, {})
        began = time.process_time()
        wrong += bool(shared_causes(every, asked))
        longest = max(longest, time.process_time() - began)
    return wrong, longest


def main() -> None:
    """Print the tables."""
    fleets = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    of_all = (("rack", "delivery", "row", "feed"), (0.05, 0.2, 0.4), (1.0, 2.0, 3.0))
    rows = [
        cell(fleets, factor, effect, counted=counted, count=count)
        for count in (1, 2)
        for counted, effects in ((True, of_all[1]), (False, of_all[2]))
        for effect in effects
        for factor in (of_all[0] if count == 1 else ("delivery", "row"))
    ]
    head = ("causes", "effect", "nodes per value", "named", "as a pair", "another named", "one", "all")
    print(tabulate(rows, headers=head))
    wrong, longest = healthy(HEALTHY * fleets)
    print(f"\nhealthy fleets with a cause: {wrong} of {HEALTHY * fleets}; longest run {longest:.2f} s of CPU")
    print(stamp())


if __name__ == "__main__":
    main()
