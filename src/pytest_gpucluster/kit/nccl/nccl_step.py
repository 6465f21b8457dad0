"""Runs collectives on the nodes with nccl-tests or with the payload on torch.distributed; both print one format."""

from __future__ import annotations

import contextlib
import copy
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.channel.protocol import ending
from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, reproduce_command, run_step
from pytest_gpucluster.config.models import DEFAULT_ENVIRONMENT
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, SlurmError, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.kit.framework.framework_step import ATTEMPTS
from pytest_gpucluster.kit.framework.payload_result import last_stderr_line
from pytest_gpucluster.kit.framework.payload_step import COLLECTIVE, command, environment_named
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.node_links import NETWORK, NodeLinks, read_links
from pytest_gpucluster.kit.nccl import nccl_floor, nccl_log, nccl_tests
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl.nccl_failures import rank_failures
from pytest_gpucluster.kit.nccl.nccl_floor import SOCKET, Floor, Route
from pytest_gpucluster.kit.nccl.nccl_transport import LOGGED, log_of
from pytest_gpucluster.kit.payloads.collective import CONCLUDED
from pytest_gpucluster.kit.payloads.rendezvous import GIVEN_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, Profile

SUFFIX = "_perf"
LATENCY_SIZE = 8
DOMAIN = "NCCL_MNNVL_ENABLE"  # 0: NVLink carries nothing between nodes (NCCL 2.21 and later)
UNDIVIDED = ("all_reduce", "broadcast", "sendrecv")  # their message is not divided among the ranks
PATIENCE = 120.0  # seconds for one size of the payload, and for the rendezvous of its ranks

_FEWER = re.compile(r"Only allocated \d+ nodes asked for \d+")  # Slurm removed a dead node from the job


@dataclass(frozen=True)
class NcclCommand:
    """A command of nccl-tests: program, sizes -b and -e in bytes, factor -f, and the other words in `rest`."""

    program: str
    begin: int
    end: int
    factor: int
    rest: tuple[str, ...] = ()

    @classmethod
    def parse(cls, command: str) -> NcclCommand:
        """Return the parsed `nccl.command`; ConfigError if it is not a command of nccl-tests."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"{command!r}: {error}") from error
        if not words:
            raise ConfigError("must be a command: write it like 'all_reduce_perf -b 1M -e 4G -f 2 -g 1'")
        taken = {"-b": "32M", "-e": "32M", "-f": "2"}
        rest: list[str] = []
        pairs = iter(words[1:])
        for word in pairs:
            if word in taken:
                taken[word] = next(pairs, "")
            elif word == "-g":
                next(pairs, "")  # set by the runner: one GPU per rank
            else:
                rest.append(word)
        try:
            begin, end = units.parse_size(taken["-b"]), units.parse_size(taken["-e"])
        except ValueError as error:
            raise ConfigError(f"{command!r}: {error}") from error
        if not 0 < begin <= end:
            raise ConfigError(f"{command!r}: -b must be greater than 0, and not greater than -e")
        if not re.fullmatch("[2-9]|[1-9][0-9]{1,3}", taken["-f"]):
            raise ConfigError(f"{command!r}: -f must be a number from 2 to 9999")
        return cls(words[0], begin, end, int(taken["-f"]), tuple(rest))

    def reaching(self, sizes: Iterable[int]) -> NcclCommand:
        """Return a command whose sweep reaches all these sizes: a threshold is judged at its own size."""
        return replace(self, end=max([self.end, *sizes]))

    def with_latency(self, collective: str) -> NcclCommand:
        """Return a command whose sweep starts at 8 bytes, the size of the latency, if its steps reach `begin`.

        Collectives that divide the message have no 8 bytes: nccl-tests rounds them down to 16 bytes per rank.
        """
        size = LATENCY_SIZE
        while size < self.begin and self.factor > 1:
            size *= self.factor
        return replace(self, begin=LATENCY_SIZE) if size == self.begin and collective in UNDIVIDED else self

    def words(self) -> tuple[str, ...]:
        """Return the options, sizes in bytes."""
        return ("-b", str(self.begin), "-e", str(self.end), "-f", str(self.factor))


@dataclass(frozen=True)
class NcclMeasurement:
    """The results of one step: the tables, NCCL's log, the node of each rank, and the step itself.

    `problem` states why the step did not end by itself. `misplaced`: {node: why its tasks are not where the step states}.
    """

    output: nccl_tests.NcclOutput
    log: nccl_log.NcclLog
    node_of_rank: Mapping[int, str]
    problem: str = ""
    tasks: tuple[TaskResult, ...] = ()
    misplaced: Mapping[str, str] = field(default_factory=dict)


class NcclStep:
    """Runs collectives in an allocation, as configured by `nccl:` of the cluster file."""

    def __init__(
        self,
        slurm: Slurm,
        allocation: Allocation,
        cluster: Cluster,
        channel: Channel,
        inventory: Mapping[str, NodeInfo],
        *,
        gpus_per_node: int,
        deadline: float | None = None,
    ) -> None:
        self._slurm, self._allocation, self._channel = slurm, allocation, channel
        self._cluster, self._inventory = cluster, inventory
        self.config = cluster.section(NcclConfig)
        self.gpus = gpus_per_node
        self.deadline = deadline or self.config.deadline  # seconds of one step
        self.sweep = NcclCommand.parse(self.config.command)
        self.steps = 0
        self.added: dict[str, str] = {}  # variables of the ranks beside those of the environment
        self._why_lacking = ""  # what a task printed on stderr when it searched for the programs
        self.misplaced: Mapping[str, str] = {}  # of the last step
        self.lost_nodes: dict[str, str] = {}  # {node: why Slurm cannot start a step there}

    # --- the program

    @cached_property
    def runner(self) -> str:
        """The runner, nccl-tests or payload; NotAvailable names the nodes that have neither."""
        if self.config.runner != "auto":
            return self.config.runner
        find = f"command -v {shlex.quote(self.sweep.program)}"
        if not (without_tests := self._lacking(find)):
            return "nccl-tests"
        without_torch = self._without_torch
        if (nodes := {*without_tests} & {*without_torch}) >= {*self._allocation.nodes}:
            where = self.config.environment or DEFAULT_ENVIRONMENT
            inside = f" in environments.{where}" if self.environment is not None else ""
            inside += f" ({self._why_lacking})" if self._why_lacking else ""
            raise NotAvailable(
                f"neither {self.sweep.program} nor torch was found on {hostlist.fold(nodes)}{inside}: install nccl-tests, or "
                "name an environment whose python has torch, or whose image has nccl-tests: nccl.environment"
            )
        # the step of a node without the program that most nodes have reports it
        return "payload" if len(without_torch) <= len(without_tests) else "nccl-tests"

    @cached_property
    def _without_torch(self) -> tuple[str, ...]:
        """The nodes whose python has no torch."""
        if self.config.payload:
            return ()  # it replaces the payload on torch
        python = shlex.quote(self.environment.python if self.environment else "python3")
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        return tuple(self._lacking(f"{python} -c {shlex.quote(find)}"))

    @property
    def logs_transports(self) -> bool:
        """Whether the steps print NCCL's log, which proves the transports."""
        # a replacement of the payload may not log
        own = self.runner == "payload" and bool(self.config.payload)
        return self.exports.get("NCCL_DEBUG", "INFO") in {"INFO", "TRACE"} and not own

    def _lacking(self, command: str) -> list[str]:
        """Return the nodes on which a command fails in the environment of the steps."""
        if self.environment is None:
            return [node for node, answer in self._channel.ask(command).items() if answer.rc != 0]
        nodes = tuple(node for node in self._allocation.nodes if node not in self._channel.lost)
        request = StepRequest(("sh", "-c", command), nodes, ntasks_per_node=1, mpi="none")
        request = replace(request, environment=self.environment, timeout=self.deadline)
        try:
            result, having = run_step(self._slurm, self._allocation, request), set[str]()
        except StepMisplaced as error:  # the measurement itself fails there, with this reason
            if error.result is None:
                raise
            result, having = error.result, {*error.nodes}
        having |= {task.node for task in result.tasks if task.rc == 0}
        self._why_lacking = next(filter(None, (last_stderr_line(task.stderr) for task in result.tasks)), "")
        return [node for node in self._allocation.nodes if node not in having]

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """The environment of the cluster file that the steps run in."""
        return environment_named(self._cluster, self.config.environment, "nccl")

    @cached_property
    def exports(self) -> dict[str, str]:
        """The variables that the environment adds to each rank."""
        return variables(self.environment)

    # --- the floor of a bandwidth

    @cached_property
    def links(self) -> dict[str, NodeLinks]:
        """{node: the links that carry the traffic of its GPUs}, as it reports them."""
        surveys = self._channel.ask(nvidia_smi.SURVEY, timeout=nvidia_smi.GPUS.timeout)
        networks = self._channel.ask(NETWORK.command)
        return {node: read_links(surveys[node], networks[node]) for node in surveys if node in networks}

    def route(self, profile: Profile, log: nccl_log.NcclLog, node_of_rank: Mapping[int, str] | None = None) -> Route:
        """Return how the ranks of a run over several nodes communicated, from its log."""
        transports = tuple(sorted(log.paths(node_of_rank or None).between))
        # a run of one node names the network that it would use
        if not transports and log.network == "Socket":
            transports = (SOCKET,)
        roce = profile.fabric.link_layer == "Ethernet"
        return Route(transports, log.nodes, self.exports, log.interfaces, roce)

    def floor(self, collective: str, size: int, nodes: Iterable[str], route: Route) -> Floor | str:
        """Return the lowest plausible bandwidth of a run on these nodes, or why it is unknown."""
        names = list(nodes)
        missing = [node for node in names if node not in self.links]
        if missing:
            return f"no answer from {hostlist.fold(missing)}"
        return nccl_floor.floor(collective, size, [self.links[node] for node in names], gpus=self.gpus, route=route)

    def without_domain(self) -> Self:
        """Return a runner whose ranks use the network between nodes also where NVLink joins them; it shares the lost nodes."""
        made = copy.copy(self)
        made.added = {DOMAIN: "0"}
        return made

    # --- one collective over all nodes

    def whole(self, nodes: Sequence[str], collective: str = "all_reduce", sizes: Iterable[int] = ()) -> NcclMeasurement:
        """Measure one collective over all the nodes together."""
        sweep = self.sweep.reaching(sizes).with_latency(collective)
        if self.runner == "payload":
            words = (*sweep.words(), *self._deadlines(), *self._rendezvous(nodes))
            argv = self._payload("sweep", "-c", collective, *words)
        else:
            argv = (self._program(collective), *sweep.words(), "-g", "1", *sweep.rest)
            if self.config.launcher == "mpirun":
                # Slurm knows only the task of mpirun: the Rank lines name the hosts
                return replace(self._measure(self._under_mpirun(nodes, argv), collective), node_of_rank={})
        request = self._request(nodes, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        if self.runner == "payload":
            request = replace(request, enough=all_sweeps_over(1))
        return self._measure(request, collective)

    def shown_by(self, nodes: Sequence[str], collective: str, size: int) -> str:
        """Return the smallest command that measures one size (bytes) on these nodes again; '' for the payload and mpirun."""
        if self.runner == "payload" or self.config.launcher == "mpirun":
            return ""
        alone = len(nodes) == 1
        how = {"gpus_per_node": self.gpus} if alone else {"ntasks_per_node": self.gpus, "gpus_per_task": 1}
        gpus = ("-g", str(self.gpus if alone else 1))
        sizes = ("-b", str(size), "-e", str(size))
        request = self._request(nodes, (self._program(collective), *sizes, *gpus, *self.sweep.rest), **how)
        if alone:
            request = replace(request, mpi="none", ntasks_per_node=1)
        return reproduce_command(self._allocation, replace(request, prelude=""))

    def _record_hung(self, error: StepTimeout, request: StepRequest, *, apart: bool) -> None:
        """Record the nodes that alone prevented a step from ending: those without a task, or with tasks that did not end.

        If no rank ended, or a rank failed, the collective hung: then the rounds of pairs find the node. `apart`: each
        node is a world of its own and judged by itself.
        """
        after = units.format_duration(round(error.result.seconds if error.result else request.timeout))
        for node in error.unstarted:
            self.lost_nodes.setdefault(node, f"a step started no task there within {after}")
        tasks = error.result.tasks if error.result else ()
        # the first task waits for the others: if it did not end, the others prove nothing
        hung = Counter(error.unended.values()) if 0 not in error.unended else Counter()
        others = [task for task in tasks if task.node not in hung]
        if apart or error.unstarted or not others or not all(task.ok for task in others):
            return
        for node, count in hung.items():
            what = f"{count} of its tasks did not end within {after}, those of other nodes did"
            self.lost_nodes.setdefault(node, what)

    def _record_lost(self, stderr: str, nodes: Sequence[str]) -> None:
        for reported in filter(None, map(ending, stderr.splitlines())):
            if not reported.tasks:  # the node, not a task of it
                self.lost_nodes.setdefault(reported.nodes, f"srun: {reported.why}")
        if _FEWER.search(stderr):
            with contextlib.suppress(SlurmError):
                now = self._slurm.nodes()
                self.lost_nodes |= {
                    node: now[node].why_unavailable()
                    for node in nodes
                    if node not in self.lost_nodes and node in now and now[node].state == "DOWN"
                }

    # --- steps

    def _payload(self, *words: str) -> tuple[str, ...]:
        if self.config.payload:
            return (*self.config.payload, *words)
        python = self.environment.python if self.environment else "python3"
        level = self.exports.get("NCCL_DEBUG", "INFO")
        return command(python, COLLECTIVE, *words, *(("--nccl-debug", level) if level else ()))

    def _deadlines(self) -> tuple[str, ...]:
        """Return the payload's deadlines, shorter than the step's: the payload names the rank or size that hangs."""
        seconds = f"{min(PATIENCE, self.deadline / 2):g}"
        return ("--deadline", seconds, "--rendezvous", seconds)

    def _rendezvous(self, nodes: Sequence[str]) -> tuple[str, ...]:
        # Slurm knows the address of a node even if its name does not resolve
        info = self._inventory.get(nodes[0])
        return ("--address", info.address) if info is not None and info.address else ()

    @property
    def logging(self) -> dict[str, str]:
        """The variables that make NCCL log its transports, and those of a stage."""
        return {name: self.exports.get(name, value) for name, value in LOGGED.items()} | self.added

    def _program(self, collective: str) -> str:
        folder, _, name = self.sweep.program.rpartition("/")
        swapped = collective + SUFFIX if name.endswith(SUFFIX) else name
        return f"{folder}/{swapped}" if folder else swapped

    def _request(self, nodes: Sequence[str], argv: Sequence[str], **options: Any) -> StepRequest:
        # exported in the task, since a task prolog overrides what srun exports
        prelude = [f"export {name}={shlex.quote(value)}" for name, value in self.logging.items()]
        # a port set by the site may be in use; the ddp suite checks it
        prelude.append("unset MASTER_PORT")
        mpi = self.config.mpi if self.runner == "nccl-tests" else None
        return StepRequest(
            argv=tuple(argv),
            nodes=tuple(nodes),
            env={"NCCL_DEBUG": self.exports.get("NCCL_DEBUG", "INFO"), **self.added},
            prelude="; ".join(prelude),
            environment=self.environment,
            mpi=mpi,
            timeout=self.deadline,
            **options,
        )

    def _under_mpirun(self, nodes: Sequence[str], argv: Sequence[str]) -> StepRequest:
        hosts = ",".join(f"{node}:{self.gpus}" for node in nodes)
        names = dict.fromkeys((*self.logging, *self.exports))
        exports = [word for name in names for word in ("-x", name)]
        launch = ("mpirun", "-np", str(len(nodes) * self.gpus), "--host", hosts, "--tag-output", *exports)
        request = self._request(nodes[:1], (*launch, *argv), ntasks_per_node=1, gpus_per_node=self.gpus)
        return replace(request, mpi="none", prelude="; ".join(filter(None, (request.prelude, self._job(nodes)))))

    def _job(self, nodes: Sequence[str]) -> str:
        """Return the sh line that sets the nodes for mpirun: Slurm's variables describe its own step of one task.

        Open MPI reads them instead of --host, and refuses the ranks because of too few slots (seen with 4.1.4).
        """
        folded, each = hostlist.fold(nodes), f"{self.gpus}(x{len(nodes)})"
        words = {
            **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), folded),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(nodes))),
            "SLURM_TASKS_PER_NODE": each,
        }
        return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())

    def _run(self, request: StepRequest, *, apart: bool = False) -> tuple[StepResult, str]:
        for _ in range(ATTEMPTS):
            self.steps += 1
            result, problem = self._try(request, apart=apart)
            ranks = (rank_failures(task.stderr).failures for task in result.tasks)
            if not any(failure.code == "port_taken" for failures in ranks for failure in failures):
                break
        self._record_lost(result.stderr, request.nodes)
        if problem:  # only then: nodes that the channel has lost may have finished the step before
            lost = self._channel.lost
            self.lost_nodes |= {
                node: lost[node].text for node in request.nodes if node in lost and node not in self.lost_nodes
            }
        return result, problem

    def _try(self, request: StepRequest, *, apart: bool) -> tuple[StepResult, str]:
        try:
            return run_step(self._slurm, self._allocation, request), ""
        except StepTimeout as error:
            self._record_hung(error, request, apart=apart)
            if isinstance(error.result, StepResult):
                return error.result, str(error)
            return StepResult(-1, (), error.stderr, request.timeout, " ".join(error.argv[:3])), str(error)
        except StepMisplaced as error:
            if error.result is None:
                raise
            self.misplaced = error.nodes
            return error.result, "" if apart else str(error)
        except StepError as error:
            return StepResult(error.rc or -1, (), error.stderr, 0.0, " ".join(error.argv[:3])), str(error)

    def _measure(self, request: StepRequest, collective: str, *, apart: bool = False) -> NcclMeasurement:
        self.misplaced = {}
        result, problem = self._run(request, apart=apart)
        return NcclMeasurement(
            output=output_of(result.tasks, collective, result, request.mpi),
            log=log_of(result.tasks),
            node_of_rank={task.rank: task.node for task in result.tasks},
            problem=problem,
            tasks=result.tasks,
            misplaced=self.misplaced,
        )


def all_sweeps_over(worlds: int) -> Callable[[str], bool]:
    """Return a predicate on the output: all `worlds` sweeps are over and one failed, so the remaining ranks hang."""
    return lambda text: GIVEN_UP in text and text.count(CONCLUDED) + text.count(GIVEN_UP) >= worlds


def output_of(
    tasks: Iterable[TaskResult], collective: str, step: StepResult | None = None, mpi: str | None = None
) -> nccl_tests.NcclOutput:
    """Return the parsed output of these tasks, with their highest exit status; `step`: also its own messages."""
    known = list(tasks)
    statuses = [task.rc for task in known if task.rc is not None]
    return nccl_tests.read_tasks(
        {str(task.rank): task.stdout for task in known},
        stderr="\n".join((*([step.stderr] if step else []), *(task.stderr for task in known))),
        rc=max(statuses, default=step.rc if step else None),
        collective=collective,
        mpi=mpi,
    )
