"""TensorFlow's distribution strategies: MirroredStrategy within a node, MultiWorkerMirroredStrategy over all nodes.

The suite derives TF_CONFIG from the allocation. The training loop is that of the payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.framework.framework_step import (
    framework_reach,
    framework_runner,
    framework_runners,
)
from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.tensorflow import TensorflowConfig, checks
from pytest_gpucluster.suites.tensorflow.steps import Tensorflow

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.run.session import Node

config = required_section(TensorflowConfig)
runners = framework_runners(Tensorflow)
runner = framework_runner(Tensorflow, first="packages")
reach = framework_reach()


@fact
def mirrored(runner: Tensorflow, node: Node) -> PayloadResult:
    """MirroredStrategy on every node that has TensorFlow."""
    if node.name not in runner.fit_nodes:
        raise NotAvailable("no tensorflow on the node: see tensorflow.framework")
    return runner.mirrored


@fact
def workers(runners: list[Tensorflow]) -> list[PayloadResult]:
    """MultiWorkerMirroredStrategy over the nodes that have TensorFlow."""
    return [runner.workers for runner in runners]


@fact
def own_workers(runner: Tensorflow) -> PayloadResult:
    """MultiWorkerMirroredStrategy over the nodes of the node's allocation."""
    return runner.workers


@fact
def packages(runner: Tensorflow) -> PayloadResult:
    """The packages on the nodes of the node's allocation."""
    return runner.packages


@fact
def gpus(runner: Tensorflow) -> int:
    """The GPUs per node on which a program can compute."""
    return runner.real_gpus


@fact
def per_task() -> int:
    """The replicas per worker."""
    return 1


TESTS = Tests(checks, marks=("tensorflow",))
