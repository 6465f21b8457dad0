"""The GPUs and adapters that make a node bad, from the measurements of pairs of GPUs. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.nccl import pairing
from pytest_gpucluster.kit.nccl.inference import FAILED_ALONE, PARTNERS, SLOW_ALONE
from pytest_gpucluster.kit.nccl.measurement import GroupKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucluster.kit.nccl.inference import Inference
    from pytest_gpucluster.kit.nccl.measurement import JudgedMeasurement
    from pytest_gpucluster.kit.nccl.pairing import Batch, Group


def part_rounds(found: Inference, gpus: int) -> Batch:
    """Return a round of rails (with one control pair) and, for nodes that are slow alone, two of GPU neighbours."""
    nodes = found.observed.nodes
    bad = [node for node in nodes if node in found.bad_nodes and found.bad_nodes[node].code != FAILED_ALONE]
    good = sorted(found.acquitted, key=found.observed.position.__getitem__)
    if not bad:
        return ()
    pairs: list[Group] = list(zip(bad, good, strict=False))
    pairs += pairing.neighbours(good[len(pairs) :])[:1]  # the control: rails between two good nodes
    rails = tuple((f"{a}:{i}", f"{b}:{i}") for a, b in pairs for i in range(gpus))
    slow_alone = [[f"{node}:{i}" for i in range(gpus)] for node in bad if found.bad_nodes[node].code == SLOW_ALONE]
    local = [tuple(pair for members in slow_alone for pair in pairing.neighbours(members, shift)) for shift in (0, 1)]
    return tuple(groups for groups in (rails, *local) if groups)


def bad_parts(judged: Iterable[JudgedMeasurement], bad_nodes: Iterable[str]) -> dict[str, tuple[Part, ...]]:
    """Return {bad node: its bad GPUs or adapters} for the nodes with some, but not all, of them bad."""
    known = list(judged)
    rails, gpus = _bad_rails(known), _bad_gpus(known)
    parts: dict[str, tuple[Part, ...]] = {}
    for node in bad_nodes:
        of, mine = Part("node", name=node), gpus.get(node, set())
        named = [("gpu", i) for i in sorted(mine)] + [("rail", i) for i in sorted(rails.get(node, set()) - mine)]
        if named:
            parts[node] = tuple(Part(kind, i, of=of) for kind, i in named)
    return parts


def _bad_rails(judged: Iterable[JudgedMeasurement]) -> dict[str, set[int]]:
    results: dict[str, dict[int, Status]] = defaultdict(dict)
    for one in judged:
        if one.kind is GroupKind.RAIL:
            for member in one.measured.members:
                node, _, rank = member.partition(":")
                results[node][int(rank)] = one.status
    found: dict[str, set[int]] = {}
    for node, by_rank in results.items():
        bad = {rank for rank, status in by_rank.items() if status in (Status.SLOW, Status.FAILED)}
        if 0 < len(bad) < len(by_rank):  # if all are bad, the fault is not in one of them
            found[node] = bad
    return found


def _bad_gpus(judged: Iterable[JudgedMeasurement]) -> dict[str, set[int]]:
    """Return the GPUs that are bad with all GPUs of their node, which are fine with others."""
    good: dict[str, set[str]] = defaultdict(set)
    bad: dict[str, set[str]] = defaultdict(set)
    for judgement in judged:
        if judgement.kind is GroupKind.LOCAL:
            tally = good if judgement.status is Status.GOOD else bad
            members = judgement.measured.members
            for one, other in (members, members[::-1]):
                tally[one].add(other)
    found: dict[str, set[int]] = defaultdict(set)
    for gpu, partners in bad.items():
        if gpu not in good and len(partners & good.keys()) >= PARTNERS:
            node, _, rank = gpu.partition(":")
            found[node].add(int(rank))
    return found
