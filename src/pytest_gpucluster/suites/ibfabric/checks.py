"""Checks of the subnet as a whole. A finding here is one of the cluster: it takes no node out of service."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import decides, differs, less, norm, owners
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.kit.node.port_errors import CAUSED_ELSEWHERE, USUAL
from pytest_gpucluster.suites.ibfabric.judge import ACTIVE, Owned, errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePorts
    from pytest_gpucluster.suites.ibfabric.subnet import Device, Link

register("subnet", "subnet")
register("guid", "GUID", labelled=True)
register("lid", "LID", labelled=True)

MASTER = "SMINFO_MASTER"
ALIVE = (MASTER, "SMINFO_STANDBY", "SMINFO_DISCOVER")  # sminfo(8)
UNANSWERED = r"failed: query|query failed"  # of sminfo.c: it ran, and no manager answered


@check(
    "ibfabric.subnet_manager",
    cause="no opensm runs, or two run as master: they differ in their sm_key, or a switch and a host both have one",
    hint="sminfo; saquery -s; systemctl status opensm on the hosts; let one be the master and stop the other, or give both the "
    "same sm_key and other priorities",
    action=Action.CONFIGURE,
)
def subnet_manager(fabric: FabricFacts) -> Judgement:
    """One subnet manager of each subnet is the master; others stand by."""
    yield Metric("subnet_managers", sum(it.state in ALIVE for it in fabric.managers), "managers")
    for part in fabric.each:
        if not part.managers:
            why = part.missing.get("managers", f"sminfo on {fabric.host}: its answer is not understood")
            if not re.search(UNANSWERED, why):
                yield NotAvailable(why)
            else:
                yield Finding(_MANAGER, Quote(why), "one master", code="no_answer")
            continue
        names = {link.a.guid: link.a.label for link in part.subnet.links}
        masters = [it for it in part.managers if it.state == MASTER]
        if len(masters) != 1:
            shown = some(
                f"{names.get(it.guid, it.guid)} (LID {it.lid}) is {it.state}" for it in masters or part.managers
            )
            found = Quantity(len(masters), "masters", f"{len(masters)} masters: {shown}")
            one = Quantity(1, "masters", "one master, others standby")
            yield Finding(_MANAGER, found, one, code="masters")


_MANAGER = named("service", "subnet manager")


@check(
    "ibfabric.size",
    cause="a switch is off or not cabled, or links between switches are down",
    hint="ibnetdiscover; iblinkinfo -d shows the ports that are down; after a change state `ibfabric.switches` and `ibfabric.links`",
    action=Action.CONFIGURE,
    setting="ibfabric.switches and ibfabric.links",
)
def size(fabric: FabricFacts, config: IbFabricConfig, accepted: Mapping[str, float]) -> Judgement:
    """The subnet has the stated numbers of switches and links; else no fewer than in the last accepted run.

    Links to hosts are compared with a stated number only: a host that is off has none.
    """
    links = fabric.subnet.links
    found = {"switches": len(fabric.subnet.switches), "links": len(links)}
    between = sum(link.between_switches for link in links)
    yield Metric("hcas", len(fabric.subnet.hcas), "HCAs", better=NEITHER)
    for what, number in found.items():
        yield Metric(what, number, what, better=NEITHER)
        stated = getattr(config, what)
        if stated is not None and number != stated:
            wanted = Quantity(stated, what, f"{stated} (`ibfabric.{what}`)")
            yield Finding(Part("subnet"), Quantity(number, what), wanted, code=f"number_of_{what}")
    yield Metric("links_between_switches", between, "links", better=NEITHER)
    unstated = {"switches": config.switches, "links_between_switches": config.links}
    compared = {what: accepted[what] for what, stated in unstated.items() if stated is None and what in accepted}
    for what, before in compared.items():
        number = found.get(what, between)
        if number < before:
            unit = what.replace("_", " ")
            wanted = Quantity(before, unit, f"{before:g}, as in the last accepted run")
            yield Finding(Part("subnet"), Quantity(number, unit), wanted, code=f"fewer_{what}")
    if not compared and config.switches is None and config.links is None:
        raise NotApplicable(
            f"no number is stated, and no accepted run is in the history; the subnet has {found['switches']} switches and "
            f"{found['links']} links (`ibfabric: {{switches: N, links: N}}`)"
        )


@check(
    "ibfabric.switch_links",
    cause="the cable between both switches, or its transceivers",
    hint="iblinkinfo; mlxlink -m for the module, at the LID of the switch; reseat or replace the cable",
    action=Action.CONFIGURE,
)
def switch_links(drawn: FabricFacts, links: Owned) -> Judgement:
    """Each link between switches is active and as wide and fast as most of them; cables of other hosts are warnings."""
    number = sum(it.between_switches for it in drawn.subnet.links)
    yield Metric("switch_links", number, "links", better=NEITHER)
    for part in drawn.each:
        between = [link for link in part.subnet.links if link.between_switches]
        yield from (finding for _, finding in slow_links(part, between))
        yield from _below_support(between)
        for _, it in slow_links(part, _others(part, links)):
            yield Advisory(it.part, it.measured, it.expected, it.code)
    for port in drawn.ports:
        if not port.answered:
            place = Part("port", name=f"{port.description} port {port.number}")
            found = "the link is up, and no device answers"
            yield Advisory(place, found, "a device, or a GUID that no other has", code="no_device")


def _others(fabric: FabricFacts, links: Owned) -> list[Link]:
    """Return the cables of hosts that are not under test."""
    known, hosts = links.guids, {device.guid for device in fabric.subnet.hcas}
    return [it for it in fabric.subnet.links if it.a.node_guid in hosts and it.a.guid not in known]


def slow_links(fabric: FabricFacts, links: Iterable[Link]) -> Iterator[tuple[Link, Finding]]:
    """Yield the links that are not active, or slower than two thirds of these links.

    A link between devices of other models may be slower by design, as to switches of an older generation, and so may one inside of
    a chassis: it is compared with its like, unless both of its ends support more.
    """
    devices = {device.guid: device for device in fabric.subnet.devices}
    known = list(links)
    kinds = {link: _kind(*(devices.get(end.node_guid) for end in link.ends)) for link in known}
    rates = [(kinds[link], link.label, link.gbps) for link in known if link.gbps]
    usual = norm(((label, rate) for _, label, rate in rates), "links")
    of_kind = {
        kind: norm(((label, rate) for its, label, rate in rates if its == kind), "links of these models")
        for kind in set(kinds.values())
    }
    for link in known:
        theirs = usual if usual.clear and (link.could_be or len(of_kind) == 1) else of_kind[kinds[link]]
        if link.state not in (ACTIVE, ""):
            yield link, Finding(link.part, Quote(link.state), ACTIVE, code="not_active")
        elif theirs.value and link.gbps and link.gbps < theirs.value:
            more = f"; both ends support {link.could_be}" if link.could_be else ""
            rate = Quantity(link.gbps, "Gb/s", link.rate + more)
            most = Quantity(theirs.value, "Gb/s", f"{theirs.value:g} Gb/s, {theirs.most}")
            yield link, Finding(link.part, rate, most, code="slow_link")


def _kind(one: Device | None, other: Device | None) -> tuple[frozenset[str], bool]:
    """Return the models at both ends of a link, and whether both are parts of one system."""
    models = frozenset(it.device_id if it else "" for it in (one, other))
    return models, bool(one and other and one.system_guid.strip("0") and one.system_guid == other.system_guid)


def _below_support(links: Iterable[Link]) -> Iterator[Advisory]:
    """Yield a warning where most links are slower than both of their ends support: a cable, or a setting, of all of them."""
    could_be = [link.could_be for link in links if link.state in (ACTIVE, "")]
    slower = [text for text in could_be if text]
    if decides(len(slower), len(could_be)):
        part = Part("cable", name=f"{len(slower)} of {len(could_be)} links")
        yield Advisory(part, "slower than both of their ends support", slower[0], code="below_support")


@check(
    "ibfabric.switch_errors",
    cause="the cable between both switches, or its transceivers",
    hint="ibqueryerrors; mlxlink -c at the LID of the switch; clean or replace the cable, then clear the counters (ibqueryerrors -k)",
    action=Action.CONFIGURE,
)
def switch_errors(fabric: FabricFacts, links: Owned) -> Judgement:
    """No error counter of a link between switches rises faster than that of a healthy link."""
    seconds = fabric.seconds
    yield Metric("counted", seconds, "s", detail=True, better=NEITHER)
    for link in fabric.subnet.links:
        if link.between_switches:
            yield from errors(fabric, link)
    for link in _others(fabric, links):
        found = (it for it in errors(fabric, link) if not isinstance(it, NotAvailable))
        yield from (Advisory(it.part, it.measured, it.expected, it.code) for it in found)
    yield from _old_errors(fabric)


def _old_errors(fabric: FabricFacts) -> Iterator[Advisory]:
    """Yield the ports whose counters are high and do not rise: when the errors came is not known."""
    parts = {(end.guid, end.number): end.part for link in fabric.subnet.links for end in link.ends}
    hosts = [link for link in fabric.subnet.links if not link.between_switches]
    cables = {(end.guid, end.number) for link in hosts for end in link.ends}
    for key, counters in fabric.after.counters.items() if fabric.after else ():
        risen = fabric.rises(key)
        for counter, value in counters.items():
            if counter == "link_downed" and key in cables:
                continue  # each restart of a host counts
            if value > USUAL[counter] and counter not in risen and counter not in CAUSED_ELSEWHERE:
                part = parts.get(key) or Part("port", name=key[0])
                total = Quantity(value, "errors", f"{counter}: {value} since the counter was cleared")
                most = Quantity(USUAL[counter], "errors", f"<= {USUAL[counter]}")
                yield Advisory(part, total, most, code=f"{counter.lower()}_since_cleared")


@check(
    "ibfabric.unique",
    cause="two devices have one GUID (a cloned or badly flashed adapter), or two ports one LID: two subnet managers, or a stale "
    "guid2lid of opensm",
    hint="ibstat on the nodes; mlxfwmanager --query; flint q of the adapter; opensm's log (ERR 0D01); opensm -r assigns new LIDs",
    action=Action.CONFIGURE,
)
def unique(fabric: FabricFacts, all_ports: Mapping[str, NodePorts]) -> Judgement:
    """No two ports have the same GUID, and no two of a subnet the same LID."""
    guids = {node: [port.guid for port in it.ports if port.guid] for node, it in all_ports.items()}
    for guid, nodes in owners(guids).items():
        if len(nodes) > 1 and guid.strip("0"):
            where = listed(dict.fromkeys(nodes))
            found = Quantity(len(nodes), "ports", f"{len(nodes)} ports of {where} have it")
            yield Finding(Part("guid", name=guid), found, _ONE_PORT, code="several_ports")
    ends = Counter(end.key for link in fabric.subnet.links for end in link.ends)
    for end in (end for link in fabric.subnet.links for end in link.ends):
        if ends[end.key] > 1:
            found = Quantity(ends[end.key], "cables", f"{end.label} is at {ends[end.key]} cables")
            one = Quantity(1, "cables", "one cable")
            yield Finding(Part("guid", name=end.guid), found, one, code="several_cables")
    by_lid: defaultdict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for number, part in enumerate(fabric.each):
        for port in part.ports:
            if port.lid and port.state == ACTIVE:
                by_lid[number, port.lid][port.guid] = port.description
    for (_, lid), holders in by_lid.items():
        if len(holders) > 1:
            found = Quantity(len(holders), "ports", f"{some(holders.values())} have it")
            yield Finding(Part("lid", name=f"{lid}"), found, _ONE_PORT, code="several_ports")


_ONE_PORT = Quantity(1, "ports", "one port")


@check(
    "ibfabric.mtu",
    cause="a port of a switch was given a smaller MTU",
    hint="saquery PIR; smpquery portinfo of the port (NeighborMTU, MtuCap); the MTU of partitions.conf of opensm",
    action=Action.CONFIGURE,
)
def mtu(fabric: FabricFacts) -> Judgement:
    """All links between switches have the MTU that most of them have; fabric.mtu judges the ports of nodes."""
    fabric.need("ports")
    for part in fabric.each:
        between = [link for link in part.subnet.links if link.between_switches]
        found = {
            link: min(one.mtu for one in known)
            for link in between
            if (known := [it for end in link.ends if (it := part.records.get((end.guid, end.number)))])
        }
        usual = norm(((link.label, value) for link, value in found.items()), "links")
        if usual.clear:
            for link, value in found.items():
                yield from usual.judge(link.part, value, worse=less)
        if len(found) < len(between):
            yield NotAvailable(f"saquery PIR shows the MTU of {len(found)} of {len(between)} links between switches")


@check(
    "ibfabric.balance",
    cause="an uplink of this leaf is down or not cabled: its nodes share what is left",
    hint="iblinkinfo of the leaf shows its ports that are down; compare them with those of another leaf",
    action=Action.CONFIGURE,
)
def balance(fabric: FabricFacts, links: Owned) -> Judgement:
    """Each leaf of the nodes has as many uplinks as most of these leaves; one whose uplinks are even may be built so: a warning.

    Of each subnet: those of storage and of another rail may be built otherwise.
    """
    several = [(it, found) for it in fabric.each if len(found := uplinks_of_leaves(it, links)) > 1]
    if not several:
        raise NotApplicable("the nodes are on one leaf switch" + (" of each subnet" if fabric.parts else ""))
    not_judged: list[NotApplicable] = []
    for part, uplinks in several:
        try:
            yield from _balance(part, uplinks)
        except NotApplicable as why:
            not_judged.append(why)
    if len(not_judged) == len(several):
        raise not_judged[0]


def _balance(fabric: FabricFacts, uplinks: Mapping[str, Counter[str]]) -> Judgement:
    names = {end.node_guid: end.node for link in fabric.subnet.links for end in link.ends}
    usual: Norm[int] = norm(((leaf, to.total()) for leaf, to in uplinks.items()), "leaves")
    yield Metric("uplinks_of_a_leaf", usual.votes[0][0], "links", better=NEITHER)
    for leaf, few, expected in _short_of_total(uplinks, usual) if usual.clear else _short_of_each(uplinks):
        to = uplinks[leaf]
        fewer = [f"{to[switch]} to {names.get(switch, switch)}" for switch in few]
        uneven = f" ({some(fewer, 4)}, else {max(to.values())})" if fewer else ", as many to each switch"
        # one that does not reach most switches above, as for management, is built so
        is_fault = fewer and 2 * sum(map(bool, to.values())) >= len(to)
        part, found = Part("switch", name=names.get(leaf, leaf)), f"{to.total()} uplinks{uneven}"
        yield (Finding if is_fault else Advisory)(part, found, expected, code="fewer_uplinks")


def _short_of_total(uplinks: Mapping[str, Counter[str]], usual: Norm[int]) -> Iterator[tuple[str, list[str], str]]:
    """Yield (leaf with fewer uplinks than most, switches above to which it has fewer than to the others, what is usual)."""
    for leaf, to in uplinks.items():
        if to.total() < usual.votes[0][0]:
            most = max(to.values(), default=0)
            yield leaf, [it for it, count in to.items() if count < most], f"{usual.votes[0][0]}, {usual.most}"


def _short_of_each(uplinks: Mapping[str, Counter[str]]) -> Iterator[tuple[str, list[str], str]]:
    """Yield the same by the number of links to each switch above: where many leaves lack uplinks, most have all of them there."""
    switches = dict.fromkeys(switch for to in uplinks.values() for switch in to)
    usual = {it: norm(((leaf, to[it]) for leaf, to in uplinks.items() if it in to), "leaves") for it in switches}
    if not any(theirs.clear for theirs in usual.values()):
        raise NotApplicable("no two thirds of the leaves have the same number of uplinks")
    for leaf, to in uplinks.items():
        few = [it for it, count in to.items() if count < (usual[it].value or 0)]
        if few:
            theirs, most = usual[few[0]], max(to.values())
            uneven = few if len(few) < len(to) else [it for it in few if to[it] < most]
            yield leaf, uneven, f"{theirs.votes[0][0]} to each, {theirs.most}"


def uplinks_of_leaves(fabric: FabricFacts, links: Owned) -> dict[str, Counter[str]]:
    """Return {leaf of a node under test: {switch above: active links}}, with 0 for one that most leaves are connected to."""
    own = {end.node_guid for link in fabric.subnet.links for end in link.ends}
    above: dict[str, Counter[str]] = {
        leaf: Counter()
        for of_node in links.of.values()
        for it in of_node
        for plane in it.cables
        if plane.z.kind == "switch" and (leaf := plane.z.node_guid) in own
    }
    for link in fabric.subnet.links:
        if link.between_switches and link.state in (ACTIVE, ""):
            for one, other in (link.ends, link.ends[::-1]):
                # a router is one of the switch's own, or at some leaves only
                if one.node_guid in above and other.kind == "switch" and other.node_guid not in above:
                    above[one.node_guid][other.node_guid] += 1
    reached = Counter(switch for to in above.values() for switch in to)
    for switch, leaves in sorted(reached.items()):
        if decides(leaves, len(above)):
            for to in above.values():
                to.setdefault(switch, 0)
    return above


@check(
    "ibfabric.routing",
    cause="opensm could not use the engine that was configured, and fell back to another: the fabric does not have the shape that "
    "it needs",
    hint="grep -i -e 'tables configured' -e ftree /var/log/opensm.log; root_guid_file and routing_engine of opensm.conf",
    action=Action.CONFIGURE,
)
def routing(fabric: FabricFacts) -> Judgement:
    """The routes were made by the engine that opensm.conf names."""
    if not fabric.engine:
        raise NotApplicable(f"opensm's log is not on {fabric.host}")
    if not fabric.configured:
        raise NotApplicable(f"opensm.conf names no engine; the routes are of {fabric.engine}")
    if fabric.engine.lower() != fabric.configured.lower():
        part = named("setting", "routing engine")
        yield Finding(part, Quote(fabric.engine), Quote(fabric.configured), code="other_engine")


@check(
    "ibfabric.switch_firmware",
    cause="a switch was left out of an update, or replaced",
    hint="flint q at the LID of the switch; update the switch (UFM, or mlxfwmanager)",
    action=Action.CONFIGURE,
)
def switch_firmware(fabric: FabricFacts) -> Judgement:
    """Switches of one board (PSID) have the firmware that most of them have."""
    stated, switches = fabric.firmware, fabric.subnet.switches
    known = {device: stated[device.guid] for device in switches if device.guid in stated}
    odd = {device: fabric.unread[device.guid, 0] for device in switches if (device.guid, 0) in fabric.unread}
    yield from (NotAvailable(f"ibdiagnet of {device.node}: not understood: {it}") for device, it in odd.items())
    if not (known or odd):
        raise NotApplicable(
            f"{fabric.host} has no output of ibdiagnet of the last day in /var/tmp/ibdiagnet2 (`ibdiagnet --get_phy_info`)"
        )
    for board in sorted({board for board, _ in known.values()}):
        versions = {device.node: version for device, (its, version) in known.items() if its == board}
        usual = norm(versions.items(), f"switches of board {board}")
        for name, version in versions.items():
            yield from usual.judge(Part("switch", name=name), version, worse=differs)
