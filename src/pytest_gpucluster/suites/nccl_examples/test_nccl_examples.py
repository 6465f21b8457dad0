"""NCCL's three classic programs: one process many devices, one device a process, many devices a process.

By ctypes on libnccl and the driver: neither torch nor MPI nor a compiler is needed. All data is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests
from pytest_gpucluster.suites.nccl_examples import checks
from pytest_gpucluster.suites.nccl_examples.steps import NcclExamples

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.kit.payload_result import PayloadResult
    from pytest_gpucluster.plugin.session import ClusterSession, Node

pytestmark = [pytest.mark.nccl_examples]


@pytest.fixture(scope="session")
def examples(
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> list[NcclExamples]:
    """The programs, one set an allocation; not applicable where there are no real GPUs."""
    known = NcclExamples.of_session(gpucluster_session)
    made = [it for it in known if it.real_gpus]
    if not made:
        simulated = any(it.gpus for it in known)
        why = "simulated GPUs run no NCCL" if simulated else "no profile of the cluster has GPUs"
        pytest.skip(f"not applicable: {why}")
    return made


@pytest.fixture
def within(examples: list[NcclExamples], node: Node) -> PayloadResult:
    """One process that drives all GPUs of its node, on every node."""
    found = next((it for it in examples if node.name in it.nodes), None)
    if found is None:
        pytest.skip("not applicable: the node has no GPUs, or `nccl.nodes` asks for fewer nodes")
    return found.told("one-process")


@pytest.fixture
def one_each(examples: list[NcclExamples]) -> list[PayloadResult]:
    """One process a GPU, all nodes together."""
    return [it.told("one-device") for it in examples]


@pytest.fixture
def many_each(examples: list[NcclExamples]) -> list[PayloadResult]:
    """One process a node with all its GPUs, all nodes together."""
    return [it.told("many-devices") for it in examples]


globals().update(checks_as_tests(checks))
