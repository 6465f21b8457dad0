# The shares are arbitrary draws (PLR2004), repeatable by their seed and nothing secret (S311).
"""Seeded campaigns that try the localisation: random fabrics of 2 to 1,024 nodes with 0 to 5% bad nodes. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from link_model import ACROSS, ALONE, WITHIN, LinkModel

from pytest_gpucluster.kit.nccl.localization import Localiser

if TYPE_CHECKING:
    from pytest_gpucluster.kit.nccl.measurement import Localisation

GPUS = 8
KINDS = ("network", "gpus", "adapters", "crashes", "hangs")


@dataclass
class Campaign:
    """One fabric, what is wrong with it, and how it is judged."""

    seed: int
    nodes: list[str]
    model: LinkModel
    bad: set[str]
    absolute: bool

    def knowable(self, node: str) -> bool:
        """Tell whether pairs can single the node out: with two nodes, or a leaf of bad nodes only, they cannot."""
        leaf = self.model.leaves.get(node)
        mates = {n for n in self.nodes if self.model.leaves.get(n) == leaf}
        return len(self.nodes) > 2 and not (leaf is not None and len(mates) < len(self.nodes) and mates <= self.bad)

    def plan(self) -> Localiser:
        """Return a fresh localisation of this fabric."""
        expected = {"alone": 0.88 * ALONE, "within": 0.88 * WITHIN, "across": 0.88 * ACROSS}
        return Localiser(
            self.nodes, leaves=self.model.leaves, expected=expected if self.absolute else None, gpus_per_node=GPUS
        )

    def run(self) -> Localisation:
        """Return what the localisation finds."""
        plan = self.plan()
        while batch := plan.next_rounds():
            plan.feed(self.model.run(batch))
        return plan.verdict()


def draw(seed: int, largest: int = 1024) -> Campaign:
    """Draw one campaign: size log-uniform, faults at most 5% of the nodes (one may always be)."""
    dice = random.Random(seed)
    size = round(2 ** dice.uniform(1, largest.bit_length() - 1))
    nodes = [f"gpu{i:04}" for i in range(size)]
    per_leaf = dice.choice((0, 8, 16, 18))
    leaves = {node: f"leaf{i // per_leaf:02}" for i, node in enumerate(nodes)} if per_leaf else {}
    model = LinkModel(leaves=leaves, noise=dice.uniform(0.01, 0.03), seed=seed)
    most = max(1, size // 20)
    bad = dice.sample(nodes, dice.choice((0, 1, min(2, most), dice.randint(0, most), most)))
    if len(bad) > 1 and dice.random() < 0.3:  # bad nodes that were paired together
        start = dice.randrange(size - len(bad) + 1)
        bad = nodes[start : start + len(bad)]
    for node in bad:
        _break(model, node, dice)
    names = sorted(set(leaves.values()))
    if len(names) > 1 and dice.random() < 0.2:
        model.bad_leaves[dice.choice(names)] = dice.uniform(0.2, 0.7)
    good = [node for node in nodes if node not in bad]
    if size >= 8 and dice.random() < 0.3:
        at = dice.randrange(len(good) - 1)
        model.links[frozenset(good[at : at + 2])] = dice.uniform(0.2, 0.7)
    return Campaign(seed, nodes, model, set(bad), absolute=dice.random() < 0.3)


def _break(model: LinkModel, node: str, dice: random.Random) -> None:
    kind, factor = dice.choice(KINDS), dice.uniform(0.2, 0.75)
    part = f"{node}:{dice.randrange(GPUS)}"
    if kind == "network":
        model.network[node] = factor
    elif kind == "gpus":
        model.gpus[part] = factor
    elif kind == "adapters":
        model.adapters[part] = factor
    else:
        {"crashes": model.crashes, "hangs": model.hangs}[kind][node] = dice.choice(("alone", "pair"))
