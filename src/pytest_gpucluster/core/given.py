"""The facts of every run: sources of a suite's facts (`of_node(given.node)`), and by their names parameters of checks."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import fact
from pytest_gpucluster.core.errors import AllocationError, NotApplicable
from pytest_gpucluster.core.fact import Fact, declared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import GpuProfile, Profile
    from pytest_gpucluster.core.fact import AnyProbe
    from pytest_gpucluster.plugin.fixtures import RunView
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node


session, item = fact.session, fact.item


@declared(once=True)
def run() -> RunView:
    """The run as tests of a site see it (`gpucluster`)."""
    raise NotImplementedError


@declared(once=True)
def pytestconfig() -> pytest.Config:
    """Pytest's configuration."""
    raise NotImplementedError


@declared(session, once=True)
def cluster(session: ClusterSession) -> Any:
    """The cluster file as a frozen model."""
    return session.cluster


@declared(session, once=True)
def inventory(session: ClusterSession) -> Mapping[str, NodeInfo]:
    """Slurm's entry of every node, by name."""
    return session.inventory


@declared(session, once=True)
def nodes(session: ClusterSession) -> tuple[str, ...]:
    """The names of the nodes under test, in the order of the cluster file."""
    return session.under_test()


@declared(session, once=True)
def allocation(session: ClusterSession) -> Allocation:
    """The allocation of all steps (the first one if partitions differ): `.job_id`, `.nodes`, `.slurm`."""
    session.need_slurm()
    if not session.allocations:
        raise AllocationError("no node is allocated: this test cannot run")
    return session.allocations[0]


@declared(session, once=True)
def fleet(session: ClusterSession) -> Channel:
    """The channel to every node: `fleet.ask("uname -r")` runs a command on all nodes at once and caches the answers."""
    return session.need_channel()


fleet_facts, node = fact.fleet_facts, fact.node


@declared(node)
def node_name(node: Node) -> str:
    """The name of this item's node."""
    return node.name


@declared(node, session)
def last_good(node: Node, session: ClusterSession) -> float:
    """When an earlier run last found this item's node good, in seconds since the epoch; 0 where no history knows it."""
    return session.last_good.get(node.name, 0.0)


@declared(node)
def peers(node: Node) -> frozenset[str]:
    """The nodes that may be compared with this item's node, itself too: those of its group, partition and architecture."""
    return frozenset(node.peers.names)


@declared(node)
def profile(node: Node) -> Profile:
    """The hardware profile of this item's node."""
    return node.profile


@declared(node)
def gpu_profile(node: Node) -> GpuProfile:
    """The GPUs of this item's node as its profile states them; without GPUs the item is not applicable."""
    if node.profile.gpu is None:
        raise NotApplicable(f"profile {node.profile.name} has no GPUs (`gpucluster profiles` lists those that have)")
    return node.profile.gpu


@declared(node, item)
def facts(_: Node, item: ItemView) -> Callable[[AnyProbe[Any]], Any]:
    """A function: probe -> what it found on this item's node; without it the item is not checked."""
    return item.facts


@declared(node, session)
def host(node: Node, session: ClusterSession) -> Any:
    """A testinfra Host of this item's node: `host.file("/etc/os-release")`, `host.package("slurmd")`, ..."""
    return session.host(node.name)


def _attribute(source: Fact[Any], name: str) -> Fact[Any]:
    return Fact(attrgetter(name), (source,), source.once, (source,))


lane_nodes, expect, measure = (_attribute(item, name) for name in ("lane_nodes", "expect", "measure"))
curve, table, srun = (_attribute(item, name) for name in ("curve", "table", "srun"))
event, live_line = (_attribute(run, name) for name in ("event", "live_line"))

INPUTS = {session, item, run, pytestconfig}  # of which all others are made
FACTS: dict[str, Fact[Any]] = {name: it for name, it in globals().items() if isinstance(it, Fact)}
