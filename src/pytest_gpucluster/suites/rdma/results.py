"""What perftest measured on the rails of the nodes of one allocation, and which parts it names. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import owners
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Measurement, kind_of
from pytest_gpucluster.kit.nccl.pairing import neighbours

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.kit.fabric.rails import RailPort
    from pytest_gpucluster.kit.nccl.measurement import Bound, Localisation
    from pytest_gpucluster.kit.nccl.pairing import Group, Round

TESTS = ("write", "send", "read")  # payload.py has their commands
# a test takes 0.2 s at 400 Gb/s: of 64 healthy nodes with 8 rails on a fabric whose traffic slows one pair in ten, 4 were bad with two
# partners once, and none in all of three measurements
AGAIN = 2


@dataclass(frozen=True)
class Slot:
    """What disjoint pairs do at the same time: the tests in turn, each over all these rails at once."""

    rails: tuple[str, ...]
    pairs: Round
    tests: tuple[str, ...] = TESTS


# runs slots in one step; returns the facts that payload.py reports of each
RunSlots = Callable[["Sequence[Slot]"], "Sequence[Sequence[Mapping[str, Any]]]"]


@dataclass(frozen=True)
class PairOnRail:
    """One pair on one rail: GB/s of the slower direction with its problem, and the typical latency of a read in microseconds."""

    measured: Measurement
    latency: float | None = None


@dataclass(frozen=True)
class RdmaResult:
    """All rails. `rails`: {node: {location: rail}}; `pairs`: {location: results}; `found`: {location: its bad parts}.

    `together`: {node: (GB/s of all its rails at once, partner)}. `absent`: {node: why perftest could not run there}.
    """

    rails: Mapping[str, Mapping[str, RailPort]]
    bound: Bound | None
    leaves: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, tuple[PairOnRail, ...]] = field(default_factory=dict)
    found: Mapping[str, Localisation] = field(default_factory=dict)
    together: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def measured(self, location: str) -> tuple[Measurement, ...]:
        """The measurements of a rail."""
        return tuple(pair.measured for pair in self.pairs.get(location, ()))

    def slowest_rails(self, node: str) -> dict[str, float]:
        """{partner: GB/s of the slowest rail with it}, of partners with which every rail was measured."""
        found: dict[str, list[float | None]] = defaultdict(list)
        for location in self.rails[node]:
            for it in self.measured(location):
                if node in it.members:
                    found[next(name for name in it.members if name != node)].append(it.busbw)
        return {
            partner: min(known)
            for partner, values in found.items()
            if len(known := [value for value in values if value is not None]) == len(values)
        }

    @cached_property
    def latencies(self) -> dict[str, dict[str, tuple[float, float]]]:
        """{location: {node: (microseconds, share of the median of such pairs) of its best pair}}.

        A late node makes all its pairs late, and its partners are as fast as ever with others. Pairs across leaves pass more switches.
        """
        return {location: _best_latencies(pairs, self.leaves) for location, pairs in self.pairs.items()}


def _best_latencies(pairs: Iterable[PairOnRail], leaves: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    by_kind = grouped(
        (kind_of(it.measured.members, leaves), (it.latency, it.measured.members))
        for it in pairs
        if it.latency is not None
    )
    found: dict[str, tuple[float, float]] = {}
    for of_kind in by_kind.values():
        median = statistics.median(latency for latency, _ in of_kind)
        for latency, members in of_kind:
            for node in members:
                own = (latency, latency / median if median else 1.0)
                found[node] = min(own, found.get(node, own), key=lambda it: it[1])
    return found


def measure_rails(
    rails: Mapping[str, Mapping[str, RailPort]], leaves: Mapping[str, str], bound: Bound | None, run: RunSlots
) -> RdmaResult:
    """Measure every rail between pairs of nodes until its bad parts are found, then all rails of each pair together.

    Each rail has a localisation of its own, whose rounds share the steps.
    """
    having = owners(rails)
    plans = {
        location: Localiser(nodes, leaves=leaves, least=bound, alone=False, repeats=AGAIN)
        for location, nodes in having.items()
        if len(nodes) > 1
    }
    pairs: dict[str, list[PairOnRail]] = {location: [] for location in plans}
    while wanted := [(location, groups) for location, plan in plans.items() for groups in plan.next_rounds()]:
        slots = [Slot((location,), groups) for location, groups in wanted]
        for slot, facts in zip(slots, run(slots), strict=True):
            location = slot.rails[0]
            own = [_pair_on_rail(members, facts) for members in slot.pairs]
            pairs[location] += own
            plans[location].feed(pair.measured for pair in own)
    found = RdmaResult(
        rails,
        bound,
        leaves,
        {location: tuple(own) for location, own in pairs.items()},
        {location: plan.verdict() for location, plan in plans.items()},
    )
    return replace(found, together=_together(found, run)) if len(plans) > 1 else found


def _pair_on_rail(members: Group, facts: Iterable[Mapping[str, Any]]) -> PairOnRail:
    """Return what the two nodes have reported of one slot."""
    own = [it for it in facts if {*members} == {*it.get("pair", (it.get("client"), it.get("server")))}]
    rates = {fact["test"]: float(fact["bandwidth"]) for fact in own if "bandwidth" in fact}
    problems = [str(fact["problem"]) for fact in own if "problem" in fact]
    latency = next((float(fact["latency"]) for fact in own if "latency" in fact), None)
    if problems or not {"write", "send"} <= rates.keys():
        return PairOnRail(Measurement(members, problem=problems[0] if problems else "no result"), latency)
    return PairOnRail(Measurement(members, min(rates.values())), latency)


def _together(found: RdmaResult, run: RunSlots) -> dict[str, tuple[float, str]]:
    """Return {node: (GB/s of all its rails at once, partner)} of the nodes that nothing is known against."""
    suspect = {
        node
        for one in found.found.values()
        for node in (*one.bad_nodes, *(end for link in one.bad_links for end in link))
    }
    # the sum of fewer rails is another figure
    alike = grouped((tuple(sorted(its)), node) for node, its in found.rails.items() if node not in suspect)
    slots = [
        Slot(rails, groups, ("write",))
        for rails, nodes in alike.items()
        for groups in (neighbours(nodes), ((nodes[-1], nodes[0]),) if len(nodes) % 2 else ())
        if len(nodes) > 1 and groups
    ]
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for fact in (fact for facts in (run(slots) if slots else ()) for fact in facts if "bandwidth" in fact):
        ends = str(fact["client"]), str(fact["server"])
        for node, partner in (ends, ends[::-1]):
            rates[node][partner].append(float(fact["bandwidth"]))
    best = {
        node: max((sum(values), partner) for partner, values in of_node.items() if values)
        for node, of_node in rates.items()
    }
    return {
        node: (rate, partner)
        for node, (rate, partner) in best.items()
        if len(rates[node][partner]) == len(found.rails[node])
    }
