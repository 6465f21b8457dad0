"""The jobs that suites submit before the nodes are allocated: beside an allocation of all nodes none could start."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.kit.suite_work import Submission

REFRESH_AFTER = 15.0  # seconds until the state of the jobs is read, unless a test reads it earlier


class SuiteJobs:
    """The jobs of one run, by suite."""

    def __init__(self, cluster: Cluster, slurm: Slurm | None) -> None:
        self._cluster, self._slurm = cluster, slurm
        self._found: dict[str, Submission | ConfigError] = {}  # suite -> its jobs, or why there are none
        self._timer: threading.Timer | None = None

    def _all(self) -> list[Submission]:
        return [one for one in self._found.values() if not isinstance(one, ConfigError)]

    def submit(self, suite: Suite, nodes: Sequence[str] = ()) -> None:
        """Submit the jobs of a suite, before a run requests these nodes; what the cluster file lacks for them is raised by its own items."""
        if self._slurm is None or suite.before_allocation is None:
            return
        try:
            made: Submission | None = suite.load(suite.before_allocation.part)(self._slurm, self._cluster)
        except ConfigError as error:
            self._found[suite.name] = error
        else:
            if made is not None:
                self._found[suite.name] = made
                made.use_nodes(nodes)

    def ids(self) -> list[str]:
        """Return the jobs for whose end the allocation must wait."""
        return [job for one in self._all() for job in one.job_ids()]

    def refresh_later(self) -> None:
        """Read the state of the jobs after REFRESH_AFTER: slurmctld forgets ended jobs (MinJobAge)."""
        self._timer = threading.Timer(REFRESH_AFTER, self._refresh_all)
        self._timer.daemon = True
        self._timer.start()

    def _refresh_all(self) -> None:
        for one in self._all():
            one.refresh()

    def withdraw(self, why: str) -> bool:
        """Cancel the jobs where Slurm allows no allocation beside them; return False where there are none."""
        withdrawn = [one.withdraw(why) for one in self._all()]
        return any(withdrawn)

    def outcome(self, suite: Suite, *, submit_now: bool) -> Any:
        """Return the outcome of a suite's jobs. `submit_now`: submit those that need no nodes, unless submitted."""
        work = suite.before_allocation
        if submit_now and suite.name not in self._found and work and not work.needs_nodes:
            self.submit(suite)
        found = self._found.get(suite.name)
        if isinstance(found, ConfigError):
            raise found
        return found.outcome() if found is not None else None

    def close(self) -> None:
        """Cancel what is left of the jobs; repeated calls have no further effect."""
        if self._timer is not None:
            self._timer.cancel()
        for one in self._all():
            one.close()
