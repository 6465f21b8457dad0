"""Checks of a node's own ports and cables, as the subnet shows them. No check takes a node out of service: fabric does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import less
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.kit.fabric.partition_keys import FULL_MEMBER, lacks, shown_keys
from pytest_gpucluster.suites.ibfabric.judge import ACTIVE, errors, off_rail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePorts
    from pytest_gpucluster.suites.ibfabric.judge import NodeLink, Owned
    from pytest_gpucluster.suites.ibfabric.optics import Optics

NO_LINK = "no port of the node is in the subnet (see ibfabric.ports)"


@check(
    "ibfabric.ports",
    cause="the cable, the transceiver or the port of the switch; or the port is in another subnet than the others",
    hint="ibstat; ibportstate of the switch's port; swap the cable with its neighbour's and check whether the fault moves with it",
    action=Action.CONFIGURE,
)
def ports(network: Profile, node_ports: NodePorts, node_links: tuple[NodeLink, ...], fabric: FabricFacts) -> Judgement:
    """As many ports of the node as its profile has for GPU traffic are active in the subnet."""
    need = network.fabric.hcas
    active = [it for it in node_links if it.link.state in (ACTIVE, "")]
    yield Metric("ports_in_subnet", len(active), "ports")
    if len(active) >= need:
        return
    seen = {it.port: it for it in node_links}
    silent = [port for port in node_ports.ports if port not in {it.port for it in active}]
    for port in silent:
        where, code = "not in the subnet", "not_found"
        if port in seen:
            where, code = f"{seen[port].link.state} at {seen[port].link.z.label}", "not_active"
        expected = f"active in the subnet that {fabric.host} sees"
        yield Finding(port.part, f"{where}, {port.state or '?'} on the node", expected, code=code)
    if not silent:
        found, wanted = (Quantity(it, "ports in the subnet") for it in (len(active), need))
        yield Finding(Part("port"), found, wanted, code="too_few_ports")


@check(
    "ibfabric.cables",
    cause="the link trained to fewer lanes or a lower speed: cable or transceiver",
    hint="iblinkinfo; mlxlink -m of the adapter for the module; reseat or replace the cable",
    action=Action.CONFIGURE,
)
def cables(network: Profile, node_links: tuple[NodeLink, ...], usual_rates: Mapping[str, Norm[float]]) -> Judgement:
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
        yield Metric("link_rate", it.link.gbps, "Gb/s", it.port.part, detail=True)
        part, at = it.port.part, f", at {it.link.z.label}"
        more = f"; both ends support {it.link.could_be}" if it.link.could_be else ""
        if few and it in slow:
            rate = Quantity(it.link.gbps, "Gb/s", it.link.rate + more + at)
            yield Finding(part, rate, Quantity(wanted, "Gb/s"), code="slow_link")
        elif (usual := usual_rates.get(it.port.place)) and usual.clear and it.link.gbps < (usual.value or 0):
            yield from usual.judge(part, it.link.gbps, worse=less, measured=it.link.rate + more + at)
        elif more and not wanted:  # no profile states whether a split cable or an older one is meant
            supported = f"{it.link.could_be}, which both ends support"
            yield Advisory(part, it.link.rate + at, supported, code="below_support")


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
        for link in it.cables:
            yield from errors(fabric, link)


@check(
    "ibfabric.pkeys",
    cause="the subnet manager has the port in other partitions than those of the other nodes, or has not given the port of the switch "
    "at its cable the same ones: that port drops the packets",
    hint="saquery --smkey 1 PKTR shows the tables; partitions.conf of opensm, or the partitions in UFM; after a change of cables a new sweep "
    "(pkill -HUP opensm) sets the ports of switches",
    action=Action.CONFIGURE,
)
def pkeys(
    node_links: tuple[NodeLink, ...], fabric: FabricFacts, usual_keys: Mapping[str, Norm[tuple[int, ...]]]
) -> Judgement:
    """Each active port has the partition keys of the same port on most nodes, and its port of the switch drops none of them."""
    if not node_links:
        raise NotAvailable(NO_LINK)
    fabric.need("pkeys")
    for it in node_links:
        if it.link.state not in (ACTIVE, ""):
            continue  # it has the keys of its last boot
        keys = fabric.pkeys.get(it.key)
        if keys is None:
            yield NotAvailable(f"saquery PKTR shows no partition keys of {it.port.part}")
            continue
        yield from usual_keys[it.port.place].judge(it.port.part, keys, worse=lacks, shown=shown_keys)
        far = (it.link.z.guid, it.link.z.number)
        record, passed = fabric.records.get(far), {key | FULL_MEMBER for key in fabric.pkeys.get(far, ())}
        dropped = [key for key in keys if key | FULL_MEMBER not in passed]
        if record and record.filters and dropped:
            found = f"{it.link.z.label} drops {shown_keys(dropped)}"
            yield Finding(it.port.part, found, f"passes {shown_keys(keys)}", code="drops_keys")


@check(
    "ibfabric.optics",
    cause="a dirty or damaged fibre, a module that ages or overheats, or the module at the other end sends too little light",
    hint="mlxlink -d ADAPTER -m; clean both ends of the fibre and reseat the module; then exchange the module, or its fibre, with the next "
    "port's and check which of them the values follow; temperature: airflow",
    action=Action.MONITOR,
)
def optics(network: Profile, node_ports: NodePorts, optics: Optics) -> Judgement:
    """Temperature and optical power of each module are within the limits that the module states; of a port that is down: a warning."""
    ports = [port for port in node_ports.ports if port.device in optics.modules]
    troubled = [port for port in ports if port.state == "ACTIVE" and optics.modules[port.device].trouble]
    for port in troubled:
        trouble = Quote(optics.modules[port.device].trouble)
        yield Advisory(port.part, trouble, "no issue, by the firmware (mlxlink)", code="trouble")
    if ports and not troubled and not any(optics.modules[port.device].readings for port in ports):
        raise NotApplicable("no module states limits, as copper cables")
    for port in ports:
        module = optics.modules[port.device]
        kind = Finding if port.state == "ACTIVE" else Advisory
        for it in module.readings:
            worst = max(it.values, key=lambda value: max(value - it.high, it.low - value))
            yield Metric(it.name, worst, it.unit, port.part, detail=True, better=NEITHER)
            if not it.low <= worst <= it.high:
                lane = f" of lane {it.values.index(worst) + 1}" if len(it.values) > 1 else ""
                high = worst > it.high
                limits = f"{it.low:g} to {it.high:g} {it.unit} ({module.kind})"
                yield kind(
                    Part("module", serial=module.serial, of=port.part),
                    Quantity(worst, it.unit, f"{it.name}{lane} {worst:g} {it.unit}"),
                    Quantity(it.high if high else it.low, it.unit, limits),
                    code=f"high_{it.name}" if high else f"low_{it.name}",
                )
    for port in node_ports.ports:
        if port.device not in optics.modules:
            yield NotAvailable(f"mlxlink -d {port.device}: {optics.problems.get(port.device, 'not read')}")


@check(
    "ibfabric.rail",
    cause="two cables of the node are swapped, or one is in the switch of another rail",
    hint="compare the ends that ibnetdiscover shows with the cabling plan; move the cable",
    action=Action.CONFIGURE,
)
def rail(
    node_name: str, node_links: tuple[NodeLink, ...], links: Owned, rails: Mapping[str, tuple[str, str]]
) -> Judgement:
    """Each HCA is on a leaf where most HCAs have the same PCI address: the rule of `ibdiagnet --rail_validation`.

    Not applicable where the leaves have HCAs of all addresses, as in a fat tree without rails.
    """
    if not node_links:
        raise NotAvailable(NO_LINK)
    if len({place for _, place in rails.values()}) < 2:
        raise NotApplicable("no leaf has HCAs of mostly one PCI address: the fabric has no rails")
    for it in off_rail(links, node_name, rails):
        right = some(sorted(leaf for leaf, place in rails.values() if place == it.port.place), 4)
        found = f"at {it.link.z.label}, whose other HCAs are {rails[it.link.z.node_guid][1]}"
        yield Finding(it.port.part, found, f"at a leaf of its rail: {right}", code="other_rail")


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
        part = named("setting", f"leaf {name} of Slurm")
        expected = f"{listed(usual.value)}, {usual.most}"
        yield Finding(part, f"on {listed(mine)}", expected, code="other_leaf")


def leaves_of(links: tuple[NodeLink, ...]) -> tuple[str, ...]:
    """Return the names of the leaves of a node."""
    return tuple(sorted({it.link.z.node for it in links if it.link.z.kind == "switch"}))
