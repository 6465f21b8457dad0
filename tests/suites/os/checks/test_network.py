from __future__ import annotations

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, result
from judged import judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import ALONE, PLAIN, peers

from pytest_gpucluster.config.models import Cluster, Group
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.suites.os import network_facts as facts
from pytest_gpucluster.suites.os.checks import network as checks

NO_ANSWER = "no answer within 5 s"
Ways = dict[tuple[int, int], str]
ALONE_IN_RING = checks.Reachability({"n1": ()}, {})
INTO: Ways = {(1, 2): NO_ANSWER, (3, 2): "No route to host"}
OUT: Ways = {(2, 1): NO_ANSWER, (2, 3): NO_ANSWER}
ALL = [(n, to) for n in range(1, 5) for to in (n % 4 + 1, (n - 2) % 4 + 1)]
HAS, HAS_NOT = True, False  # whether the name of a node means the address


def named(mine: str, usual: str, *own: str) -> Verdict:
    """Judge the addresses of the name gpu09; `own`: those of that node."""
    networks = {"gpu09": facts.Network({}, {"eno1": own})}
    return checks.name_resolution({"gpu09": mine}, "n1", {"gpu09": peers(mine, usual)}, networks)


def name_time(seconds: float, usual: float) -> Verdict:
    return checks.name_time(facts.Naming(seconds), usual)


def addresses(node: str, having: tuple[bool, ...], nodes: int = 9) -> Verdict:
    """Judge a node where n1, n2 ... of these have one address."""
    own = {f"n{n}": mine for n, mine in enumerate(having, 1)}
    return checks.addresses(node, checks.Owners({"10.0.0.9": {"n8": False}, "10.0.0.1": own}, nodes))


MACHINES: Machines = {
    ("os.name_resolution", named): [
        ("hosts names its IB address, DNS another | nsswitch", PASSED, "10.1.0.9", "10.0.0.9", "10.1.0.9"),
        ("IPv6 first | getent hosts", PASSED, "fe80::1", "10.0.0.1 fe80::2"),
        ("no name resolves anywhere | Slurm uses NodeAddr", NOT_APPLICABLE, "", ""),
        ("it resolves here only | DNS", NOT_APPLICABLE, "1", ""),
        ("the only node | DNS", NOT_APPLICABLE, lambda: checks.name_resolution({"x": "1"}, "", {"x": ALONE})),
        ("sick: does not resolve here | DNS", CONFIGURE, "", "10.0.0.9", "10.0.0.9"),
        ("sick: an address of nobody | old /etc/hosts", CONFIGURE, "10.9.9.9", "10.0.0.9", "10.0.0.9"),
        ("sick: one of both is wrong | hosts", CONFIGURE, "10.0.0.2 10.0.0.4", "10.0.0.1", "10.0.0.2"),
        ("sick: another of IPv6 | hosts", CONFIGURE, "fe80::1", "fe80::2"),
    ],
    ("os.name_time", name_time): [
        ("files | /etc/hosts", PASSED, 2.0, 0.0),
        ("five times as slow as most | SSSD", PASSED, 2.5, 0.5),
        ("a loaded cluster: all are slow | SSSD", PASSED, 4.9, 1.5),
        ("sick: slow | SSSD", CONFIGURE, 2.1, 0.0),
        ("sick: slower than five times | SSSD", CONFIGURE, 2.6, 0.5),
        ("sick: the first server is dead | resolv.conf", CONFIGURE, 4.95, 9.0),
    ],
    ("os.addresses", addresses): [
        ("the only one with it | DHCP", PASSED, "n1", (HAS_NOT,)),
        ("its name alone means it | DHCP", PASSED, "n1", (HAS, HAS_NOT)),
        ("two others have it | DHCP", PASSED, "n7", (HAS, HAS_NOT)),
        ("a network inside each host | kube-vip, usb0 with 192.168", PASSED, "n6", (HAS_NOT,) * 6, 11),
        ("sick: cloned | two nodes, one address", CONFIGURE, "n2", (HAS, HAS_NOT), 2),
        ("sick: both names mean it | DNS", CONFIGURE, "n1", (HAS, HAS)),
        ("sick: no name means it | DHCP", CONFIGURE, "n1", (HAS_NOT, HAS_NOT)),
        ("sick: half of the nodes have it | DHCP", CONFIGURE, "n6", (HAS_NOT,) * 6, 12),
    ],
    "os.reachable": [
        ("the neighbours answer | no listener", PASSED, lambda: ring(4, {})["n1"]),
        ("the only node | no neighbour", NOT_APPLICABLE, lambda: checks.reachable("n1", ALONE_IN_RING)),
        ("one neighbour is down for all | n2 hangs", PASSED, lambda: ring(9, {**INTO, **OUT})["n1"]),
        ("sick: its firewall drops | nftables", CONFIGURE, lambda: ring(9, {**INTO, **OUT})["n2"]),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_name_resolution_leaves_out_the_own_name_and_names_that_are_alike_nowhere() -> None:
    good = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    fleet = {"n1": {**good, "n1": "127.0.1.1"}, "n2": {**good, "n2": "127.0.1.1"}, "n3": good}
    fleet["n4"] = {"n1": "10.0.0.9", "n2": ""}
    norms = checks.resolved(fleet)
    assert judged(checks.name_resolution(fleet["n1"], "n1", norms)) == (PASSED, [])
    assert judged(checks.name_resolution(fleet["n4"], "n4", norms)) == (CONFIGURE, ["n1", "n2"])
    halves = {"n2": {"n1": "10.0.0.1"}, "n3": {"n1": ""}}
    assert judged(checks.name_resolution(halves["n3"], "n3", checks.resolved(halves))) == (CONFIGURE, ["n1"])
    both = checks.name_resolution({"x": "1", "y": "3"}, "n1", {"x": peers("1", ""), "y": peers("3", "4")})
    assert judged(both) == (CONFIGURE, ["y"])


def test_a_handful_of_names_is_spread_over_the_cluster() -> None:
    for hosts, names in (("a[1-4] b[1-4]", "a1 a3 b1 b3"), ("a[1-9]", "a1 a4 a7"), ("a1", "a1")):
        groups = tuple(Group(nodes=one, profile=PLAIN) for one in hosts.split())
        assert checks.some_names(Cluster(name="c", groups=groups)) == tuple(names.split())


def test_a_name_server_that_is_dead_for_all_is_the_cause() -> None:
    for seconds, usual in ((4.95, 2.0), (4.95, 2.1), (5.02, 4.91)):
        verdict = name_time(seconds, usual)
        assert ("half of the nodes" in str(verdict.findings[0].measured)) is (usual > 2)
        assert ("site" in verdict.cause) is (usual > 4.9)


OF_CONTAINERS = (
    "lo veth0 docker0 br-1 virbr0 vnet1 tap0 tun0 wg0 cali1 cilium_x cni0 flannel.1 weave podman0 lxc1 lxdbr0 "
    "kube-ipvs0 nodelocaldns dummy0 vxlan1"
)


@pytest.mark.parametrize("name", OF_CONTAINERS.split())
def test_interfaces_of_containers_are_left_out(name: str) -> None:
    assert checks.owners({"n1": facts.Network({}, {name: ("10.0.0.1",)})}, {}).of == {}


def test_whose_addresses_are() -> None:
    many = ("10.0.0.1", "127.0.0.1", "169.254.0.1", "1270.0.0.1")
    networks = {
        "n1": facts.Network({}, {"eno1": many, "lox": ("10.0.0.9",)}),
        "n2": facts.Network({}, {"eno1": ("10.0.0.1", "16.9.254.1")}),
    }
    found = checks.owners(networks, {"n1": facts.Naming(0, ("10.0.0.1",))})
    assert found.nodes == 2
    one, two = {"n1": False}, {"n2": False}
    both = {"n1": True, "n2": False}
    assert found.of == {"10.0.0.1": both, "1270.0.0.1": one, "10.0.0.9": one, "16.9.254.1": two}


def ring(nodes: int, closed: Ways, *, told: int = 0, means: Ways | None = None) -> dict[str, Verdict]:
    """Judge a ring of nodes n1, n2, ... with addresses 10.1.0.N; `closed`: what came of ways; `told`: of how many."""
    found = {}
    for number in range(1, (told or nodes) + 1):
        found[f"n{number}"] = [
            facts.ReachabilityResult(
                f"n{to}", (means or {}).get((number, to), f"10.1.0.{to}"), closed.get((number, to), facts.REACHED)
            )
            for to in sorted({number % nodes + 1, (number - 2) % nodes + 1})
        ]
    networks = {f"n{n}": facts.Network({}, {"eno1": (f"10.1.0.{n}",)}) for n in range(1, nodes + 1)}
    fleet = checks.reachability(found, networks)
    return {node: checks.reachable(node, fleet) for node in found}


def lacking(ways: list[tuple[int, int]]) -> dict[str, Verdict]:
    """Judge a ring of four where these names do not resolve."""
    return ring(4, dict.fromkeys(ways, facts.UNKNOWN_NAME), means=dict.fromkeys(ways, ""))


ELSEWHERE = {(1, 2): "10.9.9.9", (3, 2): "10.9.9.9"}  # what the name of n2 means to its neighbours


def test_who_is_accused() -> None:
    for verdicts, accused, at_fault in (
        (ring(4, {}), "", ""),
        # the node that is shut is named alone
        *((ring(nodes, ways), "n2", "n2") for nodes in (3, 4, 9) for ways in (INTO, OUT, {**INTO, **OUT})),
        (ring(9, dict.fromkeys([(1, 2), (3, 2), (2, 3), (4, 3)], NO_ANSWER)), "n2 n3", "n2 n3"),
        # where one way alone is closed both ends are named, and none is to be at fault
        (ring(2, {(1, 2): NO_ANSWER}), "n1 n2", ""),
        (ring(2, {(1, 2): NO_ANSWER, (2, 1): NO_ANSWER}), "n1 n2", ""),
        (ring(9, {(1, 2): NO_ANSWER}), "n1 n2", ""),
        (ring(4, dict.fromkeys(ALL, NO_ANSWER)), "n1 n2 n3 n4", ""),
        # a neighbour is dead; a node has an address behind a translation
        (ring(4, {(3, 4): NO_ANSWER, (1, 4): NO_ANSWER}, told=3), "", ""),
        (ring(4, {}, means={(1, 2): "192.0.2.2"}), "", ""),
        # a wrong name is the fault of the node that has it
        (ring(4, {(1, 2): NO_ANSWER}, means={(1, 2): "10.9.9.9"}), "n1", "n1"),
        (ring(4, {(1, 2): facts.REACHED}, means={(1, 2): "10.1.0.4"}), "n1", "n1"),
        # an address that all nodes take for a node's is no fault of one of them: nobody reaches it
        (ring(9, dict.fromkeys(ELSEWHERE, NO_ANSWER), means=ELSEWHERE), "n2", "n2"),
        (ring(2, {(1, 2): NO_ANSWER}, means=ELSEWHERE), "n1 n2", ""),
        # names that one node lacks are its fault
        (lacking([(1, 2), (1, 4)]), "n1", "n1"),
        (lacking(ALL), "", ""),
    ):
        found = [node for node, verdict in verdicts.items() if result(verdict) == CONFIGURE]
        assert found == accused.split()
        assert [node for node in found if "not known" not in verdicts[node].cause] == at_fault.split()


def test_the_parts_of_a_way_that_is_closed() -> None:
    one = ring(9, {(1, 2): NO_ANSWER})
    wrong = ring(4, {(1, 2): NO_ANSWER}, means={(1, 2): "10.9.9.9"})
    for verdict, parts, code in (
        (one["n1"], ["link n1 - n2"], "cannot_reach"),
        (one["n2"], ["link n1 - n2"], "cannot_be_reached"),
        (ring(9, INTO)["n2"], ["link n1 - n2", "link n3 - n2"], "cannot_be_reached"),
        (wrong["n1"], ["n2"], "wrong_address"),
        (lacking([(1, 2), (1, 4)])["n1"], ["n2", "n4"], "unknown_name"),
    ):
        assert judged(verdict) == (CONFIGURE, parts)
        assert {it.code for it in verdict.findings} == {code}
