"""The steps of the rdma suite: one that finds perftest on the nodes, and one for each batch of rounds of pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ProbeError, SlurmError
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.kit.fabric.perftest_plan import gid_index, node_plan
from pytest_gpucluster.kit.fabric.rails import in_use, rail_ports
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner, nodes_by_allocation
from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.kit.payloads.perftest import MEETING_TIME, SLOT_LIMITS
from pytest_gpucluster.suites.rdma.config import RdmaConfig, RdmaLimit
from pytest_gpucluster.suites.rdma.results import RdmaResult, Slot, measure_rails

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.kit.fabric.facts import Port
    from pytest_gpucluster.kit.fabric.rails import RailPort, Rails
    from pytest_gpucluster.kit.framework.framework_step import NodesUnderTest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

# NVIDIA's ngc_multinode_perf passes a port from 90% of its rate on (README: "90% of the port link speed")
SHARE = 0.9
FULL_MTU = 4096
# bytes of each packet of RoCE v2 beside its data: Ethernet with preamble and gap 38, IPv4 20, UDP 8, BTH 12, ICRC 4
HEADERS = 82


class Rdma(FrameworkStepRunner[RdmaConfig]):
    """perftest on the nodes of one allocation. `all_rails`: {node: its rails} of kit/fabric/rails.py."""

    section = key = "rdma"

    def __init__(self, *given: Any, all_rails: Mapping[str, tuple[Rails, ...]]) -> None:
        super().__init__(*given)
        self.all_rails = all_rails

    @classmethod
    def groups(cls, session: NodesUnderTest) -> list[tuple[Allocation, tuple[str, ...]]]:
        """Return the nodes of each allocation by link layer and limit: ports of several rates are not comparable."""
        found: dict[Any, tuple[Allocation, list[str]]] = {}
        for held, nodes in nodes_by_allocation(session):
            for node in nodes:
                profile = session.cluster.group_of(node).profile
                bound = bound_of(profile)
                kind = (id(held), profile.fabric.link_layer, bound and bound.value)
                found.setdefault(kind, (held, []))[1].append(node)
        return [(held, tuple(nodes)) for held, nodes in found.values()]

    @cached_property
    def found(self) -> PayloadResult:
        """The version of perftest on every node."""
        find, gpus = self.payload("find"), self.gpus or None
        return self.attempt(self.request(find, ntasks_per_node=1, gpus_per_node=gpus))

    @cached_property
    def result(self) -> RdmaResult:
        """What the pairs have measured on every rail."""
        absent = {node: why for node in self.nodes if (why := self._why_not(node))}
        rails = {node: self._ports(node) for node in self.nodes if node not in absent}
        return replace(measure_rails(rails, self._leaves, self.bound, self.run_slots), absent=absent)

    def _ports(self, node: str) -> dict[str, RailPort]:
        return rail_ports(self.all_rails.get(node, ()), self.cluster.group_of(node).profile.fabric)

    def _why_not(self, node: str) -> str:
        if not self._ports(node):
            return "no adapter for the traffic of GPUs is known: see fabric.hca_count"
        fact = self.found.last_facts(node).get("found")
        if fact is None:
            return self.found.silence(node)
        if fact["absent"]:
            return f"not installed: {', '.join(fact['absent'])}; install perftest"
        return "" if fact["version"] else "ib_write_bw --version prints no version: reinstall perftest"

    @property
    def bound(self) -> Bound | None:
        """The lowest accepted bandwidth of a port: that of the profile, else a share of its rate; None if that is unknown."""
        profile = self.cluster.group_of(self.nodes[0]).profile
        rails = [one for node in self.nodes for one in self.all_rails.get(node, ())]
        mtus = [mtu for one in rails for port in in_use(one, profile.fabric) if (mtu := packet_size(port))]
        return bound_of(profile, min(mtus, default=FULL_MTU))

    @cached_property
    def _leaves(self) -> dict[str, str]:
        """{node: leaf switch}, from Slurm."""
        try:
            return parse_slurm_topology(self.slurm.run("scontrol", "show", "topology", "-o"))
        except (SlurmError, ProbeError):
            return {}  # no topology file

    def run_slots(self, slots: Sequence[Slot]) -> list[list[Mapping[str, Any]]]:
        """Run slots in one step; return the facts of each, and of a pair without any why it has none."""
        used = {node for slot in slots for pair in slot.pairs for node in pair}
        nodes = tuple(node for node in self.nodes if node in used)
        plan = {
            "nodes": {
                node: node_plan(self.address(node), place, self._ports(node)) for place, node in enumerate(nodes)
            },
            "slots": [[slot.rails, slot.tests, slot.pairs] for slot in slots],
            "gid": gid_index(self.cluster, self.environment),
            "limit": self.config.deadline,
        }
        request = self.request(
            self.payload("run"),
            nodes=nodes,
            ntasks_per_node=1,
            gpus_per_node=self.gpus or None,
            input=json.dumps(plan).encode(),
            timeout=2 * MEETING_TIME + len(slots) * SLOT_LIMITS * self.config.deadline,
        )
        result = self.attempt(request)
        return [list(_of_slot(result, number, slot)) for number, slot in enumerate(slots)]


def _of_slot(result: PayloadResult, number: int, slot: Slot) -> Iterable[Mapping[str, Any]]:
    facts = [*result.facts("result"), *result.facts("lost")]
    own = [fact for fact in facts if fact["slot"] == number]
    yield from own
    seen = {node for fact in own for node in fact.get("pair", (fact.get("client"), fact.get("server")))}
    for pair in slot.pairs:
        if seen.isdisjoint(pair):
            silent = {node: result.silence(node) for node in pair}
            yield {"pair": pair, "problem": "; ".join(f"{node}: {why}" for node, why in silent.items())}


def bound_of(profile: Profile, mtu: int = FULL_MTU) -> Bound | None:
    """Return the lowest accepted bandwidth of one port of a profile; None if it states neither a row nor a rate.

    `mtu`: the active MTU of RoCE; smaller packets carry less data, 92.6% of the rate at 1024 and 98% at 4096.
    """
    for row in profile.rows(RdmaLimit):
        return Bound(row.bandwidth, f"profile {profile.name}: {row.source}")
    rate = profile.fabric.rate
    if not rate:
        return None
    share, small = SHARE, ""
    if profile.fabric.link_layer == "Ethernet" and mtu < FULL_MTU:  # less of what a port sends is data
        share, small = SHARE * mtu / (mtu + HEADERS) / (FULL_MTU / (FULL_MTU + HEADERS)), f", MTU {mtu}"
    return Bound(share * rate, f"{share:.0%} of the port's {8 * rate:g} Gb/s{small}")


def packet_size(port: Port) -> int | None:
    """Return the active MTU of a port; of RoCE it is what fits into that of its interface (iboe_get_mtu of the kernel)."""
    known = [mtu for mtu in port.interfaces.values() if mtu]
    fitting = 1 << ((min(known) - 96).bit_length() - 1) if known else None
    return port.mtu or (fitting and min(fitting, FULL_MTU))
