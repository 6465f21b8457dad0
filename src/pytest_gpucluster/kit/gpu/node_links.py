"""The links of a node that carry the traffic of GPUs, as the node reports them: NVLink, PCIe, adapters, interfaces.

Formats: nvidia-smi (kit/gpu/nvidia_smi.py); Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net and
testing/sysfs-bus-pci of the Linux kernel. Rates are GB/s in one direction.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.pcie import REPRESENTOR, bridges, pci_path, root_port, served

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# GB/s per lane after the encoding: 8b/10b up to generation 2, 128b/130b up to 5, flits in 6 (PCI-SIG)
PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # by GT/s
_GBITS = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_SPEED = re.compile(r"(\d+(?:\.\d)?) GT/s")
_NVLINKS = re.compile(r"NV(\d+)")
PORT_CELLS = 11
UP = ("up", "unknown")  # virtual interfaces report unknown


@dataclass(frozen=True)
class Adapter:
    """An active port of an adapter; `pcie`: the rate of the adapter's slot, None if unknown.

    `board`: its board. `path`: PCI addresses from the root port to the adapter.
    """

    name: str
    port: int
    rate: float
    link_layer: str
    pcie: float | None = None
    board: str = ""
    path: tuple[str, ...] = ()

    @property
    def usable(self) -> float:
        """What reaches the network."""
        return min(self.rate, self.pcie or self.rate)


@dataclass(frozen=True)
class NodeLinks:
    """The links of one node. `unread`: {what: why it could not be read}.

    nvlinks: (active links, GB/s of the slowest) of each GPU with NVLink. pairs: {GPU: {other: NVLinks between them}}; with
    NVSwitch each pair has all links. pcie: of each GPU. interfaces: those that are up; None: the speed is unknown.
    """

    gpus: int = 0
    nvlinks: tuple[tuple[int, float], ...] = ()
    pairs: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    pcie: tuple[float, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    interfaces: Mapping[str, float | None] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def pcie_rate(generation: int | None, width: int | None) -> float | None:
    """Return the GB/s of a PCIe link in one direction, None if generation or width is unknown.

    >>> pcie_rate(5, 16)
    63.008
    """
    return PCIE_LANE[generation] * width if generation in PCIE_LANE and width else None


def read_network(answer: Answer) -> NodeLinks:
    """Return adapters and interfaces alone; ProbeError if the end of the answer is missing.

    Of adapters behind the PCIe switches of all GPUs, those on the board that serves most GPUs count alone: others are for
    storage or management.
    """
    lines = answer.out.splitlines()
    if "end" not in lines or answer.truncated:
        raise ProbeError("/sys/class/infiniband and /sys/class/net: the answer ended early")
    rows = [[cell.strip() for cell in line.split(";")] for line in lines]
    ports = [row for row in rows if row[0].startswith("port ") and len(row) == PORT_CELLS]
    # a card for InfiniBand has two ports; only root may read what a bridge to NVSwitches is
    functions = {_device(row): "".join(pci_path(row[8])[-1:]) for row in ports if row[3] == "InfiniBand" and not row[6]}
    unused = bridges(functions)
    cards = [row for row in ports if _device(row) not in unused] or ports
    gpus = Counter(root_port(pci_path(row[1])) for row in rows if row[0] == "gpu" and len(row) > 1)
    interfaces = {
        row[0].removeprefix("net "): int(row[2]) / 8000 if row[2].isdecimal() and int(row[2]) else None
        for row in rows
        if row[0].startswith("net ") and len(row) == 3 and row[1] in UP
    }
    adapters = list(filter(None, map(_adapter, cards)))
    return NodeLinks(adapters=_near(adapters, gpus), interfaces=interfaces)


def _device(row: Sequence[str]) -> str:
    return "".join(row[0].split()[1:2])


def _near(adapters: list[Adapter], gpus: Mapping[str, int]) -> tuple[Adapter, ...]:
    boards = grouped((root_port(adapter.path), adapter.board) for adapter in adapters)
    near = served(gpus, {root: boards.get(root, []) for root in gpus})
    rates = {one.board: one.rate for one in sorted(adapters, key=lambda one: one.rate)}
    board = max(sorted(near), key=lambda board: (near[board], rates[board]), default="")
    if not gpus or not all(root and board in boards.get(root, ()) for root in gpus):
        return tuple(adapters)
    return tuple(one for one in adapters if root_port(one.path) in gpus and one.board == board)


def _adapter(row: list[str]) -> Adapter | None:
    words, state, rate, layer, speed, width, virtual, board, link, bridge, name = row[0].split(), *row[1:]
    found = _GBITS.match(rate)
    if len(words) != 3 or not words[2].isdecimal() or not state.endswith("ACTIVE") or virtual or not found:
        return None
    if bridge not in ("", "0") or REPRESENTOR.fullmatch(name):
        return None
    generation = (match := _SPEED.match(speed)) and _GENERATION.get(float(match[1]))
    slot = pcie_rate(generation or None, int(width) if width.isdecimal() else None)
    return Adapter(words[1], int(words[2]), float(found[1]) / 8, layer, slot, board, pci_path(link))


def read_links(survey: Answer, network: Answer) -> NodeLinks:
    """Return the links of a node from the answers to nvidia_smi.SURVEY and NETWORK; what fails is in `unread`."""
    unread: dict[str, str] = {}

    def read(what: str, probe: Probe[Any], answer: Answer, default: Any) -> Any:
        try:
            return probe.parse(answer)
        except GpuClusterError as error:
            unread[what] = str(error)
            return default

    found: NodeLinks = read("adapters and interfaces", NETWORK, network, NodeLinks())
    devices = list(read("GPUs", nvidia_smi.GPUS, survey, ()))
    speeds = read("NVLink", nvidia_smi.NVLINK, survey, {}) if devices else {}
    active = [[rate for rate in links.values() if rate] for links in speeds.values()]
    topology = read("topology", nvidia_smi.TOPOLOGY, survey, None) if len(devices) > 1 else None
    # the generation falls while a GPU is idle: the highest of GPU and slot counts
    slots = [pcie_rate(it.pcie_gen_max or it.pcie_gen, it.pcie_width_max or it.pcie_width) for it in devices]
    return replace(
        found,
        gpus=len(devices),
        nvlinks=tuple((len(rates), min(rates)) for rates in active if rates),
        pairs={
            gpu: {other: int(match[1]) if (match := _NVLINKS.fullmatch(cell)) else 0
                  for other, cell in cells.items() if other != gpu}
            for gpu, cells in (topology.links if topology else {}).items()
        },
        pcie=tuple(rate for rate in slots if rate),
        unread=unread,
    )  # fmt: skip


# a shell function that lists the folders of network adapters
ENTRIES_SH = script(__package__, "entries.sh")
NETWORK = Probe(
    "adapters and interfaces",
    f"{ENTRIES_SH}\n{script(__package__, 'node_links.sh')}",
    read_network,
    by_hand="cat /sys/class/infiniband/*/ports/*/rate /sys/class/net/*/speed",
)
