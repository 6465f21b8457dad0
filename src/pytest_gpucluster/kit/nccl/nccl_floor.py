"""The lowest plausible bus bandwidth of a collective, from the links that the nodes report. Pure; docs/how-it-decides.md.

A threshold is a figure of one kind of hardware. Where none fits, a run must reach at least half of what the slowest link
of its route allows: no healthy hardware is below, and a wrong transport, a link at half width or a missing adapter is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl.nccl_names import NameFilter
from pytest_gpucluster.kit.nccl.nccl_rows import bus_factor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.kit.gpu.node_links import Adapter, NodeLinks

SHARE = 0.5  # of the rate that the route allows
HOST_MEMORY = 0.5  # of a PCIe link whose data is written to the host's memory and read from there again
# GB/s of TCP in NCCL: its threads copy, so that a fast link does not help; the slowest recorded figure is 1.9 GB/s
TCP = 2.0
UNKNOWN_INTERFACE = 0.125  # GB/s: 1 Gb/s Ethernet, where the kernel knows no speed (virtio, veth)
# Seconds of a collective, and per step of a ring: baseLat and hwLat (Ring, Simple) in src/graph/tuning.cc of NCCL's
# sources. That of TCP was recorded.
BASE, NVLINK_STEP, PCIE_STEP, NET_STEP, TCP_STEP = 8.4e-6, 3.4e-6, 5.7e-6, 14e-6, 50e-6
_ONE_LINK = ("sendrecv", "gather", "scatter")  # a node sends through the adapter of one GPU
_SPREAD = ("alltoall", "hypercube")  # every GPU sends to all others
SOCKETS, SOCKET = "sockets", "NET/Socket"


@dataclass(frozen=True)
class Route:
    """How the ranks communicate. `ran`: the transports between nodes in NCCL's log, () if not logged.

    joined: the number of nodes that NCCL counts (0: not logged), lower than that of Slurm if NVLink joins nodes. env: the
    variables that the cluster file sets. interfaces: those that NCCL's log names. roce: the profile states RoCE.
    """

    ran: tuple[str, ...] = ()
    joined: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    roce: bool = False

    @property
    def sockets_stated(self) -> bool:
        """Whether the cluster file selects sockets."""
        off = self.env.get("NCCL_IB_DISABLE", "0") not in ("", "0")
        return off or self.env.get("NCCL_NET", "").lower() == "socket"

    @property
    def over_host(self) -> bool:
        """Whether the log shows InfiniBand or RoCE without GPUDirect RDMA."""
        return bool(self.ran) and all(transport == "NET/IB" for transport in self.ran)


@dataclass(frozen=True)
class Floor:
    """The lowest plausible bus bandwidth (GB/s) at a size, the rate of the route, and its slowest link."""

    bound: float
    rate: float
    why: str

    def __str__(self) -> str:
        return f"half of {self.rate:.4g} GB/s: {self.why}"


@dataclass(frozen=True)
class _Link:
    rate: float
    why: str
    step: float


def floor(
    collective: str, size: int, nodes: Sequence[NodeLinks], *, gpus: int, route: Route | None = None
) -> Floor | str:
    """Return the floor of a collective with `size` bytes on these nodes with `gpus` ranks each, or why there is none.

    The slowest node counts. The time of a step of each rank is added, so that small messages on many ranks, whose time is
    that of the steps, are not below the floor.
    """
    route, ranks = route or Route(), len(nodes) * gpus
    if ranks < 2:
        return "one rank sends nothing"
    domains = route.joined if 0 < route.joined < len(nodes) else len(nodes)
    inside = ranks // domains
    inner = (_within(links, collective, min(gpus, inside), joined=inside > gpus) for links in nodes)
    within = _slowest(inner) if inside > 1 else None
    between = _slowest(_between(links, collective, gpus, route) for links in nodes) if domains > 1 else None
    if (inside > 1 and within is None) or (domains > 1 and between is None):
        unread = (f"{what}: {why}" for links in nodes for what, why in links.unread.items())
        return next(unread, "the nodes report neither NVLink nor PCIe of their GPUs")
    if between is not None:
        nodes_joined = 1 if collective in _ONE_LINK else max(1, inside // gpus)
        rate = between.rate * nodes_joined * _spread(collective, ranks, inside)
        between = _Link(rate, between.why, between.step)
    slowest = min(filter(None, (within, between)), key=lambda link: link.rate)
    moved = size * bus_factor(collective, ranks)
    steps = BASE + _steps(collective, domains, inside, within.step if within else 0, between.step if between else 0)
    return Floor(SHARE * moved / (moved / slowest.rate + steps * 1e9), slowest.rate, slowest.why)


def _slowest(links: Iterable[_Link | None]) -> _Link | None:
    """Return the slowest; None if one is unknown."""
    known = list(links)
    return None if None in known else min((link for link in known if link), key=lambda link: link.rate)


def _within(links: NodeLinks, collective: str, gpus: int, *, joined: bool) -> _Link | None:
    """Return the route between `gpus` GPUs of the node: NVLinks, or PCIe through the host's memory."""
    count = _nvlinks(links, collective, gpus, joined=joined)
    if count:
        speed = min(rate for _, rate in links.nvlinks)
        return _Link(count * speed, f"{count} NVLinks x {speed:g} GB/s", NVLINK_STEP)
    if not links.pcie:
        return None
    slot = min(links.pcie)
    return _Link(slot * HOST_MEMORY, f"PCIe, {slot:.3g} GB/s through the memory of the host", PCIE_STEP)


def _nvlinks(links: NodeLinks, collective: str, gpus: int, *, joined: bool) -> int:
    """Return the NVLinks that a GPU can use to reach the others; 0 if some can be reached over PCIe only."""
    if not links.nvlinks or len(links.nvlinks) < links.gpus:
        return 0
    active = min(count for count, _ in links.nvlinks)
    if joined and gpus < 2:
        return active
    pairs = [count for others in links.pairs.values() for count in others.values()]
    if not pairs:
        return 0
    if all(pairs):  # which GPUs are used is unknown: those with the fewest links
        return min(active, (gpus - 1) * min(pairs))
    ring = collective not in (*_SPREAD, *_ONE_LINK) and gpus == links.gpus
    if not ring or not _connected(links):
        return 0
    return min(active, *(sum(others.values()) for others in links.pairs.values()))


def _connected(links: NodeLinks) -> bool:
    """Return whether NVLinks lead from each GPU to all others, if over further GPUs."""
    reached, waiting = set[int](), list(links.pairs)[:1]
    while waiting:
        gpu = waiting.pop()
        reached.add(gpu)
        waiting += [other for other, count in links.pairs[gpu].items() if count and other not in reached]
    return len(reached) == len(links.pairs)


def _between(links: NodeLinks, collective: str, gpus: int, route: Route) -> _Link | None:
    """Return the route out of the node for the traffic of `gpus` GPUs."""
    adapters = _adapters(links, route)
    if not adapters:
        rate = _interface(links, route)
        return _Link(min(rate, TCP), f"TCP over Ethernet of {rate:g} GB/s, at most {TCP:g} GB/s", TCP_STEP)
    one = min(adapter.usable for adapter in adapters)
    count = 1 if collective in _ONE_LINK else min(len(adapters), gpus)
    share = HOST_MEMORY if route.over_host else 1.0
    slots = share * min(links.pcie, default=math.inf) * (1 if collective in _ONE_LINK else gpus)
    if slots < count * one:
        memory = " through the memory of the host" if route.over_host else ""
        return _Link(slots, f"PCIe of the GPUs, {slots:.4g} GB/s{memory}", NET_STEP)
    return _Link(count * one, f"{count} adapters x {one:g} GB/s", NET_STEP)


def _adapters(links: NodeLinks, route: Route) -> list[Adapter]:
    """Return the fastest adapters that NCCL may use; none if it uses sockets, by the cluster file or without RoCE."""
    if route.sockets_stated:
        return []
    names = NameFilter.parse(route.env.get("NCCL_IB_HCA", ""))
    usable = [adapter for adapter in links.adapters if names.selects(adapter.name, adapter.port)]
    ethernet = all(adapter.link_layer != "InfiniBand" for adapter in usable)
    if not usable or (ethernet and not route.roce and route.ran and {*route.ran} == {SOCKET}):
        return []
    fastest = max(adapter.rate for adapter in usable)
    return [adapter for adapter in usable if adapter.rate == fastest]


def _interface(links: NodeLinks, route: Route) -> float:
    """Return the rate of the interface for TCP: the slowest that NCCL names, else of those that it may use."""
    names = NameFilter.parse(route.env.get("NCCL_SOCKET_IFNAME", ""))
    found = [links.interfaces[name] for name in route.interfaces if name in links.interfaces] or [
        rate for name, rate in links.interfaces.items() if names.selects(name) and not name.startswith(("lo", "docker"))
    ]
    return min(filter(None, found), default=UNKNOWN_INTERFACE)


def _spread(collective: str, ranks: int, inside: int) -> float:
    """Return bus bandwidth by the rate of a node's adapters: 1 for a ring, which leaves each node once."""
    # each of the `inside` ranks sends to the ranks of other nodes
    return (ranks - 1) / (inside * (ranks - inside)) if collective in _SPREAD else 1.0


def _steps(collective: str, domains: int, inside: int, within: float, between: float) -> float:
    """Return the seconds of all steps of a message, without its transfer."""
    ring = domains * between * (domains > 1) + (domains * inside - domains) * within
    if collective == "sendrecv":
        return max(within, between)
    if collective == "all_reduce":
        tree = 2 * (math.ceil(math.log2(domains)) * between + (inside - 1) * within)
        return min(2 * ring, tree)
    return ring
