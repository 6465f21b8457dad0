"""Where adapters and GPUs are in the PCIe tree, and which interfaces stand for no cable. Pure.

Formats: links of /sys/devices; phys_port_name of /sys/class/net (kernel: devlink-port.rst).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucluster.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# the cable's interface has the name p0, a representor of a function pf0vf1, c1pf0sf2 or pf0hpf
REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+|hpf)")
NEAR = ("PIX", "PXB")  # the same PCIe switch: no traffic through the CPU (NCCL: GPUDirect RDMA)
BRIDGE_FUNCTIONS = 4  # of the ConnectX-7 that joins the processor to the NVSwitches of HGX B200 and B300


def pci_path(link: str) -> tuple[str, ...]:
    """Return the PCI addresses from root port to device in a link of /sys/devices; () if it has none.

    >>> pci_path("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0")
    ('0000:15:01.0', '0000:16:00.0')
    """
    return tuple(re.findall(r"(?<=/)[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/|$)", link))


def bridges(functions: Mapping[str, str]) -> set[str]:
    """Return the adapters on a chip with four functions for InfiniBand, as a bridge to NVSwitches has; a card has two.

    functions: {adapter for InfiniBand: its PCI address, '' if unknown}.

    >>> sorted(bridges({"mlx5_0": "0000:05:00.0", **{f"mlx5_{n}": f"0000:c4:00.{n}" for n in (1, 2, 3, 4)}}))
    ['mlx5_1', 'mlx5_2', 'mlx5_3', 'mlx5_4']
    """
    chips = grouped((address.rpartition(".")[0] or name, name) for name, address in functions.items())
    return {name for found in chips.values() if len(found) == BRIDGE_FUNCTIONS for name in found}


def root_port(path: Sequence[str]) -> str:
    """Return the root port above a device, '' if none is seen; devices below the same one are PIX or PXB to each other."""
    return path[0] if len(path) > 1 else ""


def made_up_paths(near: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Return paths with a common root for devices that share a PCIe switch, where the real paths are not known.

    near: {device: the devices below its switch}, as PIX and PXB of `nvidia-smi topo -m` show them.

    >>> made_up_paths({"GPU0": ["mlx5_0"], "GPU1": []})
    {'GPU0': ('switch of GPU0', 'GPU0'), 'mlx5_0': ('switch of GPU0', 'mlx5_0'), 'GPU1': ('switch of GPU1', 'GPU1')}
    """
    trees: list[set[str]] = []
    for device, others in near.items():
        tree = {device, *others}
        joined = [one for one in trees if one & tree]
        trees = [one for one in trees if not one & tree] + [tree.union(*joined)]
    return {device: (f"switch of {min(tree)}", device) for tree in trees for device in sorted(tree)}


def served(gpus: Mapping[str, int], boards: Mapping[str, Iterable[str]]) -> Counter[str]:
    """Return {board: number of GPUs that are near to it}.

    gpus: {root port: number of GPUs}. boards: {root port: the boards of its ports}.
    """
    found: Counter[str] = Counter()
    for root, names in boards.items():
        for board in set(names):
            found[board] += gpus.get(root, 0)
    return found
