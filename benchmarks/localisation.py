"""What localising one bad node costs in rounds and minutes, how often it is right, and whom the traffic of other jobs accuses.

    PYTHONPATH=src python benchmarks/localisation.py [CAMPAIGNS]

Beside it: all pairs by the circle method (each round one step, or all rounds one step) and one known-good node
against all others, one pair after another, as scripts do it. Everything is counted, nothing timed: minutes are the counted
steps, rounds and deadlines times what each took on two GPUs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from campaigns import draw
from link_model import LinkModel
from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.kit.nccl import pairing as schedule
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.suites.nccl.pair_rounds import REPEATS

if TYPE_CHECKING:
    from pytest_gpucluster.kit.nccl.measurement import Localisation

SIZES = (4, 16, 64, 256, 1024)
PER_LEAF = 16
TRAFFIC = (0.02, 0.05, 0.1)
RUNS = 100
# Seconds of the payload's `rounds` on 2 H200, 256 MiB, steps of 1 to 17 rounds (2026-11-30, torch 2.11): 13 steps, median 5.8 s
# for 1 round, 7.1 for 3, 9.0 for 5, 11.2 for 9, 16.0 for 17
STEP, ROUND = 5.3, 0.63
DEADLINE = 60.0  # seconds of a round with a hung group: a tenth of NcclConfig.deadline
PUBLISHED = 4 * 60.0  # seconds of a round there: 28 min for 7 rounds (cluster-readiness-engine, ADR-055)
FLEETS = (64, 256, 1000)


def localise(nodes: list[str], model: LinkModel, repeats: int = REPEATS) -> Localisation:
    """Run one localisation against the model."""
    plan = Localiser(nodes, leaves=model.leaves, gpus_per_node=8, repeats=repeats)
    while batch := plan.next_rounds():
        plan.feed(model.run(batch))
    return plan.verdict()


def fabric(size: int) -> tuple[list[str], dict[str, str]]:
    """Return so many nodes, and {node: leaf}."""
    nodes = [f"gpu{i:04}" for i in range(size)]
    return nodes, {node: f"leaf{i // PER_LEAF}" for i, node in enumerate(nodes)}


def minutes(size: int) -> list[object]:
    """Return a row: minutes for a healthy fleet, and for the worst of slow, failing and hung nodes."""
    nodes, leaves = fabric(size)
    bad = nodes[size // 3]
    slow: tuple[dict[str, Any], ...] = (
        {"network": {bad: 0.5}},
        {"adapters": {f"{bad}:3": 0.5}},
        {"gpus": {f"{bad}:3": 0.5}},
        {"crashes": {bad: "pair"}},
    )
    healthy = took(nodes, LinkModel(leaves=leaves, seed=size))
    worst = max(took(nodes, LinkModel(leaves=leaves, seed=size, **fault)) for fault in slow)
    hung = took(nodes, LinkModel(leaves=leaves, seed=size, hangs={bad: "pair"}))
    longest = max(took(nodes, LinkModel(leaves=leaves, seed=size, **fault), PUBLISHED) for fault in slow)
    everyone = len(schedule.circle(nodes)) * (STEP + ROUND)
    return [size, *(f"{seconds / 60:.1f}" for seconds in (healthy, worst, hung, everyone, longest))]


def took(nodes: list[str], model: LinkModel, step: float = STEP) -> float:
    """Return the seconds of one localisation; `step`: those of a step without its rounds."""
    plan, seconds = Localiser(nodes, leaves=model.leaves, gpus_per_node=8, repeats=REPEATS), 0.0
    while batch := plan.next_rounds():
        plan.feed(model.run(batch))
        seconds += step + len(batch) * ROUND
    return seconds + model.deadlines * DEADLINE


def accused(size: int, traffic: float, repeats: int) -> list[object]:
    """Return a row: the nodes and links of healthy fabrics that are called bad, in RUNS runs."""
    nodes, leaves = fabric(size)
    found = [localise(nodes, LinkModel(leaves=leaves, traffic=traffic, seed=seed), repeats) for seed in range(RUNS)]
    return [
        size,
        f"{traffic:.0%}",
        repeats,
        sum(len(one.bad_nodes) for one in found),
        sum(len(one.bad_links) for one in found),
        f"{sum(one.rounds for one in found) / RUNS:.1f}",
        f"{sum(one.steps for one in found) / RUNS:.1f}",
    ]


def cost(size: int) -> list[object]:
    """Return a row: rounds and steps for the worst of several single faults among so many nodes."""
    nodes, leaves = fabric(size)
    bad = nodes[size // 3]
    faults = (
        {"network": {bad: 0.5}},
        {"adapters": {f"{bad}:3": 0.5}},
        {"gpus": {f"{bad}:3": 0.5}},
        {"crashes": {bad: "pair"}},
        {"hangs": {bad: "pair"}},
    )
    found = [localise(nodes, LinkModel(leaves=leaves, seed=size, **fault)) for fault in faults]
    if any(one.bad_nodes != (bad,) for one in found):
        sys.exit(f"{size} nodes: not named")
    rounds, steps = max(one.rounds for one in found), max(one.steps for one in found)
    everyone = len(schedule.circle(nodes))
    return [size, rounds, max(one.part_rounds for one in found), steps, everyone, size - 1, f"{everyone / rounds:.3g}x"]


def campaigns(count: int) -> list[list[object]]:
    """Return rows of what became of the bad parts of so many seeded campaigns."""
    bad = named = knowable = accused = leaves = leaves_named = leaves_open = steps = 0
    for seed in range(count):
        campaign = draw(seed)
        found = campaign.run()
        told = {part for entry in found.unresolved for part in entry.candidates}
        bad += len(campaign.bad)
        knowable += sum(campaign.knowable(node) for node in campaign.bad)
        named += len(campaign.bad & set(found.bad_nodes))
        accused += len(set(found.bad_nodes) - campaign.bad)
        accused += len(set(found.bad_leaves) - campaign.model.bad_leaves.keys())
        accused += sum(frozenset(link) not in campaign.model.links for link in found.bad_links)
        leaves += len(campaign.model.bad_leaves)
        leaves_named += len(campaign.model.bad_leaves.keys() & set(found.bad_leaves))
        leaves_open += len(campaign.model.bad_leaves.keys() & told)
        steps = max(steps, found.steps)
    return [
        ["campaigns", count],
        ["bad nodes", bad],
        ["of these, pairs can single out", knowable],
        ["named", named],
        ["good nodes, links or leaves accused", accused],
        ["bad leaves", leaves],
        ["named", leaves_named],
        ["left open, among the candidates", leaves_open],
        ["most steps", steps],
    ]


def main() -> None:
    """Print the tables."""
    head = [
        "nodes",
        "rounds",
        "GPU rounds",
        "steps",
        "all pairs: rounds",
        "one against all: rounds",
        "all pairs / ours",
    ]
    print(tabulate([cost(size) for size in SIZES], head))
    print()
    head = ["nodes", "min: healthy", "one bad", "one hangs", "all pairs, a step each", "one bad, 4 min a step"]
    print(tabulate([minutes(size) for size in FLEETS], head, disable_numparse=True))
    print()
    head = ["healthy nodes", "slowed by traffic", "repeats", "nodes accused", "links accused", "rounds", "steps"]
    rows = [accused(size, share, repeats) for size in (64, 256) for share in TRAFFIC for repeats in (0, REPEATS)]
    print(tabulate(rows, head))
    print()
    print(tabulate(campaigns(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
    print(stamp())


if __name__ == "__main__":
    main()
