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
median of the good values less the larger of `min_distance` and `sigmas` robust standard deviations (1.4826 x MAD).
Without a bound, or with too few partners, `unresolved` names the candidates.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl import pairing
from pytest_gpucluster.suites.nccl.inference import ALL_PAIRS_UP_TO, Inference
from pytest_gpucluster.suites.nccl.measurement import (
    EXPECTED,
    MIN_DISTANCE,
    SIGMAS,
    Bound,
    GroupKind,
    Localisation,
    Measurement,
    Status,
    fleet_bound,
)

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
        min_distance: float = MIN_DISTANCE,
        sigmas: float = SIGMAS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if len(set(nodes)) != len(nodes) or not nodes:
            raise ValueError("a localisation needs node names, each once")
        self.nodes = tuple(nodes)
        self.leaves = {node: leaf for node, leaf in (leaves or {}).items() if node in set(nodes)}
        self.gpus_per_node = gpus_per_node
        self.max_steps = max_steps
        self._expected = {GroupKind(kind): value for kind, value in (expected or {}).items()}
        self._least = least
        self._distances = {"min_distance": min_distance, "sigmas": sigmas}
        self._alone_first = alone
        self._first: list[Measurement] = []  # the unbiased sample for the bounds of the fleet
        self._later: list[Measurement] = []
        self._steps = 0
        self._rounds = {"node": 0, "part": 0}
        self._parts_planned = False

    # -- planning ---------------------------------------------------------------------------------------

    def next_rounds(self) -> Batch:
        """Return the rounds of the next Slurm step; () if no further measurement is useful."""
        if self._steps >= self.max_steps:
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
        found = Inference(self)
        alone = tuple((node,) for node in self.nodes if node in found.slow_alone_once)
        pairs = _place(found.wanted_pairs())
        return ((alone,) if alone else ()) + pairs

    def _parts_batch(self) -> Batch:
        if self._parts_planned or self.gpus_per_node < 2:
            return ()
        self._parts_planned = True
        return _part_rounds(Inference(self), self.gpus_per_node)

    # -- judging ----------------------------------------------------------------------------------------

    def kind_of(self, members: Group) -> GroupKind:
        """Return the kind of a group."""
        hosts = {member.partition(":")[0] for member in members}
        if ":" in str(members):
            return GroupKind.LOCAL if len(hosts) == 1 else GroupKind.RAIL
        if len(hosts) == 1:
            return GroupKind.ALONE
        return GroupKind.ACROSS if len({self.leaves.get(host) for host in hosts}) > 1 else GroupKind.WITHIN

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
            bound = fleet_bound(sample, **self._distances)
            if bound:
                found[kind] = bound
        for kind in (GroupKind.WITHIN, GroupKind.ACROSS):  # a whole fleet may be slow
            if self._least and not self._expected and (first[kind] or later[kind]):
                found[kind] = max(found.get(kind, self._least), self._least, key=lambda bound: bound.value)
        if GroupKind.ACROSS in found:  # a pair within a leaf is never slower than one across
            found.setdefault(GroupKind.WITHIN, found[GroupKind.ACROSS])
        elif "within" in self._expected:
            found[GroupKind.ACROSS] = found[GroupKind.WITHIN]
        return found

    def _values(self, measurements: Iterable[Measurement]) -> dict[GroupKind, list[float]]:
        values: dict[GroupKind, list[float]] = defaultdict(list)
        for measured in measurements:
            if measured.busbw is not None and not measured.problem:
                values[self.kind_of(measured.members)].append(measured.busbw)
        return values

    def judge(self, measured: Measurement, bounds: Mapping[GroupKind, Bound]) -> Status:
        """Compare a measurement with its bound."""
        if measured.skipped:
            return Status.SKIPPED
        if measured.problem or measured.busbw is None:
            return Status.FAILED
        bound = bounds.get(self.kind_of(measured.members))
        if bound is None:
            return Status.UNJUDGED
        return Status.GOOD if measured.busbw >= bound.value else Status.SLOW

    def verdict(self) -> Localisation:
        """Return the conclusions from all measurements so far."""
        found = Inference(self)
        bad = sorted(found.bad, key=self.nodes.index)
        return Localisation(
            bad_nodes=tuple(bad),
            bad_links=tuple(found.bad_links),
            bad_leaves=tuple(found.bad_leaves),
            bad_parts=found.bad_parts(),
            why={part: found.why[part] for part in (*bad, *found.bad_leaves)},
            unresolved=tuple(found.unresolved()),
            evidence=tuple(found.evidence()),
            rounds=self._rounds["node"],
            part_rounds=self._rounds["part"],
            steps=self._steps,
        )


def _place(pairs: Sequence[Group]) -> Batch:
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


def _part_rounds(found: Inference, gpus: int) -> Batch:
    """Return a round of rails (with one control pair) and, for nodes that are slow alone, two of GPU neighbours."""
    bad = [node for node in found.plan.nodes if node in found.bad and "failed alone" not in found.why[node]]
    good = sorted(found.acquitted, key=found.plan.nodes.index)
    if not bad:
        return ()
    pairs: list[Group] = list(zip(bad, good, strict=False))
    pairs += pairing.neighbours(good[len(pairs) :])[:1]  # the control: rails between two good nodes
    rails = tuple((f"{a}:{i}", f"{b}:{i}") for a, b in pairs for i in range(gpus))
    slow_alone = [[f"{node}:{i}" for i in range(gpus)] for node in bad if "slow alone" in found.why[node]]
    local = [
        tuple(pair for members in slow_alone for pair in pairing.neighbours(members, shift))
        for shift in (0, 1)
    ]
    return tuple(groups for groups in (rails, *local) if groups)
