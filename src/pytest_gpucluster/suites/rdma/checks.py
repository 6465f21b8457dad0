"""The checks of RDMA between adapters: each rail of a node, the links, latency, and all rails at once. Pure."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Explanation, Quantity
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.kit.nccl.open_questions import NO_BOUND
from pytest_gpucluster.kit.nccl.pair_findings import all_slow, link_findings, untried_pairs
from pytest_gpucluster.kit.nccl.sensitivity import sensitivity
from pytest_gpucluster.suites.rdma.campaign import SLOWEST_RAIL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.suites.rdma.results import RdmaResult

OTHERWISE = "state fabric.rate in the profile"
SHOWN = 4  # lines of evidence
LATE = 0.25  # of the median latency; figures of sound pairs on one leaf differ by some percent
LESS = 0.1  # of the median of all rails at once


# what perftest prints -> its meaning (perftest_resources.c, perftest_parameters.c, perftest_communication.c)
_MEANING = {
    "state is": Explanation("port_not_active", "the port is not active: see fabric.port_state"),
    "Unable to set up socket connection": Explanation("no_gid", "the port has no GID of this index: see fabric.gid and NCCL_IB_GID_INDEX"),
    "GID types": Explanation("gid_types_differ", "the GIDs of the two ports are of different types: see fabric.gid"),
    "Couldn't connect to": Explanation("no_connection", "a firewall between the nodes, or the server has ended"),
    "IB device": Explanation("no_adapter", "the adapter is not there: see fabric.hca_count"),
    "allocate MR": Explanation("no_memory_region", "memory cannot be registered: the limit of locked memory (ulimit -l), or GPU memory (see fabric.peer_memory)"),
    "to RTR": Explanation("unreachable", "the two ports do not reach each other: GID, LID, partition or VLAN"),
    "Failed status 4:": Explanation("protection_error", "the adapter cannot reach memory that is registered: GPU memory (see fabric.peer_memory), or the IOMMU"),
    "Failed status 12:": Explanation("data_lost", "data were lost on the path (retries exceeded): MTU of a switch, or flow control of RoCE"),
    "Failed status 13:": Explanation("not_ready", "the partner was not ready to receive: its processor is busy or slow; the path carries data"),
    "no end after": Explanation("data_lost", "data were lost on the path: MTU of a switch, or flow control of RoCE"),
}  # fmt: skip
# since 2025 with the name of the status: Failed status-transport retry counter exceeded (12):
_STATUS = re.compile(r"Failed status-.*? \((\d+)\):")


@check(
    "rdma.bandwidth",
    cause="a slow or failing adapter or cable of this node, or its PCIe link: its partners are fast with others on the same rail",
    hint="ibstat and mlxlink of the adapter; its PCIe width (-m os, fabric); exchange the cable with the next rail's and test again",
    action=Action.DRAIN,
    never_healthy="two partners reach the port's rate with other nodes on this rail and not with this node, in three measurements of each, in a step "
    "that has the node for itself; a tool that fails, a rate above the limit, and all rails of a node alike, take no node out of service",
)
def bandwidth(node_name: str, rdma: RdmaResult, reach: Reach) -> Judgement:
    """Every port for GPU traffic moves data at its rate, in both directions, with two partners."""
    _require(node_name, rdma, reach)
    for partner, slowest in rdma.slowest_rails(node_name).items():
        yield Metric(SLOWEST_RAIL, slowest, "GB/s", named("peer", partner))
    slow = _slow_rails(node_name, rdma)
    one_cause = len(slow) > 1 and slow.keys() == rdma.rails[node_name].keys()
    if one_cause:
        rates = f"{min(slow.values()):.4g} to {max(slow.values()):.4g} GB/s"
        yield Finding(
            Part("adapter", name=f"all {len(slow)} rails"),
            f"{rates} with partners that are fast with others: one cause for all of them, like IOMMU, ACS, the PCIe settings of the BIOS, or the processor",
            "as fast as the rails of its partners with others",
            Action.CONFIGURE,
            code="all_rails_slow",
        )
    for location, rail in rdma.rails[node_name].items():
        own = [it for it in rdma.measured(location) if node_name in it.members]
        if not own or untried_pairs(own):
            yield NotAvailable(f"{rail.part}: no other node of the step has an adapter at this place")
            continue
        values = [it.busbw for it in own if it.busbw is not None]
        if values:
            bound = rdma.bound.quantity if rdma.bound else None
            yield Metric(
                "rdma_bandwidth", statistics.median(values), "GB/s", named("adapter", rail.device), bound=bound
            )
        if not one_cause:
            yield from _of_rail(node_name, rdma, location, None if location in slow else Action.MONITOR)


def _of_rail(node_name: str, rdma: RdmaResult, location: str, action: Action | None) -> Judgement:
    """Judge one rail of a node; `action` is that of a bad one."""
    own = [it for it in rdma.measured(location) if node_name in it.members]
    part, found = rdma.rails[node_name][location].part, rdma.found[location]
    least = rdma.bound.value if rdma.bound else None
    if node_name in found.bad_nodes:
        evidence = found.evidence_of(node_name)[:SHOWN]
        why = meaning(*(it.problem for it in own))
        text = "; ".join(filter(None, (f"{found.reason(node_name)}: {'; '.join(evidence)}", why.text)))
        expected = "as fast as the same rail of its partners with others"
        yield Finding(part, text, expected, action, code=why.code)
    elif all(it.busbw is None for it in own):
        yield NotAvailable(f"{part}: {own[0].problem or 'no result'}: see rdma.links")
    elif slower := all_slow(node_name, found, rdma.measured(location), least):
        yield replace(slower, part=part)
    elif any(node_name in it.candidates and it.reason.code == NO_BOUND for it in found.unresolved):
        yield NotAvailable(f"{part}: nothing to compare with: {OTHERWISE}")


def _slow_rails(node: str, rdma: RdmaResult) -> dict[str, float]:
    """Return {location: GB/s of the best pair} of the rails on which every pair with a bad node is below the limit."""
    found = {}
    for location in rdma.rails[node] if rdma.bound else ():
        values = [it.busbw for it in rdma.measured(location) if node in it.members]
        known = [value for value in values if value is not None]
        is_bad = location in rdma.found and node in rdma.found[location].bad_nodes
        if is_bad and len(known) == len(values) and rdma.bound and max(known) < rdma.bound.value:
            found[location] = max(known)
    return found


def _require(node_name: str, rdma: RdmaResult, reach: Reach) -> None:
    """Raise what keeps a node from being judged."""
    if obstacle := reach.obstacle(node_name):
        raise obstacle
    if why := rdma.absent.get(node_name):
        raise NotAvailable(why)
    if len(rdma.rails) < 2:
        raise NotAvailable(f"no other node runs perftest: {'; '.join(dict.fromkeys(rdma.absent.values()))}")


def meaning(*problems: str) -> Explanation:
    """Return what the messages of perftest mean; without a text for unknown ones."""
    plain = [_STATUS.sub(r"Failed status \1:", problem) for problem in problems]
    known = (found for words, found in _MEANING.items() if any(words in problem for problem in plain))
    return next(known, Explanation("failed" if any(problems) else "slow_rail", ""))


@check(
    "rdma.links",
    cause="a cable, a switch port or a leaf switch: both ends are fast with other partners on the same rail",
    hint="ibnetdiscover, iblinkinfo and perfquery for the link; the switch's log and port counters",
    action=Action.MONITOR,
)
def links(results: Sequence[RdmaResult]) -> Judgement:
    """Every pair of nodes, and every leaf switch, is as fast as the others on each rail."""
    judged = [(result, location) for result in results for location in result.found]
    if not judged and len({node for result in results for node in result.rails}) > 1:
        raise NotAvailable("fewer than two nodes were measured together: see rdma.bandwidth")
    if not judged:
        raise NotApplicable("fewer than two nodes have rails")
    rounds = max(result.found[location].rounds for result, location in judged)
    yield Metric("rdma_rounds", rounds, "rounds")
    yield from sensitivity(result.found[location].smallest for result, location in judged)
    for result, location in judged:
        nodes = [node for node, rails in result.rails.items() if location in rails]
        measured = result.measured(location)
        failed = [it for it in measured if it.problem]
        for one in link_findings(result.found[location], measured, nodes, OTHERWISE):
            if isinstance(one, Finding):
                own, is_group = {*one.part.nodes}, one.part.kind == "group"
                named = own.intersection if is_group else own.issuperset
                problem = next((it.problem for it in failed if named(it.members)), "")
                # the evidence for a link states it
                shown = (str(one.measured), problem * is_group, meaning(problem).text)
                text = "; ".join(filter(None, shown))
                yield replace(one, measured=f"rail {location}: {text}")
            elif isinstance(one, NotAvailable):
                yield one


@check(
    "rdma.latency",
    cause="the adapter answers late: firmware, PCIe power saving (ASPM, C-states), or a path with more switches than the others have",
    hint="compare firmware and PCIe settings with a sound node; ib_read_lat to two partners",
    action=Action.MONITOR,
)
def latency(node_name: str, rdma: RdmaResult, reach: Reach) -> Judgement:
    """The typical latency of a read over each rail, with the node's best partner, is that of the other nodes."""
    _require(node_name, rdma, reach)
    few = ""
    for location, rail in rdma.rails[node_name].items():
        known = rdma.latencies.get(location, {})
        if node_name not in known:
            yield NotAvailable(f"{rail.part}: no latency was measured: see rdma.bandwidth")
            continue
        usec, share = known[node_name]
        yield Metric("rdma_read_latency", usec, "us", named("adapter", rail.device))
        fleet = outliers({node: value for node, (_, value) in known.items()}, min_relative=LATE)
        few = few or fleet.note
        if node_name in fleet.high:
            yield Finding(
                rail.part,
                Quantity(usec, "us", f"{usec:.2f} us, {share - 1:.0%} above the median of such pairs"),
                Quantity(usec / share * (1 + LATE), "us", f"within {LATE:.0%} of {usec / share:.2f} us"),
                code="late",
            )
    if few:
        yield NotApplicable(few)


@check(
    "rdma.together",
    cause="the rails of this node or of its partner share a bottleneck: PCIe, memory bandwidth, or an oversubscribed leaf",
    hint="compare the PCIe tree with a sound node (-m gpu, fabric); repeat with another partner",
    action=Action.MONITOR,
)
def together(node_name: str, rdma: RdmaResult, reach: Reach) -> Judgement:
    """All rails of the node at once move as much data as those of the other nodes."""
    _require(node_name, rdma, reach)
    if len(rdma.rails[node_name]) < 2:
        raise NotApplicable("the node has one rail")
    if node_name not in rdma.together:
        raise NotAvailable(
            "not measured: a rail or link of the node is bad (see rdma.bandwidth and rdma.links), or no other node has the same rails"
        )
    rate, partner = rdma.together[node_name]
    yield Metric("rdma_all_rails", rate, "GB/s")
    fleet = outliers({node: value for node, (value, _) in rdma.together.items()}, min_relative=LESS)
    if node_name in fleet.low:
        shown = f"{rate:.4g} GB/s with {partner}, {-fleet.low[node_name]:.0%} below the median"
        usual = f"within {LESS:.0%} of {fleet.median:.4g} GB/s"
        found, least = Quantity(rate, "GB/s", shown), Quantity(fleet.median * (1 - LESS), "GB/s", usual)
        yield Finding(Part("adapter", name="all rails"), found, least, code="less_at_once")
    elif fleet.note:
        yield NotApplicable(fleet.note)
