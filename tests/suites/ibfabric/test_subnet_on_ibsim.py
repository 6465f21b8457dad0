"""The suite on fabrics that ibsim simulates, with a real opensm and the real tools of infiniband-diags."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from ibfabric_helpers import Topology, needs_ibsim, rail_optimised, simulated

from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.suites.ibfabric import checks, judge, node_checks
from pytest_gpucluster.suites.ibfabric.facts import FabricFacts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_ibsim, pytest.mark.thorough]
FIRST, SECOND = "gpu01 mlx5_0", "gpu02 mlx5_0"


def all_verdicts(facts: FabricFacts, topology: Topology) -> dict[str, Verdict]:
    """Return {check, and node in brackets: verdict} of the cluster and of each node."""
    ports = topology.ports()
    links = judge.owned(facts, ports)
    usual, rails, keys = (
        judge.usual_rates(links),
        judge.rails_of_leaves(links),
        judge.usual_keys(facts, links),
    )
    of_cluster = (
        checks.subnet_manager(facts),
        checks.switch_links(facts, links),
        checks.switch_errors(facts, links),
        checks.unique(facts, ports),
        checks.mtu(facts),
        checks.balance(facts, links),
    )
    verdicts = {verdict.check: verdict for verdict in of_cluster}
    for node, of_node in ports.items():
        fabric = FabricProfile(hcas=len(of_node.ports), link_layer="InfiniBand", rate=25.0)
        profile, its = Profile(name="hdr", description="", source="", fabric=fabric), links.of[node]
        for verdict in (
            node_checks.ports(profile, of_node, its, facts),
            node_checks.cables(profile, its, usual),
            node_checks.cable_errors(its, facts),
            node_checks.rail(node, its, links, rails),
            node_checks.pkeys(its, facts, keys),
        ):
            verdicts[f"{verdict.check}[{node}]"] = verdict
    return verdicts


def failed(facts: FabricFacts, topology: Topology) -> dict[str, str]:
    """Return {check, and node: the part and the measured value of its first finding}."""
    return {
        name: f"{verdict.findings[0].part}: {verdict.findings[0].measured}"
        for name, verdict in all_verdicts(facts, topology).items()
        if verdict.outcome is Outcome.FAILED
    }


def test_healthy_rails_of_16_nodes_pass_and_a_second_manager_stands_by(tmp_path: Path) -> None:
    with simulated(tmp_path, rail_optimised(), FIRST) as running:
        running.manager("gpu04 mlx5_0", "-k", "0x1")
        facts = running.facts_once(SECOND, lambda it: len(it.managers) > 1)
    verdicts = all_verdicts(facts, running.topology)
    assert failed(facts, running.topology) == {}
    assert verdicts["ibfabric.rail[gpu05]"].outcome is Outcome.PASSED
    assert verdicts["ibfabric.subnet_manager"].metrics[0].value == 2
    assert (len(facts.subnet.switches), len(facts.subnet.hcas), len(facts.subnet.leaves)) == (12, 128, 8)
    assert {link.rate for link in facts.subnet.links} == {"4x HDR (200 Gb/s)"}
    assert {port.state for port in facts.ports} == {"Active", "Down"}


def counted(facts: FabricFacts) -> set[int]:
    found = facts.after.counters.values() if facts.after else ()
    return {value for counters in found for value in counters.values()}


def test_counters_that_rise_are_named_at_their_port_and_old_ones_are_a_warning(tmp_path: Path) -> None:
    topology = rail_optimised(nodes=4, hcas=4)
    leaf, host = topology.node_id("leaf01"), topology.node_id("gpu03 mlx5_1")
    with simulated(tmp_path, topology, FIRST) as running:
        running.console(f'PerformanceSet "{leaf}"[35] PortCounters.SymbolErrorCounter=40')
        running.console(f'PerformanceSet "{leaf}"[36] PortCounters.LinkDownedCounter=30')
        before = running.facts_once(SECOND, lambda it: counted(it) == {40, 30})
        running.console(f'PerformanceSet "{leaf}"[35] PortCounters.SymbolErrorCounter=900')
        running.console(f'PerformanceSet "{host}"[1] PortCounters.SymbolErrorCounter=500')
        after = running.facts_once(SECOND, lambda it: counted(it) == {900, 30, 500})
    facts = replace(after, before=before.after)
    assert failed(before, topology) == {}
    assert {name: text.partition(" in ")[0] for name, text in failed(facts, topology).items()} == {
        "ibfabric.switch_errors": "leaf01 port 35 - spine02 port 1: symbol_error at leaf01 port 35: +860",
        "ibfabric.cable_errors[gpu03]": "gpu03 mlx5_1 - leaf02 port 3: symbol_error at gpu03 mlx5_1: +500",
    }
    old = all_verdicts(facts, topology)["ibfabric.switch_errors"].advisories
    assert [(it.part, it.measured) for it in old] == [
        ("link_downed at leaf01 port 36", "30 since the counter was cleared")
    ]


# ibsim passes only the first segment of an answer of the SA, about two records: a query per port stands for the one of all ports
PORT_BY_PORT = """
saquery() {
  case $* in
    *PKTR | *PIR) for port in PORTS; do command saquery "$@" $port; done ;;
    *) command saquery "$@" ;;
  esac
}
"""


def test_partitions_of_opensm_are_compared_between_nodes_and_with_the_ports_of_switches(
    tmp_path: Path,
) -> None:
    topology = rail_optimised(nodes=4, hcas=1, spines=2, each=1)
    members = ", ".join(f"0x{topology.port_guid(f'gpu{node:02} mlx5_0')}=full" for node in (1, 2, 3))
    (tmp_path / "partitions").write_text(f"Default=0x7fff : ALL=full, SELF=full;\njob=0x0001 : {members};\n")
    with simulated(tmp_path, topology) as running:
        running.manager(FIRST, "-P", str(tmp_path / "partitions"))
        ports = [f"{it.lid}/{it.number}" for it in running.facts(SECOND).ports if it.state == "Active"]
        facts = running.facts(SECOND, before=PORT_BY_PORT.replace("PORTS", " ".join(ports)))
    assert facts.missing == {}
    assert failed(facts, topology) == {"ibfabric.pkeys[gpu04]": "mlx5_0 port 1 (0000:00:00.0): 0xffff"}
    # ibsim does not set the filter; opensm has given each port of the leaf the keys of the host at its cable
    filtering = replace(facts, records={key: replace(it, filters=True) for key, it in facts.records.items()})
    assert len(facts.records) == len(ports)
    assert failed(filtering, topology) == failed(facts, topology)
