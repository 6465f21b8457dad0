"""Steps of a framework: their environment, nodes and payload, the results of their tasks, and the facts made of them."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.cluster.slurm.pyxis import explain
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.config.models import DEFAULT_ENVIRONMENT
from pytest_gpucluster.core import given
from pytest_gpucluster.core.errors import NotApplicable, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.fact import of_fleet, of_node
from pytest_gpucluster.kit.framework.between import Reach
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask, last_stderr_line, read_facts
from pytest_gpucluster.kit.framework.payload_step import command, environment_named
from pytest_gpucluster.kit.nccl.nccl_transport import LOGGED, connections
from pytest_gpucluster.kit.payloads.prelude import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig
    from pytest_gpucluster.core.fact import Fact

ATTEMPTS = 3  # the payload derives its port from the step id: a repeated step has another port
Config = TypeVar("Config", bound=FrameworkConfig)
Result = TypeVar("Result")


class NodesUnderTest(Protocol):
    """The part of a session that the runners need."""

    @property
    def cluster(self) -> Cluster:
        """The cluster file."""

    @property
    def inventory(self) -> Mapping[str, NodeInfo]:
        """Slurm's data of each node."""

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """One per partition and number of GPUs."""

    @property
    def nodes(self) -> Collection[str]:
        """All nodes of the run."""

    def without_problem(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of the nodes that can be tested."""


def nodes_by_allocation(session: NodesUnderTest) -> list[tuple[Allocation, tuple[str, ...]]]:
    """Return the allocations that have testable nodes, with these nodes."""
    known = ((held, session.without_problem(held.nodes)) for held in session.allocations)
    return [(held, nodes) for held, nodes in known if nodes]


def step_or_timeout(slurm: Slurm, allocation: Allocation, request: StepRequest) -> tuple[StepResult, str]:
    """Run a step; return its result, and why it was cancelled if its deadline expired. StepError if it did not start."""
    try:
        return run_step(slurm, allocation, request), ""
    except StepTimeout as error:
        if not isinstance(error.result, StepResult):
            raise
        return error.result, str(error)


def payload_tasks(result: StepResult, key: str) -> tuple[PayloadTask, ...]:
    """Return the tasks of a step with the facts that its payload printed under this key."""
    return tuple(
        PayloadTask(
            *(task.rank, task.node, task.rc, task.signal), read_facts(task.stdout, key), last_stderr_line(task.stderr)
        )
        for task in result.tasks
    )


class FrameworkStepRunner(Generic[Config]):
    """Runs the steps of one framework on `nodes`, the testable nodes of one allocation.

    A suite derives from it: `section` is its key in the cluster file, `key` the first key in the lines of its payload.
    """

    section: ClassVar[str] = ""
    key: ClassVar[str] = "kind"

    def __init__(
        self,
        allocation: Allocation,
        cluster: Cluster,
        inventory: Mapping[str, NodeInfo],
        config: Config,
        nodes: tuple[str, ...],
    ) -> None:
        self.allocation, self.cluster, self.inventory, self.config = allocation, cluster, inventory, config
        self.slurm: Slurm = allocation.slurm
        self.nodes = nodes[: config.nodes]
        self.reach = Reach(self.section, len(nodes), len(nodes), config.nodes)
        self.commands: list[str] = []
        self.done: dict[Hashable, Any] = {}

    @classmethod
    def groups(cls, session: NodesUnderTest) -> list[tuple[Allocation, tuple[str, ...]]]:
        """Return the allocations, each with the nodes that run a step together."""
        return nodes_by_allocation(session)

    @classmethod
    def of_allocations(cls, session: NodesUnderTest, config: Config, **own: Any) -> list[Self]:
        """Return a runner per allocation that has testable nodes. `own`: further arguments of the derived class."""
        made = [
            cls(held, session.cluster, session.inventory, config, nodes, **own) for held, nodes in cls.groups(session)
        ]
        for runner in made:
            runner.reach = replace(runner.reach, selected=len(session.nodes))
        return made

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """The environment of the steps; ConfigError if the cluster file has none of this name."""
        return environment_named(self.cluster, self.config.environment, self.section)

    @property
    def in_container(self) -> bool:
        """Whether the steps run in a container."""
        return self.environment is not None and self.environment.in_container

    @property
    def where(self) -> str:
        """The environment of the steps as text: the place where a missing package is missing."""
        if (own := self.environment) is None:
            return f"no environment is named: {self.section}.environment, or environments.default"
        image = own.container_image or own.container_name
        parts = [f"environment {self.config.environment or DEFAULT_ENVIRONMENT}", f"image {image}" if image else ""]
        parts += [f"modules {' '.join(own.modules)}" if own.modules else "", f"conda {own.conda}" if own.conda else ""]
        return ", ".join(filter(None, parts))

    @property
    def python(self) -> str:
        """The interpreter of the payloads."""
        return self.environment.python if self.environment else "python3"

    @property
    def one_thread(self) -> dict[str, str]:
        """Variables for ranks that share the cores of a node: those that torchrun sets."""
        return {} if "OMP_NUM_THREADS" in variables(self.environment) else {"OMP_NUM_THREADS": "1"}

    @property
    def gpus(self) -> int:
        """GPUs per node that a step can use, the fewest of the nodes."""
        if self.cluster.sandbox and any(self.cluster.group_of(node).profile.gpu is None for node in self.nodes):
            return 0  # without a model no tool of the virtual nodes shows them
        return min((self.inventory[node].gpus for node in self.nodes if node in self.inventory), default=0)

    @property
    def real_gpus(self) -> int:
        """GPUs per node that a program can compute on; 0 without GPUs or with simulated ones."""
        profile, info = self.cluster.group_of(self.nodes[0]).profile, self.inventory.get(self.nodes[0])
        if profile.simulated or (self.cluster.sandbox and profile.gpu is None):
            return 0
        return (info.gpus if info else 0) or (profile.gpu.count if profile.gpu else 0)

    @property
    def tasks_per_node(self) -> int:
        """Tasks per node: one per GPU, else two."""
        return self.gpus or self.config.without_gpus

    @property
    def ranks_per_node(self) -> int:
        """Tasks per node of a program that computes on the GPUs."""
        return self.real_gpus or self.config.without_gpus

    @property
    def phase(self) -> float:
        """Seconds for one phase of a payload, which reports a hang before Slurm cancels the step."""
        return max(10.0, self.config.deadline / 3)

    def address(self, node: str) -> str:
        """Return the address of a node in Slurm (NodeAddr)."""
        info = self.inventory.get(node)
        return (info.address if info else "") or node

    def payload(self, *words: str, name: str = "payload.py") -> tuple[str, ...]:
        """Return the command line of a payload of the suite."""
        module = str(sys.modules[type(self).__module__].__file__)
        return command(self.python, Path(module).with_name(name), *words)

    def request(self, argv: Sequence[str], **options: Any) -> StepRequest:
        """Return a step on the nodes of this runner, in its environment, with its deadline."""
        given = {"nodes": self.nodes, "timeout": self.config.deadline, **options}
        given["env"] = {SECRET: secrets.token_hex(16), **given.get("env", {})}
        return StepRequest(argv=tuple(argv), environment=self.environment, **given)

    def run(self, request: StepRequest) -> PayloadResult:
        """Run a step. An expired deadline and misplaced tasks are a result; StepError if Slurm could not start the step."""
        misplaced: Mapping[str, str] = {}
        try:
            result, problem = step_or_timeout(self.slurm, self.allocation, request)
        except StepMisplaced as error:
            if error.result is None:
                raise
            result, problem, misplaced = error.result, str(error), error.nodes
        self.commands.append(result.command)
        return self._result(
            request,
            tuple(task for task in payload_tasks(result, self.key) if task.node not in misplaced),
            problem,
            misplaced=misplaced,
            connections=connections(result.tasks) if LOGGED.items() <= request.env.items() else None,
            command=result.command,
            seconds=result.seconds,
            rc=result.rc,
            hint=(result.rc and not problem and result.hint) or "",
        )

    def attempt(self, request: StepRequest) -> PayloadResult:
        """Run a step; a container that does not start is a result too."""
        try:
            return self.run(request)
        except StepError as error:
            if isinstance(error, StepTimeout) or explain(error.stderr) is None:
                raise
            return self._result(request, (), str(error), rc=error.rc or -1)

    def until_port_is_free(
        self, request: StepRequest, port_taken: Callable[[PayloadResult], bool] = PayloadResult.port_taken
    ) -> PayloadResult:
        """Run a step; repeat it while the port that the payload derived is in use."""
        for _ in range(ATTEMPTS):
            result = self.attempt(request)
            if not port_taken(result):
                break
        return result

    def once(self, step: Hashable, run: Callable[[], Result]) -> Result:
        """Return the result of a step; the first call runs it."""
        if step not in self.done:
            self.done[step] = run()
        found: Result = self.done[step]
        return found

    def nothing(self) -> PayloadResult:
        """Return the result of a step without nodes."""
        return PayloadResult(self.key, (), 0)

    def _result(
        self, request: StepRequest, tasks: tuple[PayloadTask, ...], problem: str, **ended: Any
    ) -> PayloadResult:
        nodes = request.nodes or self.nodes
        ntasks = request.ntasks or len(nodes) * (request.ntasks_per_node or 1)
        return PayloadResult(self.key, nodes, ntasks, tasks, problem, where=self.where, **ended)


Runner = TypeVar("Runner", bound=FrameworkStepRunner[Any])


def framework_runners(framework: type[Runner], config: Fact[Any]) -> Fact[list[Runner]]:
    """Make a fact of a framework's runners, one per allocation, once in a run."""

    @of_fleet(config, given.allocation, given.session)
    def runners(config: Any, _: object, session: Any) -> list[Runner]:
        return framework.of_allocations(session, config)

    return runners


def framework_runner(
    framework: type[Runner], runners: Fact[list[Runner]], *, first: str = "", without: str = ""
) -> Fact[Runner]:
    """Make a fact of the runner that has the item's node.

    `first`: the attribute that runs its first step, whose exceptions are errors and no verdicts. `without`: why the
    item is not applicable if no runner has the node.
    """

    @of_node(runners, given.node)
    def runner(runners: Iterable[Runner], node: Any) -> Runner:
        found = next((runner for runner in runners if node.name in runner.nodes), None)
        if found is None:
            raise NotApplicable(without or f"`{framework.section}.nodes` of the cluster file selects fewer nodes")
        if first:
            getattr(found, first)
        return found

    return runner
