"""The facts of every run that need no pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import AllocationError, NotApplicable
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.run.facts import ItemView

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import GpuProfile, Profile
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suite import AnyProbe


def node(gpucluster_item: ItemView) -> Node:
    """The node of this item: `.name`, `.profile`, `.group`, `.info`. A check that needs it runs once per node."""
    return gpucluster_item.node


def nodes(gpucluster_session: ClusterSession) -> tuple[str, ...]:
    """The names of the nodes under test, in the order of the cluster file."""
    return gpucluster_session.under_test()


def allocation(gpucluster_session: ClusterSession) -> Allocation:
    """The allocation of all steps (the first one if partitions differ): `.job_id`, `.nodes`, `.slurm`."""
    gpucluster_session.need_slurm()
    if not gpucluster_session.allocations:
        raise AllocationError("no node is allocated: this test cannot run")
    return gpucluster_session.allocations[0]


def fleet(gpucluster_session: ClusterSession) -> Channel:
    """The channel to every node: `fleet.ask("uname -r")` runs a command on all nodes at once and caches the answers."""
    return gpucluster_session.need_channel()


def fleet_facts(gpucluster_session: ClusterSession) -> Callable[[AnyProbe], dict[str, Any]]:
    """A function: probe -> {node: facts}, of all nodes that could provide them."""
    return gpucluster_session.facts.of_fleet


def node_name(node: Node) -> str:
    """The name of this item's node."""
    return node.name


def last_good(node: Node, gpucluster_session: ClusterSession) -> float:
    """When an earlier run last found this item's node good, in seconds since the epoch; 0 where no history knows it."""
    return gpucluster_session.last_good.get(node.name, 0.0)


def peers(node: Node) -> frozenset[str]:
    """The nodes that may be compared with this item's node, itself too: those of its group, partition and architecture."""
    return frozenset(node.peers.names)


def profile(node: Node) -> Profile:
    """The hardware profile of this item's node."""
    return node.profile


def gpu_profile(node: Node) -> GpuProfile:
    """The GPUs of this item's node as its profile states them; without GPUs the item is not applicable."""
    if node.profile.gpu is None:
        raise NotApplicable(
            f"profile {node.profile.name} has no GPUs (`gpucluster profiles` lists those that have)"
        )
    return node.profile.gpu


def host_of_node(node: Node, gpucluster_session: ClusterSession) -> Any:
    """A testinfra Host of this item's node: `host.file("/etc/os-release")`, `host.package("slurmd")`, ..."""
    return gpucluster_session.host(node.name)


def facts(node: Node, gpucluster_item: ItemView) -> Callable[[AnyProbe], Any]:
    """A function: probe -> what it found on this item's node; without it the item is not checked."""
    return gpucluster_item.facts


def cluster(gpucluster_session: ClusterSession) -> Any:
    """The cluster file as a frozen model."""
    return gpucluster_session.cluster


def inventory(gpucluster_session: ClusterSession) -> Any:
    """Slurm's entry of every node, by name."""
    return gpucluster_session.inventory


def _of_item(name: str) -> Fact:
    """Return the fact that an attribute of the item is."""

    def read(gpucluster_item: ItemView) -> Any:
        return getattr(gpucluster_item, name)

    read.__doc__ = getattr(ItemView, name).__doc__
    return Fact(read)


OF_ITEM = ("lane_nodes", "expect", "measure", "curve", "table", "srun")
BASE_FACTS: dict[str, Fact] = {
    **{
        it.__name__: Fact(it, once=True) for it in (cluster, inventory, nodes, allocation, fleet, fleet_facts)
    },
    **{it.__name__: Fact(it) for it in (node, node_name, last_good, peers, profile, gpu_profile, facts)},
    "host": Fact(host_of_node),
    **{name: _of_item(name) for name in OF_ITEM},
}
