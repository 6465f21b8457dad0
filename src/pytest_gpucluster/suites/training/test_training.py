"""A short pre-training of a transformer: each node alone, then all nodes of each allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import (
    checks_as_tests,
    framework_reach,
    framework_run,
    framework_runs,
    required_section,
)
from pytest_gpucluster.suites.training import checks
from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit
from pytest_gpucluster.suites.training.steps import Training

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.payload_result import PayloadResult

pytestmark = [pytest.mark.training]
config = required_section(TrainingConfig)
runs = framework_runs(Training)
run = framework_run(Training, first="packages")
reach = framework_reach()


@pytest.fixture
def packages(run: Training) -> PayloadResult:
    """Whether torch is installed on the nodes of the node's allocation."""
    return run.packages


@pytest.fixture
def alone(run: Training) -> PayloadResult:
    """The training of one group per node."""
    return run.alone


@pytest.fixture
def gpus(run: Training) -> int:
    """The GPUs per node on which a program can compute."""
    return run.real_gpus


@pytest.fixture
def together(run: Training) -> PayloadResult:
    """The training of one group of all nodes of the node's allocation."""
    return run.together


@pytest.fixture
def worlds(runs: list[Training]) -> list[tuple[PayloadResult, PayloadResult]]:
    """The training of the nodes alone and of all nodes, in every allocation."""
    return [(run.alone, run.together) for run in runs]


@pytest.fixture
def widest(runs: list[Training]) -> list[PayloadResult]:
    """The training with the most nodes in every allocation."""
    return [run.widest for run in runs]


@pytest.fixture
def limits(cluster: Cluster, node_name: str) -> tuple[TrainingLimit, ...]:
    """The rows of the node's profile."""
    return cluster.group_of(node_name).profile.rows(TrainingLimit)


@pytest.fixture
def gpu_name(cluster: Cluster, node_name: str) -> str:
    """The name of the GPUs in the node's profile."""
    gpu = cluster.group_of(node_name).profile.gpu
    return gpu.name if gpu else ""


globals().update(checks_as_tests(checks))
