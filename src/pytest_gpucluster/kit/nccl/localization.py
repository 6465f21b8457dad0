"""Finds the node, GPU, link or leaf switch that makes a collective slow or fail. Pure: an executor runs the rounds.

    plan = Localiser(nodes, leaves=leaves, expected={"within": 180.0}, gpus_per_node=8)
    while batch := plan.next_rounds():      # rounds of disjoint groups: one Slurm step runs them all
        plan.feed(run(batch))               # one Measurement per group
    plan.verdict()

The first batch measures each node alone, then two rounds of pairs: neighbours on the same leaf, and pairs across leaves
(without leaves: the pairs between the first pairs). A good pair acquits both ends. A node is bad if it is slow, or
fails, with two partners that are acquitted by others; later batches pair every suspect with such partners, all suspects
at once. A slow pair of acquitted nodes is measured again; if it stays slow, the link is bad. A leaf is bad if three
quarters of the pairs across it are slow and the pairs within it are good. The last batch splits a bad node into its
GPUs and adapters: GPU i with GPU i of an acquitted partner, all at once.

The bound of each kind of group is the expected value (`expected`, GB/s, the lowest accepted) or that of the fleet:
median of the good values less the larger of `min_distance` and SIGMAS robust standard deviations (1.4826 x MAD), at
most a third.
Without a bound, or with too few partners, `unresolved` names the candidates.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl import pairing
from pytest_gpucluster.kit.nccl.bad_parts import bad_parts, part_rounds
from pytest_gpucluster.kit.nccl.inference import LEAF_SHARE, Inference, Observations, infer
from pytest_gpucluster.kit.nccl.measurement import (
    EXPECTED,
    MIN_DISTANCE,
    Bound,
    GroupKind,
    JudgedMeasurement,
    Localisation,
    Measurement,
    fleet_bound,
    judge,
    kind_of,
)
from pytest_gpucluster.kit.nccl.next_pairs import ALL_PAIRS_UP_TO, wanted_pairs
from pytest_gpucluster.kit.nccl.open_questions import evidence, unresolved
from pytest_gpucluster.kit.nccl.sensitivity import smallest_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.kit.nccl.pairing import Batch, Group, Round

MAX_STEPS = 8
MAX_ROUNDS = 4  # in one batch of suspects


class Localiser:
    """Plans the rounds, batch by batch, and concludes which parts are bad.

    `nodes`: names in Slurm's order. `leaves`: {node: leaf switch}, may lack nodes. `expected`: {kind: lowest accepted
    GB/s}, see GroupKind; other kinds are compared with the fleet. `least`: what pairs must reach if nothing is expected.
    `gpus_per_node` above 1: bad nodes are split into parts. `alone` False: the nodes were measured alone before, and `feed` may get those results first.
    `repeats`: how often a slow pair that convicts a node, a link or a leaf is repeated, since the traffic of other jobs makes
    a pair slow too; above 0, a slow node needs a third partner.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        leaves: Mapping[str, str] | None = None,
        expected: Mapping[str, float] | None = None,
        least: Bound | None = None,
        gpus_per_node: int = 1,
        alone: bool = True,
        repeats: int = 0,
        min_distance: float = MIN_DISTANCE,
    ) -> None:
        if len(set(nodes)) != len(nodes) or not nodes:
            raise ValueError("a localisation needs node names, each once")
        self.nodes = tuple(nodes)
        self.leaves = {node: leaf for node, leaf in (leaves or {}).items() if node in set(nodes)}
        self.gpus_per_node = gpus_per_node
        self._expected = {GroupKind(kind): value for kind, value in (expected or {}).items()}
        self._least = least
        self._min_distance = min_distance
        self._alone_first, self._repeats = alone, repeats
        self._first: list[Measurement] = []  # the unbiased sample for the bounds of the fleet
        self._later: list[Measurement] = []
        self._steps = 0
        self._rounds = {"node": 0, "part": 0}
        self._parts_planned = False

    # -- planning ---------------------------------------------------------------------------------------

    def next_rounds(self) -> Batch:
        """Return the rounds of the next Slurm step; () if no further measurement is useful."""
        if self._steps >= MAX_STEPS:
            return ()
        batch = self._first_batch() if not self._steps else self._suspect_batch()
        if not batch and self._steps:
            batch = self._parts_batch()
        if batch:
            self._steps += 1
            for groups in batch:
                self._count(groups)
        return batch

    def feed(self, measurements: Iterable[Measurement]) -> None:
        """Add the results of a batch. ValueError for a group with a node that is not under test."""
        known = set(self.nodes)
        for measured in measurements:
            unknown = {member.partition(":")[0] for member in measured.members} - known
            if unknown:
                raise ValueError(f"measured, but not under test: {' '.join(sorted(unknown))}")
            (self._first if self._steps <= 1 else self._later).append(measured)

    def _count(self, groups: Round) -> None:
        (first, *partners), *_ = groups  # all groups of a round have the same form
        if partners:
            self._rounds["part" if ":" in first else "node"] += 1

    def _first_batch(self) -> Batch:
        rounds: list[Round] = [tuple((node,) for node in self.nodes)] if self._alone_first else []
        if len(self.nodes) <= ALL_PAIRS_UP_TO:
            rounds += pairing.circle(self.nodes)
        elif len(set(self.leaves.values())) > 1:
            rounds.append(pairing.within_leaves(self.nodes, self.leaves))
            rounds.append(pairing.across_leaves(self.nodes, self.leaves))
        else:
            rounds += [pairing.neighbours(self.nodes), pairing.neighbours(self.nodes, shift=1)]
        return tuple(groups for groups in rounds if groups)

    def _suspect_batch(self) -> Batch:
        found = self.infer()
        alone = tuple((node,) for node in self.nodes if node in found.alone.slow_once)
        pairs = _arrange(wanted_pairs(found))
        return ((alone,) if alone else ()) + pairs

    def _parts_batch(self) -> Batch:
        if self._parts_planned or self.gpus_per_node < 2:
            return ()
        self._parts_planned = True
        return part_rounds(self.infer(), self.gpus_per_node)

    # -- judging ----------------------------------------------------------------------------------------

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements, in order."""
        return (*self._first, *self._later)

    def bounds(self) -> dict[GroupKind, Bound]:
        """Return the bound of every kind that has one."""
        first, later = self._values(self._first), self._values(self._later)
        found = {kind: Bound(value, EXPECTED) for kind, value in self._expected.items()}
        for kind in (first | later).keys() - found.keys():
            sample = first[kind] if len(first[kind]) > 1 else first[kind] + later[kind]
            if bound := fleet_bound(sample, self._min_distance):
                found[kind] = bound
        for kind in (GroupKind.WITHIN, GroupKind.ACROSS):  # a whole fleet may be slow
            if self._least and not self._expected and (first[kind] or later[kind]):
                found[kind] = max(found.get(kind, self._least), self._least, key=lambda bound: bound.value)
        if across := found.get(GroupKind.ACROSS):  # a pair within a leaf is never slower than one across
            within = found.setdefault(GroupKind.WITHIN, across)
            none_is_fine = within.value < LEAF_SHARE * across.value
            found[GroupKind.WITHIN] = across if none_is_fine and within.origin != EXPECTED else within
        elif "within" in self._expected:
            found[GroupKind.ACROSS] = found[GroupKind.WITHIN]
        return found

    def _values(self, measurements: Iterable[Measurement]) -> dict[GroupKind, list[float]]:
        values: dict[GroupKind, list[float]] = defaultdict(list)
        for measured in measurements:
            if measured.busbw is not None and not measured.problem:
                values[kind_of(measured.members, self.leaves)].append(measured.busbw)
        return values

    def infer(self) -> Inference:
        """Return what the measurements so far prove."""
        bounds, judged = self.bounds(), []
        for measured in self.measurements:
            kind = kind_of(measured.members, self.leaves)
            judged.append(JudgedMeasurement(measured, kind, judge(measured, bounds.get(kind))))
        return infer(Observations(self.nodes, self.leaves, bounds, tuple(judged), self._repeats))

    def verdict(self) -> Localisation:
        """Return the conclusions from all measurements so far."""
        found = self.infer()
        questions = tuple(unresolved(found))
        bad = sorted(found.bad_nodes, key=self.nodes.index)
        return Localisation(
            bad_nodes=tuple(bad),
            bad_links=found.bad_links,
            bad_leaves=tuple(found.leaves.bad),
            bad_parts=bad_parts(found.observed.judged, bad),
            why={**found.leaves.bad, **found.bad_nodes},
            unresolved=questions,
            evidence=tuple(evidence(found, questions)),
            rounds=self._rounds["node"],
            part_rounds=self._rounds["part"],
            steps=self._steps,
            smallest=smallest_fault(found.observed.judged, found.observed.bounds),
        )


def _arrange(pairs: Sequence[Group]) -> Batch:
    """Put pairs into rounds of disjoint pairs with a greedy algorithm, at most MAX_ROUNDS rounds."""
    rounds: list[list[Group]] = []
    taken: list[set[str]] = []
    for pair in pairs:
        at = next((i for i, busy in enumerate(taken) if busy.isdisjoint(pair)), len(rounds))
        if at == MAX_ROUNDS:
            continue  # the next batch contains it again
        if at == len(rounds):
            rounds.append([])
            taken.append(set())
        rounds[at].append(pair)
        taken[at].update(pair)
    return tuple(tuple(groups) for groups in rounds)
