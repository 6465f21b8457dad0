"""Parser of NCCL's log (NCCL_DEBUG=INFO): the transport of each pair of ranks. Pure.

Source: the INFO calls in src/transport and src/init.cc of github.com/NVIDIA/nccl. Kinds are shortened to the names in a
profile: P2P/CUMEM, P2P/IPC, P2P/direct, SHM, NET/Socket, NET/IB, NET/IB/GDRDMA, COLLNET/..., NVLS.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl.nccl_tests import labelled

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HINTS", "NcclConnection", "NcclLog", "TransportPaths", "read"]

# The probable cause of a slow transport, from NCCL's documentation and sources
HINTS = {
    "NET/Socket": "NCCL found or used no InfiniBand device: check ibstat, NCCL_IB_DISABLE, NCCL_IB_HCA and "
    "/dev/infiniband inside the container",
    "NET/IB": "InfiniBand without GPUDirect RDMA: load nvidia_peermem (older: nv_peer_mem) on both nodes, and "
    "check NCCL_NET_GDR_LEVEL and ACS",
    "SHM": "GPUs of one node communicate through host memory: check NVLink (nvidia-smi nvlink -s), "
    "NCCL_P2P_DISABLE and ACS",
}

_PREFIX = re.compile(r"([\w.-]{1,255}):\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL (INFO|WARN) (.+)")
_CHANNEL = re.compile(
    r"(?:Channel|Ring|Tree) (\d{1,18})(?:/\d+)? : (\d{1,18})\[[0-9a-f]+\] -> (\d{1,18})\[[0-9a-f]+\] "
    r"(?:\[(?:send|receive)\] )?via ([A-Za-z0-9_/]+)(\S*)"
)
_COLLNET = re.compile(r"CollNet \d+/\d+ : \d+ \[(?:send|receive)\] via COLLNET/(\w+)/\d+(/GDRDMA)?")
_RANK = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,18}) n[rR]anks (\d{1,18})(?: nNodes (\d{1,18}))?")
_NETWORK = re.compile(r"Using network (\S+)|Assigned NET plugin (\S+) to comm")
_INTERFACE = re.compile(r"NET/\w+ : Using ")
_VERSION = re.compile(r"NCCL version (\S+)")
_SETTING = re.compile(r"(NCCL_\w{1,80}) set by environment to (.{0,200}?)\.?\s*$")
# Settings of the network, or without an effect: none of them slows the GPUs of one node
_BETWEEN = (
    "NCCL_IB_", "NCCL_SOCKET_", "NCCL_NET", "NCCL_COLLNET_", "NCCL_CROSS_NIC", "NCCL_PXN_", "NCCL_OOB_", "NCCL_TOPO_",
    "NCCL_COMM_ID", "NCCL_ASYNC_", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_CONF_FILE", "NCCL_RAS_",
)  # fmt: skip
_NEUTRAL = (
    "NCCL_DEBUG",
    "NCCL_HOSTID",
)  # settings that the step itself makes, without an effect on the transport


@dataclass(frozen=True)
class NcclConnection:
    """One connection from rank to rank, as one of its ends logged it."""

    channel: int
    source: int
    target: int
    transport: str


@dataclass(frozen=True)
class TransportPaths:
    """Transports in use, {transport: connections}: between nodes, within a node, and `unplaced` with an unknown node."""

    between: Mapping[str, int]
    within: Mapping[str, int]
    unplaced: Mapping[str, int]
    pairs: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class NcclLog:
    """NCCL's log. `labels` is {rank: task label}, `hosts` {rank: host}, `nodes` NCCL's own count of nodes.

    `settings` are the variables that NCCL found in its environment, or in nccl.conf.
    """

    version: str = ""
    channels: frozenset[NcclConnection] = frozenset()
    hosts: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[int, str] = field(default_factory=dict)
    ranks: int = 0
    nodes: int = 0
    network: str = ""
    interfaces: tuple[str, ...] = ()
    no_ib: bool = False
    gdr: bool | None = None
    nvls: bool = False
    collnet: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def set_by(self) -> str:
        """The external settings as text: 'set in the environment or nccl.conf: NCCL_PROTO=LL'; '' for none."""
        words = self.foreign
        return f"set in the environment or nccl.conf: {', '.join(sorted(words))}" if words else ""

    @property
    def foreign(self) -> frozenset[str]:
        """The settings that the step did not make, like NCCL_PROTO=LL."""
        return frozenset(
            f"{name}={value}" for name, value in self.settings.items() if not name.startswith(_NEUTRAL)
        )

    @property
    def slowing(self) -> frozenset[str]:
        """The external settings that may slow the traffic within a node."""
        return frozenset(setting for setting in self.foreign if not setting.startswith(_BETWEEN))

    def paths(self, node_of_rank: Mapping[int, str] | None = None) -> TransportPaths:
        """Return the connections by place. `node_of_rank` is Slurm's; without it NCCL's own hosts are used."""
        where = node_of_rank or self.hosts
        found: dict[str, Counter[str]] = {"between": Counter(), "within": Counter(), "unplaced": Counter()}
        pairs: dict[str, set[tuple[int, int]]] = {}
        for channel in self.channels:
            ends = where.get(channel.source), where.get(channel.target)
            scope = "unplaced" if None in ends else "within" if ends[0] == ends[1] else "between"
            found[scope][channel.transport] += 1
            pairs.setdefault(f"{scope} {channel.transport}", set()).add((channel.source, channel.target))
        sorted_pairs = {key: tuple(sorted(value)) for key, value in pairs.items()}
        return TransportPaths(found["between"], found["within"], found["unplaced"], sorted_pairs)

    def summary(self, node_of_rank: Mapping[int, str] | None = None) -> str:
        """Return the transports in one line: 'between nodes: NET/Socket (eth0); within nodes: P2P/CUMEM'."""
        paths = self.paths(node_of_rank)
        network = any(transport.startswith("NET") for transport in paths.between)
        device = f" ({', '.join(self.interfaces)})" if self.interfaces and network else ""
        parts = [f"between nodes: {', '.join(sorted(paths.between))}{device}"] if paths.between else []
        parts += [f"within nodes: {', '.join(sorted(paths.within))}"] if paths.within else []
        parts += [f"unplaced: {', '.join(sorted(paths.unplaced))}"] if paths.unplaced else []
        parts += ["NVLS"] if self.nvls else []
        hints = [HINTS[transport] for transport in sorted(paths.between) if transport in HINTS]
        transports = "; ".join(parts or ["no connection was logged"]) + (f" ({hints[0]})" if hints else "")
        return "; ".join(filter(None, (transports, self.set_by)))


@dataclass
class _Reading:
    version: str = ""
    channels: set[NcclConnection] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    ranks: int = 0
    nodes: int = 0
    networks: set[str] = field(default_factory=set)
    interfaces: dict[str, None] = field(default_factory=dict)
    no_ib: bool = False
    gdr: set[bool] = field(default_factory=set)
    nvls: bool = False
    collnet: Counter[str] = field(default_factory=Counter)
    warnings: dict[str, None] = field(default_factory=dict)
    settings: dict[str, set[str]] = field(default_factory=dict)


def read(text: str, *, label: str | None = None) -> NcclLog:
    """Return the log in any output, or that of one task label ('3').

    The last line counts only where it is terminated. Rank numbers are those of one communicator: read the output
    of one run at a time.
    """
    reading = _Reading()
    for line in text.split("\n")[:-1]:
        if "NCCL" in line:
            task, rest = labelled(line)
            match = _PREFIX.search(rest)
            if match and label in (None, task):
                _take(reading, task, match)
    networks = sorted(reading.networks)
    return NcclLog(
        reading.version, frozenset(reading.channels), reading.hosts, reading.labels, reading.ranks, reading.nodes,
        ", ".join(networks), tuple(reading.interfaces), reading.no_ib, all(reading.gdr) if reading.gdr else None,
        reading.nvls, reading.collnet, tuple(reading.warnings),
        {name: " or ".join(sorted(values)) for name, values in sorted(reading.settings.items())},
    )  # fmt: skip


def _take(reading: _Reading, label: str, match: re.Match[str]) -> None:
    host, message = match[1], match[3]
    if match[2] == "WARN":
        reading.warnings[message.strip()] = None
    elif channel := _CHANNEL.match(message):
        number, source, target = (int(channel[group]) for group in (1, 2, 3))
        reading.channels.add(NcclConnection(number, source, target, _transport_of(channel[4], channel[5])))
    elif rank := _RANK.search(message):
        _take_rank(reading, label, host, rank)
    elif collnet := _COLLNET.match(message):
        reading.collnet[f"COLLNET/{collnet[1]}{collnet[2] or ''}"] += 1
    else:
        _take_setup(reading, message)


def _take_rank(reading: _Reading, label: str, host: str, match: re.Match[str]) -> None:
    rank = int(match[1])
    reading.hosts[rank] = host
    if label:
        reading.labels[rank] = label
    reading.ranks = max(reading.ranks, int(match[2]))
    reading.nodes = max(reading.nodes, int(match[3] or 0))


def _take_setup(reading: _Reading, message: str) -> None:
    if match := _NETWORK.match(message):
        reading.networks.add(match[1] or match[2])
    elif message.startswith("NET/IB : No device found"):
        reading.no_ib = True
    elif _INTERFACE.match(message):
        for name in re.findall(r"\[\d+\]([\w.-]+):", message):
            reading.interfaces[name] = None
    elif match := re.search(r"use ring PXN \d+ GDR ([01])", message):
        reading.gdr.add(match[1] == "1")
    elif "Connected NVLS tree" in message or " via NVLS" in message or message.startswith("NVLS comm"):
        reading.nvls = True
    elif match := _VERSION.match(message):
        reading.version = match[1]
    elif match := _SETTING.match(message):
        reading.settings.setdefault(match[1], set()).add(match[2])


def _transport_of(path: str, rest: str) -> str:
    """Return the transport of a path: NET/IB/GDRDMA for 'NET/IB/0(1)/GDRDMA/Shared', SHM for 'SHM/direct'."""
    parts = path.split("/")
    if parts[0] == "NET":
        return "/".join(parts[:2]) + ("/GDRDMA" if "GDRDMA" in path + rest else "")
    return parts[0] if parts[0] in ("SHM", "NVLS") else "/".join(parts[:2])
