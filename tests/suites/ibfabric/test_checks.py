"""Checks of the subnet as a whole, on made-up fabrics and on fabrics that were considered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
from ibfabric_helpers import Topology, fat_tree, rail_optimised, shown
from judged import judged

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.suites.ibfabric import checks
from pytest_gpucluster.suites.ibfabric.checks import mtu, routing, subnet_manager, switch_firmware, unique
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
    from collections.abc import Callable, Mapping

NO_NODES = Owned({})
MASTER, STANDBY = "SMINFO_MASTER", "SMINFO_STANDBY"
OPENSM = "opensm(8)"


def small() -> Topology:
    return rail_optimised(nodes=4, hcas=4)


def managers(*states: str) -> FabricFacts:
    found = tuple(Manager(number, f"{number:016x}", state) for number, state in enumerate(states))
    return replace(small().facts(), managers=found)


def rates(*, slow: int, speed: str = "4xEDR", of: Topology | None = None) -> FabricFacts:
    """Return a fabric of which the first uplinks have another rate."""
    topology = of or small()
    ends = [end for end in topology.peers if end[0].startswith("leaf") and end[1] > 32]
    for end in ends[:slow]:
        topology.slow(end, speed)
    return topology.facts()


def slower(leaf: str) -> Topology:
    """Return a fabric in which a leaf has links of 100 Gb/s."""
    topology = small()
    for end in [end for end in topology.peers if end[0] == leaf and end[1] > 32]:
        topology.slow(end)
    return topology


def states(facts: FabricFacts, state: str = "Active", could_be: str = "") -> FabricFacts:
    """Return a fabric with this state of its first link between switches, and what all could be."""
    links = list(facts.subnet.links)
    first = next(number for number, link in enumerate(links) if link.between_switches)
    links[first] = replace(links[first], state=state)
    links = [replace(link, could_be=could_be) for link in links]
    return replace(facts, subnet=replace(facts.subnet, links=tuple(links)))


def older(facts: FabricFacts, *leaves: str) -> FabricFacts:
    """Return the fabric in which these leaves are switches of another model."""
    devices = tuple(replace(it, device_id="cf08") if it.node in leaves else it for it in facts.subnet.devices)
    return replace(facts, subnet=replace(facts.subnet, devices=devices))


def counted(
    rise: int, counter: str = "symbol_error", *, before: int = 0, seconds: float = 5.0, port: int = 33
) -> FabricFacts:
    """Return a fabric of which an uplink of leaf01, or another port, has counted."""
    topology = small()
    key = topology.guid("leaf01"), port
    readings = Readings(0.0, {key: {counter: before}}), Readings(seconds, {key: {counter: before + rise}})
    return replace(topology.facts(), before=readings[0], after=readings[1])


def bits(symbol: float, errors: int) -> FabricFacts:
    found = counted(0)
    return replace(found, bit_errors={(small().guid("leaf01"), 33): BitErrors("STD-RS", 0.0, symbol, errors)})


def lids(*pairs: tuple[str, int]) -> FabricFacts:
    ports = tuple(PortState(guid, 1, f"gpu{guid}", lid, "Active", "LinkUp") for guid, lid in pairs)
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


def balance_of(topology: Topology) -> Verdict:
    facts = topology.facts()
    tested = {node: ports for node, ports in topology.ports().items() if node.startswith("gpu")}
    return checks.balance(facts, owned(facts, tested))


def two_missing() -> Topology:
    """Half of four leaves lack an uplink, to different spines."""
    return without(("leaf01", 33), ("leaf02", 35))


def with_management(spines: int) -> Topology:
    """A leaf of a login node is connected to some of the four spines."""
    topology = small()
    topology.connect(("gpu99 mlx5_0", 1), ("leaf99", 1))
    for number in range(spines):
        topology.connect(("leaf99", 33 + number), (f"spine{number + 1:02}", 60))
    return topology


def with_routers(topology: Topology) -> Verdict:
    """Judge the balance where each leaf but one has a link to a router beside it."""
    for number in (1, 2, 3):
        topology.connect((f"leaf{number:02}", 64), (f"router{number:02}", 1))
    facts = topology.facts()
    links = tuple(
        replace(it, z=replace(it.z, kind="router")) if it.z.node.startswith("router") else it
        for it in facts.subnet.links
    )
    facts = replace(facts, subnet=replace(facts.subnet, links=links))
    return checks.balance(facts, owned(facts, small().ports()))


def routed(engine: str, configured: str = "") -> FabricFacts:
    return replace(small().facts(), engine=engine, configured=configured)


def versions(*found: str, board: str = "MT_0000000556") -> FabricFacts:
    facts = small().facts()
    known = zip((it.guid for it in facts.subnet.switches), found, strict=False)
    return replace(facts, firmware={guid: (board, version) for guid, version in known})


def size_of(topology: Topology, before: Topology | None = None, **stated: int) -> Verdict:
    """Judge a fabric; `before`: that of the last accepted run."""
    earlier = checks.size(before.facts(), IbFabricConfig(), {}).metrics if before else ()
    return checks.size(topology.facts(), IbFabricConfig(**stated), {it.name: it.value for it in earlier})


def links_of(facts: FabricFacts) -> Verdict:
    return checks.switch_links(facts, NO_NODES)


def errors_of(facts: FabricFacts) -> Verdict:
    return checks.switch_errors(facts, owned(facts, small().ports()))


def two_tier_with_storage() -> Topology:
    """A leaf for storage with half of the uplinks stands beside eight for GPUs."""
    topology = rail_optimised(nodes=4, hcas=8)
    topology.connect(("nas01 mlx5_0", 1), ("leaf99", 1))
    topology.connect(("leaf99", 40), ("spine01", 60))
    return topology


ROWS: dict[str, tuple[tuple[str, str, str, Callable[[], Verdict]], ...]] = {
    "subnet_manager": (
        ("a master and a standby", OPENSM, PASSED, lambda: subnet_manager(managers(MASTER, STANDBY))),
        ("a managed switch", "Quantum manual", PASSED, lambda: subnet_manager(managers(MASTER))),
        ("two masters by sm_key", OPENSM, CONFIGURE, lambda: subnet_manager(managers(MASTER, MASTER))),
        (
            *("no manager answers", "sminfo(8)", CONFIGURE),
            lambda: subnet_manager(replace(managers(), missing={"managers": "sminfo: failed: query"})),
        ),
        (
            *("sminfo is not installed", "a partial package", NOT_CHECKED),
            lambda: subnet_manager(replace(managers(), missing={"managers": "sminfo is not on gpu01"})),
        ),
        ("no state", "sminfo of OFED 1.x", NOT_CHECKED, lambda: subnet_manager(managers())),
    ),
    "size": (
        ("no number is stated", "cluster file", NOT_APPLICABLE, lambda: size_of(small())),
        ("the stated numbers", "cluster file", PASSED, lambda: size_of(small(), switches=8, links=48)),
        ("a link less", "cluster file", CONFIGURE, lambda: size_of(without(("leaf01", 33)), links=48)),
        ("as in the last accepted run", "history", PASSED, lambda: size_of(small(), before=small())),
        (
            *("more than last time", "extension", PASSED),
            lambda: size_of(two_tier_with_storage(), before=rail_optimised(nodes=4, hcas=8)),
        ),
        ("a host is off", "a repair", PASSED, lambda: size_of(without(("gpu01 mlx5_0", 1)), before=small())),
        (
            *("stated after a change", "file", PASSED),
            lambda: size_of(without(("leaf01", 33)), before=small(), switches=8, links=47),
        ),
        (
            *("a link less than last time", "history", CONFIGURE),
            lambda: size_of(without(("leaf01", 33)), before=small()),
        ),
        (
            *("a switch less than in the last accepted run", "history", CONFIGURE),
            lambda: size_of(rail_optimised(nodes=4, hcas=4, spines=3), before=small()),
        ),
    ),
    "switch_links": (
        ("all alike", "fat tree", PASSED, lambda: links_of(small().facts())),
        (
            *("all of 2 x NDR200", "split cables", WARNING),
            lambda: links_of(states(small().facts(), could_be="4X")),
        ),
        ("two generations, half of the links each", "an extension", PASSED, lambda: links_of(rates(slow=16))),
        (
            *("a leaf of an older generation", "EDR behind HDR spines", PASSED),
            lambda: links_of(older(rates(slow=8), "leaf01")),
        ),
        (
            *("a link of an older leaf that is slower than its others", "a bad transceiver", CONFIGURE),
            lambda: links_of(older(rates(slow=1, speed="4xDDR", of=slower("leaf01")), "leaf01")),
        ),
        ("a link at half speed", "a bad transceiver", CONFIGURE, lambda: links_of(rates(slow=1))),
        ("a link without lanes", "1x", CONFIGURE, lambda: links_of(rates(slow=1, speed="1xHDR"))),
        (
            *("a link that waits for its manager", "Init", CONFIGURE),
            lambda: links_of(states(small().facts(), "Init")),
        ),
    ),
    "switch_errors": (
        ("no error", "healthy", PASSED, lambda: errors_of(counted(0))),
        ("a few symbol errors, as IBTA allows", "volume 2 of IBTA", PASSED, lambda: errors_of(counted(9))),
        ("errors of last year", "never cleared", WARNING, lambda: errors_of(counted(0, before=900))),
        (
            *("a host was restarted", "never cleared", PASSED),
            lambda: errors_of(counted(0, "link_downed", before=40, port=1)),
        ),
        (
            *("discards by congestion", "an incast", WARNING),
            lambda: errors_of(counted(900, "port_xmit_discards")),
        ),
        ("FEC corrects everything", "ibdiagnet", PASSED, lambda: errors_of(bits(1.5e-254, 0))),
        (
            *("the counters were read once", "a lost host", NOT_CHECKED),
            lambda: errors_of(replace(counted(0), after=None)),
        ),
        ("symbol errors rise", "a dirty fibre", CONFIGURE, lambda: errors_of(counted(400))),
        ("the link went down", "a loose cable", CONFIGURE, lambda: errors_of(counted(1, "link_downed"))),
        ("errors after correction", "ibdiagnet", CONFIGURE, lambda: errors_of(bits(3e-11, 812))),
    ),
    "unique": (
        ("each its own", "healthy", PASSED, lambda: unique(lids(("1", 1), ("2", 2)), small().ports())),
        ("no LIDs", "opensm does not run", PASSED, lambda: unique(lids(("1", 0), ("2", 0)), {})),
        (
            *("two ports with one LID", "a stale guid2lid", CONFIGURE),
            lambda: unique(lids(("1", 7), ("2", 7)), {}),
        ),
        (
            *("two nodes with one GUID", "a cloned adapter", CONFIGURE),
            lambda: unique(small().facts(), {**small().ports(), "gpu99": small().ports()["gpu01"]}),
        ),
    ),
    "mtu": (
        ("4096 everywhere", "healthy", PASSED, lambda: mtu(mtus(4096))),
        ("2048 everywhere", "opensm's default partition", PASSED, lambda: mtu(mtus(2048, 2048))),
        ("the manager shows some of the ports", "an old SA", NOT_CHECKED, lambda: mtu(mtus(4096, unknown=3))),
        ("one link with 2048", "partitions.conf", CONFIGURE, lambda: mtu(mtus(2048))),
    ),
    "balance": (
        ("all leaves alike", "healthy", PASSED, lambda: balance_of(small())),
        (
            *("a leaf for storage with one uplink", "DGX SuperPOD", PASSED),
            lambda: balance_of(two_tier_with_storage()),
        ),
        (
            *("half of the uplinks", "an older switch", WARNING),
            lambda: balance_of(without(*(("leaf02", port) for port in (33, 35, 37, 39)))),
        ),
        ("one leaf", "a small cluster", NOT_APPLICABLE, lambda: balance_of(rail_optimised(hcas=1, spines=0))),
        (
            *("two leaves at each other", "a small cluster", PASSED),
            lambda: balance_of(rail_optimised(hcas=2, spines=0)),
        ),
        (
            *("a leaf for management at one of four spines", "login nodes", WARNING),
            lambda: balance_of(with_management(1)),
        ),
        ("all leaves but one have a router", "Q3400", PASSED, lambda: with_routers(small())),
        (
            *("uplinks are missing at half of the leaves", "a new cluster", CONFIGURE),
            lambda: balance_of(two_missing()),
        ),
        (
            *("an uplink is missing", "a cable that was pulled", CONFIGURE),
            lambda: balance_of(without(("leaf03", 34))),
        ),
    ),
    "routing": (
        (
            *("the log is not here", "UFM on another host", NOT_APPLICABLE),
            lambda: routing(routed(""), IbFabricConfig()),
        ),
        (
            *("as configured", "opensm.conf", PASSED),
            lambda: routing(routed("ar_updn", "ar_updn"), IbFabricConfig()),
        ),
        (
            *("stated, and no log here", "cluster file", NOT_CHECKED),
            lambda: routing(routed(""), IbFabricConfig(routing="ftree")),
        ),
        (
            *("ftree fell back to minhop", OPENSM, CONFIGURE),
            lambda: routing(routed("minhop", "ftree"), IbFabricConfig()),
        ),
    ),
    "switch_firmware": (
        ("ibdiagnet never ran", "Debian has none", NOT_APPLICABLE, lambda: switch_firmware(small().facts())),
        ("alike", "healthy", PASSED, lambda: switch_firmware(versions("31.1", "31.1", "31.1"))),
        (
            *("one was left out of an update", "UFM", CONFIGURE),
            lambda: switch_firmware(versions("31.1", "31.0", "31.1")),
        ),
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
    ports = {
        node: NodePorts((*its.ports, *storage.ports()[node].ports)) for node, its in compute.ports().items()
    }
    assert len(fabric.parts) == 2
    for check in (checks.balance, checks.switch_links):
        verdict = check(fabric, owned(fabric, ports))
        assert (verdict.findings, verdict.advisories) == ((), ())


def test_no_finding_of_the_subnet_takes_a_node_out_of_service() -> None:
    sick = [example.judged() for example in COUNTER_EXAMPLES if example.sick]
    assert not any(finding.action for verdict in sick for finding in verdict.findings)


def named(verdict: Verdict) -> Mapping[str, str]:
    return {it.part: f"{it.measured}, expected {it.expected}" for it in verdict.findings}


def test_a_slow_uplink_is_named_by_both_ends() -> None:
    assert named(links_of(rates(slow=1))) == {
        "leaf01 port 33 - spine01 port 1": "4x EDR (100 Gb/s), expected 200 Gb/s, as on 31 of 32 links"
    }


def test_cables_of_hosts_that_are_not_tested_are_warnings() -> None:
    topology = small()
    topology.slow(("gpu04 mlx5_1", 1))
    ports = {node: it for node, it in topology.ports().items() if node != "gpu04"}
    facts = topology.facts()
    verdict = checks.switch_links(facts, owned(facts, ports))
    assert verdict.outcome is Outcome.PASSED
    assert [it.part for it in verdict.advisories] == ["gpu04 mlx5_1 - leaf02 port 4"]
    fleet = fat_tree(nodes=16)
    fleet.slow(("gpu16 mlx5_0", 1))
    facts = fleet.facts()
    verdict = checks.switch_links(facts, NO_NODES)
    assert [it.part for it in verdict.advisories] == ["gpu16 mlx5_0 - leaf04 port 4"]


def test_the_uplink_that_is_missing_is_told_by_where_the_others_go() -> None:
    assert named(balance_of(without(("leaf03", 34), ("leaf03", 35)))) == {
        "leaf leaf03": "6 uplinks (1 to spine01, 1 to spine02, else 2), expected 8, as on 3 of 4 leaves"
    }


def test_uplinks_that_are_missing_at_many_leaves_are_told_by_the_switch_above() -> None:
    assert named(balance_of(two_missing())) == {
        "leaf leaf01": "7 uplinks (1 to spine01, else 2), expected 2 to each, as on 3 of 4 leaves",
        "leaf leaf02": "7 uplinks (1 to spine02, else 2), expected 2 to each, as on 3 of 4 leaves",
    }


def test_two_cables_with_one_guid_are_named() -> None:
    facts = small().facts()
    first, second, *others = facts.subnet.links
    links = (first, replace(second, a=replace(second.a, node_guid=first.a.node_guid)), *others)
    assert first.a.kind == "HCA"
    found = checks.unique(replace(facts, subnet=replace(facts.subnet, links=links)), {})
    assert {it.measured for it in found.findings} == {
        f"{end.label} is at 2 cables" for end in (first.a, second.a)
    }


def test_a_port_whose_other_end_does_not_answer_is_a_warning() -> None:
    port = PortState("1", 7, "leaf01", 3, "Active", "LinkUp", answered=False)
    assert judged(links_of(replace(small().facts(), ports=(port,)))) == (WARNING, ["leaf01 port 7"])


def test_where_no_mtu_is_usual_none_is_wrong() -> None:
    found = mtus(4096)
    both = {
        key: replace(it, mtu=2048 << number % 2) for number, (key, it) in enumerate(found.records.items())
    }
    assert judged(checks.mtu(replace(found, records=both))) == (PASSED, [])


def test_the_number_of_devices_is_measured_without_a_stated_one() -> None:
    verdict = size_of(small())
    assert {it.name: it.value for it in verdict.metrics} == {
        "hcas": 16,
        "switches": 8,
        "links": 48,
        "links_between_switches": 32,
    }
    assert "8 switches and 48 links" in verdict.reason
