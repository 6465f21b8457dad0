"""Which nodes a campaign tests next, and what its results say about each node. Pure.

A node is tested alone first, then with `partners` other nodes, one pair at a time, each time another one. A node that has
failed is tested no further, and is no partner, until it was repaired: it went out of service, or was booted, since. What a run
could not judge is tried again; what was not tested (busy, preempted) at any time, what failed otherwise at most TRIES times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.campaign.bisection import Bisection, bisect, next_group
from pytest_gpucluster.campaign.model import JUDGED
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_PROVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.campaign.model import Kind, NodeResult, View

TRIES = 3
OPEN = ""


@dataclass(frozen=True)
class Choice:
    """The next group. `waits`: some of its nodes are busy."""

    kind: Kind
    nodes: tuple[str, ...]
    waits: bool


class Planner:
    """Answers for one view of a campaign."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._by: dict[tuple[str, str], list[NodeResult]] = {}
        for result in sorted(view.results, key=lambda it: it.group):
            if not result.left or result.outcome not in (FAILED, NOT_PROVED):
                self._by.setdefault((result.kind, result.node), []).append(result)
        self._last = {result.node: result.ended for result in sorted(view.results, key=lambda it: it.ended)}
        self._place = {node: place for place, node in enumerate(view.campaign.nodes)}
        self._known: dict[tuple[str, str], str] = {}  # node, kind -> verdict
        self._bisections: dict[str, Bisection] = {}
        self._shares: dict[object, list[str]] = {}
        for node in view.campaign.nodes:
            self._shares.setdefault(view.nodes[node].share, []).append(node)

    # -- judging

    def verdict(self, node: str, kind: Kind) -> str:
        """Return FIT, FAILED or NOT_PROVED; OPEN where groups of this kind must still test the node."""
        key = (node, kind.name)
        if key not in self._known:
            self._known[key] = self._verdict(node, kind)
        return self._known[key]

    def _verdict(self, node: str, kind: Kind) -> str:
        if kind.partners and node in self.view.bad:
            return FAILED
        results = self._by.get((kind.name, node), [])
        unproved = sum(result.outcome == NOT_PROVED for result in results)
        if kind.larger:
            found = self.bisection(kind)
            state = FAILED if node in found.bad else FIT if node in found.good else OPEN
            return NOT_PROVED if state == OPEN and unproved >= TRIES else state
        judged = newest_by_partner(results)
        if not kind.partners:
            return next(iter(judged.values())) if judged else NOT_PROVED if unproved >= TRIES else OPEN
        if len(judged) >= self._needed(node, kind):
            failed = sum(outcome == FAILED for outcome in judged.values())
            return (FAILED if 2 * failed > len(judged) else FIT) if judged else OPEN
        return NOT_PROVED if unproved >= TRIES + len(judged) else OPEN

    def state(self, node: str) -> str:
        """Return the verdict over all kinds: the worst; OPEN where one is open and none failed."""
        found = [self.verdict(node, kind) for kind in self.view.campaign.kinds]
        return next((state for state in (FAILED, NOT_PROVED, OPEN) if state in found), FIT)

    def unfinished(self) -> list[str]:
        """Return the nodes whose verdict is open, and that can get one as things are."""
        return [
            node
            for node in self.view.campaign.nodes
            if self.view.nodes[node].in_service and self.state(node) == OPEN and self._can_go_on(node)
        ]

    def _can_go_on(self, node: str) -> bool:
        """Return whether the next kind that is open for a node has a partner for it."""
        kind = next(kind for kind in self.view.campaign.kinds if self.verdict(node, kind) == OPEN)
        if kind.larger:
            usable = [node, *self._in_service(node)]
            return bool(next_group(self.bisection(kind), usable, usable, kind.size))
        return not kind.partners or self._is_single(node) or bool(self._in_service(node))

    def bisection(self, kind: Kind) -> Bisection:
        """Return what the larger groups of a kind show."""
        if kind.name not in self._bisections:
            groups: dict[int, dict[str, NodeResult]] = {}
            for (name, node), results in self._by.items():
                for result in results if name == kind.name and node else ():
                    if result.outcome in JUDGED:
                        groups.setdefault(result.group, {})[node] = result
            self._bisections[kind.name] = bisect(
                [
                    (first.nodes, frozenset(node for node, it in found.items() if it.outcome == FAILED))
                    for found in groups.values()
                    if len(found) == len((first := next(iter(found.values()))).nodes)  # none was repaired since
                ]
            )
        return self._bisections[kind.name]

    def _needed(self, node: str, kind: Kind) -> int:
        """Return with how many others a node must be tested: at least one, as many as there are."""
        met = newest_by_partner(self._by.get((kind.name, node), []))
        others = {*self._in_service(node), *(other for partners in met for other in partners)}
        return max(1, min(kind.partners, len(others)))

    def _is_single(self, node: str) -> bool:
        """Return whether no other node can be in one group with a node: it is tested alone, as in any run."""
        return len(self._shares[self.view.nodes[node].share]) == 1

    def _in_service(self, node: str) -> list[str]:
        """Return the partners of a node that Slurm may allocate, without those that fail."""
        return [
            other
            for other in self._shares[self.view.nodes[node].share]
            if other != node and self.view.nodes[other].in_service and not self._fails(other)
        ]

    def _fails(self, node: str) -> bool:
        """Return whether a node fails alone, or the pairs name it."""
        alone = (kind for kind in self.view.campaign.kinds if not kind.partners)
        return node in self.view.bad or any(self.verdict(node, kind) == FAILED for kind in alone)

    # -- choosing

    def choose(self, claimed: Mapping[str, bool]) -> Choice | None:
        """Return the next group that fits, None if none does: idle nodes first, then the wait for busy ones.

        `claimed`: nodes under test, of all campaigns of the cluster, with whether their group waits.
        """
        for waits in (False, True):
            for kind in self.view.campaign.kinds:
                if self._has_room(kind, claimed, waits=waits) and (nodes := self._group(kind, claimed, waits=waits)):
                    return Choice(kind, nodes, waits)
        return None

    def _has_room(self, kind: Kind, claimed: Mapping[str, bool], *, waits: bool) -> bool:
        """Return whether one more group keeps the limit; groups that wait leave room for nodes that come free."""
        limit = self.view.limit
        if len(claimed) + kind.size > limit:
            return False
        largest = max(one.size for one in self.view.campaign.kinds)
        return not waits or sum(claimed.values()) + kind.size <= max(kind.size, limit - largest)

    def _group(self, kind: Kind, claimed: Mapping[str, bool], *, waits: bool) -> tuple[str, ...]:
        usable = [
            node
            for node in self.view.campaign.nodes
            if node not in claimed and (self.view.nodes[node].idle or (waits and self.view.nodes[node].in_service))
        ]
        pending = sorted(
            (node for node in usable if self.state(node) != FAILED and self.verdict(node, kind) == OPEN), key=self._rank
        )
        if kind.larger:
            return self._larger_group(kind, usable, pending)
        if not kind.partners:
            return tuple(pending[:1])
        for pair in self.view.wanted:
            if set(pair) <= set(usable) and set(pair) & set(pending):
                return pair
        for node in pending:
            if self._is_single(node):
                return (node,)
            if partner := self._partner(node, kind, usable, pending):
                return (node, partner)
        return ()

    def _larger_group(self, kind: Kind, usable: Sequence[str], pending: Sequence[str]) -> tuple[str, ...]:
        """Return a larger group of nodes of one share, which all other kinds have acquitted."""
        pairs = [one for one in self.view.campaign.kinds if not one.larger]
        for members in self._shares.values():
            ready = [
                node for node in members if node in usable and all(self.verdict(node, one) == FIT for one in pairs)
            ]
            if found := next_group(self.bisection(kind), ready, pending, kind.size):
                return found
        return ()

    def _partner(self, node: str, kind: Kind, usable: Sequence[str], pending: Sequence[str]) -> str:
        """Return the best partner: one that needs partners too, and has met the fewest; '' for none."""
        met = {other for it in newest_by_partner(self._by.get((kind.name, node), [])) for other in it}
        return min(
            set(self._in_service(node)) & set(usable) - met,
            key=lambda other: (
                other not in pending,
                len(newest_by_partner(self._by.get((kind.name, other), []))),
                self._rank(other),
            ),
            default="",
        )

    def _rank(self, node: str) -> tuple[float, float, int]:
        """Return the order of nodes: what was tried least recently, then the oldest verdict, then the cluster file's."""
        return self._last.get(node, 0.0), self.view.ages.get(node, 0.0), self._place[node]


def newest_by_partner(results: Iterable[NodeResult]) -> dict[tuple[str, ...], str]:
    """Return {partners: newest outcome}, without those that are no verdict."""
    return {result.partners: result.outcome for result in results if result.outcome in JUDGED}
