"""TensorFlow's distribution strategies: MirroredStrategy within a node, MultiWorkerMirroredStrategy over all nodes.

The suite derives TF_CONFIG from the allocation. The training loop is that of the payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, given, of_node, required_section
from pytest_gpucluster.suites.tensorflow import TensorflowConfig, checks
from pytest_gpucluster.suites.tensorflow.steps import Tensorflow

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.run.session import Node

config = required_section(TensorflowConfig)
runners = framework_runners(Tensorflow, config)
runner = framework_runner(Tensorflow, runners, first="packages")
reach = of_node(runner)(lambda runner: runner.reach)


@of_node(runner, given.node)
def mirrored(runner: Tensorflow, node: Node) -> PayloadResult:
    """MirroredStrategy on every node that has TensorFlow."""
    if node.name not in runner.fit_nodes:
        raise NotAvailable("no tensorflow on the node: see tensorflow.framework")
    return runner.mirrored


workers = of_node(runners)(lambda runners: [runner.workers for runner in runners])


own_workers = of_node(runner)(lambda runner: runner.workers)


packages = of_node(runner)(lambda runner: runner.packages)


gpus = of_node(runner)(lambda runner: runner.real_gpus)


@of_node()
def per_task() -> int:
    """The replicas per worker."""
    return 1


TESTS = Tests(checks, marks=("tensorflow",))
