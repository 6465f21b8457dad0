"""Horovod: its build on every node, and jobs over the nodes that reduce, broadcast and train.

One step reads the builds; each launch (framework, controller, launcher) is one job, which four tests judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod.config import HorovodConfig
from pytest_gpucluster.suites.horovod.steps import Horovod, launches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World

config = required_section(HorovodConfig)
runners = framework_runners(Horovod, config)
runner = framework_runner(Horovod, runners, first="builds")
reach = of_node(runner)(lambda runner: runner.reach)
launch = of_node(
    each=lambda cluster: {str(one): one for one in launches(cluster.section(HorovodConfig) or HorovodConfig())}
)


@of_fleet(runners)
def builds(runners: list[Horovod]) -> Mapping[str, NodeBuild]:
    """The builds of all nodes of all allocations."""
    return {node: build for runner in runners for node, build in runner.builds.items()}


@of_node(runners, builds, launch)
def worlds(runners: list[Horovod], builds: Mapping[str, NodeBuild], launch: Launch) -> list[World]:  # builds first
    """The job of this launch in every allocation; each runs once."""
    return [runner.world(launch) for runner in runners]


@of_node(runner, config, builds)
def own_worlds(runner: Horovod, config: HorovodConfig, builds: Mapping[str, NodeBuild]) -> list[World]:
    """The jobs over the nodes of the node's allocation."""
    return [runner.world(launch) for launch in launches(config) if launch.launcher != "localhost"]


@of_node(runner, given.node_name)
def node_build(runner: Horovod, node_name: str) -> NodeBuild:
    """The build of the item's node."""
    return runner.builds[node_name]


@of_node(runner, builds)
def known_builds(runner: Horovod, builds: Mapping[str, NodeBuild]) -> Mapping[str, NodeBuild]:
    """The builds of all nodes, for a node that takes part."""
    return builds


operations = of_node(runner)(lambda runner: runner.operations)


frameworks = of_node(given.cluster)(lambda cluster: cluster.horovod.frameworks)
controllers = of_node(given.cluster)(lambda cluster: (cluster.horovod.controller,))

TESTS = Tests(checks, marks=("horovod", "gloo"), needs=(config,))
