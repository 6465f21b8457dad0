"""Cards and drives on PCIe from sysfs. Formats: Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel, pci.ids (classes).

`grep` reads all files at once; awk on the node keeps one line per function of a card or drive, so that 1000 nodes send little.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.majority import Norm, decides, norm
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

GPUS = ("GPUs", "accelerators", "display controllers")  # an RTX card has the class of the last
# by class, then by base class; an adapter for InfiniBand or Ethernet has another class in the other mode
_GROUPS = {
    "0108": "NVMe drives",
    "01": "storage controllers",
    "02": "network adapters",
    "0302": "GPUs",
    "03": "display controllers",
    "0680": "NVSwitches",
    "0b": "accelerators",
    "12": "accelerators",
}
NO_LINK = 255  # the kernel's width of a link that is not known


@dataclass(frozen=True)
class PcieLink:
    """Lanes and GT/s of a PCIe link."""

    width: int
    speed: float

    def __str__(self) -> str:
        """Like 'x16 at 32 GT/s'."""
        return f"x{self.width} at {self.speed:g} GT/s"


@dataclass(frozen=True)
class PciFunction:
    """A function of a card or drive. `kind`: vendor and device like 144d:a80a; `link` is None if the device has none.

    driver: '' where no driver uses it; `name`: the kernel's, like mlx5_4. lanes: the most that both the device and its slot
    allow; 0 if the kernel does not show it.
    """

    address: str
    pci_class: str
    kind: str
    link: PcieLink | None
    driver: str = ""
    name: str = ""
    lanes: int = 0

    @property
    def part(self) -> Part:
        """Like 'mlx5_4 (0000:18:00.0)'."""
        return Part("device", name=self.name, address=self.address)

    @property
    def slot(self) -> str:
        """The address without the function: a card may have several."""
        return self.address.rpartition(".")[0]

    @property
    def group(self) -> str:
        """What it is, as reports name it."""
        return _GROUPS.get(self.pci_class) or _GROUPS[self.pci_class[:2]]


@dataclass(frozen=True)
class Drive:
    """An NVMe controller on PCIe; a text is '' where the kernel shows none."""

    name: str
    model: str
    firmware: str
    state: str


@dataclass(frozen=True)
class Devices:
    """The cards and drives of a node, without virtual functions.

    arrays: the names of its md arrays. degraded: {array that lacks a member: its state}; rebuilding: arrays that recover now.
    """

    functions: tuple[PciFunction, ...]
    drives: tuple[Drive, ...] = ()
    arrays: tuple[str, ...] = ()
    degraded: Mapping[str, str] = field(default_factory=dict)
    rebuilding: frozenset[str] = frozenset()

    @cached_property
    def cards(self) -> dict[str, str]:
        """{slot: its group}."""
        return {function.slot: function.group for function in self.functions}

    def count(self, group: str) -> int:
        """Return the number of cards of a group."""
        return sum(one == group for one in self.cards.values())


@dataclass(frozen=True)
class UsualDevices:
    """What most nodes of a group have.

    counts: {group: number of cards}. slots: {slot: group} of at least two thirds. links: of the same kind of device at the same
    address. firmware: {model: that of most drives of the model}.
    """

    counts: Mapping[str, Norm[int]]
    slots: Mapping[str, str]
    links: Mapping[tuple[str, str], Norm[PcieLink]]
    firmware: Mapping[str, Norm[str]]


def usual_devices(found: Mapping[str, Devices]) -> UsualDevices:
    """Return what most of these nodes have."""
    groups = {group for devices in found.values() for group in devices.cards.values()}
    slots: defaultdict[tuple[str, str], int] = defaultdict(int)
    links: defaultdict[tuple[str, str], list[tuple[str, PcieLink]]] = defaultdict(list)
    firmware: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for node, devices in found.items():
        for card in devices.cards.items():
            slots[card] += 1
        for function in devices.functions:
            if function.link:
                links[function.address, function.kind].append((node, function.link))
        for drive in devices.drives:
            if drive.firmware:
                firmware[drive.model].append((node, drive.firmware))
    return UsualDevices(
        {group: norm((node, one.count(group)) for node, one in found.items()) for group in sorted(groups)},
        {slot: group for (slot, group), count in sorted(slots.items()) if decides(count, len(found))},
        {place: norm(votes) for place, votes in links.items()},
        {model: norm(votes, "drives of this model") for model, votes in firmware.items()},
    )


def read_devices(answer: Answer) -> Devices:
    """Read the lines of devices.awk; NotAvailable without any device, ProbeError if the end of the answer is missing."""
    lines = answer.out.splitlines()
    if "end" not in lines:
        raise ProbeError("/sys/bus/pci/devices: the answer ended early")
    # the first name of an address counts: that of RDMA before that of the interface
    called = {words[1]: words[2] for line in reversed(lines) if len(words := line.split()) == 3 and words[0] == "name"}
    functions = tuple(_function(line, called) for line in lines if line.startswith("pci "))
    if not functions:
        raise NotAvailable(f"/sys/bus/pci/devices: no card or drive: {last_line(answer.err) or 'no message'}")
    raid = tuple(line[3:] for line in lines if line.startswith("md "))
    names = tuple(match[1] for line in raid if (match := re.match(r"(md\S+) : ", line)))
    return Devices(functions, tuple(_drives(lines)), names, _degraded(raid), frozenset(_rebuilding(raid)))


def _degraded(raid: Iterable[str]) -> dict[str, str]:
    """Return {array: its state} of those in /proc/mdstat that lack a member."""
    found, name = {}, ""
    for line in raid:
        if match := re.match(r"(md\S*) : ", line):
            name = match[1]
            if "(F)" in line or " : broken " in line:
                found[name] = line
        elif name and (match := re.search(r"\[[U_]*_[U_]*\]", line)):
            found.setdefault(name, f"{name} {match[0]}")
    return found


def _rebuilding(raid: Iterable[str]) -> Iterator[str]:
    """Yield the arrays of /proc/mdstat to which a member is being added."""
    name = ""
    for line in raid:
        if match := re.match(r"(md\S+) : ", line):
            name = match[1]
        elif re.search(r"\b(recovery|reshape) *=", line):
            yield name


def _function(line: str, called: Mapping[str, str]) -> PciFunction:
    words = line.split()
    if len(words) != 9 or (words[2] not in _GROUPS and words[2][:2] not in _GROUPS):
        raise ProbeError(f"PCI: not understood: {line[:80]!r}")
    _, address, pci_class, kind, width, speed, driver, *most = words
    known = width.isdecimal() and 0 < int(width) < NO_LINK and re.fullmatch(r"\d{1,3}(\.\d+)?", speed)
    link = PcieLink(int(width), float(speed)) if known else None
    lanes = min(int(it) % NO_LINK if it.isdecimal() else 0 for it in most)
    return PciFunction(address, pci_class, kind, link, driver.strip("-"), called.get(address, ""), lanes)


_NVME = re.compile(r"sys/class/nvme/(nvme\d+)/(model|firmware_rev|state|transport):(.*)")


def _drives(lines: list[str]) -> list[Drive]:
    files: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in lines:
        if match := _NVME.fullmatch(line):
            files[match[1]][match[2]] = match[3].strip()
    return [
        Drive(name, of.get("model", ""), of.get("firmware_rev", ""), of.get("state", ""))
        for name, of in files.items()
        if of.get("transport", "pcie") == "pcie"  # a kernel before 4.8 has no such file
    ]


DEVICES: Probe[Devices] = Probe(
    "PCI devices",
    script(__package__, "devices.sh", FOLD=shlex.quote(script(__package__, "devices.awk"))),
    read_devices,
    by_hand="lspci -nn; grep -s . /sys/bus/pci/devices/*/current_link_* /sys/class/nvme/*/firmware_rev",
)
