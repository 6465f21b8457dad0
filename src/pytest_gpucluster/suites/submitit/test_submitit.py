"""submitit: functions as Slurm jobs, their results, an exception, a cancellation; with and without accounting.

The jobs are submitted before the nodes are allocated: no job could start during an exclusive allocation of all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suite import Tests, given, of_fleet, required_section
from pytest_gpucluster.suites.submitit import SUITE, checks
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.submitit.checks import SubmititResult

config = required_section(SubmititConfig)


@of_fleet(config, given.session)
def submitted(config: SubmititConfig, session: ClusterSession) -> SubmititResult:
    """The result of the jobs."""
    session.need_slurm()
    result: SubmititResult | None = session.outcome(SUITE)
    if result is None:
        raise NotAvailable("nothing was submitted before the nodes were allocated")
    return result


TESTS = Tests(checks, marks=("submitit",))
