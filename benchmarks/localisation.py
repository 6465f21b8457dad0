"""What localising one bad node costs, and how often it is right.

    PYTHONPATH=src python benchmarks/localisation.py [CAMPAIGNS]

Beside it: all pairs by the circle method (each round one step, or all rounds one step) and one known-good node
against all others, one pair after another, as scripts do it. Everything is counted, nothing timed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from campaigns import draw
from link_model import LinkModel
from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.kit.nccl import pairing as schedule
from pytest_gpucluster.kit.nccl.localization import Localiser

if TYPE_CHECKING:
    from pytest_gpucluster.kit.nccl.measurement import Localisation

SIZES = (4, 16, 64, 256, 1024)
PER_LEAF = 16


def localise(nodes: list[str], model: LinkModel) -> Localisation:
    """Run one localisation against the model."""
    plan = Localiser(nodes, leaves=model.leaves, gpus_per_node=8)
    while batch := plan.next_rounds():
        plan.feed(model.run(batch))
    return plan.verdict()


def cost(size: int) -> list[object]:
    """Return a row: rounds and steps for the worst of several single faults among so many nodes."""
    nodes = [f"gpu{i:04}" for i in range(size)]
    leaves = {node: f"leaf{i // PER_LEAF}" for i, node in enumerate(nodes)}
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
    return [
        size,
        rounds,
        max(one.part_rounds for one in found),
        steps,
        everyone,
        size - 1,
        f"{everyone / rounds:.3g}x",
    ]


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
    """Print both tables."""
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
    print(tabulate(campaigns(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
    print(stamp())


if __name__ == "__main__":
    main()
