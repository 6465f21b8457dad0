"""Checks of the path from GPU to GPU between nodes: adapters, ports, peer memory, affinity, names of interfaces."""

from __future__ import annotations

import functools
import ipaddress
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import unless_it_works
from pytest_gpucluster.core.finding import Explanation, Quantity, Quote
from pytest_gpucluster.core.majority import Norm, decides, differs, norms
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, gpu, named, register
from pytest_gpucluster.core.text import count, listed
from pytest_gpucluster.kit.fabric.facts import COUNTERS
from pytest_gpucluster.kit.fabric.partition_keys import lacks, shown_keys
from pytest_gpucluster.kit.fabric.rails import rails_of, role, usable
from pytest_gpucluster.kit.gpu.pcie import NEAR
from pytest_gpucluster.kit.nccl.nccl_names import NameFilter
from pytest_gpucluster.kit.node.port_errors import CAUSED_ELSEWHERE, USUAL, allowed, proves_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import EnvironmentConfig, FabricProfile, Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.fabric.facts import Acs, Adapters, GidPort, Interfaces, Iommu, Location, PeerMemory, Port
    from pytest_gpucluster.kit.fabric.rails import Rails
    from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus, Topology

P = ParamSpec("P")
if TYPE_CHECKING:
    Judge = Callable[Concatenate[Profile, P], Judgement]
register("pcie_switch", "PCIe switch", labelled=True)

# CUDA 13.0 deprecates the nv-p2p interface that they need (GPUDirect RDMA, 2.1.1)
DEPRECATED = ("nvidia_peermem", "nv_peer_mem")
_NO_DMABUF = "the only way to GPU memory: proprietary kernel modules, or a kernel before 5.12, have no DMA-BUF"
PEER_MODULES = frozenset({"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"})
DMABUF_KERNEL = (5, 12)  # its RDMA drivers register DMA-BUFs (GPU operator: GPUDirect RDMA, prerequisites)
NO_PORT = "the node has no port (see fabric.hca_count)"
NONE_ACTIVE = "no port is active (see fabric.port_state)"
# a virtual function may not report it; according to IBTA no port is ACTIVE without a link
LINK_UP = ("LinkUp", "<unknown>", None)
ROCE_V2 = "RoCE v2"
GID_BY_NCCL = "-1"  # NCCL 2.21 and later choose the index themselves

PAIR = 2  # nodes; of two that differ neither is known to be at fault


# --- helpers -----------------------------------------------------------------------------------------------------


def _where(applies: Callable[[FabricProfile], bool]) -> Callable[[Judge[P]], Judge[P]]:
    """Make a check not applicable to nodes whose profile has no such adapters."""

    def decorated(judge: Judge[P]) -> Judge[P]:
        @functools.wraps(judge)
        def judged(network: Profile, /, *args: P.args, **kwargs: P.kwargs) -> Judgement:
            if applies(network.fabric):
                yield from judge(network, *args, **kwargs)
            else:
                yield NotApplicable(f"profile {network.name} has no InfiniBand or RoCE")

        return judged

    return decorated


_networked = _where(lambda fabric: fabric.link_layer != "none")
_with_adapters = _where(lambda fabric: fabric.has_adapters)  # EFA is neither InfiniBand nor RoCE


def _of_layer(ports: Iterable[Port], profile: Profile) -> list[Port]:
    """Return the ports of the profile's link layer; a host may have others, for storage or management."""
    layer = profile.fabric.link_layer
    return [port for port in ports if layer == "none" or port.link_layer in (layer, None)]


def _active(ports: Iterable[Port], profile: Profile) -> list[Port]:
    return [port for port in _of_layer(ports, profile) if port.state == "ACTIVE" and port.phys_state in LINK_UP]


def firmware_majority(facts: Mapping[str, Adapters]) -> dict[str, Norm[str]]:
    """Return {board: majority of firmware versions}, with one vote per adapter."""
    found = {
        (node, port.device): (port.board or port.hca_type or "", node, port.firmware)
        for node, adapters in facts.items()
        for port in adapters.ports
    }
    votes = ((board, node, version) for board, node, version in found.values() if version)
    return norms(votes, "adapters of this board")


def active_majority(facts: Mapping[str, Adapters]) -> dict[Location, Norm[bool]]:
    """Return {place of a port: majority of the nodes with it on whether it is ACTIVE}."""
    return norms(
        (port.location, node, port.state == "ACTIVE") for node, adapters in facts.items() for port in usable(adapters)
    )


def rate_majority(facts: Mapping[str, Adapters]) -> dict[Location, Norm[float]]:
    """Return {place of a port: norm of its rate in GB/s on the nodes where it is ACTIVE}."""
    return norms(
        (port.location, node, port.rate)
        for node, adapters in facts.items()
        for port in usable(adapters)
        if port.state == "ACTIVE" and port.rate is not None
    )


def pkeys_majority(facts: Mapping[str, Adapters]) -> dict[Location, Norm[tuple[int, ...]]]:
    """Return {place of a port: norm of its partition keys on the nodes where it is ACTIVE}."""
    return norms((port.location, node, port.pkeys) for node, adapters in facts.items() for port in _with_keys(adapters))


def _with_keys(adapters: Adapters) -> list[Port]:
    """Return the ports to which a subnet manager has given partition keys; a port that is down has those of its last boot."""
    return [
        port for port in usable(adapters) if port.link_layer == "InfiniBand" and port.state == "ACTIVE" and port.pkeys
    ]


# --- adapters and ports ------------------------------------------------------------------------------------------


@check(
    "fabric.peer_memory",
    cause="adapters cannot reach GPU memory: neither nvidia_peermem nor DMA-BUF can register it, so no GPUDirect RDMA",
    hint="modprobe nvidia_peermem, also at boot (/etc/modules-load.d); or install the driver's open kernel modules",
    action=Action.CONFIGURE,
)
def peer_memory(gpu_direct: PeerMemory, profile: Profile) -> Judgement:
    """Adapters can register GPU memory: by nvidia_peermem (or nv_peer_mem), or by DMA-BUF."""
    loaded = sorted(gpu_direct.modules & PEER_MODULES)
    without = f"none of {', '.join(sorted(PEER_MODULES))} is loaded"
    # every kernel of this version has DMA-BUFs of RDMA; older ones of a distribution may have them
    release = re.match(r"(\d+)\.(\d+)", gpu_direct.kernel or "")
    is_new = release is not None and tuple(map(int, release.groups())) >= DMABUF_KERNEL
    decides = "check NCCL's log: NET/IB/0/GDRDMA is GPUDirect RDMA (nccl suite)"
    if not profile.fabric.peer_memory:
        raise NotApplicable(f"profile {profile.name} needs no GPUDirect RDMA")
    elif loaded:
        yield Metric("gpudirect_rdma", 1, loaded[0], better=NEITHER)
        rests = gpu_direct.open_modules is False or (release is not None and not is_new)
        if loaded[0] in DEPRECATED and rests and profile.fabric.peer_memory != "any":
            kind = Finding if profile.fabric.peer_memory == "dma_buf" else Advisory
            yield kind(named("software", loaded[0]), _NO_DMABUF, "DMA-BUF", code="deprecated")
    elif gpu_direct.open_modules is None:
        raise NotAvailable(f"{without}, and /proc/driver/nvidia/version cannot be read: {decides}")
    elif not gpu_direct.open_modules:
        # the kernel exports DMA-BUF only to GPL modules (README of the driver, "Open Linux Kernel Modules")
        part, found = named("software", "GPUDirect RDMA"), "the proprietary kernel modules have no DMA-BUF"
        expected = "nvidia_peermem, or the open kernel modules"
        yield Finding(part, f"{without}; {found}", expected, code="no_peer_memory")
    elif is_new:
        yield Metric("gpudirect_rdma", 1, "DMA-BUF", better=NEITHER)
    else:
        raise NotAvailable(
            f"{without}; Linux 5.12 and later have DMA-BUF, {gpu_direct.kernel or 'this kernel'} may not: {decides}"
        )


@check(
    "fabric.hca_count",
    cause="an adapter is not found: badly seated, failed, or its driver is not loaded",
    hint="lspci -d 15b3:; dmesg | grep mlx5; systemctl status openibd; reseat the adapter",
    action=Action.CONFIGURE,
    never_healthy="two thirds of the nodes have an adapter at this PCI address, and the slot is empty here: the profile asks for more "
    "ports than the GPUs of this node have",
)
@_with_adapters
def hca_count(
    network: Profile,
    adapters: Adapters,
    active_majority: Mapping[Location, Norm[bool]] = MappingProxyType({}),
    node_rails: tuple[Rails, ...] = (),
) -> Judgement:
    """The ports for GPU traffic that the profile has are there: by name, by the PCIe switch of each GPU, else by number."""
    rails = node_rails or rails_of(adapters, network)
    counted = {port.location for of_gpus in rails for port in of_gpus.ports}
    yield Metric("hca_ports", len(counted), "ports")
    for port in adapters.ports:
        if port.location not in counted:
            kind = role(port) or "port for storage or management"
            yield Metric("hca_ports_other", 1, kind, port.part, detail=True, better=NEITHER)
    for of_gpus in rails:
        if len(of_gpus.ports) >= of_gpus.need:
            continue
        absent = _usual_locations(active_majority) - {port.location for port in usable(adapters)}
        if owner := of_gpus.owner:
            lost = any(location.adapter in of_gpus.missing for location in absent)
            expected = f"{count(of_gpus.need, 'port')} for its traffic"
            found = Quantity(len(of_gpus.ports), "ports", _lost(of_gpus))
            need = Quantity(of_gpus.need, "ports", expected)
            yield Finding(owner, found, need, Action.DRAIN if lost else None, code="no_rail")
        else:
            names = listed(sorted(port.device for port in of_gpus.ports))
            lost = bool(usable(adapters) and absent)
            found = Quantity(len(of_gpus.ports), "ports", f"{count(len(of_gpus.ports), 'port')} ({names})")
            need = Quantity(of_gpus.need, "ports")
            yield Finding(_ADAPTERS, found, need, Action.DRAIN if lost else None, code="too_few_ports")


_ADAPTERS = Part("adapter", name="adapters")


def _lost(rails: Rails) -> str:
    """State which rail is not there: 'no rail: adapter 0000:5e:00.0 is not there'."""
    found = f"{len(rails.ports)} of {rails.need} rails" if rails.ports else "no rail"
    many = len(rails.missing) > 1
    where = f"adapter{'s' if many else ''} {listed(rails.missing)} {'are' if many else 'is'} not there"
    return f"{found}: {where}" if rails.missing else f"{found}: no adapter is behind its PCIe switch"


def _usual_locations(active_majority: Mapping[Location, Norm[bool]]) -> set[Location]:
    """Return the places of ports that two thirds of the nodes with adapters have; of two nodes neither is known to be at fault."""
    nodes = max((usual.total for usual in active_majority.values()), default=0)
    return {at for at, usual in active_majority.items() if nodes > PAIR and decides(usual.total, nodes)}


@check(
    "fabric.link_layer",
    cause="a port is configured for the other protocol, or an adapter is missing beside those for storage",
    hint="with mlxconfig, set LINK_TYPE_P1 of the adapter to 1 (InfiniBand) or 2 (Ethernet), then reboot; ibstat; lspci -d 15b3:",
    action=Action.CONFIGURE,
    setting="the profile's fabric.link_layer",
)
@_networked
def link_layer(network: Profile, adapters: Adapters, node_rails: tuple[Rails, ...] = ()) -> Judgement:
    """Enough ports have the profile's link layer."""
    expected, rails = network.fabric.link_layer, node_rails or rails_of(adapters, network)
    if not any(of_gpus.ports for of_gpus in rails):
        raise NotAvailable(NO_PORT)
    for of_gpus in rails:
        ports, others = of_gpus.ports, [port for port in of_gpus.ports if port.link_layer != expected]
        few = min(of_gpus.need, len(ports)) - (len(ports) - len(others))
        if few > 0 and len(others) == few:
            for port in others:
                code = "wrong_link_layer" if port.link_layer else "unreadable"
                yield Finding(of_gpus.part(port), port.link_layer or code, expected, code=code)
        elif few > 0:
            shown = ", ".join(f"{port} {port.link_layer or 'unreadable'}" for port in others)
            right = len(ports) - len(others)
            found = Quantity(right, "ports", f"{right} ports of {expected}; {shown}")
            need = Quantity(of_gpus.need, "ports")
            yield Finding(of_gpus.owner or _ADAPTERS, found, need, code="too_few_ports")


@check(
    "fabric.port_state",
    show="ibstat PART",
    cause="cable, transceiver or switch port; or no subnet manager (INIT)",
    hint="ibstat; ibdiagnet; swap the cable with its neighbour's and check whether the fault moves with it",
    action=Action.CONFIGURE,
    never_healthy="the port for GPU traffic at this PCI address is active on two thirds of the nodes that have it, and physically down "
    "here; a link that is up without a subnet manager takes no node out of service",
)
@_with_adapters
def port_state(
    network: Profile,
    adapters: Adapters,
    active_majority: Mapping[Location, Norm[bool]] = MappingProxyType({}),
    node_rails: tuple[Rails, ...] = (),
) -> Judgement:
    """As many ports for GPU traffic as the profile has are ACTIVE and LinkUp."""
    rails = node_rails or rails_of(adapters, network)
    active = {str(port) for of_gpus in rails for port in _active(of_gpus.ports, network)}
    yield Metric("hca_ports_active", len(active), "ports")
    if not any(_of_layer(of_gpus.ports, network) for of_gpus in rails):
        yield NotAvailable(f"no port has the link layer {network.fabric.link_layer} (see fabric.link_layer)")
    for of_gpus in rails:
        ports = _of_layer(of_gpus.ports, network)
        few = len(active.intersection(map(str, ports))) < min(of_gpus.need, len(ports))
        for port in ports:
            if str(port) not in active:
                yield from _down(of_gpus.part(port), port, active_majority, few=few)
    rail_ports = {str(port) for of_gpus in rails for port in of_gpus.ports}
    for port in usable(adapters):
        if str(port) not in rail_ports and port.state != "ACTIVE":
            yield from _down(port.part, port, active_majority, few=False, role=", for storage or management")


def _down(
    part: Part, port: Port, active_majority: Mapping[Location, Norm[bool]], *, few: bool, role: str = ""
) -> Judgement:
    """Judge a port that is not up: a failure if too `few` are, else a warning if it is up on most nodes."""
    shown, is_linked = f"{port.state or '?'}, {port.phys_state or '?'}{role}", port.phys_state in LINK_UP
    usual, code = active_majority.get(port.location, Norm[bool]()), "not_active" if is_linked else "no_link"
    if few:
        # a link that is up lacks its subnet manager, which is no fault of the node
        down = Action.DRAIN if usual.value and usual.total > PAIR else Action.MONITOR
        yield Finding(part, Quote(shown), "ACTIVE, LinkUp", None if is_linked else down, code=code)
    elif usual.value:
        yield Advisory(part, Quote(shown), f"ACTIVE, {usual.most}", code=code)


@check(
    "fabric.rate",
    show="ibstat PART",
    cause="a link trained to a lower rate or fewer lanes: cable or transceiver",
    hint="ibstat; ibdiagnet; reseat or replace the cable",
    action=Action.CONFIGURE,
    never_healthy="the port for GPU traffic at this PCI address runs faster on two thirds of the nodes where it is active",
)
@_networked
def rate(
    network: Profile,
    adapters: Adapters,
    rate_majority: Mapping[Location, Norm[float]] = MappingProxyType({}),
    node_rails: tuple[Rails, ...] = (),
) -> Judgement:
    """Active ports for GPU traffic run at the profile's rate; fabric.port_state judges ports that are down."""
    expected = network.fabric.rate
    if expected is None:
        raise NotApplicable("the profile states no rate")
    rails = node_rails or rails_of(adapters, network)
    running = [port for of_gpus in rails for port in _active(of_gpus.ports, network)]
    if not running:
        raise NotAvailable(NONE_ACTIVE)
    # a setting, as of the profile, would slow all ports of the node
    milder = Action.MONITOR if any((port.rate or 0) >= expected * 0.99 for port in running) else None
    for of_gpus in rails:
        active = _active(of_gpus.ports, network)
        slow = [port for port in active if port.rate is None or port.rate < expected * 0.99]
        if len(active) - len(slow) >= min(of_gpus.need, len(active)):
            continue
        for port in slow:
            found = "unreadable" if port.rate is None else Quantity(port.rate * 8, "Gb/s")
            usual = rate_majority.get(port.location, Norm[float]())
            lower = usual.total > PAIR and (port.rate or 0) < (usual.value or 0) * 0.99
            action = Action.DRAIN if lower else milder if port.rate else None
            code, stated = "unreadable" if port.rate is None else "slow_link", Quantity(expected * 8, "Gb/s")
            yield Finding(of_gpus.part(port), found, stated, action, code=code)


@check(
    "fabric.firmware",
    cause="an adapter was replaced or left out of an update",
    hint="mlxfwmanager --query; flash the fleet's firmware; reboot",
    action=Action.CONFIGURE,
)
@_networked
def firmware(
    network: Profile, adapters: Adapters, firmware_majority: Mapping[str, Norm[str]]
) -> Judgement:  # the decorator reads the profile
    """Adapters of one board have the firmware of the fleet's majority."""
    seen = {port.device: port for port in adapters.ports if port.bridge or not role(port)}
    if not seen:
        raise NotAvailable(NO_PORT)
    for device, port in sorted(seen.items()):
        if port.firmware is None:
            yield NotAvailable(f"{device}: its firmware version cannot be read")
        else:
            board = port.board or port.hca_type or ""
            part = Part("adapter", name=device, address=port.part.address)
            shown = f"{port.firmware} of board {board}" if board else ""
            usual = firmware_majority.get(board, Norm[str]())
            yield from usual.judge(part, port.firmware, worse=differs, measured=shown)


@check(
    "fabric.pkeys",
    cause="the subnet manager has the port in other partitions than that of the other nodes, or as a limited member",
    hint="grep . /sys/class/infiniband/*/ports/*/pkeys/* | grep -v 0x0000; smpquery pkeys with the LID; add the port's GUID to "
    "partitions.conf of opensm, or to the partition in UFM",
    action=Action.CONFIGURE,
    show="grep -v 0x0000 /sys/class/infiniband/*/ports/*/pkeys/*",
)
@_networked
def pkeys(network: Profile, adapters: Adapters, pkeys_majority: Mapping[Location, Norm[tuple[int, ...]]]) -> Judgement:
    """An active InfiniBand port has the partition keys of the same port on most nodes; more are no fault.

    Full membership (0x8001) includes limited membership (0x0001); two limited members of a partition cannot exchange packets.
    """
    ports = _with_keys(adapters)
    if not ports:
        raise NotApplicable("no active InfiniBand port has partition keys")
    for port in ports:
        usual = pkeys_majority.get(port.location, Norm())
        yield from usual.judge(port.part, port.pkeys, worse=lacks, shown=shown_keys)


@check(
    "fabric.mtu",
    cause="a switch or interface with another MTU",
    hint="ibv_devinfo | grep mtu; ip link set mtu",
    action=Action.CONFIGURE,
    setting="the profile's fabric.mtu",
)
@_networked
def mtu(network: Profile, adapters: Adapters, node_rails: tuple[Rails, ...] = ()) -> Judgement:
    """As many active ports as the profile has use its MTU: the active MTU (InfiniBand) or the interface's (RoCE)."""
    expected = network.fabric.mtu
    if expected is None:
        raise NotApplicable("the profile states no MTU")
    rails = node_rails or rails_of(adapters, network)
    active = [port for of_gpus in rails for port in _active(of_gpus.ports, network)]
    if not active:
        raise NotAvailable(NONE_ACTIVE)
    infiniband = network.fabric.link_layer == "InfiniBand"
    found = [(port, [port.mtu] if infiniband else list(port.interfaces.values())) for port in active]
    good = sum(bool(values) and set(values) == {expected} for _, values in found)
    if good >= min(network.fabric.hcas, len(active)):
        return
    for port, values in found:
        if not values or None in values:
            yield NotAvailable(f"{port}: its MTU cannot be read (ibv_devinfo absent, or no interface)")
        for value in values:
            if value not in (None, expected):
                mine, stated = Quantity(value, "bytes"), Quantity(expected, "bytes")
                yield Finding(port.part, mine, stated, code="wrong_mtu")


@check(
    "fabric.gid",
    cause="the port has no GID of RoCE v2: no IP address on its interface, or the adapter has only RoCE v1",
    hint="show_gids; ip addr of the port's interface; set mode 2 of the adapter with cma_roce_mode; correct NCCL_IB_GID_INDEX",
    action=Action.CONFIGURE,
)
@_networked
def gid(
    network: Profile,
    gids: Sequence[GidPort],
    gid_exports: Sequence[tuple[str, str]] = (),
    adapters: Adapters | None = None,
    node_rails: tuple[Rails, ...] = (),
) -> Judgement:
    """Ports of RoCE have a GID of RoCE v2, and an exported NCCL_IB_GID_INDEX is the index of one.

    `gid_exports`: (environment, value) of each NCCL_IB_GID_INDEX in the cluster file.
    """
    if network.fabric.link_layer != "Ethernet":
        raise NotApplicable(f"profile {network.name} has InfiniBand: GID types are for RoCE")
    rails = (node_rails or rails_of(adapters, network)) if adapters and adapters.ports else ()
    names = {str(port) for of_gpus in rails for port in of_gpus.ports}
    ports = [port for port in gids if port.link_layer == "Ethernet" and (not names or str(port) in names)]
    if not ports:
        yield NotAvailable("no port has the link layer Ethernet (see fabric.link_layer)")
    good = [port for port in ports if ROCE_V2 in port.types.values()]
    yield Metric("roce_v2_ports", len(good), "ports")
    if len(good) < min(network.fabric.hcas, len(ports)):
        for port in ports:
            if port not in good:
                shown = ", ".join(sorted(set(port.types.values()))) or "no GID"
                yield Finding(port.part, Quote(shown), f"a GID of {ROCE_V2}", code="no_roce_v2")
    for environment, value in gid_exports:
        for port in good:
            found = port.types.get(int(value), "no GID") if value.isdecimal() else "no index"
            if found != ROCE_V2 and value != GID_BY_NCCL:
                right = ", ".join(str(index) for index, kind in sorted(port.types.items()) if kind == ROCE_V2)
                measured = f"{found} at NCCL_IB_GID_INDEX={value} ({environment})"
                expected = f"{ROCE_V2}: index {right}"
                # an error of the cluster file is found on every good node
                yield Finding(port.part, measured, expected, Action.MONITOR, code="wrong_gid_index")


# --- from GPU to adapter -----------------------------------------------------------------------------------------


@check(
    "fabric.gpu_nic_affinity",
    cause="an adapter is in another slot than on the other nodes, or the PCIe switches are configured differently",
    hint="nvidia-smi topo -m; lspci -tv; compare with a good node",
    action=Action.CONFIGURE,
)
@_networked
def gpu_nic_affinity(
    network: Profile, topology: Topology, adapters: Adapters | None = None, node_rails: tuple[Rails, ...] = ()
) -> Judgement:
    """Every GPU has an adapter behind its own PCIe switch (PIX or PXB), if the machine has such switches.

    If no GPU has one, the machine has no such switches (adapters are on ports of Grace's CPUs), or is a guest that does
    not see them. With fewer adapters than GPUs, the board's design decides which GPUs have a near one.
    """
    if topology.memory:
        raise NotApplicable(
            "the memory of the GPUs is a NUMA node: the path from GPU to adapter is through the CPU (Grace)"
        )
    names, hcas = {name for of_gpu in topology.nics.values() for name in of_gpu}, network.fabric.hcas
    if len(names) < hcas:
        raise NotAvailable(f"nvidia-smi topo -m lists {len(names)} of {hcas} adapters (see hca_count)")
    rails = (node_rails or rails_of(adapters, network)) if adapters and adapters.ports else ()
    if any(len(of_gpus.ports) < of_gpus.need for of_gpus in rails):
        raise NotAvailable("the node lacks an adapter (see fabric.hca_count)")
    far = {
        index: of_gpu
        for index, of_gpu in sorted(topology.nics.items())
        if not any(cell in NEAR for cell in of_gpu.values())
    }
    if far and len(far) == len(topology.nics):
        raise NotApplicable("no GPU has an adapter behind its own PCIe switch: a guest, or a board without them")
    if far and hcas < len(topology.nics):
        raise NotApplicable(f"{hcas} adapters for {len(topology.nics)} GPUs: not all can have one near")
    for index, of_gpu in far.items():
        far_away = f"no near adapter ({', '.join(sorted(set(of_gpu.values())))})"
        yield Finding(gpu(index), far_away, "an adapter at PIX or PXB", code="no_near_adapter")


@check(
    "fabric.iommu",
    cause="the IOMMU translates every access of an adapter to a GPU: GPUDirect is slow or fails",
    hint="kernel parameter iommu=pt (or intel_iommu=off, amd_iommu=off), then reboot",
    # a guest, or a host with DMA-BUF, may work well with it: the nccl suite measures the effect
    action=Action.CONFIGURE,
)
@_networked
def iommu(network: Profile, iommu_state: Iommu) -> Judgement:  # the decorator reads the profile
    """The IOMMU is off or passes through."""
    given = " ".join(word for word in iommu_state.cmdline if "iommu" in word) or "no iommu parameter"
    if iommu_state.domains:  # the kernel's configuration may be pass-through without a parameter
        for device, kind in sorted(iommu_state.domains.items()):
            if kind != "identity":
                shown = f"IOMMU domain of type {kind} ({given})"
                yield Finding(Part("device", name=device), shown, "identity", code="translates")
        return
    fine = {"iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=1"}
    on = iommu_state.units or any("iommu=on" in word for word in iommu_state.cmdline)
    if on and not fine.intersection(iommu_state.cmdline):
        shown = f"{given}; active: {', '.join(iommu_state.units) or 'none'}"
        yield Finding(named("setting", "kernel command line"), shown, "iommu=pt", code="iommu_on")


@check(
    "fabric.acs",
    cause="Access Control Services of a PCIe switch send traffic between GPU and adapter through the CPU",
    hint="switch ACS off in the BIOS, or at boot with setpci (ECAP_ACS+0x6.w=0000 of each bridge; NCCL troubleshooting)",
    # a hypervisor's host needs it, and GPUDirect works, but slowly: the nccl suite measures the effect
    action=Action.CONFIGURE,
)
@_networked
def acs(network: Profile, acs_state: Acs) -> Judgement:  # the decorator reads the profile
    """No PCIe switch redirects requests to the CPU."""
    yield Metric("acs_bridges", acs_state.devices, "bridges")
    for bridge in acs_state.switches:
        yield Finding(Part("pcie_switch", name=bridge), "ACSCtl: ReqRedir+", "ReqRedir-", code="redirects")
    if acs_state.others:  # traffic within a switch does not pass the root port
        shown = f"{len(acs_state.others)}, the first is {acs_state.others[0]}"
        part = Part("device", name="PCIe ports outside of switches")
        yield Advisory(part, f"ACSCtl: ReqRedir+ on {shown}", "ReqRedir-", code="redirects")


@check(
    "fabric.fabric_manager",
    cause="fabric manager and driver have different versions: the NVSwitch fabric is not configured",
    hint="install the fabric manager package of the driver's version; systemctl restart nvidia-fabricmanager",
    action=Action.CONFIGURE,
)
def fabric_manager(fabric_service: FabricManager, gpus: Gpus, profile: Profile) -> Judgement:
    """Fabric manager has the driver's version; gpu.fabric_manager judges whether it runs."""
    driver = next((gpu.driver for gpu in gpus if gpu.driver), None)
    if profile.gpu is None or not profile.gpu.nvswitch:
        raise NotApplicable(f"profile {profile.name} states no NVSwitch")
    elif fabric_service.version is None or driver is None:
        raise NotAvailable("the version of fabric manager or of the driver cannot be read")
    elif fabric_service.version != driver:
        # another fabric manager, in a container, may have set the fabric up
        wanted = f"{driver}, the driver's version"
        service, version = named("service", "nvidia-fabricmanager"), Quote(fabric_service.version)
        found = Finding(service, version, wanted, code="other_version")
        yield unless_it_works(bool(gpus.joined_fabric), found)


# --- names of interfaces -----------------------------------------------------------------------------------------


@check(
    "fabric.nic_names",
    cause="an exported variable names an interface or adapter that this node does not have",
    hint="ip -br addr; ls /sys/class/infiniband; correct `exports` in the cluster file, or the interface's name",
    action=Action.CONFIGURE,  # an error of the cluster file is found on every good node
)
def nic_names(interfaces: Interfaces, environments: Mapping[str, EnvironmentConfig]) -> Judgement:
    """Network interfaces that the environments export exist, by each library's own rules."""
    exports = [
        (name, variable, value)
        for name, environment in environments.items()
        for variable, value in environment.exports.items()
        if variable in RULES
    ]
    if not exports:
        raise NotApplicable("no environment of the cluster file names a network interface")
    for name, variable, value in exports:
        part = named("setting", f"{variable}={value} (environment {name})")
        for problem in RULES[variable](value, interfaces):
            if isinstance(problem, NotAvailable):
                yield problem
            else:
                yield Finding(part, problem.text, "an interface of this node", code=problem.code)


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _absent(name: str, names: Iterable[str]) -> Explanation:
    return Explanation("absent", f"no {name or 'name'}; there are {listed(sorted(names))}")


def nccl_names(value: str, names: frozenset[str]) -> Iterator[Explanation]:
    """Judge a list of NCCL: prefixes, exact names after '=', all but these after '^' ('^=' likewise)."""
    wanted = NameFilter.parse(",".join(_entries(value)))
    if not wanted.entries:
        yield Explanation("empty", "has no name")
    elif wanted.exclude:
        if not any(map(wanted.selects, names)):
            yield Explanation("excludes_all", f"excludes all of {listed(sorted(names))}")
    elif wanted.exact:
        yield from (_absent(entry, names) for entry, _ in wanted.entries if entry not in names)
    elif not any(map(wanted.selects, names)):
        text = f"no name has this prefix; there are {listed(sorted(names))}"
        yield Explanation("no_such_prefix", text)


def _nccl_socket(value: str, found: Interfaces) -> Iterator[Explanation]:
    return nccl_names(value, found.names - {"lo"} if value.startswith("^") else found.names)


def _exact(value: str, found: Interfaces) -> Iterator[Explanation]:
    """Judge a list of exact interface names (Gloo, TensorPipe)."""
    for entry in _entries(value) or [""]:
        if entry not in found.names:
            yield _absent(entry, found.names)


def _ucx(value: str, found: Interfaces) -> Iterator[Explanation]:
    """Judge UCX_NET_DEVICES: 'all', interfaces, or adapters with their port (mlx5_0:1); '^' excludes."""
    if value.strip() == "all" or value.startswith("^"):
        return
    for entry in _entries(value) or [""]:
        device, colon, port = entry.partition(":")
        if device in found.devices and not (colon and port.isdecimal()):
            yield Explanation("lacks_port", f"{entry}: UCX needs also the port, like {device}:1")
        elif device not in (found.devices if colon else found.names):
            yield _absent(entry, found.names | found.devices)


def _open_mpi(value: str, found: Interfaces) -> Iterator[Explanation | NotAvailable]:
    """Judge a list of Open MPI: exact names, or subnets like 10.0.0.0/8."""
    for entry in _entries(value) or [""]:
        try:
            subnet = ipaddress.IPv4Network(entry, strict=False) if "/" in entry else None
        except ValueError:
            yield Explanation("no_subnet", f"{entry} is not a subnet")
            continue
        if subnet is None and entry not in found.names:
            yield _absent(entry, found.names)
        elif subnet is not None and found.addresses is None:
            yield NotAvailable(f"{entry}: the node's addresses cannot be read (ip is absent)")
        elif subnet and not any(it.ip in subnet for its in (found.addresses or {}).values() for it in its):
            yield Explanation("no_address", f"no address in {entry}")


RULES: dict[str, Callable[[str, Interfaces], Iterator[Explanation] | Iterator[Explanation | NotAvailable]]] = {
    "NCCL_SOCKET_IFNAME": _nccl_socket,
    "NCCL_IB_HCA": lambda value, found: nccl_names(value, found.devices),
    "GLOO_SOCKET_IFNAME": _exact,
    "TP_SOCKET_IFNAME": _exact,
    "UCX_NET_DEVICES": _ucx,
    "OMPI_MCA_btl_tcp_if_include": _open_mpi,
    "OMPI_MCA_oob_tcp_if_include": _open_mpi,
}


# the last check of the suite: a longer time since the first reading shows more errors
@check(
    "fabric.counters",
    show="grep . /sys/class/infiniband/PART/ports/*/counters/*",
    cause="a bad cable, transceiver or port: the link loses data or goes down",
    hint="perfquery -x; ibqueryerrors; clean or replace the cable; clear with perfquery -R and measure again",
    action=Action.MONITOR,
    never_healthy="bit errors of a link that stayed up rose by more than twice what IBTA allows for its rate and time; link resets and "
    "older errors take no node out of service",
)
@_networked
def counters(network: Profile, adapters: Adapters, adapters_later: Adapters) -> Judgement:
    """Error counters of active ports do not rise during the run, and are not saturated."""
    seconds = adapters_later.uptime - adapters.uptime if adapters_later.uptime and adapters.uptime else 0.0
    now = {str(port): port.counters for port in adapters_later.ports}
    active = _active(usable(adapters), network)
    yield Metric("counters_observed", seconds, "s", better=NEITHER)
    if not active:
        raise NotAvailable(NONE_ACTIVE)
    for port in active:
        if not port.counters:
            yield NotAvailable(f"{port}: its counters cannot be read")
        for name, text in port.garbled.items():
            yield NotAvailable(f"{port}: {name} reads {text!r}, which is not a number")
        then = {**port.counters, **now.get(str(port), {})}
        for name in port.counters:
            if then[name]:
                yield Metric(name, then[name], "events", port.part)
            yield from _counter(port.part, name, then[name], _risen(port, then, name, seconds))


def _risen(port: Port, then: Mapping[str, int], name: str, seconds: float) -> Finding | None:
    """Return the finding on a counter that rose by more than its threshold and the bit errors that IBTA allows."""
    rises = {  # a counter that was cleared meanwhile began at 0
        key: then[key] - before if then[key] >= before else then[key] for key, before in port.counters.items()
    }
    at_most = allowed(name, port.rate or 0, seconds)
    if name in CAUSED_ELSEWHERE or rises[name] <= at_most:
        return None
    shown = f"{name} rose by {rises[name]} to {then[name]} in {seconds:.0f} s of the run"
    return Finding(
        port.part,
        Quantity(rises[name], "errors", shown),
        Quantity(at_most, "errors", f"by at most {at_most:.0f}"),
        # without rate and time nothing is known of how many errors are allowed
        Action.DRAIN if port.rate and seconds and proves_fault(name, rises) else None,
        code=f"{name.lower()}_rose",
    )


def _counter(part: Part, name: str, found: int, risen: Finding | None) -> Judgement:
    """Judge one counter: by its increase, or its value.

    A saturated counter may be as old as the node, so it drains no node; but it hides new errors, so it fails until it is
    cleared.
    """
    if risen is not None:
        yield risen
    elif found in (2 ** COUNTERS[name] - 1, 2**32 - 1, 2**64 - 1):
        kind = Advisory if name in CAUSED_ELSEWHERE else Finding
        shown = f"{name} {found}: saturated, it no longer counts"
        yield kind(part, shown, "cleared with perfquery -R", code=f"{name.lower()}_saturated")
    elif found > USUAL[name]:
        total = Quantity(found, "errors", f"{name} {found} since the driver's start")
        most = Quantity(USUAL[name], "errors", f"at most {USUAL[name]}")
        yield Advisory(part, total, most, code=f"{name.lower()}_since_start")
