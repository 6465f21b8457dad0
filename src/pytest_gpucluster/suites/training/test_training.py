"""A short pre-training of a transformer: each node alone, then all nodes of each allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, given, of_node, required_section
from pytest_gpucluster.suites.training import checks
from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit
from pytest_gpucluster.suites.training.steps import Training

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster

config = required_section(TrainingConfig)
runners = framework_runners(Training, config)
runner = framework_runner(Training, runners, first="packages")
reach = of_node(runner)(lambda runner: runner.reach)


packages = of_node(runner)(lambda runner: runner.packages)


alone = of_node(runner)(lambda runner: runner.alone)


gpus = of_node(runner)(lambda runner: runner.real_gpus)


together = of_node(runner)(lambda runner: runner.together)


worlds = of_node(runners)(lambda runners: [(runner.alone, runner.together) for runner in runners])


widest = of_node(runners)(lambda runners: [runner.widest for runner in runners])


@of_node(given.cluster, given.node_name)
def limits(cluster: Cluster, node_name: str) -> tuple[TrainingLimit, ...]:
    """The rows of the node's profile."""
    return cluster.group_of(node_name).profile.rows(TrainingLimit)


@of_node(given.cluster, given.node_name)
def gpu_name(cluster: Cluster, node_name: str) -> str:
    """The name of the GPUs in the node's profile."""
    gpu = cluster.group_of(node_name).profile.gpu
    return gpu.name if gpu else ""


TESTS = Tests(checks, marks=("training",))
