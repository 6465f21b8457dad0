"""Checks of the subnet as a whole, on made-up fabrics and on fabrics that were considered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    STAYS,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from ibfabric_helpers import Topology, fat_tree, rail_optimised, shown, small
from judged import judged

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.suites.ibfabric import checks
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.facts import (
    BitErrors,
    FabricFacts,
    Manager,
    NodePorts,
    PortRecord,
    Readings,
    read_fabric,
)
from pytest_gpucluster.suites.ibfabric.judge import Owned, owned
from pytest_gpucluster.suites.ibfabric.subnet import PortState

if TYPE_CHECKING:
    from collections.abc import Callable

NO_NODES = Owned({})
MASTER, STANDBY = "SMINFO_MASTER", "SMINFO_STANDBY"
DOWN = "link_downed"


def managers(*states: str, missing: str = "") -> FabricFacts:
    found = tuple(Manager(number, f"{number:016x}", state) for number, state in enumerate(states))
    return replace(small().facts(), managers=found, missing={"managers": missing} if missing else {})


def rates(*, slow: int, speed: str = "4xEDR", slow_leaf: int = 0) -> FabricFacts:
    """Return a fabric of which the first uplinks have another rate; slow_leaf: and so many of leaf01 100 Gb/s."""
    topology = small()
    ends = [end for end in topology.peers if end[0].startswith("leaf") and end[1] > 32]
    for end, rate in [*((end, "4xEDR") for end in ends[:slow_leaf]), *((end, speed) for end in ends[:slow])]:
        topology.slow(end, rate)
    return topology.facts()


def states(state: str = "Active", could_be: str = "") -> FabricFacts:
    """Return a fabric with this state of its first link between switches, and what all could be."""
    facts = small().facts()
    links = [replace(link, could_be=could_be) for link in facts.subnet.links]
    first = next(number for number, link in enumerate(links) if link.between_switches)
    links[first] = replace(links[first], state=state)
    return replace(facts, subnet=replace(facts.subnet, links=tuple(links)))


def older(facts: FabricFacts, leaf: str = "leaf01") -> FabricFacts:
    """Return the fabric in which this leaf is a switch of another model."""
    devices = tuple(replace(it, device_id="cf08") if it.node == leaf else it for it in facts.subnet.devices)
    return replace(facts, subnet=replace(facts.subnet, devices=devices))


def slow_at_an_older_leaf() -> FabricFacts:
    return older(rates(slow=1, speed="4xDDR", slow_leaf=8))


def counted(rise: int, counter: str = "symbol_error", *, before: int = 0, port: int = 33) -> FabricFacts:
    """Return a fabric of which an uplink of leaf01, or another port, has counted."""
    topology = small()
    key = topology.guid("leaf01"), port
    first = Readings(0.0, {key: {counter: before}})
    second = Readings(5.0, {key: {counter: before + rise}})
    return replace(topology.facts(), before=first, after=second)


def bits(symbol: float, errors: int) -> FabricFacts:
    key = small().guid("leaf01"), 33
    return replace(counted(0), bit_errors={key: BitErrors("STD-RS", 0.0, symbol, errors)})


def unread(port: int) -> FabricFacts:
    return replace(counted(0), unread={(small().guid("leaf01"), port): "Symbol BER 'ERR'"})


def lids(first: int, second: int) -> FabricFacts:
    both = enumerate((first, second))
    ports = tuple(PortState(f"{lid}{n}", 1, f"gpu{n}", lid, "Active", "LinkUp") for n, lid in both)
    return replace(small().facts(), ports=ports)


def mtus(first: int, others: int = 4096, *, unknown: int = 0) -> FabricFacts:
    found = small().facts()
    links = [link for link in found.subnet.links if link.between_switches]
    records = {(link.a.guid, link.a.number): PortRecord(others, 4096, 1) for link in links[unknown:]}
    records[links[-1].a.guid, links[-1].a.number] = PortRecord(first, 4096, 1)
    return replace(found, records=records)


def without(*ends: tuple[str, int]) -> Topology:
    topology = small()
    for end in ends:
        topology.cut(end)
    return topology


def beside(*cables: tuple[tuple[str, int], tuple[str, int]], of: Topology | None = None) -> Topology:
    """Return the fabric with further cables."""
    topology = of or small()
    for one, other in cables:
        topology.connect(one, other)
    return topology


def balance_of(topology: Topology) -> Verdict:
    facts = topology.facts()
    links = tuple(
        replace(it, z=replace(it.z, kind="router")) if it.z.node.startswith("router") else it
        for it in facts.subnet.links
    )
    facts = replace(facts, subnet=replace(facts.subnet, links=links))
    tested = {node: ports for node, ports in topology.ports().items() if node.startswith("gpu")}
    return checks.balance(facts, owned(facts, tested))


def versions(*found: str) -> FabricFacts:
    facts = small().facts()
    known = zip((it.guid for it in facts.subnet.switches), found, strict=False)
    return replace(facts, firmware={guid: ("MT_0000000556", version) for guid, version in known})


def size_of(of: tuple[Topology, Topology | None, dict[str, int]]) -> Verdict:
    """Judge a fabric by that of the last accepted run, and by the stated numbers."""
    topology, before, stated = of
    earlier = checks.size(before.facts(), IbFabricConfig(), {}).metrics if before else ()
    return checks.size(topology.facts(), IbFabricConfig(**stated), {it.name: it.value for it in earlier})


HALF = without(*(("leaf02", port) for port in (33, 35, 37, 39)))
TWO_MISSING = without(("leaf01", 33), ("leaf02", 35))
UPLINK = without(("leaf01", 33))
SILENT = PortState("1", 7, "leaf01", 3, "Active", "LinkUp", answered=False)
TWICE = {**small().ports(), "gpu99": small().ports()["gpu01"]}
# a leaf of a login node is connected to one of the four spines; each leaf but one has a link to a router
MANAGEMENT = beside((("gpu99 mlx5_0", 1), ("leaf99", 1)), (("leaf99", 33), ("spine01", 60)))
ROUTERS = beside(*(((f"leaf{number:02}", 64), (f"router{number:02}", 1)) for number in (1, 2, 3)))
# a leaf for storage with half of the uplinks stands beside eight for GPUs
OF_STORAGE = (("nas01 mlx5_0", 1), ("leaf99", 1)), (("leaf99", 40), ("spine01", 60))
STORAGE = beside(*OF_STORAGE, of=rail_optimised(nodes=4, hcas=8))


def halves() -> FabricFacts:
    found = mtus(4096)
    both = {key: replace(it, mtu=2048 << n % 2) for n, (key, it) in enumerate(found.records.items())}
    return replace(found, records=both)


def slow_host() -> Topology:
    topology = fat_tree(nodes=16)
    topology.slow(("gpu16 mlx5_0", 1))
    return topology


def links_of(of: Topology | FabricFacts) -> Verdict:
    """Judge links; the cables of a topology's nodes are judged with their node."""
    if not isinstance(of, Topology):
        return checks.switch_links(of, NO_NODES)
    return checks.switch_links(of.facts(), owned(of.facts(), of.ports()))


JUDGES: dict[str, Callable[[Any], Verdict]] = {
    "subnet_manager": checks.subnet_manager,
    "size": size_of,
    "switch_links": links_of,
    "switch_errors": lambda facts: checks.switch_errors(facts, owned(facts, small().ports())),
    "unique": lambda of: checks.unique(*of),
    "mtu": checks.mtu,
    "balance": balance_of,
    "routing": lambda of: checks.routing(replace(small().facts(), engine=of[0], configured=of[1])),
    "switch_firmware": checks.switch_firmware,
}
# of each machine what the check is given
ROWS: tuple[tuple[str, str, str, str, Callable[[], Any]], ...] = (
    ("subnet_manager", "a master and a standby", "opensm(8)", PASSED, lambda: managers(MASTER, STANDBY)),
    ("subnet_manager", "two masters by sm_key", "opensm(8)", CONFIGURE, lambda: managers(MASTER, MASTER)),
    ("subnet_manager", "no answer", "sminfo(8)", CONFIGURE, lambda: managers(missing="failed: query")),
    ("subnet_manager", "no tool", "Debian", NOT_CHECKED, lambda: managers(missing="sminfo is not on gpu01")),
    ("subnet_manager", "no state", "sminfo of OFED 1.x", NOT_CHECKED, managers),
    ("subnet_manager", "no master yet", "a sweep", CONFIGURE, lambda: managers("SMINFO_DISCOVER")),
    ("size", "no number is stated", "cluster file", NOT_APPLICABLE, lambda: (small(), None, {})),
    ("size", "as stated", "cluster file", PASSED, lambda: (small(), None, {"switches": 8, "links": 48})),
    ("size", "a link less", "cluster file", CONFIGURE, lambda: (UPLINK, None, {"links": 48})),
    ("size", "as in the last accepted run", "history", PASSED, lambda: (small(), small(), {})),
    ("size", "more than last time", "extension", PASSED, lambda: (STORAGE, small(), {})),
    ("size", "a host is off", "a repair", PASSED, lambda: (without(("gpu01 mlx5_0", 1)), small(), {})),
    ("size", "stated anew", "file", PASSED, lambda: (UPLINK, small(), {"switches": 8, "links": 47})),
    ("size", "a link less than last time", "history", CONFIGURE, lambda: (UPLINK, small(), {})),
    ("size", "a switch less than last time", "history", CONFIGURE, lambda: (small(), STORAGE, {})),
    ("switch_links", "all of 2 x NDR200", "split cables", WARNING, lambda: states(could_be="4X")),
    ("switch_links", "half of the links of each generation", "extension", PASSED, lambda: rates(slow=16)),
    ("switch_links", "a leaf of EDR behind HDR spines", "an extension", PASSED, lambda: older(rates(slow=8))),
    ("switch_links", "a slow link of an older leaf", "a cable", CONFIGURE, slow_at_an_older_leaf),
    ("switch_links", "a link at half speed", "a bad transceiver", CONFIGURE, lambda: rates(slow=1)),
    ("switch_links", "a link without lanes", "1x", CONFIGURE, lambda: rates(slow=1, speed="1xHDR")),
    ("switch_links", "a link that waits for its manager", "Init", CONFIGURE, lambda: states("Init")),
    ("switch_links", "silent port", "two GUIDs", WARNING, lambda: replace(small().facts(), ports=(SILENT,))),
    ("switch_links", "a slow host that is not tested", "a login node", WARNING, lambda: slow_host().facts()),
    ("switch_links", "a slow host under test", "ibfabric.cables", PASSED, slow_host),
    ("switch_errors", "a few symbol errors, as IBTA allows", "volume 2 of IBTA", PASSED, lambda: counted(9)),
    ("switch_errors", "errors of last year", "never cleared", WARNING, lambda: counted(0, before=900)),
    ("switch_errors", "a host was restarted", "log", PASSED, lambda: counted(0, DOWN, before=40, port=1)),
    ("switch_errors", "congestion", "an incast", WARNING, lambda: counted(900, "port_xmit_discards")),
    ("switch_errors", "FEC corrects everything", "ibdiagnet", PASSED, lambda: bits(1.5e-254, 0)),
    ("switch_errors", "one reading", "a lost host", NOT_CHECKED, lambda: replace(counted(0), after=None)),
    ("switch_errors", "symbol errors rise", "a dirty fibre", CONFIGURE, lambda: counted(400)),
    ("switch_errors", "the link went down", "a loose cable", CONFIGURE, lambda: counted(1, DOWN)),
    ("switch_errors", "errors after correction", "ibdiagnet", CONFIGURE, lambda: bits(3e-11, 812)),
    ("unique", "each its own", "healthy", PASSED, lambda: (lids(1, 2), small().ports())),
    ("unique", "no LIDs", "opensm does not run", PASSED, lambda: (lids(0, 0), {})),
    ("unique", "two ports with one LID", "a stale guid2lid", CONFIGURE, lambda: (lids(7, 7), {})),
    ("unique", "two nodes with one GUID", "a cloned adapter", CONFIGURE, lambda: (small().facts(), TWICE)),
    ("mtu", "2048 everywhere", "opensm's default partition", PASSED, lambda: mtus(2048, 2048)),
    ("mtu", "the manager shows some ports", "an old SA", NOT_CHECKED, lambda: mtus(4096, unknown=3)),
    ("mtu", "none is usual", "an upgrade", PASSED, halves),
    ("mtu", "one link with 2048", "partitions.conf", CONFIGURE, lambda: mtus(2048)),
    ("balance", "all leaves alike", "healthy", PASSED, small),
    ("balance", "a leaf for storage with one uplink", "DGX SuperPOD", PASSED, lambda: STORAGE),
    ("balance", "half of the uplinks", "an older switch", WARNING, lambda: HALF),
    ("balance", "one leaf", "a small cluster", NOT_APPLICABLE, lambda: rail_optimised(hcas=1, spines=0)),
    ("balance", "leaves at each other", "small", PASSED, lambda: rail_optimised(hcas=2, spines=0)),
    ("balance", "a leaf for management at one of four spines", "login nodes", WARNING, lambda: MANAGEMENT),
    ("balance", "all leaves but one have a router", "Q3400", PASSED, lambda: ROUTERS),
    ("balance", "many leaves lack an uplink", "a new cluster", CONFIGURE, lambda: TWO_MISSING),
    ("balance", "an uplink is missing", "a pulled cable", CONFIGURE, lambda: without(("leaf03", 34))),
    ("routing", "the log is not here", "UFM on another host", NOT_APPLICABLE, lambda: ("", "ftree")),
    ("routing", "as configured", "opensm.conf", PASSED, lambda: ("ar_updn", "AR_updn")),
    ("routing", "opensm.conf names none", "opensm(8)", NOT_APPLICABLE, lambda: ("minhop", "")),
    ("routing", "ftree fell back to minhop", "opensm(8)", CONFIGURE, lambda: ("minhop", "ftree")),
    ("switch_firmware", "ibdiagnet never ran", "Debian has none", NOT_APPLICABLE, lambda: small().facts()),
    ("switch_errors", "no ratio", "ibdiagnet", NOT_CHECKED, lambda: unread(33)),
    ("switch_errors", "no ratio at a host", "ibdiagnet", PASSED, lambda: unread(1)),
    ("switch_firmware", "no version", "ibdiagnet", NOT_CHECKED, lambda: unread(0)),
    ("switch_firmware", "alike", "healthy", PASSED, lambda: versions("31.1", "31.1", "31.1")),
    ("switch_firmware", "one is older", "UFM", CONFIGURE, lambda: versions("31.1", "31.0", "31.1")),
)


def verdict_of(check: str, given: Callable[[], Any]) -> Verdict:
    return JUDGES[check](given())


COUNTER_EXAMPLES = tuple(
    CounterExample(f"ibfabric.{it}", machine, source, word, partial(verdict_of, it, given), word not in STAYS)
    for it, machine, source, word, given in ROWS
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    """No finding of the subnet takes a node out of service."""
    assert_as_expected(example)
    assert not any(finding.action for finding in example.judged().findings)


def test_a_subnet_is_compared_with_itself() -> None:
    """The storage of a DGX SuperPOD has a fabric of its own, with fewer uplinks and of an older generation."""
    compute, storage = small(), Topology()
    for node in (1, 2, 3, 4):
        storage.connect((f"gpu{node:02} mlx5_8", 1), (f"store{1 + node % 2:02}", node))
    for leaf in (1, 2):
        storage.connect((f"store{leaf:02}", 33), ("core01", leaf))
        storage.slow((f"store{leaf:02}", 33))
    texts = [shown(subnet=(it.text(), 0)) for it in (compute, storage)]
    fabric = read_fabric("gpu01", "= port mlx5_8 1\n".join(texts), "")
    others = storage.ports()
    ports = {node: NodePorts((*its.ports, *others[node].ports)) for node, its in compute.ports().items()}
    assert len(fabric.parts) == 2
    for check in (checks.balance, checks.switch_links):
        assert judged(check(fabric, owned(fabric, ports))) == (PASSED, [])


def test_two_cables_with_one_guid_are_named() -> None:
    facts = small().facts()
    first, second, *others = facts.subnet.links
    links = (first, replace(second, a=replace(second.a, node_guid=first.a.node_guid)), *others)
    assert first.a.kind == "HCA"
    found = checks.unique(replace(facts, subnet=replace(facts.subnet, links=links)), {})
    twice = {f"{it.a.label} is at 2 cables" for it in (first, second)}
    assert {str(it.measured) for it in found.findings} == twice
