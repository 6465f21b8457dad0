"""Interfaces, addresses, names and systemd: who differs from the fleet, and who must not be accused."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from os import environ
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.core.check import Action, Outcome, Verdict
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os import checks as os
from pytest_gpucluster.suites.os import network as os_network
from pytest_gpucluster.suites.os.network_facts import (
    NETWORK,
    REACHED,
    UNKNOWN_NAME,
    Naming,
    Network,
    NetworkInterface,
    ReachabilityResult,
    naming,
    reach,
    rings,
)
from pytest_gpucluster.suites.os.software_facts import SYSTEM_STATE, SystemState

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = Profile(name="plain", description="of a test", source="none")
FOUR = ("n1", "n2", "n3", "n4")
# iproute2 6.1, a node with a bond, a container's bridge and InfiniBand
LINK = r"""1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000\    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
2: eno1: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:02 brd ff:ff:ff:ff:ff:ff
4: ib0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP mode DEFAULT group default qlen 256\    link/infiniband 00:00:10:29 brd 00:ff:ff:ff
5: bond0.12@bond0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
"""  # as it is
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
        "lo": NetworkInterface("loopback", 65536),
        "eno1": NetworkInterface("ether", 9000),
        "ib0": NetworkInterface("infiniband", 2044),
        "bond0.12": NetworkInterface("ether", 9000),
    }
    assert found.addresses == {"lo": ("127.0.0.1",), "bond0.12": ("10.1.0.1",)}
    with pytest.raises(NotAvailable):
        NETWORK.parse(_answer("\x1elink\nsh: ip: not found\n\x1e=127\n\x1eaddr\n\x1e=127\n"))


def _mtu(mine: dict[str, NetworkInterface], *others: dict[str, NetworkInterface]) -> Verdict:
    facts = {f"n{number}": Network(links) for number, links in enumerate((mine, *others), 1)}
    group = Group(nodes=f"n[1-{len(facts)}]", profile=PLAIN)
    peers = {name: links.of(group) for name, links in os_network.links_of_all(facts).items()}
    return os_network.mtu(facts["n1"], peers)


JUMBO, SMALL = {"eno1": NetworkInterface("ether", 9000)}, {"eno1": NetworkInterface("ether", 1500)}


def test_an_mtu_that_differs_from_most_is_found() -> None:
    verdict = _mtu(SMALL, JUMBO, JUMBO)
    assert [(one.part, one.measured) for one in verdict.findings] == [("MTU of eno1", "1500")]
    assert _mtu(JUMBO, JUMBO, SMALL).outcome is Outcome.PASSED


def test_an_mtu_of_one_against_one_names_both_and_drains_nobody() -> None:
    verdict = _mtu(SMALL, JUMBO)
    assert verdict.action is Action.MONITOR
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


@pytest.mark.parametrize("always", [False, True])
def test_names_that_are_slow_once_are_asked_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    always: bool,
) -> None:
    getent = tmp_path / "getent"
    slow = "sleep 2.1" if always else '[ -e "$0.asked" ] || sleep 2.1'
    getent.write_text(f'#!/bin/sh\n{slow}\necho "$@" >>"$0.asked"\necho 10.1.0.1 gpu01\n')
    getent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    done = subprocess.run(["sh", "-c", naming([]).command], capture_output=True, text=True, check=True)
    told = naming([]).parse(_answer(done.stdout))
    assert (told.seconds > 2) is always, "the second time counts"
    assert told.own == ("10.1.0.1",)
    assert (tmp_path / "getent.asked").read_text() == "hosts gpu01\n" * 2


def test_a_dead_name_server_of_all_is_no_fault_of_a_node() -> None:
    verdict = os_network.name_time(Naming(10.02), 10.01)
    assert verdict.action is Action.MONITOR
    assert "name server of the site" in verdict.cause
    assert "half of the nodes need 10.0 s or more" in verdict.findings[0].measured
    assert "site" not in os_network.name_time(Naming(10.02), 0.01).cause


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
    assert os_network.name_time(Naming(seconds), usual).outcome is outcome


NO_ANSWER = "no answer within 5 s"


def test_each_node_takes_its_neighbours_of_its_own_group() -> None:
    ring = rings((["a", "b", "c"], ["x", "y"], ["alone"]))
    assert ring == "c a b c a y x y x"
    told = {}
    for node in ("a", "b", "c", "x", "y"):
        env = {"SLURMD_NODENAME": node, "PATH": environ["PATH"]}
        answer = subprocess.run(
            ["sh", "-c", reach(ring).command], env=env, capture_output=True, check=True, timeout=60
        )
        told[node] = sorted(line.split()[1] for line in answer.stdout.decode().splitlines())
    assert told == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"], "x": ["y"], "y": ["x"]}
    answer = subprocess.run(
        ["sh", "-c", reach(ring).command],
        env={**env, "SLURMD_NODENAME": "z"},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 1


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("peer n2 10.1.0.2 1 Connection refused", ReachabilityResult("n2", "10.1.0.2", REACHED)),
        ("peer n2 10.1.0.2 0 ", ReachabilityResult("n2", "10.1.0.2", REACHED)),
        ("peer n2 10.1.0.2 124 ", ReachabilityResult("n2", "10.1.0.2", NO_ANSWER)),
        ("peer n2 10.1.0.2 1 No route to host", ReachabilityResult("n2", "10.1.0.2", "No route to host")),
        ("peer n2 - 2 -", ReachabilityResult("n2", "", UNKNOWN_NAME)),
    ],
)
def test_what_came_of_a_way_is_read(line: str, way: ReachabilityResult) -> None:
    assert reach("n1 n2").parse(_answer(f"{line}\n")) == (way,)


@pytest.mark.parametrize(
    "line",
    [
        "peer n2 10.1.0.2 127 No such file or directory",
        "peer n2 10.1.0.2 1 No such file or directory",
        "peer n2 - 124 -",
    ],
)
def test_without_tools_or_names_no_way_is_closed(line: str) -> None:
    with pytest.raises(NotAvailable):
        reach("n1 n2").parse(_answer(f"{line}\n"))


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
    fleet = os_network.ways(of, networks)
    return {node: os_network.reachable(node, fleet) for node in of}


def _drained(verdicts: dict[str, Verdict]) -> list[str]:
    return [node for node in _accused(verdicts) if verdicts[node].action is Action.DRAIN]


def test_a_ring_without_trouble_passes() -> None:
    assert _accused(_ring(4, {})) == []
    assert {one.outcome for one in _ring(4, {}).values()} == {Outcome.PASSED}


@pytest.mark.parametrize("nodes", [3, 4, 9])
def test_a_node_that_nobody_reaches_or_that_reaches_nobody_is_named_alone(nodes: int) -> None:
    into = {(1, 2): NO_ANSWER, (3, 2): "No route to host"}
    out = {(2, 1): NO_ANSWER, (2, 3): NO_ANSWER}
    for closed in (into, out, {**into, **out}):
        assert _accused(_ring(nodes, closed)) == _drained(_ring(nodes, closed)) == ["n2"]


def test_two_neighbours_that_are_both_shut_are_both_named_and_no_others() -> None:
    closed = dict.fromkeys([(1, 2), (3, 2), (2, 3), (4, 3)], NO_ANSWER)
    assert _drained(_ring(9, closed)) == _accused(_ring(9, closed)) == ["n2", "n3"]


@pytest.mark.parametrize("nodes", [2, 9])
def test_where_one_way_alone_is_closed_both_ends_are_named_and_none_is_to_be_drained(nodes: int) -> None:
    verdicts = _ring(nodes, {(1, 2): NO_ANSWER})
    assert _accused(verdicts) == ["n1", "n2"]
    assert _drained(verdicts) == []
    assert verdicts["n1"].findings[0].measured == NO_ANSWER
    assert "which side" in verdicts["n2"].cause


def test_where_no_way_is_open_no_node_is_to_be_drained() -> None:
    closed = {(n, to): NO_ANSWER for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)}
    assert _drained(_ring(4, closed)) == []
    assert len(_accused(_ring(4, closed))) == 4


def test_a_node_that_is_dead_accuses_no_neighbour() -> None:
    verdicts = _ring(4, {(3, 4): NO_ANSWER, (1, 4): NO_ANSWER}, told=3)
    assert _accused(verdicts) == []


@pytest.mark.parametrize(("address", "outcome"), [("10.9.9.9", NO_ANSWER), ("10.1.0.4", REACHED)])
def test_a_wrong_name_is_the_fault_of_the_node_that_has_it(address: str, outcome: str) -> None:
    verdicts = _ring(4, {(1, 2): outcome}, means={(1, 2): address})
    assert _accused(verdicts) == _drained(verdicts) == ["n1"]
    assert f"means {address} here" in verdicts["n1"].findings[0].measured


def test_an_address_that_all_nodes_take_for_a_node_s_is_no_fault_of_one_of_them() -> None:
    means = {(1, 2): "10.9.9.9", (3, 2): "10.9.9.9"}
    assert _drained(_ring(9, dict.fromkeys(means, NO_ANSWER), means=means)) == ["n2"]  # nobody reaches it
    assert _drained(_ring(2, {(1, 2): NO_ANSWER}, means=means)) == []


def test_an_address_that_a_node_has_behind_a_translation_is_its_own() -> None:
    assert _accused(_ring(4, {}, means={(1, 2): "192.0.2.2"})) == []


def test_names_that_one_node_lacks_are_its_fault_and_of_all_are_none() -> None:
    lacking = {(1, 2): UNKNOWN_NAME, (1, 4): UNKNOWN_NAME}
    assert _drained(_ring(4, lacking, means=dict.fromkeys(lacking, ""))) == ["n1"]
    every = {(n, to): UNKNOWN_NAME for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)}
    verdicts = _ring(4, every, means=dict.fromkeys(every, ""))
    assert {one.outcome for one in verdicts.values()} == {Outcome.NOT_APPLICABLE}


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
        ("its agent's task ended: Killed: see slurmd's log there", "killed", Action.MONITOR),
        ("silent for 15 s: hung or unreachable; see its console and slurmd", "hangs", Action.REBOOT),
    ],
)
def test_a_node_that_does_not_respond_is_told_why_and_what_to_do(
    lost: str, words: str, action: Action
) -> None:
    verdict = os.responds(Answer("n1", None), lost)
    assert os.responds(Answer("n1", None, problem=f"node lost: {lost}")) == replace(
        verdict, findings=(replace(verdict.findings[0], measured=f"node lost: {lost}"),)
    )
    assert words in verdict.cause
    assert verdict.action is action
    assert ("power-cycle" in verdict.hint) == (action is Action.REBOOT)
