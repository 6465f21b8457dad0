"""What a sandbox is, for those who write a configuration or tools for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_sandbox import collectives, node_files

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_sandbox.hardware import SimulatedNode
    from slurm_sandbox.slurmconf import Partition


@dataclass(frozen=True)
class ContainerImage:
    """The image for tests. `release`: ID and VERSION_ID of its /etc/os-release."""

    path: Path
    release: str


@dataclass(frozen=True)
class JobIsolation:
    """How jobs are isolated. `why_no_sshd`: why the nodes have no sshd, '' if they have one."""

    why_no_sshd: str


@dataclass(frozen=True)
class Description:
    """The properties of a sandbox that stay the same while it runs.

    `healthy`: a node as the simulated tools show it, None if the GPUs are those of this machine, of which `gpu_name` is
    the name. `cables`: (node, adapter or interface, switch, port) as built. `commands`: the folder of Slurm's commands, None if it is a system folder.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    partitions: tuple[Partition, ...]
    shared: Path  # a real folder that all nodes share
    healthy: SimulatedNode | None
    gpu_name: str
    commands: Path | None
    image: ContainerImage | None
    isolation: JobIsolation | None
    cables: tuple[tuple[str, str, str, str], ...] = ()

    def busbw(self, nodes: int, collective: str, size: int) -> float:
        """Return the bus bandwidth of healthy simulated nodes in GB/s for a message size in bytes."""
        if self.healthy is None:
            return 0.0
        health = collectives.NodeHealth(**node_files.network(self.healthy))
        world = {str(number): health for number in range(nodes)}
        return collectives.busbw(collectives.CommunicatorModel(world, self.gpus_per_node), collective, size)
