"""Which node, GPU, link or leaf switch makes a collective slow, or breaks it. Pure: an executor runs the rounds.

    plan = Localiser(nodes, leaves=leaves, expected={"within": 180.0}, gpus_per_node=8)
    while batch := plan.next_rounds():      # rounds of disjoint groups: one Slurm step runs them all
        plan.feed(run(batch))               # one Measurement a group
    plan.verdict()

Order of proof. The first batch measures each node alone, then two rounds of pairs: neighbours on the same leaf,
and pairs across leaves (without leaves: the pairs between the first pairs). A fine pair acquits both its ends. A
node is bad when it is slow, or fails, with two partners that others acquit; later batches give every suspect such
partners, all suspects at once. A pair that is slow although both ends are acquitted is measured again: then the
link is bad. A leaf is bad when three quarters of the pairs across it are slow and its nodes are fine within. The
last batch splits a bad node into its GPUs and adapters: GPU i against GPU i of a known-good partner, all at once.

Bounds are, for each kind of group, the given one (`expected`, GB/s, the least that is accepted) or the fleet's:
median of the good less the larger of `min_distance` and `sigmas` robust standard deviations (1.4826 x MAD).
Where neither exists, or too few partners are left, `unresolved` names the candidates.
"""

from __future__ import annotations

import enum
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.kit import pairing as schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.kit.pairing import Batch, Group, Round

MIN_DISTANCE = 0.12  # of the median: four standard deviations of a fabric that scatters by 3%
SIGMAS = 4.0
LEAF_SHARE = 0.75  # slow share of a leaf's outward pairs that makes the leaf, not its nodes, the fault
ALL_PAIRS_UP_TO = 4  # nodes: so few cost three rounds for all pairs, and nothing less tells them apart
PARTNERS = 2  # acquitted partners that convict a node
EXPECTED = "expected"
MAX_STEPS = 8
MAX_ROUNDS = 4  # in one batch of suspects


class Kind(str, enum.Enum):
    """What a group measures; each has its own bound."""

    ALONE = "alone"  # the GPUs of one node
    WITHIN = "within"  # two nodes on one leaf, or of a fabric without known leaves
    ACROSS = "across"  # two nodes on different leaves
    RAIL = "rail"  # one GPU of one node with one of another
    LOCAL = "local"  # two GPUs of one node


class Status(str, enum.Enum):
    """How one measurement reads against its bound."""

    GOOD = "good"
    SLOW = "slow"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNJUDGED = "unjudged"


@dataclass(frozen=True)
class Measurement:
    """What one group of one round measured.

    `members` are nodes, or GPUs as 'node:local rank'. `busbw` in GB/s, None where nothing was measured: then
    `problem` says why (crashed, hung, wrong data). `skipped`: the group was never tried; `problem` may say why.
    """

    members: Group
    busbw: float | None = None
    problem: str = ""
    skipped: bool = False

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Measurement:
        """Read one JSON line of the collective payload; KeyError or ValueError where it is none."""
        members = tuple(str(member) for member in line["members"])
        if not members:
            raise ValueError("a measurement without members")
        wrong = int(line.get("wrong") or 0)
        problem = str(line.get("problem") or "") or (f"wrong data: {wrong} elements" if wrong else "")
        busbw = line.get("busbw")
        if busbw is None and not problem and not line.get("skipped"):
            raise ValueError(f"neither busbw nor problem for {' '.join(members)}")
        return cls(members, None if busbw is None else float(busbw), problem, bool(line.get("skipped")))


@dataclass(frozen=True)
class Bound:
    """The least accepted value of a kind (GB/s) and where it comes from."""

    value: float
    origin: str

    def __str__(self) -> str:
        return f"at least {self.value:.4g} GB/s ({self.origin})"


@dataclass(frozen=True)
class Unresolved:
    """What could not be told: the candidates that remain, and why no more can be said."""

    candidates: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Localisation:
    """The answer. `evidence` are lines for people: who was measured with whom, GB/s, bound.

    `bad_parts` maps a bad node to its bad GPUs or adapters, where they stand out. `rounds` counts rounds of pairs
    of nodes, `part_rounds` those of pairs of GPUs, `steps` the batches that were run.
    """

    bad_nodes: tuple[str, ...] = ()
    bad_links: tuple[Group, ...] = ()
    bad_leaves: tuple[str, ...] = ()
    bad_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()
    evidence: tuple[str, ...] = ()
    rounds: int = 0
    part_rounds: int = 0
    steps: int = 0

    @property
    def clean(self) -> bool:
        """Nothing is bad and nothing is left open."""
        return not (self.bad_nodes or self.bad_links or self.bad_leaves or self.unresolved)


def fleet_bound(
    values: Iterable[float], *, min_distance: float = MIN_DISTANCE, sigmas: float = SIGMAS
) -> Bound | None:
    """Return the bound that a fleet sets for itself; None for fewer than two values.

    The 90th percentile starts it, since faults only ever slow down; values within a quarter of that are the good.
    """
    ordered = sorted(values)
    if len(ordered) < 2:  # one value has nothing to be compared with
        return None
    anchor = ordered[-(-9 * (len(ordered) - 1) // 10)]
    good = [value for value in ordered if abs(value - anchor) <= 0.25 * anchor]
    median = statistics.median(good)
    spread = 1.4826 * statistics.median(abs(value - median) for value in good)
    distance = max(min_distance * median, sigmas * spread)
    share = 100 * distance / median if median else 0
    return Bound(median - distance, f"fleet median {median:.4g} less {share:.0f}%")


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


class Localiser:
    """Plans the rounds, batch by batch, and draws the conclusion.

    `nodes`: names in Slurm's order. `leaves`: {node: leaf switch}, may lack nodes. `expected`: {kind: least
    GB/s}, see Kind; kinds without it are judged by the fleet. `gpus_per_node` above 1 splits bad nodes into
    parts. `alone` False: the nodes were measured alone before, and `feed` may be given those results first.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        leaves: Mapping[str, str] | None = None,
        expected: Mapping[str, float] | None = None,
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
        self._expected = {Kind(kind): value for kind, value in (expected or {}).items()}
        self._distances = {"min_distance": min_distance, "sigmas": sigmas}
        self._alone_first = alone
        self._first: list[Measurement] = []  # the unbiased sample that sets the fleet's bounds
        self._later: list[Measurement] = []
        self._steps = 0
        self._rounds = {"node": 0, "part": 0}
        self._parts_asked = False

    # -- planning ---------------------------------------------------------------------------------------

    def next_rounds(self) -> Batch:
        """Return the rounds of the next Slurm step; () when there is nothing left to learn."""
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
        """Take the results of a batch. ValueError for a group with a node that is not under test."""
        known = set(self.nodes)
        for measured in measurements:
            strangers = {member.partition(":")[0] for member in measured.members} - known
            if strangers:
                raise ValueError(f"measured, but not under test: {' '.join(sorted(strangers))}")
            (self._first if self._steps <= 1 else self._later).append(measured)

    def _count(self, groups: Round) -> None:
        (first, *partners), *_ = groups  # the groups of a round are alike
        if partners:
            self._rounds["part" if ":" in first else "node"] += 1

    def _first_batch(self) -> Batch:
        rounds: list[Round] = [tuple((node,) for node in self.nodes)] if self._alone_first else []
        if len(self.nodes) <= ALL_PAIRS_UP_TO:
            rounds += schedule.circle(self.nodes)
        elif len(set(self.leaves.values())) > 1:
            rounds.append(schedule.within_leaves(self.nodes, self.leaves))
            rounds.append(schedule.across_leaves(self.nodes, self.leaves))
        else:
            rounds += [schedule.neighbours(self.nodes), schedule.neighbours(self.nodes, shift=1)]
        return tuple(groups for groups in rounds if groups)

    def _suspect_batch(self) -> Batch:
        found = _Inference(self)
        alone = tuple((node,) for node in self.nodes if node in found.alone_again)
        pairs = _place(found.wanted_pairs())
        return ((alone,) if alone else ()) + pairs

    def _parts_batch(self) -> Batch:
        if self._parts_asked or self.gpus_per_node < 2:  # one GPU is its node
            return ()
        self._parts_asked = True
        return _part_rounds(_Inference(self), self.gpus_per_node)

    # -- judging ----------------------------------------------------------------------------------------

    def kind_of(self, members: Group) -> Kind:
        """Return what a group of these members measures."""
        hosts = {member.partition(":")[0] for member in members}
        if ":" in str(members):
            return Kind.LOCAL if len(hosts) == 1 else Kind.RAIL
        if len(hosts) == 1:
            return Kind.ALONE
        return Kind.ACROSS if len({self.leaves.get(host) for host in hosts}) > 1 else Kind.WITHIN

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Everything that was fed, in order."""
        return (*self._first, *self._later)

    def bounds(self) -> dict[Kind, Bound]:
        """Return the bound of every kind that has one."""
        first, later = self._values(self._first), self._values(self._later)
        found = {kind: Bound(value, EXPECTED) for kind, value in self._expected.items()}
        for kind in (first | later).keys() - found.keys():
            sample = first[kind] if len(first[kind]) > 1 else first[kind] + later[kind]
            bound = fleet_bound(sample, **self._distances)
            if bound:
                found[kind] = bound
        if Kind.ACROSS in found:  # a pair within a leaf is never slower than one across
            found.setdefault(Kind.WITHIN, found[Kind.ACROSS])
        elif "within" in self._expected:
            found[Kind.ACROSS] = found[Kind.WITHIN]
        return found

    def _values(self, measurements: Iterable[Measurement]) -> dict[Kind, list[float]]:
        values: dict[Kind, list[float]] = defaultdict(list)
        for measured in measurements:
            if measured.busbw is not None and not measured.problem:
                values[self.kind_of(measured.members)].append(measured.busbw)
        return values

    def judge(self, measured: Measurement, bounds: Mapping[Kind, Bound]) -> Status:
        """Return how one measurement reads."""
        if measured.skipped:
            return Status.SKIPPED
        if measured.problem or measured.busbw is None:
            return Status.FAILED
        bound = bounds.get(self.kind_of(measured.members))
        if bound is None:
            return Status.UNJUDGED
        return Status.GOOD if measured.busbw >= bound.value else Status.SLOW

    def verdict(self) -> Localisation:
        """Return what is known by now."""
        found = _Inference(self)
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


class _Inference:
    """One reading of all measurements; thrown away after use."""

    def __init__(self, plan: Localiser) -> None:
        self.plan = plan
        self.bounds = plan.bounds()
        self.judged = [(m, plan.judge(m, self.bounds)) for m in plan.measurements]
        self.slow_spine = self._find_slow_spine()
        self.bad: dict[str, None] = {}
        self.why: dict[str, str] = {}
        self.alone_again: set[str] = set()
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
        # a pair that nothing can be compared with is no proof of speed, but neither end breaks the other
        self.partners = self.acquitted.union(
            end for edge in self.edges.values() if edge.counts[Status.UNJUDGED] for end in edge.ends
        )
        self.partners -= self.bad.keys()
        self.bad_leaves, self.maybe_leaves = self._read_leaves()
        self.closed_leaves = self._read_closed_leaves()
        self._convict_nodes()
        self.bad_links = [edge.ends for edge in self._slow_links() if edge.bad > 1 and not edge.good]

    # -- reading ----------------------------------------------------------------------------------------

    def _find_slow_spine(self) -> str:
        """Return a reason where all pairs across leaves are slow alike, and only the fleet sets their bound."""
        within, across = self.bounds.get(Kind.WITHIN), self.bounds.get(Kind.ACROSS)
        if not within or not across or across.origin == EXPECTED or across.value >= LEAF_SHARE * within.value:
            return ""
        return (
            f"all pairs across leaves are slow alike ({across.origin}; within a leaf {within.origin}): the spine, "
            "one of the leaves, or oversubscription by design; give the bound of 'across' to tell"
        )

    def _read_alone(self) -> None:
        results: dict[str, list[tuple[Measurement, Status]]] = defaultdict(list)
        for measured, status in self.judged:
            if self.plan.kind_of(measured.members) is Kind.ALONE:
                results[measured.members[0]].append((measured, status))
        for node, seen in results.items():
            counts = Counter(status for _, status in seen)
            if failed := [m.problem for m, status in seen if status is Status.FAILED]:
                self._convict(node, f"failed alone: {failed[0]}")
            elif counts[Status.SLOW] > max(1, counts[Status.GOOD]):
                self._convict(node, "slow alone, measured twice")
            elif counts[Status.SLOW] > counts[Status.GOOD]:
                self.alone_again.add(node)

    def _read_pairs(self) -> None:
        for measured, status in self.judged:
            kind = self.plan.kind_of(measured.members)
            if kind in (Kind.WITHIN, Kind.ACROSS):
                edge = self.edges.setdefault(
                    frozenset(measured.members), _Edge(measured.members, kind is Kind.ACROSS)
                )
                # across a spine that may be slow as a whole, fine by the fleet's measure proves little
                unproved = status is Status.GOOD and kind is Kind.ACROSS and self.slow_spine
                edge.counts[Status.UNJUDGED if unproved else status] += 1

    def _read_leaves(self) -> tuple[list[str], list[str]]:
        """Return the bad leaves, and those that may be: slow to others, of which none is acquitted."""
        sound = {end for e in self.edges.values() if e.good and not e.crosses for end in e.ends}
        crossing = [
            (tuple(self.plan.leaves[end] for end in edge.ends), edge.bad > edge.good)
            for edge in self.edges.values()
            if edge.crosses and sound.issuperset(edge.ends) and not set(edge.ends) - self.plan.leaves.keys()
            if edge.bad or edge.good
        ]
        bad: list[str] = []
        while worst := _worst_leaf(crossing):  # its pairs leave the tally, or they would accuse the others
            bad.append(worst[0])
            self.why[worst[0]] = worst[1]
            crossing = [(leaves, slow) for leaves, slow in crossing if worst[0] not in leaves]
        return sorted(bad), sorted(leaf for leaf, tally in _tally(crossing).items() if _mostly_slow(tally))

    def _read_closed_leaves(self) -> set[str]:
        """Return the leaves with bad pairs across them and not one fine: a pair across them accuses no node."""
        seen: dict[str, set[bool]] = defaultdict(set)
        for edge in self.edges.values():
            if edge.crosses and (edge.bad or edge.good) and not self._explained(edge):
                for end in edge.ends:
                    seen[self.plan.leaves.get(end, "")].add(edge.good > 0)
        closed = {leaf for leaf, fine in seen.items() if leaf and True not in fine}
        return closed.union(self.bad_leaves, self.maybe_leaves)

    def _may_accuse(self, edge: _Edge) -> bool:
        leaves = {self.plan.leaves.get(end, "") for end in edge.ends}
        return not edge.crosses or not leaves & self.closed_leaves

    def _explained(self, edge: _Edge) -> bool:
        """Tell whether a named part already accounts for a bad pair."""
        leaves = {self.plan.leaves.get(end) for end in edge.ends} if edge.crosses else set()
        return not self.bad.keys().isdisjoint(edge.ends) or not leaves.isdisjoint(
            (*self.bad_leaves, *self.maybe_leaves)
        )

    def _open_edges(self) -> Iterator[_Edge]:
        return (edge for edge in self.edges.values() if edge.bad and not self._explained(edge))

    def _convict(self, node: str, why: str) -> None:
        self.bad[node] = None
        self.why[node] = why

    def _accusers(self) -> dict[str, list[str]]:
        """Return {node that nothing acquits: acquitted partners that it is bad with}."""
        found: dict[str, list[str]] = defaultdict(list)
        for edge in filter(self._may_accuse, self._open_edges()):
            for end in edge.ends:
                if end not in self.acquitted and edge.other(end) in self.partners:
                    found[end].append(edge.other(end))
        return found

    def _convict_nodes(self) -> None:
        for node, partners in self._accusers().items():
            if len(partners) >= PARTNERS:
                self._convict(node, f"bad with {', '.join(partners)}, which are fine with others")

    def _slow_links(self) -> list[_Edge]:
        """Return the bad pairs of which both ends are acquitted."""
        return [
            edge
            for edge in self._open_edges()
            if self.acquitted.issuperset(edge.ends) and self._may_accuse(edge)
        ]

    # -- what to ask next -------------------------------------------------------------------------------

    def suspects(self) -> list[str]:
        """Return the nodes that are neither acquitted nor bad: accused, or never measured in a pair."""
        return [n for n in self.plan.nodes if n not in self.bad and n not in self.acquitted]

    def wanted_pairs(self) -> list[Group]:
        """Return the pairs that would tell more: suspects with acquitted partners, slow links once more."""
        wanted = [edge.ends for edge in self._slow_links() if edge.bad == 1 and edge.good == 0]
        tried = self._tried()
        load: Counter[str] = Counter(end for pair in wanted for end in pair)
        for node in self.suspects():
            # one partner a step: the suspect's last partner may be acquitted meanwhile, and accuse as well
            partner = self._partner(node, load) if tried[node] < PARTNERS else None
            if partner is not None:
                load[partner] += 1
                wanted.append((node, partner))
        return wanted or self._pairs_of_suspects()

    def _tried(self) -> Counter[str]:
        """Return {node: bad pairs with partners}; the first one that accuses nobody does not count."""
        tried: Counter[str] = Counter()
        idle: Counter[str] = Counter()
        for edge in self._open_edges():
            tally = tried if self._may_accuse(edge) else idle
            tally.update(end for end in edge.ends if edge.other(end) in self.partners)
        tried.update({node: count - 1 for node, count in idle.items()})
        return tried

    def _partner(self, node: str, load: Counter[str]) -> str | None:
        """Return the least busy acquitted partner that the node has not met, same leaf first."""
        leaf = self.plan.leaves.get(node)
        met = {*self._met[node], node}
        shaky = {*self.bad_leaves, *self.maybe_leaves}

        def usable(other: str) -> bool:
            there = self.plan.leaves.get(other)
            return other not in met and (there == leaf or not (leaf in shaky or there in self.closed_leaves))

        choices = [other for other in self.partners if usable(other)]
        if not choices:
            return None
        return min(choices, key=lambda n: (load[n], self.plan.leaves.get(n) != leaf, self._position[n]))

    def _pairs_of_suspects(self) -> list[Group]:
        """Return one round of suspects that have not met, for fleets and leaves where nobody is acquitted."""
        if not self.partners and len(self.plan.nodes) > ALL_PAIRS_UP_TO:
            return []  # the whole fleet is slow: more pairs would say the same
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
        """Return {bad node: the GPUs or adapters that stand out}, where some do and not all."""
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
            if self.plan.kind_of(measured.members) is Kind.RAIL:
                for member in measured.members:
                    node, _, rank = member.partition(":")
                    results[node][int(rank)] = status
        found: dict[str, set[int]] = {}
        for node, by_rank in results.items():
            bad = {rank for rank, status in by_rank.items() if status in (Status.SLOW, Status.FAILED)}
            if 0 < len(bad) < len(by_rank):  # all rails alike say nothing about one of them
                found[node] = bad
        return found

    def _bad_gpus(self) -> dict[str, set[int]]:
        """Return the GPUs that are bad with every GPU of their node, of which another acquits each."""
        good: dict[str, set[str]] = defaultdict(set)
        bad: dict[str, set[str]] = defaultdict(set)
        for measured, status in self.judged:
            if self.plan.kind_of(measured.members) is Kind.LOCAL:
                tally = good if status is Status.GOOD else bad
                for one, other in (measured.members, measured.members[::-1]):
                    tally[one].add(other)
        found: dict[str, set[int]] = defaultdict(set)
        for gpu, partners in bad.items():
            if gpu not in good and len(partners & good.keys()) >= PARTNERS:
                node, _, rank = gpu.partition(":")
                found[node].add(int(rank))
        return found

    # -- what remains, and why --------------------------------------------------------------------------

    def unresolved(self) -> Iterator[Unresolved]:
        """Yield what the measurements leave open."""
        if self.maybe_leaves:
            yield Unresolved(tuple(self.maybe_leaves), "slow to other leaves, and none of them is acquitted")
        if self.slow_spine:
            yield Unresolved(tuple(sorted(set(self.plan.leaves.values()))), self.slow_spine)
        for node in sorted(self.alone_again, key=self._position.__getitem__):
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
        told: set[str] = set()
        for leaf, members in schedule.by_leaf(left, self.plan.leaves).items():
            if leaf in self.closed_leaves and len(members) > PARTNERS:
                told.update(members)
                yield Unresolved(
                    (leaf, *members), "nothing across this leaf is fine: the leaf, or all these nodes"
                )
        for edge in self._open_edges():
            nodes = tuple(end for end in edge.ends if end in left and end not in told)
            leaves = sorted(self.closed_leaves & {self.plan.leaves.get(end, "") for end in edge.ends})
            if nodes:
                told.update(nodes)
                candidates = (*nodes, _link(edge.ends), *(leaves if edge.crosses else ()))
                yield Unresolved(candidates, "no further acquitted partner to tell them apart")
            elif (
                edge.crosses and leaves and not told.intersection(leaves) and not told.intersection(edge.ends)
            ):
                told.update(leaves)
                yield Unresolved((*leaves, _link(edge.ends)), "too few pairs cross these leaves")
        for node in left:
            if node not in told:
                yield Unresolved((node,), self._why_open(node))

    def _why_open(self, node: str) -> str:
        counts: Counter[Status] = Counter()
        for edge in self.edges.values():
            if node in edge.ends:
                counts += edge.counts
        if counts[Status.UNJUDGED]:
            return "no bound: give the expected bandwidth, there are too few pairs to compare"
        if any(not self.bad.keys().isdisjoint(e.ends) for e in self.edges.values() if node in e.ends):
            return "measured with bad nodes only"
        return "never measured in a pair"

    def evidence(self) -> Iterator[str]:
        """Yield a line for each measurement that speaks about a named part, and for passing disturbances."""
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
    """Return {leaf: how many pairs across it are slow (True) and fine (False)}."""
    tallies: dict[str, Counter[bool]] = defaultdict(Counter)
    for leaves, slow in crossing:
        for leaf in leaves:
            tallies[leaf][slow] += 1
    return tallies


def _mostly_slow(tally: Counter[bool]) -> bool:
    return tally[True] > 1 and tally[True] / tally.total() >= LEAF_SHARE


def _worst_leaf(crossing: Sequence[tuple[Group, bool]]) -> tuple[str, str] | None:
    """Return the leaf with the largest slow share, and why; None where no leaf that it met is fine elsewhere."""
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


def _place(pairs: Sequence[Group]) -> Batch:
    """Put pairs into as few rounds of disjoint pairs as greed finds, at most MAX_ROUNDS."""
    rounds: list[list[Group]] = []
    taken: list[set[str]] = []
    for pair in pairs:
        at = next((i for i, busy in enumerate(taken) if busy.isdisjoint(pair)), len(rounds))
        if at == MAX_ROUNDS:
            continue  # asked for again by the next batch
        if at == len(rounds):
            rounds.append([])
            taken.append(set())
        rounds[at].append(pair)
        taken[at].update(pair)
    return tuple(tuple(groups) for groups in rounds)


def _part_rounds(found: _Inference, gpus: int) -> Batch:
    """Return a round of rails (with one control pair) and, for nodes slow alone, two of GPU neighbours."""
    bad = [node for node in found.plan.nodes if node in found.bad and "failed alone" not in found.why[node]]
    good = sorted(found.acquitted, key=found.plan.nodes.index)
    if not bad:
        return ()
    pairs: list[Group] = list(zip(bad, good, strict=False))
    pairs += schedule.neighbours(good[len(pairs) :])[:1]  # the control: rails between two good nodes
    rails = tuple((f"{a}:{i}", f"{b}:{i}") for a, b in pairs for i in range(gpus))
    slow_alone = [[f"{node}:{i}" for i in range(gpus)] for node in bad if "slow alone" in found.why[node]]
    local = [
        tuple(pair for members in slow_alone for pair in schedule.neighbours(members, shift))
        for shift in (0, 1)
    ]
    return tuple(groups for groups in (rails, *local) if groups)
