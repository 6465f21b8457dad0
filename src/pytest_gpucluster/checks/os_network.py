"""What interfaces, addresses and names of a node have to have in common with its fleet, or for themselves. Pure."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.checks.os import Peers
from pytest_gpucluster.checks.verdict import Action, Finding, Metric, NotApplicable, Verdict, check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.checks.os import Norm
    from pytest_gpucluster.checks.verdict import Judgement
    from pytest_gpucluster.probes.os_network import Link, Naming, Network

# of containers and virtual machines: they come and go, and have the same address on every host
_VIRTUAL = re.compile(
    r"lo$|veth|docker|br-|virbr|vnet|tap|tun|wg|cali|cilium|cni|flannel|weave|podman|lxc|lxd|kube|nodelocaldns|dummy|vx"
)
_OF_THE_HOST = re.compile(r"127\.|169\.254\.")  # loopback, and link-local as of a BMC: the same everywhere
_RIGHTLY = "rightly (its name means it) "
SLOW_NAMES = 2.0  # seconds; from a file or a name server that answers it takes milliseconds
SLOWER = 5.0  # times what half of the nodes need: a machine that is loaded as a whole accuses nobody


def links_of_all(facts: Mapping[str, Network]) -> dict[str, Peers[Link | None]]:
    """Return, for each interface, the link that every node has there; None where it is absent or down."""
    names = {name for network in facts.values() for name in network.links if not _VIRTUAL.match(name)}
    return {
        name: Peers({node: network.links.get(name) for node, network in facts.items()})
        for name in sorted(names)
    }


@check(
    "os.mtu",
    cause="the interface was configured by hand or by another image: large packets vanish between the node and others",
    hint="ip link show IFACE; compare netplan, NetworkManager or ifcfg with a good node; ip link set IFACE mtu N",
)
def mtu(network: Network, peers: Mapping[str, Norm]) -> Judgement:
    """The MTU of each interface is that of the same interface on most nodes, where it is of the same kind."""
    compared = False
    for name, usual in peers.items():
        mine, theirs = network.links.get(name), usual.value
        if mine is None or theirs is None or usual.absent or mine.kind != theirs.kind:
            continue
        compared = True
        yield Metric("mtu", mine.mtu, "B", name, detail=True)
        if mine.mtu != theirs.mtu:
            yield Finding(
                f"MTU of {name}",
                str(mine.mtu),
                f"{theirs.mtu}, as on {usual.agree} of {usual.nodes} nodes of its group",
            )
    if not compared:
        yield NotApplicable("no interface is up on most nodes of the group")


@dataclass(frozen=True)
class Owners:
    """{address: {node that has it: whether its own name means that address}}, of `nodes` nodes that told."""

    of: Mapping[str, Mapping[str, bool]]
    nodes: int


def owners(networks: Mapping[str, Network], names: Mapping[str, Naming]) -> Owners:
    """Return who has which address, but for those that are the same on every host."""
    found: dict[str, dict[str, bool]] = {}
    for node, network in networks.items():
        claimed = names[node].own if node in names else ()
        for interface, addresses in network.addresses.items():
            for address in () if _VIRTUAL.match(interface) else addresses:
                if not _OF_THE_HOST.match(address):
                    found.setdefault(address, {})[node] = address in claimed
    return Owners(found, len(networks))


@check(
    "os.addresses",
    cause="the node was cloned, or got an address by hand that belongs to another one",
    hint="ip -br addr; arping -D -I IFACE ADDRESS; correct netplan, NetworkManager, ifcfg or the DHCP server's list",
)
def _addresses(node: str, fleet: Owners) -> Judgement:
    """No other node has an address of this one; the node whose name means the address is the one to have it."""
    for address, having in fleet.of.items():
        others = [name for name in having if name != node]
        if node not in having or not others:
            continue
        claims = sum(having.values())
        rightful = having[node] and claims == 1
        # of a network inside each host (usb0 of a BMC) most nodes have the same address
        if not rightful and (claims or 2 * len(having) <= fleet.nodes):
            rightly = _RIGHTLY if claims == 1 else ""
            yield Finding(address, f"here and {rightly}on {', '.join(sorted(others)[:4])}", "on one node")


def addresses(node: str, fleet: Owners) -> Verdict:
    """Judge the addresses; where it is open whose one is, nobody is to be drained for it."""
    verdict = _addresses(node, fleet)
    certain = any(_RIGHTLY in finding.measured for finding in verdict.findings)
    return verdict if certain else replace(verdict, action=Action.MONITOR)


def usual_seconds(names: Mapping[str, Naming]) -> float:
    """Return how long names take on half of the nodes."""
    return statistics.median(one.seconds for one in names.values()) if names else 0.0


@check(
    "os.name_time",
    cause="its first name server does not answer, or nsswitch asks a directory that is slow",
    hint="time getent hosts $(hostname); cat /etc/resolv.conf /etc/nsswitch.conf; dig @SERVER NAME; resolvectl status",
    action=Action.MONITOR,
)
def name_time(naming: Naming, usual: float) -> Judgement:
    """Two names resolve within 2 s, or within five times what half of the nodes need."""
    yield Metric("name_time", naming.seconds, "s")
    bound = max(SLOW_NAMES, SLOWER * usual)
    if naming.seconds > bound:
        yield Finding("its own name and another", f"{naming.seconds:.1f} s", f"within {bound:.1f} s")
