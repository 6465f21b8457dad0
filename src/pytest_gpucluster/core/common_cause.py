"""The one rule of common cause: which findings of nodes are one finding of the cluster. Pure; docs/verdicts.md.

The same finding on all nodes that share a place, or on most of them, is a finding of what they share. So is the finding of
the only node there, if the check names the setting that explains it. Such a finding fails the cluster, with the action `configure`: it takes no node
out of service. A node that fails for its own reason beside it keeps that failure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pytest_gpucluster.core.finding import Finding, Measure

FEWEST_FOR_MOST = 3  # judged nodes: of two, "most" is both
FEWEST_OF_SWITCH = 3  # two nodes of one switch may both be sick
WHAT_NODES_SHARE = "a setting, an image, the profile or a server that they share"


@dataclass(frozen=True)
class Place:
    """What nodes must share before one is compared with another.

    group: the nodes of the cluster file's group. partition: where the run tests it. arch, image: architecture and
    operating system (kernel and its build) as Slurm shows them. switch: the leaf switch of Slurm's topology.
    """

    group: str = ""
    partition: str = ""
    arch: str = ""
    image: str = ""
    switch: str = ""


@dataclass(frozen=True)
class PeerGroup:
    """Nodes that are compared with one another; `nodes` names them in short."""

    nodes: str
    names: tuple[str, ...]


def peer_groups(places: Mapping[str, Place], *, image: bool) -> dict[str, PeerGroup]:
    """Return {node: the nodes of its group, partition and architecture}, and of its operating system if `image`."""
    shared = {node: replace(it, image=it.image * image, switch="") for node, it in places.items()}
    found = grouped((place, node) for node, place in shared.items())
    groups = {place: PeerGroup(hostlist.fold(names), tuple(names)) for place, names in found.items()}
    return {node: groups[place] for node, place in shared.items()}


class Likeness(NamedTuple):
    """What is equal in the same findings of different nodes: 7 of 8 GPUs is another finding than 9 of 8."""

    code: str
    part: tuple[str, str]
    relation: str
    words: tuple[str, str]  # of a finding without a code: it is the same as its equal alone


@dataclass
class CommonFinding:
    """Findings of one check that are one finding of the cluster. `judged`: how many nodes the check has judged there."""

    check: str
    where: str
    judged: int
    nodes: dict[str, None] = field(default_factory=dict)
    alike: dict[Likeness, frozenset[str]] = field(default_factory=dict)  # with the nodes that have it
    settings: dict[str, None] = field(default_factory=dict)
    repairs: bool = False  # the action of any finding is a repair
    factors: tuple[str, ...] = ()  # the stated factors that tell these nodes from the other judged ones, like 'loop B'

    def has(self, node: str, finding: Finding) -> bool:
        """Return whether this is the finding of a node."""
        return node in self.alike.get(likeness(finding), ())

    @property
    def cause(self) -> str:
        """Why no single node is at fault."""
        explained = ", ".join(self.settings)
        if set(self.settings) == {NO_MAJORITY}:
            return f"the nodes that were judged {self.where} differ, and no two thirds agree: {NO_MAJORITY}; no node is at fault"
        if self.judged == 1:
            return f"the only node that was judged {self.where}; {explained} explains it, so the node is not at fault"
        count = f"all {self.judged}" if len(self.nodes) == self.judged else f"{len(self.nodes)} of {self.judged}"
        why = f"{explained}, or {WHAT_NODES_SHARE}" if explained else WHAT_NODES_SHARE
        return f"{count} nodes that were judged {self.where} fail alike: {why}, not a single node"

    @property
    def hint(self) -> str:
        """What to check first."""
        settings = [one for one in self.settings if one not in (CONFIGURED, NO_MAJORITY)]
        first = f"compare {', '.join(settings)} with what the nodes have" if settings else "check what the nodes share"
        first += f", first {' and '.join(self.factors)}" if self.factors else ""
        by_hand = "; no node is drained for it: if the nodes themselves are at fault, drain them by hand" * self.repairs
        return f"{first}{by_hand}"


NO_MAJORITY = "an upgrade that has not reached all nodes"  # the setting of a finding that names no node at fault
CONFIGURED = "the configuration"  # the setting of a finding whose action is `configure` and that names none


def telling_factors(
    nodes: Collection[str], judged: Collection[str], factors: Mapping[str, Mapping[str, Collection[str]]]
) -> tuple[str, ...]:
    """Return 'FACTOR VALUE' for each of {factor: {value: nodes}} that of the judged nodes exactly these have."""
    return tuple(
        f"{factor} {value}"
        for factor, values in factors.items()
        for value, having in values.items()
        if len(nodes) < len(judged) and {*having}.intersection(judged) == {*nodes}
    )


def common_findings(
    check: str, findings: Iterable[tuple[str, Finding]], judged: Collection[str], places: Mapping[str, Place]
) -> list[CommonFinding]:
    """Return the findings of one check that are findings of the cluster.

    `findings`: node and finding, with the action that it requires and the setting that its expectation comes from. `judged`: the
    nodes on which the check passed or failed. A node without a place shares nothing.
    """
    known = [(node, likeness(finding), finding) for node, finding in findings]
    found = []
    taken: set[tuple[str, Likeness]] = set()
    for where, members, fewest, enough in _shared(judged, places):
        having: dict[Likeness, dict[str, Finding]] = defaultdict(dict)
        for node, like, finding in known:
            if node in members and (node, like) not in taken:
                having[like].setdefault(node, finding)
        common = CommonFinding(check, where, len(members))
        for like, by_node in having.items():
            explained = {_setting(one) for one in by_node.values()}
            # the action `configure` alone does not clear a node that no other is compared with
            alone = len(members) == 1 and fewest == 1 and all(one.setting for one in by_node.values())
            shared = len(by_node) >= max(2, fewest) and enough(len(by_node), len(members))
            if not (alone or shared or explained == {NO_MAJORITY}):
                continue
            common.nodes |= dict.fromkeys(by_node)
            common.alike[like] = frozenset(by_node)
            common.settings |= dict.fromkeys(sorted(filter(None, explained)))
            common.repairs |= any(one.action.is_repair for one in by_node.values() if one.action)
            taken |= {(node, like) for node in by_node}
        if common.alike:
            found.append(common)
    return found


def likeness(finding: Finding) -> Likeness:
    """Return what the same finding of another node, device or moment has in common with this one.

    A finding that a setting explains is the same whatever was measured: each node misses the same requirement.
    """
    measured, relation = ("", "") if finding.setting else (_words(finding.measured), finding.relation)
    words = ("", "") if finding.code else (measured, _words(finding.expected))
    return Likeness(finding.code, finding.part.likeness, relation, words)


def _words(measure: Measure) -> str:
    """Return a text; a number is compared by its relation, and what a node printed decides nothing."""
    return measure if isinstance(measure, str) else ""


def _setting(finding: Finding) -> str:
    return finding.setting or (CONFIGURED if finding.action is Action.CONFIGURE else "")


def _all(count: int, judged: int) -> bool:
    return count == judged


def _most(count: int, judged: int) -> bool:
    return count == judged or (judged >= FEWEST_FOR_MOST and 2 * count > judged)


def _shared(
    judged: Collection[str], places: Mapping[str, Place]
) -> Iterator[tuple[str, frozenset[str], int, Callable[[int, int], bool]]]:
    """Yield what nodes may share, from wide to narrow: its name, its judged nodes, how many must fail, and the bound."""
    of = {node: places[node] for node in judged if node in places}
    groups = grouped((Place(place.group, place.partition, place.arch), node) for node, place in of.items())
    if len(groups) > 1:
        yield "in all groups", frozenset(of), 2, _all
    for group, nodes in groups.items():
        where = _name(group, groups)
        yield where, frozenset(nodes), 1, _most
        yield from _parts(where, nodes, {node: of[node].image for node in nodes}, "with {}", 1)
        yield from _parts(where, nodes, {node: of[node].switch for node in nodes}, "below switch {}", FEWEST_OF_SWITCH)


def _parts(
    where: str, nodes: Iterable[str], shared: Mapping[str, str], words: str, fewest: int
) -> Iterator[tuple[str, frozenset[str], int, Callable[[int, int], bool]]]:
    parts = grouped((shared[node], node) for node in nodes)
    if len(parts) > 1:
        for name, members in parts.items():
            if name:
                yield f"{where} {words.format(name)}", frozenset(members), fewest, _all


def _name(place: Place, others: Collection[Place]) -> str:
    words = [f"in group {place.group}" if place.group else "in the cluster"]
    alike = [other for other in others if other.group == place.group]
    words += [f"of partition {place.partition}"] if len({it.partition for it in alike}) > 1 else []
    words += [f"on {place.arch}"] if len({it.arch for it in alike}) > 1 else []
    return " ".join(words)
