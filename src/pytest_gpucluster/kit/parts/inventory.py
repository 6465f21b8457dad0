"""The parts of a node and what identifies them. Pure.

Formats: `nvidia-smi -q` of drivers 470 to 590; `information` of NVSwitches (kernel-open/nvidia/procfs_nvswitch.c); `lspci -vv`, whose
vital product data need root; `ethtool -m` of ethtool 4.19 to 6.x (SFF-8636, SFF-8472 and CMIS); `lsblk -P`; dmidecode 3.x; `ipmitool
mc info`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import InstalledPart, Part, gpu, identity, port
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_SECTION = re.compile(r"^@@ (\S+)(?: ([^\n]+))?\n(.*?)^== (absent \S+|" + STATUS + r")$", re.MULTILINE | re.DOTALL)
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9])\s*$", re.MULTILINE)
_NONE = re.compile(r"N/?A|Not Supported|Not Specified|None|Unknown|NO DIMM|\[.*\]", re.IGNORECASE)


@dataclass(frozen=True)
class NodeParts:
    """The parts of a node, and {source: why it was not read}."""

    parts: tuple[InstalledPart, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


def read_inventory(answer: Answer) -> NodeParts:
    """Read the output of parts.sh."""
    if not re.search(r"^end$", answer.out, re.MULTILINE):
        if answer.rc:  # sudo, or the shell
            raise NotAvailable(f"{last_line(answer.err) or 'no message'} (exit {answer.rc})")
        raise ProbeError("the parts: the answer ended early")
    parts: list[InstalledPart] = []
    unread: dict[str, str] = {}
    adapters: dict[str, dict[str, str]] = {}
    for name, of, text, end in _SECTION.findall(answer.out):
        if name == "adapter":
            adapters[of.partition(" ")[0]] = _adapter(of, text)
        elif name == "vpd":
            adapters.get(of, {}).update(_fields(text))
        listed = list(_READERS[name](of, text)) if name in _READERS else []
        parts += listed
        if why := _not_read(name, text, end, bool(listed)):
            unread.setdefault(name, why)
    cards: dict[str, InstalledPart] = {}
    for found in adapters.values():
        cards.setdefault(found["address"].rpartition(".")[0], _card(found))  # functions of one card
    return NodeParts((*parts, *cards.values()), unread)


def _not_read(name: str, text: str, end: str, found: bool) -> str:
    """Return why a source gave no part, '' where it gave one or has none to give."""
    if end.startswith("absent "):
        return f"{end.removeprefix('absent ')} is not installed"
    if name == "vpd":
        return "needs root (sudo: true)" if "access denied" in text else ""
    if found or end == "0":
        return ""
    return f"{last_line(text) or 'no message'} ({CommandEnd.of(end)})"


def _fields(text: str) -> dict[str, str]:
    """Return {key: value} of lines `KEY : VALUE`; the first of a key counts, and what states nothing is left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, at, value = line.partition(":")
        value = value.strip()
        if at and value and not _NONE.fullmatch(value):
            found.setdefault(key.strip(), value)
    return found


def _gpus(_: str, text: str) -> Iterator[InstalledPart]:
    _, *blocks = _GPU.split(text)
    for index, (address, block) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
        known = _fields(block)
        part = gpu(
            index,
            uuid=known.get("GPU UUID", ""),
            address=address[-12:].lower(),
            serial=identity(known.get("Serial Number", "")),
        )
        part = replace(part, model=known.get("Product Name", ""))
        firmware = known.get("VBIOS Version", ""), known.get("Image Version", "")
        number = known.get("Board Part Number", "")
        yield InstalledPart(part, "NVIDIA", number, ", InfoROM ".join(filter(None, firmware)))


def _nvswitches(_: str, text: str) -> Iterator[InstalledPart]:
    for index, line in enumerate(text.splitlines()):
        address, _, known = line.partition(" ")
        firmware = _fields(known).get("BIOS Version", "")
        yield InstalledPart(Part("nvswitch", index, address=address), "NVIDIA", firmware=firmware)


def _adapter(of: str, text: str) -> dict[str, str]:
    name, _, address = of.partition(" ")
    keys = ("firmware", "board")
    return {"name": name, "address": address, **dict(zip(keys, map(str.strip, text.splitlines()), strict=False))}


def _card(known: Mapping[str, str]) -> InstalledPart:
    serial = identity(known.get("[SN] Serial number", ""))
    part = Part(
        "adapter",
        None,
        known["name"],
        known["address"],
        serial,
        model=known.get("Product Name", known.get("board", "")),
    )
    return InstalledPart(part, number=known.get("[PN] Part number", ""), firmware=known.get("firmware", ""))


def _module(adapter: str, text: str) -> Iterator[InstalledPart]:
    known = _fields(text)
    lengths = (
        known.get(key, "") for key in ("Cable assembly length", "Length (Copper or Active cable)", "Length (Copper)")
    )
    # ethtool before 5.4 wrote km for the metres of CMIS
    length = next(
        (found[1] for it in lengths if (found := re.match(r"(\d+(?:\.\d+)?)k?m", it)) and float(found[1])), ""
    )
    if serial := known.get("Vendor SN", ""):
        part = Part("cable" if length else "module", None, adapter, serial=identity(serial), of=port(adapter, None))
        yield InstalledPart(part, known.get("Vendor name", ""), known.get("Vendor PN", ""), length=length)


def _drive(name: str, text: str) -> Iterator[InstalledPart]:
    known = {line.partition(":")[0].rpartition("/")[2]: line.partition(":")[2].strip() for line in text.splitlines()}
    if known.get("transport") == "pcie":
        part = Part(
            "disk",
            None,
            name,
            known.get("address", ""),
            identity(known.get("serial", "")),
            model=known.get("model", ""),
        )
        yield InstalledPart(part, firmware=known.get("firmware_rev", ""))


def _disks(_: str, text: str) -> Iterator[InstalledPart]:
    for line in text.splitlines():
        known = {key: value.strip() for key, value in re.findall(r'(\w+)="([^"]*)"', line)}
        if known.get("TRAN") in ("sata", "sas", "ata"):
            part = Part(
                "disk",
                None,
                known.get("NAME", ""),
                known.get("HCTL", ""),  # names change from boot to boot
                serial=identity(known.get("SERIAL", "")),
                model=known.get("MODEL", ""),
            )
            yield InstalledPart(part, firmware=known.get("REV", ""))


_DMI = {"System Information": "chassis", "Base Board Information": "board", "Memory Device": "dimm"}


def _dmi(_: str, text: str) -> Iterator[InstalledPart]:
    for block in re.split(r"^Handle .*\n", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        known, kind = _fields(body), _DMI.get(title.strip(), "")
        if not kind or (kind == "dimm" and not known.get("Size", "No").startswith(tuple("123456789"))):
            continue  # an empty slot
        where = (known.get("Locator", ""), known.get("Bank Locator", "")) if kind == "dimm" else ()
        part = Part(
            kind,
            None,
            ", ".join(filter(None, where)),
            serial=identity(known.get("Serial Number", "")),
            model=known.get("Product Name", known.get("Size", "")),
        )
        yield InstalledPart(part, known.get("Manufacturer", ""), known.get("Part Number", ""))


def _bmc(_: str, text: str) -> Iterator[InstalledPart]:
    known = _fields(text)
    if firmware := known.get("Firmware Revision", ""):
        yield InstalledPart(
            Part("bmc", model=known.get("Product Name", "")), known.get("Manufacturer Name", ""), firmware=firmware
        )


_READERS: dict[str, Callable[[str, str], Iterator[InstalledPart]]] = {
    "gpus": _gpus,
    "nvswitches": _nvswitches,
    "module": _module,
    "drive": _drive,
    "disks": _disks,
    "dmi": _dmi,
    "bmc": _bmc,
}
PARTS: Probe[NodeParts] = Probe(
    "parts",
    LIMITED_SH + script(__package__, "parts.sh"),
    read_inventory,
    root=True,
    timeout=180,  # the sum of what its tools may take, nearly
    by_hand="nvidia-smi -q; dmidecode -t 17; ethtool -m IFACE",
    alone=True,
)
