"""What a few steps and jobs show of Slurm, for many checks at once.

`examine`: one step on all nodes of an allocation (one for each count of GPUs a node): its tasks tell what they
see and end in known ways. `BatchJobs`: three short batch jobs (an array with --begin of which one element
requeues itself, and one that depends on the other), submitted BEFORE the nodes are allocated: while we hold the
nodes no job could start. The allocation waits for them through Slurm, nobody polls; squeue is then asked once.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.error_hints import advice
from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, reproduce_command, run_step
from pytest_gpucluster.core.errors import SlurmError, StepError
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
MAX_DIGITS = 4  # of the number of a CPU: Linux has at most 8192
ARRAY_EXIT, DEPENDENT_EXIT = 3, 5
_PAYLOAD = Path(__file__).with_name("diagnostic.sh")
BEGIN_AFTER = 2  # seconds; sbatch and slurmctld cut theirs off: one could be over at once
_FIELDS = 11
STEP_TIMEOUT = 60.0  # seconds for the exam's step
A_TASK = 0.25  # and for each of its tasks: slurmctld and srun serve all
_ARRAY = """#!/bin/sh
if [ "$SLURM_ARRAY_TASK_ID" = 0 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
    # Slurm would run it again after 2 minutes; the guard of the jobs takes it out of the queue (job_cleanup.py)
    scontrol requeue "$SLURM_JOB_ID" || exit 9
    sleep 20
fi
[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 3
exit 0
"""
_DEPENDENT = "#!/bin/sh\nexit 5\n"
_COLUMNS = (
    "JobArrayID:30,State:20,Reason:40,RestartCnt:10,SubmitTime:25,EligibleTime:25,StartTime:25,EndTime:25,"
    "NodeList:80,exit_code:12"  # last: since 23.02 squeue leaves this column out where it knows no exit status
)


@dataclass(frozen=True)
class ExamTask:
    """What one task told and how it ended. `rc`/`signal` are as srun reported them.

    `cpus` are those that it may run on, of `online` that the machine has; empty where it could not tell.
    `lost`: the variables that say a task its place and were not as Slurm sets them; a number is -1 then.
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
class NodeExam:
    """The exam of one node. `gpus_asked` is the GPUs of the step on the node; `shared`: all tasks use one GPU.

    `problem` says why no task told anything; `state_after` is then what Slurm says of the node since.
    """

    node: str
    tasks_asked: int
    gpus_asked: int
    shared: bool
    token: str
    tasks: tuple[ExamTask, ...]
    seconds: float
    command: str
    problem: str = ""
    state_after: str = ""


@dataclass(frozen=True)
class JobRecord:
    """One job as squeue shows it. Times are '' where there is none; `exit_code` is the exit status."""

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
        """Return the seconds from being eligible to the start; None where it has not started."""
        if not self.started or not self.eligible:
            return None
        return max(0.0, (_when(self.started) - _when(self.eligible)).total_seconds())


ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
}


@dataclass(frozen=True)
class Jobs:
    """The jobs of an exam, as plain data that a worker process may be given."""

    array: str
    dependent: str
    begin_after: int
    problem: str = ""
    submitted_in: float = 0.0  # seconds that sbatch took for the array


@dataclass(frozen=True)
class JobFacts:
    """What became of the jobs. `problem` says why nothing is known."""

    jobs: Jobs
    records: Mapping[str, JobRecord] = field(default_factory=dict)
    problem: str = ""

    @property
    def ended(self) -> bool:
        """Nothing more can be learnt: element and dependent have ended, the other element was requeued."""
        over = all(job is not None and job.state in ENDED for job in (self.element, self.dependent))
        return over and self.requeued is not None and self.requeued.restarts > 0

    @property
    def requeued(self) -> JobRecord | None:
        """The element that asks to be requeued."""
        return self.records.get(f"{self.jobs.array}_0")

    @property
    def element(self) -> JobRecord | None:
        """The element that ends with a known exit status."""
        return self.records.get(f"{self.jobs.array}_1")

    @property
    def dependent(self) -> JobRecord | None:
        """The job that waits for `element`."""
        return self.records.get(self.jobs.dependent)


class BatchJobs(Submission):
    """The jobs of one run; a guard cancels them however the run ends."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self._slurm, self._guard = slurm, JobGuard(slurm)
        self.jobs = submit_jobs(slurm, cluster.slurm, name=self._guard.name)
        self._facts: JobFacts | None = None
        self._lock = threading.Lock()
        if self.jobs.problem:
            self._guard.release()  # the first of them may be in the queue, and count against a limit

    def job_ids(self) -> tuple[str, ...]:
        """Return the element that ends by itself, and the job that waits for it."""
        return () if self.jobs.problem else (f"{self.jobs.array}_1", self.jobs.dependent)

    def refresh(self) -> None:
        """Ask squeue."""
        self.outcome()

    def outcome(self) -> JobFacts:
        """Ask squeue, and keep what it has forgotten since."""
        with self._lock:
            if self._facts is None or not self._facts.ended:
                before = self._facts.records if self._facts is not None else {}
                now = read_jobs(self._slurm, self.jobs)
                self._facts = replace(now, records={**before, **now.records})
            return self._facts

    def withdraw(self, why: str) -> bool:
        """Cancel the jobs; their checks then say why."""
        if self.jobs.problem:
            return False
        self.jobs = replace(self.jobs, problem=f"they were withdrawn for the allocation: {why}")
        self._guard.release()
        return True

    def close(self) -> None:
        """Cancel what is left of the jobs."""
        self._guard.release()


def examine(run: SuiteContext) -> dict[str, NodeExam]:
    """Run the exam on all nodes of every allocation."""
    found: dict[str, NodeExam] = {}
    for held in run.allocations:
        assert run.slurm is not None  # who has an allocation has a scheduler
        found |= run_exam(run.slurm, held, run.inventory, without=run.lost())
    return found


def run_exam(
    slurm: Slurm,
    allocation: Allocation,
    inventory: Mapping[str, NodeInfo],
    *,
    without: Collection[str] = (),
    timeout: float | None = None,
) -> dict[str, NodeExam]:
    """Run the exam on the nodes of an allocation: {node: exam}; a node that told nothing has a `problem`.

    Raise StepError where the step failed on more than half of the nodes.
    `without`: nodes that are known to hang, for which the step would wait until its deadline. `timeout` in seconds;
    None: as many tasks need.
    """
    groups: dict[int, list[str]] = {}
    for node in (name for name in allocation.nodes if name not in without):
        groups.setdefault(inventory[node].gpus if node in inventory else 0, []).append(node)
    exams: dict[str, NodeExam] = {}
    for gpus, nodes in groups.items():
        exams |= _run_group(slurm, allocation, tuple(nodes), gpus, timeout)
    if any(exam.problem for exam in exams.values()):
        exams = _with_state(slurm, exams)
    return exams


def exam_request(nodes: tuple[str, ...], gpus: int, token: str, timeout: float | None = None) -> StepRequest:
    """Return the step for nodes of `gpus` GPUs: a task a GPU; two tasks where there are fewer than two."""
    tasks = max(2, gpus)
    if timeout is None:
        timeout = STEP_TIMEOUT + A_TASK * tasks * len(nodes)
    return StepRequest(
        argv=("sh", "-c", _PAYLOAD.read_text(), "exam"),
        nodes=nodes,
        ntasks_per_node=tasks,
        gpus_per_task=1 if gpus > 1 else None,
        gpus_per_node=1 if gpus == 1 else None,
        env={"GPUCLUSTER_EXAM": token},
        wrap=False,  # srun's own word on exit codes and signals is what is judged
        timeout=timeout,
        cap=1 << 16,
    )


def judge_step(
    result: StepResult, request: StepRequest, gpus: int, token: str, problem: str = ""
) -> dict[str, NodeExam]:
    """Take a step's result apart by node."""
    told: dict[str, list[ExamTask]] = {node: [] for node in request.nodes}
    for task in result.tasks:
        fields = next((x for x in task.stdout.splitlines() if x.startswith("exam|")), "").split("|")
        if len(fields) <= _FIELDS or fields[-1] != "end" or fields[2] not in told:
            continue
        told[fields[2]].append(_exam_task(task, fields))
    why = problem.partition(" (repeat: ")[0] or result.hint  # the exam's command is too long to be read
    tasks = request.ntasks_per_node or 1

    def lacking(seen: int) -> str:
        if seen and (seen == tasks or not problem):
            return ""  # the checks say what is wrong with them
        count = "no task" if not seen else f"{seen} of {tasks} tasks"
        return f"{count} of the step told anything" + (f": {why}" if why else "")

    return {
        node: NodeExam(
            node,
            tasks,
            gpus,
            shared=gpus == 1,
            token=token,
            tasks=tuple(sorted(seen, key=lambda one: one.rank)),
            seconds=result.seconds,
            command=result.command,
            problem=lacking(len(seen)),
        )
        for node, seen in told.items()
    }


def cpu_list(text: str) -> frozenset[int]:
    """Read the kernel's list of CPUs.

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for span in text.split(","):
        first, _, last = span.partition("-")
        if first.isdecimal() and len(first) <= MAX_DIGITS >= len(last):
            cpus.update(range(int(first), int(last if last.isdecimal() else first) + 1))
    return frozenset(cpus)


def _exam_task(task: TaskResult, fields: Sequence[str]) -> ExamTask:
    """Read what a task told: a prolog or plugin may have taken anything out of its environment."""
    places = {
        "SLURM_PROCID": fields[1] == str(task.rank),
        "SLURM_LOCALID": _place(fields[3]) >= 0,
        "SLURM_NTASKS": _place(fields[4]) > 0,
    }
    return ExamTask(
        rank=task.rank,
        local_id=_place(fields[3]),
        ntasks=_place(fields[4]),
        visible=fields[5],
        step_gpus=fields[6],
        openable=tuple(filter(None, fields[7].split(","))),
        token="|".join(fields[10:-1]),
        stderr_arrived=f"exam-err|{fields[1]}|end" in task.stderr,
        rc=task.rc or 0,
        signal=task.signal,
        cpus=cpu_list(fields[8]),
        online=len(cpu_list(fields[9])),
        lost=tuple(name for name, right in places.items() if not right),
    )


def _place(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1


def submit_jobs(
    slurm: Slurm, asked: SlurmConfig, *, partition: str | None = None, name: str = "gpucluster-exam"
) -> Jobs:
    """Submit the jobs under a name; two processes. What Slurm refuses is kept as `problem`: the session goes on."""
    where = {
        "partition": partition or asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "reservation": asked.reservation,
        "comment": asked.comment,
    }
    common = [
        "sbatch",
        "--parsable",
        "--nodes=1",
        "--ntasks=1",
        "--time=1",
        "--output=/dev/null",
        f"--job-name={name}",
        *(f"--{key}={value}" for key, value in where.items() if value),
    ]
    try:
        began = time.monotonic()
        array = slurm.run(*common, "--array=0-1", f"--begin=now+{BEGIN_AFTER}", "--requeue", input=_ARRAY)
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
    """Ask squeue once what became of the jobs; slurmctld forgets them after MinJobAge (300 s by default)."""
    if jobs.problem:
        return JobFacts(jobs, problem=jobs.problem)
    try:
        text = slurm.run(
            "squeue", "-h", "-a", "-r", "-t", "all", "-j", f"{jobs.array},{jobs.dependent}", "-O", _COLUMNS
        )
    except SlurmError as error:
        return JobFacts(jobs, problem=str(error))
    return JobFacts(jobs, parse_squeue(text))


def parse_squeue(text: str) -> dict[str, JobRecord]:
    """Read squeue's fixed columns as asked for here."""
    widths = [int(column.rsplit(":", 1)[1]) for column in _COLUMNS.split(",")]
    records = {}
    for line in text.splitlines():
        values, at = [], 0
        for width in widths:
            values.append(line[at : at + width].strip())
            at += width
        if not values[0]:
            continue
        times = ["" if value in {"N/A", "NONE"} else value for value in values[4:8]]
        records[values[0]] = JobRecord(
            values[0],
            values[1],
            values[2],
            int(values[3]) if values[3].isdigit() else 0,
            times[0],
            times[1],
            times[2],
            times[3],
            exit_code=_exit_status(values[9]),
            node=values[8],
        )
    return records


def _exit_status(text: str) -> int | None:
    """Read squeue's exit_code: 'STATUS:SIGNAL' since 23.02, a wait status before (src/squeue/print.c)."""
    status, colon, signal = text.partition(":")
    if not _is_count(status) or (colon and not _is_count(signal)):
        return None
    return int(status) if colon else (int(status) >> 8) & 0xFF


def _is_count(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,10}", text) is not None


def _run_group(
    slurm: Slurm, allocation: Allocation, nodes: tuple[str, ...], gpus: int, timeout: float | None
) -> dict[str, NodeExam]:
    token = f'{secrets.token_hex(4)}, it\'s="quoted" $HOME'
    request = exam_request(nodes, gpus, token, timeout)
    try:
        return judge_step(run_step(slurm, allocation, request), request, gpus, token)
    except StepError as error:
        result = getattr(error, "result", None)
        if not isinstance(result, StepResult):
            result = StepResult(-1, (), error.stderr, 0.0, reproduce_command(allocation, request))
        exams = judge_step(result, request, gpus, token, problem=str(error))
        if 2 * sum(bool(exam.problem) for exam in exams.values()) > len(exams):
            raise  # most nodes: the machine is slow or Slurm is broken, and no node is to blame
        return exams


def _with_state(slurm: Slurm, exams: dict[str, NodeExam]) -> dict[str, NodeExam]:
    # a prolog that fails drains its node after the inventory was read
    slurm.refresh()
    try:
        now = slurm.nodes()
    except SlurmError:
        return exams
    return {
        node: replace(exam, state_after=now[node].why_unavailable()) if exam.problem and node in now else exam
        for node, exam in exams.items()
    }


def _when(text: str) -> datetime:
    return datetime.fromisoformat(text)
