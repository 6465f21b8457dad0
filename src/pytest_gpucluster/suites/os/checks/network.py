"""Interfaces, addresses and names of a node, and its neighbours over TCP."""

from __future__ import annotations

import functools
import math
import re
import statistics
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Judgement, Metric, Outcome, Verdict, check, revised
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.core.part import Part, named, pair, register
from pytest_gpucluster.suites.os.network_facts import REACHED, Naming, Network, ReachabilityResult

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster

# of containers and virtual machines: they come and go, and have the same address on every host
VIRTUAL = re.compile(
    r"lo$|veth|docker|br-|virbr|vnet|tap|tun|wg|cali|cilium|cni|flannel|weave|podman|lxc|lxd|kube|nodelocaldns|dummy|vx"
)
_OF_THE_HOST = re.compile(r"127\.|169\.254\.")  # loopback, and link-local as of a BMC: the same everywhere
register("ip", "IP address", named=True)
SLOW_NAMES = 2.0  # seconds; a file or a name server that answers takes milliseconds
SLOWER = 5.0  # times the median: on a loaded cluster all nodes are slow
UNANSWERED = 4.9  # seconds on any number of nodes; a resolver abandons a server after 5 (man resolv.conf, timeout)


def some_names(cluster: Cluster) -> tuple[str, ...]:
    """Return at most 4 node names, spread over the cluster, for os.name_resolution."""
    names = [name for group in cluster.groups for name in group.names]
    step = max(1, math.ceil(len(names) / 4))
    return tuple(names[::step])


def resolved(fleet: Mapping[str, Mapping[str, str]]) -> dict[str, Norm[str]]:
    """Return {name: the addresses that other nodes see}; on the node itself it often resolves to 127.0.1.1."""
    names = {name for seen in fleet.values() for name in seen}
    return {
        name: norm((node, seen[name]) for node, seen in fleet.items() if node != name and name in seen)
        for name in names
    }


@check(
    "os.name_resolution",
    cause="/etc/hosts or the name server differs on this node",
    hint="getent hosts $(hostname); compare /etc/hosts, /etc/resolv.conf and /etc/nsswitch.conf with a good node",
    action=Action.CONFIGURE,
)
def name_resolution(
    addresses: Mapping[str, str],
    node_name: str,
    all_addresses: Mapping[str, Norm[str]],
    networks: Mapping[str, Network] = MappingProxyType({}),
) -> Judgement:
    """The names of other nodes resolve to the addresses that most nodes see, or to others of that node."""
    compared = False
    for name in (name for name in addresses if name != node_name):
        most = all_addresses[name]
        if most.absent or (most.clear and not most.value):
            continue
        compared = True
        own = {one for found in networks.get(name, Network()).addresses.values() for one in found}
        yield from most.judge(
            Part("node", name=name),
            addresses[name],
            worse=functools.partial(_wrong_address, own=own),
            shown=lambda address: address or "does not resolve",
        )
    if not compared:
        raise NotApplicable("no name of another node resolves alike on most nodes (Slurm uses NodeAddr then)")


def _wrong_address(mine: str, theirs: str, own: Collection[str]) -> bool:
    """Several addresses of one node are right; those of IPv6 are not compared with those of IPv4."""
    found = mine.split()
    if not found or not theirs:
        return mine != theirs
    other_family = all(":" in one for one in found) != all(":" in one for one in theirs.split())
    return mine != theirs and not other_family and not set(found) <= {*own}


def usual_seconds(all_naming: Mapping[str, Naming]) -> float:
    """Return the median over the nodes."""
    return statistics.median(one.seconds for one in all_naming.values()) if all_naming else 0.0


def _fault_of_site(verdict: Verdict, naming: Naming, usual_name_time: float) -> Verdict:
    """Return another cause if half of the nodes wait as long: the fault is not on the node."""
    if usual_name_time <= UNANSWERED:
        return verdict
    cause = "the first name server of the site does not answer: most nodes wait as long"
    return replace(verdict, cause=cause)


@revised(_fault_of_site)
@check(
    "os.name_time",
    cause="its first name server does not answer, or nsswitch queries a slow directory",
    hint="time getent hosts $(hostname); cat /etc/resolv.conf /etc/nsswitch.conf; dig $(hostname); resolvectl status",
    action=Action.CONFIGURE,
)
def name_time(naming: Naming, usual_name_time: float) -> Judgement:
    """Two names resolve within 2 s or five times the median, and before a resolver abandons a server (5 s)."""
    yield Metric("name_time", naming.seconds, "s")
    bound = min(max(SLOW_NAMES, SLOWER * usual_name_time), UNANSWERED)
    if naming.seconds > bound:
        slow = usual_name_time > SLOW_NAMES
        also = f"; half of the nodes need {usual_name_time:.1f} s or more" if slow else ""
        measured = Quantity(naming.seconds, "s", f"{naming.seconds:.1f} s for its own name and another{also}")
        most = Quantity(bound, "s", f"within {bound:.1f} s")
        yield Finding(named("service", "name service"), measured, most, code="slow")


@dataclass(frozen=True)
class Reachability:
    """Which nodes reached which: {node: its attempts} and {node: its own addresses}, of the nodes that reported any."""

    results: Mapping[str, Sequence[ReachabilityResult]]
    addresses: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def _attempts(self) -> list[tuple[str, ReachabilityResult]]:
        return [(node, result) for node, results in self.results.items() for result in results]

    @cached_property
    def _resolved(self) -> dict[str, set[str]]:
        """{node: the addresses to which its name resolves on others}."""
        found: dict[str, set[str]] = {}
        for _, result in self._attempts:
            found.setdefault(result.to, set()).add(result.address)
        return found

    def misnamed(self, result: ReachabilityResult) -> bool:
        """Whether the name resolved to an address that its node does not have, and to a right one elsewhere."""
        own = self.addresses.get(result.to, frozenset())
        return bool(result.address) and result.address not in own and bool(self._resolved[result.to] & own)

    def owners_of(self, address: str) -> str:
        """Return the names of up to four nodes that have the address."""
        return ", ".join(sorted(node for node, own in self.addresses.items() if address in own)[:4])

    @cached_property
    def names_resolve(self) -> bool:
        """Whether most names resolved."""
        return 2 * sum(bool(result.address) for _, result in self._attempts) > len(self._attempts)

    @cached_property
    def failed(self) -> frozenset[tuple[str, str]]:
        """(from, to) of the attempts that failed at a right address; a node without results proves nothing."""
        return frozenset(
            (node, result.to)
            for node, result in self._attempts
            if result.to in self.results and result.address and result.outcome != REACHED and not self.misnamed(result)
        )

    @cached_property
    def unreachable(self) -> frozenset[str]:
        """Nodes that neither neighbour reaches, or that reach neither, unless they are half of the nodes."""
        pairs = [(node, result.to) for node, result in self._attempts if result.to in self.results]
        found = {
            node
            for end in (0, 1)
            for node in self.results
            if len(own := [pair for pair in pairs if pair[end] == node]) > 1 and self.failed.issuperset(own)
        }
        # of half of the nodes or more it is the network between them that fails
        return frozenset() if 2 * len(found) >= len(self.results) else frozenset(found)


def reachability(results: Mapping[str, Sequence[ReachabilityResult]], networks: Mapping[str, Network]) -> Reachability:
    """Combine the attempts of all nodes with their addresses."""
    own = {
        node: frozenset(address for addresses in network.addresses.values() for address in addresses)
        for node, network in networks.items()
    }
    return Reachability(results, {node: addresses for node, addresses in own.items() if addresses})


def _either_end(verdict: Verdict, node_name: str, known_reachability: Reachability) -> Verdict:
    """Return a failure that drains no node if either end of the attempts may be at fault."""
    either = all(found.part.kind == "pair" for found in verdict.findings)
    if verdict.outcome is not Outcome.FAILED or node_name in known_reachability.unreachable or not either:
        return verdict
    cause = "a firewall or a route between the two nodes; which of them is at fault is not known"
    return replace(verdict, cause=cause)


@revised(_either_end)
@check(
    "os.reachable",
    cause="a firewall on the node (firewalld, nftables, ufw), a wrong route or netmask, or a wrong /etc/hosts",
    hint="getent ahosts with the peer's name; nft list ruleset; firewall-cmd --list-all; ip route; compare a good node",
    action=Action.CONFIGURE,
)
def reachable(node_name: str, known_reachability: Reachability) -> Judgement:
    """The node and its two neighbours reach each other by name (TCP)."""
    known = known_reachability
    if not known.names_resolve:
        yield NotApplicable("names of other nodes do not resolve on most nodes (Slurm uses NodeAddr then)")
    for result in known.results[node_name]:
        part = Part("node", name=result.to)
        if not result.address and known.names_resolve:
            yield Finding(part, result.outcome, "an address", code="unknown_name")
        elif known.misnamed(result) and (result.outcome != REACHED or known.owners_of(result.address)):
            owners = known.owners_of(result.address)
            whose = f"the address of {owners}" if owners else f"not its address ({result.outcome})"
            expected = ", ".join(sorted(known.addresses[result.to]))
            measured, code = f"resolves to {result.address} here, {whose}", "address_of_another"
            yield Finding(part, measured, expected, code=code if owners else "wrong_address")
        elif (node_name, result.to) in known.failed and result.to not in known.unreachable:
            measured, expected = (f"{result.outcome} ({result.address})", f"an answer, or a refusal, from {result.to}")
            yield Finding(pair(node_name, result.to), Quote(measured), expected, code="cannot_reach")
    for other in sorted(node for node, to in known.failed if to == node_name and node not in known.unreachable):
        measured, expected = f"no connection from {other}", "an answer, or a refusal, from here"
        yield Finding(pair(other, node_name), measured, expected, code="cannot_be_reached")


@dataclass(frozen=True)
class Owners:
    """{address: {node that has it: whether its own name resolves to it}}, of `nodes` nodes that reported any."""

    of: Mapping[str, Mapping[str, bool]]
    nodes: int


def owners(networks: Mapping[str, Network], all_naming: Mapping[str, Naming]) -> Owners:
    """Return the owners of each address, except addresses that are the same on every host."""
    found: dict[str, dict[str, bool]] = {}
    for node, network in networks.items():
        named = all_naming[node].own if node in all_naming else ()
        for interface, addresses in network.addresses.items():
            for address in () if VIRTUAL.match(interface) else addresses:
                if not _OF_THE_HOST.match(address):
                    found.setdefault(address, {})[node] = address in named
    return Owners(found, len(networks))


@check(
    "os.addresses",
    cause="the node was cloned, or was given an address that belongs to another one",
    hint="ip -br addr; arping -D with the interface and the address; correct netplan, NetworkManager, ifcfg or the DHCP server's list",
    action=Action.CONFIGURE,
)
def addresses(node_name: str, address_owners: Owners) -> Judgement:
    """No other node has an address of this node, unless this node alone has a name that resolves to it."""
    for address, having in address_owners.of.items():
        others = [name for name in having if name != node_name]
        if node_name not in having or not others:
            continue
        owners = [name for name, own in having.items() if own]
        # of a network inside each host (usb0 of a BMC) most nodes have the same address
        if owners != [node_name] and (owners or 2 * len(having) <= address_owners.nodes):
            owner = f"; only the name of {owners[0]} resolves to it" if len(owners) == 1 else ""
            measured = f"also on {', '.join(sorted(others)[:4])}{owner}"
            code = "address_of_another" if owner else "on_several_nodes"
            yield Finding(named("ip", address), measured, "on one node", code=code)
