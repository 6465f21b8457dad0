"""Ray on each node alone, then as a cluster of head and workers in two steps of one allocation.

Many tests judge the results of these steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner
from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share

config = required_section(RayConfig)


@fact(once=True)
def runners(
    config: RayConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> Iterator[list[Ray]]:
    """One run per allocation; its leftovers are removed at the end."""
    channel = gpucluster_session.need_channel()
    made = Ray.of_allocations(gpucluster_session, config, channel=channel)
    yield made
    for runner in made:
        if runner.commands:
            _ = runner.leftovers


runner = framework_runner(Ray)


@fact
def node_facts(runner: Ray, node: Node) -> NodeFacts:
    """The facts of Ray on the node alone."""
    return runner.alone[node.name]


@fact
def cluster_facts(runner: Ray) -> ClusterFacts:
    """The facts of Ray on all nodes of the node's allocation."""
    return runner.cluster_facts


@fact(once=True)
def clusters(runners: list[Ray]) -> list[ClusterFacts]:
    """The facts of the clusters of all allocations."""
    return [runner.cluster_facts for runner in runners]


@fact
def leftovers(runner: Ray, cluster_facts: ClusterFacts) -> Mapping[str, str]:  # after both steps
    """The leftovers of each node."""
    return runner.leftovers


@fact
def node_leftovers(leftovers: Mapping[str, str], node_name: str) -> str | None:
    """The leftovers of the item's node; None if it did not answer."""
    return leftovers.get(node_name)


@fact
def share(runner: Ray, node_name: str) -> Share:
    """The CPUs and GPUs that the node must provide."""
    return runner.shares[node_name]


tune_enabled = fact(lambda cluster: cluster.stated("ray.tune") is not False)

TESTS = Tests(checks, marks=("ray",), needs=("config",))
