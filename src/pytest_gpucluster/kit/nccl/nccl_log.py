"""Parser of NCCL's log (NCCL_DEBUG=INFO): the transport of each pair of ranks. Pure.

Source: the INFO calls in src/transport and src/init.cc of github.com/NVIDIA/nccl. Kinds are shortened to the names in a
profile: P2P/CUMEM, P2P/IPC, P2P/direct, SHM, NET/Socket, NET/IB, NET/IB/GDRDMA, COLLNET/..., NVLS.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

# The probable cause of a slow transport, from NCCL's documentation and sources
HINTS = {
    "NET/Socket": "NCCL found or used no InfiniBand device: check ibstat, NCCL_IB_DISABLE, NCCL_IB_HCA and "
    "/dev/infiniband inside the container",
    "NET/IB": "InfiniBand without GPUDirect RDMA: load nvidia_peermem (older: nv_peer_mem) on both nodes, and "
    "check NCCL_NET_GDR_LEVEL and ACS",
    "SHM": "GPUs of one node communicate through host memory: check NVLink (nvidia-smi nvlink -s), "
    "NCCL_P2P_DISABLE and ACS",
}

_PREFIX = re.compile(r"([\w.-]{1,255}):\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL INFO (.+)")
_CHANNEL = re.compile(
    r"(?:Channel|Ring|Tree) (\d{1,18})(?:/\d+)? : (\d{1,18})\[[0-9a-f]+\] -> (\d{1,18})\[[0-9a-f]+\] "
    r"(?:\[(?:send|receive)\] )?via ([A-Za-z0-9_/]+)(\S*)"
)
_COLLNET = re.compile(r"CollNet \d+/\d+ : \d+ \[(?:send|receive)\] via COLLNET/\w+/\d+")
_RANK = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,18}) n[rR]anks (\d{1,18})(?: nNodes (\d{1,18}))?")
_NETWORK = re.compile(r"Using network (\S+)|Assigned NET plugin (\S+) to comm")
_NVLS = re.compile(r"Connected NVLS tree| via NVLS|^NVLS comm")
_INTERFACE = re.compile(r"NET/\w+ : Using ")
_SETTING = re.compile(r"(NCCL_\w{1,80}) set by environment to (.{0,200}?)\.?\s*$")
# Settings of the network, or without an effect: none of them slows the GPUs of one node
_BETWEEN = (
    "NCCL_IB_", "NCCL_SOCKET_", "NCCL_NET", "NCCL_COLLNET_", "NCCL_CROSS_NIC", "NCCL_PXN_", "NCCL_OOB_", "NCCL_TOPO_",
    "NCCL_COMM_ID", "NCCL_ASYNC_", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_CONF_FILE", "NCCL_RAS_",
)  # fmt: skip
# settings that the step itself makes, without an effect on the transport
_NEUTRAL = ("NCCL_DEBUG", "NCCL_HOSTID")


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
    """NCCL's log. `hosts` is {rank: host}, `nodes` NCCL's own count of nodes, `collnet`: switches reduce.

    `settings` are the variables that NCCL found in its environment, or in nccl.conf.
    """

    channels: AbstractSet[NcclConnection] = frozenset()
    hosts: Mapping[int, str] = field(default_factory=dict)
    ranks: int = 0
    nodes: int = 0
    network: str = ""
    interfaces: tuple[str, ...] = ()
    nvls: bool = False
    collnet: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def set_by(self) -> str:
        """The external settings as text: 'set in the environment or nccl.conf: NCCL_PROTO=LL'; '' for none."""
        words = self.foreign
        return f"set in the environment or nccl.conf: {', '.join(sorted(words))}" if words else ""

    @property
    def foreign(self) -> frozenset[str]:
        """The settings that the step did not make, like NCCL_PROTO=LL."""
        return frozenset(f"{name}={value}" for name, value in self.settings.items() if not name.startswith(_NEUTRAL))

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


def read(text: str) -> NcclLog:
    """Return the log in any output, with or without task labels.

    The last line counts only where it is terminated. Rank numbers are those of one communicator: read the output
    of one run at a time.
    """
    channels: set[NcclConnection] = set()
    ranks: list[tuple[str, re.Match[str]]] = []
    rest: dict[str, None] = {}
    for match in map(_PREFIX.search, text.split("\n")[:-1]):
        if match and (channel := _CHANNEL.match(match[2])):
            number, source, target = (int(channel[group]) for group in (1, 2, 3))
            channels.add(NcclConnection(number, source, target, _transport_of(channel[4], channel[5])))
        elif match and (rank := _RANK.search(match[2])):
            ranks.append((match[1], rank))
        elif match:
            rest[match[2]] = None
    settings: dict[str, set[str]] = defaultdict(set)
    for found in filter(None, map(_SETTING.match, rest)):
        settings[found[1]].add(found[2])
    devices = (re.findall(r"\[\d+\]([\w.-]+):", line) for line in rest if _INTERFACE.match(line))
    return NcclLog(
        channels,
        hosts={int(rank[1]): host for host, rank in ranks},
        ranks=max((int(rank[2]) for _, rank in ranks), default=0),
        nodes=max((int(rank[3] or 0) for _, rank in ranks), default=0),
        network=", ".join(sorted({it[1] or it[2] for it in filter(None, map(_NETWORK.match, rest))})),
        interfaces=tuple(dict.fromkeys(name for names in devices for name in names)),
        nvls=any(_NVLS.search(line) for line in rest),
        collnet=any(map(_COLLNET.match, rest)),
        settings={name: " or ".join(sorted(values)) for name, values in sorted(settings.items())},
    )


def _transport_of(path: str, rest: str) -> str:
    """Return the transport of a path: NET/IB/GDRDMA for 'NET/IB/0(1)/GDRDMA/Shared', SHM for 'SHM/direct'."""
    parts = path.split("/")
    if parts[0] == "NET":
        return "/".join(parts[:2]) + ("/GDRDMA" if "GDRDMA" in path + rest else "")
    return parts[0] if parts[0] in ("SHM", "NVLS") else "/".join(parts[:2])
