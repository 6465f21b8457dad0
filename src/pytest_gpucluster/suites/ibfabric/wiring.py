"""What is connected to what, as found, and what differs from a cabling plan. Pure.

A device is known by each of its names: that of Slurm, that of a node name map, its node description, what a record has for its GUID, its
chassis ID. A further name counts where no other device has it. Names are compared by one rule. Nodes: without case and without domain,
also where a plan writes the whole node description. Ports of an InfiniBand switch: by number; `1/5` and `IB1/5` of
MLNX-OS are port 5, and half 2 of cage 31 (`31/2`, `1/31/2`, `IB1/31/2`, `sw31p2`) is port 62. Ports of a host: by the number of the adapter
(`mlx5_0` is `HCA-1`, and `1` and `P1` as in NVIDIA's Cable Validation Tool); other names as written. Ports of Ethernet: without
case, and `Ethernet1/1`, `Eth1/1` and `1/1` are one. A port of a kind of name that was found nowhere at its switch (`13` beside
`Ethernet48`) is not judged.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.suites.ibfabric.plan import device_names, is_internal, port_words
from pytest_gpucluster.suites.ibfabric.subnet import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.suites.ibfabric.plan import Cable
    from pytest_gpucluster.suites.ibfabric.subnet import Subnet, SubnetPort


class Plug(NamedTuple):
    """One end of a link. node: its key. ports: the keys by which a plan may name it. label: for people."""

    node: str
    ports: frozenset[str]
    label: str


@dataclass(frozen=True)
class Wiring:
    """Links as found. ethernet: by LLDP. switches, hosts: keys of all devices. down: plugs without a link; empty of InfiniBand.

    guids: {0xGUID of a device: its name, and its adapter if it is one of a host}, for records of devices without a name.
    aliases: {further key by which a plan may name a device: its key}.
    adapters: {port of a host in the plan, without case: the adapter}; without one, 1 is mlx5_0.
    """

    links: tuple[tuple[Plug, Plug], ...]
    switches: frozenset[str]
    hosts: frozenset[str]
    ethernet: bool = False
    down: tuple[Plug, ...] = ()
    guids: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


class WrongCable(NamedTuple):
    """A cable, or two that were swapped, by both ends. nodes: keys of the devices at the planned ends.

    planned, found: pairs of the keys of both devices, planned and as found.
    """

    nodes: frozenset[str]
    cable: str
    measured: str
    expected: str
    code: Literal["swapped", "missing", "misplaced"] = "misplaced"
    planned: tuple[tuple[str, str], ...] = ()
    found: tuple[tuple[str, str], ...] = ()

    @property
    def finding(self) -> Finding:
        """The finding about it."""
        part = Part("cable", name=self.cable, nodes=tuple(sorted(self.nodes)))
        return Finding(part, self.measured, self.expected, code=self.code)


@dataclass
class WiringDiff:
    """planned, right: numbers of cables by node, that of all under ''. unknown: {device or port that was not found: its keys of nodes}.

    extra: links between devices of the plan, at ports that it does not have.
    """

    planned: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    wrong: list[WrongCable] = field(default_factory=list)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)


def node_key(name: str) -> str:
    """Return what names of one node have in common.

    >>> node_key("GPU01.example.com"), node_key("10.0.0.1"), node_key("MF0;leaf01:MQM9700/U1"), node_key("4438.39FF.0001")
    ('gpu01', '10.0.0.1', 'leaf01', '443839ff0001')
    """
    name = short_name("switch", name).lower()
    if re.fullmatch(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}|([0-9a-f]{4}\.){2}[0-9a-f]{4}", name):
        return re.sub(r"\W", "", name)
    return name if re.fullmatch(r"[\d.]+", name) else name.partition(".")[0]


def is_ethernet(cable: Cable, *, usual: bool) -> bool:
    """Return whether a planned cable is one of Ethernet, by the names of its ports; `usual` where they do not show it."""
    ports = (cable.a_port.lower(), cable.z_port.lower())
    # udev's en, eth, Ethernet1/1, Et1/1, et-0/0/1, etp1; GigabitEthernet, HundredGigE: no name of InfiniBand is like these
    if any(re.match(r"(swp|e|xe-|ge-|\w{0,20}gig)", port) for port in ports):
        return True
    return usual and not any(re.match(r"(ib|sw|mlx\d_|hca)", port) for port in ports)


def host_port(text: str) -> str:
    """Return what names of one port of an InfiniBand host have in common.

    >>> host_port("mlx5_3/P1"), host_port("HCA-4"), host_port("4"), host_port("ibp3s0")
    ('3/1', '3/1', '3/1', 'ibp3s0/1')
    """
    found = re.fullmatch(
        r"(?:mlx\d{1,2}_(\d{1,4})|(?:HCA[-_ ]?|P?)(\d{1,4}))(?:[ /:]P?(\d{1,2}))?", text, re.IGNORECASE
    )
    if found:
        return f"{found[1] or int(found[2]) - 1}/{found[3] or 1}"
    name, _, number = text.lower().partition("/")
    return f"{name}/{number.lstrip('p') or 1}"


def switch_port(text: str) -> str:
    """Return the number of a port of an InfiniBand switch; the text if it is none.

    >>> [switch_port(it) for it in ("P7", "IB1/7", "1/7", "IB1/31/2", "1/31/2", "sw31p2", "31/2", "31/7", "2/31/2")]
    ['7', '7', '7', '62', '62', '62', '62', '31/7', '2/31/2']
    """
    found = re.fullmatch(r"(?:ib|sw|p|port)?[ -]?(?:1/(?=\d+/))?(?:(\d{1,3})[/p])?(\d{1,3})", text, re.IGNORECASE)
    if not found:
        return text
    cage, number = int(found[1] or 1), int(found[2])
    # slot 1 is the switch itself; a cage has two ports
    return str(2 * (cage - 1) + number) if cage == 1 or number in (1, 2) else text


def ethernet_port(text: str) -> str:
    """Return what names of one Ethernet port have in common.

    >>> ethernet_port("Ethernet1/1"), ethernet_port("1/1"), ethernet_port("swp1s0"), ethernet_port("et-0/0/1:3")
    ('1/1', '1/1', 'swp1s0', '0/0/1:3')
    >>> ethernet_port("Ethernet48"), ethernet_port("Et48"), ethernet_port("Port 48")
    ('e48', 'e48', '48')
    """
    text = "".join(text.split()).lower()
    if numbers := re.fullmatch(r"[a-z]{0,20}-?(\d{1,4}(?:/\d{1,4}){1,3}(?::\d{1,2})?)", text):
        return numbers[1]
    text = re.sub(r"^p(ort)?-?(?=\d+$)", "", text)
    return re.sub(r"^et(h(ernet)?)?(?=\d+$)", "e", text)


def of_subnet(
    subnet: Subnet,
    *names: Mapping[str, str],
    recorded: Mapping[str, str] = MappingProxyType({}),
    adapters: Mapping[str, str] = MappingProxyType({}),
) -> Wiring:
    """Return the cables of a subnet. names: {GUID: name} instead of node descriptions, the first counts; recorded: descriptions of a record.

    adapters: of an HCA mapping.
    """
    known = device_names(subnet, {guid: name for one in reversed(names) for guid, name in one.items()})
    others = ({}, *filter(None, (*names[1:], recorded)))
    aliases, adapters_of = _all_names(known, [device_names(subnet, one) for one in others])

    def plug(port: SubnetPort) -> Plug:
        node, name = port_words(known, port)
        if port.kind != "HCA":
            return Plug(node_key(node), frozenset({name}), f"{node} port {name}")
        keys = {f"{adapter}/{port.number}" for adapter in adapters_of.get(port.node_guid, ())}
        ports = frozenset(keys or {host_port(name)})
        return Plug(node_key(node), ports, f"{node} {name.removesuffix('/P1')}")

    return Wiring(
        tuple((plug(link.a), plug(link.z)) for link in subnet.links if not is_internal(link)),
        frozenset(node_key(known[device.guid][0]) for device in subnet.devices if device.kind != "HCA"),
        frozenset(node_key(known[device.guid][0]) for device in subnet.hcas),
        guids={f"0x{guid}": name for guid, name in known.items()},
        adapters=adapters,
        aliases=aliases,
    )


def _all_names(
    known: Mapping[str, tuple[str, str]], others: Iterable[Mapping[str, tuple[str, str]]]
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return {name: the node that alone has it}, and {GUID of an adapter: its first names, and others that it alone has on its node}."""
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    adapters: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in (known, *others):
        for guid, (node, adapter) in one.items():
            mine = node_key(known[guid][0])
            nodes[node_key(node)].add(mine)
            for name in _adapter_names(adapter):
                adapters[mine, name].add(guid)
    of_adapters = {guid: _adapter_names(adapter) for guid, (_, adapter) in known.items()}
    for (_, name), found in adapters.items():
        if len(found) == 1:
            of_adapters[found.pop()].add(name)
    return {key: found.pop() for key, found in nodes.items() if len(found) == 1}, of_adapters


def _adapter_names(adapter: str) -> set[str]:
    """Return an adapter's name and its number; openibd numbers adapters in another order than the kernel: HCA-3 may be mlx5_10."""
    adapter = adapter or "mlx5_0"  # a host with one adapter may not name it
    return {adapter.lower(), host_port(adapter).rpartition("/")[0]}


class _End(NamedTuple):
    node: str
    port: str
    name: str
    label: str


class _Planned(NamedTuple):
    a: _End
    z: _End
    where: str

    def other(self, end: _End) -> _End:
        return self.z if end is self.a else self.a


class _Compared:
    """One comparison: the plan in keys, and the links by their ends."""

    def __init__(self, cables: Iterable[Cable], wiring: Wiring) -> None:
        self.wiring = wiring
        self.at: dict[tuple[str, str], list[Plug]] = {}  # a switch may pass on the LLDP frames of others
        self.linked: dict[str, set[str]] = {}
        self.kinds: dict[str, set[str]] = {}  # of the names of the ports of a device
        for link in wiring.links:
            for one, other in (link, link[::-1]):
                self.linked.setdefault(one.node, set()).add(other.node)
                for port in one.ports:
                    self.kinds.setdefault(one.node, set()).add(_kind(port))
                    self.at.setdefault((one.node, port), []).append(other)
        self.down = {(plug.node, port) for plug in wiring.down for port in plug.ports}
        self.cables = [
            _Planned(self._end(it.a_node, it.a_port), self._end(it.z_node, it.z_port), it.where) for it in cables
        ]
        self.planned = {(end.node, end.port): (it, end) for it in self.cables for end in (it.a, it.z)}
        self.nodes = {node for node, _ in self.planned}

    def _end(self, node: str, port: str) -> _End:
        host, _, adapter = node.partition(" ")
        if digits := re.fullmatch(r"0x([0-9a-f]{1,16})", node, re.IGNORECASE):
            node, adapter = self.wiring.guids.get(f"0x{digits[1].lower():0>16}", (node, ""))
        elif self._key(node) not in self.wiring.switches and self._key(host) in self.wiring.hosts:
            node = host  # of a whole node description
        else:
            adapter = ""
        if adapter and port:
            port = f"{adapter}/{port.rpartition('/')[2]}"
        key = self._key(node)
        label = f"{node} port {port}" if port[:1].isdecimal() else f"{node} {port}".strip()
        return _End(key, self._port(key, port), node, label)

    def _key(self, node: str) -> str:
        return self.wiring.aliases.get(node_key(node), node_key(node))

    def _port(self, node: str, port: str) -> str:
        if not port or self.wiring.ethernet:
            return ethernet_port(port)
        if node in self.wiring.switches:
            return switch_port(port)
        name = port.lower()
        port = self.wiring.adapters.get(name, self.wiring.adapters.get(name.lstrip("p"), name))
        as_written = re.sub(r"(?:[ /:]p?(\d{1,2}))?$", lambda it: f"/{it[1] or 1}", port, count=1)
        return as_written if port[:1].isalpha() and (node, as_written) in self.at else host_port(port)

    def found(self, end: _End) -> Plug | None:
        """Return what is connected to a planned end."""
        return next(iter(self.at.get((end.node, end.port), ())), None)

    def is_right(self, cable: _Planned) -> bool:
        if not (cable.a.port and cable.z.port):
            return cable.z.node in self.linked.get(cable.a.node, ())
        return any(_is_at(found, cable.z) for found in self.at.get((cable.a.node, cable.a.port), ()))

    def not_known(self, cable: _Planned) -> str:
        """Return the device or port because of whose name a cable cannot be judged; '' if it can."""
        known = self.wiring.switches | self.wiring.hosts
        for end in (cable.a, cable.z):
            other = cable.other(end)
            found = self.found(other)
            nodes = {plug.node for plug in self.at.get((other.node, other.port), ())}
            if end.node in known:
                # only another device at the other end is wrong whatever the name of this port is
                if end.port and (not nodes or end.node in nodes) and not self._understood(end):
                    return end.label
            elif found is None:
                if other.node not in self.wiring.switches and (other.node, other.port) not in self.down:
                    return end.name
            elif found.node not in self.nodes:
                return end.name
        return ""

    def _understood(self, end: _End) -> bool:
        if self.found(end) is not None or (end.node, end.port) in self.down:
            return True
        if not self.wiring.ethernet:
            return re.fullmatch(r"\d+(/\d+)?", end.port) is not None
        return end.node not in self.wiring.hosts and _kind(end.port) in self.kinds.get(end.node, ())

    def swapped_with(self, cable: _Planned) -> _Planned | None:
        """Return the cable whose ends were swapped with those of this one."""
        found = self.found(cable.a)
        if found is None:
            return None
        for port in found.ports:
            if (found.node, port) in self.planned:
                other, end = self.planned[found.node, port]
                back = self.found(other.other(end))
                if other is not cable and back is not None and _is_at(back, cable.z):
                    return other
        return None


def _kind(port: str) -> str:
    return re.sub(r"\d+", "#", port)


def _is_at(plug: Plug, end: _End) -> bool:
    return plug.node == end.node and (not end.port or end.port in plug.ports)


def compare(cables: Iterable[Cable], wiring: Wiring) -> WiringDiff:
    """Compare planned cables with the links that were found. Of Ethernet only cables of hosts whose neighbours are known."""
    compared, result = _Compared(cables, wiring), WiringDiff()
    wrong = []
    for cable in compared.cables:
        if wiring.ethernet and not {cable.a.node, cable.z.node} & wiring.hosts:
            continue
        nodes = {"", cable.a.node, cable.z.node}
        result.planned.update(nodes)
        if compared.is_right(cable):
            result.right.update(nodes)
        elif name := compared.not_known(cable):
            result.unknown.setdefault(name, set()).update(nodes - {""})
        else:
            wrong.append(cable)
    result.wrong = list(_wrong_cables(wrong, compared))
    result.extra = list(_extra(compared))
    return result


def _wrong_cables(wrong: Iterable[_Planned], compared: _Compared) -> Iterator[WrongCable]:
    """Yield each wrong cable; two whose ends were swapped are one."""
    done: set[_Planned] = set()
    for cable in wrong:
        if cable in done:
            continue
        both = [cable, *filter(None, [compared.swapped_with(cable)])]
        done.update(both)
        part = ", ".join(f"{one.a.label} - {one.z.label}" for one in both)
        where = ", ".join(one.where for one in both if one.where)
        ends = [end for one in both for end in (one.a, one.z)]
        found = [(end.node, plug.node) for end in ends if (plug := compared.found(end))]
        yield WrongCable(
            frozenset(end.node for end in ends),
            part,
            _measured(both, compared),
            f"connected as planned ({where})",
            code="swapped" if len(both) > 1 else "misplaced" if found or not cable.a.port else "missing",
            planned=tuple((one.a.node, one.z.node) for one in both),
            found=tuple(dict.fromkeys(found)),
        )


def _measured(cables: Sequence[_Planned], compared: _Compared) -> str:
    cable = cables[0]
    if not cable.a.port:
        found = listed(sorted(compared.linked.get(cable.a.node, ())))
        return f"{cable.a.label} has links to: {found}"
    if len(cables) > 1:
        return "swapped: " + ", ".join(_seen(one.a, compared) for one in cables)
    if compared.found(cable.a) is compared.found(cable.z) is None:
        return "no link at this end" if compared.wiring.ethernet else "neither end has a link"
    # of the other end LLDP on the nodes shows nothing
    ends = [end for end in (cable.a, cable.z) if compared.found(end) or not compared.wiring.ethernet]
    return ", ".join(_seen(end, compared) for end in ends)


def _seen(end: _End, compared: _Compared) -> str:
    found = compared.found(end)
    return f"{end.label} is connected to {found.label}" if found else f"{end.label} has no link"


def _extra(compared: _Compared) -> Iterator[str]:
    """Yield the links between two devices of the plan whose ports are in no planned cable."""
    whole = {end.node for cable in compared.cables for end in (cable.a, cable.z) if end.port}
    for link in compared.wiring.links:
        ends = {(plug.node, port) for plug in link for port in plug.ports}
        if all(plug.node in whole for plug in link) and not ends & compared.planned.keys():
            yield " - ".join(plug.label for plug in link)
