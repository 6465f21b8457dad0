"""Interfaces, addresses, names and systemd: who differs from the fleet, and who must not be accused."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks import os, os_network
from pytest_gpucluster.checks.verdict import Action, Outcome, Verdict
from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.errors import NotAvailable
from pytest_gpucluster.probes.base import Answer
from pytest_gpucluster.probes.os_network import NETWORK, Link, Naming, Network, naming
from pytest_gpucluster.probes.os_software import SYSTEM_STATE, SystemState

PLAIN = Profile(name="plain", description="of a test", source="none")
FOUR = ("n1", "n2", "n3", "n4")
# iproute2 6.1, a node with a bond, a container's bridge and InfiniBand
LINK = r"""1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000\    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
2: eno1: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:02 brd ff:ff:ff:ff:ff:ff
4: ib0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP mode DEFAULT group default qlen 256\    link/infiniband 00:00:10:29 brd 00:ff:ff:ff
5: bond0.12@bond0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
"""  # noqa: E501 - as it is
ADDRESS = r"""1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
5: bond0.12    inet 10.1.0.1/16 brd 10.1.255.255 scope global bond0.12\       valid_lft forever preferred_lft forever
"""


def _answer(out: str, rc: int = 0, err: str = "") -> Answer:
    return Answer("n1", rc, out.encode(), err.encode())


def _sections(**parts: str) -> str:
    return "".join(f"\x1e{name}\n{text}\x1e=0\n" for name, text in parts.items())


def test_interfaces_are_read_as_ip_writes_them() -> None:
    found = NETWORK.parse(_answer(_sections(link=LINK, addr=ADDRESS)))
    assert found.links == {
        "lo": Link("loopback", 65536),
        "eno1": Link("ether", 9000),
        "ib0": Link("infiniband", 2044),
        "bond0.12": Link("ether", 9000),
    }
    assert found.addresses == {"lo": ("127.0.0.1",), "bond0.12": ("10.1.0.1",)}
    with pytest.raises(NotAvailable):
        NETWORK.parse(_answer("\x1elink\nsh: ip: not found\n\x1e=127\n\x1eaddr\n\x1e=127\n"))


def _mtu(mine: dict[str, Link], *others: dict[str, Link]) -> Verdict:
    facts = {f"n{number}": Network(links) for number, links in enumerate((mine, *others), 1)}
    group = Group(nodes=f"n[1-{len(facts)}]", profile=PLAIN)
    peers = {name: links.of(group) for name, links in os_network.links_of_all(facts).items()}
    return os_network.mtu(facts["n1"], peers)


JUMBO, SMALL = {"eno1": Link("ether", 9000)}, {"eno1": Link("ether", 1500)}


def test_an_mtu_that_differs_from_most_is_found() -> None:
    verdict = _mtu(SMALL, JUMBO, JUMBO)
    assert [(one.part, one.measured) for one in verdict.findings] == [("MTU of eno1", "1500")]
    assert _mtu(JUMBO, JUMBO, SMALL).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "fleet",
    [
        (SMALL, JUMBO),  # one against one
        (SMALL, {"eno1": Link("infiniband", 4092)}, {"eno1": Link("infiniband", 4092)}),
        (SMALL, {"ib0": Link("infiniband", 2044)}, {"ib0": Link("infiniband", 2044)}),
        (SMALL, JUMBO, JUMBO, {}, {}, {}),  # most nodes have no such interface
        ({"veth12": Link("ether", 1500)}, {"veth12": Link("ether", 9000)}, {"veth12": Link("ether", 9000)}),
        ({}, JUMBO, JUMBO),
    ],
)
def test_an_mtu_without_a_majority_of_its_kind_accuses_nobody(fleet: tuple[dict[str, Link], ...]) -> None:
    assert _mtu(*fleet).outcome is Outcome.NOT_APPLICABLE


def _fleet(*addresses: str, own: dict[str, str] | None = None, interface: str = "eno1") -> dict[str, Verdict]:
    networks = {
        f"n{number}": Network({}, {interface: (address,)}) for number, address in enumerate(addresses, 1)
    }
    names = {node: Naming(0.0, (address,)) for node, address in (own or {}).items()}
    owners = os_network.owners(networks, names)
    return {node: os_network.addresses(node, owners) for node in networks}


def _accused(verdicts: dict[str, Verdict]) -> list[str]:
    return [node for node, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED]


def test_of_two_nodes_with_one_address_the_one_whose_name_means_it_is_left_alone() -> None:
    fleet = _fleet("10.1.0.1", "10.1.0.1", "10.1.0.3", own={"n1": "10.1.0.1", "n2": "10.1.0.2"})
    assert _accused(fleet) == ["n2"]
    assert fleet["n2"].action is Action.DRAIN
    assert fleet["n2"].findings[0].measured == "here and rightly (its name means it) on n1"


def test_where_no_name_tells_whose_an_address_is_both_are_named_and_none_is_to_be_drained() -> None:
    fleet = _fleet("10.1.0.1", "10.1.0.1", "10.1.0.3", "10.1.0.4")
    assert _accused(fleet) == ["n1", "n2"]
    assert {fleet[node].action for node in _accused(fleet)} == {Action.MONITOR}


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


def test_the_time_of_names_is_read_with_the_addresses_of_the_nodes_own() -> None:
    probe = naming(["gpu09"])
    told = probe.parse(_answer("10.1.0.1  gpu01.lab gpu01\n10.1.0.9 gpu09\ntook 100.50 105.52 0 gpu01\n"))
    assert told.seconds == pytest.approx(5.02)
    assert told.own == ("10.1.0.1",)
    assert probe.parse(_answer("took 100.50 120.50 124 gpu01\n")).seconds == pytest.approx(20)
    with pytest.raises(NotAvailable):
        probe.parse(_answer("took 1.0 1.0 127 gpu01\n", err="timeout: getent: not found"))


@pytest.mark.parametrize(
    ("seconds", "usual", "outcome"),
    [
        (5.02, 0.01, Outcome.FAILED),
        (1.9, 0.01, Outcome.PASSED),
        (5.02, 3.0, Outcome.PASSED),  # all are slow: the machine, or the site's name server
    ],
)
def test_slow_names_are_those_of_one_node(seconds: float, usual: float, outcome: Outcome) -> None:
    assert os_network.name_time(Naming(seconds), usual).outcome is outcome


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (_answer("running\n"), SystemState("running")),
        (_answer("degraded\n", 1), SystemState("degraded")),
        (_answer("offline\n", 1), SystemState("offline")),
        (
            _answer("", 1, "System has not been booted with systemd as init system (PID 1). Can't operate."),
            SystemState("offline"),
        ),
        (
            _answer("", 1, "Failed to connect to bus: Connection refused"),
            SystemState("", "Failed to connect to bus: Connection refused"),
        ),
        (_answer("", 124), SystemState("", "no answer within 10 s")),
    ],
)
def test_the_state_of_systemd_is_read(answer: Answer, state: SystemState) -> None:
    assert SYSTEM_STATE.parse(answer) == state


def test_a_systemd_that_we_may_not_ask_is_no_dead_one() -> None:
    with pytest.raises(NotAvailable):
        SYSTEM_STATE.parse(_answer("", 1, "Failed to query system state: Access denied"))


def _systemd(mine: SystemState, *others: SystemState) -> Verdict:
    facts = dict(zip(FOUR, (mine, *others), strict=False))
    return os.systemd(mine, os.Peers(facts).of(Group(nodes="n[1-4]", profile=PLAIN), "answers"))


UP, GONE = SystemState("running"), SystemState("", "Failed to connect to bus: Connection refused")


def test_a_dead_systemd_needs_others_that_answer() -> None:
    assert _systemd(GONE, UP, UP).outcome is Outcome.FAILED
    assert _systemd(GONE, GONE, UP).outcome is Outcome.NOT_CHECKED
    assert _systemd(GONE).outcome is Outcome.NOT_CHECKED
    assert _systemd(UP, GONE, GONE).outcome is Outcome.PASSED
    assert _systemd(SystemState("degraded"), UP, UP).outcome is Outcome.PASSED  # os.failed_units says more
    assert _systemd(SystemState("offline"), UP, UP).outcome is Outcome.NOT_APPLICABLE
    assert _systemd(SystemState("maintenance"), UP, UP).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("lost", "words", "action"),
    [
        (
            "its agent's task ended: Exited with exit code 1 (slurmstepd-gpu03: error: TaskProlog failed status=1)",
            "TaskProlog",
            Action.DRAIN,
        ),
        ("its slurmd starts no task (Connection refused): systemctl status slurmd", "slurmd", Action.DRAIN),
        ("its agent's task ended: Killed: look at slurmd's log there", "killed", Action.MONITOR),
        ("silent for 15 s: hung or unreachable; look at its console and slurmd", "hangs", Action.REBOOT),
    ],
)
def test_a_node_that_does_not_respond_is_told_why_and_what_to_do(
    lost: str, words: str, action: Action
) -> None:
    verdict = os.responds(Answer("n1", None), lost)
    assert words in verdict.cause
    assert verdict.action is action
    assert ("power-cycle" in verdict.hint) == (action is Action.REBOOT)
