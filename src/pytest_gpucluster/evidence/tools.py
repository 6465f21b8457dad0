"""What is read for a failed part: a table of tools by kind of part. Pure.

The choice follows what vendors ask for with a returned part: NVIDIA's RMA process (docs.nvidia.com/deploy/rma-process), MFT's manual
for mlxlink, nvme-cli and dmidecode as in NVIDIA's nvdebug guide. No tool that is under NDA is among them.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.command_end import LIMITED_SH
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu.diagnostics import OWNERS_SH
from pytest_gpucluster.kit.node.own_folder import OWN_SH
from pytest_gpucluster.kit.parts.inventory import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucluster.core.part import Part

QUICK, FULL = 5, 600  # seconds for all tools of a node
TEXT = 1 << 20  # bytes of what one tool prints
BUG_REPORT = 16 << 20  # bytes of the file of nvidia-bug-report.sh
ANSWER = 48 << 20  # bytes of all of a node


INVENTORY, OWNERS = "parts", "diagnostics"  # names of files that are read


class Tool(NamedTuple):
    """A tool: the name of its file, its command line for sh, seconds, and whether the quick set has it."""

    name: str
    command: str
    seconds: int = 30
    quick: bool = False


_KERNEL = "journalctl -k -b -o short-iso --no-pager -n 4000 2>/dev/null || dmesg"
_OF_IB = "for i in /sys/class/infiniband/{name}/device/net/*; do [ ! -e $i ] || ethtool {option} ${{i##*/}}; done"
# every node; tools that a dead GPU can hang come last
_NODE = (
    Tool("kernel-log", f"sh -c {shlex.quote(_KERNEL)}", 20, quick=True),
    Tool(OWNERS, f"sh -c {shlex.quote(OWNERS_SH)}", 10, quick=True),
    Tool("bmc-events", "ipmitool sel elist", 30),
    Tool("system", "dmidecode -t 0 -t 1 -t 2 -t 3", 15),
    Tool("versions", "sh -c 'uname -a; cat /etc/os-release /proc/driver/nvidia/version'", 10),
)
_PCI = Tool("lspci", "lspci -Dvvv -s {address}", 10, quick=True)
_MEMORY = (
    Tool("dmidecode", "dmidecode -t 16 -t 17", 15),
    Tool("edac", "grep -rs . /sys/devices/system/edac/mc --include=*_count --include=*label*", 10, quick=True),
    Tool("ras", "ras-mc-ctl --errors", 15),
    Tool("lscpu", "lscpu", 10),
)
_PORT = (
    _PCI,
    Tool("counters", "grep -rs . /sys/class/infiniband/{name}/ports", 10, quick=True),
    Tool("ethtool-module", f"sh -c {shlex.quote(_OF_IB.replace('{option}', '-m'))}", 20),
    Tool("ethtool-counters", f"sh -c {shlex.quote(_OF_IB.replace('{option}', '-S'))}", 20),
    Tool("mlxlink", "mlxlink -d {name} -m -c -e", 60),
)
_GPU = (
    _PCI,
    Tool("dcgm-version", "dcgmi -v", 10),
    Tool("nvidia-smi-q", "nvidia-smi -q -i {gpu}", 60, quick=True),
    Tool("nvlink-state", "nvidia-smi nvlink -s -i {gpu}", 30),
    Tool("nvlink-errors", "nvidia-smi nvlink -e -i {gpu}", 30),
)
_FABRIC_MANAGER = Tool("fabric-manager-log", "tail -c 1000000 /var/log/fabricmanager.log", 10)
_DRIVE = (
    Tool("smartctl", "smartctl -x /dev/{name}", 20, quick=True),
    Tool("nvme-smart-log", "nvme smart-log /dev/{name}", 20, quick=True),
    Tool("nvme-error-log", "nvme error-log /dev/{name}", 20),
)
_ALL_GPUS = (Tool("nvidia-smi-q", "nvidia-smi -q", 60, quick=True),)
OF_KIND = {
    "gpu": _GPU,
    "rail": _GPU,
    "nvlink": (*_GPU, _FABRIC_MANAGER),
    "nvswitch": (_PCI, _FABRIC_MANAGER, *_ALL_GPUS),
    "port": _PORT,
    "adapter": _PORT,
    "cable": _PORT,
    "module": _PORT,
    "disk": (_PCI, *_DRIVE),
    "dimm": _MEMORY,
    "memory": _MEMORY,
    "cpu": _MEMORY,
    "chassis": _MEMORY,
    "board": _MEMORY,
}
_WITH_GPU = {"gpu", "rail", "nvlink", "nvswitch"}


def tools_for(parts: Iterable[Part], *, full: bool) -> list[Tool]:
    """Return the tools for these failed parts of a node, each once; a part without tools of its own is the node's."""
    known = [one for part in parts for one in _chain(part)]
    found = [*_NODE, *(tool for part in known for tool in _of(part))]
    if any(part.kind not in OF_KIND for part in known):
        found += _ALL_GPUS
    return [tool for tool in dict.fromkeys(found) if full or tool.quick]


def asks_for_bug_report(parts: Iterable[Part]) -> bool:
    """Return whether nvidia-bug-report.sh is a part of the evidence: for GPUs, and for a node that is bad as a whole."""
    return any(one.kind not in OF_KIND or one.kind in _WITH_GPU for part in parts for one in _chain(part))


def _chain(part: Part) -> Iterator[Part]:
    """Yield the part and what it belongs to or serves."""
    yield part
    if part.of is not None:
        yield from _chain(part.of)


def _of(part: Part) -> Iterator[Tool]:
    gpu = part.address or ("" if part.index is None else str(part.index)) or part.name
    if part.kind in ("gpu", "rail") and not gpu:
        yield from _ALL_GPUS
        return
    values = {"address": part.address, "name": part.name.rpartition("/")[2], "gpu": gpu}
    label = file_name(part.address or part.name or gpu)
    for tool in OF_KIND.get(part.kind, ()):
        needed = [key for key in values if f"{{{key}}}" in tool.command]
        if all(values[key] for key in needed):
            command = tool.command.format(**{key: _word(value) for key, value in values.items()})
            name = f"{tool.name}-{label}" if needed else tool.name
            yield tool._replace(name=name, command=command)


def _word(value: str) -> str:
    """Return a name as a word of a command line that may itself be quoted; what is no plain name is left out."""
    return value if re.fullmatch(r"[\w.:/@+-]+", value, re.ASCII) and value[0] != "-" else "''"


def file_name(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)


def command_for(parts: Iterable[Part], mark: str, *, full: bool, inventory: bool = False, log: str = "") -> str:
    """Return the program that reads a node's evidence. `mark`: a secret word with which it begins its own lines.

    `inventory`: also the serial numbers of all parts. `log`: that of a vendor's field diagnostic on the node.
    """
    known = [*parts]
    tools = tools_for(known, full=full)
    if inventory:
        tools.append(Tool(INVENTORY, f"sh -c {shlex.quote(PARTS.command)}", int(PARTS.timeout)))
    if log:
        tools.append(Tool("field-diagnostic", f"tail -c {TEXT - 1} {shlex.quote(log)}", 10))
    calls = [f"take {it.name} {it.seconds} {TEXT} {it.command}" for it in tools]
    if full and asks_for_bug_report(known):
        calls.append(f"bug_report 240 {BUG_REPORT}")
    own = {"MARK": mark, "SECONDS": FULL if full else QUICK, "CALLS": "\n".join(calls)}
    return LIMITED_SH + OWN_SH + script(__package__, "capture.sh", **own)
