from __future__ import annotations

import subprocess
from os import environ
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.network_facts import (
    NETWORK,
    REACHED,
    UNKNOWN_NAME,
    NetworkInterface,
    ReachabilityResult,
    naming,
    reach,
    rings,
)

if TYPE_CHECKING:
    from pathlib import Path


NO_ANSWER = "no answer within 5 s"
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


def test_the_time_of_names_is_read_with_the_addresses_of_the_nodes_own() -> None:
    probe = naming(["gpu09"])
    told = probe.parse(_answer("10.1.0.1  gpu01.lab gpu01\n10.1.0.9 gpu09\ntook 100.50 105.52 0 gpu01\n"))
    assert told.seconds == pytest.approx(5.02)
    assert told.own == ("10.1.0.1",)
    assert probe.parse(_answer("took 100.50 120.50 124 gpu01\n")).seconds == pytest.approx(20)
    with pytest.raises(NotAvailable):
        probe.parse(_answer("took 1.0 1.0 127 gpu01\n", err="timeout: getent: not found"))


@pytest.mark.thorough  # names count as slow from 2 s on
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
        "peer n2 10.1.0.2 126 ",
        "peer n2 - 124 -",
    ],
)
def test_without_tools_or_names_no_way_is_closed(line: str) -> None:
    with pytest.raises(NotAvailable):
        reach("n1 n2").parse(_answer(f"{line}\n"))
