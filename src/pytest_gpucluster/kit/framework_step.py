"""Steps of a framework that the cluster file claims: environment, nodes, payload, and what the tasks told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core.errors import StepTimeout
from pytest_gpucluster.kit.payload_result import read_facts
from pytest_gpucluster.kit.payload_step import environment_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig
    from pytest_gpucluster.kit.framework_config import FrameworkConfig

WITHOUT_GPUS = 2  # tasks a node, where the cluster file does not say
MAX_LINE = 300
# slurmstepd's own lines: 'slurmstepd: error: ...', since 25.05 '[TIME] error: ...' as in its log
_OF_SLURM = re.compile(r"slurmstepd|\[\d{4}-\d\d-\d\dT[^]]*\] (?:error|fatal): ")
TELLING = re.compile(r"[Ee]rror|[Cc]annot|[Nn]ot found|does not|[Ff]ailed|Killed")


@dataclass(frozen=True)
class StepOutcome:
    """A step that ended, or was ended: `problem` says why in one line; `told` is what each task said in JSON."""

    result: StepResult
    told: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    problem: str = ""

    def of_node(self, node: str, kind: str) -> Mapping[str, Any] | None:
        """Return the last thing of this kind that a task of the node told."""
        found = [said for _rank, said in self.told if said.get("node") == node and said.get("kind") == kind]
        return found[-1] if found else None

    def complaint(self, node: str) -> str:
        """Return why tasks of this node told nothing, in one line; '' where nothing is known."""
        for task in self.result.of_node(node):
            if task.rc not in (0, None):
                lines = map(str.strip, task.stderr.splitlines())
                words = [line for line in lines if line and not _OF_SLURM.match(line)]
                telling = [line for line in words if TELLING.search(line)] or words
                said = telling[-1][:MAX_LINE] if telling else "and said nothing"
                return f"exit status {task.rc}: {said}"
        return self.problem


class NodesUnderTest(Protocol):
    """What a session has of the nodes: the cluster file, Slurm's inventory, the allocations, who can be tested."""

    @property
    def cluster(self) -> Cluster:
        """The cluster file."""

    @property
    def inventory(self) -> Mapping[str, NodeInfo]:
        """What Slurm says of each node."""

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """One per partition and number of GPUs."""

    def without_problem(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of the nodes that can be tested."""


def nodes_by_allocation(session: NodesUnderTest) -> list[tuple[Allocation, tuple[str, ...]]]:
    """Return every allocation with its testable nodes: they share a partition and a number of GPUs."""
    known = ((held, session.without_problem(held.nodes)) for held in session.allocations)
    return [(held, nodes) for held, nodes in known if nodes]


@dataclass
class FrameworkStepRunner:
    """Runs steps of one framework on `nodes`, the testable ones of one allocation, as its `section` says."""

    slurm: Slurm
    allocation: Allocation
    cluster: Cluster
    claim: FrameworkConfig
    section: str
    inventory: Mapping[str, NodeInfo]
    nodes: tuple[str, ...]
    commands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = self.nodes[: self.claim.nodes] if self.claim.nodes else self.nodes

    @classmethod
    def of_allocations(cls, session: NodesUnderTest, claim: FrameworkConfig, section: str) -> list[Self]:
        """Return a runner per allocation that has nodes to test."""
        return [
            cls(held.slurm, held, session.cluster, claim, section, session.inventory, nodes)
            for held, nodes in nodes_by_allocation(session)
        ]

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """The environment of the cluster file that the steps run in; ConfigError where there is no such name."""
        return environment_named(self.cluster, self.claim.environment, self.section)

    @property
    def python(self) -> str:
        """The interpreter of the payloads."""
        return self.environment.python if self.environment else "python3"

    @property
    def gpus(self) -> int:
        """GPUs that every node of these can give to a step; 0 where the profile has none."""
        if any(self.cluster.group_of(node).profile.gpu is None for node in self.nodes):
            return 0
        return min((self.inventory[node].gpus for node in self.nodes if node in self.inventory), default=0)

    @property
    def real_gpus(self) -> int:
        """GPUs per node that a program can compute on; 0 where the nodes have none, or simulated ones."""
        profile, info = self.cluster.group_of(self.nodes[0]).profile, self.inventory.get(self.nodes[0])
        if profile.simulated or profile.gpu is None:
            return 0
        return (info.gpus if info else 0) or profile.gpu.count

    @property
    def tasks_per_node(self) -> int:
        """Tasks a node: the cluster file's, or one a GPU, or two."""
        return self.claim.ntasks_per_node or self.gpus or WITHOUT_GPUS

    def address(self, node: str) -> str:
        """Return the address that Slurm knows of a node."""
        info = self.inventory.get(node)
        return (info.address if info else "") or node

    def payload(self, source: str, *words: str) -> tuple[str, ...]:
        """Return the command line of a payload: its source goes along, so no storage has to be shared."""
        return (self.python, "-c", source, *words)

    def request(self, argv: Sequence[str], **options: Any) -> StepRequest:
        """Return a step on the claim's nodes, in its environment, within its deadline."""
        given = {"nodes": self.nodes, "timeout": self.claim.deadline, **options}
        return StepRequest(argv=tuple(argv), environment=self.environment, **given)

    def run(self, request: StepRequest, *, slurm: Slurm | None = None) -> StepOutcome:
        """Run a step; why it failed or outlived its deadline is told by `problem`.

        Raise StepError where Slurm could not start it: that is no fault of the framework.
        """
        problem = ""
        try:
            result = run_step(slurm or self.slurm, self.allocation, request)
        except StepTimeout as error:
            if not isinstance(error.result, StepResult):
                raise
            result, problem = error.result, str(error)
        self.commands.append(result.command)
        told = tuple((task.rank, said) for task in result.tasks for said in read_facts(task.stdout, "kind"))
        if not problem and result.rc != 0:
            hint = result.hint or ""
            outside = hint.startswith("container_") and not request.pyxis and not _has_image(self.environment)
            problem = hint if hint and not outside else f"the step ended with {result.rc}"
        return StepOutcome(result, told, problem)


def _has_image(environment: EnvironmentConfig | None) -> bool:
    return bool(environment and (environment.container_image or environment.container_name))
