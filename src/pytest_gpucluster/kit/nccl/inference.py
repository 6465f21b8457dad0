"""Conclusions from the measurements of groups of nodes: bad nodes, links and leaf switches. Pure.

`infer` calls the functions of this module, each of which reads only its arguments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.nccl.measurement import EXPECTED, GroupKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_gpucluster.kit.nccl.measurement import Bound, JudgedMeasurement
    from pytest_gpucluster.kit.nccl.pairing import Group

LEAF_SHARE = 0.75  # slow share of a leaf's outward pairs that makes the leaf, not its nodes, the fault
PARTNERS = 2  # acquitted partners that convict a node
FAILED_ALONE, SLOW_ALONE = "failed_alone", "slow_alone"
CHANCE = 0.01  # accepted expectation of good parts that are always slow by coincidence


@dataclass(frozen=True)
class Observations:
    """All measurements up to now, and the bounds that they were compared with.

    `repeats`: how many more times a slow pair that convicts is measured; a disturbance passes, a fault stays.
    """

    nodes: tuple[str, ...]
    leaves: Mapping[str, str]
    bounds: Mapping[GroupKind, Bound]
    judged: tuple[JudgedMeasurement, ...]
    repeats: int = 0

    @cached_property
    def position(self) -> Mapping[str, int]:
        """{node: its place in Slurm's order}."""
        return {node: index for index, node in enumerate(self.nodes)}


@dataclass(frozen=True)
class Edge:
    """All measurements of one pair of nodes. `leaves`: those of its ends, '' if unknown."""

    ends: Group
    leaves: tuple[str, ...]
    counts: Counter[Status]

    @property
    def bad(self) -> int:
        """How often it was slow or failed."""
        return self.counts[Status.SLOW] + self.counts[Status.FAILED]

    @property
    def good(self) -> int:
        """How often it was as fast as its bound."""
        return self.counts[Status.GOOD]

    @property
    def crosses(self) -> bool:
        """Whether its ends are on different leaves."""
        return len({*self.leaves}) > 1

    def other(self, end: str) -> str:
        """Return the end that is not this one."""
        return self.ends[1] if self.ends[0] == end else self.ends[0]

    def decides(self, end: str, acquitted: AbstractSet[str], partners: AbstractSet[str]) -> bool:
        """Whether the other end is known to do what this pair did not: an unjudged partner works, but may be slow itself."""
        return self.other(end) in (partners if self.counts[Status.FAILED] else acquitted)

    def touches(self, leaves: AbstractSet[str]) -> bool:
        """Whether the pair crosses one of these leaves."""
        return self.crosses and not leaves.isdisjoint(self.leaves)


@dataclass(frozen=True)
class AloneResults:
    """The nodes that are bad alone, {node: why}, and those that were slow once."""

    bad: Mapping[str, Explanation] = field(default_factory=dict)
    slow_once: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LeafResults:
    """The bad leaves, {leaf: why}, and the candidates: slow to other leaves, none of which is acquitted."""

    bad: Mapping[str, Explanation] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()

    @property
    def suspected(self) -> frozenset[str]:
        """The bad leaves and the candidates."""
        return frozenset((*self.bad, *self.candidates))


@dataclass(frozen=True)
class Inference:
    """What the observations prove.

    `acquitted`: the nodes with a good pair. `partners`: also those with a pair that has no bound. `closed_leaves`,
    `partners_needed`: see the functions of these names. `bad_nodes`: {node: why}.
    """

    observed: Observations
    slow_spine: str
    alone: AloneResults
    edges: tuple[Edge, ...]
    acquitted: frozenset[str]
    partners: frozenset[str]
    leaves: LeafResults
    closed_leaves: frozenset[str]
    partners_needed: int
    bad_nodes: Mapping[str, Explanation]

    @cached_property
    def open_edges(self) -> tuple[Edge, ...]:
        """The bad pairs that no bad node or leaf explains."""
        return unexplained(self.edges, self.bad_nodes.keys(), self.leaves.suspected)

    @cached_property
    def slow_links(self) -> tuple[Edge, ...]:
        """The open pairs of which both ends are acquitted."""
        return links_among(self.open_edges, self.acquitted, self.closed_leaves)

    @property
    def bad_links(self) -> tuple[Group, ...]:
        """The links that were slow in each of at least two measurements, and in all repeats."""
        return tuple(edge.ends for edge in self.slow_links if edge.bad > self._doubtful(edge) and not edge.good)

    @property
    def doubtful_links(self) -> tuple[Edge, ...]:
        """The links that were always slow, and must be measured again."""
        return tuple(edge for edge in self.slow_links if edge.bad <= self._doubtful(edge) and not edge.good)

    @property
    def convicting_links(self) -> tuple[Edge, ...]:
        """The links that convict a node or a leaf, were always slow, and must be measured again.

        Of a node, two are repeated, and the others too where enough pairs are slow at times for it to be chance.
        """
        open_edges = unexplained(self.edges, self.alone.bad.keys(), self.leaves.suspected)
        slow = convict(open_edges, self.closed_leaves, acquitted=self.acquitted, partners=self.partners)
        repeats, good = self.observed.repeats, [edge for edge in self.edges if edge.good]
        passed = sum(edge.bad > 0 for edge in good)
        results = enough((passed, len(good) - passed), len(self.observed.nodes), least=0)
        repeated: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        for edge in open_edges:
            repeated.update(edge.ends if edge.bad > repeats else ())
            seen.update(dict.fromkeys(edge.ends, edge.bad))
        open_ends = {node for node in slow if repeated[node] < PARTNERS or seen[node] < results}
        return tuple(
            edge
            for edge in self.edges
            if 0 < edge.counts[Status.SLOW] == edge.bad <= repeats and not edge.good
            if edge.touches(self.leaves.suspected)
            or any(end in open_ends and edge.decides(end, self.acquitted, self.partners) for end in edge.ends)
        )

    def _doubtful(self, edge: Edge) -> int:
        """Return how many bad measurements of a link prove nothing yet; traffic makes a link slow, but fails no group."""
        return 1 if edge.counts[Status.FAILED] else self._slow_by_chance

    @cached_property
    def _slow_by_chance(self) -> int:
        """How often a good link may be slow, one time after the other: more where slow pairs are seldom fast when repeated."""
        passed = [edge for edge in self.edges if edge.bad and edge.good]
        again = sum(edge.bad - 1 for edge in passed), sum(edge.good for edge in passed)
        return enough(again, len(self.slow_links), least=1 + self.observed.repeats)

    @property
    def suspects(self) -> list[str]:
        """The nodes that are neither acquitted nor bad: slow in a pair, or never measured in one."""
        return [n for n in self.observed.nodes if n not in self.bad_nodes and n not in self.acquitted]


def infer(observed: Observations) -> Inference:
    """Return what the observations prove."""
    spine = slow_spine(observed.bounds)
    alone = judge_alone(observed.judged)
    edges = edges_of(observed.judged, observed.leaves, across_proves=not spine)
    acquitted = ends_with(edges, Status.GOOD) - alone.bad.keys()
    # a pair without a bound proves no speed, but it proves that both ends work
    partners = (acquitted | ends_with(edges, Status.UNJUDGED)) - alone.bad.keys()
    leaves = judge_leaves(edges)
    closed = closed_leaves(edges, alone.bad.keys(), leaves.suspected)
    open_edges = unexplained(edges, alone.bad.keys(), leaves.suspected)
    slow = links_among(open_edges, acquitted, closed)
    needed = partners_needed(observed, edges, slow, acquitted)
    convicted = convict(open_edges, closed, acquitted=acquitted, partners=partners, needed=needed)
    bad_nodes = {**alone.bad, **convicted}
    return Inference(observed, spine, alone, edges, acquitted, partners, leaves, closed, needed, bad_nodes)


def links_among(edges: Iterable[Edge], acquitted: AbstractSet[str], closed: AbstractSet[str]) -> tuple[Edge, ...]:
    """Return the pairs of which both ends are acquitted and that no leaf may explain."""
    return tuple(edge for edge in edges if acquitted >= {*edge.ends} and not edge.touches(closed))


def partners_needed(
    observed: Observations, edges: Iterable[Edge], slow_links: Iterable[Edge], acquitted: AbstractSet[str]
) -> int:
    """Return how many partners convict a slow node: the more links are slow, the more of them a good node has by chance.

    Links stay slow without a bad end where the leaves are unknown, or a hash puts several flows on one path. Where pairs
    are repeated, a third partner costs no further step. A node that is slow with all acquitted nodes is bad.
    """
    good = sum(edge.good > 0 for edge in edges)
    slow = sum(edge.bad > observed.repeats and not edge.good for edge in slow_links)
    most = max(PARTNERS, len(acquitted))
    least = min(most, PARTNERS + (observed.repeats > 0))
    return enough((slow, good), len(observed.nodes), least=least, most=most)


def enough(seen: tuple[int, int], parts: int, *, least: int, most: int = 100) -> int:
    """Return how many slow results in a row no good part has by coincidence; `parts`: how many there are, `seen`: (slow, good) results."""
    share = seen[0] / sum(seen) if seen[0] else 0.0
    return next((count for count in range(least, most) if parts * share**count <= CHANCE), most)


def slow_spine(bounds: Mapping[GroupKind, Bound]) -> str:
    """Return the reason if all pairs across leaves are equally slow and only the fleet sets their bound; else ''."""
    within, across = bounds.get(GroupKind.WITHIN), bounds.get(GroupKind.ACROSS)
    if not within or not across or across.origin == EXPECTED or across.value >= LEAF_SHARE * within.value:
        return ""
    return (
        f"no bound of pairs across leaves, which are equally slow ({across.origin}; within a leaf {within.origin}): the spine, "
        "one of the leaves, or oversubscription by design; state the bound of 'across' to decide"
    )


def judge_alone(judged: Iterable[JudgedMeasurement]) -> AloneResults:
    """Judge each node by its measurements alone: one failure, or slow twice and more often than not, is bad."""
    results: dict[str, list[JudgedMeasurement]] = defaultdict(list)
    for one in judged:
        if one.kind is GroupKind.ALONE:
            results[one.measured.members[0]].append(one)
    bad: dict[str, Explanation] = {}
    slow_once: set[str] = set()
    for node, seen in results.items():
        counts = Counter(one.status for one in seen)
        if failed := [one.measured.problem for one in seen if one.status is Status.FAILED]:
            bad[node] = Explanation(FAILED_ALONE, f"failed alone: {failed[0]}")
        elif counts[Status.SLOW] > max(1, counts[Status.GOOD]):
            bad[node] = Explanation(SLOW_ALONE, "slow alone, measured twice")
        elif counts[Status.SLOW] > counts[Status.GOOD]:
            slow_once.add(node)
    return AloneResults(bad, frozenset(slow_once))


def edges_of(
    judged: Iterable[JudgedMeasurement], leaves: Mapping[str, str], *, across_proves: bool = True
) -> tuple[Edge, ...]:
    """Return the measured pairs of nodes, in the order of their first measurement.

    `across_proves` False: the whole spine may be slow, and a pair that is as fast as the others across it proves nothing.
    """
    edges: dict[frozenset[str], Edge] = {}
    for one in judged:
        if one.kind in (GroupKind.WITHIN, GroupKind.ACROSS):
            ends = one.measured.members
            of_ends = tuple(leaves.get(end, "") for end in ends)
            edge = edges.setdefault(frozenset(ends), Edge(ends, of_ends, Counter()))
            unproved = one.status is Status.GOOD and one.kind is GroupKind.ACROSS and not across_proves
            edge.counts[Status.UNJUDGED if unproved else one.status] += 1
    return tuple(edges.values())


def ends_with(edges: Iterable[Edge], status: Status) -> frozenset[str]:
    """Return the nodes with a pair of this result."""
    return frozenset(end for edge in edges if edge.counts[status] for end in edge.ends)


def judge_leaves(edges: Iterable[Edge]) -> LeafResults:
    """Judge each leaf by the pairs across it, of nodes that are good within their leaf."""
    known = list(edges)
    sound = ends_with((edge for edge in known if not edge.crosses), Status.GOOD)
    crossing = [
        (edge.leaves, not edge.good)
        for edge in known
        if edge.crosses and sound.issuperset(edge.ends) and all(edge.leaves)
        if edge.bad or edge.good
    ]
    bad: dict[str, Explanation] = {}
    while worst := _worst_leaf(crossing):  # without its pairs, which would count against the other leaves
        leaf, bad[leaf] = worst
        crossing = [(leaves, slow) for leaves, slow in crossing if leaf not in leaves]
    candidates = sorted(leaf for leaf, tally in _tally(crossing).items() if _mostly_slow(tally))
    return LeafResults(dict(sorted(bad.items())), tuple(candidates))


def closed_leaves(edges: Iterable[Edge], bad_nodes: AbstractSet[str], suspected: AbstractSet[str]) -> frozenset[str]:
    """Return the leaves with bad pairs and no good pair across them: such a pair proves no node to be bad."""
    seen: dict[str, set[bool]] = defaultdict(set)
    for edge in edges:
        if edge.crosses and (edge.bad or edge.good) and not _explained(edge, bad_nodes, suspected):
            for leaf in edge.leaves:
                seen[leaf].add(edge.good > 0)
    closed = {leaf for leaf, good in seen.items() if leaf and True not in good}
    return frozenset(closed.union(suspected))


def unexplained(edges: Iterable[Edge], bad_nodes: AbstractSet[str], bad_leaves: AbstractSet[str]) -> tuple[Edge, ...]:
    """Return the bad pairs that none of these parts explains."""
    return tuple(edge for edge in edges if edge.bad and not _explained(edge, bad_nodes, bad_leaves))


def convict(
    open_edges: Iterable[Edge],
    closed: AbstractSet[str],
    *,
    acquitted: AbstractSet[str],
    partners: AbstractSet[str],
    needed: int = PARTNERS,
) -> dict[str, Explanation]:
    """Return {node: why} of the nodes that are not acquitted and bad with enough partners."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in open_edges:
        for end in () if edge.touches(closed) else edge.ends:
            if end not in acquitted and edge.decides(end, acquitted, partners):
                found[end].append(edge)
    return {
        node: Explanation(
            "bad_with_partners", f"bad with {', '.join(edge.other(node) for edge in own)}, which are fine with others"
        )
        for node, own in found.items()
        if len(own) >= partners_of(own, needed)
    }


def partners_of(edges: Iterable[Edge], needed: int) -> int:
    """Return how many partners convict a node with these pairs; links are slow by chance, but seldom fail."""
    return PARTNERS if any(edge.counts[Status.FAILED] for edge in edges) else needed


def _explained(edge: Edge, bad_nodes: AbstractSet[str], bad_leaves: AbstractSet[str]) -> bool:
    return not bad_nodes.isdisjoint(edge.ends) or edge.touches(bad_leaves)


def _tally(crossing: Iterable[tuple[Group, bool]]) -> dict[str, Counter[bool]]:
    """Return {leaf: number of slow (True) and good (False) pairs across it}."""
    tallies: dict[str, Counter[bool]] = defaultdict(Counter)
    for leaves, slow in crossing:
        for leaf in leaves:
            tallies[leaf][slow] += 1
    return tallies


def _mostly_slow(tally: Counter[bool]) -> bool:
    return tally[True] > 1 and tally[True] / tally.total() >= LEAF_SHARE


def _worst_leaf(crossing: Sequence[tuple[Group, bool]]) -> tuple[str, Explanation] | None:
    """Return the leaf with the largest share of slow pairs, and why; None if no leaf paired with it is good elsewhere."""
    tallies = _tally(crossing)
    for leaf in sorted(tallies, key=lambda leaf: tallies[leaf][True] / tallies[leaf].total(), reverse=True):
        tally = tallies[leaf]
        met = {other for leaves, _ in crossing if leaf in leaves for other in leaves if other != leaf}
        if _mostly_slow(tally) and any(
            not slow and leaf not in leaves and met.intersection(leaves) for leaves, slow in crossing
        ):
            text = f"{tally[True]} of {tally.total()} pairs across it are slow, pairs within are fine"
            return leaf, Explanation("slow_leaf", text)
    return None
