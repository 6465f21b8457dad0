from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from os_helpers import answer, of, run, with_tools

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.suites.os import network_facts as facts

if TYPE_CHECKING:
    from pathlib import Path


# iproute2 6.1, a node with a bond and InfiniBand
LINK = r"""1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000\    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
2: eno1: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:02 brd ff:ff:ff:ff:ff:ff
4: ib0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP mode DEFAULT group default qlen 256\    link/infiniband 00:00:10:29 brd 00:ff:ff:ff
5: bond0.12@bond0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP mode DEFAULT group default qlen 1000\    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
"""
ADDRESS = r"""1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
5: bond0.12    inet 10.1.0.1/16 brd 10.1.255.255 scope global bond0.12\       valid_lft forever preferred_lft forever
"""
ODD_LINK = (
    "1: a: <UP> mtu 9\nx1: c: <UP> mtu 5\n2: d: <UP> mtu x\n3: e: <UP> mtu 1234567890\n4: b: <UP> mtu 8 uplink/x\n"
    "5: : <UP> mtu 5\n6: f@: <UP> mtu 5\n7: g: <UPPER,DOWN> mtu 7\n: h: <UP> mtu 6\nx\n"
)
ODD_ADDRESS = "".join(
    f"{line}\n"
    for line in (
        *("1: a inet 10.0.0.1/8", "1: a    inet 10.0.0.2/8", "x1: a inet 10.0.0.3", "1:  inet 10.0.0.3"),
        *(f"1: a inet {it}" for it in ("x1.0.0.1", "1.x.0.1", "1.0.x.1", "1.0.0.x", "1..0.1", "1.0..1")),
        *("1: binet 10.0.0.4", "2: b inet6 fe80::1/64", ": b inet 10.0.0.3", "2: b inet 10.0.0."),
    )
)


def test_interfaces_are_read_as_ip_writes_them() -> None:
    ether = facts.NetworkInterface("ether", 9000)
    assert facts.NETWORK.parse(of(link=LINK, addr=ADDRESS)) == facts.Network(
        {
            "lo": facts.NetworkInterface("loopback", 65536),
            "eno1": ether,
            "ib0": facts.NetworkInterface("infiniband", 2044),
            "bond0.12": ether,
        },
        {"lo": ("127.0.0.1",), "bond0.12": ("10.1.0.1",)},
    )
    assert facts.NETWORK.parse(of(link=ODD_LINK, addr=ODD_ADDRESS)) == facts.Network(
        {"a": facts.NetworkInterface("", 9), "b": facts.NetworkInterface("", 8)}, {"a": ("10.0.0.1", "10.0.0.2")}
    )
    for given in (of(link="x", addr=""), of(link=("a\nno ip\n", 127), addr=""), of(link=LINK)):
        with pytest.raises(NotAvailable):
            facts.NETWORK.parse(given)


def test_the_time_of_names_and_own_addresses() -> None:
    for text, seconds, own in (
        ("10.1.0.1  gpu01.lab gpu01\n10.1.0.9 gpu09\ntook 100.50 105.52 0 gpu01\n", 5.02, ("10.1.0.1",)),
        ("took 100.50 120.50 deadline gpu01\n", 20, ()),
        ("10.0.0.2 g1.x y\n10.0.0.1 z g1\n10.0.0.3 g11\ntook 5.5 4.5 0 g1.lab\n", 0.0, ("10.0.0.1", "10.0.0.2")),
        ("gpu1 z\ntook 5.5 25.5 2 gpu1\n", 20, ()),
    ):
        found = facts.read_naming(answer(text))
        assert found.seconds == pytest.approx(seconds)
        assert found.own == own
        with pytest.raises(NotAvailable):
            facts.read_naming(answer("took 1.0 1.0 127 gpu01\n", err="timeout: getent: not found"))
        with pytest.raises(ProbeError):
            facts.read_naming(answer(""))


@pytest.mark.parametrize("always", [False, True])
def test_names_that_are_slow_once_are_asked_again(tmp_path: Path, always: bool) -> None:
    (tmp_path / "uptime").write_text("100.50 9\n")
    slow = "true" if always else '[ ! -e "$0.asked" ]'  # the clock of the node goes on by 2.1 s
    body = f"{slow} && read -r u _ <{tmp_path}/uptime && echo $((${{u%.*}} + 2)).60 9 >{tmp_path}/uptime\n"
    path = with_tools(tmp_path, getent=f'{body}echo "$@" >>"$0.asked"\necho 10.1.0.1 gpu01')
    command = facts.naming([]).command.replace("/proc/uptime", f"{tmp_path}/uptime")
    told = facts.naming([]).parse(run(command, PATH=path, SLURMD_NODENAME="gpu01"))
    assert (told.seconds >= 2, told.own) == (always, ("10.1.0.1",)), "the second time counts"
    assert (tmp_path / "getent.asked").read_text() == "hosts gpu01\n" * 2


def test_each_node_takes_its_neighbours_of_its_own_group() -> None:
    ring = facts.rings((["a", "b", "c"], ["x", "y"], ["alone"]))
    assert ring == "c a b c a y x y x"
    assert facts.rings([["c"]]) == ""
    told = {}
    for node in ("a", "b", "c", "x", "y"):
        lines = run(facts.reach(ring).command, SLURMD_NODENAME=node).out.splitlines()
        told[node] = sorted(line.split()[1] for line in lines)
    assert told == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"], "x": ["y"], "y": ["x"]}
    assert run(facts.reach(ring).command, SLURMD_NODENAME="z").rc == 1


def test_what_came_of_a_way_is_read() -> None:
    rows = (
        ("peer n5 10.1.0.5 0", facts.ReachabilityResult("n5", "10.1.0.5", facts.REACHED)),
        ("peer n2 10.1.0.2 1 Connection refused", facts.ReachabilityResult("n2", "10.1.0.2", facts.REACHED)),
        ("peer n3 10.1.0.2 deadline ", facts.ReachabilityResult("n3", "10.1.0.2", "no answer within 5 s")),
        ("peer n4 10.1.0.2 1 No route", facts.ReachabilityResult("n4", "10.1.0.2", "No route")),
        ("peer n1 - 2 -", facts.ReachabilityResult("n1", "", facts.UNKNOWN_NAME)),
    )
    ways = sorted((way for _, way in rows), key=lambda way: way.to)
    assert facts.read_reachability(answer("".join(f"{line}\n" for line, _ in rows))) == tuple(ways)


def test_without_tools_or_names_no_way_is_closed() -> None:
    no_bash = "No such file or directory"
    for line in (f"10.1.0.2 127 {no_bash}", f"10.1.0.2 1 {no_bash}", "10.1.0.2 126 ", "- deadline -"):
        with pytest.raises(NotAvailable):
            facts.read_reachability(answer(f"peer n2 {line}\n"))
    with pytest.raises(NotAvailable):
        facts.read_reachability(answer("", 1, "n1 has no neighbour\n"))
    for line in ("", "peer a\n", "peer a 1.1.1.1 x\n", "peer  1.1.1.1 0\n", "peer a  0\n"):
        with pytest.raises(ProbeError):
            facts.read_reachability(answer(line))
