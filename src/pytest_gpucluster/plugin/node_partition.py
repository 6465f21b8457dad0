"""Which nodes an item uses, and how: reading them beside others, or loading them alone.

Under xdist (`-n K`) the nodes are divided into K lanes. What loads one node is run by the worker that owns its lane,
what loads all nodes by one worker, so that session fixtures measure once; turns keep loads apart, whoever schedules.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.plugin.items import node_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Lanes = tuple[tuple[str, ...], ...]

ALL, ANY = "all", ""  # beside the numbers of lanes


@dataclass(frozen=True)
class NodeLease:
    """Where an item runs: a lane's number, ALL or ANY; its nodes; `load`: no other item may use them meanwhile."""

    lane: str
    nodes: frozenset[str]
    load: bool


PLACE: pytest.StashKey[NodeLease] = pytest.StashKey()


def make_lanes(nodes: Sequence[str], count: int, leaves: Mapping[str, str]) -> Lanes:
    """Divide nodes into at most `count` lanes of equal size, to within one: {node: leaf switch} keeps a leaf together.

    Nodes keep Slurm's order within their leaf, leaves that of their first node; no lane is empty.
    """
    first = {leaf: at for at, leaf in reversed(list(enumerate(leaves.get(node, "") for node in nodes)))}
    ordered = sorted(nodes, key=lambda node: first[leaves.get(node, "")])
    count = max(1, min(count, len(ordered)))
    cuts = [len(ordered) * at // count for at in range(count + 1)]
    return tuple(tuple(ordered[begin:end]) for begin, end in itertools.pairwise(cuts))


def place_of(item: pytest.Item, nodes: Iterable[str], lanes: Lanes) -> NodeLease:
    """Say where an item runs. Its markers go first; without any, its fixtures tell: who runs steps loads nodes."""
    node, names = node_of(item), set(getattr(item, "fixturenames", ()))
    everything = frozenset(nodes)
    alone = item.get_closest_marker("lane") is not None or "lane_nodes" in names
    inventory = item.get_closest_marker("inventory") is not None  # reads Slurm's word, and no node
    if item.get_closest_marker("exclusive") or (not inventory and not alone and "allocation" in names):
        return NodeLease(ALL, everything, load=True)
    if inventory:
        return NodeLease(ANY, frozenset(), load=False)
    if alone or "srun" in names:
        number = next((at for at, lane in enumerate(lanes) if node in lane), None)
        if number is None:
            return NodeLease(ALL, everything, load=True)
        lane = frozenset(lanes[number])
        return NodeLease(str(number), lane if "lane_nodes" in names else frozenset({node}), load=True)
    return NodeLease(ANY, frozenset({node}) if node else everything, load=False)
