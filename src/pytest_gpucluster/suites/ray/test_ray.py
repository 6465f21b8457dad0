"""Ray on each node alone, then as a cluster of head and workers in two steps of one allocation.

Many tests judge the results of these steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share

config = required_section(RayConfig)


@of_fleet(config, given.allocation, given.session)
def runners(
    config: RayConfig,
    allocation: Allocation,  # not applicable without a scheduler
    session: ClusterSession,
) -> Iterator[list[Ray]]:
    """One run per allocation; its leftovers are removed at the end."""
    channel = session.need_channel()
    made = Ray.of_allocations(session, config, channel=channel)
    yield made
    for runner in made:
        if runner.commands:
            _ = runner.leftovers


runner = framework_runner(Ray, runners)


@of_node(runner, given.node)
def node_facts(runner: Ray, node: Node) -> NodeFacts:
    """The facts of Ray on the node alone."""
    return runner.alone[node.name]


cluster_facts = of_node(runner)(lambda runner: runner.cluster_facts)


clusters = of_fleet(runners)(lambda runners: [runner.cluster_facts for runner in runners])


@of_node(runner, cluster_facts)
def leftovers(runner: Ray, cluster_facts: ClusterFacts) -> Mapping[str, str]:  # after both steps
    """The leftovers of each node."""
    return runner.leftovers


@of_node(leftovers, given.node_name)
def node_leftovers(leftovers: Mapping[str, str], node_name: str) -> str | None:
    """The leftovers of the item's node; None if it did not answer."""
    return leftovers.get(node_name)


@of_node(runner, given.node_name)
def share(runner: Ray, node_name: str) -> Share:
    """The CPUs and GPUs that the node must provide."""
    return runner.shares[node_name]


tune_enabled = of_node(given.cluster)(lambda cluster: cluster.stated("ray.tune") is not False)

TESTS = Tests(checks, marks=("ray",), needs=(config,))
