"""How often a part that is slow at times is found, whom the tests accuse, and what they cost: by simulation.

    PYTHONPATH=src python benchmarks/intermittent.py [unequal | [KIND SIZE CAMPAIGNS]...]

Each campaign has one bad node, rail or link, which is slow in a share of its measurements by 20 to 60%, at a noise of 3%; "traffic" is the
share of pairs that other jobs slow meanwhile. Nodes and rails meet random partners, a link is measured itself. Plain: BUDGET rounds of all parts,
then Fisher's test with Holm's correction. Until: as `--until=95%`, of nodes only: 59 rounds, and
twice and four times as many while a node is open.
"Limit": the power of the best test at BUDGET measurements of a part with a known base rate. `unequal`: fleets of 500 good parts whose own shares scatter.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from link_model import LinkModel
from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.core.intermittent import (
    ALPHA,
    CONFIDENCE,
    FLOOR,
    Decision,
    SlowCount,
    beside_others,
    binomial_tail,
    judge_parts,
    slow_among,
)
from pytest_gpucluster.kit.nccl.measurement import MIN_DISTANCE, GroupKind, kind_of
from pytest_gpucluster.suites.nccl.at_times import RepeatedPairs, measure_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.kit.nccl.measurement import Measurement
    from pytest_gpucluster.kit.nccl.pairing import Batch, Group

BUDGET = 60
NOISE, PER_LEAF, RAILS = 0.03, 16, 8
SHARES, TRAFFIC = (0.02, 0.05, 0.1, 0.2, 0.3), (0.0, 0.02)
PLAN = (("node", 64, 60), ("link", 64, 100), ("node", 256, 25), ("link", 256, 40), ("rail", 64, 8),
        ("link", 1024, 10), ("node", 1024, 5))  # fmt: skip
UNEQUAL = ((0.002, 0.0), (0.005, 0.5), (0.02, 0.3), (0.02, 0.5), (0.02, 1.0))
UNEQUAL_PARTS, UNEQUAL_MEASURED, FLEETS = 500, 200, 50
HEAD = ("part", "nodes", "parts", "traffic", "slow in", "campaigns", "limit", "plain: found", "accused",
        "until: found", "accused", "measurements per part")  # fmt: skip


@dataclass
class Campaign:
    """One simulated campaign."""

    kind: str
    size: int
    share: float
    traffic: float
    seed: int
    parts: list[str] = field(init=False)
    bad: str = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        nodes = [f"gpu{number:04}" for number in range(self.size)]
        self.leaves = {node: f"leaf{at // PER_LEAF}" for at, node in enumerate(nodes)}
        self.links = {f"{a}-{b}": (a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=True)}
        self.parts = {
            "node": nodes,
            "rail": [f"{node}:{rank}" for node in nodes for rank in range(RAILS)],
            "link": list(self.links),
        }[self.kind]
        self.bad = self.dice.choice(self.parts)
        name = frozenset(self.links[self.bad]) if self.kind == "link" else self.bad
        faults = {"node": "network", "rail": "adapters", "link": "links"}[self.kind]
        self.model = LinkModel(
            leaves=self.leaves, shares={name: self.share}, noise=NOISE, traffic=self.traffic, seed=self.seed
        )
        getattr(self.model, faults)[name] = self.dice.uniform(0.4, 0.8)

    def all_groups(self) -> list[Group]:
        """Return a round of all parts."""
        if self.kind == "link":
            return list(self.links.values())
        return [pair for members in self._by_rank(self.parts).values() for pair in self._paired(members)]

    def _by_rank(self, parts: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for part in parts:
            found.setdefault(part.partition(":")[2], []).append(part)
        return found

    def _paired(self, members: list[str]) -> Iterable[Group]:
        self.dice.shuffle(members)
        return zip(members[::2], members[1::2], strict=True)

    def measure(self, groups: Sequence[Group], slow: Counter[str], measured: Counter[str]) -> None:
        """Count a round: which parts were measured, and which of them were slow among the like pairs."""
        values: dict[GroupKind, dict[Group, float]] = {}
        for it in self.model.run((tuple(groups),)):
            values.setdefault(kind_of(it.members, self.leaves), {})[it.members] = it.busbw or 0.0
        for of_kind in values.values():
            below = slow_among(of_kind, MIN_DISTANCE)
            for group in of_kind:
                names = ("-".join(group),) if self.kind == "link" else group
                measured.update(names)
                slow.update(names if group in below else ())


def plain(campaign: Campaign) -> set[str]:
    """Return the parts that plain repetition calls intermittent."""
    found = judge_parts(beside_others(_counted(campaign, BUDGET)))
    return {part for part, it in found.items() if it.decision is Decision.INTERMITTENT}


def until(campaign: Campaign) -> tuple[set[str], float]:
    """Return the nodes that --until=95% accuses, and the measurements per node."""
    plan, pairs = RepeatedPairs(tuple(campaign.parts), campaign.leaves, CONFIDENCE), 0

    def measure(_nodes: Sequence[str], batch: Batch) -> Sequence[Measurement]:
        nonlocal pairs
        pairs += sum(map(len, batch))
        return campaign.model.run(batch)

    judged = measure_until(plan, measure, {})
    accused = {node for node, it in judged.items() if it.decision is Decision.INTERMITTENT}
    return accused, 2 * pairs / len(campaign.parts)


def _counted(campaign: Campaign, rounds: int) -> dict[str, SlowCount]:
    slow: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    for _ in range(rounds):
        campaign.measure(campaign.all_groups(), slow, measured)
    return {part: SlowCount(slow[part], measured[part]) for part in campaign.parts}


def limit(parts: int, share: float, traffic: float) -> float:
    """Return the power of the best test of BUDGET measurements with a known base rate, at least the floor."""
    base = max(FLOOR, traffic)
    least = next(at for at in range(BUDGET + 1) if parts * binomial_tail(at, BUDGET, base) <= ALPHA)
    return binomial_tail(least, BUDGET, share + (1 - share) * traffic)


def cell(kind: str, size: int, campaigns: int, share: float, traffic: float) -> list[object]:
    """Return a row."""
    found: Counter[str] = Counter()
    measurements, parts = 0.0, 0
    for seed in range(campaigns):
        once, twice = (Campaign(kind, size, share, traffic, seed) for _ in range(2))
        found.update(_outcome("plain", plain(once), once.bad))
        parts = len(once.parts)
        if kind == "node":
            accused, cost = until(twice)
            found.update(_outcome("until", accused, twice.bad))
            measurements += cost
    of_until: list[object] = [
        f"{found['until found'] / campaigns:.0%}", found["until accused"], f"{measurements / campaigns:.1f}"
    ]  # fmt: skip
    return [
        kind, size, parts, f"{traffic:.0%}", f"{share:.0%}", campaigns, f"{limit(parts, share, traffic):.0%}",
        f"{found['plain found'] / campaigns:.0%}", found["plain accused"],
        *(of_until if kind == "node" else "---"),
    ]  # fmt: skip


def _outcome(method: str, accused: set[str], bad: str) -> Mapping[str, int]:
    return {f"{method} found": int(bad in accused), f"{method} accused": int(bool(accused - {bad}))}


def unequal(mean: float, spread: float) -> list[object]:
    """Return a row: fleets of good parts whose own shares of slow measurements scatter (gamma), and how many have an accused one."""
    accused = 0
    for seed in range(FLEETS):
        dice, counts = random.Random(seed), []
        for _ in range(UNEQUAL_PARTS):
            share = dice.gammavariate(spread**-2, mean * spread**2) if spread else mean
            slow = sum(dice.random() < share for _ in range(UNEQUAL_MEASURED))
            counts.append(SlowCount(slow, UNEQUAL_MEASURED))
        found = judge_parts(beside_others(dict(enumerate(counts))))
        accused += any(it.decision is Decision.INTERMITTENT for it in found.values())
    return [f"{mean:.1%}", f"{spread:.0%}", FLEETS, accused]


def main() -> None:
    """Print a row for each kind of part, size, traffic and share; then unequal good parts."""
    if sys.argv[1:] == ["unequal"]:
        print(tabulate([unequal(*it) for it in UNEQUAL], ("slow in", "scatter", "fleets", "with a good part accused")))
        print(stamp())
        return
    words = sys.argv[1:]
    asked = zip(words[::3], map(int, words[1::3]), map(int, words[2::3]), strict=True)
    rows = [
        cell(kind, size, campaigns, share, traffic)
        for kind, size, campaigns in (list(asked) or PLAN)
        for traffic in TRAFFIC
        for share in SHARES
    ]
    print(tabulate(rows, HEAD))
    print(f"accused: campaigns in which a good part was called intermittent; plain: {BUDGET} measurements per part")
    print(stamp())


if __name__ == "__main__":
    main()
