"""Steps that try to leave their job: two at the same time, one that exceeds its memory, and one with a pseudo-terminal."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import OF_STEPS, OWN_LIMITS
from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.core import units
from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import SlurmError, StepError, TransportError
from pytest_gpucluster.kit.framework.framework_step import nodes_by_allocation, payload_tasks, step_or_timeout
from pytest_gpucluster.kit.framework.payload_result import PayloadResult
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.suites.isolation.settings import allowed_memory, isolates_nothing, sandbox_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.kit.framework.framework_step import NodesUnderTest
    from pytest_gpucluster.suites.isolation.config import IsolationConfig

KEY = "isolation"
ROLES = ("first", "second")
CPUS = 1  # of each step
_STEP_MEMORY = "256M"  # a step without --mem would take all of the job, and the second one would wait
_SECONDS_PER_NODE = 0.25
EXCEEDED = 2  # times the allowed memory
_SHELL = "if tty >/dev/null 2>&1 && : </dev/tty; then echo 'pty|yes|end'; else echo 'pty|no|end'; fi"
_NO_TERMINAL = "Not using a pseudo-terminal"  # srun, of the machine on which it runs
_OUT_OF_MEMORY = re.compile(r"oom.?kill|out.of.memory", re.IGNORECASE)


@dataclass(frozen=True)
class StepPair:
    """Two steps that run at the same time on all nodes of an allocation, by role, and the GPUs of each on a node.

    `job`: the id of the job; `job_age`: its seconds at the end of the steps, None if unknown.
    """

    steps: Mapping[str, PayloadResult]
    gpus: Mapping[str, int]
    job: int = 0
    job_age: float | None = None


@dataclass(frozen=True)
class MemoryStep:
    """A step whose tasks exceed their limit. `most`: bytes that a task may use; `taken`: that it tries to use.

    `reported`: Slurm reported that memory ran out; `states`: {node: why Slurm took it out of service meanwhile}.
    """

    step: PayloadResult
    limit: int
    most: int
    reported: bool
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PtyResult:
    """`srun --pty` on one node. `terminal`: whether the shell has one, None if nothing arrived.

    `problem`: why it could not be tried; `text`: what it printed.
    """

    node: str
    end: CommandEnd | None = None
    terminal: bool | None = None
    text: str = ""
    problem: str = ""
    command: str = ""


class Isolation:
    """The steps on the testable nodes of one allocation."""

    def __init__(
        self, session: NodesUnderTest, allocation: Allocation, nodes: tuple[str, ...], config: IsolationConfig
    ) -> None:
        self.allocation, self.nodes, self.config = allocation, nodes, config
        self.slurm = allocation.slurm
        self.sudo = session.cluster.sudo
        self._tree = sandbox_tree(session.cluster) or Path("/")
        self._inventory: Mapping[str, NodeInfo] = session.inventory

    @classmethod
    def of_allocations(cls, session: NodesUnderTest, config: IsolationConfig) -> list[Isolation]:
        """Return one per allocation that has testable nodes."""
        return [cls(session, held, nodes, config) for held, nodes in nodes_by_allocation(session)]

    @property
    def timeout(self) -> float:
        """Seconds for a step: slurmctld and srun serve all tasks."""
        return self.config.deadline + _SECONDS_PER_NODE * len(self.nodes)

    def try_all(self) -> StepPair:
        """Run two steps, each with its own CPU, memory and, if the nodes have them, GPU."""
        least = min((self._inventory[node].gpus for node in self.nodes if node in self._inventory), default=0)
        gpus = {"first": min(1, least), "second": int(least > 1)}
        token = secrets.token_hex(8)
        options = {
            "device_files": str(self._tree / self.config.device_files.lstrip("/")),
            "folders": self.config.private_folders,
            "sudo": self.sudo,
        }

        def run(role: str) -> PayloadResult:
            payload, without = Path(__file__).with_name("payload.py"), () if gpus[role] else ("--gres=none",)
            request = StepRequest(
                argv=command(self.config.python, payload, role, token, json.dumps(options)),
                nodes=self.nodes,
                ntasks_per_node=1,
                cpus_per_task=CPUS,
                gpus_per_node=gpus[role] or None,
                extra_args=("--exact", f"--mem={_STEP_MEMORY}", *without),
                overlap=False,
                timeout=self.timeout,
            )
            return self._run(request)

        with ThreadPoolExecutor(len(ROLES)) as pool:
            steps = dict(zip(ROLES, pool.map(run, ROLES), strict=True))
        return StepPair(steps, gpus, self.allocation.job_id, self._job_age())

    def _job_age(self) -> float | None:
        """Return the seconds that the job has run (squeue's %M, as 1-02:03:04 or 0:12), None if Slurm does not answer."""
        try:
            text = self.slurm.run("squeue", "-h", "-j", str(self.allocation.job_id), "-o", "%M").strip()
            return units.parse_duration(text)
        except (SlurmError, ValueError):
            return None

    def exceed_memory(self) -> MemoryStep:
        """Run one task per node that takes twice the memory that it may use; then read the states of the nodes."""
        limit = self.config.step_memory >> 20 << 20
        most = int(limit * allowed_memory(self.slurm.config()))
        payload = Path(__file__).with_name("payload_memory.py")
        argv = command(self.config.python, payload, str(limit), str(EXCEEDED * most))
        request = StepRequest(
            argv=argv,
            nodes=self.nodes,
            ntasks_per_node=1,
            extra_args=(f"--mem={limit >> 20}M",),
            # since 23.11 a site may end the tasks of all nodes with the first one (TaskPluginParam=OOMKillStep)
            env={"SLURM_OOM_KILL_STEP": "0"},
            timeout=self.timeout,
        )
        before = self._in_service()
        output: list[str] = []
        step = self._run(request, output)
        memory_step = MemoryStep(step, limit, most, bool(_OUT_OF_MEMORY.search("\n".join(output))))
        after = self._in_service()
        lost = {node: after.get(node, "") for node in self.nodes if before.get(node) == ""}
        return replace(memory_step, states={node: why for node, why in lost.items() if why})

    def _in_service(self) -> dict[str, str]:
        """Return {node: why it is out of service, '' if it is not}, as Slurm shows it now; {} if Slurm does not answer."""
        self.slurm.refresh()
        try:
            nodes = self.slurm.nodes()
        except SlurmError:
            return {}
        return {node: "" if it.in_service else it.why_unavailable() for node, it in nodes.items()}

    def _run(self, request: StepRequest, output: list[str] | None = None) -> PayloadResult:
        empty = PayloadResult(KEY, request.nodes, len(request.nodes))
        try:
            result, problem = step_or_timeout(self.slurm, self.allocation, request)
        except StepError as error:
            return replace(empty, problem=str(error), rc=error.rc or -1)
        if output is not None:
            output += [result.stderr, *(task.stderr for task in result.tasks)]
        command, seconds, rc = result.command, result.seconds, result.rc
        tasks = payload_tasks(result, KEY)
        return replace(empty, tasks=tasks, problem=problem, command=command, seconds=seconds, rc=rc)

    def open_terminal(self) -> PtyResult:
        """Run `srun --pty` on the first node, in a terminal of script(1): srun requires one where it starts."""
        node, seconds = self.nodes[0], int(self.timeout)
        where = (f"--jobid={self.allocation.job_id}", f"--nodelist={node}", "--nodes=1")
        srun = ("srun", "--overlap", OWN_LIMITS, *where)
        step = (*srun, "--ntasks=1", "--time=1", "--pty", "sh", "-c", _SHELL)
        bounded = ("timeout", "--foreground", "-k", "5", str(seconds), *step)
        ending = f'ending $? {seconds} "$clock"; echo "ended|$ended|end"'
        program = f"{LIMITED_SH}clock; {shlex.join(bounded)}; {ending}"
        shown = f"srun --nodelist={node} --pty sh"
        try:
            done = self.slurm.transport.run(
                ("script", "-qec", program, "/dev/null"),
                timeout=seconds + 15.0,
                env={**self.slurm.env, **OF_STEPS, "SHELL": "/bin/sh"},
            )
        except TransportError as error:
            return PtyResult(node, problem=str(error), command=shown)
        output = done.stdout + "\n" + done.stderr
        if _NO_TERMINAL in output:
            return PtyResult(node, problem="srun has no terminal where it starts", command=shown)
        return PtyResult(node, *read_terminal(output), command=shown)


def read_terminal(text: str) -> tuple[CommandEnd | None, bool | None, str]:
    """Return how srun ended, whether the shell has a terminal, and the last line of other output; None: it printed nothing."""
    end, terminal = None, None
    last = ""
    for line in re.split(r"[\r\n]+", text):
        found = re.search(r"pty\|(yes|no)\|end", line)
        if found:
            terminal = found[1] == "yes"
        elif ended := re.search(rf"ended\|({STATUS})\|end", line):
            end = CommandEnd.of(ended[1])
        elif clean := "".join(one for one in line if one.isprintable()).strip():
            last = clean
    return end, terminal, last


def step_pairs_of(session: Any, config: IsolationConfig, shared: Mapping[str, str]) -> dict[str, StepPair]:
    """Return {node: the steps of its allocation}; {} if there is nothing to test."""
    if isolates_nothing(shared):
        return {}
    pairs = [(one.nodes, one.try_all()) for one in Isolation.of_allocations(session, config)]
    return {node: pair for nodes, pair in pairs for node in nodes}
