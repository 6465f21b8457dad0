"""The steps of the rdma suite: one that finds perftest on the nodes, and one for each batch of rounds of pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ProbeError, SlurmError
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.kit.fabric.perftest_plan import gid_index, node_plan
from pytest_gpucluster.kit.fabric.rails import rail_ports
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.kit.payloads.perftest import MEETING_TIME, SLOT_LIMITS
from pytest_gpucluster.suites.rdma.config import RdmaConfig, RdmaLimit
from pytest_gpucluster.suites.rdma.results import RdmaResult, Slot, measure_rails

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.kit.fabric.rails import Rails
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

# NVIDIA's ngc_multinode_perf passes a port from 90% of its rate on (README: "90% of the port link speed")
SHARE = 0.9


class Rdma(FrameworkStepRunner[RdmaConfig]):
    """perftest on the nodes of one allocation. `all_rails`: {node: its rails} of kit/fabric/rails.py."""

    section = key = "rdma"

    def __init__(self, *given: Any, all_rails: Mapping[str, tuple[Rails, ...]]) -> None:
        super().__init__(*given)
        self.all_rails = all_rails

    @cached_property
    def found(self) -> PayloadResult:
        """The version of perftest on every node."""
        return self.attempt(
            self.request(self.payload("find"), ntasks_per_node=1, gpus_per_node=self.gpus or None)
        )

    @cached_property
    def result(self) -> RdmaResult:
        """What the pairs have measured on every rail."""
        absent = {node: why for node in self.nodes if (why := self._why_not(node))}
        rails = {node: rail_ports(self.all_rails[node]) for node in self.nodes if node not in absent}
        return replace(measure_rails(rails, self._leaves, self.bound, self.run_slots), absent=absent)

    def _why_not(self, node: str) -> str:
        if not rail_ports(self.all_rails.get(node, ())):
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
        return bound_of(self.cluster.group_of(self.nodes[0]).profile)

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
                node: node_plan(self.address(node), place, rail_ports(self.all_rails[node]))
                for place, node in enumerate(nodes)
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


def bound_of(profile: Profile) -> Bound | None:
    """Return the lowest accepted bandwidth of one port of a profile; None if it states neither a row nor a rate."""
    for row in profile.rows(RdmaLimit):
        return Bound(row.bandwidth, f"profile {profile.name}: {row.source}")
    rate = profile.fabric.rate
    return Bound(SHARE * rate, f"{SHARE:.0%} of the port's {8 * rate:g} Gb/s") if rate else None
