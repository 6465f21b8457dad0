"""What interfaces, addresses and names of a node have to have in common with its fleet, or for themselves. Pure."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import (
    Action,
    Finding,
    Metric,
    NotApplicable,
    Outcome,
    Verdict,
    check,
    revised,
)
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.suites.os.network_facts import REACHED, UNKNOWN_NAME
from pytest_gpucluster.suites.os.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.os.network_facts import (
        Naming,
        Network,
        NetworkInterface,
        ReachabilityResult,
    )

# of containers and virtual machines: they come and go, and have the same address on every host
_VIRTUAL = re.compile(
    r"lo$|veth|docker|br-|virbr|vnet|tap|tun|wg|cali|cilium|cni|flannel|weave|podman|lxc|lxd|kube|nodelocaldns|dummy|vx"
)
_OF_THE_HOST = re.compile(r"127\.|169\.254\.")  # loopback, and link-local as of a BMC: the same everywhere
_RIGHTLY = "rightly (its name means it) "
SLOW_NAMES = 2.0  # seconds; from a file or a name server that answers it takes milliseconds
SLOWER = 5.0  # times what half of the nodes need: a machine that is loaded as a whole accuses nobody
UNANSWERED = (
    4.9  # seconds, whatever others need: after 5 a resolver gives up a server (man resolv.conf, timeout)
)


def some_names(cluster: Cluster, most: int = 4) -> tuple[str, ...]:
    """Return a handful of node names, spread over the cluster, for the check of name resolution."""
    names = [name for group in cluster.groups for name in group.names]
    step = max(1, math.ceil(len(names) / most))
    return tuple(names[::step])


def resolved(fleet: Mapping[str, Mapping[str, str]]) -> dict[str, Norm[str]]:
    """Return {name: the addresses that nodes see}; its own is left out: it often resolves to 127.0.1.1 there."""
    names = {name for seen in fleet.values() for name in seen}
    return {
        name: norm((node, seen[name]) for node, seen in fleet.items() if node != name and name in seen)
        for name in names
    }


@check(
    "os.name_resolution",
    cause="/etc/hosts or the name server differs on this node",
    hint="getent hosts NAME; compare /etc/hosts, /etc/resolv.conf and /etc/nsswitch.conf with a good node",
)
def name_resolution(
    addresses: Mapping[str, str], node_name: str, all_addresses: Mapping[str, Norm[str]]
) -> Judgement:
    """The names of other nodes resolve to the addresses that most nodes see."""
    compared = False
    for name in (name for name in addresses if name != node_name):
        most = all_addresses[name]
        if most.absent or (most.clear and not most.value):
            continue
        compared = True
        yield from most.judge(name, addresses[name], shown=lambda address: address or "does not resolve")
    if not compared:
        yield NotApplicable("no name of another node resolves alike on most nodes (Slurm uses NodeAddr then)")


def usual_seconds(names: Mapping[str, Naming]) -> float:
    """Return how long names take on half of the nodes."""
    return statistics.median(one.seconds for one in names.values()) if names else 0.0


def _of_all(verdict: Verdict, naming: Naming, usual_name_time: float) -> Verdict:
    """Return another cause where half of the nodes wait as long: it is not on the node."""
    if usual_name_time <= UNANSWERED:
        return verdict
    return replace(
        verdict, cause="the first name server of the site does not answer: most nodes wait as long"
    )


@revised(_of_all)
@check(
    "os.name_time",
    cause="its first name server does not answer, or nsswitch asks a directory that is slow",
    hint="time getent hosts $(hostname); cat /etc/resolv.conf /etc/nsswitch.conf; dig @SERVER NAME; resolvectl status",
    action=Action.MONITOR,
)
def name_time(naming: Naming, usual_name_time: float) -> Judgement:
    """Two names resolve within 2 s, or five times what half of the nodes need, and within the 5 s of a dead server."""
    yield Metric("name_time", naming.seconds, "s")
    bound = min(max(SLOW_NAMES, SLOWER * usual_name_time), UNANSWERED)
    if naming.seconds > bound:
        also = (
            f"; half of the nodes need {usual_name_time:.1f} s or more"
            if usual_name_time > SLOW_NAMES
            else ""
        )
        yield Finding("its own name and another", f"{naming.seconds:.1f} s{also}", f"within {bound:.1f} s")


@dataclass(frozen=True)
class Ways:
    """Who reached whom. `of`: {node: its ways}; `has`: {node: its own addresses}; each of the nodes that told."""

    of: Mapping[str, Sequence[ReachabilityResult]]
    has: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def misnamed(self, way: ReachabilityResult) -> bool:
        """Tell whether the name means an address here that its node does not have, and another node knows better."""
        has = self.has.get(way.to, frozenset())
        return bool(way.address) and way.address not in has and bool(self._meant[way.to] & has)

    @cached_property
    def _meant(self) -> dict[str, set[str]]:
        """{node: the addresses that its name means on others}."""
        found: dict[str, set[str]] = {}
        for way in (way for ways in self.of.values() for way in ways):
            found.setdefault(way.to, set()).add(way.address)
        return found

    def whose(self, address: str) -> str:
        """Return the nodes that have the address."""
        return ", ".join(sorted(node for node, addresses in self.has.items() if address in addresses)[:4])

    @cached_property
    def resolved(self) -> bool:
        """Names of other nodes mean something on most nodes."""
        found = [bool(way.address) for ways in self.of.values() for way in ways]
        return 2 * sum(found) > len(found)

    @cached_property
    def closed(self) -> frozenset[tuple[str, str]]:
        """(from, to) of the ways that a right address did not open. A node that tells nothing proves nothing."""
        return frozenset(
            (node, way.to)
            for node, ways in self.of.items()
            for way in ways
            if way.to in self.of and way.outcome not in (REACHED, UNKNOWN_NAME) and not self.misnamed(way)
        )

    @cached_property
    def shut(self) -> frozenset[str]:
        """Nodes that both neighbours do not reach, or that reach neither: the one end that all those ways share."""
        if 2 * len(self._suspects) >= len(self.of):
            return frozenset()  # then it is not these nodes, but what lies between all of them
        return frozenset(self._suspects)

    @cached_property
    def _suspects(self) -> set[str]:
        every = [(node, way.to) for node, ways in self.of.items() for way in ways if way.to in self.of]
        return {
            node
            for end in (0, 1)
            for node in self.of
            if len(mine := [way for way in every if way[end] == node]) > 1 and self.closed.issuperset(mine)
        }


def ways(of: Mapping[str, Sequence[ReachabilityResult]], networks: Mapping[str, Network]) -> Ways:
    """Put together who reached whom, and who has which addresses."""
    has = {
        node: frozenset(address for addresses in network.addresses.values() for address in addresses)
        for node, network in networks.items()
    }
    return Ways(of, {node: addresses for node, addresses in has.items() if addresses})


_OPEN = "an answer, or a refusal, from it"


def _either_end(verdict: Verdict, node_name: str, known_ways: Ways) -> Verdict:
    """Return a failure that drains nobody where either end of the ways may be at fault."""
    either = all(found.part.startswith(("to ", "from ")) for found in verdict.findings)
    if verdict.outcome is not Outcome.FAILED or node_name in known_ways.shut or not either:
        return verdict
    cause = "a firewall or a route between the two: on which side is not to be told from here"
    return replace(verdict, action=Action.MONITOR, cause=cause)


@revised(_either_end)
@check(
    "os.reachable",
    cause="a firewall on the node (firewalld, nftables, ufw), a wrong route or netmask, or a wrong /etc/hosts",
    hint="getent ahosts PEER; nft list ruleset; firewall-cmd --list-all; ip route get ADDRESS; compare a good node",
)
def reachable(node_name: str, known_ways: Ways) -> Judgement:
    """The nodes before and after it are reached by their names, and reach it (TCP, two ways a node)."""
    mine = known_ways.of[node_name]
    if not known_ways.resolved:
        yield NotApplicable("names of other nodes do not resolve on most nodes (Slurm uses NodeAddr then)")
    for way in mine:
        if way.outcome == UNKNOWN_NAME and known_ways.resolved:
            yield Finding(way.to, UNKNOWN_NAME, "an address")
        elif known_ways.misnamed(way) and (way.outcome != REACHED or known_ways.whose(way.address)):
            whose = known_ways.whose(way.address)
            held = f"the address of {whose}" if whose else f"not its address ({way.outcome})"
            yield Finding(
                way.to, f"means {way.address} here, {held}", ", ".join(sorted(known_ways.has[way.to]))
            )
        elif (node_name, way.to) in known_ways.closed and way.to not in known_ways.shut:
            yield Finding(f"to {way.to} ({way.address})", way.outcome, _OPEN)
    for one in sorted(
        other for other, to in known_ways.closed if to == node_name and other not in known_ways.shut
    ):
        yield Finding(f"from {one}", "no way in", "an answer, or a refusal, from here")


def links_of_all(facts: Mapping[str, Network]) -> dict[str, Peers[NetworkInterface | None]]:
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
def mtu(network: Network, usual_links: Mapping[str, Norm[NetworkInterface | None]]) -> Judgement:
    """The MTU of each interface is that of the same interface on most nodes, where it is of the same kind."""
    compared = False
    for name, usual in usual_links.items():
        mine = network.links.get(name)
        alike = sum(len(nodes) for link, nodes in usual.votes if link and mine and link.kind == mine.kind)
        if mine is None or usual.absent or 2 * alike <= usual.total:
            continue
        compared = True
        yield Metric("mtu", mine.mtu, "B", name, detail=True)
        yield from usual.judge(f"MTU of {name}", mine, shown=_mtu, worse=_other_mtu)
    if not compared:
        yield NotApplicable("no interface is up on most nodes of the group")


def _mtu(link: NetworkInterface | None) -> str:
    return f"{link.mtu}" if link else "absent or down"


def _other_mtu(mine: NetworkInterface | None, theirs: NetworkInterface | None) -> bool:
    return bool(mine and theirs and mine.kind == theirs.kind and mine.mtu != theirs.mtu)


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


def _if_certain(verdict: Verdict, node_name: str, address_owners: Owners) -> Verdict:
    """Return a failure that drains nobody where it is open whose an address is."""
    certain = any(_RIGHTLY in finding.measured for finding in verdict.findings)
    return verdict if certain else replace(verdict, action=Action.MONITOR)


@revised(_if_certain)
@check(
    "os.addresses",
    cause="the node was cloned, or got an address by hand that belongs to another one",
    hint="ip -br addr; arping -D -I IFACE ADDRESS; correct netplan, NetworkManager, ifcfg or the DHCP server's list",
)
def addresses(node_name: str, address_owners: Owners) -> Judgement:
    """No other node has an address of this one; the node whose name means the address is the one to have it."""
    for address, having in address_owners.of.items():
        others = [name for name in having if name != node_name]
        if node_name not in having or not others:
            continue
        claims = sum(having.values())
        rightful = having[node_name] and claims == 1
        # of a network inside each host (usb0 of a BMC) most nodes have the same address
        if not rightful and (claims or 2 * len(having) <= address_owners.nodes):
            rightly = _RIGHTLY if claims == 1 else ""
            yield Finding(address, f"here and {rightly}on {', '.join(sorted(others)[:4])}", "on one node")
