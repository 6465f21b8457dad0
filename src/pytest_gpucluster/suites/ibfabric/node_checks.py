"""Checks of a node's own ports and cables, as the subnet shows them. No check takes a node out of service: fabric does."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.majority import decides, less
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.suites.ibfabric.judge import ACTIVE, Owned, errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePorts
    from pytest_gpucluster.suites.ibfabric.judge import NodeLink

FEWEST = 3  # HCAs on a leaf from which on most of them show what it is for
NO_LINK = "no port of the node is in the subnet (see ibfabric.ports)"


@check(
    "ibfabric.ports",
    cause="the cable, the transceiver or the port of the switch; or the port is in another subnet than the others",
    hint="ibstat; ibportstate of the switch's port; swap the cable with its neighbour's and check whether the fault moves with it",
    action=Action.CONFIGURE,
)
def ports(
    network: Profile, node_ports: NodePorts, node_links: tuple[NodeLink, ...], fabric: FabricFacts
) -> Judgement:
    """As many ports of the node as its profile has for GPU traffic are active in the subnet."""
    need = network.fabric.hcas
    active = [it for it in node_links if it.link.state in (ACTIVE, "")]
    yield Metric("ports_in_subnet", len(active), "ports")
    if len(active) >= need:
        return
    seen = {it.port: it for it in node_links}
    silent = [port for port in node_ports.ports if port not in {it.port for it in active}]
    for port in silent:
        where = (
            f"{seen[port].link.state} at {seen[port].link.z.label}" if port in seen else "not in the subnet"
        )
        state = f", {port.state or '?'} on the node"
        yield Finding(str(port), where + state, f"active in the subnet that {fabric.host} sees")
    if not silent:
        yield Finding("ports in the subnet", f"{len(active)}", f"{need}")


@check(
    "ibfabric.cables",
    cause="the link trained to fewer lanes or a lower speed: cable or transceiver",
    hint="iblinkinfo; mlxlink -m of the adapter for the module; reseat or replace the cable",
    action=Action.CONFIGURE,
)
def cables(
    network: Profile, node_links: tuple[NodeLink, ...], usual_rates: Mapping[str, Norm[float]]
) -> Judgement:
    """As many links as the profile has ports run at its rate, and none is slower than the same link of other nodes."""
    if not node_links:
        raise NotAvailable(NO_LINK)
    wanted = (network.fabric.rate or 0) * 8
    known = [it for it in node_links if it.link.gbps]
    if not known:
        raise NotAvailable("ibnetdiscover and iblinkinfo state no rate of the node's links")
    slow = [it for it in known if it.link.gbps < wanted * 0.99]
    few = len(known) - len(slow) < min(network.fabric.hcas, len(known))
    for it in known:
        yield Metric("link_rate", it.link.gbps, "Gb/s", it.port.device, detail=True)
        part = f"{it.port}: {it.link.label}"
        more = f"; both ends support {it.link.could_be}" if it.link.could_be else ""
        if few and it in slow:
            yield Finding(part, it.link.rate + more, f"{wanted:g} Gb/s")
        elif (usual := usual_rates.get(it.port.place)) and usual.clear:
            yield from usual.judge(part, it.link.gbps, worse=less, measured=it.link.rate + more)


@check(
    "ibfabric.cable_errors",
    cause="a cable, transceiver or connector of this link",
    hint="ibqueryerrors; mlxlink -c -e of the adapter for counters and the eye; clean or replace the cable, then clear the counters",
    action=Action.CONFIGURE,
)
def cable_errors(node_links: tuple[NodeLink, ...], fabric: FabricFacts) -> Judgement:
    """No error counter at either end of the node's cables rises faster than that of a healthy link."""
    if not node_links:
        raise NotAvailable(NO_LINK)
    for it in node_links:
        yield from errors(fabric, it.link)


@check(
    "ibfabric.rail",
    cause="two cables of the node are swapped, or one is in the switch of another rail",
    hint="compare the ends that ibnetdiscover shows with the cabling plan; move the cable",
    action=Action.CONFIGURE,
)
def rail(node_name: str, node_links: tuple[NodeLink, ...], links: Owned) -> Judgement:
    """Each HCA is on a leaf where most HCAs have the same PCI address: the rule of `ibdiagnet --rail_validation`.

    Not applicable where the leaves have HCAs of all addresses, as in a fat tree without rails.
    """
    if not node_links:
        raise NotAvailable(NO_LINK)
    of_leaf: defaultdict[str, Counter[str]] = defaultdict(Counter)
    leaf_of: dict[str, str] = {}
    for of_node in links.of.values():
        for it in of_node:
            of_leaf[it.link.z.node_guid][it.port.place] += 1
            leaf_of[it.link.z.node_guid] = it.link.z.node
    rails = {leaf: counts.most_common(1)[0][0] for leaf, counts in of_leaf.items() if _decided(counts)}
    if not rails or len(set(rails.values())) == 1:
        raise NotApplicable("no leaf has HCAs of mostly one PCI address: the fabric has no rails")
    for it in node_links:
        own = rails.get(it.link.z.node_guid, it.port.place)
        # an adapter that no other node has, as one for storage, has no rail
        if own != it.port.place and it.port.place in rails.values():
            right = some(sorted(leaf_of[leaf] for leaf, place in rails.items() if place == it.port.place), 4)
            yield Finding(
                f"{it.port} of {node_name}",
                f"at {it.link.z.label}, whose other HCAs are {own}",
                f"at a leaf of its rail: {right}",
            )


def _decided(counts: Counter[str]) -> bool:
    return counts.total() >= FEWEST and decides(max(counts.values()), counts.total())


@check(
    "ibfabric.leaf",
    cause="Slurm's topology names another leaf for this node than the fabric has: a cable was moved, or the file is out of date",
    hint="ibnetdiscover; correct topology.conf or topology.yaml, then scontrol reconfigure",
    action=Action.CONFIGURE,
    setting="Slurm's topology",
)
def leaf(
    node_name: str,
    node_links: tuple[NodeLink, ...],
    slurm_leaves: Mapping[str, str],
    usual_leaves: Mapping[str, Norm[tuple[str, ...]]],
) -> Judgement:
    """The node is on the leaves on which most nodes of its leaf in Slurm's topology are."""
    if node_name not in slurm_leaves:
        raise NotApplicable("Slurm's topology names no leaf for this node")
    if not node_links:
        raise NotAvailable(NO_LINK)
    mine, name = leaves_of(node_links), slurm_leaves[node_name]
    yield Metric("leaves", len(mine), "switches", detail=True, better=NEITHER)
    usual = usual_leaves[name]
    if usual.absent:
        raise NotApplicable(f"no other node of {name} is tested")
    if usual.value is not None and not set(mine) & set(usual.value):
        yield Finding(f"leaf {name} of Slurm", f"on {listed(mine)}", f"{listed(usual.value)}, {usual.most}")


def leaves_of(links: tuple[NodeLink, ...]) -> tuple[str, ...]:
    """Return the names of the leaves of a node."""
    return tuple(sorted({it.link.z.node for it in links if it.link.z.kind == "switch"}))
