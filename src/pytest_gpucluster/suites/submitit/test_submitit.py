"""submitit: functions as Slurm jobs, their results, an exception, a cancellation; with accounting and without.

The jobs are submitted before the nodes are allocated: beside an exclusive allocation of all nodes none could start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suites.submitit import SUITE, checks
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.suites.submitit.checks import SubmititTold

pytestmark = [pytest.mark.submitit]


@pytest.fixture(scope="session")
def submitted(cluster: Cluster, gpucluster_session: ClusterSession) -> SubmititTold:
    """What became of the jobs; not applicable where the cluster file does not claim submitit."""
    if cluster.section(SubmititConfig) is None:
        pytest.skip("not applicable: the cluster file does not claim submitit (add `submitit:`)")
    if gpucluster_session.slurm is None:
        pytest.skip(f"not applicable: {cluster.why_no_slurm}")
    told: SubmititTold | None = gpucluster_session.outcome(SUITE)
    if told is None:
        pytest.skip("not checked: nothing was submitted before the nodes were allocated")
    return told


def test_framework(submitted: SubmititTold, expect: Expect) -> None:
    """The package submitit is there, and Slurm takes its jobs."""
    expect(checks.framework(submitted))


def test_add(submitted: SubmititTold, expect: Expect) -> None:
    """A function runs in a job, and its result comes back."""
    expect(checks.add(submitted))


def test_multitask(submitted: SubmititTold, expect: Expect) -> None:
    """A job of three tasks: each knows its rank."""
    expect(checks.multitask(submitted))


def test_array(submitted: SubmititTold, expect: Expect) -> None:
    """A function over a list, as a job array."""
    expect(checks.array(submitted))


def test_failure(submitted: SubmititTold, expect: Expect) -> None:
    """An exception in the job is raised where its result is asked for."""
    expect(checks.failure(submitted))


def test_cancel(submitted: SubmititTold, expect: Expect) -> None:
    """A running job that is cancelled is over."""
    expect(checks.cancel(submitted))


def test_accounting(submitted: SubmititTold, expect: Expect) -> None:
    """Where Slurm keeps job records, submitit reads a job's state from them."""
    expect(checks.accounting(submitted))
