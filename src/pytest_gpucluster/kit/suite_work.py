"""Work of a suite outside of its tests: the types of the arguments of `Suite`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.leftovers import Leftover
    from pytest_gpucluster.cluster.transport import Transport
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.finding import Explanation


class Submission:
    """Jobs that a suite submits before the nodes are allocated; they could not start beside an allocation of all nodes.

    `Suite.before_allocation` is a function (slurm, cluster) that returns one, or None if there is nothing to
    submit. It may raise ConfigError, which the suite's tests get instead of the outcome.
    """

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Use the nodes that the run is about to request; called once, and the run waits for it."""

    def job_ids(self) -> tuple[str, ...]:
        """Return the jobs that must end before the allocation."""
        return ()

    def refresh(self) -> None:
        """Read the state of the jobs, soon after the allocation: slurmctld drops ended jobs (MinJobAge)."""

    def outcome(self) -> Any:
        """Return the result of the jobs, as data that can be pickled; called by several threads."""
        raise NotImplementedError

    def withdraw(self, why: str) -> bool:  # for those that can
        """Cancel the jobs if Slurm grants no allocation beside them; return False if they stay."""
        return False

    def close(self) -> None:
        """Cancel the remaining jobs; called repeatedly."""


class SuiteContext(Protocol):
    """The argument of `Suite.before_release`."""

    cluster: Cluster
    slurm: Slurm | None
    channel: Channel | None
    allocations: tuple[Allocation, ...]
    inventory: Mapping[str, NodeInfo]

    def lost(self) -> Mapping[str, Explanation]:
        """Return {node: why it does not answer}."""


class BeforeRelease(Protocol):
    """`Suite.before_release`."""

    def __call__(self, run: SuiteContext, *, hurry: bool) -> Sequence[str]:
        """Remove what steps have left on the nodes; return what stays. `hurry`: the run was stopped."""


class JobPairs(Protocol):
    """`Suite.job_pairs`: a module."""

    def measure(
        self, nodes: Sequence[str], seconds: float, python: str, device: str, transport: Transport
    ) -> Iterable[str]:
        """Yield a row of JSON for each pair that the rank of this task has measured, or why there is none."""

    def bad_nodes(self, rows: Iterable[Mapping[str, Any]], nodes: Sequence[str]) -> Mapping[str, str]:
        """Return {bad node: why} from the rows of all gates."""


class Contradiction(Protocol):
    """Nodes of a group that all contradict their profile: what `Suite.contradictions` finds."""

    @property
    def reason(self) -> str:
        """Why nothing of the group is judged against the profile."""

    def verdict(self) -> Verdict:
        """Return the failure of the cluster."""


class OnRequest(Protocol):
    """`Suite.on_request`: the module of a suite that runs only if the options of pytest request it."""

    def requested(self, option: Any) -> bool:
        """Return whether the options request the suite."""

    def prepare(self, option: Any, read_log: Callable[..., object]) -> None:
        """Validate the options before anything is started, and read the event log that they name."""

    def configure(self, option: Any, cluster: Cluster) -> tuple[Cluster, float]:
        """Return the cluster as the options change it, and the minimum duration of the allocation in seconds."""


LATER = "after_release"
Limit = tuple[float, "Callable[[float], str]"]
Leftovers = tuple[list["Leftover"], list[str]]


@dataclass(frozen=True)
class LateCheck:
    """A check with a result only after the nodes were released: `Suite.after_release`.

    An item that ends with NotAvailable of the code LATER is reported after the release, with the verdict of `judge` on the
    node as Slurm shows it then. `judge` may raise GpuClusterError.
    """

    check: str
    judge: Callable[[SuiteContext, NodeInfo], Verdict]


@dataclass(frozen=True)
class PairResult:
    """What a group of two nodes measured: a `value` by the name of its metric, or why there is none in `problem`."""

    nodes: tuple[str, str]
    name: str
    value: float | None
    problem: str = ""


@dataclass(frozen=True)
class PairJudgement:
    """What all pairs of a campaign show: `Suite.pair_results`. `bad` is {node: why}, `wanted` the pairs to measure next."""

    bad: Mapping[str, str]
    bad_links: tuple[tuple[str, str], ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    questions: tuple[str, ...] = ()
