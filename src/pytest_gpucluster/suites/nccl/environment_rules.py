"""What each NCCL variable does to a healthy node. Pure.

A value is a deviation if no node of this hardware works as well with it as without it; it is a warning if images of clouds or
sites set it on purpose (GCP's gpudirect-tcpxo: NCCL_ALGO, NCCL_PROTO; AWS EFA: NCCL_PROTO=simple, NCCL_NET_GDR_LEVEL).
Source: the page "Environment Variables" of NCCL's user guide, and src/graph, src/transport, src/plugin of NCCL 2.29.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.kit.nccl.nccl_names import NameFilter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.suites.nccl.environment_facts import HcaPort, NcclEnvironment

GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
UNSET = "not set"
Rule = Callable[[str, "NodeContext"], "Iterator[Effect]"]  # of (value, node)


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


def _no_p2p(context: NodeContext) -> Effect:
    if context.nvlink:
        text = "GPUs of a node communicate through host memory instead of NVLink"
        return Effect("no_nvlink", text, deviation=True)
    return Effect("host_memory", "GPUs of a node communicate through host memory")


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


# --- files and libraries


def _file(consequence: str) -> Rule:
    def judge(value: str, context: NodeContext) -> Iterator[Effect]:
        if value and not context.found.readable.get(value, not value.startswith("/")):
            text = f"{value} cannot be read here: {consequence}"
            if context.elsewhere:
                text += "; it may exist in the image"
            expected = "a file that tasks can read"
            yield Effect("unreadable", text, deviation=not context.elsewhere, expected=expected)

    return judge


def _plugin(plugin: str) -> Rule:
    def judge(value: str, context: NodeContext) -> Iterator[Effect]:
        libraries = context.found.libraries
        for name in filter(None, value.split(",")):
            if name.lower() in ("none", "static_plugin"):
                continue
            if name.startswith("/"):
                absent = not context.found.readable.get(name, True)
            else:
                known = {*(libraries or ()), *(f"{it.partition('.so')[0]}.so" for it in libraries or ())}
                absent = libraries is not None and known.isdisjoint({name, f"libnccl-{plugin}-{name}.so"})
            if absent:
                text = f"the loader finds no library for {name}, so NCCL works without the plugin"
                expected = "a library in the loader's cache, LD_LIBRARY_PATH or the image"
                yield Effect("no_library", text, expected=expected)

    return judge


# --- one effect under one condition


def _if(holds: Callable[[str, NodeContext], object], effect: Effect | Callable[[NodeContext], Effect]) -> Rule:
    def judge(value: str, context: NodeContext) -> Iterator[Effect]:
        if holds(value, context):
            yield effect if isinstance(effect, Effect) else effect(context)

    return judge


def _caps(what: str) -> Rule:
    text = f"{what} for every job; NCCL's own choice depends on size and topology"
    expected = f"{UNSET}, or stated in exports of the environment"
    return _if(lambda value, _: value, Effect("fixed_tuning", text, expected=expected))


def _unless(accepted: Callable[[str], bool], text: str) -> Rule:
    return _if(lambda value, _: not accepted(value), Effect("side_effect", text))


def _is_off(value: str) -> bool:
    return not number(value)


def _is_not_zero(value: str) -> bool:
    return value.strip() != "0"


def _has_fabric(context: NodeContext) -> bool:
    return context.profile.fabric.link_layer != "none"


def _needs_shared_memory(value: str, context: NodeContext) -> bool:
    return bool(number(value) and context.profile.gpu and context.profile.gpu.count > 1)


def _needs_nvls(value: str, context: NodeContext) -> bool:
    return bool(value.strip() == "0" and context.profile.gpu and context.profile.gpu.nvswitch)


_LOCAL = ("LOC", "0")  # levels of a path within one GPU: none between two
_NO_DIRECT_PATH = "GPUs of a node that have no direct path communicate over the network"
_NO_NVLS = "NVLink SHARP is off: all-reduce within a node is slower by a quarter (profiles: 365, not 478 GB/s)"
_NO_GDR = "adapters do not access GPU memory (no GPUDirect RDMA)"
RULES: Mapping[str, Rule] = {
    "NCCL_P2P_DISABLE": _if(lambda value, _: number(value) == 1, _no_p2p),
    "NCCL_P2P_LEVEL": _if(lambda value, _: value in _LOCAL, _no_p2p),
    "NCCL_SHM_DISABLE": _if(_needs_shared_memory, Effect("no_shared_memory", _NO_DIRECT_PATH, deviation=True)),
    "NCCL_NVLS_ENABLE": _if(_needs_nvls, Effect("no_nvls", _NO_NVLS)),
    "NCCL_IB_DISABLE": _if(lambda value, node: number(value) and _has_fabric(node), _sockets),
    "NCCL_NET": _if(lambda value, node: value.lower() == "socket" and _has_fabric(node), _sockets),
    "NCCL_IB_HCA": _ib_hca,
    "NCCL_SOCKET_IFNAME": _socket_ifname,
    "NCCL_NET_GDR_LEVEL": _if(lambda value, node: value in _LOCAL and node.profile.fabric.peer_memory, Effect("no_gpudirect", _NO_GDR)),
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
    "NCCL_CUMEM_ENABLE": _unless(_is_not_zero, "no memory of CUDA's VMM: features that need it are off, like NVLink SHARP with registered buffers"),
    "NCCL_NET_GDR_READ": _unless(_is_not_zero, "GPUDirect RDMA is used for receives only"),
    "NCCL_DMABUF_ENABLE": _unless(_is_not_zero, "no DMA-BUF: GPUDirect RDMA needs nvidia_peermem"),
    "NCCL_PXN_DISABLE": _unless(_is_off, "messages do not travel over the GPU next to the adapter of the peer's rail"),
    "NCCL_CHECK_POINTERS": _unless(_is_off, "NCCL checks each pointer, a setting for debugging"),
    "NCCL_COMM_ID": _unless(lambda value: not value, "all communicators of all jobs use this address"),
    "NCCL_DEBUG": _unless(
        lambda value: value.upper() not in ("INFO", "TRACE"), "every rank of every job writes a log, TRACE per call"
    ),
}  # fmt: skip
