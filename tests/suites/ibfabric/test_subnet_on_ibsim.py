"""The suite on fabrics that ibsim simulates, with a real opensm and the real tools of infiniband-diags."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from ibfabric_helpers import Topology, needs_ibsim, rail_optimised, simulated

from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.suites.ibfabric import checks, judge, node_checks
from pytest_gpucluster.suites.ibfabric.facts import FabricFacts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_ibsim, pytest.mark.thorough]
FIRST, SECOND = "gpu01 mlx5_0", "gpu02 mlx5_0"


def failed(facts: FabricFacts, topology: Topology) -> dict[str, str]:
    """Return {check, and node in brackets: the part and the measured value of its first finding} of all checks."""
    ports = topology.ports()
    links = judge.owned(facts, ports)
    usual, rails = judge.usual_rates(links), judge.rails_of_leaves(links)
    keys = judge.usual_keys(facts, links)
    of_facts = (checks.subnet_manager, checks.mtu)
    of_links = (checks.switch_links, checks.switch_errors, checks.balance)
    verdicts = [*(judged(facts) for judged in of_facts), *(judged(facts, links) for judged in of_links)]
    found = {"": [*verdicts, checks.unique(facts, ports)]}
    for node, of_node in ports.items():
        fabric = FabricProfile(hcas=len(of_node.ports), link_layer="InfiniBand", rate=25.0)
        profile, its = Profile(name="hdr", description="", source="", fabric=fabric), links.of[node]
        found[f"[{node}]"] = [
            node_checks.ports(profile, of_node, its, facts),
            node_checks.cables(profile, its, usual),
            node_checks.cable_errors(its, facts),
            node_checks.rail(node, its, links, rails),
            node_checks.pkeys(its, facts, keys),
        ]
    return {
        f"{verdict.check}{node}": f"{verdict.findings[0].part}: {verdict.findings[0].measured}"
        for node, verdicts in found.items()
        for verdict in verdicts
        if verdict.findings
    }


def test_a_healthy_fabric_passes_and_counters_that_rise_are_named_at_their_port(tmp_path: Path) -> None:
    topology = rail_optimised(nodes=4, hcas=4)
    leaf, host = topology.node_id("leaf01"), topology.node_id("gpu03 mlx5_1")
    counts = 'PerformanceSet "{}"[{}] PortCounters.SymbolErrorCounter={}'
    with simulated(tmp_path, topology, FIRST) as running:
        running.manager("gpu04 mlx5_0", "-k", "0x1")
        before = running.facts_once(SECOND, lambda it: len(it.managers) > 1)
        running.console(counts.format(leaf, 35, 900))
        running.console(counts.format(host, 1, 500))
        after = running.facts_once(SECOND, lambda it: it.after is not None and len(it.after.counters) == 2)
    facts = replace(after, before=before.after)
    assert failed(before, topology) == {}
    assert {link.rate for link in before.subnet.links} == {"4x HDR (200 Gb/s)"}
    assert {name: text.partition(" in ")[0] for name, text in failed(facts, topology).items()} == {
        "ibfabric.switch_errors": "leaf01 port 35 - spine02 port 1: symbol_error at leaf01 port 35: +900",
        "ibfabric.cable_errors[gpu03]": "gpu03 mlx5_1 - leaf02 port 3: symbol_error at gpu03 mlx5_1: +500",
    }


# ibsim passes only the first segment of an answer of the SA, about two records: a query per port stands for the one of all ports
PORT_BY_PORT = """
saquery() {
  case $* in
    *PKTR | *PIR) for port in PORTS; do command saquery "$@" $port; done ;;
    *) command saquery "$@" ;;
  esac
}
"""


def test_partitions_of_opensm_are_compared_between_nodes_and_with_switches(tmp_path: Path) -> None:
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
