"""Adapters of a sound node, and what tests of their checks share."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.fabric import facts as infiniband

IB = Profile(
    name="ib",
    description="",
    source="",
    fabric=FabricProfile(hcas=2, link_layer="InfiniBand", rate=50.0, peer_memory=True, mtu=4096),
)


NONE = Profile(name="vm", description="", source="")


CONTENT = {
    "fw_ver": "28.39.1002",
    "hca_type": "MT4129",
    "board_id": "MT_0000000838",
    "ports/1/state": "4: ACTIVE",
    "ports/1/phys_state": "5: LinkUp",
    "ports/1/rate": "400 Gb/sec (4X NDR)",
    "ports/1/link_layer": "InfiniBand",
    **{f"ports/1/counters/{name}": "0" for name in infiniband.COUNTERS},
}


ZEROS = dict.fromkeys(infiniband.COUNTERS, 0)


def answer(text: str, rc: int = 0) -> Answer:
    return Answer("gpu01", rc, text.encode())


def listing(*, end: bool = True) -> str:
    """Return an answer of two ports."""
    blocks = ""
    for device in ("mlx5_0", "mlx5_1"):
        lines = [f"/sys/class/infiniband/{device}/{name}:{text}" for name, text in CONTENT.items()]
        blocks += "\n".join((f"port {device} 1", *lines, f"net ib{device[-1]} 4092")) + "\n"
    mtu = "hca_id:\t{}\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t4096 (5)\n"
    mtus = "mtus\n" + mtu.format("mlx5_0") + mtu.format("mlx5_1")
    return "uptime 864000.00 1.0\n" + blocks + mtus + ("end\n" if end else "")


def host(**changes: Any) -> infiniband.Adapters:
    found = infiniband.parse_adapters(answer(listing()))
    return replace(found, ports=(found.ports[0], replace(found.ports[1], **changes)))


ROCE = Profile(name="roce", description="", source="", fabric=FabricProfile(hcas=2, link_layer="Ethernet", rate=50.0))


TYPES = "/sys/class/infiniband/{0}/ports/1/gid_attrs/types/"


def gid_table(*kinds: str, device: str = "mlx5_0", layer: str = "Ethernet") -> str:
    rows = [f"{TYPES.format(device)}{index}:{kind}" for index, kind in enumerate(kinds) if kind]
    return "\n".join([f"gids {device} 1 {layer}", *rows]) + "\n"


def gids(*tables: str) -> tuple[infiniband.GidPort, ...]:
    return infiniband.parse_gids(answer("".join(tables) + "end\n"))


GOOD_GIDS = gid_table("IB/RoCE v1", "RoCE v2", "", "RoCE v2")


THERE = infiniband.Interfaces(
    frozenset({"lo", "eth0", "eth1", "ib0"}),
    frozenset({"mlx5_0", "mlx5_1", "mlx5_10"}),
    {"eth0": (ipaddress.IPv4Interface("10.1.2.3/16"),)},
)
