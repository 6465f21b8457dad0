"""submitit: functions as Slurm jobs, their results, an exception, a cancellation; with accounting and without.

The jobs are submitted before the nodes are allocated: beside an exclusive allocation of all nodes none could start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests
from pytest_gpucluster.suites.submitit import SUITE, checks
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.suites.submitit.checks import SubmititResult

pytestmark = [pytest.mark.submitit]


@pytest.fixture(scope="session")
def submitted(cluster: Cluster, gpucluster_session: ClusterSession) -> SubmititResult:
    """What became of the jobs; not applicable where the cluster file does not claim submitit."""
    if cluster.section(SubmititConfig) is None:
        pytest.skip("not applicable: the cluster file does not claim submitit (add `submitit:`)")
    if gpucluster_session.slurm is None:
        pytest.skip(f"not applicable: {cluster.why_no_slurm}")
    told: SubmititResult | None = gpucluster_session.outcome(SUITE)
    if told is None:
        pytest.skip("not checked: nothing was submitted before the nodes were allocated")
    return told


globals().update(checks_as_tests(checks))
