"""submitit: functions as Slurm jobs, their results, an exception, a cancellation; with and without accounting.

The jobs are submitted before the nodes are allocated: no job could start during an exclusive allocation of all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.submitit import SUITE, checks
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.submitit.checks import SubmititResult

config = required_section(SubmititConfig)


@fact(once=True)
def submitted(config: SubmititConfig, gpucluster_session: ClusterSession) -> SubmititResult:
    """The result of the jobs."""
    gpucluster_session.need_slurm()
    result: SubmititResult | None = gpucluster_session.outcome(SUITE)
    if result is None:
        raise NotAvailable("nothing was submitted before the nodes were allocated")
    return result


TESTS = Tests(checks, marks=("submitit",))
