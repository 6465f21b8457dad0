"""Faults of adapters, ports, cables and the subnet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_sandbox.fault_registry import hca_of, node_fault, require
from slurm_sandbox.hardware import alone_path

if TYPE_CHECKING:
    from slurm_sandbox.fault_registry import Options
    from slurm_sandbox.hardware import SimulatedHca, SimulatedNode


@node_fault("proprietary kernel modules without nvidia_peermem: no GPUDirect RDMA")
def _no_peermem(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    node.modules.pop("nvidia_peermem")
    node.open_modules = False
    node.network.gdr = False


@node_fault("an InfiniBand adapter is missing", hca="mlx5_3")
def _hca_missing(node: SimulatedNode, options: Options) -> None:
    node.hcas.remove(hca_of(node, options))


@node_fault("an InfiniBand port is down", hca="mlx5_2")
def _ib_down(node: SimulatedNode, options: Options) -> None:
    hca = hca_of(node, options)
    hca.state, hca.phys_state, hca.rate = "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)"


@node_fault("half of the rails are down, bridges to NVSwitches and ports for storage are up")
def _rails_down(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    rails = [hca for hca in node.hcas if hca.near]
    for hca in rails[len(rails) // 2 :]:
        hca.state, hca.phys_state, hca.rate = "1: DOWN", "2: Polling", "10 Gb/sec (4X SDR)"
    _add_other_ports(node, rails[0], "4: ACTIVE", "5: LinkUp")


@node_fault("an adapter is missing, ports for storage of the same board are up", hca="mlx5_3")
def _rail_replaced(node: SimulatedNode, options: Options) -> None:
    rail = hca_of(node, options)
    node.hcas.remove(rail)
    _add_other_ports(node, rail, "4: ACTIVE", "5: LinkUp")


@node_fault("bridges to NVSwitches and ports for storage are down", harmless=True)
def _other_ports_down(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    _add_other_ports(node, node.hcas[0], "1: DOWN", "3: Disabled")


def _add_other_ports(node: SimulatedNode, like: SimulatedHca, state: str, phys_state: str) -> None:
    """Add four functions of a bridge and a card of two ports."""
    for index, address in enumerate(
        [*(f"0000:e5:00.{function}" for function in range(4)), "0000:f1:00.0", "0000:f1:00.1"]
    ):
        other = replace(
            like, name=f"mlx5_{20 + index}", interface=f"ib{20 + index}", near=(), bridge=index < 4,
            path=alone_path(address), state=state, phys_state=phys_state, counters=dict(like.counters),
        )  # fmt: skip
        node.hcas.append(other)


@node_fault("an InfiniBand port trained to a lower rate", hca="mlx5_2")
def _ib_rate(node: SimulatedNode, options: Options) -> None:
    hca = hca_of(node, options)
    rate, _, kind = hca.rate.partition(" Gb/sec (4X ")
    hca.rate = f"{int(rate) // 2} Gb/sec (2X {kind}"


@node_fault("the symbol errors of an InfiniBand port are at their maximum", hca="mlx5_1", count=65535)
def _ib_errors(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).counters["symbol_error"] = int(options["count"])


@node_fault("an InfiniBand link flapped until its counter reached the maximum", hca="mlx5_1", count=255)
def _ib_flaps(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).counters["link_downed"] = int(options["count"])


@node_fault("an adapter has other firmware", hca="mlx5_0", version="28.37.1700")
def _ib_firmware(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).firmware = options["version"]


@node_fault("an InfiniBand port is not in the partition of the cluster", hca="mlx5_2")
def _ib_partition(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).pkeys = ("0x7fff",)


@node_fault("an InfiniBand port has a smaller MTU", hca="mlx5_0", mtu=2048)
def _ib_mtu(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).mtu = int(options["mtu"])


@node_fault("a port uses Ethernet instead of InfiniBand", hca="mlx5_0")
def _ib_link_layer(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).link_layer = "Ethernet"


@node_fault("PCIe access control is on: no direct traffic between GPUs and adapters")
def _acs_on(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    node.acs = True


@node_fault("an adapter moves less data than its link, which is up at full rate", hca="mlx5_1", factor=0.6)
def _rail_slow(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).speed = float(options["factor"])


@node_fault("an adapter answers late", hca="mlx5_1", factor=2.5)
def _rail_latency(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).latency = float(options["factor"])


@node_fault("a port has no GID of the index that the cluster file states", hca="mlx5_0")
def _gid_missing(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).gids = 1
