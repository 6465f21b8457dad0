"""Steps and jobs that test Slurm, for many checks.

`run_diagnostics`: one step on all nodes of an allocation (one per number of GPUs of a node); its tasks report their
environment and end with known statuses. `BatchJobs`: three short batch jobs (an array with --begin of which one element
requeues itself, and a job that depends on the other element), submitted BEFORE the allocation: no job could start while
it holds the nodes. The allocation depends on them in Slurm, without polling; squeue is then called once.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.batch import submission
from pytest_gpucluster.cluster.slurm.error_hints import advice
from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, reproduce_command, run_step
from pytest_gpucluster.core.errors import NotAvailable, SlurmError, StepError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.core.units import cpu_list
from pytest_gpucluster.kit.suite_work import Submission

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import Cluster, SlurmConfig
    from pytest_gpucluster.kit.suite_work import SuiteContext

EXIT_CODE, KILLED = 7, 9
ARRAY_EXIT, DEPENDENT_EXIT = 3, 5
BEGIN_AFTER = 2  # seconds; sbatch and slurmctld round down: one second could be past at once
_FIELDS = 11
STEP_TIMEOUT = 60.0  # seconds for the diagnostic step
SECONDS_PER_TASK = 0.25  # more time for each task: slurmctld and srun serve all
_DEPENDENT = "#!/bin/sh\nexit 5\n"
_COLUMNS = (
    "JobArrayID:30,State:20,Reason:40,RestartCnt:10,SubmitTime:25,EligibleTime:25,StartTime:25,EndTime:25,"
    "NodeList:80,exit_code:12"  # last: since 23.02 squeue omits this column if there is no exit status
)


@dataclass(frozen=True)
class DiagnosticTask:
    """Report of one task and its exit: `rc` and `signal` as srun reported them.

    `cpus`: the CPUs that it may use, of `online` CPUs of the machine; empty if unknown.
    `lost`: variables with the position of the task that differ from those that Slurm sets; their numbers are -1.
    """

    rank: int
    local_id: int
    ntasks: int
    visible: str
    step_gpus: str
    openable: tuple[str, ...]
    token: str
    stderr_arrived: bool
    rc: int
    signal: int | None
    cpus: frozenset[int] = frozenset()
    online: int = 0
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeDiagnostic:
    """The diagnostic of one node. `gpus_requested`: GPUs of the step on the node; `shared`: all tasks use one GPU.

    `problem`: why its tasks reported nothing; `code` is then that of the step's messages, `state_after` the state of the node in
    Slurm after the step, and `out_after` the reason there.
    `first_reports`: if a first step lost output and a second did not, the tasks that reported in the first.
    """

    node: str
    tasks_requested: int
    gpus_requested: int
    shared: bool
    token: str
    tasks: tuple[DiagnosticTask, ...]
    seconds: float
    command: str
    problem: str = ""
    state_after: str = ""
    out_after: str = ""
    code: str = ""
    first_reports: int | None = None

    def reported(self) -> tuple[DiagnosticTask, ...]:
        """Return the tasks; NotAvailable if they reported nothing."""
        if self.problem:
            raise NotAvailable(self.problem)
        return self.tasks

    @property
    def incomplete(self) -> bool:
        """Whether output of some tasks did not arrive, although the step ran."""
        arrived = sum(task.stderr_arrived for task in self.tasks)
        return not self.problem and arrived < self.tasks_requested


@dataclass(frozen=True)
class QueuedJob:
    """One job as squeue shows it. A missing time is ''; `exit_code` is the exit status."""

    job: str
    state: str
    reason: str = ""
    restarts: int = 0
    submitted: str = ""
    eligible: str = ""
    started: str = ""
    ended: str = ""
    exit_code: int | None = None
    node: str = ""

    def waited(self) -> float | None:
        """Return the seconds from eligibility to the start; None if it has not started."""
        if not self.started or not self.eligible:
            return None
        eligible, started = map(datetime.fromisoformat, (self.eligible, self.started))
        return max(0.0, (started - eligible).total_seconds())


FORGOTTEN = "Slurm no longer knows the job"
ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
}  # fmt: skip


@dataclass(frozen=True)
class Jobs:
    """The batch jobs, as plain data for a worker process."""

    array: str
    dependent: str
    begin_after: int
    problem: str = ""
    submitted_in: float = 0.0  # seconds that sbatch took for the array


@dataclass(frozen=True)
class JobFacts:
    """Results of the jobs: NotAvailable for each of which there is none. `problem`: why there are none at all."""

    jobs: Jobs
    records: Mapping[str, QueuedJob] = field(default_factory=dict)
    problem: str = ""

    @property
    def ended(self) -> bool:
        """Whether all results are known: element and dependent ended, the other element was requeued."""
        names = (f"{self.jobs.array}_1", self.jobs.dependent, f"{self.jobs.array}_0")
        *ended, requeued = map(self.records.get, names)
        over = all(job is not None and job.state in ENDED for job in ended)
        return over and requeued is not None and requeued.restarts > 0

    @property
    def requeued(self) -> QueuedJob:
        """The element that requeues itself."""
        return self._of(f"{self.jobs.array}_0")

    @property
    def element(self) -> QueuedJob:
        """The element that ends with a known exit status."""
        return self._of(f"{self.jobs.array}_1")

    @property
    def dependent(self) -> QueuedJob:
        """The job that waits for `element`."""
        return self._of(self.jobs.dependent)

    def _of(self, job: str) -> QueuedJob:
        if self.problem or job not in self.records:
            raise NotAvailable(self.problem or FORGOTTEN)
        return self.records[job]


class BatchJobs(Submission):
    """The jobs of one run; a guard cancels them however the run ends."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self._slurm, self._guard = slurm, JobGuard(slurm)
        self.jobs = submit_jobs(slurm, cluster.slurm, name=self._guard.name)
        self._facts: JobFacts | None = None
        self._lock = threading.Lock()
        if self.jobs.problem:
            self._guard.release()  # the first job may be in the queue, and count against a limit

    def job_ids(self) -> tuple[str, ...]:
        """Return the element that ends by itself, and the job that waits for it."""
        return () if self.jobs.problem else (f"{self.jobs.array}_1", self.jobs.dependent)

    def refresh(self) -> None:
        """Call squeue."""
        self.outcome()

    def outcome(self) -> JobFacts:
        """Call squeue; return its records with earlier ones of jobs that it no longer shows."""
        with self._lock:
            if self._facts is None or not self._facts.ended:
                before = self._facts.records if self._facts is not None else {}
                now = read_jobs(self._slurm, self.jobs)
                self._facts = replace(now, records={**before, **now.records})
            return self._facts

    def withdraw(self, why: str) -> bool:
        """Cancel the jobs; their checks report the reason."""
        if self.jobs.problem:
            return False
        self.jobs = replace(self.jobs, problem=f"they were withdrawn for the allocation: {why}")
        self._guard.release()
        return True

    def close(self) -> None:
        """Cancel the remaining jobs."""
        self._guard.release()


def run_diagnostics(run: SuiteContext) -> dict[str, NodeDiagnostic]:
    """Run the diagnostic on all nodes of every allocation."""
    found: dict[str, NodeDiagnostic] = {}
    for held in run.allocations:
        assert run.slurm is not None  # an allocation implies a scheduler
        found |= run_diagnostic(run.slurm, held, run.inventory, without=run.lost())
    return found


def run_diagnostic(
    slurm: Slurm, allocation: Allocation, inventory: Mapping[str, NodeInfo], *, without: Collection[str] = ()
) -> dict[str, NodeDiagnostic]:
    """Run the diagnostic on an allocation: {node: diagnostic}; a node without a report has a `problem`.

    StepError if the step failed on more than half of the nodes. `without`: nodes that are known to hang, for which the
    step would wait until its deadline.
    """
    groups = grouped(
        (inventory[node].gpus if node in inventory else 0, node) for node in allocation.nodes if node not in without
    )
    diagnostics: dict[str, NodeDiagnostic] = {}
    for gpus, nodes in groups.items():
        diagnostics |= _run_group(slurm, allocation, tuple(nodes), gpus)
    diagnostics |= _repeated(slurm, allocation, diagnostics)
    if any(diagnostic.problem for diagnostic in diagnostics.values()):
        diagnostics = _with_state(slurm, diagnostics)
    return diagnostics


def _repeated(
    slurm: Slurm, allocation: Allocation, diagnostics: Mapping[str, NodeDiagnostic]
) -> dict[str, NodeDiagnostic]:
    """Return the results of a second step on nodes whose output is incomplete, where that step loses nothing.

    A single loss may be that of an overloaded login node; a node that loses output again is at fault.
    """
    groups = grouped((it.gpus_requested, node) for node, it in diagnostics.items() if it.incomplete)
    second: dict[str, NodeDiagnostic] = {}
    for gpus, nodes in groups.items():
        with contextlib.suppress(StepError):  # the result of the first step stands
            second |= _run_group(slurm, allocation, tuple(nodes), gpus)
    return {
        node: replace(it, first_reports=len(diagnostics[node].tasks))
        for node, it in second.items()
        if not it.problem and not it.incomplete
    }


def diagnostic_request(nodes: tuple[str, ...], gpus: int, token: str) -> StepRequest:
    """Return the step for nodes with `gpus` GPUs: one task per GPU, at least two tasks."""
    tasks = max(2, gpus)
    return StepRequest(
        argv=("sh", "-c", script(__package__, "diagnostic.sh"), "diagnostic"),
        nodes=nodes,
        ntasks_per_node=tasks,
        gpus_per_task=1 if gpus > 1 else None,
        gpus_per_node=1 if gpus == 1 else None,
        env={"GPUCLUSTER_DIAGNOSTIC": token},
        wrap=False,  # srun's report of exit codes and signals is judged
        timeout=STEP_TIMEOUT + SECONDS_PER_TASK * tasks * len(nodes),
        cap=1 << 16,
    )


def judge_step(
    result: StepResult, request: StepRequest, gpus: int, token: str, problem: str = ""
) -> dict[str, NodeDiagnostic]:
    """Split the result of a step by node."""
    reports: dict[str, list[DiagnosticTask]] = {node: [] for node in request.nodes}
    for task in result.tasks:
        fields = next((x for x in task.stdout.splitlines() if x.startswith("diagnostic|")), "").split("|")
        if len(fields) <= _FIELDS or fields[-1] != "end" or fields[2] not in reports:
            continue
        reports[fields[2]].append(_diagnostic_task(task, fields))
    explained = result.explanation
    why = problem or explained
    tasks = request.ntasks_per_node or 1

    def lacking(seen: int) -> str:
        if seen and (seen == tasks or not problem):
            return ""  # the checks judge the reports
        count = "no task" if not seen else f"{seen} of {tasks} tasks"
        return f"{count} of the step reported" + (f": {why}" if why else "")

    return {
        node: NodeDiagnostic(
            node,
            tasks,
            gpus,
            shared=gpus == 1,
            token=token,
            tasks=tuple(sorted(seen, key=lambda one: one.rank)),
            seconds=result.seconds,
            command=result.command,
            problem=lacking(len(seen)),
            code=explained.code if explained else "",
        )
        for node, seen in reports.items()
    }


def _diagnostic_task(task: TaskResult, fields: Sequence[str]) -> DiagnosticTask:
    """Read the report of a task: a prolog or plugin may have removed variables of its environment."""
    valid = {
        "SLURM_PROCID": fields[1] == str(task.rank),
        "SLURM_LOCALID": _number(fields[3]) >= 0,
        "SLURM_NTASKS": _number(fields[4]) > 0,
    }
    return DiagnosticTask(
        rank=task.rank,
        local_id=_number(fields[3]),
        ntasks=_number(fields[4]),
        visible=fields[5],
        step_gpus=fields[6],
        openable=tuple(filter(None, fields[7].split(","))),
        token="|".join(fields[10:-1]),
        stderr_arrived=f"diagnostic-err|{fields[1]}|end" in task.stderr,
        rc=task.rc or 0,
        signal=task.signal,
        cpus=_cpus(fields[8]),
        online=len(_cpus(fields[9])),
        lost=tuple(name for name, right in valid.items() if not right),
    )


def _cpus(text: str) -> frozenset[int]:
    """Return the CPUs; none where the task did not report a list, so that they are not judged."""
    try:
        return cpu_list(text)
    except ValueError:
        return frozenset()


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1


def submit_jobs(slurm: Slurm, config: SlurmConfig, *, name: str = "gpucluster-diagnostic") -> Jobs:
    """Submit the jobs with two commands. An error of Slurm becomes `problem`, and the session continues."""
    common = submission(config, name)
    try:
        began = time.monotonic()
        options = ("--array=0-1", f"--begin=now+{BEGIN_AFTER}", "--requeue")
        array = slurm.run(*common, *options, input=script(__package__, "diagnostic_array.sh"))
        took = time.monotonic() - began
        array = array.strip().split(";")[0]
        dependent = slurm.run(
            *common, f"--dependency=afternotok:{array}_1", "--kill-on-invalid-dep=yes", input=_DEPENDENT
        )
    except SlurmError as error:
        hint = advice(error.stderr)
        return Jobs("", "", BEGIN_AFTER, problem=f"{error}{hint and ': '}{hint}")
    return Jobs(array, dependent.strip().split(";")[0], BEGIN_AFTER, submitted_in=took)


def read_jobs(slurm: Slurm, jobs: Jobs) -> JobFacts:
    """Call squeue once and return the state of the jobs; slurmctld drops them after MinJobAge (300 s by default)."""
    if jobs.problem:
        return JobFacts(jobs, problem=jobs.problem)
    try:
        both = f"{jobs.array},{jobs.dependent}"
        text = slurm.run("squeue", "-h", "-a", "-r", "-t", "all", "-j", both, "-O", _COLUMNS)
    except SlurmError as error:
        return JobFacts(jobs, problem=str(error))
    return JobFacts(jobs, parse_squeue(text))


def parse_squeue(text: str) -> dict[str, QueuedJob]:
    """Read the columns of squeue, which have fixed widths."""
    widths = [int(column.rsplit(":", 1)[1]) for column in _COLUMNS.split(",")]
    ends = list(itertools.accumulate(widths, initial=0))
    records = {}
    for line in text.splitlines():
        job, state, reason, restarts, *times, node, status = (
            line[start:end].strip() for start, end in itertools.pairwise(ends)
        )
        if job:
            again, code = int(restarts) if restarts.isdigit() else 0, _exit_status(status)
            known = ["" if value in {"N/A", "NONE"} else value for value in times]
            names = ("submitted", "eligible", "started", "ended")
            at = dict(zip(names, known, strict=True))
            records[job] = QueuedJob(job, state, reason, again, **at, exit_code=code, node=node)
    return records


def _exit_status(text: str) -> int | None:
    """Read squeue's exit_code: 'STATUS:SIGNAL' since 23.02, a wait status before (src/squeue/print.c)."""
    found = re.fullmatch(r"([0-9]{1,10})(:[0-9]{1,10})?", text)
    if not found:
        return None
    return int(found[1]) if found[2] else (int(found[1]) >> 8) & 0xFF


def _run_group(slurm: Slurm, allocation: Allocation, nodes: tuple[str, ...], gpus: int) -> dict[str, NodeDiagnostic]:
    token = f'{secrets.token_hex(4)}, it\'s="quoted" $HOME'
    request = diagnostic_request(nodes, gpus, token)
    try:
        return judge_step(run_step(slurm, allocation, request), request, gpus, token)
    except StepError as error:
        result = getattr(error, "result", None)
        if not isinstance(result, StepResult):
            result = StepResult(-1, (), error.stderr, 0.0, reproduce_command(allocation, request))
        diagnostics = judge_step(result, request, gpus, token, problem=error.brief or str(error))
        if 2 * sum(bool(diagnostic.problem) for diagnostic in diagnostics.values()) > len(diagnostics):
            raise  # most nodes: the machine is slow or Slurm is broken, which is no fault of a node
        return diagnostics


def _with_state(slurm: Slurm, diagnostics: dict[str, NodeDiagnostic]) -> dict[str, NodeDiagnostic]:
    # a failing prolog drains its node after the inventory was read
    slurm.refresh()
    try:
        now = slurm.nodes()
    except SlurmError:
        return diagnostics
    return {
        node: replace(it, state_after=now[node].why_unavailable(), out_after=now[node].why_out)
        if it.problem and node in now
        else it
        for node, it in diagnostics.items()
    }
