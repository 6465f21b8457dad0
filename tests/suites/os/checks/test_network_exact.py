"""What the checks of interfaces, addresses, names and ways say, word for word."""

from __future__ import annotations

from typing import Any

import pytest
from os_helpers import MOST

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import network as checks
from pytest_gpucluster.suites.os.checks.network import Reachability
from pytest_gpucluster.suites.os.network_facts import Naming, Network, NetworkInterface, ReachabilityResult

ETHER, OTHER, IB = (
    NetworkInterface("ether", 9000),
    NetworkInterface("ether", 1500),
    NetworkInterface("infiniband", 2044),
)


OPEN, HERE = "an answer, or a refusal, from it", "an answer, or a refusal, from here"


def peers(*links: NetworkInterface | None) -> dict[str, Norm[Any]]:
    return {"eno1": norm({f"n{number}": link for number, link in enumerate(links, 1)})}


def test_an_mtu_in_words_and_numbers() -> None:
    odd = checks.mtu(Network({"eno1": OTHER}), peers(OTHER, ETHER, ETHER, ETHER))
    assert odd.findings == (Finding("MTU of eno1", "1500", f"9000, {MOST}"),)
    assert odd.metrics == (Metric("mtu", 1500, "B", "eno1", detail=True),)
    assert odd.action is Action.CONFIGURE
    more = checks.mtu(Network({"eno1": OTHER}), peers(OTHER, OTHER, ETHER, ETHER, None))
    assert more.findings == (
        Finding(
            "MTU of eno1",
            "1500",
            "one value on all nodes of its group; no majority: 1500 on n[1-2], 9000 on n[3-4], "
            "absent or down on n5",
            Action.CONFIGURE,
        ),
    )
    none = "no interface is up on most nodes of the group"
    for mine, usual in (
        (Network({}), peers(None, ETHER, ETHER)),
        (Network({"eno1": ETHER}), peers(ETHER)),
        (Network({"eno1": ETHER}), peers(ETHER, ETHER, IB, IB)),
        (Network({"eno1": ETHER}), peers(ETHER, None)),
        (Network({"eno1": ETHER}), {}),
    ):
        verdict = checks.mtu(mine, usual)
        assert (verdict.outcome, verdict.reason, verdict.metrics) == (Outcome.NOT_APPLICABLE, none, ())
    assert checks.mtu(Network({"eno1": ETHER}), peers(ETHER, IB, ETHER)).outcome is Outcome.PASSED
    assert not checks._other_mtu(None, ETHER)
    assert not checks._other_mtu(ETHER, None)
    assert not checks._other_mtu(ETHER, IB)


@pytest.mark.parametrize(
    "name",
    [
        "lo", "veth0", "docker0", "br-1", "virbr0", "vnet1", "tap0", "tun0", "wg0", "cali1", "cilium_x", "cni0",
        "flannel.1", "weave", "podman0", "lxc1", "lxdbr0", "kube-ipvs0", "nodelocaldns", "dummy0", "vxlan1",
    ],
)  # fmt: skip
def test_interfaces_of_containers_are_left_out(name: str) -> None:
    network = Network({name: ETHER, "lox": ETHER, "eno1": ETHER, "br0": ETHER}, {name: ("10.0.0.1",)})
    assert list(checks.links_of_all({"n1": network})) == ["br0", "eno1", "lox"]
    assert checks.owners({"n1": network}, {}).of == {}


def test_whose_addresses_are() -> None:
    networks = {
        "n1": Network(
            {}, {"eno1": ("10.0.0.1", "127.0.0.1", "169.254.0.1", "1270.0.0.1"), "lox": ("10.0.0.9",)}
        ),
        "n2": Network({}, {"eno1": ("10.0.0.1", "16.9.254.1")}),
    }
    found = checks.owners(networks, {"n1": Naming(0, ("10.0.0.1",))})
    assert found == checks.Owners(
        {
            "10.0.0.1": {"n1": True, "n2": False},
            "1270.0.0.1": {"n1": False},
            "10.0.0.9": {"n1": False},
            "16.9.254.1": {"n2": False},
        },
        2,
    )


def owners(*having: bool, nodes: int = 9) -> checks.Owners:
    return checks.Owners({"10.0.0.1": {f"n{n}": mine for n, mine in enumerate(having, 1)}}, nodes)


HAS, HAS_NOT = True, False


def test_an_address_on_several_nodes_in_words() -> None:
    rightly = checks.addresses("n2", owners(HAS, HAS_NOT))
    assert rightly.findings == (
        Finding("10.0.0.1", "also on n1; only the name of n1 resolves to it", "on one node"),
    )
    assert rightly.action is Action.CONFIGURE
    assert checks.addresses("n1", owners(HAS, HAS_NOT)).outcome is Outcome.PASSED
    both = checks.addresses("n1", owners(HAS, HAS))
    assert both.findings == (Finding("10.0.0.1", "also on n2", "on one node"),)
    assert both.action is Action.CONFIGURE
    many = checks.addresses("n6", owners(*[HAS_NOT] * 6, nodes=12))
    assert many.findings == (Finding("10.0.0.1", "also on n1, n2, n3, n4", "on one node"),)
    assert checks.addresses("n6", owners(*[HAS_NOT] * 6, nodes=11)).outcome is Outcome.PASSED
    claimed = checks.addresses("n2", owners(HAS, HAS_NOT, nodes=2))
    assert claimed.outcome is Outcome.FAILED
    assert checks.addresses("n7", owners(HAS, HAS_NOT)).outcome is Outcome.PASSED
    assert checks.addresses("n1", owners(HAS_NOT)).outcome is Outcome.PASSED
    other = checks.Owners({"10.0.0.9": {"n8": False}, **owners(HAS, HAS_NOT).of}, 9)
    assert len(checks.addresses("n2", other).findings) == 1


@pytest.mark.parametrize(
    ("seconds", "usual", "told"),
    [
        (2.0, 0.0, None),
        (2.1, 0.0, ("2.1 s", "within 2.0 s")),
        (2.5, 0.5, None),
        (2.6, 0.5, ("2.6 s", "within 2.5 s")),
        (4.9, 9.0, None),
        (4.95, 2.0, ("5.0 s", "within 4.9 s")),
        (4.95, 2.1, ("5.0 s; half of the nodes need 2.1 s or more", "within 4.9 s")),
    ],
)
def test_names_at_their_bounds(seconds: float, usual: float, told: tuple[str, str] | None) -> None:
    verdict = checks.name_time(Naming(seconds), usual)
    assert verdict.findings == ((Finding("its own name and another", *told),) if told else ())
    assert verdict.metrics == (Metric("name_time", seconds, "s"),)
    assert ("site" in verdict.cause) == (usual == 9.0)


def test_a_site_whose_name_server_is_dead() -> None:
    site = "the first name server of the site does not answer: most nodes wait as long"
    assert checks.name_time(Naming(5.0), 5.0).cause == site
    assert checks.name_time(Naming(5.0), 4.9).cause != site
    assert checks.usual_seconds({}) == 0.0
    assert checks.usual_seconds({"a": Naming(1.0), "b": Naming(2.0), "c": Naming(9.0)}) == 2.0


def fleet(of: dict[str, list[ReachabilityResult]], **has: str) -> Reachability:
    return checks.reachability(
        of, {node: Network({}, {"eno1": tuple(ip.split())}) for node, ip in has.items()}
    )


def ring(*closed: tuple[int, int], nodes: int = 9, why: str = "silent") -> Reachability:
    """A ring of nodes; `closed` are ways that nothing came of."""
    of = {}
    for here in range(nodes):
        ends = (here + 1) % nodes, (here - 1) % nodes
        of[f"n{here}"] = [
            ReachabilityResult(f"n{to}", f"ip{to}", why if (here, to) in closed else "reached") for to in ends
        ]
    return fleet(of, **{f"n{here}": f"ip{here}" for here in range(nodes)})


def test_ways_in_words() -> None:
    one = ring((0, 1))
    assert checks.reachable("n0", one).findings == (Finding("to n1 (ip1)", "silent", OPEN),)
    assert checks.reachable("n1", one).findings == (Finding("from n0", "no connection", HERE),)
    assert [checks.reachable(f"n{n}", one).action for n in (0, 1)] == [Action.CONFIGURE] * 2
    assert checks.reachable("n2", one).outcome is Outcome.PASSED
    shut = ring((0, 1), (2, 1))
    verdict = checks.reachable("n1", shut)
    assert verdict.findings == tuple(Finding(f"from n{n}", "no connection", HERE) for n in (0, 2))
    assert verdict.action is Action.CONFIGURE
    assert checks.reachable("n0", shut).outcome is Outcome.PASSED
    assert shut.unreachable == {"n1"}
    assert ring((0, 1), (1, 0), nodes=2).unreachable == frozenset()
    assert ring((0, 1), (2, 1), nodes=3).unreachable == {"n1"}


def test_names_of_ways_in_words() -> None:
    unknown = "the name does not resolve"
    of = {
        "a": [ReachabilityResult("b", "", unknown), ReachabilityResult("c", "2", "reached")],
        "b": [ReachabilityResult("a", "1", "reached")],
    }
    assert checks.reachable("a", fleet(of)).findings == (Finding("b", unknown, "an address"),)
    assert checks.reachable("a", fleet(of)).action is Action.CONFIGURE
    half = {"a": [ReachabilityResult("b", "", unknown)], "b": [ReachabilityResult("a", "1", "reached")]}
    verdict = checks.reachable("a", fleet(half))
    assert (verdict.outcome, verdict.findings, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        (),
        "names of other nodes do not resolve on most nodes (Slurm uses NodeAddr then)",
    )


def test_a_wrong_name_in_words() -> None:
    def judged(address: str, outcome: str) -> tuple[Finding, ...]:
        of = {
            "a": [ReachabilityResult("b", address, outcome)],
            "c": [ReachabilityResult("b", "2", "reached")],
            "b": [ReachabilityResult("a", "1", "reached")],
        }
        return checks.reachable("a", fleet(of, a="1", b="2 22", c="3")).findings

    assert judged("3", "reached") == (Finding("b", "resolves to 3 here, the address of c", "2, 22"),)
    assert judged("9", "silent") == (Finding("b", "resolves to 9 here, not its address (silent)", "2, 22"),)
    assert judged("9", "reached") == judged("22", "reached") == ()
    assert judged("22", "silent") == (Finding("to b (22)", "silent", OPEN),)
    many = fleet({"a": []}, **dict.fromkeys("abcdef", "1"))
    assert many.owners_of("1") == "a, b, c, d"
    assert checks.reachability({}, {"a": Network({}, {"x": ()})}).addresses == {}
