from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from os_helpers import ALONE, MOST, PLAIN, failed, not_applicable, passed, peers, split

from pytest_gpucluster.config.models import Cluster, Group
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
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

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_name_resolution_leaves_out_the_own_name() -> None:
    good = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    fleet = {"n1": {**good, "n1": "127.0.1.1"}, "n2": {**good, "n2": "127.0.1.1"}, "n3": good, "n4": good}

    def judged(node: str, fleet: dict[str, dict[str, str]]) -> Verdict:
        return checks.name_resolution(fleet[node], node, checks.resolved(fleet))

    passed(judged("n1", fleet))
    odd = {**fleet, "n4": {"n1": "10.0.0.9", "n2": ""}}
    said = failed(judged("n4", odd), "n1", "n2")
    assert said == "10.0.0.9 | 10.0.0.1, as on 2 of 3 nodes"
    passed(judged("n3", odd))
    halves = {"n2": {"n1": "10.0.0.1"}, "n3": {"n1": ""}}
    assert "10.0.0.1 on n2, does not resolve on n3" in split(judged("n3", halves), "n1")
    nothing = {name: {"n1": "", "n2": ""} for name in fleet}
    assert not_applicable(judged("n1", nothing))


def test_a_handful_of_names_is_spread_over_the_cluster() -> None:
    def names(*hosts: str) -> tuple[str, ...]:
        groups = tuple(Group(nodes=one, profile=PLAIN) for one in hosts)
        return checks.some_names(Cluster(name="c", groups=groups))

    assert names("a[1-4]", "b[1-4]") == ("a1", "a3", "b1", "b3")
    assert names("a[1-9]") == ("a1", "a4", "a7")
    assert names("a1") == ("a1",)


def test_a_name_that_does_not_resolve_is_reported() -> None:
    fleet = {f"n{n}": {"x": "10.0.0.1"} for n in range(1, 4)} | {"n4": {"x": ""}}
    norms = checks.resolved(fleet)
    assert checks.name_resolution({"x": ""}, "n4", norms).findings == (
        Finding("x", "does not resolve", "10.0.0.1, as on 3 of 4 nodes"),
    )
    assert checks.name_resolution({"x": "10.0.0.1", "n1": "127.0.1.1"}, "n1", norms).outcome is Outcome.PASSED
    assert checks.resolved({"n1": {"n1": "127.0.1.1"}, "n2": {"n1": "10.0.0.1"}})["n1"].votes == (
        ("10.0.0.1", ("n2",)),
    )


def test_a_name_that_is_alike_nowhere_or_means_nothing_is_not_compared() -> None:
    halves = norm({"n1": "1", "n2": "2"})
    verdict = checks.name_resolution({"x": "1"}, "n1", {"x": halves})
    assert [it.action for it in verdict.findings] == [Action.CONFIGURE]
    for most in (peers("1", ""), ALONE):
        verdict = checks.name_resolution({"x": "1"}, "n1", {"x": most})
        assert (verdict.outcome, verdict.findings) == (Outcome.NOT_APPLICABLE, ())
    both = checks.name_resolution({"x": "1", "y": "3"}, "n1", {"x": peers("1", ""), "y": peers("3", "4")})
    assert both.findings == (Finding("y", "3", f"4, {MOST}"),)


def _mtu(
    mine: dict[str, NetworkInterface],
    *others: dict[str, NetworkInterface],
    stated: Mapping[str, int] = MappingProxyType({}),
) -> Verdict:
    facts = {f"n{number}": Network(links) for number, links in enumerate((mine, *others), 1)}
    group = Group(nodes=f"n[1-{len(facts)}]", profile=PLAIN)
    peers = {name: links.of(group) for name, links in checks.links_of_all(facts).items()}
    return checks.mtu(facts["n1"], peers, stated)


JUMBO, SMALL = {"eno1": NetworkInterface("ether", 9000)}, {"eno1": NetworkInterface("ether", 1500)}


def test_an_mtu_that_differs_from_most_is_found() -> None:
    verdict = _mtu(SMALL, JUMBO, JUMBO)
    assert [(one.part, one.measured) for one in verdict.findings] == [("MTU of eno1", "1500")]
    assert _mtu(JUMBO, JUMBO, SMALL).outcome is Outcome.PASSED


def test_stated_interfaces_are_up_with_their_mtu() -> None:
    stated = {"eno1": 9000, "ib0": 2044}
    both = {"eno1": NetworkInterface("ether", 9000), "ib0": NetworkInterface("infiniband", 2044)}
    assert checks.mtu(Network(both), {}, stated).outcome is Outcome.PASSED
    verdict = checks.mtu(Network({"eno1": NetworkInterface("ether", 1500)}), {}, stated)
    assert [(found.part, found.measured, found.expected) for found in verdict.findings] == [
        ("MTU of eno1", "1500", "9000"),
        ("ib0", "absent or down", "up, MTU 2044"),
    ]


def test_stated_mtu_takes_precedence_over_that_of_most_nodes() -> None:
    assert _mtu(SMALL, JUMBO, JUMBO, stated={"eno1": 1500}).outcome is Outcome.PASSED
    assert _mtu(JUMBO, JUMBO, JUMBO, stated={"eno1": 1500}).outcome is Outcome.FAILED


def test_an_mtu_of_one_against_one_names_both_and_drains_nobody() -> None:
    verdict = _mtu(SMALL, JUMBO)
    assert verdict.action is Action.CONFIGURE
    assert [(one.measured, one.expected) for one in verdict.findings] == [
        ("1500", "one value on all nodes of its group; no majority: 1500 on n1, 9000 on n2")
    ]


@pytest.mark.parametrize(
    "fleet",
    [
        (
            SMALL,
            {"eno1": NetworkInterface("infiniband", 4092)},
            {"eno1": NetworkInterface("infiniband", 4092)},
        ),
        (SMALL, {"ib0": NetworkInterface("infiniband", 2044)}, {"ib0": NetworkInterface("infiniband", 2044)}),
        (SMALL, JUMBO, JUMBO, {}, {}, {}),  # most nodes have no such interface
        (
            {"veth12": NetworkInterface("ether", 1500)},
            {"veth12": NetworkInterface("ether", 9000)},
            {"veth12": NetworkInterface("ether", 9000)},
        ),
        ({}, JUMBO, JUMBO),
    ],
)
def test_an_mtu_without_a_majority_of_its_kind_accuses_nobody(
    fleet: tuple[dict[str, NetworkInterface], ...],
) -> None:
    assert _mtu(*fleet).outcome is Outcome.NOT_APPLICABLE


def _fleet(*addresses: str, own: dict[str, str] | None = None, interface: str = "eno1") -> dict[str, Verdict]:
    networks = {
        f"n{number}": Network({}, {interface: (address,)}) for number, address in enumerate(addresses, 1)
    }
    names = {node: Naming(0.0, (address,)) for node, address in (own or {}).items()}
    owners = checks.owners(networks, names)
    return {node: checks.addresses(node, owners) for node in networks}


def _accused(verdicts: dict[str, Verdict]) -> list[str]:
    return [node for node, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED]


def test_of_two_nodes_with_one_address_the_one_whose_name_means_it_is_left_alone() -> None:
    fleet = _fleet("10.1.0.1", "10.1.0.1", "10.1.0.3", own={"n1": "10.1.0.1", "n2": "10.1.0.2"})
    assert _accused(fleet) == ["n2"]
    assert fleet["n2"].action is Action.CONFIGURE
    assert fleet["n2"].findings[0].measured == "also on n1; only the name of n1 resolves to it"


def test_where_no_name_tells_whose_an_address_is_both_are_named_and_none_is_to_be_at_fault() -> None:
    fleet = _fleet("10.1.0.1", "10.1.0.1", "10.1.0.3", "10.1.0.4")
    assert _accused(fleet) == ["n1", "n2"]
    assert {fleet[node].action for node in _accused(fleet)} == {Action.CONFIGURE}


@pytest.mark.parametrize(
    ("addresses", "interface"),
    [
        (("10.1.0.1", "10.1.0.2", "10.1.0.3"), "eno1"),
        (("172.17.0.1",) * 2 + ("10.1.0.3", "10.1.0.4"), "docker0"),
        (("169.254.3.1",) * 2 + ("10.1.0.3", "10.1.0.4"), "usb0"),
        (("192.168.9.1",) * 3 + ("10.1.0.4",), "bmc0"),  # a network inside each host, down on one
        (("127.0.1.1",) * 2 + ("10.1.0.3", "10.1.0.4"), "eno1"),
    ],
)
def test_addresses_that_every_host_may_have_accuse_nobody(addresses: tuple[str, ...], interface: str) -> None:
    assert _accused(_fleet(*addresses, interface=interface)) == []


def test_a_dead_name_server_of_all_is_no_fault_of_a_node() -> None:
    verdict = checks.name_time(Naming(10.02), 10.01)
    assert verdict.action is Action.CONFIGURE
    assert "name server of the site" in verdict.cause
    assert "half of the nodes need 10.0 s or more" in verdict.findings[0].measured
    assert "site" not in checks.name_time(Naming(10.02), 0.01).cause


@pytest.mark.parametrize(
    ("seconds", "usual", "outcome"),
    [
        (5.02, 0.01, Outcome.FAILED),
        (1.9, 0.01, Outcome.PASSED),
        (4.0, 1.5, Outcome.PASSED),  # all are slow: the machine is loaded
        (5.02, 5.01, Outcome.FAILED),  # all wait for a server that is dead
    ],
)
def test_slow_names_are_those_of_one_node(seconds: float, usual: float, outcome: Outcome) -> None:
    assert checks.name_time(Naming(seconds), usual).outcome is outcome


NO_ANSWER = "no answer within 5 s"


def _ring(
    nodes: int,
    closed: dict[tuple[int, int], str],
    *,
    told: int = 0,
    means: dict[tuple[int, int], str] | None = None,
) -> dict[str, Verdict]:
    """Judge a ring of nodes n1, n2, ... with addresses 10.1.0.N; `closed`: what came of ways; `told`: of how many."""
    of = {}
    for number in range(1, (told or nodes) + 1):
        pair = {number % nodes + 1, (number - 2) % nodes + 1}
        of[f"n{number}"] = [
            ReachabilityResult(
                f"n{to}", (means or {}).get((number, to), f"10.1.0.{to}"), closed.get((number, to), REACHED)
            )
            for to in sorted(pair)
        ]
    networks = {f"n{number}": Network({}, {"eno1": (f"10.1.0.{number}",)}) for number in range(1, nodes + 1)}
    fleet = checks.reachability(of, networks)
    return {node: checks.reachable(node, fleet) for node in of}


def _at_fault(verdicts: dict[str, Verdict]) -> list[str]:
    assert all(
        verdict.action is Action.CONFIGURE for verdict in verdicts.values()
    )  # firewalls, routes, names
    return [node for node in _accused(verdicts) if "not known" not in verdicts[node].cause]


def test_a_ring_without_trouble_passes() -> None:
    assert _accused(_ring(4, {})) == []
    assert {one.outcome for one in _ring(4, {}).values()} == {Outcome.PASSED}


@pytest.mark.parametrize("nodes", [3, 4, 9])
def test_a_node_that_nobody_reaches_or_that_reaches_nobody_is_named_alone(nodes: int) -> None:
    into = {(1, 2): NO_ANSWER, (3, 2): "No route to host"}
    out = {(2, 1): NO_ANSWER, (2, 3): NO_ANSWER}
    for closed in (into, out, {**into, **out}):
        assert _accused(_ring(nodes, closed)) == _at_fault(_ring(nodes, closed)) == ["n2"]


def test_two_neighbours_that_are_both_shut_are_both_named_and_no_others() -> None:
    closed = dict.fromkeys([(1, 2), (3, 2), (2, 3), (4, 3)], NO_ANSWER)
    assert _at_fault(_ring(9, closed)) == _accused(_ring(9, closed)) == ["n2", "n3"]


@pytest.mark.parametrize("nodes", [2, 9])
def test_where_one_way_alone_is_closed_both_ends_are_named_and_none_is_to_be_at_fault(nodes: int) -> None:
    verdicts = _ring(nodes, {(1, 2): NO_ANSWER})
    assert _accused(verdicts) == ["n1", "n2"]
    assert _at_fault(verdicts) == []
    assert verdicts["n1"].findings[0].measured == NO_ANSWER
    assert "not known" in verdicts["n2"].cause


def test_where_no_way_is_open_no_node_is_to_be_at_fault() -> None:
    closed = {(n, to): NO_ANSWER for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)}
    assert _at_fault(_ring(4, closed)) == []
    assert len(_accused(_ring(4, closed))) == 4


def test_a_node_that_is_dead_accuses_no_neighbour() -> None:
    verdicts = _ring(4, {(3, 4): NO_ANSWER, (1, 4): NO_ANSWER}, told=3)
    assert _accused(verdicts) == []


@pytest.mark.parametrize(("address", "outcome"), [("10.9.9.9", NO_ANSWER), ("10.1.0.4", REACHED)])
def test_a_wrong_name_is_the_fault_of_the_node_that_has_it(address: str, outcome: str) -> None:
    verdicts = _ring(4, {(1, 2): outcome}, means={(1, 2): address})
    assert _accused(verdicts) == _at_fault(verdicts) == ["n1"]
    assert f"resolves to {address} here" in verdicts["n1"].findings[0].measured


def test_an_address_that_all_nodes_take_for_a_node_s_is_no_fault_of_one_of_them() -> None:
    means = {(1, 2): "10.9.9.9", (3, 2): "10.9.9.9"}
    assert _at_fault(_ring(9, dict.fromkeys(means, NO_ANSWER), means=means)) == ["n2"]  # nobody reaches it
    assert _at_fault(_ring(2, {(1, 2): NO_ANSWER}, means=means)) == []


def test_an_address_that_a_node_has_behind_a_translation_is_its_own() -> None:
    assert _accused(_ring(4, {}, means={(1, 2): "192.0.2.2"})) == []


def test_names_that_one_node_lacks_are_its_fault_and_of_all_are_none() -> None:
    lacking = {(1, 2): UNKNOWN_NAME, (1, 4): UNKNOWN_NAME}
    assert _at_fault(_ring(4, lacking, means=dict.fromkeys(lacking, ""))) == ["n1"]
    every = {(n, to): UNKNOWN_NAME for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)}
    verdicts = _ring(4, every, means=dict.fromkeys(every, ""))
    assert {one.outcome for one in verdicts.values()} == {Outcome.NOT_APPLICABLE}


@pytest.mark.parametrize(
    ("mine", "theirs", "own", "wrong"),
    [
        ("10.0.0.1", "10.0.0.1", (), False),
        ("10.0.0.2", "10.0.0.1", (), True),
        ("10.0.0.2", "10.0.0.1", ("10.0.0.2",), False),
        ("10.0.0.2", "10.0.0.1", ("10.0.0.2", "10.0.0.3"), False),
        ("10.0.0.2 10.0.0.4", "10.0.0.1", ("10.0.0.2",), True),
        ("fe80::1", "10.0.0.1", (), False),  # the other family
        ("fe80::1", "10.0.0.1 fe80::2", (), False),
        ("fe80::1", "fe80::2", (), True),
        ("", "10.0.0.1", (), True),
        ("10.0.0.1", "", (), True),
        ("", "", (), False),
    ],
)
def test_an_address_is_wrong_if_it_is_neither_theirs_nor_the_nodes_own(
    mine: str, theirs: str, own: tuple[str, ...], *, wrong: bool
) -> None:
    assert checks._wrong_address(mine, theirs, own) is wrong
