"""TensorFlow's distribution strategies: MirroredStrategy within a node, MultiWorkerMirroredStrategy over all.

TF_CONFIG is made from the allocation. The training loop is the payload's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.suite import claimed, taking_part
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


def test_framework(run: Tensorflow, node: Node, expect: Expect) -> None:
    """TensorFlow is there for the python of the steps, in the fleet's version."""
    expect(checks.framework(node.name, run.found))


def test_mirrored(mirrored: PayloadResult, run: Tensorflow, node: Node, expect: Expect) -> None:
    """MirroredStrategy: a replica a device, right sums, equal weights after training."""
    expect(checks.mirrored(node.name, mirrored, run.real_gpus))


def test_config(workers: list[PayloadResult], expect: Expect) -> None:
    """TF_CONFIG: one list of workers for all, every index once."""
    expect(combined(checks.config(told) for told in workers))


def test_workers(workers: list[PayloadResult], expect: Expect) -> None:
    """MultiWorkerMirroredStrategy: all workers come, and the sum over all replicas is right."""
    expect(combined(checks.workers(told, 1) for told in workers))


def test_equal(workers: list[PayloadResult], expect: Expect) -> None:
    """Training leaves the same weights on all workers."""
    expect(combined(checks.equal(told) for told in workers))
