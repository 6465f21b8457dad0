"""The pairs of nodes to measure next: suspects with acquitted partners, doubtful links again. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl.inference import PARTNERS, partners_of
from pytest_gpucluster.kit.nccl.measurement import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from pytest_gpucluster.kit.nccl.inference import Edge, Inference
    from pytest_gpucluster.kit.nccl.pairing import Group

ALL_PAIRS_UP_TO = 4  # nodes: all their pairs fit into three rounds, and fewer pairs identify no node


def wanted_pairs(found: Inference) -> list[Group]:
    """Return the pairs to measure next; [] if no further pair decides anything."""
    met = met_in(found.edges)
    wanted = [edge.ends for edge in (*found.doubtful_links, *found.convicting_links)]
    tried = _tried(found)
    load: Counter[str] = Counter(end for pair in wanted for end in pair)
    slow = {end for edge in found.open_edges if edge.counts[Status.SLOW] for end in edge.ends}
    for node in found.suspects:
        # one partner per step: the suspect's last partner may be acquitted meanwhile, and then counts too
        needed = partners_of(tried[node], found.partners_needed)
        among = found.acquitted if node in slow else found.partners
        partner = _partner(found, among, node, met[node], load) if len(tried[node]) < needed else None
        if partner is not None:
            load[partner] += 1
            wanted.append((node, partner))
    return wanted or _pairs_of_suspects(found, met)


def met_in(edges: Iterable[Edge]) -> Mapping[str, set[str]]:
    """Return {node: the nodes that it was measured with}, without the pairs that were only skipped."""
    met: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        if edge.counts.keys() != {Status.SKIPPED}:
            one, other = edge.ends
            met[one].add(other)
            met[other].add(one)
    return met


def _tried(found: Inference) -> Mapping[str, list[Edge]]:
    """Return {node: its bad pairs with partners}, without the first of those that prove nothing about nodes."""
    tried: dict[str, list[Edge]] = defaultdict(list)
    idle: dict[str, list[Edge]] = defaultdict(list)
    for edge in found.open_edges:
        tally = idle if edge.touches(found.closed_leaves) else tried
        for end in edge.ends:
            if edge.decides(end, found.acquitted, found.partners):
                tally[end].append(edge)
    for node, edges in idle.items():
        tried[node] += edges[1:]
    return tried


def _partner(
    found: Inference, among: Iterable[str], node: str, met: AbstractSet[str], load: Counter[str]
) -> str | None:
    """Return the least busy of these partners that this node was not yet measured with, same leaf first; None without one."""
    leaf_of = found.observed.leaves.get
    leaf = leaf_of(node)

    def usable(other: str) -> bool:
        decides = leaf not in found.leaves.suspected and leaf_of(other) not in found.closed_leaves
        return other != node and other not in met and (leaf_of(other) == leaf or decides)

    position = found.observed.position
    return min(
        filter(usable, among), key=lambda other: (load[other], leaf_of(other) != leaf, position[other]), default=None
    )


def _pairs_of_suspects(found: Inference, met: Mapping[str, set[str]]) -> list[Group]:
    """Return one round of new pairs of suspects, for fleets and leaves without acquitted nodes."""
    if not found.acquitted and len(found.observed.nodes) > ALL_PAIRS_UP_TO:
        return []  # the whole fleet is slow: more pairs give no further information
    pairs: list[Group] = []
    leaf_of = found.observed.leaves.get
    free = [n for n in found.suspects if sum(leaf_of(m) == leaf_of(n) for m in met[n]) <= PARTNERS]
    while free:
        node = free.pop(0)
        mates = (n for n in free if n not in met[node] and leaf_of(n) == leaf_of(node))
        if mate := next(mates, None):
            free.remove(mate)
            pairs.append((node, mate))
    return pairs
