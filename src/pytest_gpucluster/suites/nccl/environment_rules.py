"""What each NCCL variable does to a healthy node. Pure.

A value is a deviation if no node of this hardware works as well with it as without it; it is a warning if images of clouds or
sites set it on purpose (GCP's gpudirect-tcpxo: NCCL_ALGO, NCCL_PROTO; AWS EFA: NCCL_PROTO=simple, NCCL_NET_GDR_LEVEL).
Source: the page "Environment Variables" of NCCL's user guide, and src/graph, src/transport, src/plugin of NCCL 2.29.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.kit.nccl.nccl_names import NameFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.suites.nccl.environment_facts import HcaPort, NcclEnvironment

GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
UNSET = "not set"


@dataclass(frozen=True)
class NodeContext:
    """The node of a variable. `elsewhere`: NCCL runs in an image of the cluster file, whose files are other ones."""

    profile: Profile
    found: NcclEnvironment
    elsewhere: bool = False

    @property
    def nvlink(self) -> bool:
        """Whether the GPUs are connected by NVLink."""
        return bool(self.profile.gpu and self.profile.gpu.nvlinks)

    @property
    def over_ib(self) -> bool:
        """Whether NCCL's own transport for InfiniBand and RoCE carries the traffic between nodes."""
        fabric, names = self.profile.fabric, self.found.effective
        other = any(
            name in names and names[name].value.upper() not in ("IB", "SOCKET", "NONE", "")
            for name in ("NCCL_NET", "NCCL_NET_PLUGIN")
        )
        expected = fabric.transport is None or fabric.transport.startswith("NET/IB")
        return fabric.link_layer != "none" and expected and not other


@dataclass(frozen=True)
class Effect:
    """What a value does: a stable word and text. `deviation` False: a warning only."""

    code: str
    text: str
    deviation: bool = False
    expected: str = UNSET


def effects(name: str, value: str, context: NodeContext) -> Iterator[Effect]:
    """Yield what this value of a variable does on this node; nothing for a variable without a rule."""
    rule = RULES.get(name)
    if rule is not None:
        yield from rule(value, context)


def number(value: str) -> int:
    """Read a number as NCCL does (strtoll with base 0): text without digits is 0."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]{1,15}|0[0-7]{0,18}|[1-9][0-9]{0,17})", value)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return int(digits, base) * (-1 if match[1] == "-" else 1)


# --- within a node


def _p2p_disable(value: str, context: NodeContext) -> Iterator[Effect]:
    if number(value) == 1:
        yield _no_p2p(context)


def _p2p_level(value: str, context: NodeContext) -> Iterator[Effect]:
    if value in ("LOC", "0"):
        yield _no_p2p(context)


def _no_p2p(context: NodeContext) -> Effect:
    if context.nvlink:
        text = "GPUs of a node communicate through host memory instead of NVLink"
        return Effect("no_nvlink", text, deviation=True)
    return Effect("host_memory", "GPUs of a node communicate through host memory")


def _shm_disable(value: str, context: NodeContext) -> Iterator[Effect]:
    gpus = context.profile.gpu
    if number(value) and gpus is not None and gpus.count > 1:
        text = "GPUs of a node that have no direct path communicate over the network"
        yield Effect("no_shared_memory", text, deviation=True)


def _nvls(value: str, context: NodeContext) -> Iterator[Effect]:
    if value.strip() == "0" and context.profile.gpu is not None and context.profile.gpu.nvswitch:
        yield Effect(
            "no_nvls",
            "NVLink SHARP is off: all-reduce within a node is slower by a quarter (profiles: 365, not 478 GB/s)",
        )


# --- between nodes


def _ib_disable(value: str, context: NodeContext) -> Iterator[Effect]:
    if number(value) and context.profile.fabric.link_layer != "none":
        yield _sockets(context)


def _net(value: str, context: NodeContext) -> Iterator[Effect]:
    if value.lower() == "socket" and context.profile.fabric.link_layer != "none":
        yield _sockets(context)


def _sockets(context: NodeContext) -> Effect:
    text = "NCCL uses TCP sockets instead of InfiniBand or RoCE"
    return Effect("sockets", text, deviation=context.over_ib)


def _ib_hca(value: str, context: NodeContext) -> Iterator[Effect]:
    wanted = NameFilter.parse(value)
    fabric = context.profile.fabric
    usable = [port for port in context.found.ports if port.usable]
    rails = [port for port in usable if port.link_layer == fabric.link_layer]
    chosen = [port for port in rails if wanted.selects(port.device, port.number)]
    if not usable:
        return  # fabric.port_state judges the ports
    if not any(wanted.selects(port.device, port.number) for port in usable):
        text = f"selects none of the ports {_names(usable)}, so NCCL uses TCP sockets"
        yield Effect("no_adapter", text, deviation=context.over_ib, expected="the adapters of this node")
    elif len(chosen) < (least := min(fabric.hcas, len(rails))):
        left = [port for port in rails if port not in chosen]
        text = f"selects {len(chosen)} of {len(rails)} ports; without {_names(left)}"
        expected = f"at least {least} ports (profile)"
        yield Effect("fewer_adapters", text, deviation=context.over_ib, expected=expected)


def _names(ports: list[HcaPort]) -> str:
    return some(f"{port.device}:{port.number}" for port in ports)


def _socket_ifname(value: str, context: NodeContext) -> Iterator[Effect]:
    names = context.found.interfaces
    wanted = NameFilter.parse(value)
    # without its own list NCCL takes lo last; an interface that is down is not used either
    if names and not any(wanted.selects(name) for name in names - ({"lo"} if wanted.exclude else set())):
        text = f"selects none of the interfaces {listed(sorted(names))}, so NCCL cannot start"
        yield Effect("no_interface", text, deviation=True, expected="interfaces of this node")


def _gdr_level(value: str, context: NodeContext) -> Iterator[Effect]:
    if value in ("LOC", "0") and context.profile.fabric.peer_memory:
        yield Effect("no_gpudirect", "adapters do not access GPU memory (no GPUDirect RDMA)")


# --- files and libraries


def _file(consequence: str) -> Callable[[str, NodeContext], Iterator[Effect]]:
    def judge(value: str, context: NodeContext) -> Iterator[Effect]:
        if value and not context.found.readable.get(value, not value.startswith("/")):
            text = f"{value} cannot be read here: {consequence}"
            if context.elsewhere:
                text += "; it may exist in the image"
            expected = "a file that tasks can read"
            yield Effect("unreadable", text, deviation=not context.elsewhere, expected=expected)

    return judge


def _plugin(plugin: str) -> Callable[[str, NodeContext], Iterator[Effect]]:
    def judge(value: str, context: NodeContext) -> Iterator[Effect]:
        libraries = context.found.libraries
        for name in filter(None, value.split(",")):
            if name.lower() in ("none", "static_plugin"):
                continue
            if name.startswith("/"):
                absent = not context.found.readable.get(name, True)
            else:
                spelled = {name, f"libnccl-{plugin}-{name}.so"}
                absent = libraries is not None and not any(_is_library(it, spelled) for it in libraries)
            if absent:
                text = f"the loader finds no library for {name}, so NCCL works without the plugin"
                expected = "a library in the loader's cache, LD_LIBRARY_PATH or the image"
                yield Effect("no_library", text, expected=expected)

    return judge


def _is_library(name: str, spelled: set[str]) -> bool:
    return name in spelled or name.partition(".so")[0] + ".so" in spelled


# --- tuning and debugging


def _caps(what: str) -> Callable[[str, NodeContext], Iterator[Effect]]:
    def judge(value: str, _context: NodeContext) -> Iterator[Effect]:
        if value:
            yield Effect(
                "fixed_tuning",
                f"{what} for every job; NCCL's own choice depends on size and topology",
                expected=f"{UNSET}, or stated in exports of the environment",
            )

    return judge


def _when(accepted: Callable[[str], bool], text: str) -> Callable[[str, NodeContext], Iterator[Effect]]:
    def judge(value: str, _context: NodeContext) -> Iterator[Effect]:
        if not accepted(value):
            yield Effect("side_effect", text)

    return judge


def _is_off(value: str) -> bool:
    return not number(value)


def _is_not_zero(value: str) -> bool:
    return value.strip() != "0"


RULES: Mapping[str, Callable[[str, NodeContext], Iterator[Effect]]] = {
    "NCCL_P2P_DISABLE": _p2p_disable,
    "NCCL_P2P_LEVEL": _p2p_level,
    "NCCL_SHM_DISABLE": _shm_disable,
    "NCCL_NVLS_ENABLE": _nvls,
    "NCCL_IB_DISABLE": _ib_disable,
    "NCCL_NET": _net,
    "NCCL_IB_HCA": _ib_hca,
    "NCCL_SOCKET_IFNAME": _socket_ifname,
    "NCCL_NET_GDR_LEVEL": _gdr_level,
    "NCCL_TOPO_FILE": _file("NCCL continues without the topology of the virtual machine, and may choose slow paths"),
    "NCCL_GRAPH_FILE": _file("NCCL fails with a system error"),
    "NCCL_CONF_FILE": _file("NCCL ignores it, and ~/.nccl.conf too"),
    "NCCL_NET_PLUGIN": _plugin("net"),
    "NCCL_TUNER_PLUGIN": _plugin("tuner"),
    "NCCL_ALGO": _caps("restricts the algorithms"),
    "NCCL_PROTO": _caps("restricts the protocols"),
    "NCCL_MIN_NCHANNELS": _caps("fixes the least number of channels"),
    "NCCL_MAX_NCHANNELS": _caps("limits the number of channels"),
    "NCCL_MIN_CTAS": _caps("fixes the least number of CTAs"),
    "NCCL_MAX_CTAS": _caps("limits the number of CTAs"),
    "NCCL_NTHREADS": _caps("fixes the threads per CTA"),
    "NCCL_BUFFSIZE": _caps("fixes the size of the buffers"),
    "NCCL_CUMEM_ENABLE": _when(_is_not_zero, "no memory of CUDA's VMM: features that need it are off, like NVLink SHARP with registered buffers"),
    "NCCL_NET_GDR_READ": _when(_is_not_zero, "GPUDirect RDMA is used for receives only"),
    "NCCL_DMABUF_ENABLE": _when(_is_not_zero, "no DMA-BUF: GPUDirect RDMA needs nvidia_peermem"),
    "NCCL_PXN_DISABLE": _when(_is_off, "messages do not travel over the GPU next to the adapter of the peer's rail"),
    "NCCL_CHECK_POINTERS": _when(_is_off, "NCCL checks each pointer, a setting for debugging"),
    "NCCL_COMM_ID": _when(lambda value: not value, "all communicators of all jobs use this address"),
    "NCCL_DEBUG": _when(
        lambda value: value.upper() not in ("INFO", "TRACE"), "every rank of every job writes a log, TRACE per call"
    ),
}  # fmt: skip
