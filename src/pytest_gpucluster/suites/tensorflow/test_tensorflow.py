"""TensorFlow's distribution strategies: MirroredStrategy within a node, MultiWorkerMirroredStrategy over all.

TF_CONFIG is made from the allocation. The training loop is the payload's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests, claimed, taking_part
from pytest_gpucluster.suites.tensorflow import TensorflowConfig, checks
from pytest_gpucluster.suites.tensorflow.steps import Tensorflow

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.kit.payload_result import PayloadResult
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node

pytestmark = [pytest.mark.tensorflow]
claim = claimed(TensorflowConfig, "TensorFlow")


@pytest.fixture(scope="session")
def runs(
    claim: TensorflowConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> list[Tensorflow]:
    """One run an allocation."""
    return Tensorflow.of_allocations(gpucluster_session, claim)


@pytest.fixture
def run(runs: list[Tensorflow], node: Node) -> Tensorflow:
    """The run that this item's node takes part in."""
    found = taking_part(runs, node.name, "tensorflow")
    _ = found.found  # here: what breaks is an error, not a verdict on the node
    return found


@pytest.fixture
def mirrored(run: Tensorflow, node: Node, expect: Expect) -> PayloadResult:
    """MirroredStrategy on every node that has TensorFlow."""
    if node.name not in run.fit:
        expect.not_checked("no tensorflow on the node: see tensorflow.framework")
    return run.mirrored


@pytest.fixture
def workers(runs: list[Tensorflow]) -> list[PayloadResult]:
    """MultiWorkerMirroredStrategy over the nodes that have TensorFlow."""
    return [run.workers for run in runs]


@pytest.fixture
def found(run: Tensorflow) -> PayloadResult:
    """Which nodes of the node's allocation have TensorFlow."""
    return run.found


@pytest.fixture
def gpus(run: Tensorflow) -> int:
    """The GPUs per node."""
    return run.gpus


@pytest.fixture
def per_task() -> int:
    """The replicas per worker."""
    return 1


globals().update(checks_as_tests(checks))
