"""Conclusions from the measurements of groups of nodes: bad nodes, links, leaf switches and GPUs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl import pairing
from pytest_gpucluster.suites.nccl.measurement import EXPECTED, GroupKind, Status, Unresolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.kit.nccl.pairing import Group
    from pytest_gpucluster.suites.nccl.localization import Localiser
    from pytest_gpucluster.suites.nccl.measurement import Measurement

LEAF_SHARE = 0.75  # slow share of a leaf's outward pairs that makes the leaf, not its nodes, the fault
ALL_PAIRS_UP_TO = 4  # nodes: all their pairs fit into three rounds, and fewer pairs identify no node
PARTNERS = 2  # acquitted partners that convict a node


@dataclass
class _Edge:
    """All measurements of one pair of nodes."""

    ends: Group
    crosses: bool
    counts: Counter[Status] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        return self.counts[Status.SLOW] + self.counts[Status.FAILED]

    @property
    def good(self) -> int:
        return self.counts[Status.GOOD]

    def other(self, end: str) -> str:
        return self.ends[1] if self.ends[0] == end else self.ends[0]


class Inference:
    """Conclusions from all measurements of a plan up to now."""

    def __init__(self, plan: Localiser) -> None:
        self.plan = plan
        self.bounds = plan.bounds()
        self.judged = [(m, plan.judge(m, self.bounds)) for m in plan.measurements]
        self.slow_spine = self._find_slow_spine()
        self.bad: dict[str, None] = {}
        self.why: dict[str, str] = {}
        self.slow_alone_once: set[str] = set()
        self.edges: dict[frozenset[str], _Edge] = {}
        self._position = {node: at for at, node in enumerate(plan.nodes)}
        self._read_alone()
        self._read_pairs()
        self._met: dict[str, list[str]] = defaultdict(list)
        for one, other in (
            edge.ends for edge in self.edges.values() if edge.counts.keys() != {Status.SKIPPED}
        ):
            self._met[one].append(other)
            self._met[other].append(one)
        self.acquitted = {end for edge in self.edges.values() if edge.good for end in edge.ends}
        self.acquitted -= self.bad.keys()
        # a pair without a bound proves no speed, but it proves that both ends work
        self.partners = self.acquitted.union(
            end for edge in self.edges.values() if edge.counts[Status.UNJUDGED] for end in edge.ends
        )
        self.partners -= self.bad.keys()
        self.bad_leaves, self.maybe_leaves = self._read_leaves()
        self.closed_leaves = self._read_closed_leaves()
        self._find_bad_nodes()
        self.bad_links = [edge.ends for edge in self._slow_links() if edge.bad > 1 and not edge.good]

    # -- reading ----------------------------------------------------------------------------------------

    def _find_slow_spine(self) -> str:
        """Return the reason if all pairs across leaves are equally slow and only the fleet sets their bound; else ''."""
        within, across = self.bounds.get(GroupKind.WITHIN), self.bounds.get(GroupKind.ACROSS)
        if not within or not across or across.origin == EXPECTED or across.value >= LEAF_SHARE * within.value:
            return ""
        return (
            f"no bound of pairs across leaves, which are equally slow ({across.origin}; within a leaf {within.origin}): the spine, "
            "one of the leaves, or oversubscription by design; state the bound of 'across' to decide"
        )

    def _read_alone(self) -> None:
        results: dict[str, list[tuple[Measurement, Status]]] = defaultdict(list)
        for measured, status in self.judged:
            if self.plan.kind_of(measured.members) is GroupKind.ALONE:
                results[measured.members[0]].append((measured, status))
        for node, seen in results.items():
            counts = Counter(status for _, status in seen)
            if failed := [m.problem for m, status in seen if status is Status.FAILED]:
                self._mark_bad(node, f"failed alone: {failed[0]}")
            elif counts[Status.SLOW] > max(1, counts[Status.GOOD]):
                self._mark_bad(node, "slow alone, measured twice")
            elif counts[Status.SLOW] > counts[Status.GOOD]:
                self.slow_alone_once.add(node)

    def _read_pairs(self) -> None:
        for measured, status in self.judged:
            kind = self.plan.kind_of(measured.members)
            if kind in (GroupKind.WITHIN, GroupKind.ACROSS):
                edge = self.edges.setdefault(
                    frozenset(measured.members), _Edge(measured.members, kind is GroupKind.ACROSS)
                )
                # if the whole spine may be slow, a bound of the fleet proves nothing
                unproved = status is Status.GOOD and kind is GroupKind.ACROSS and self.slow_spine
                edge.counts[Status.UNJUDGED if unproved else status] += 1

    def _read_leaves(self) -> tuple[list[str], list[str]]:
        """Return the bad leaves, and the candidates: slow to other leaves, none of which is acquitted."""
        sound = {end for e in self.edges.values() if e.good and not e.crosses for end in e.ends}
        crossing = [
            (tuple(self.plan.leaves[end] for end in edge.ends), edge.bad > edge.good)
            for edge in self.edges.values()
            if edge.crosses and sound.issuperset(edge.ends) and not set(edge.ends) - self.plan.leaves.keys()
            if edge.bad or edge.good
        ]
        bad: list[str] = []
        while worst := _worst_leaf(crossing):  # without its pairs, which would count against the other leaves
            bad.append(worst[0])
            self.why[worst[0]] = worst[1]
            crossing = [(leaves, slow) for leaves, slow in crossing if worst[0] not in leaves]
        return sorted(bad), sorted(leaf for leaf, tally in _tally(crossing).items() if _mostly_slow(tally))

    def _read_closed_leaves(self) -> set[str]:
        """Return the leaves with bad pairs and no good pair across them: such a pair proves no node to be bad."""
        seen: dict[str, set[bool]] = defaultdict(set)
        for edge in self.edges.values():
            if edge.crosses and (edge.bad or edge.good) and not self._explained(edge):
                for end in edge.ends:
                    seen[self.plan.leaves.get(end, "")].add(edge.good > 0)
        closed = {leaf for leaf, good in seen.items() if leaf and True not in good}
        return closed.union(self.bad_leaves, self.maybe_leaves)

    def _counts_against_nodes(self, edge: _Edge) -> bool:
        leaves = {self.plan.leaves.get(end, "") for end in edge.ends}
        return not edge.crosses or not leaves & self.closed_leaves

    def _explained(self, edge: _Edge) -> bool:
        """Return whether a part that is known to be bad explains a bad pair."""
        leaves = {self.plan.leaves.get(end) for end in edge.ends} if edge.crosses else set()
        return not self.bad.keys().isdisjoint(edge.ends) or not leaves.isdisjoint(
            (*self.bad_leaves, *self.maybe_leaves)
        )

    def _open_edges(self) -> Iterator[_Edge]:
        return (edge for edge in self.edges.values() if edge.bad and not self._explained(edge))

    def _mark_bad(self, node: str, why: str) -> None:
        self.bad[node] = None
        self.why[node] = why

    def _bad_with_acquitted(self) -> dict[str, list[str]]:
        """Return {node that is not acquitted: acquitted partners with which it is bad}."""
        found: dict[str, list[str]] = defaultdict(list)
        for edge in filter(self._counts_against_nodes, self._open_edges()):
            for end in edge.ends:
                if end not in self.acquitted and edge.other(end) in self.partners:
                    found[end].append(edge.other(end))
        return found

    def _find_bad_nodes(self) -> None:
        for node, partners in self._bad_with_acquitted().items():
            if len(partners) >= PARTNERS:
                self._mark_bad(node, f"bad with {', '.join(partners)}, which are fine with others")

    def _slow_links(self) -> list[_Edge]:
        """Return the bad pairs of which both ends are acquitted."""
        return [
            edge
            for edge in self._open_edges()
            if self.acquitted.issuperset(edge.ends) and self._counts_against_nodes(edge)
        ]

    # -- the next pairs ---------------------------------------------------------------------------------

    def suspects(self) -> list[str]:
        """Return the nodes that are neither acquitted nor bad: slow in a pair, or never measured in one."""
        return [n for n in self.plan.nodes if n not in self.bad and n not in self.acquitted]

    def wanted_pairs(self) -> list[Group]:
        """Return the pairs to measure next: suspects with acquitted partners, slow links again."""
        wanted = [edge.ends for edge in self._slow_links() if edge.bad == 1 and edge.good == 0]
        tried = self._tried()
        load: Counter[str] = Counter(end for pair in wanted for end in pair)
        for node in self.suspects():
            # one partner per step: the suspect's last partner may be acquitted meanwhile, and then counts too
            partner = self._partner(node, load) if tried[node] < PARTNERS else None
            if partner is not None:
                load[partner] += 1
                wanted.append((node, partner))
        return wanted or self._pairs_of_suspects()

    def _tried(self) -> Counter[str]:
        """Return {node: bad pairs with partners}, without the first of those that prove nothing about nodes."""
        tried: Counter[str] = Counter()
        idle: Counter[str] = Counter()
        for edge in self._open_edges():
            tally = tried if self._counts_against_nodes(edge) else idle
            tally.update(end for end in edge.ends if edge.other(end) in self.partners)
        tried.update({node: count - 1 for node, count in idle.items()})
        return tried

    def _partner(self, node: str, load: Counter[str]) -> str | None:
        """Return the least busy acquitted node that was not yet a partner of this one, same leaf first."""
        leaf = self.plan.leaves.get(node)
        met = {*self._met[node], node}
        doubtful = {*self.bad_leaves, *self.maybe_leaves}

        def usable(other: str) -> bool:
            its_leaf = self.plan.leaves.get(other)
            same = its_leaf == leaf
            return other not in met and (same or not (leaf in doubtful or its_leaf in self.closed_leaves))

        choices = [other for other in self.partners if usable(other)]
        if not choices:
            return None
        return min(choices, key=lambda n: (load[n], self.plan.leaves.get(n) != leaf, self._position[n]))

    def _pairs_of_suspects(self) -> list[Group]:
        """Return one round of new pairs of suspects, for fleets and leaves without acquitted nodes."""
        if not self.partners and len(self.plan.nodes) > ALL_PAIRS_UP_TO:
            return []  # the whole fleet is slow: more pairs give no further information
        pairs: list[Group] = []
        leaf_of = self.plan.leaves.get
        free = [n for n in self.suspects() if sum(leaf_of(m) == leaf_of(n) for m in self._met[n]) <= PARTNERS]
        while free:
            node = free.pop(0)
            mates = (n for n in free if n not in self._met[node] and leaf_of(n) == leaf_of(node))
            if mate := next(mates, None):
                free.remove(mate)
                pairs.append((node, mate))
        return pairs

    # -- the parts of bad nodes -------------------------------------------------------------------------

    def bad_parts(self) -> dict[str, tuple[str, ...]]:
        """Return {bad node: its bad GPUs or adapters} for the nodes with some, but not all, of them bad."""
        rails = self._bad_rails()
        gpus = self._bad_gpus()
        parts: dict[str, tuple[str, ...]] = {}
        for node in self.bad:
            named = [f"GPU {i}" for i in sorted(gpus.get(node, ()))]
            named += [
                f"GPU {i} or its adapter" for i in sorted(rails.get(node, set()) - gpus.get(node, set()))
            ]
            if named:
                parts[node] = tuple(named)
        return parts

    def _bad_rails(self) -> dict[str, set[int]]:
        results: dict[str, dict[int, Status]] = defaultdict(dict)
        for measured, status in self.judged:
            if self.plan.kind_of(measured.members) is GroupKind.RAIL:
                for member in measured.members:
                    node, _, rank = member.partition(":")
                    results[node][int(rank)] = status
        found: dict[str, set[int]] = {}
        for node, by_rank in results.items():
            bad = {rank for rank, status in by_rank.items() if status in (Status.SLOW, Status.FAILED)}
            if 0 < len(bad) < len(by_rank):  # if all are bad, the fault is not in one of them
                found[node] = bad
        return found

    def _bad_gpus(self) -> dict[str, set[int]]:
        """Return the GPUs that are bad with all GPUs of their node, which are fine with others."""
        good: dict[str, set[str]] = defaultdict(set)
        bad: dict[str, set[str]] = defaultdict(set)
        for measured, status in self.judged:
            if self.plan.kind_of(measured.members) is GroupKind.LOCAL:
                tally = good if status is Status.GOOD else bad
                for one, other in (measured.members, measured.members[::-1]):
                    tally[one].add(other)
        found: dict[str, set[int]] = defaultdict(set)
        for gpu, partners in bad.items():
            if gpu not in good and len(partners & good.keys()) >= PARTNERS:
                node, _, rank = gpu.partition(":")
                found[node].add(int(rank))
        return found

    # -- open questions ---------------------------------------------------------------------------------

    def unresolved(self) -> Iterator[Unresolved]:
        """Yield the questions that the measurements leave open."""
        if self.maybe_leaves:
            yield Unresolved(tuple(self.maybe_leaves), "slow to other leaves, and none of them is acquitted")
        if self.slow_spine:
            yield Unresolved(tuple(sorted(set(self.plan.leaves.values()))), self.slow_spine)
        for node in sorted(self.slow_alone_once, key=self._position.__getitem__):
            yield Unresolved((node,), "slow alone, measured once")
        for edge in self._slow_links():
            if edge.bad == 1 and not edge.good:
                yield Unresolved((_link(edge.ends),), "slow or failed once, not measured again")
        if len(self.plan.nodes) > 1:
            yield from self._open_nodes()

    def _open_nodes(self) -> Iterator[Unresolved]:
        left = self.suspects()
        if left and not self.acquitted and len(left) > ALL_PAIRS_UP_TO:
            yield Unresolved(tuple(left), "no pair is fine: the fabric as a whole, or the bound is too high")
            return
        reported: set[str] = set()
        for leaf, members in pairing.by_leaf(left, self.plan.leaves).items():
            if leaf in self.closed_leaves and len(members) > PARTNERS:
                reported.update(members)
                yield Unresolved(
                    (leaf, *members), "no pair across this leaf is fine: the leaf, or all these nodes"
                )
        for edge in self._open_edges():
            nodes = tuple(end for end in edge.ends if end in left and end not in reported)
            leaves = sorted(self.closed_leaves & {self.plan.leaves.get(end, "") for end in edge.ends})
            if nodes:
                reported.update(nodes)
                candidates = (*nodes, _link(edge.ends), *(leaves if edge.crosses else ()))
                yield Unresolved(candidates, "no further acquitted partner to decide between them")
            elif (
                edge.crosses
                and leaves
                and not reported.intersection(leaves)
                and not reported.intersection(edge.ends)
            ):
                reported.update(leaves)
                yield Unresolved((*leaves, _link(edge.ends)), "too few pairs cross these leaves")
        for node in left:
            if node not in reported:
                yield Unresolved((node,), self._why_open(node))

    def _why_open(self, node: str) -> str:
        counts: Counter[Status] = Counter()
        for edge in self.edges.values():
            if node in edge.ends:
                counts += edge.counts
        if counts[Status.UNJUDGED]:
            return "no bound: state the expected bandwidth, there are too few pairs to compare"
        if any(not self.bad.keys().isdisjoint(e.ends) for e in self.edges.values() if node in e.ends):
            return "measured with bad nodes only"
        return "never measured in a pair"

    def evidence(self) -> Iterator[str]:
        """Yield a text for each measurement of a named part, and for each disturbance that passed."""
        links = {frozenset(link) for link in self.bad_links}
        open_parts = {part for entry in self.unresolved() for part in entry.candidates}
        named = self.bad.keys() | open_parts
        for leaf in self.bad_leaves:
            yield f"{leaf}: {self.why[leaf]}"
        for measured, status in self.judged:
            nodes = {member.partition(":")[0] for member in measured.members}
            if not nodes.isdisjoint(named) or nodes in links:
                yield self._line(measured, status)
        for edge in self.edges.values():
            if edge.bad and edge.good:
                yield f"{_link(edge.ends)}: bad {edge.bad} time(s), fine {edge.good}: a passing disturbance"

    def _line(self, measured: Measurement, status: Status) -> str:
        who = " with ".join(measured.members) if len(measured.members) > 1 else f"{measured.members[0]} alone"
        bound = self.bounds.get(self.plan.kind_of(measured.members))
        if status is Status.SKIPPED:
            return f"{who}: not measured, {measured.problem or 'skipped'}"
        if status is Status.FAILED:
            return f"{who}: {measured.problem or 'no bandwidth'}"
        return f"{who}: {measured.busbw:.4g} GB/s, {bound or 'no bound'}: {status.value}"


def _tally(crossing: Iterable[tuple[Group, bool]]) -> dict[str, Counter[bool]]:
    """Return {leaf: number of slow (True) and good (False) pairs across it}."""
    tallies: dict[str, Counter[bool]] = defaultdict(Counter)
    for leaves, slow in crossing:
        for leaf in leaves:
            tallies[leaf][slow] += 1
    return tallies


def _mostly_slow(tally: Counter[bool]) -> bool:
    return tally[True] > 1 and tally[True] / tally.total() >= LEAF_SHARE


def _worst_leaf(crossing: Sequence[tuple[Group, bool]]) -> tuple[str, str] | None:
    """Return the leaf with the largest share of slow pairs, and why; None if no leaf paired with it is good elsewhere."""
    tallies = _tally(crossing)
    for leaf in sorted(tallies, key=lambda leaf: tallies[leaf][True] / tallies[leaf].total(), reverse=True):
        tally = tallies[leaf]
        met = {other for leaves, _ in crossing if leaf in leaves for other in leaves if other != leaf}
        if _mostly_slow(tally) and any(
            not slow and leaf not in leaves and met.intersection(leaves) for leaves, slow in crossing
        ):
            return leaf, f"{tally[True]} of {tally.total()} pairs across it are slow, pairs within are fine"
    return None


def _link(ends: Group) -> str:
    return f"link {'-'.join(ends)}"
