"""Checks of a node's own ports and cables, on made-up fabrics and on nodes that were considered."""

from __future__ import annotations

from dataclasses import replace
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
from ibfabric_helpers import Topology, fat_tree, rail_optimised, small

from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import PeerGroup
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.suites.ibfabric import judge, node_checks, test_ibfabric
from pytest_gpucluster.suites.ibfabric.facts import NodePort, NodePorts, PortRecord, Readings
from pytest_gpucluster.suites.ibfabric.optics import Module, Optics, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

NODE = "gpu02"


def profile(hcas: int, rate: float | None = 25.0) -> Profile:
    fabric = FabricProfile(hcas=hcas, link_layer="InfiniBand", rate=rate)
    return Profile(name="hdr", description="", source="", fabric=fabric)


def with_storage() -> Topology:
    """Each node has a slower port for storage in the same subnet."""
    topology = small()
    for number in range(1, 5):
        topology.connect((f"gpu{number:02} mlx5_8", 1), ("leaf99", number))
        topology.slow((f"gpu{number:02} mlx5_8", 1), "4xEDR")
    topology.connect(("leaf99", 40), ("spine01", 60))
    return topology


WITH_STORAGE = with_storage().ports()[NODE]


def changed(of: Topology | None = None, **steps: Any) -> Topology:
    """Return the small fabric after swap, slow or cut of the node's cables."""
    topology = of or small()
    for step, arguments in steps.items():
        getattr(topology, step)(*arguments)
    return topology


def of(device: int) -> tuple[str, int]:
    return f"{NODE} mlx5_{device}", 1


def ports(topology: Topology, own: NodePorts = WITH_STORAGE) -> Verdict:
    facts = topology.facts()
    return node_checks.ports(profile(4), own, judge.owned(facts, {NODE: own}).of[NODE], facts)


def cables(topology: Topology, rate: float = 25.0) -> Verdict:
    links = judge.owned(topology.facts(), topology.ports())
    return node_checks.cables(profile(4, rate), links.of.get(NODE, ()), judge.usual_rates(links))


def with_planes() -> Topology:
    """Each adapter has a link in each of two planes."""
    topology = small()
    for (device, _), (leaf, port) in list(topology.peers.items()):
        if " " in device:
            topology.connect((device, 2), (leaf, port + 20))
    return topology


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


# the node's adapters on other buses than those of the others
OWN, SWAP, SLOW_8 = small().ports()[NODE], [of(0), of(1)], [of(8), "1xEDR"]
# the node's adapters on other buses than those of the others
BUSES = zip(OWN.ports, ("a0", "00", "b0", "c0"), strict=True)
OTHER_BUSES = NodePorts(tuple(replace(port, address=f"0000:{bus}:00.0") for port, bus in BUSES))


FULL, LIMITED, JOB = 0xFFFF, 0x7FFF, 0x8001


def pkeys(
    mine: tuple[int, ...] = (JOB, FULL),
    *,
    passed: tuple[int, ...] = (JOB, FULL),
    filters: bool = True,
    known: bool | None = True,  # None: no table, and no reason
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
        missing={} if known is not False else {"pkeys": "saquery PKTR: Query SA failed"},
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
    topology.cut(of(0))
    topology.connect(of(0), ("leaf03", 20))
    return topology


IN_SLURM = {f"gpu{n:02}": f"sw{(n - 1) // 4}" for n in range(1, 17)}
ALONE = {"gpu02": "sw1"}


def two_pods() -> Topology:
    """Two groups of nodes, each with leaves of its own for its rails."""
    topology = Topology()
    for node in range(8):
        for hca in range(2):
            topology.connect((f"gpu{node + 1:02} mlx5_{hca}", 1), (f"leaf{node // 4}-{hca}", node + 1))
    return topology


ABSENT = NodePorts((*OWN.ports[:3], NodePort("mlx5_3", 1, "", "DOWN", "0000:30:00.0")))
MORE_KEYS = (0x8002, JOB, FULL)
DARK = light(-40.0, -40.0)
UNPLUGGED = "Cable is unplugged"
ROWS: tuple[tuple[str, str, str, str, Callable[[], Verdict]], ...] = (
    ("ports", "all active", "healthy", PASSED, lambda: ports(small(), own=OWN)),
    ("ports", "storage in another subnet", "SuperPOD", PASSED, lambda: ports(small())),
    ("ports", "no cable at a port", "a pulled cable", CONFIGURE, lambda: ports(changed(cut=[of(3)]))),
    ("ports", "down on the node", "optics", CONFIGURE, lambda: ports(changed(cut=[of(3)]), own=ABSENT)),
    ("cables", "at the profile's rate", "healthy", PASSED, lambda: cables(small())),
    ("cables", "a slower port for storage on each node", "DGX", PASSED, lambda: cables(with_storage())),
    ("cables", "the profile states less", "HDR switches", PASSED, lambda: cables(small(), rate=12.5)),
    ("cables", "none in the subnet", "ports", NOT_CHECKED, lambda: cables(fat_tree(nodes=1, leaves=1))),
    ("cables", "planes of an XDR adapter", "one link", PASSED, lambda: cables(with_planes(), rate=50.0)),
    ("cables", "half speed", "a bad transceiver", CONFIGURE, lambda: cables(changed(slow=[of(1)]))),
    ("cables", "half of the lanes", "a cable", CONFIGURE, lambda: cables(changed(slow=[of(1), "2xHDR"]))),
    ("cables", "slow storage", "a cable", CONFIGURE, lambda: cables(changed(with_storage(), slow=SLOW_8))),
    ("cables", "NDR200 at NDR switches", "split cables by design", PASSED, lambda: could_be("4X", 25.0)),
    ("cables", "EDR cables, no rate is stated", "HDR", WARNING, lambda: could_be("53.125 Gbps", None)),
    ("cable_errors", "none", "healthy", PASSED, lambda: errors(0)),
    ("cable_errors", "congestion", "an incast", WARNING, lambda: errors(5000, "port_xmit_discards")),
    ("cable_errors", "symbol errors at the node", "a dirty fibre", CONFIGURE, lambda: errors(400)),
    ("cable_errors", "at the switch", "a dirty fibre", CONFIGURE, lambda: errors(400, end="leaf02")),
    ("pkeys", "as on the other nodes", "opensm with one partition", PASSED, lambda: pkeys()),
    ("pkeys", "a further one", "node of the manager", PASSED, lambda: pkeys(MORE_KEYS, passed=MORE_KEYS)),
    ("pkeys", "a limited entry of the switch", "opensm", PASSED, lambda: pkeys(passed=(0x0001, LIMITED))),
    ("pkeys", "the switch does not filter", "opensm", PASSED, lambda: pkeys(passed=(), filters=False)),
    ("pkeys", "the tables are not shown", "another sa_key", NOT_CHECKED, lambda: pkeys(known=False)),
    ("pkeys", "a port is not shown", "saquery", NOT_CHECKED, lambda: pkeys(known=None)),
    ("pkeys", "a partition is missing", "partitions.conf", CONFIGURE, lambda: pkeys((FULL,))),
    ("pkeys", "a limited member", "partitions.conf", CONFIGURE, lambda: pkeys((JOB, LIMITED))),
    ("pkeys", "the switch drops a partition", "a moved cable", CONFIGURE, lambda: pkeys(passed=(FULL,))),
    ("optics", "within the limits", "400GBASE-DR4", PASSED, lambda: optics(WARM, light(1.886, 1.989))),
    ("optics", "copper cables", "twinax", NOT_APPLICABLE, lambda: optics()),
    ("optics", "a bad signal of copper", "opcode 15", WARNING, lambda: optics(trouble="Bad signal")),
    ("optics", "no cable", "1024", NOT_APPLICABLE, lambda: optics(trouble=UNPLUGGED, state="DOWN")),
    ("optics", "no light at a port that is down", "unused", WARNING, lambda: optics(DARK, state="DOWN")),
    ("optics", "an unreadable module", "ICMD", NOT_CHECKED, lambda: optics(WARM, problem="ICMD error 0x4")),
    ("optics", "a lane with little light", "a dirty fibre", MONITOR, lambda: optics(light(1.8, -12.4))),
    ("optics", "a hot module", "a fan", MONITOR, lambda: optics(replace(WARM, values=(77.0,)))),
    ("rail", "each rail on its leaf", "rail-optimised", PASSED, lambda: rail(small())),
    ("rail", "two groups with leaves of their own", "DGX SuperPOD", PASSED, lambda: rail(two_pods())),
    ("rail", "a fat tree without rails", "one HCA each", NOT_APPLICABLE, lambda: rail(fat_tree(nodes=16))),
    ("rail", "few nodes", "top of rack", NOT_APPLICABLE, lambda: rail(rail_optimised(nodes=2, hcas=2))),
    ("rail", "an address of other hardware", "ibdiagnet", PASSED, lambda: rail(small(), OTHER_BUSES)),
    ("rail", "two cables are swapped", "new", CONFIGURE, lambda: rail(changed(swap=SWAP))),
    ("rail", "at another leaf", "a repair", CONFIGURE, lambda: rail(changed(swap=SWAP, cut=[of(1)]), OWN)),
    ("leaf", "as in Slurm's topology", "topology.conf", PASSED, lambda: leaf(fat_tree(nodes=16), IN_SLURM)),
    ("leaf", "no other of the leaf", "a test", NOT_APPLICABLE, lambda: leaf(fat_tree(nodes=16), ALONE)),
    ("leaf", "no topology", "topology/default", NOT_APPLICABLE, lambda: leaf(fat_tree(nodes=16), {})),
    ("leaf", "one leaf", "flat", PASSED, lambda: leaf(fat_tree(nodes=16), dict.fromkeys(IN_SLURM, "all"))),
    ("leaf", "moved to another leaf", "a repair", CONFIGURE, lambda: leaf(moved(), IN_SLURM)),
)
COUNTER_EXAMPLES = tuple(
    CounterExample(f"ibfabric.{check}", machine, source, expected, judge, sick=expected not in STAYS)
    for check, machine, source, expected, judge in ROWS
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    """No finding takes the node out of service."""
    assert_as_expected(example)
    assert not any(finding.action for finding in example.judged().findings)


class PeersOf:
    """A node, or the session, as the fixtures of peers use it."""

    def __init__(self, peers: PeerGroup | None = None, nodes: Any = None) -> None:
        self.peers, self.nodes = peers, nodes


def test_a_node_is_compared_with_nodes_of_its_own_group() -> None:
    topology = changed(slow=[of(1)])
    links = judge.owned(topology.facts(), topology.ports())
    new, old = PeerGroup("gpu[01,03-04]", ("gpu01", "gpu03", "gpu04")), PeerGroup(NODE, (NODE,))
    session: Any = PeersOf(None, {node: PeersOf(old if node == NODE else new) for node in links.of})
    of_peers = test_ibfabric.links_of_peers(links, session)
    usual = test_ibfabric.usual_rates(session.nodes[NODE], test_ibfabric.rates_of_peers(of_peers))
    assert node_checks.cables(profile(4, None), links.of[NODE], usual).outcome is Outcome.PASSED
    assert cables(topology, rate=12.5).outcome is Outcome.FAILED  # all nodes are one group
    keys = test_ibfabric.keys_of_peers(topology.facts(), of_peers)
    assert set(keys) == {"gpu[01,03-04]", NODE}
    assert test_ibfabric.usual_keys(session.nodes[NODE], keys) == {}
