"""Checks of a node's own ports and cables, on made-up fabrics and on nodes that were considered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    STAYS,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from ibfabric_helpers import Topology, fat_tree, rail_optimised
from judged import figures

from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import PeerGroup
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.suites.ibfabric import judge, node_checks, test_ibfabric
from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePort, NodePorts, PortRecord, Readings
from pytest_gpucluster.suites.ibfabric.optics import Module, Optics, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

NODE = "gpu02"


def profile(hcas: int, rate: float | None = 25.0) -> Profile:
    fabric = FabricProfile(hcas=hcas, link_layer="InfiniBand", rate=rate)
    return Profile(name="hdr", description="", source="", fabric=fabric)


def small() -> Topology:
    return rail_optimised(nodes=4, hcas=4)


def with_storage() -> Topology:
    """Each node has a slower port for storage in the same subnet."""
    topology = small()
    for number in range(1, 5):
        topology.connect((f"gpu{number:02} mlx5_8", 1), ("leaf99", number))
        topology.slow((f"gpu{number:02} mlx5_8", 1), "4xEDR")
    topology.connect(("leaf99", 40), ("spine01", 60))
    return topology


def changed(**steps: Any) -> Topology:
    """Return the small fabric after swap, slow or cut of the node's cables."""
    topology = steps.pop("of", None) or small()
    for step, arguments in steps.items():
        getattr(topology, step)(*arguments)
    return topology


def of(device: int) -> tuple[str, int]:
    return f"{NODE} mlx5_{device}", 1


def ports(
    topology: Topology, hcas: int = 4, facts: FabricFacts | None = None, own: NodePorts | None = None
) -> Verdict:
    facts, known = facts or topology.facts(), small().ports() | with_storage().ports()
    mine = own or known[NODE]
    return node_checks.ports(profile(hcas), mine, judge.owned(facts, {NODE: mine}).of[NODE], facts)


def cables(topology: Topology, hcas: int = 4, rate: float = 25.0) -> Verdict:
    links = judge.owned(topology.facts(), topology.ports())
    return node_checks.cables(profile(hcas, rate), links.of.get(NODE, ()), judge.usual_rates(links))


def could_be(text: str, rate: float | None) -> Verdict:
    """Judge links of which both ends support more."""
    links = judge.owned(small().facts(), small().ports()).of[NODE]
    more = tuple(replace(it, link=replace(it.link, could_be=text)) for it in links)
    return node_checks.cables(profile(4, rate), more, judge.usual_rates(judge.Owned({NODE: more})))


def errors(rise: int, counter: str = "symbol_error", end: str = "gpu02 mlx5_1") -> Verdict:
    topology = small()
    guid, port = (topology.port_guid(end), 1) if " " in end else (topology.guid(end), 2)
    readings = Readings(0.0, {}), Readings(5.0, {(guid, port): {counter: rise}})
    facts = replace(topology.facts(), before=readings[0], after=readings[1])
    return node_checks.cable_errors(judge.owned(facts, topology.ports()).of[NODE], facts)


def rail(topology: Topology, own: NodePorts | None = None) -> Verdict:
    links = judge.owned(topology.facts(), topology.ports() | ({NODE: own} if own else {}))
    return node_checks.rail(NODE, links.of.get(NODE, ()), links, judge.rails_of_leaves(links))


def at(*buses: str) -> NodePorts:
    """Return the ports of the node with its adapters on these buses."""
    ports = zip(small().ports()[NODE].ports, buses, strict=True)
    return NodePorts(tuple(replace(port, address=f"0000:{bus}:00.0") for port, bus in ports))


FULL, LIMITED, JOB = 0xFFFF, 0x7FFF, 0x8001


def pkeys(
    mine: tuple[int, ...] = (JOB, FULL),
    *,
    passed: tuple[int, ...] = (JOB, FULL),
    filters: bool = True,
    known: bool = True,
) -> Verdict:
    """Judge a fabric in which a port of the node, or its port of the switch, has these partition keys."""
    facts = small().facts()
    links = judge.owned(facts, small().ports())
    keys = {it.key: (JOB, FULL) for of_node in links.of.values() for it in of_node}
    own = links.of[NODE][1]
    far = own.link.z.guid, own.link.z.number
    facts = replace(
        facts,
        pkeys={**keys, own.key: mine, far: passed} if known else {},
        records={far: PortRecord(4096, 4096, 1, filters)},
        missing={} if known else {"pkeys": "saquery PKTR: Query SA failed"},
    )
    return node_checks.pkeys(links.of[NODE], facts, judge.usual_keys(facts, links))


def optics(*readings: Reading, state: str = "ACTIVE", problem: str = "", trouble: str = "") -> Verdict:
    ports = NodePorts((NodePort("mlx5_0", 1, "1", state), NodePort("mlx5_1", 1, "2", "ACTIVE")))
    good = Module("NVIDIA MMS4X00", (WARM, Reading("rx_power", "dBm", (1.8, 1.9), -10.41, 6.0)))
    modules = {"mlx5_0": Module("NVIDIA MMS4X00", readings, trouble), "mlx5_1": good if readings else COPPER}
    if problem:
        del modules["mlx5_0"]
    return node_checks.optics(profile(2), ports, Optics(modules, {"mlx5_0": problem}))


COPPER = Module("NVIDIA MCP4Y10 Passive copper cable", ())
WARM = Reading("module_temperature", "C", (54.0,), -5.0, 75.0)


def light(*values: float) -> Reading:
    return Reading("rx_power", "dBm", values, -10.41, 6.0)


def leaf(topology: Topology, slurm: dict[str, str]) -> Verdict:
    links = judge.owned(topology.facts(), topology.ports())
    votes: dict[str, list[tuple[str, tuple[str, ...]]]] = {it: [] for it in slurm.values()}
    for node, its in slurm.items():
        votes[its].append((node, node_checks.leaves_of(links.of[node])))
    return node_checks.leaf(NODE, links.of[NODE], slurm, {it: norm(pairs) for it, pairs in votes.items()})


def moved() -> Topology:
    """The node is cabled to the leaf of others."""
    topology = fat_tree(nodes=16)
    topology.cut(("gpu02 mlx5_0", 1))
    topology.connect(("gpu02 mlx5_0", 1), ("leaf03", 20))
    return topology


def in_slurm(*, same: bool = False) -> dict[str, str]:
    return {f"gpu{n:02}": "all" if same else f"sw{(n - 1) // 4}" for n in range(1, 17)}


def two_pods() -> Topology:
    """Two groups of nodes, each with leaves of its own for its rails."""
    topology = Topology()
    for node in range(8):
        for hca in range(2):
            topology.connect((f"gpu{node + 1:02} mlx5_{hca}", 1), (f"leaf{node // 4}-{hca}", node + 1))
    return topology


ABSENT = NodePorts((*small().ports()[NODE].ports[:3], NodePort("mlx5_3", 1, "", "DOWN", "0000:30:00.0")))
ROWS: dict[str, tuple[tuple[str, str, str, Callable[[], Verdict]], ...]] = {
    "ports": (
        ("all active", "healthy", PASSED, lambda: ports(small())),
        (
            *("storage in its own subnet", "SuperPOD", PASSED),
            lambda: ports(small(), own=with_storage().ports()[NODE]),
        ),
        ("iblinkinfo did not run", "rights", PASSED, lambda: ports(small())),
        ("a port without a cable", "a pulled cable", CONFIGURE, lambda: ports(changed(cut=[of(3)]))),
        (
            *("the node shows it as down", "a transceiver", CONFIGURE),
            lambda: ports(changed(cut=[of(3)]), own=ABSENT),
        ),
    ),
    "cables": (
        ("at the profile's rate", "healthy", PASSED, lambda: cables(small())),
        ("a slower port for storage on each node", "DGX", PASSED, lambda: cables(with_storage())),
        ("the profile states less", "DGX on HDR switches", PASSED, lambda: cables(small(), rate=12.5)),
        ("no port in the subnet", "ports", NOT_CHECKED, lambda: cables(fat_tree(nodes=1, leaves=1))),
        ("half speed", "a bad transceiver", CONFIGURE, lambda: cables(changed(slow=[of(1)]))),
        ("half of the lanes", "a bad cable", CONFIGURE, lambda: cables(changed(slow=[of(1), "2xHDR"]))),
        (
            *("a slow storage port", "cable", CONFIGURE),
            lambda: cables(changed(of=with_storage(), slow=[of(8), "1xEDR"])),
        ),
        ("NDR200 at NDR switches", "split cables by design", PASSED, lambda: could_be("4X", 25.0)),
        (
            *("EDR cables at HDR switches, no rate is stated", "iblinkinfo", WARNING),
            lambda: could_be("53.125 Gbps", None),
        ),
    ),
    "cable_errors": (
        ("none", "healthy", PASSED, lambda: errors(0)),
        ("discards under congestion", "an incast", WARNING, lambda: errors(5000, "port_xmit_discards")),
        ("symbol errors at the node", "a dirty fibre", CONFIGURE, lambda: errors(400)),
        ("symbol errors at the switch", "a dirty fibre", CONFIGURE, lambda: errors(400, end="leaf02")),
    ),
    "pkeys": (
        ("as on the other nodes", "opensm with one partition", PASSED, lambda: pkeys()),
        (
            *("a further one", "node of the manager", PASSED),
            lambda: pkeys((0x8002, JOB, FULL), passed=(0x8002, JOB, FULL)),
        ),
        ("a limited entry of the switch", "opensm", PASSED, lambda: pkeys(passed=(0x0001, LIMITED))),
        ("the switch does not filter", "part_enforce off", PASSED, lambda: pkeys(passed=(), filters=False)),
        ("the manager does not show the tables", "another sa_key", NOT_CHECKED, lambda: pkeys(known=False)),
        ("a partition is missing", "partitions.conf without its GUID", CONFIGURE, lambda: pkeys((FULL,))),
        ("a limited member", "partitions.conf", CONFIGURE, lambda: pkeys((JOB, LIMITED))),
        ("the switch drops a partition", "a cable was moved", CONFIGURE, lambda: pkeys(passed=(FULL,))),
    ),
    "optics": (
        ("within the limits", "400GBASE-DR4", PASSED, lambda: optics(WARM, light(1.886, 1.989))),
        ("copper cables", "twinax", NOT_APPLICABLE, lambda: optics()),
        ("a bad signal of copper", "opcode 15", WARNING, lambda: optics(trouble="Bad signal integrity")),
        (
            *("no cable", "opcode 1024", NOT_APPLICABLE),
            lambda: optics(trouble="Cable is unplugged", state="DOWN"),
        ),
        (
            *("no light at a port that is down", "unused", WARNING),
            lambda: optics(light(-40.0, -40.0), state="DOWN"),
        ),
        (
            *("mlxlink cannot read a module", "firmware", NOT_CHECKED),
            lambda: optics(WARM, problem="ICMD error 0x4"),
        ),
        ("a lane with little light", "a dirty fibre", MONITOR, lambda: optics(light(1.8, -12.4))),
        ("a hot module", "a fan", MONITOR, lambda: optics(replace(WARM, values=(77.0,)))),
    ),
    "rail": (
        ("each rail on its leaf", "rail-optimised", PASSED, lambda: rail(small())),
        ("two groups with leaves of their own", "DGX SuperPOD", PASSED, lambda: rail(two_pods())),
        (
            *("one HCA for each node", "a fat tree without rails", NOT_APPLICABLE),
            lambda: rail(fat_tree(nodes=16)),
        ),
        (
            *("all HCAs of a node on one leaf", "top of rack", NOT_APPLICABLE),
            lambda: rail(rail_optimised(nodes=2, hcas=2)),
        ),
        (
            *("an address of other hardware", "ibdiagnet", PASSED),
            lambda: rail(small(), at("a0", "00", "b0", "c0")),
        ),
        ("two cables are swapped", "an installation", CONFIGURE, lambda: rail(changed(swap=[of(0), of(1)]))),
        (
            *("in the leaf of an unplugged one", "a repair", CONFIGURE),
            lambda: rail(changed(swap=[of(0), of(1)], cut=[of(1)]), small().ports()[NODE]),
        ),
    ),
    "leaf": (
        ("as in Slurm's topology", "topology.conf", PASSED, lambda: leaf(fat_tree(nodes=16), in_slurm())),
        (
            *("one flat topology", "topology/default", NOT_APPLICABLE),
            lambda: leaf(fat_tree(nodes=16), {"gpu01": "sw0", "gpu02": "sw1"}),
        ),
        (
            *("no topology", "topology/default", NOT_APPLICABLE),
            lambda: leaf(fat_tree(nodes=16), {"gpu01": "sw0"}),
        ),
        (
            *("Slurm has one leaf for all", "a first topology.conf", PASSED),
            lambda: leaf(fat_tree(nodes=16), in_slurm(same=True)),
        ),
        ("moved to another leaf", "a repair", CONFIGURE, lambda: leaf(moved(), in_slurm())),
    ),
}
COUNTER_EXAMPLES = tuple(
    CounterExample(f"ibfabric.{check}", machine, source, expected, judge, sick=expected not in STAYS)
    for check, rows in ROWS.items()
    for machine, source, expected, judge in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)


def test_no_finding_takes_the_node_out_of_service() -> None:
    sick = [example.judged() for example in COUNTER_EXAMPLES if example.sick]
    assert not any(finding.action for verdict in sick for finding in verdict.findings)


@pytest.mark.parametrize(
    ("judged", "parts", "shown"),
    [
        (lambda: pkeys(passed=(FULL,)), ["leaf02 port 2 at mlx5_1 port 1 (0000:10:00.0)"], []),
        (
            lambda: optics(WARM, light(1.8, -12.4)),
            ["rx_power of lane 2 at mlx5_0 port 1"],
            [-12.4, -10.41, 6],
        ),
        (lambda: ports(changed(cut=[of(3)]), own=ABSENT), ["mlx5_3 port 1 (0000:30:00.0)"], []),
        (
            lambda: cables(changed(slow=[of(1)])),
            ["mlx5_1 port 1 (0000:10:00.0): gpu02 mlx5_1 - leaf02 port 2"],
            [100, 200],
        ),
        (
            lambda: rail(changed(swap=[of(0), of(1)])),
            ["mlx5_0 port 1 (0000:00:00.0) of gpu02", "mlx5_1 port 1 (0000:10:00.0) of gpu02"],
            None,
        ),
    ],
)
def test_a_finding_names_the_port_and_the_figures(
    judged: Callable[[], Verdict], parts: list[str], shown: list[float] | None
) -> None:
    verdict = judged()
    assert [it.part for it in verdict.findings] == parts
    found = figures(f"{verdict.findings[0].measured} / {verdict.findings[0].expected}")
    assert set(shown or ()) <= set(found)


def test_a_port_whose_partition_keys_are_not_shown_is_not_checked() -> None:
    facts = small().facts()
    verdict = node_checks.pkeys(judge.owned(facts, small().ports()).of[NODE], facts, {})
    assert verdict.outcome is Outcome.NOT_CHECKED


def test_a_node_is_compared_with_nodes_of_its_own_group() -> None:
    topology = changed(slow=[of(1)])
    links = judge.owned(topology.facts(), topology.ports())
    new, old = PeerGroup("gpu[01,03-04]", ("gpu01", "gpu03", "gpu04")), PeerGroup(NODE, (NODE,))
    nodes = {node: SimpleNamespace(peers=old if node == NODE else new) for node in links.of}
    of_peers = test_ibfabric.links_of_peers(links, SimpleNamespace(nodes=nodes))
    usual = test_ibfabric.usual_rates(nodes[NODE], test_ibfabric.rates_of_peers(of_peers))
    verdict = node_checks.cables(profile(4, None), links.of[NODE], usual)
    assert verdict.outcome is Outcome.PASSED
    assert cables(topology, rate=12.5).outcome is Outcome.FAILED  # all nodes are one group
    keys = test_ibfabric.keys_of_peers(topology.facts(), of_peers)
    assert set(keys) == {"gpu[01,03-04]", NODE}
    assert test_ibfabric.usual_keys(nodes[NODE], keys) == {}
