"""A short pre-training of a transformer: each node alone, then all nodes of each allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import (
    framework_reach,
    framework_runner,
    framework_runners,
)
from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.training import checks
from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit
from pytest_gpucluster.suites.training.steps import Training

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

config = required_section(TrainingConfig)
runners = framework_runners(Training)
runner = framework_runner(Training, first="packages")
reach = framework_reach()


@fact
def packages(runner: Training) -> PayloadResult:
    """Whether torch is installed on the nodes of the node's allocation."""
    return runner.packages


@fact
def alone(runner: Training) -> PayloadResult:
    """The training of one group per node."""
    return runner.alone


@fact
def gpus(runner: Training) -> int:
    """The GPUs per node on which a program can compute."""
    return runner.real_gpus


@fact
def together(runner: Training) -> PayloadResult:
    """The training of one group of all nodes of the node's allocation."""
    return runner.together


@fact
def worlds(runners: list[Training]) -> list[tuple[PayloadResult, PayloadResult]]:
    """The training of the nodes alone and of all nodes, in every allocation."""
    return [(runner.alone, runner.together) for runner in runners]


@fact
def widest(runners: list[Training]) -> list[PayloadResult]:
    """The training with the most nodes in every allocation."""
    return [runner.widest for runner in runners]


@fact
def limits(cluster: Cluster, node_name: str) -> tuple[TrainingLimit, ...]:
    """The rows of the node's profile."""
    return cluster.group_of(node_name).profile.rows(TrainingLimit)


@fact
def gpu_name(cluster: Cluster, node_name: str) -> str:
    """The name of the GPUs in the node's profile."""
    gpu = cluster.group_of(node_name).profile.gpu
    return gpu.name if gpu else ""


TESTS = Tests(checks, marks=("training",))
