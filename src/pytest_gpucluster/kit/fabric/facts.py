"""The network for GPU traffic: adapters and ports from /sys/class/infiniband, modules, interfaces, IOMMU and ACS.

Formats: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel, ibv_devinfo(1), lspci(8). Files are read
with one `grep`, which prints `path:content`; a file that is absent, empty or unreadable has no content.
`nvidia-smi topo -m` is read only if no adapter, or no GPU, has a PCI path.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part import port as port_part
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu.node_links import ENTRIES_SH
from pytest_gpucluster.kit.gpu.nvidia_smi import topology_of
from pytest_gpucluster.kit.gpu.pcie import NEAR, REPRESENTOR, bridges, made_up_paths, pci_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.part import Part

_BRIDGE = "MT4129"  # ConnectX-7 (Fabric Manager User Guide)
# Width in bits as the kernel reads them (PortCounters of IBTA's PMA; drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR);
# at its maximum a counter stops until it is cleared
COUNTERS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}
_OF_DEVICE = ("fw_ver", "hca_type", "board_id", "sys_image_guid")
_NETDEV = "gid_attrs/ndevs/0"  # the network interface of the port
_OF_PORT = ("state", "phys_state", "rate", "link_layer", _NETDEV, *(f"counters/{name}" for name in COUNTERS))

_KEY = r"infiniband/([^/\s]+)/ports/(\d+)/pkeys/\d+:0x([0-9a-fA-F]{4})$"
_PKEYS = 32  # entries of the table that are read; a subnet manager fills it from the first on
_ADAPTERS = script(
    __package__,
    "adapters.sh",
    OF_DEVICE=" ".join(_OF_DEVICE),
    OF_PORT=" ".join(_OF_PORT),
    PKEYS=" ".join(map(str, range(_PKEYS))),
)


class Location(NamedTuple):
    """Where a port is: the PCI address of its adapter, else its name, and the port's number."""

    adapter: str
    number: int

    def __str__(self) -> str:
        return f"{self.adapter} port {self.number}"


@dataclass(frozen=True)
class Port:
    """One port. `rate` in GB/s (400 Gb/sec is 50.0); `mtu` is the active MTU of InfiniBand, from ibv_devinfo.

    `counters` holds those that are numbers, `garbled` the text of the others ('N/A (no PMA)'). `virtual`: of a virtual
    function whose physical adapter is in this host too. `path`: PCI addresses from the root port to the adapter, () if
    unknown. `representor`: it stands for a function of the adapter's own switch (switchdev mode), not for a cable.
    `bridge`: it is wired to NVSwitches. `card`: the system image GUID, which the functions of one card share; None if unknown.
    `pkeys`: its partition keys with the bit of full membership (0x8000), sorted; () if unknown.
    """

    device: str
    number: int
    firmware: str | None = None
    hca_type: str | None = None
    board: str | None = None
    state: str | None = None
    phys_state: str | None = None
    rate: float | None = None
    link_layer: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    interfaces: Mapping[str, int | None] = field(default_factory=dict)
    mtu: int | None = None
    garbled: Mapping[str, str] = field(default_factory=dict)
    virtual: bool = False
    path: tuple[str, ...] = ()
    representor: bool = False
    bridge: bool = False
    card: str | None = None
    pkeys: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Its name in metrics and reasons: mlx5_0 port 1."""
        return f"{self.device} port {self.number}"

    @property
    def part(self) -> Part:
        """The port as the part of a finding."""
        return port_part(self.device, self.number, address=self.address * (self.address != self.device))

    @property
    def address(self) -> str:
        """The PCI address of the adapter, '' if unknown."""
        return self.path[-1] if self.path else ""

    @property
    def location(self) -> Location:
        """What is the same port on other nodes: names of drivers move up if an adapter is missing, addresses do not."""
        return Location(self.address or self.device, self.number)

    @property
    def board_or_chip(self) -> str:
        """The board, else the chip."""
        return self.board or self.hca_type or ""


@dataclass(frozen=True)
class Adapters:
    """All ports of a node, its uptime in seconds, the PCI paths of its GPUs, and the name of the machine in DMI."""

    ports: tuple[Port, ...]
    uptime: float | None
    gpus: tuple[tuple[str, ...], ...] = ()
    product: str = ""


def parse_adapters(answer: Answer) -> Adapters:
    """Return the ports, also none; ProbeError if the end of the answer is missing."""
    lines = answer.out.splitlines()
    if "end" not in lines or answer.truncated:
        raise ProbeError("/sys/class/infiniband: the answer ended early")
    mtus = _active_mtus(lines)
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith("port "):
            blocks.append([])
        if blocks:
            blocks[-1].append(line)
    uptime = re.search(r"^uptime (\d+\.?\d*)", answer.out, re.MULTILINE)
    product = re.search(r"^product (.+)", answer.out, re.MULTILINE)
    paths = {words[1]: pci_path(words[2]) for line in lines if len(words := line.split()) == 3 and words[0] == "path"}
    marked = {line.split("/")[-3] for line in lines if re.fullmatch(r"/\S+/device/vpd", line)}
    found = [_port(block, mtus) for block in blocks]
    ports = [replace(port, path=paths.get(port.device, ())) for port in found]
    # only root can read the vital product data of a bridge; a guest may have all its adapters in one slot
    functions = bridges(
        {
            port.device: port.address
            for port in ports
            if port.path and not port.virtual and port.hca_type == _BRIDGE and port.link_layer == "InfiniBand"
        }
    )
    marked |= functions if any(port.device not in functions for port in ports) else set()
    gpus = {pci_path(line.split()[1]) for line in lines if re.match(r"gpu \S", line)} - {()}
    in_order = tuple(sorted(gpus, key=lambda path: path[-1]))
    keys: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for device, number, key in re.findall(_KEY, answer.out, re.MULTILINE):
        keys[device, int(number)].add(int(key, 16))
    ports = [
        replace(port, bridge=port.device in marked, pkeys=tuple(sorted(keys[port.device, port.number])))
        for port in ports
    ]
    if "topology" in lines and (near := _near(answer.out.partition("\ntopology\n")[2])):
        ports = [replace(port, path=near.get(port.device, ())) for port in ports]
        in_order = tuple(path for name, path in near.items() if re.fullmatch(r"GPU\d+", name))
    seconds, name = float(uptime[1]) if uptime else None, product[1].strip() if product else ""
    return Adapters(tuple(ports), seconds, in_order, name)


def _near(text: str) -> dict[str, tuple[str, ...]]:
    """Return made-up paths of GPUs (in their order) and adapters from `nvidia-smi topo -m`; {} if it shows none."""
    try:
        found = topology_of(text)
    except ProbeError:
        return {}
    cells = {
        f"GPU{gpu}": {**found.nics[gpu], **{f"GPU{other}": cell for other, cell in links.items()}}
        for gpu, links in sorted(found.links.items())
    }
    near = {gpu: [other for other, cell in row.items() if cell in NEAR] for gpu, row in cells.items()}
    paths = made_up_paths(near)
    return {**{gpu: paths[gpu] for gpu in cells}, **paths}  # GPU10 after GPU9


def _port(block: list[str], mtus: Mapping[tuple[str, int], int]) -> Port:
    _, device, number, *virtual = block[0].split()
    values = _values(f"/{device}/", f"ports/{number}/", block)
    rate = re.match(r"(\d+\.?\d*) Gb/sec", values["rate"]) if "rate" in values else None
    counters = {name: values[f"counters/{name}"] for name in COUNTERS if f"counters/{name}" in values}
    interfaces = [line.partition(" name") for line in block if line.startswith("net ")]
    # port names: the cable's interface has p0, a representor pf0vf1, c1pf0sf2 or pf0hpf (kernel: devlink-port.rst)
    others = {head.split()[1] for head, _, text in interfaces if REPRESENTOR.fullmatch(text.strip())}
    own = values.get(_NETDEV)
    mtu_of = [head.split()[1:3] for head, _, _ in interfaces]
    return Port(
        device,
        int(number),
        values.get("fw_ver"),
        values.get("hca_type"),
        values.get("board_id"),
        _after_colon(values.get("state")),
        _after_colon(values.get("phys_state")),
        float(rate[1]) / 8 if rate else None,
        values.get("link_layer"),
        {name: int(text) for name, text in counters.items() if text.isdecimal()},
        {name: int(mtu[0]) if mtu and mtu[0].isdecimal() else None for name, *mtu in mtu_of},
        mtus.get((device, int(number))),
        {name: text[:40] for name, text in counters.items() if not text.isdecimal()},
        virtual=bool(virtual),
        card=guid if (guid := values.get("sys_image_guid")) and guid.strip("0:") else None,
        representor=own in others if own else bool(others) and int(number) > 1,
    )


def _values(device: str, port: str, lines: list[str]) -> dict[str, str]:
    """Return {file below the device or its port: content}; blank contents are left out."""
    pairs = (line.partition(":") for line in lines if not line.startswith("net "))
    texts = {path.rpartition(device)[2].removeprefix(port): text.strip() for path, _, text in pairs}
    return {name: text for name, text in texts.items() if text}


def _after_colon(text: str | None) -> str | None:
    """Read '4: ACTIVE'."""
    return text.partition(": ")[2] or None if text is not None else None


def _active_mtus(lines: list[str]) -> dict[tuple[str, int], int]:
    """Read 'hca_id:', 'port:' and 'active_mtu:' of ibv_devinfo."""
    found, device, port = {}, "", 0
    for line in lines:
        name, _, text = (part.strip() for part in line.partition(":"))
        if name == "hca_id":
            device = text
        elif name == "port" and text.isdecimal():
            port = int(text)
        elif name == "active_mtu" and (match := re.match(r"\d+", text)):
            found[device, port] = int(match[0])
    return found


# --- GPUDirect RDMA, interfaces ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerMemory:
    """Conditions of GPUDirect RDMA: loaded modules, the line of the NVIDIA driver, the kernel's release."""

    modules: frozenset[str]
    driver: str | None
    kernel: str | None

    @property
    def open_modules(self) -> bool | None:
        """Whether the driver has the open kernel modules (since R515); None if unknown."""
        return "Open Kernel Module" in self.driver if self.driver else None


def parse_peer_memory(answer: Answer) -> PeerMemory:
    """Read the answer; NotAvailable if neither /proc/modules nor lsmod could be read."""
    lines = [line.strip() for line in answer.out.splitlines()]
    kernel = next((line.split()[1] for line in lines if re.match(r"kernel \d", line)), None)
    driver = next((line.partition(":")[2].strip() for line in lines if line.startswith("NVRM version:")), None)
    listed = lines[: lines.index("listed")] if "listed" in lines else []
    names = frozenset(line.split()[0].replace("-", "_") for line in listed if line)
    if not names:
        raise NotAvailable(f"cat /proc/modules: {last_line(answer.err) or 'no module is listed'}")
    return PeerMemory(names - {"Module"}, driver or None, kernel)


@dataclass(frozen=True)
class Interfaces:
    """Names in /sys/class/net and /sys/class/infiniband; IPv4 addresses by name, None if `ip` is absent."""

    names: frozenset[str]
    devices: frozenset[str]
    addresses: Mapping[str, tuple[ipaddress.IPv4Interface, ...]] | None


def parse_interfaces(answer: Answer) -> Interfaces:
    """Read the listing; NotAvailable if /sys/class/net could not be listed (it always has lo)."""
    rows = [line.split() for line in answer.out.splitlines()]
    names = frozenset(row[1] for row in rows if row[:1] == ["net"] and row[1:])
    devices = frozenset(row[1] for row in rows if row[:1] == ["hca"] and row[1:])
    if not names or ["end"] not in rows:
        raise NotAvailable(f"ls /sys/class/net: {last_line(answer.err) or 'no answer'}")
    found = grouped(
        (row[1], ipaddress.IPv4Interface(row[3]))
        for row in rows
        if row[0].rstrip(":").isdecimal() and len(row) > 3 and row[2] == "inet"  # N: eth0 inet A/N
    )
    addresses = {name: tuple(its) for name, its in found.items()}
    return Interfaces(names, devices, addresses or None)


# --- GIDs of RoCE ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GidPort:
    """One port and its GID table: {index: type}, as 'RoCE v2' or 'IB/RoCE v1'; unused indices have no type."""

    device: str
    number: int
    link_layer: str | None
    types: Mapping[int, str]

    def __str__(self) -> str:
        """Its name in reasons: mlx5_0 port 1."""
        return f"{self.device} port {self.number}"

    @property
    def part(self) -> Part:
        """The port as the part of a finding."""
        return port_part(self.device, self.number)


def parse_gids(answer: Answer) -> tuple[GidPort, ...]:
    """Return the GID types of all ports of adapters.sh, also none; ProbeError if the end of the answer is missing."""
    lines = answer.out.splitlines()
    if "end" not in lines or answer.truncated:
        raise ProbeError("/sys/class/infiniband/*/ports/*/gid_attrs: the answer ended early")
    found: list[tuple[str, int, str | None, dict[int, str]]] = []
    for line in lines[: lines.index("end")]:
        words = line.split()
        if words[:1] == ["gids"] and len(words) > 2 and words[2].isdecimal():  # gids mlx5_0 1 Ethernet
            found.append((words[1], int(words[2]), words[3] if words[3:] else None, {}))
            continue
        path, colon, gid_type = line.partition(":")
        if "/gid_attrs/types/" not in path:
            continue
        index = path.rpartition("/")[2]
        where = f"/{found[-1][0]}/ports/{found[-1][1]}/" if found else ""
        if not (where and where in path and colon and index.isdecimal()):
            raise ProbeError(f"/sys/class/infiniband/*/ports/*/gid_attrs: unexpected line {line[:80]!r}")
        found[-1][3][int(index)] = gid_type.strip()
    return tuple(GidPort(*port) for port in found)


# --- the path between GPU and adapter ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Iommu:
    """The kernel's command line, its active IOMMUs, and {device: type of its domain}.

    A device is mlx5_0 or the PCI address of a GPU; types are those of /sys/kernel/iommu_groups/N/type: `identity`
    does not translate addresses, `DMA` and `DMA-FQ` do.
    """

    cmdline: tuple[str, ...]
    units: tuple[str, ...]
    domains: Mapping[str, str] = field(default_factory=dict)


def parse_iommu(answer: Answer) -> Iommu:
    """Read /proc/cmdline, /sys/class/iommu and the types of the devices' groups."""
    lines = answer.out.splitlines()
    if not lines or lines[-1] != "end" or not lines[0].strip():
        raise NotAvailable(f"cat /proc/cmdline: {last_line(answer.err) or 'no answer'}")
    domains, units = {}, []
    for line in filter(None, lines[1:-1]):
        device, _, domain_type = line.partition("/iommu_group/type:")
        if domain_type:
            domains[device.removesuffix("/device").rpartition("/")[2]] = domain_type.strip()
        else:
            units.append(line.strip())
    return Iommu(tuple(lines[0].split()), tuple(units), domains)


@dataclass(frozen=True)
class Acs:
    """PCIe devices that have Access Control Services, and those of them that redirect requests (ReqRedir+).

    `switches` are downstream ports of PCIe switches, which forward traffic between an adapter and a GPU; `others` are
    root ports, other devices, and switches that forward translated requests (DirectTrans+, for ATS).
    """

    devices: int
    switches: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def parse_acs(answer: Answer) -> Acs:
    """Read the folded lspci -vvv; NotAvailable without lspci or without the right to read capabilities."""
    rows = [line.split(maxsplit=3) for line in answer.out.splitlines()]
    end = next((row for row in rows if row[:1] == ["end"] and len(row) == 3), None)  # end, devices, denied
    if end is None or not end[1].isdecimal() or end[1] == "0":
        raise NotAvailable(f"lspci -vvv: {last_line(answer.err) or 'no device'}")
    controls = [row for row in rows if row[:1] == ["acs"] and len(row) > 3]  # acs, address, kind, text
    if not controls and end[2] != "0":
        raise NotAvailable("lspci -vvv: capabilities are hidden: root is needed")
    found: dict[bool, list[str]] = {True: [], False: []}  # those of switches, and others
    for _, device, kind, text in controls:
        if "ReqRedir+" in text:
            found[kind == "downstream" and "DirectTrans+" not in text].append(device)
    return Acs(len(controls), tuple(found[True]), tuple(found[False]))


ADAPTERS = Probe(
    "network adapters",
    f"keys=read; {ENTRIES_SH}\n{_ADAPTERS}",
    parse_adapters,
    by_hand="ibstat; ls /sys/class/infiniband",
)
# uptime and counters, late in the run
ADAPTERS_LATER = replace(
    ADAPTERS,
    name="network adapters, later",
    command=f"keys=; {ENTRIES_SH}\n{_ADAPTERS}",
    by_hand="grep . /sys/class/infiniband/*/ports/*/counters/*",
)
PEER_MEMORY = Probe(
    "GPUDirect RDMA",
    "{ cat /proc/modules || lsmod; } && echo listed; echo kernel $(uname -r); "
    "cat /proc/driver/nvidia/version 2>/dev/null; :",
    parse_peer_memory,
    by_hand="lsmod | grep -e peermem -e peer_mem; cat /proc/driver/nvidia/version; uname -r",
)
INTERFACES = Probe(
    "network interfaces",
    "k=net; for n in $(ls /sys/class/net /sys/class/infiniband 2>/dev/null); do case $n in */net:) k=net ;; "
    "*/infiniband:) k=hca ;; *) echo $k $n ;; esac; done; ip -o -4 addr show 2>/dev/null; echo end",
    parse_interfaces,
    by_hand="ip -o addr; ls /sys/class/infiniband",
)
GIDS = Probe(
    "GID types", ADAPTERS.command, parse_gids, by_hand="grep . /sys/class/infiniband/*/ports/*/gid_attrs/types/*"
)
IOMMU = Probe(
    "IOMMU",
    "cat /proc/cmdline; for u in /sys/class/iommu/*; do [ ! -e $u ] || echo ${u##*/}; done; "
    "grep -H . /sys/class/infiniband/*/device/iommu_group/type /sys/bus/pci/drivers/nvidia/*/iommu_group/type 2>/dev/null; echo end",
    parse_iommu,
    by_hand="cat /proc/cmdline; ls /sys/class/iommu; grep . /sys/class/infiniband/*/device/iommu_group/type",
)
ACS = Probe(
    "PCIe access control",
    "lspci -vvv | awk " + shlex.quote(script(__package__, "acs.awk")),
    parse_acs,
    root=True,
    by_hand="lspci -vvv | grep -e '^[0-9a-f]' -e 'Express (' -e ACSCtl",
)
