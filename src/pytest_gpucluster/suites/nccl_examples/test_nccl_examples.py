"""NCCL's three example programs: one process with many devices, one device per process, many devices per process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.kit.framework_config import FrameworkConfig
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.suite import checks_as_tests, framework_run
from pytest_gpucluster.suites.nccl_examples import checks
from pytest_gpucluster.suites.nccl_examples.steps import NcclExamples

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.session import ClusterSession

pytestmark = [pytest.mark.nccl_examples]


@pytest.fixture(scope="session")
def runs(cluster: Cluster, allocation: Allocation, gpucluster_session: ClusterSession) -> list[NcclExamples]:
    """The programs per allocation; not applicable without a scheduler or real GPUs."""
    config = FrameworkConfig.model_validate(cluster.section(NcclConfig), from_attributes=True)
    known = NcclExamples.of_allocations(gpucluster_session, config)
    if found := [run for run in known if run.real_gpus]:
        return found
    why = "simulated GPUs run no NCCL" if any(run.gpus for run in known) else "no profile has GPUs"
    pytest.skip(f"not applicable: {why}")


run = framework_run(NcclExamples, without="the node has no GPUs, or `nccl.nodes` selects fewer nodes")
within = pytest.fixture(lambda run: run.result("one-process"))
one_each = pytest.fixture(lambda runs: [run.result("one-device") for run in runs])
many_each = pytest.fixture(lambda runs: [run.result("many-devices") for run in runs])

globals().update(checks_as_tests(checks))
