"""The InfiniBand subnet as found: devices, ports and links, of `ibnetdiscover` and `iblinkinfo --line`. Pure.

Formats: infiniband-diags of rdma-core (ibnetdiscover.c, iblinkinfo.c), versions 1.6 to 60; the output of ibnetdiscover that
a site has saved reads the same.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.part import Part

Kind = Literal["HCA", "switch", "router"]

_KINDS: dict[str, Kind] = {"Switch": "switch", "Ca": "HCA", "Rt": "router"}
# Gb/s of one lane, as iblinkinfo prints them (libibmad/dump.c), and what is left for data, as sysfs and data sheets state it
_SPEEDS = {
    2.5: "SDR",
    5.0: "DDR",
    10.0: "QDR",
    14.0625: "FDR",
    25.78125: "EDR",
    53.125: "HDR",
    106.25: "NDR",
    212.5: "XDR",
}
_NOMINAL = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A switch, HCA or router. guid: of the node, 16 hex digits; ports: how many it has; lid: of a switch, else 0."""

    guid: str
    kind: Kind
    description: str
    ports: int
    system_guid: str = ""
    device_id: str = ""
    lid: int = 0

    @property
    def node(self) -> str:
        """The short name: of a switch its own, of an HCA that of its host.

        >>> Device("1", "switch", "MF0;leaf01:MQM9790/U1", 65).node, Device("2", "HCA", "gpu01 mlx5_0", 1).node
        ('leaf01', 'gpu01')
        """
        return short_name(self.kind, self.description)


@dataclass(frozen=True)
class SubnetPort:
    """One end of a link. guid: of the port, of a switch that of port 0; number: as on the device, from 1."""

    guid: str
    description: str
    kind: Kind
    node_guid: str
    number: int
    lid: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What names the port in its subnet: the GUID of its device, and its number."""
        return self.node_guid, self.number

    @property
    def node(self) -> str:
        """The short name of its device."""
        return short_name(self.kind, self.description)

    @property
    def label(self) -> str:
        """The port for people: `leaf01 port 7`, `gpu01 mlx5_0`; of an HCA with several ports, with its number."""
        if self.kind == "HCA" and self.number == 1:
            return self.description
        name = self.description if self.kind == "HCA" else self.node
        return f"{name} port {self.number}"

    @property
    def part(self) -> Part:
        """The port as the part of a finding."""
        return Part("port", name=self.label, nodes=(self.node,))


@dataclass(frozen=True)
class Link:
    """A cable with both ends. `a` is the HCA where one end is; else the end with the first name.

    width: 4x; speed: NDR; '' where the tool did not print them. state: Active, Init, Armed, Down; '' without iblinkinfo.
    could_be: what both ends support beyond that, `4X` or `106.25 Gbps`, as iblinkinfo prints it; '' if nothing.
    """

    a: SubnetPort
    z: SubnetPort
    width: str = ""
    speed: str = ""
    state: str = ""
    could_be: str = ""

    @property
    def ends(self) -> tuple[SubnetPort, SubnetPort]:
        """Both ends."""
        return self.a, self.z

    @property
    def gbps(self) -> float:
        """The rate as sysfs states it, like 400 of 4x NDR; 0 if it is not known.

        >>> port = SubnetPort("1", "leaf", "switch", "1", 1)
        >>> Link(port, port, "4x", "NDR").gbps, Link(port, port).gbps
        (400.0, 0.0)
        """
        lanes = self.width.removesuffix("x")
        return int(lanes) * _NOMINAL.get(self.speed, 0.0) if lanes.isdecimal() else 0.0

    @property
    def rate(self) -> str:
        """The rate for people: `4x NDR (400 Gb/s)`."""
        return f"{self.width} {self.speed} ({self.gbps:g} Gb/s)" if self.gbps else "unknown"

    @property
    def between_switches(self) -> bool:
        """Whether no end is an HCA."""
        return self.a.kind != "HCA"

    @property
    def label(self) -> str:
        """The link for people, by both ends: `gpu01 mlx5_0 - leaf01 port 7`."""
        return f"{self.a.label} - {self.z.label}"

    @property
    def part(self) -> Part:
        """The link as the part of a finding."""
        return Part("cable", name=self.label, nodes=(self.a.node, self.z.node))


@dataclass(frozen=True)
class PortState:
    """A line of iblinkinfo: state of a port. width, speed: '' of a port that is down; physical: LinkUp, Polling, Disabled.

    answered: False where the link is up and no device answers at its other end.
    """

    guid: str
    number: int
    description: str
    lid: int
    state: str
    physical: str
    width: str = ""
    speed: str = ""
    could_be: str = ""
    answered: bool = True


@dataclass(frozen=True)
class Subnet:
    """Devices and links of a subnet. links: each once; devices without a link are devices too."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]

    @cached_property
    def switches(self) -> tuple[Device, ...]:
        """The switches."""
        return tuple(device for device in self.devices if device.kind == "switch")

    @cached_property
    def hcas(self) -> tuple[Device, ...]:
        """The HCAs, without the aggregation nodes that switches present as HCAs."""
        return tuple(it for it in self.devices if it.kind == "HCA" and "Aggregation Node" not in it.description)

    @cached_property
    def peers(self) -> dict[tuple[str, int], SubnetPort]:
        """{key of a port: the port at the other end of its cable}."""
        return {one.key: other for link in self.links for one, other in (link.ends, link.ends[::-1])}

    @cached_property
    def by_port_guid(self) -> dict[str, tuple[SubnetPort, Link]]:
        """{GUID of an HCA's port: the port and its link, of which it is end `a`}."""
        return {link.a.guid: (link.a, link) for links in self.of_hca.values() for link in links}

    @cached_property
    def of_hca(self) -> dict[str, list[Link]]:
        """{GUID of an HCA: its links, of which it is end `a`}; two hosts without a switch have one link."""
        found: defaultdict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            if link.a.kind == "HCA":
                found[link.a.node_guid].append(link)
            if link.z.kind == "HCA":
                found[link.z.node_guid].append(replace(link, a=link.z, z=link.a))
        return found

    @cached_property
    def leaves(self) -> frozenset[str]:
        """GUIDs of the switches with an HCA of a host."""
        hosts = {device.guid for device in self.hcas}
        return frozenset(link.z.node_guid for link in self.links if link.a.node_guid in hosts)


def short_name(kind: Kind, description: str) -> str:
    """Return the name of a device out of its node description.

    Managed switches of NVIDIA have `MF0;NAME:MODEL/U1`, chips of a chassis `MF0;NAME:MODEL/L01/U1`; HCAs have `HOST mlx5_0`
    (rdma-ndd) or `HOST HCA-1` (openibd).

    >>> short_name("switch", "MF0;core1:MCS8500/L01/U1"), short_name("switch", "Quantum Mellanox Technologies")
    ('core1/L01/U1', 'Quantum Mellanox Technologies')
    """
    if kind == "HCA":
        return description.split(" ", maxsplit=1)[0].split(".", maxsplit=1)[0]
    named = re.fullmatch(r"\w{1,8};(.{1,64}):[^/\s]{1,32}(/\S{1,32})?", description.strip())
    if not named:
        return description.strip()
    return named[1] if named[2] in (None, "/U1") else named[1] + named[2]


_ID = re.compile(r"^(sysimgguid|devid|switchguid|caguid|rtguid)=0x([0-9a-fA-F]{1,16})(?:\(([0-9a-fA-F]{1,16})\))?")
_DEVICE = re.compile(
    r'^(Switch|Ca|Rt)\s+(\d{1,3})\s+"[SHR]-([0-9a-fA-F]{16})"\s*#\s*"(.*)"(?: (?:base|enhanced) port 0 lid (\d{1,6}))?'
)
_LINE = re.compile(
    r"^\[(\d{1,3})\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]{1,16})\))?\s+"
    r'"([SHR])-([0-9a-fA-F]{16})"\[(\d{1,3})\](?:\[ext \d+\])?\s*(?:\(([0-9a-fA-F]{1,16})\))?\s*#\s*(.*)$'
)
_REMOTE = re.compile(r'(?:lid (\d{1,6}) lmc \d+ )?"(.*)" lid (\d{1,6})\s*(?:(\d{1,2}x)([A-Z?]+\d*))?')
_REMOTE_KINDS: dict[str, Kind] = {"S": "switch", "H": "HCA", "R": "router"}


def padded(guid: str) -> str:
    """Return a GUID as 16 hex digits."""
    return guid.strip().lower().removeprefix("0x").zfill(16)


def read_ibnetdiscover(text: str) -> Subnet:
    """Return the subnet of ibnetdiscover's output, plain or grouped (-g); ProbeError if it names no device.

    A link that only one end lists is a link too: the other end may not have answered.
    """
    devices: list[Device] = []
    links: dict[frozenset[tuple[str, int]], Link] = {}
    ids: dict[str, str] = {}
    port_zero = ""
    for line in text.splitlines():
        if identity := _ID.match(line):
            ids[identity[1]] = identity[2]
            port_zero = identity[3] or port_zero
        elif header := _DEVICE.match(line):
            devices.append(
                Device(
                    padded(header[3]),
                    _KINDS[header[1]],
                    header[4],
                    int(header[2]),
                    padded(ids.get("sysimgguid", "")),
                    ids.get("devid", ""),
                    int(header[5] or 0),
                )
            )
            ids = {}
        elif (found := _LINE.match(line)) and devices:
            link = _link(devices[-1], port_zero, found)
            links.setdefault(frozenset((link.a.key, link.z.key)), link)
    if not devices:
        raise ProbeError("ibnetdiscover: the output names no switch and no HCA")
    return _named_apart(Subnet(tuple(devices), tuple(links.values())))


def _named_apart(subnet: Subnet) -> Subnet:
    """Return the subnet in which each switch has a name of its own: unmanaged ones all have that of their chip; it is their GUID."""
    count = Counter(it.node for it in subnet.switches)
    names = {it.guid: f"0x{it.guid}" for it in subnet.switches if count[it.node] > 1}
    if not names:
        return subnet

    def named(port: SubnetPort) -> SubnetPort:
        return replace(port, description=names.get(port.node_guid, port.description))

    links = (Link(*_ordered(named(it.a), named(it.z)), it.width, it.speed) for it in subnet.links)
    devices = (replace(it, description=names.get(it.guid, it.description)) for it in subnet.devices)
    return Subnet(tuple(devices), tuple(links))


def _link(device: Device, port_zero: str, found: re.Match[str]) -> Link:
    number, own_guid, letter, guid, remote_number, remote_guid, comment = found.groups()
    remote = _REMOTE.match(comment)
    own_lid, description, lid, width, speed = remote.groups() if remote else (None, "", 0, "", "")
    one = SubnetPort(
        padded(own_guid or (port_zero if device.kind == "switch" else "") or device.guid),
        device.description,
        device.kind,
        device.guid,
        int(number),
        int(own_lid or device.lid),
    )
    other = SubnetPort(
        padded(remote_guid or guid), description, _REMOTE_KINDS[letter], padded(guid), int(remote_number), int(lid)
    )
    return Link(*_ordered(one, other), width or "", speed or "")


def _ordered(one: SubnetPort, other: SubnetPort) -> tuple[SubnetPort, SubnetPort]:
    a, z = sorted((one, other), key=lambda port: (port.kind != "HCA", port.node, port.number, port.guid))
    return a, z


_STATE = re.compile(
    r'^0x([0-9a-fA-F]{16}) "\s*(.*?)"\s+(\d{1,6})\s+(\d{1,3})\[ {0,2}\d*\] ==\('
    r"\s*(?:(\d{1,2}X|undefined \(\d+\))\s+(.*?)\s+)?(\w+)/\s*(\S.*?)\)(?: \(HOQ.*?\))?==>\s*(.*?)\s*$"
)
# 8X and 12X are no cable of a cluster's links, whatever a port supports
_COULD_BE = re.compile(r"Could be ([1-4]X|FDR10|[\d.]+ Gbps(?: \(FDR10\))?)")


def read_iblinkinfo(text: str) -> tuple[PortState, ...]:
    """Return the ports of `iblinkinfo --line`, with those that are down; ProbeError if there are none."""
    ports = []
    for found in filter(None, map(_STATE.match, text.splitlines())):
        guid, description, lid, number, width, rate, state, physical, remarks = found.groups()
        could_be, answered = " ".join(_COULD_BE.findall(remarks)), "Port not available" not in remarks
        at = PortState(padded(guid), int(number), description, int(lid), state, physical.strip())
        lanes, speed = (width or "").lower(), _speed(rate or "")
        ports.append(replace(at, width=lanes, speed=speed, could_be=could_be, answered=answered))
    if not ports:
        raise ProbeError("iblinkinfo --line: the output names no port")
    return tuple(ports)


def _speed(rate: str) -> str:
    """Return the name of a lane's rate as iblinkinfo prints it.

    >>> _speed("106.25 Gbps"), _speed("10.0 Gbps (FDR10)"), _speed("undefined (16)")
    ('NDR', 'FDR10', 'undefined (16)')
    """
    if rate.endswith("(FDR10)"):
        return "FDR10"
    number = re.match(r"([\d.]{1,10}) Gbps", rate)
    return _SPEEDS.get(float(number[1]), rate) if number else rate


def with_states(subnet: Subnet, ports: tuple[PortState, ...]) -> Subnet:
    """Return the subnet with state, width and speed of its links as iblinkinfo found them; the worse end counts."""
    states = {(port.guid, port.number): port for port in ports}

    def joined(link: Link) -> Link:
        found = [it for end in link.ends if (it := states.get((end.guid, end.number)))]
        if not found:
            return link
        worst = min(found, key=lambda it: (it.state == "Active", not it.could_be))
        return replace(
            link,
            width=worst.width or link.width,
            speed=worst.speed or link.speed,
            state=worst.state,
            could_be=worst.could_be,
        )

    return replace(subnet, links=tuple(map(joined, subnet.links)))
