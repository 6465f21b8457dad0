"""What a suite does around its tests: the signatures of the parts that core/registry.py names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster


class Submission:
    """Jobs that a suite submits before the nodes are allocated: beside an allocation of all nodes none could start.

    `Suite.before_allocation` is a function (slurm, cluster) that returns one, or None where there is nothing to
    submit. It may raise ConfigError, which the suite's tests get in place of the outcome.
    """

    def job_ids(self) -> tuple[str, ...]:
        """Return the jobs for whose end the allocation must wait."""
        return ()

    def refresh(self) -> None:
        """Read the state of the jobs; called a while after the allocation: slurmctld forgets ended jobs (MinJobAge)."""

    def outcome(self) -> Any:
        """Return what became of the jobs, as data that can be pickled; called by several threads."""
        raise NotImplementedError

    def withdraw(self, why: str) -> bool:  # for those that can
        """Cancel the jobs where Slurm allows no allocation beside them; return False where they stay."""
        return False

    def close(self) -> None:
        """Cancel what is left of the jobs; called repeatedly."""


class SuiteContext(Protocol):
    """What work before the first test gets: `Suite.before_first_test` is a function (run)."""

    slurm: Slurm | None
    allocations: tuple[Allocation, ...]
    inventory: Mapping[str, NodeInfo]

    def lost(self) -> Mapping[str, str]:
        """Return the nodes that do not answer, and why."""


class OnRequest(Protocol):
    """The module `Suite.on_request`: a suite that runs only where the options of pytest ask for it."""

    def requested(self, option: Any) -> bool:
        """Tell whether this run asks for the suite."""

    def prepare(self, option: Any, read_log: Callable[..., object]) -> None:
        """Check the options before anything is started, and read the event log that they name."""

    def configure(self, option: Any, cluster: Cluster) -> tuple[Cluster, float]:
        """Return the cluster as the options change it, and the seconds that the allocation must last at least."""


@dataclass(frozen=True)
class LateCheck:
    """A check that some nodes pass or fail only after they were given back: the value of `Suite.after_release`.

    `unjudged` is the reason with which their items end as 'not checked', `subject` what is looked at, in the plural,
    `failed` judges a node as Slurm shows it afterwards, `hint` says what to do.
    """

    check: str
    unjudged: str
    subject: str
    failed: Callable[[NodeInfo], bool]
    hint: str
