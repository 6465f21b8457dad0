"""TensorFlow's distribution strategies: MirroredStrategy within a node, MultiWorkerMirroredStrategy over all nodes.

The suite derives TF_CONFIG from the allocation. The training loop is that of the payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suite import (
    Tests,
    fact,
    framework_reach,
    framework_run,
    framework_runs,
    required_section,
)
from pytest_gpucluster.suites.tensorflow import TensorflowConfig, checks
from pytest_gpucluster.suites.tensorflow.steps import Tensorflow

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.plugin.session import Node

config = required_section(TensorflowConfig)
runs = framework_runs(Tensorflow)
run = framework_run(Tensorflow, first="packages")
reach = framework_reach()


@fact
def mirrored(run: Tensorflow, node: Node) -> PayloadResult:
    """MirroredStrategy on every node that has TensorFlow."""
    if node.name not in run.fit_nodes:
        raise NotAvailable("no tensorflow on the node: see tensorflow.framework")
    return run.mirrored


@fact
def workers(runs: list[Tensorflow]) -> list[PayloadResult]:
    """MultiWorkerMirroredStrategy over the nodes that have TensorFlow."""
    return [run.workers for run in runs]


@fact
def own_workers(run: Tensorflow) -> PayloadResult:
    """MultiWorkerMirroredStrategy over the nodes of the node's allocation."""
    return run.workers


@fact
def packages(run: Tensorflow) -> PayloadResult:
    """The packages on the nodes of the node's allocation."""
    return run.packages


@fact
def gpus(run: Tensorflow) -> int:
    """The GPUs per node on which a program can compute."""
    return run.real_gpus


@fact
def per_task() -> int:
    """The replicas per worker."""
    return 1


TESTS = Tests(checks, marks=("tensorflow",))
