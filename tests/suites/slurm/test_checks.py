"""Machines that were considered for each check of Slurm, judged by a person first, and what they leave open."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    WARNING,
    CounterExample,
    result,
)
from judged import figures, judged
from suite_helpers import considered

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, StuckJob, parse_nodes
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.config.models import GpuProfile, JobLimits, NodeProfile, Profile
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm.diagnostic_step import (
    DiagnosticTask,
    JobFacts,
    Jobs,
    NodeDiagnostic,
    QueuedJob,
    judge_step,
    parse_squeue,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Check, Verdict
    from pytest_gpucluster.core.majority import Norm

STUCK = StuckJob("77", "jane", 600.0, 300.0)
BY_ROOT, BY_SLURM = "[root@2026-01-02T03:04:05]", "[slurm@2026-01-02T03:04:05]"


# --- what Slurm shows


def node(state: str = "IDLE", reason: str = "", **values: str) -> NodeInfo:
    """Return the node of a line of `scontrol show node -o`."""
    shown = {"Gres": "gpu:h200:8", "CPUTot": "224", "RealMemory": "2063937", "Version": "24.05.4", **values}
    text = " ".join(f"{key}={value}" for key, value in shown.items())
    text = f"NodeName=gpu01 Arch=x86_64 {text} State={state} ThreadsPerCore=2"
    (found,) = parse_nodes(text + (f" Reason={reason}" if reason else "") + "\n").values()
    return found


def stuck(state: str, *, unseen: bool = False) -> NodeInfo:
    """Return a node that does not release a job, or whose job Slurm hides."""
    return replace(node(state), stuck=None if unseen else STUCK, ending_unseen=unseen)


def peers(mine: object, usual: object | None) -> Norm[Any]:
    """Return the norm of this node and three others; of this node alone without `usual`."""
    others = {} if usual is None else dict.fromkeys(("n2", "n3", "n4"), usual)
    return norm({"n1": mine, **others})


def profile(kind: str | None = "h200") -> Profile:
    gpu = GpuProfile(count=8, name="NVIDIA H200", gres_type=kind)
    return Profile(name="p", description="", source="t", gpu=gpu)


def cpus(shown: int, usual: int | None = None, stated: int | None = 224) -> tuple[Any, ...]:
    return node(CPUTot=str(shown)), NodeProfile(cpus=stated), peers(shown, usual)


def memory(mebibytes: int, usual: int | None = None) -> tuple[Any, ...]:
    info, stated = node(RealMemory=str(mebibytes)), NodeProfile(memory=2048 << 30)
    return info, stated, peers(mebibytes << 20, usual and usual << 20)


def version(mine: str, controller: str, usual: str | None = None) -> tuple[Any, ...]:
    return node(Version=mine), controller, peers(mine, usual)


def task(rank: int, **values: Any) -> DiagnosticTask:
    """Return a task of the step on a sound node with two GPUs; the first ends with 7, the second by SIGKILL."""
    rc, signal = ((7, None), (137, 9), (0, None), (0, None))[rank]
    base = DiagnosticTask(
        rank, rank, 2, "0", str(rank), (f"/dev/nvidia{rank}",), "tok", stderr_arrived=True, rc=rc, signal=signal
    )
    return replace(base, **{"cpus": frozenset(range(224)), "online": 224, **values})


def step(*tasks: DiagnosticTask, **values: Any) -> NodeDiagnostic:
    count = len(tasks) or 2
    base = NodeDiagnostic("gpu01", count, 2, shared=False, token="tok", tasks=tasks, seconds=1.5, command="srun")
    return replace(base, **values)


GOOD, FOUR = step(task(0), task(1)), step(*map(task, range(4)))
DEAD = step(problem="no task of the step reported: slurmd refused it")


def confined(*of_tasks: set[int], online: int = 224) -> NodeDiagnostic:
    """Return a step whose tasks may use these CPUs."""
    return step(*(task(at, cpus=frozenset(of), online=online) for at, of in enumerate(of_tasks)))


def job(
    state: str = "COMPLETED",
    reason: str = "None",
    rc: int | None = 0,
    start: str = "22:00:02",
    end: str = "22:00:03",
    restarts: int = 0,
    eligible: str = "22:00:02",
) -> QueuedJob:
    """Return a job that was submitted at 22:00:00."""
    submitted, eligible, start, end = (it and f"2026-01-01T{it}" for it in ("22:00:00", eligible, start, end))
    return QueuedJob("7_1", state, reason, restarts, submitted, eligible, start, end, rc, "gpu01")


def waiting(reason: str) -> QueuedJob:
    return job("PENDING", reason, None, "", "")


def jobs(problem: str = "", took: float = 0.1, **records: QueuedJob) -> JobFacts:
    """Return the results of the array 7 and of the dependent job 8."""
    names = {"requeued": "7_0", "element": "7_1", "dependent": "8"}
    known = {names[key]: it for key, it in records.items()}
    return JobFacts(Jobs("7", "8", 2, submitted_in=took), known, problem)


ELEMENT, DEPENDENT = job("FAILED", rc=3), job(rc=5, start="22:00:04", end="22:00:05")
REQUEUED = job("PENDING", "BeginTime", None, "", "", 1)
BUSY = ("Priority", "Resources", "ReqNodeNotAvail, Reserved for maintenance", "QOSMaxJobsPerUserLimit", "AssocGrpGRES")


def ran(**changed: QueuedJob) -> JobFacts:
    records: dict[str, Any] = {"element": ELEMENT, "dependent": DEPENDENT, "requeued": REQUEUED, **changed}
    return jobs(**records)


def queued(reason: str) -> JobFacts:
    return jobs(element=waiting(reason), requeued=waiting(reason), dependent=waiting("Dependency"))


def partition(**values: Any) -> dict[str, PartitionInfo]:
    return {"gpu": PartitionInfo("gpu", "UP", **{"max_time": 86400.0, **values})}


def overrun(text: str) -> StepResult:
    return StepResult(143, (), text, 64.0, "srun --time=1 sleep 300")


A_DAY = {"gpu": JobLimits(max_time=86400.0)}
PROLOG, EPILOG = {"Prolog": "/etc/slurm/prolog.sh"}, {"Epilog": "/etc/slurm/epilog.sh"}
PROLOG_ERROR = node("IDLE+DRAIN", f"Prolog error {BY_SLURM}")
NEW_PROLOG = node("IDLE+DRAIN", f"new prolog version, Jane {BY_ROOT}")
SILENT, DRAINED = f"Not responding {BY_SLURM}", f"RMA 4711, DIMM {BY_ROOT}"
REBOOT = f"Reboot ASAP {BY_ROOT}"
STEPD = "slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***"
BY_SRUN = "srun: error: gpu01: task 0: Terminated\nsrun: Job step aborted: step exceeded its time limit"
SPOKEN = replace(overrun(""), tasks=(TaskResult(0, "gpu01", 143, 15, stderr=f"{STEPD}\n"),))
SHARED_GPU = [task(at, openable=("/dev/nvidia0",)) for at in (0, 1)]
NO_CGROUPS = [task(at, visible=str(at), openable=()) for at in (0, 1)]


Row = tuple[Any, ...]  # expected, machine, source, what the check is given


MACHINES: dict[Check[...], list[Row]] = {
    checks.known: [
        (PASSED, "a node of slurm.conf", "scontrol show node", "gpu01", node()),
        (PASSED, "a dynamic node", "Slinky", "gpu01", node("IDLE+DYNAMIC_NORM")),
        (PASSED, "a FUTURE node", "slurm.conf(5)", "gpu01", node("FUTURE")),
        (CONFIGURE, "not in slurm.conf", "scontrol", "gpu01", None),
    ],
    checks.schedulable: [
        (PASSED, "IDLE+PLANNED", "backfill", node("IDLE+PLANNED")),
        (PASSED, "powered down", "AWS ParallelCluster", node("IDLE+CLOUD+POWERED_DOWN")),
        (PASSED, "powering up", "aws 350", node("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP")),
        (PASSED, "an old reason", "of a drain", node("IDLE+CLOUD", f"Prolog error {BY_SLURM}")),
        (NOT_CHECKED, "reserved", "slurm-prometheus-exporter 10", node("IDLE+MAINTENANCE+RESERVED")),
        (NOT_CHECKED, "off in maintenance", "scontrol", node("DOWN+MAINTENANCE+NOT_RESPONDING", SILENT)),
        (NOT_CHECKED, "silent: slurm.responding", "scontrol", node("IDLE+NOT_RESPONDING")),
        (NOT_CHECKED, "off and drained: slurm.responding", "RMA", node("DOWN+DRAIN+NOT_RESPONDING")),
        (NOT_CHECKED, "drained for its prolog: slurm.prolog", "sinfo -R", PROLOG_ERROR),
        # slurm.responding leaves it alone
        (MONITOR, "restarted by an operator", "scontrol reboot", node("DOWN+REBOOT_ISSUED+NOT_RESPONDING", SILENT)),
        (NOT_CHECKED, "a job does not end: slurm.completing", "squeue", stuck("IDLE+COMPLETING")),
        (MONITOR, "drained", "sinfo -R", node("IDLE+DRAIN", f"bad cable {BY_ROOT}")),
        (MONITOR, "set DOWN", "scontrol update", node("DOWN")),
        (MONITOR, "failing", "IDLE+FAIL", node("IDLE+FAIL")),
        (MONITOR, "registered with less", "INVALID_REG", node("IDLE+INVALID_REG")),
        (MONITOR, "in a reservation", "sinfo -R", node("IDLE+DRAIN+RESERVED", f"xid 79 {BY_SLURM}")),
        (MONITOR, "never started again", "aws 7577", node("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING")),
    ],
    checks.responding: [
        (NOT_CHECKED, "off for maintenance", "scontrol", node("IDLE+MAINTENANCE+NOT_RESPONDING")),
        (MONITOR, "restarted at a ping", "SlurmdTimeout is not reached", node("IDLE+NOT_RESPONDING")),
        (MONITOR, "drained and switched off", "RMA", node("DOWN+DRAIN+NOT_RESPONDING", DRAINED)),
        (MONITOR, "a cloud node", "stopped", node("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", SILENT)),
        (MONITOR, "a cloud node that did not start", "ResumeTimeout", node("DOWN+CLOUD+NOT_RESPONDING")),
        (MONITOR, "slurmctld was restarted", "UNKNOWN", node("UNKNOWN")),
        (NOT_CHECKED, "starts", "power saving", node("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP")),
        (NOT_CHECKED, "reboots", "scontrol reboot", node("IDLE+REBOOT_ISSUED+NOT_RESPONDING")),
        (NOT_CHECKED, "drained to reboot", "ASAP", node("IDLE+DRAIN+REBOOT_ISSUED+NOT_RESPONDING", REBOOT)),
        (PASSED, "set DOWN by an operator, slurmd answers", "scontrol", node("DOWN", f"work {BY_ROOT}")),
        (DRAIN, "set DOWN by slurmctld", "Not responding", node("DOWN+NOT_RESPONDING", SILENT)),
        (DRAIN, "20.11: DOWN*", "elasticluster 272: down*", node("DOWN*", SILENT)),
    ],
    checks.completing: [
        (PASSED, "an epilog of a minute", "COMPLETING", node("MIXED+COMPLETING")),
        (PASSED, "idle", "scontrol", node()),
        (NOT_CHECKED, "PrivateData", "slurm.conf(5)", stuck("IDLE+COMPLETING", unseen=True)),
        (MONITOR, "for ten minutes", "unkillable process", stuck("IDLE+COMPLETING")),
    ],
    checks.gres: [
        (PASSED, "shards", "slurm.conf", node(Gres="gpu:h200:8(S:0-1),shard:h200:32(S:0-1)"), profile()),
        (PASSED, "no type, none stated", "gpu:8", node(Gres="gpu:8"), profile(None)),
        (NOT_APPLICABLE, "no GPUs", "profile", node(), profile().model_copy(update={"gpu": None})),
        (NOT_APPLICABLE, "some in MIG mode", "MIG", node(Gres="gpu:h200:4,gpu:1g.10gb:14"), profile()),
        (CONFIGURE, "seven GPUs", "gres.conf", node(Gres="gpu:h200:7"), profile()),
        (CONFIGURE, "another type", "gres.conf", node(Gres="gpu:h100:8"), profile()),
        (CONFIGURE, "two types", "gres.conf", node(Gres="gpu:h200:4,gpu:h100:4"), profile()),
    ],
    checks.cpus: [
        (WARNING, "Slurm counts cores: CPUs=112", "slurm.conf(5), CPUs", *cpus(112, 112)),
        (PASSED, "CpuSpecList reserves some; CPUTot counts all", "CPUEfctv", *cpus(224, 224)),
        (NOT_APPLICABLE, "no profile", "generic", *cpus(224, None, None)),
        (CONFIGURE, "fewer than its peers", "slurm.conf", *cpus(96, 224)),
        (CONFIGURE, "more than there are", "slurm.conf", *cpus(225, 225)),
    ],
    checks.memory: [
        (WARNING, "80%, the rest for a file system", "Weka client", *memory(1677721, 1677721)),
        (WARNING, "RealMemory is not stated", "radiasoft/sirepo 2136", *memory(1, 1)),
        (PASSED, "a little above the nominal memory", "2.01 TiB installed", *memory(2110000, 2110000)),
        (NOT_APPLICABLE, "no profile", "generic", node(), NodeProfile()),
        (CONFIGURE, "more than there is", "slurm.conf", *memory(3000000, 3000000)),
        (CONFIGURE, "half of its peers", "slurm.conf", *memory(1000000, 2063937)),
    ],
    checks.version: [
        (WARNING, "a rolling upgrade", "guide", *version("23.11.10", "24.05.4", "23.11.10")),
        (WARNING, "ahead by a patch", "24.05.5", *version("24.05.5", "24.05.4", "24.05.4")),
        (PASSED, "as the controller", "scontrol", *version("24.05.4", "24.05.4")),
        (NOT_CHECKED, "not registered since the start", "Version is empty", *version("", "24.05.4")),
        (NOT_CHECKED, "a silent controller", "scontrol", *version("24.05.4", "")),
        (CONFIGURE, "left out of the upgrade", "guide", *version("23.11.10", "24.05.4", "24.05.4")),
        (CONFIGURE, "newer by a release", "upgrades.html", *version("24.11.0", "24.05.4", "24.11.0")),
    ],
    checks.step: [
        (PASSED, "all tasks", "srun", GOOD),
        (PASSED, "four tasks on four GPUs", "srun", FOUR),
        (PASSED, "tasks end in another order", "srun", step(task(1), task(0))),
        (CONFIGURE, "no task started", "slurmd", DEAD),
    ],
    checks.output: [
        (PASSED, "all lines", "srun", GOOD),
        (WARNING, "one line was lost once", "second step", replace(GOOD, first_reports=1)),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "a line is lost twice", "stepd", step(task(0), task(1, stderr_arrived=False))),
    ],
    checks.environment: [
        (PASSED, "as exported", "srun --export", GOOD),
        (PASSED, "of four tasks", "srun --export", FOUR),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "changed", "TaskProlog", step(task(0), task(1, token="x"))),
    ],
    checks.exit_code: [
        (PASSED, "7 and 0", "srun", FOUR),
        (PASSED, "two tasks", "srun", GOOD),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "lost", "wrapper", step(task(0, rc=0), task(1))),
    ],
    checks.signal: [
        (PASSED, "SIGKILL", "srun", GOOD),
        (PASSED, "four tasks", "srun", FOUR),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "lost", "wrapper", step(task(0), task(1, signal=None))),
    ],
    checks.gpu_binding: [
        (PASSED, "one device each, cgroups hide the others", "ConstrainDevices", GOOD),
        (NOT_APPLICABLE, "a node without GPUs", "CPU partition", replace(GOOD, gpus_requested=0)),
        (PASSED, "one GPU for both", "srun", step(*SHARED_GPU, gpus_requested=1, shared=True)),
        (PASSED, "no cgroups", "CUDA_VISIBLE_DEVICES alone", step(*NO_CGROUPS)),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "both tasks on one GPU", "gres.conf", step(*SHARED_GPU)),
    ],
    checks.cpu_affinity: [
        (PASSED, "no binding", "TaskPlugin=none", GOOD),
        (PASSED, "one core each", "task/affinity", confined({0, 112}, {1, 113})),
        (PASSED, "a VM of one CPU with two tasks", "small VM", confined({0}, {0}, online=1)),
        (NOT_CHECKED, "the CPUs are unknown", "/proc", confined(set())),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD),
        (CONFIGURE, "slurmd is confined to one CPU", "systemd", confined({0}, {0})),
    ],
    checks.prolog: [
        (NOT_APPLICABLE, "no Prolog", "slurm.conf", GOOD, node(), {}),
        (PASSED, "a step ran after it", "srun", GOOD, node(), PROLOG),
        (NOT_CHECKED, "drained to change it", "sinfo -R", None, NEW_PROLOG, PROLOG),
        (NOT_CHECKED, "not in Slurm, and no step", "slurm.known", None, None, PROLOG),
        (NOT_CHECKED, "the step did not run", "slurm.step", DEAD, node(), PROLOG),
        (PASSED, "an old reason", "cloud", GOOD, node("IDLE+CLOUD", f"Prolog error {BY_SLURM}"), PROLOG),
        (CONFIGURE, "drained by Slurm", "Prolog error", None, PROLOG_ERROR, PROLOG),
        (CONFIGURE, "drained by Slurm, slurm.conf has changed", "Prolog error", None, PROLOG_ERROR, {}),
        (CONFIGURE, "no launch", "batch job", None, node("IDLE+DRAIN", "Prolog launch failure"), PROLOG),
    ],
    checks.epilog: [
        (PASSED, "released and idle", "scontrol", node(), EPILOG, True),
        (NOT_APPLICABLE, "no Epilog", "slurm.conf", node(), {}, True),
        (PASSED, "an operator tests one", "sinfo -R", node("IDLE+DRAIN", "test epilog"), EPILOG, True),
        (NOT_CHECKED, "not released yet", "the run holds the node", node("ALLOCATED"), EPILOG, False),
        (NOT_CHECKED, "drained by us", "-R", node("IDLE+DRAIN", "gpucluster:slurm.epilog"), EPILOG, True),
        (CONFIGURE, "drained by Slurm", "-R", node("IDLE+DRAIN", "Epilog error"), EPILOG, True),
        (CONFIGURE, "one of several", "23.11", node("IDLE+DRAIN", "Epilog error"), {"Epilog[0]": "/e"}, True),
        (CONFIGURE, "unkillable", "-R", node("IDLE+DRAIN", "Kill task failed"), EPILOG, True),
    ],
    checks.job_start: [
        (PASSED, "at the bound", "squeue", jobs(element=job(start="22:01:02")), 60.0),
        *((NOT_CHECKED, f"a busy cluster: {it}", "reason codes", queued(it), 60.0) for it in BUSY),
        (NOT_CHECKED, "dropped", "MinJobAge", jobs(), 60.0),
        (MONITOR, "started a second late", "scheduler", jobs(element=job(start="22:01:03")), 60.0),
        (MONITOR, "the scheduler does not start it", "PENDING (None)", queued("None"), 60.0),
    ],
    checks.array: [
        (PASSED, "both elements", "squeue", ran()),
        (NOT_CHECKED, "dropped", "MinJobAge", jobs()),
        (NOT_CHECKED, "a busy cluster", "squeue", queued("Resources")),
        (CONFIGURE, "another exit status", "squeue", ran(element=job("FAILED", rc=1))),
        (CONFIGURE, "the first does not start", "squeue", ran(requeued=waiting("None"))),
    ],
    checks.dependency: [
        (PASSED, "one after the other", "squeue", ran()),
        (NOT_CHECKED, "dropped", "MinJobAge", jobs()),
        (PASSED, "at once", "squeue", ran(dependent=job(rc=5, start="22:00:03"))),
        (NOT_CHECKED, "a busy cluster: the first waits", "squeue", queued("Priority")),
        (CONFIGURE, "started before", "squeue", ran(dependent=job(rc=5, start="22:00:01"))),
        (CONFIGURE, "the first never ended", "squeue", ran(element=job(end=""))),
        (CONFIGURE, "the second does not end", "squeue", ran(dependent=job(rc=5, end=""))),
        (CONFIGURE, "another exit status", "squeue", ran(dependent=job(rc=1, start="22:00:04"))),
    ],
    checks.requeue: [
        (PASSED, "once", "squeue", ran()),
        (NOT_CHECKED, "dropped", "MinJobAge", jobs()),
        (NOT_CHECKED, "a busy cluster: not started", "squeue", queued("Resources")),
        (NOT_CHECKED, "it had no time to return", "squeue", ran(requeued=job("RUNNING"))),
        (CONFIGURE, "not requeued", "JobRequeue", ran(requeued=job("FAILED", rc=9))),
        (CONFIGURE, "twice", "squeue", ran(requeued=replace(REQUEUED, restarts=2))),
    ],
    checks.begin: [
        (PASSED, "on time", "squeue", ran()),
        (NOT_CHECKED, "dropped", "MinJobAge", jobs()),
        (NOT_CHECKED, "a busy cluster", "squeue", queued("Priority")),
        # sbatch and slurmctld round down to seconds
        (NOT_CHECKED, "sbatch took 1.9 s", "load", jobs(took=1.9, element=job(eligible="22:00:00"))),
        (NOT_CHECKED, "its clock is behind", "NTP", jobs(element=job(eligible="21:59:59"))),
        (PASSED, "a slow sbatch, in time", "load", jobs(took=1.9, element=job(eligible="22:00:01"))),
        (CONFIGURE, "started before", "slurmctld", jobs(element=job(start="22:00:01"))),
        (CONFIGURE, "as without --begin", "squeue", jobs(took=1.0, element=job(eligible="22:00:00"))),
        (CONFIGURE, "it still waits", "squeue", jobs(element=waiting("BeginTime"))),
    ],
    checks.limits: [
        (NOT_APPLICABLE, "none stated", "cluster file", {}, {}),
        (PASSED, "as stated", "scontrol show partition", partition(), A_DAY),
        (PASSED, "more time than is stated for another", "cluster file", partition(), {"gpu": JobLimits()}),
        (CONFIGURE, "changed", "scontrol update", partition(max_time=3600.0), A_DAY),
        (CONFIGURE, "fewer nodes", "MaxNodes", partition(max_nodes=1), {"gpu": JobLimits(max_nodes=2)}),
        (CONFIGURE, "another state", "State", {"gpu": PartitionInfo("gpu", "DOWN")}, {"gpu": JobLimits()}),
        (CONFIGURE, "no such partition", "scontrol", partition(), {"q": JobLimits()}),
    ],
    checks.time_limit: [
        (PASSED, "slurmstepd names it", "22.05", overrun(STEPD)),
        (PASSED, "slurmstepd names it through the task", "22.05.8: sleep 300", SPOKEN),
        (PASSED, "srun names it", "srun: Force Terminated job", overrun(BY_SRUN)),
        (CONFIGURE, "not ended", "OverTimeLimit", overrun("")),
    ],
}
MILD = {checks.responding}  # it watches healthy nodes too
COUNTER_EXAMPLES = [
    CounterExample(
        check.name,
        machine,
        source,
        expected,
        partial(check, *given),
        sick=expected in (CONFIGURE, DRAIN) or (expected == MONITOR and check not in MILD),
    )
    for check, rows in MACHINES.items()
    for expected, machine, source, *given in rows
]
test_a_machine_gets_the_verdict_of_a_person = considered(COUNTER_EXAMPLES)


def test_of_a_node_that_slurm_does_not_know_nothing_is_judged() -> None:
    for verdict in (
        checks.schedulable(None),
        checks.responding(None),
        checks.completing(None),
        checks.gres(None, profile()),
        checks.cpus(None, NodeProfile()),
        checks.memory(None, NodeProfile()),
        checks.version(None, "25.11.0"),
        checks.epilog(None, EPILOG, released=True),
    ):
        assert result(verdict) == NOT_CHECKED, verdict.check


def test_names_of_mig_instances() -> None:
    for gres in ("nvidia_a100_1g.5gb", "1c.3g.20gb", "7G.80GB"):
        assert NodeInfo("gpu01", "IDLE", gres={f"gpu:{gres}": 7}).allocates_mig
    for gres in ("2080ti", "xg.5gb", "g.5gb", "1g.gb", "1g.xgb", "1gx5gb"):
        assert not NodeInfo("gpu01", "IDLE", gres={f"gpu:{gres}": 7}).allocates_mig


@pytest.mark.parametrize(("gib", "expected"), [(84.9, WARNING), (85, PASSED), (105, PASSED), (105.1, CONFIGURE)])
def test_memory_is_85_to_105_percent_of_the_profile(gib: float, expected: str) -> None:
    info = replace(node(), memory=int(gib * 2**30))
    verdict = checks.memory(info, NodeProfile(memory=100 * 2**30))
    assert judged(verdict) == (expected, ["RealMemory"] if expected != PASSED else [])
    assert [figures(str(one.expected)) for one in verdict.findings + verdict.advisories] in ([], [[85, 105]])


# --- the step


@pytest.mark.parametrize(
    ("judge", "diagnostic", "part", "measured"),
    [
        (checks.step, step(task(0), tasks_requested=2), "step", "local tasks 0"),
        (checks.output, step(task(0), tasks_requested=2), "stdout", "1 task"),
        (checks.exit_code, step(task(1)), "local task 0", "no report"),
        (checks.exit_code, step(task(0), task(2, rc=1)), "task 2", "exit status 1"),
        (checks.signal, step(task(0)), "local task 1", "no report"),
        (checks.gpu_binding, step(task(0, visible="unset", openable=())), "task 0", "0 devices"),
        (checks.gpu_binding, step(task(0, visible="0,1")), "task 0", "2 devices"),
        (checks.cpu_affinity, confined({3, 12}, {12}, {3}), "step", "2 CPUs (3, 12) for 3 tasks"),
    ],
)
def test_what_a_diagnostic_step_finds(
    judge: Callable[[NodeDiagnostic], Verdict], diagnostic: NodeDiagnostic, part: str, measured: str
) -> None:
    verdict = judge(diagnostic)
    assert judged(verdict) == (CONFIGURE, [part])
    assert str(verdict.findings[0].measured).startswith(measured)


@pytest.mark.parametrize("values", [{"code": "prolog"}, {"out_after": "Prolog error", "state_after": "DRAINED"}])
def test_a_prolog_that_kept_the_step_from_starting_is_found(values: dict[str, str]) -> None:
    verdict = checks.prolog(step(problem="x", **values), node(), PROLOG)
    assert judged(verdict) == (CONFIGURE, ["Prolog"])
    assert str(verdict.findings[0].measured) == values.get("state_after", "x")
    words = step(problem="Slurm runs TaskProlog /x inside the container", code="task_prolog")
    assert result(checks.prolog(words, node(), PROLOG)) == NOT_CHECKED


@pytest.mark.parametrize(
    ("visible", "openable", "devices"),
    [
        ("0", ("5",), ("5",)),
        ("3", ("0",), ("3",)),  # not renumbered: no cgroup hides the others
        ("unset", (), ()),
    ],
)
def test_devices_that_open_count_where_they_are_as_many_as_named(
    visible: str, openable: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    assert checks.devices_of(task(0, visible=visible, openable=openable)) == devices


def reported(rank: int, node: str, **told: str) -> TaskResult:
    """Make a task of the diagnostic step that tells these variables."""
    own = {"procid": str(rank), "local": "0", "ntasks": "2", "cpus": "0-1", **told}
    line = f"diagnostic|{own['procid']}|{node}|{own['local']}|{own['ntasks']}|0|0||{own['cpus']}|0-1|tok|end\n"
    return TaskResult(rank, node, 7, None, stdout=line, stderr=f"diagnostic-err|{own['procid']}|end\n")


def read_step(*tasks: TaskResult) -> dict[str, NodeDiagnostic]:
    request = StepRequest(argv=("true",), nodes=("gpu01", "gpu02"), ntasks_per_node=2)
    return judge_step(StepResult(7, tasks, "", 1.0, "srun"), request, 0, "tok")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"procid": ""}, "SLURM_PROCID"),
        ({"procid": "5"}, "SLURM_PROCID"),
        ({"local": ""}, "SLURM_LOCALID"),
        ({"ntasks": "0"}, "SLURM_NTASKS"),
    ],
)
def test_a_variable_that_a_task_prolog_took_is_named_there_alone(changed: dict[str, str], named: str) -> None:
    good = (reported(1, "gpu02"), reported(2, "gpu02", local="1"))
    found = read_step(reported(0, "gpu01", **changed), *good)
    verdict = checks.step(found["gpu01"])
    assert judged(verdict) == (CONFIGURE, ["task 0"])
    assert named in str(verdict.findings[0].measured)
    assert judged(checks.step(found["gpu02"])) == (PASSED, [])


@pytest.mark.parametrize(("cpus", "read"), [("0-1", {0, 1}), ("", set()), ("0-1,?", set())])
def test_a_damaged_list_of_cpus_counts_as_unknown(cpus: str, read: set[int]) -> None:
    (found,) = read_step(reported(0, "gpu01", cpus=cpus))["gpu01"].tasks
    assert found.cpus == read


# --- jobs


# squeue's columns of the diagnostic step as recorded; `{}` is exit_code
LISTED = (
    "1_1                           FAILED              NonZeroExitCode                         0         "
    "2026-11-21T22:34:29      2026-11-21T22:34:31      2026-11-21T22:34:31      2026-11-21T22:34:31      "
    "gpu01                                                                           {}"
)


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("768         ", 3),  # 22.05.8: a wait status
        ("3:0         ", 3),  # 23.11.11, 25.11.7: exit status and signal (since 23.02)
        ("9           ", 0),  # 22.05: ended by SIGKILL
        ("0:9         ", 0),
        ("", None),  # since 23.02, where it is not known
        ("3:", None),
    ],
)
def test_squeues_exit_code_is_read_as_each_version_writes_it(shown: str, code: int | None) -> None:
    (record,) = parse_squeue(LISTED.format(shown) + "\n").values()
    assert (record.job, record.state, record.node, record.exit_code) == ("1_1", "FAILED", "gpu01", code)
    assert (record.submitted, record.ended) == ("2026-11-21T22:34:29", "2026-11-21T22:34:31")


def test_jobs_that_slurm_could_not_show_are_not_judged() -> None:
    late = partial(checks.job_start, max_job_start=1.0)
    for judge in (checks.array, checks.dependency, checks.requeue, checks.begin, late):
        verdict = judge(jobs("no squeue"))
        assert (result(verdict), verdict.reason) == (NOT_CHECKED, "no squeue")


@pytest.mark.parametrize(
    ("left_to", "info"),
    [
        (checks.responding, node("IDLE+NOT_RESPONDING")),
        (checks.responding, node("DOWN+DRAIN+NOT_RESPONDING")),
        (lambda info: checks.prolog(None, info, {}), PROLOG_ERROR),
        (checks.completing, stuck("IDLE+COMPLETING")),
    ],
)
def test_a_node_is_left_to_a_check_that_has_a_finding(left_to: Any, info: Any) -> None:
    verdict = left_to(info)
    assert verdict.findings
    assert verdict.check in checks.schedulable(info).reason
