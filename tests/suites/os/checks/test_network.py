from __future__ import annotations

from typing import Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, result
from judged import figures, judged
from os_helpers import ALONE, PLAIN, peers

from pytest_gpucluster.config.models import Cluster, Group
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import network as checks
from pytest_gpucluster.suites.os.network_facts import (
    REACHED,
    UNKNOWN_NAME,
    Naming,
    Network,
    NetworkInterface,
    ReachabilityResult,
)

ETHER, SMALL = NetworkInterface("ether", 9000), NetworkInterface("ether", 1500)
IB = NetworkInterface("infiniband", 2044)


# --- names


def test_name_resolution_leaves_out_the_own_name_and_names_that_are_alike_nowhere() -> None:
    good = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    fleet = {"n1": {**good, "n1": "127.0.1.1"}, "n2": {**good, "n2": "127.0.1.1"}, "n3": good}
    fleet["n4"] = {"n1": "10.0.0.9", "n2": ""}
    norms = checks.resolved(fleet)
    assert judged(checks.name_resolution(fleet["n1"], "n1", norms)) == (PASSED, [])
    assert judged(checks.name_resolution(fleet["n4"], "n4", norms)) == (CONFIGURE, ["n1", "n2"])
    halves = {"n2": {"n1": "10.0.0.1"}, "n3": {"n1": ""}}
    assert judged(checks.name_resolution(halves["n3"], "n3", checks.resolved(halves))) == (CONFIGURE, ["n1"])
    for most in (peers("1", ""), ALONE):
        assert result(checks.name_resolution({"x": "1"}, "n1", {"x": most})) == NOT_APPLICABLE
    both = checks.name_resolution({"x": "1", "y": "3"}, "n1", {"x": peers("1", ""), "y": peers("3", "4")})
    assert judged(both) == (CONFIGURE, ["y"])


@pytest.mark.parametrize(
    ("mine", "theirs", "own", "expected"),
    [
        ("10.0.0.1", "10.0.0.1", (), PASSED),
        ("10.0.0.2", "10.0.0.1", (), CONFIGURE),
        ("10.0.0.2", "10.0.0.1", ("10.0.0.2", "10.0.0.3"), PASSED),
        ("10.0.0.2 10.0.0.4", "10.0.0.1", ("10.0.0.2",), CONFIGURE),
        ("fe80::1", "10.0.0.1", (), PASSED),  # the other family
        ("fe80::1", "10.0.0.1 fe80::2", (), PASSED),
        ("fe80::1", "fe80::2", (), CONFIGURE),
    ],
)
def test_an_address_is_wrong_if_it_is_neither_theirs_nor_the_nodes_own(
    mine: str, theirs: str, own: tuple[str, ...], expected: str
) -> None:
    networks = {"n9": Network({}, {"eno1": own})}
    verdict = checks.name_resolution({"n9": mine}, "n1", {"n9": peers(mine, theirs)}, networks)
    assert result(verdict) == expected


def test_a_handful_of_names_is_spread_over_the_cluster() -> None:
    for hosts, names in (("a[1-4] b[1-4]", "a1 a3 b1 b3"), ("a[1-9]", "a1 a4 a7"), ("a1", "a1")):
        groups = tuple(Group(nodes=one, profile=PLAIN) for one in hosts.split())
        assert checks.some_names(Cluster(name="c", groups=groups)) == tuple(names.split())


@pytest.mark.parametrize(
    ("seconds", "usual", "expected"),
    [
        (2.0, 0.0, PASSED),
        (2.1, 0.0, CONFIGURE),
        (2.5, 0.5, PASSED),
        (2.6, 0.5, CONFIGURE),
        (4.0, 1.5, PASSED),  # all are slow: the machine is loaded
        (4.9, 9.0, PASSED),
        (4.95, 2.0, CONFIGURE),
        (4.95, 2.1, CONFIGURE),
        (5.02, 4.91, CONFIGURE),  # all wait for a server that is dead
    ],
)
def test_names_at_their_bounds(seconds: float, usual: float, expected: str) -> None:
    verdict = checks.name_time(Naming(seconds), usual)
    assert result(verdict) == expected
    assert [(one.name, one.value) for one in verdict.metrics] == [("name_time", seconds)]
    if verdict.findings:
        assert ("half of the nodes" in verdict.findings[0].measured) is (usual > 2)
        assert ("site" in verdict.cause) is (usual > 4.9)


def test_the_usual_time_is_the_median() -> None:
    assert checks.usual_seconds({}) == 0.0
    assert checks.usual_seconds({"a": Naming(1.0), "b": Naming(2.0), "c": Naming(9.0)}) == 2.0


# --- interfaces


def of(*links: NetworkInterface | None) -> dict[str, Norm[Any]]:
    return {"eno1": norm({f"n{number}": link for number, link in enumerate(links, 1)})}


@pytest.mark.parametrize(
    ("mine", "usual", "stated", "expected", "parts"),
    [
        (SMALL, of(SMALL, ETHER, ETHER, ETHER), {}, CONFIGURE, ["MTU of eno1"]),
        (ETHER, of(ETHER, ETHER, SMALL), {}, PASSED, []),
        (ETHER, of(ETHER, IB, ETHER), {}, PASSED, []),
        (SMALL, of(SMALL, SMALL, ETHER, ETHER, None), {}, CONFIGURE, ["MTU of eno1"]),  # halves
        (SMALL, of(SMALL, ETHER, ETHER), {"eno1": 1500}, PASSED, []),
        (ETHER, of(ETHER, ETHER, ETHER), {"eno1": 1501}, CONFIGURE, ["MTU of eno1"]),
        (SMALL, {}, {"eno1": 9000, "ib0": 2044}, CONFIGURE, ["MTU of eno1", "ib0"]),
        # without a majority of its kind nobody is accused
        (None, of(None, ETHER, ETHER), {}, NOT_APPLICABLE, []),
        (ETHER, of(ETHER), {}, NOT_APPLICABLE, []),
        (SMALL, of(SMALL, IB, IB), {}, NOT_APPLICABLE, []),
        (ETHER, of(ETHER, ETHER, IB, IB), {}, NOT_APPLICABLE, []),
        (ETHER, of(ETHER, None), {}, NOT_APPLICABLE, []),
        (ETHER, {}, {}, NOT_APPLICABLE, []),
    ],
)
def test_the_mtu_of_an_interface(
    mine: NetworkInterface | None,
    usual: dict[str, Norm[Any]],
    stated: dict[str, int],
    expected: str,
    parts: list[str],
) -> None:
    verdict = checks.mtu(Network({"eno1": mine} if mine else {}), usual, stated)
    assert judged(verdict) == (expected, parts)
    measured = [("mtu", mine.mtu, "eno1")] if mine and expected != NOT_APPLICABLE else []
    assert [(it.name, it.value, it.device) for it in verdict.metrics] == measured
    assert all(figures(it.measured) == [mine.mtu] for it in verdict.findings[:1] if mine)


OF_CONTAINERS = (
    "lo veth0 docker0 br-1 virbr0 vnet1 tap0 tun0 wg0 cali1 cilium_x cni0 flannel.1 weave podman0 lxc1 lxdbr0 "
    "kube-ipvs0 nodelocaldns dummy0 vxlan1"
)


@pytest.mark.parametrize("name", OF_CONTAINERS.split())
def test_interfaces_of_containers_are_left_out(name: str) -> None:
    network = Network({name: ETHER, "lox": ETHER, "eno1": ETHER, "br0": ETHER}, {name: ("10.0.0.1",)})
    assert list(checks.links_of_all({"n1": network})) == ["br0", "eno1", "lox"]
    assert checks.owners({"n1": network}, {}).of == {}


# --- addresses


def test_whose_addresses_are() -> None:
    many = ("10.0.0.1", "127.0.0.1", "169.254.0.1", "1270.0.0.1")
    networks = {
        "n1": Network({}, {"eno1": many, "lox": ("10.0.0.9",)}),
        "n2": Network({}, {"eno1": ("10.0.0.1", "16.9.254.1")}),
    }
    found = checks.owners(networks, {"n1": Naming(0, ("10.0.0.1",))})
    assert found.nodes == 2
    assert found.of == {
        "10.0.0.1": {"n1": True, "n2": False},
        "1270.0.0.1": {"n1": False},
        "10.0.0.9": {"n1": False},
        "16.9.254.1": {"n2": False},
    }


HAS, HAS_NOT = True, False  # whether the name of the node means the address


@pytest.mark.parametrize(
    ("node", "having", "nodes", "named"),
    [
        ("n2", (HAS, HAS_NOT), 9, "also on n1; only the name of n1 resolves to it"),
        ("n2", (HAS, HAS_NOT), 2, "also on n1"),
        ("n1", (HAS, HAS_NOT), 9, ""),
        ("n7", (HAS, HAS_NOT), 9, ""),
        ("n1", (HAS, HAS), 9, "also on n2"),
        ("n1", (HAS_NOT, HAS_NOT), 9, "also on n2"),
        ("n1", (HAS_NOT,), 9, ""),
        ("n6", (HAS_NOT,) * 6, 12, "also on n1, n2, n3, n4"),
        ("n6", (HAS_NOT,) * 6, 11, ""),  # most nodes have it: a network inside each host
    ],
)
def test_an_address_on_several_nodes(node: str, having: tuple[bool, ...], nodes: int, named: str) -> None:
    own = {f"n{n}": mine for n, mine in enumerate(having, 1)}
    verdict = checks.addresses(node, checks.Owners({"10.0.0.9": {"n8": False}, "10.0.0.1": own}, nodes))
    assert judged(verdict) == ((CONFIGURE, ["10.0.0.1"]) if named else (PASSED, []))
    assert all(one.measured.startswith(named) for one in verdict.findings)


# --- ways


NO_ANSWER = "no answer within 5 s"
Ways = dict[tuple[int, int], str]


def ring(nodes: int, closed: Ways, *, told: int = 0, means: Ways | None = None) -> dict[str, Verdict]:
    """Judge a ring of nodes n1, n2, ... with addresses 10.1.0.N; `closed`: what came of ways; `told`: of how many."""
    found = {}
    for number in range(1, (told or nodes) + 1):
        found[f"n{number}"] = [
            ReachabilityResult(
                f"n{to}", (means or {}).get((number, to), f"10.1.0.{to}"), closed.get((number, to), REACHED)
            )
            for to in sorted({number % nodes + 1, (number - 2) % nodes + 1})
        ]
    networks = {f"n{number}": Network({}, {"eno1": (f"10.1.0.{number}",)}) for number in range(1, nodes + 1)}
    fleet = checks.reachability(found, networks)
    return {node: checks.reachable(node, fleet) for node in found}


def accused(verdicts: dict[str, Verdict]) -> list[str]:
    return [node for node, verdict in verdicts.items() if result(verdict) == CONFIGURE]


def at_fault(verdicts: dict[str, Verdict]) -> list[str]:
    return [node for node in accused(verdicts) if "not known" not in verdicts[node].cause]


INTO = {(1, 2): NO_ANSWER, (3, 2): "No route to host"}
OUT = {(2, 1): NO_ANSWER, (2, 3): NO_ANSWER}
ALL = [(n, to) for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)]


@pytest.mark.parametrize(
    ("nodes", "closed", "expected"),
    [
        (4, {}, ([], [])),
        *((nodes, ways, (["n2"], ["n2"])) for nodes in (3, 4, 9) for ways in (INTO, OUT, {**INTO, **OUT})),
        (9, dict.fromkeys([(1, 2), (3, 2), (2, 3), (4, 3)], NO_ANSWER), (["n2", "n3"], ["n2", "n3"])),
        # where one way alone is closed both ends are named, and none is to be at fault
        (2, {(1, 2): NO_ANSWER}, (["n1", "n2"], [])),
        (2, {(1, 2): NO_ANSWER, (2, 1): NO_ANSWER}, (["n1", "n2"], [])),
        (9, {(1, 2): NO_ANSWER}, (["n1", "n2"], [])),
        (4, dict.fromkeys(ALL, NO_ANSWER), (["n1", "n2", "n3", "n4"], [])),
    ],
)
def test_the_node_that_is_shut_is_named_alone(
    nodes: int, closed: Ways, expected: tuple[list[str], list[str]]
) -> None:
    verdicts = ring(nodes, closed)
    assert (accused(verdicts), at_fault(verdicts)) == expected


def test_the_parts_of_a_way_that_is_closed() -> None:
    one, shut = ring(9, {(1, 2): NO_ANSWER}), ring(9, INTO)
    assert judged(one["n1"]) == (CONFIGURE, ["to n2 (10.1.0.2)"])
    assert judged(one["n2"]) == (CONFIGURE, ["from n1"])
    assert judged(shut["n2"]) == (CONFIGURE, ["from n1", "from n3"])


def test_neither_a_dead_neighbour_nor_an_address_behind_a_translation_accuses_anyone() -> None:
    assert accused(ring(4, {(3, 4): NO_ANSWER, (1, 4): NO_ANSWER}, told=3)) == []
    assert accused(ring(4, {}, means={(1, 2): "192.0.2.2"})) == []


@pytest.mark.parametrize(("address", "outcome"), [("10.9.9.9", NO_ANSWER), ("10.1.0.4", REACHED)])
def test_a_wrong_name_is_the_fault_of_the_node_that_has_it(address: str, outcome: str) -> None:
    verdicts = ring(4, {(1, 2): outcome}, means={(1, 2): address})
    assert accused(verdicts) == at_fault(verdicts) == ["n1"]
    assert judged(verdicts["n1"]) == (CONFIGURE, ["n2"])


def test_an_address_that_all_nodes_take_for_a_node_s_is_no_fault_of_one_of_them() -> None:
    means = {(1, 2): "10.9.9.9", (3, 2): "10.9.9.9"}
    assert at_fault(ring(9, dict.fromkeys(means, NO_ANSWER), means=means)) == ["n2"]  # nobody reaches it
    assert at_fault(ring(2, {(1, 2): NO_ANSWER}, means=means)) == []


def test_names_that_one_node_lacks_are_its_fault_and_of_all_are_none() -> None:
    lacking = {(1, 2): UNKNOWN_NAME, (1, 4): UNKNOWN_NAME}
    verdicts = ring(4, lacking, means=dict.fromkeys(lacking, ""))
    assert (at_fault(verdicts), judged(verdicts["n1"])) == (["n1"], (CONFIGURE, ["n2", "n4"]))
    every = dict.fromkeys(ALL, UNKNOWN_NAME)
    verdicts = ring(4, every, means=dict.fromkeys(every, ""))
    assert {result(one) for one in verdicts.values()} == {NOT_APPLICABLE}


def test_the_owners_of_an_address_are_four_at_most() -> None:
    networks = {node: Network({}, {"eno1": ("1",)}) for node in "abcdef"}
    assert checks.reachability({"a": []}, networks).owners_of("1") == "a, b, c, d"
    assert checks.reachability({}, {"a": Network({}, {"x": ()})}).addresses == {}
