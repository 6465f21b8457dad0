"""Faults in collectives, and those that the burn-in detects under load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slurm_sandbox import hostlist
from slurm_sandbox.fault_registry import FAULTS, Fault, gpu_of, hca_of, node_fault, require

if TYPE_CHECKING:
    from slurm_sandbox.fault_registry import Options
    from slurm_sandbox.hardware import SimulatedNode


@node_fault("the node is slow in every collective", factor=0.4)
def _slow_node(node: SimulatedNode, options: Options) -> None:
    node.network.speed = float(options["factor"])


@node_fault("the node is slow to others in a share of the measurements", factor=0.6, share=0.2)
def _slow_at_times(node: SimulatedNode, options: Options) -> None:
    node.network.at_times = float(options["factor"])
    node.network.share = float(options["share"])


@node_fault("the link between two nodes is slow", peer="gpu01", factor=0.3)
def _slow_link(node: SimulatedNode, options: Options) -> None:
    node.network.links[options["peer"]] = float(options["factor"])


@node_fault(
    "the leaf switch of these nodes is slow to others; inject it into each of them", leaf="gpu[01-16]", factor=0.4
)
def _slow_leaf(node: SimulatedNode, options: Options) -> None:
    node.network.leaf = list(hostlist.expand(options["leaf"]))
    node.network.uplink = float(options["factor"])


@node_fault("the cables of two ports are swapped at the leaf switches", hca="mlx5_0", other="mlx5_1")
def _cables_swapped(node: SimulatedNode, options: Options) -> None:
    one, other = hca_of(node, options), hca_of(node, {"hca": options["other"]})
    one.leaf, one.leaf_port, other.leaf, other.leaf_port = (other.leaf, other.leaf_port, one.leaf, one.leaf_port)


@node_fault("a node is cabled to the leaf switches of other nodes", leaf="leaf02")
def _wrong_leaf(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    for hca in node.hcas:
        hca.leaf, hca.leaf_port = f"{options['leaf']}-{hca.leaf.rpartition('-')[2]}", hca.leaf_port + 16


@node_fault("the Ethernet cable of a node is at another port of its switch", port="swp47")
def _ethernet_cable(node: SimulatedNode, options: Options) -> None:
    node.board = node.board[0], str(options["port"])


@node_fault("both ends of a node's cable count symbol errors", hca="mlx5_1", per_second=200)
def _cable_errors(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).errors_per_second = int(options["per_second"])


@node_fault("the port of the switch at the node's cable drops a partition of the node", hca="mlx5_2", key="0x8001")
def _partition_dropped(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).dropped = (str(options["key"]),)


@node_fault("a module receives too little light", hca="mlx5_3", dbm=-12.2)
def _optics_weak(node: SimulatedNode, options: Options) -> None:
    hca = hca_of(node, options)
    hca.light = float(options["dbm"]), hca.light[1]


@node_fault("an adapter has the GUID of the node's first one", hca="mlx5_3")
def _duplicate_guid(node: SimulatedNode, options: Options) -> None:
    copy = hca_of(node, options)
    copy.guid = node.hcas[0].guid


def _uplink(node: SimulatedNode, options: Options, fault: str) -> None:
    """Change an uplink of the leaf switch of the node's first adapter."""
    require(node.hcas, "adapters", node)
    node.subnet.append(f"uplink {node.hcas[0].leaf} {options['uplink']} {fault}")


@node_fault("an uplink of the node's leaf switch is missing", uplink=3)
def _uplink_missing(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, "down")


@node_fault("an uplink of the node's leaf switch runs at a lower speed", uplink=3, speed="EDR")
def _uplink_slow(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"speed {options['speed']}")


@node_fault("an uplink of the node's leaf switch counts symbol errors", uplink=4, per_second=200)
def _uplink_errors(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"errors {options['per_second']}")


@node_fault("an uplink of the node's leaf switch has a smaller MTU", uplink=5, mtu=2048)
def _uplink_mtu(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"mtu {options['mtu']}")


@node_fault("a second subnet manager is master, on this node", hca="mlx5_0")
def _second_manager(node: SimulatedNode, options: Options) -> None:
    node.subnet.append(f"manager {hca_of(node, options).guid.replace(':', '')}")


@node_fault("slow only with more than two nodes: no pair shows it", factor=0.5)
def _slow_crowd(node: SimulatedNode, options: Options) -> None:
    node.network.crowd = float(options["factor"])


@node_fault("NCCL finds no InfiniBand on the node and uses sockets")
def _no_infiniband(node: SimulatedNode, options: Options) -> None:
    require(node.hcas, "adapters", node)
    node.network.infiniband = False


@node_fault("the node returns wrong data", count=17)
def _wrong_data(node: SimulatedNode, options: Options) -> None:
    node.network.wrong = int(options["count"])


@node_fault("collectives with the node never end")
def _nccl_hang(node: SimulatedNode, options: Options) -> None:
    node.network.hang = True


@node_fault("NCCL fails on the node")
def _nccl_crash(node: SimulatedNode, options: Options) -> None:
    node.network.crash = True


@node_fault("two ranks of the node use the same GPU")
def _rank_mixup(node: SimulatedNode, options: Options) -> None:
    node.network.swap_ranks = True


def _burn_fault(name: str, description: str, table: str, value: type[float | str], **options: Any) -> None:
    """Register a fault of one GPU under load: a value in a table of BurninFaults; the option beside `gpu` is the value, else 1."""

    def change(node: SimulatedNode, given: Options) -> None:
        gpu_of(node, given)
        chosen = next((given[key] for key in options if key != "gpu"), 1)
        getattr(node.burn, table)[str(given["gpu"])] = value(chosen)

    FAULTS[name] = Fault(name, description, options, change)


_burn_fault(
    "burn_slow_gpu", "a GPU's clocks are limited: matrix multiplication is slow", "slow", float, gpu=1, factor=0.3
)
_burn_fault("burn_slow_memory", "the memory of a GPU is slow", "hbm", float, gpu=1, factor=0.4)
_burn_fault("burn_corruption", "a GPU computes wrong values without an error", "corrupt", int, gpu=2)
_burn_fault("burn_gpu_memory", "the memory of a GPU loses bits without an ECC error", "bits", int, gpu=2, words=3)
_burn_fault(
    "burn_low_power", "a GPU draws less power than the others under the same load", "weak", float, gpu=4, factor=0.6
)
_burn_fault("burn_ecc", "uncorrectable ECC errors occur under load", "ecc", int, gpu=2, count=1)
_burn_fault("burn_replay", "the PCIe link of a GPU replays under load", "replay", int, gpu=3, count=500)
_burn_fault("burn_xid", "the driver reports an Xid under load", "xid", int, gpu=3, xid=48)
_burn_fault("burn_hot", "a GPU gets too hot under load and slows down", "hot", float, gpu=0, celsius=96)
_burn_fault("burn_dcgm", "a test of dcgmi diag fails", "dcgm", str, gpu=0, warning="GPU 0: memory test found errors")


@node_fault("storage returns other data than was written")
def _burn_storage(node: SimulatedNode, options: Options) -> None:
    node.burn.storage = True


@node_fault("the memory of the host loses a bit")
def _burn_memory(node: SimulatedNode, options: Options) -> None:
    node.burn.memory = True


@node_fault("the node is lost during the burn-in", loads=7)
def _burn_node_lost(node: SimulatedNode, options: Options) -> None:
    node.burn.die_after = int(options["loads"])
