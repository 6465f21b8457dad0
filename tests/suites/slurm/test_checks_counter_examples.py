"""Machines that were considered for each check of Slurm, judged by a person first."""

from __future__ import annotations

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
    assert_as_expected,
    name,
)

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, StuckJob, parse_nodes
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.config.models import GpuProfile, JobLimits, NodeProfile, Profile
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm.diagnostic_step import (
    DiagnosticTask,
    JobFacts,
    JobRecord,
    Jobs,
    NodeDiagnostic,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.majority import Norm

Row = tuple[str, str, str, str, "Callable[[], Verdict]"]


# --- what Slurm shows


def peers(mine: object, usual: object | None) -> Norm[Any]:
    """Return the norm of this node and three others; of this node alone without `usual`."""
    others = {} if usual is None else dict.fromkeys(("n2", "n3", "n4"), usual)
    return norm({"n1": mine, **others})


def node(state: str = "IDLE", reason: str = "", **values: str) -> NodeInfo:
    """Return the node of a line of `scontrol show node -o`."""
    shown = {"Gres": "gpu:h200:8", "CPUTot": "224", "RealMemory": "2063937", "Version": "24.05.4", **values}
    text = " ".join(f"{key}={value}" for key, value in shown.items())
    text = f"NodeName=gpu01 Arch=x86_64 {text} State={state} ThreadsPerCore=2"
    (found,) = parse_nodes(text + (f" Reason={reason}" if reason else "") + "\n").values()
    return found


def gres(shown: str, kind: str | None = "h200") -> Verdict:
    gpu = GpuProfile(count=8, name="NVIDIA H200", gres_type=kind)
    return checks.gres(node(Gres=shown), Profile(name="p", description="", source="t", gpu=gpu))


def cpus(shown: int, usual: int | None = None, profile: int | None = 224) -> Verdict:
    return checks.cpus(node(CPUTot=str(shown)), NodeProfile(cpus=profile), peers(shown, usual))


def memory(mebibytes: int, usual: int | None = None, profile: int | None = 2048) -> Verdict:
    stated = None if profile is None else profile << 30
    return checks.memory(
        node(RealMemory=str(mebibytes)),
        NodeProfile(memory=stated),
        peers(mebibytes << 20, usual and usual << 20),
    )


def version(mine: str, controller: str, usual: str | None = None) -> Verdict:
    return checks.version(node(Version=mine), controller, peers(mine, usual))


def task(rank: int, **values: Any) -> DiagnosticTask:
    """Return a task of the step on a sound node with two GPUs; the first ends with 7, the second by SIGKILL."""
    rc, signal = ((7, None), (137, 9), (0, None), (0, None))[rank]
    usual: dict[str, Any] = {
        "visible": "0", "step_gpus": str(rank), "openable": (f"/dev/nvidia{rank}",), "token": "tok",
        "stderr_arrived": True, "rc": rc, "signal": signal, "cpus": frozenset(range(224)), "online": 224,
    }  # fmt: skip
    return DiagnosticTask(rank, rank, 2, **{**usual, **values})


def step(*tasks: DiagnosticTask, gpus: int = 2, shared: bool = False, **values: Any) -> NodeDiagnostic:
    return NodeDiagnostic("gpu01", len(tasks) or 2, gpus, shared, "tok", tasks, 1.0, "srun", **values)


GOOD = step(task(0), task(1))
DEAD = step(problem="no task of the step reported: slurmd refused it")


def jobs(problem: str = "", took: float = 0.1, **records: JobRecord) -> JobFacts:
    """Return the results of the array 7 and of the dependent job 8."""
    names = {"requeued": "7_0", "element": "7_1", "dependent": "8"}
    return JobFacts(
        Jobs("7", "8", 2, submitted_in=took), {names[key]: it for key, it in records.items()}, problem
    )


def job(
    state: str = "COMPLETED",
    reason: str = "None",
    rc: int | None = 0,
    start: str = "22:00:02",
    end: str = "22:00:03",
    restarts: int = 0,
) -> JobRecord:
    day = "2026-01-01T"
    return JobRecord(
        "7_1",
        state,
        reason,
        restarts,
        f"{day}22:00:00",
        f"{day}22:00:02",
        start and day + start,
        end and day + end,
        rc,
        "gpu01",
    )


def waiting(reason: str) -> JobRecord:
    return job("PENDING", reason, None, "", "")


RAN: dict[str, Any] = {
    "element": job("FAILED", rc=3),
    "dependent": job(rc=5, start="22:00:04"),
    "requeued": job("PENDING", "BeginTime", None, "", "", 1),
}
BUSY = (
    "Priority",
    "Resources",
    "ReqNodeNotAvail, Reserved for maintenance",
    "QOSMaxJobsPerUserLimit",
    "AssocGrpGRES",
)


def jobs_of(check: Callable[..., Verdict], reason: str, *more: Any) -> Verdict:
    return check(
        jobs(element=waiting(reason), requeued=waiting(reason), dependent=waiting("Dependency")), *more
    )


def prolog(
    info: NodeInfo, found: NodeDiagnostic | None = GOOD, script: str = "/etc/slurm/prolog.sh"
) -> Verdict:
    return checks.prolog(found, info, {"Prolog": script} if script else {})


def epilog(info: NodeInfo, *, released: bool = True, script: str = "/etc/slurm/epilog.sh") -> Verdict:
    return checks.epilog(info, {"Epilog": script} if script else {}, released)


def partition(**values: Any) -> Verdict:
    found = PartitionInfo("gpu", "UP", **{"max_time": 86400.0, **values})
    return checks.limits({"gpu": found}, {"gpu": JobLimits(max_time=86400.0)})


def overrun(text: str) -> Verdict:
    return checks.time_limit(StepResult(143, (), text, 64.0, "srun --time=1 sleep 300"))


BY_ROOT = "[root@2026-01-02T03:04:05]"
BY_SLURM = "[slurm@2026-01-02T03:04:05]"

HEALTHY: tuple[Row, ...] = (
    ("slurm.known", "a node of slurm.conf", "scontrol show node", PASSED, lambda: checks.known("gpu01", node())),
    ("slurm.known", "a dynamic node", "IDLE+DYNAMIC_NORM, Slinky", PASSED, lambda: checks.known("gpu01", node("IDLE+DYNAMIC_NORM"))),
    ("slurm.known", "a FUTURE node", "slurm.conf(5)", PASSED, lambda: checks.known("gpu01", node("FUTURE"))),
    ("slurm.schedulable", "IDLE+PLANNED", "backfill", PASSED, lambda: checks.schedulable(node("IDLE+PLANNED"))),
    ("slurm.schedulable", "IDLE+DYNAMIC_NORM", "Slinky, soperator", PASSED, lambda: checks.schedulable(node("IDLE+DYNAMIC_NORM"))),
    ("slurm.schedulable", "IDLE+CLOUD+POWERED_DOWN", "AWS ParallelCluster", PASSED, lambda: checks.schedulable(node("IDLE+CLOUD+POWERED_DOWN"))),
    ("slurm.schedulable", "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "aws-parallelcluster-node 350", PASSED, lambda: checks.schedulable(node("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"))),
    ("slurm.schedulable", "IDLE+MAINTENANCE+RESERVED", "slurm-prometheus-exporter 10", NOT_CHECKED, lambda: checks.schedulable(node("IDLE+MAINTENANCE+RESERVED"))),
    ("slurm.schedulable", "powered off in a maintenance reservation", "DOWN+MAINTENANCE+NOT_RESPONDING+RESERVED", NOT_CHECKED, lambda: checks.schedulable(node("DOWN+MAINTENANCE+NOT_RESPONDING+RESERVED", f"Not responding {BY_SLURM}"))),
    ("slurm.schedulable", "IDLE+BLOCKED by an exclusive topology job", "Slurm 23.11", PASSED, lambda: checks.schedulable(node("IDLE+BLOCKED"))),
    ("slurm.responding", "powered off in a maintenance reservation", "IDLE+MAINTENANCE+NOT_RESPONDING", NOT_CHECKED, lambda: checks.responding(node("IDLE+MAINTENANCE+NOT_RESPONDING"))),
    ("slurm.responding", "down in a maintenance reservation", "DOWN+MAINTENANCE+NOT_RESPONDING", NOT_CHECKED, lambda: checks.responding(node("DOWN+MAINTENANCE+NOT_RESPONDING", f"Not responding {BY_SLURM}"))),
    ("slurm.responding", "slurmd is restarted at the moment of a ping", "IDLE+NOT_RESPONDING: SlurmdTimeout is not reached", MONITOR, lambda: checks.responding(node("IDLE+NOT_RESPONDING"))),
    ("slurm.responding", "20.11: IDLE*", "sinfo idle*", MONITOR, lambda: checks.responding(node("IDLE*"))),
    ("slurm.responding", "drained by an operator and switched off", "RMA", MONITOR, lambda: checks.responding(node("DOWN+DRAIN+NOT_RESPONDING", f"RMA 4711, DIMM {BY_ROOT}"))),
    ("slurm.responding", "drained and switched off, since 23.02", "Slurm appends to the reason", MONITOR, lambda: checks.responding(node("DOWN+DRAIN+NOT_RESPONDING", f"RMA 4711 : Not responding {BY_ROOT}"))),
    ("slurm.responding", "a cloud node whose slurmd stopped first", "DOWN+CLOUD+POWERED_DOWN", MONITOR, lambda: checks.responding(node("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", f"Not responding {BY_SLURM}"))),
    ("slurm.responding", "a cloud node that did not start", "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING: ResumeTimeout reached", MONITOR, lambda: checks.responding(node("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", f"ResumeTimeout reached {BY_SLURM}"))),
    ("slurm.responding", "slurmctld was restarted", "UNKNOWN", MONITOR, lambda: checks.responding(node("UNKNOWN"))),
    ("slurm.responding", "reboots", "IDLE+REBOOT_ISSUED+NOT_RESPONDING", NOT_CHECKED, lambda: checks.responding(node("IDLE+REBOOT_ISSUED+NOT_RESPONDING"))),
    ("slurm.responding", "reboots while drained for it", "IDLE+DRAIN+REBOOT_ISSUED+NOT_RESPONDING", NOT_CHECKED, lambda: checks.responding(node("IDLE+DRAIN+REBOOT_ISSUED+NOT_RESPONDING", f"Reboot ASAP {BY_ROOT}"))),
    ("slurm.responding", "reboots: slurmctld set it DOWN meanwhile", "DOWN+REBOOT_ISSUED: scontrol reboot", NOT_CHECKED, lambda: checks.responding(node("DOWN+REBOOT_ISSUED+NOT_RESPONDING", f"Reboot ASAP {BY_ROOT}"))),
    ("slurm.responding", "set DOWN by an operator, slurmd answers", "scontrol update State=DOWN", PASSED, lambda: checks.responding(node("DOWN", f"maintenance {BY_ROOT}"))),
    ("slurm.completing", "an epilog of a minute", "COMPLETING", PASSED, lambda: checks.completing(node("MIXED+COMPLETING"))),
    ("slurm.completing", "idle", "scontrol", PASSED, lambda: checks.completing(node())),
    ("slurm.completing", "PrivateData hides the job", "slurm.conf(5)", NOT_CHECKED, lambda: checks.completing(stuck(unseen=True))),
    ("slurm.gres", "shards beside the GPUs", "gpu:h200:8,shard:h200:32", PASSED, lambda: gres("gpu:h200:8(S:0-1),shard:h200:32(S:0-1)")),
    ("slurm.gres", "MPS beside the GPUs", "gpu:h200:8,mps:h200:800", PASSED, lambda: gres("gpu:h200:8,mps:h200:800")),
    ("slurm.gres", "no type, none stated", "gpu:8", PASSED, lambda: gres("gpu:8", None)),
    ("slurm.cpus", "Slurm counts cores: CPUs=112", "slurm.conf(5), CPUs", WARNING, lambda: cpus(112, 112)),
    ("slurm.cpus", "CpuSpecList reserves some; CPUTot counts all", "CPUEfctv", PASSED, lambda: cpus(224, 224)),
    ("slurm.cpus", "no profile", "generic", NOT_APPLICABLE, lambda: cpus(224, None, None)),
    ("slurm.memory", "80% of the memory, the rest for a file system", "Weka client", WARNING, lambda: memory(1677721, 1677721)),
    ("slurm.memory", "RealMemory is not stated", "RealMemory=1: radiasoft/sirepo 2136", WARNING, lambda: memory(1, 1)),
    ("slurm.memory", "a little above the nominal memory", "2 TiB nominal, 2.01 installed", PASSED, lambda: memory(2110000, 2110000)),
    ("slurm.version", "a rolling upgrade: nodes still 23.11", "upgrades: slurmd may be two major releases older", WARNING, lambda: version("23.11.10", "24.05.4", "23.11.10")),
    ("slurm.version", "ahead of the controller by a patch", "24.05.5 and 24.05.4", WARNING, lambda: version("24.05.5", "24.05.4", "24.05.4")),
    ("slurm.version", "not registered since the start of slurmctld", "Version is empty", NOT_CHECKED, lambda: version("", "24.05.4")),
    ("slurm.step", "all tasks", "srun", PASSED, lambda: checks.step(GOOD)),
    ("slurm.step", "four tasks on four GPUs", "srun", PASSED, lambda: checks.step(step(task(0), task(1), task(2), task(3)))),
    ("slurm.step", "tasks end in another order", "srun", PASSED, lambda: checks.step(step(task(1), task(0)))),
    ("slurm.output", "all lines", "srun", PASSED, lambda: checks.output(GOOD)),
    ("slurm.output", "a loaded login node lost one line once", "second step", WARNING, lambda: checks.output(step(task(0), task(1), first_reports=1))),
    ("slurm.output", "the step did not run", "slurm.step", NOT_CHECKED, lambda: checks.output(DEAD)),
    ("slurm.environment", "as exported", "srun --export", PASSED, lambda: checks.environment(GOOD)),
    ("slurm.environment", "the step did not run", "slurm.step", NOT_CHECKED, lambda: checks.environment(DEAD)),
    ("slurm.environment", "a site adds variables", "TaskProlog", PASSED, lambda: checks.environment(step(task(0), task(1)))),
    ("slurm.exit_code", "7 and 0", "srun", PASSED, lambda: checks.exit_code(step(task(0), task(1), task(2)))),
    ("slurm.exit_code", "two tasks", "srun", PASSED, lambda: checks.exit_code(GOOD)),
    ("slurm.exit_code", "the step did not run", "slurm.step", NOT_CHECKED, lambda: checks.exit_code(DEAD)),
    ("slurm.signal", "SIGKILL", "srun", PASSED, lambda: checks.signal(GOOD)),
    ("slurm.signal", "the step did not run", "slurm.step", NOT_CHECKED, lambda: checks.signal(DEAD)),
    ("slurm.signal", "four tasks", "srun", PASSED, lambda: checks.signal(step(task(0), task(1), task(2), task(3)))),
    ("slurm.gpu_binding", "one device each, cgroups hide the others", "ConstrainDevices", PASSED, lambda: checks.gpu_binding(GOOD)),
    ("slurm.gpu_binding", "a node without GPUs", "CPU partition", NOT_APPLICABLE, lambda: checks.gpu_binding(step(task(0), task(1), gpus=0))),
    ("slurm.gpu_binding", "one GPU for both tasks", "--gpus-per-node=1", PASSED, lambda: checks.gpu_binding(step(task(0), task(1), gpus=1, shared=True))),
    ("slurm.gpu_binding", "no cgroups: CUDA_VISIBLE_DEVICES alone", "ConstrainDevices=no", PASSED, lambda: checks.gpu_binding(step(task(0, visible="0", openable=()), task(1, visible="1", openable=())))),
    ("slurm.cpu_affinity", "no binding", "TaskPlugin=none", PASSED, lambda: checks.cpu_affinity(GOOD)),
    ("slurm.cpu_affinity", "one core each", "task/affinity", PASSED, lambda: checks.cpu_affinity(step(task(0, cpus=frozenset({0, 112})), task(1, cpus=frozenset({1, 113}))))),
    ("slurm.cpu_affinity", "a VM of one CPU with two tasks", "small VM", PASSED, lambda: checks.cpu_affinity(step(task(0, cpus=frozenset({0}), online=1), task(1, cpus=frozenset({0}), online=1)))),
    ("slurm.prolog", "no Prolog", "slurm.conf", NOT_APPLICABLE, lambda: prolog(node(), script="")),
    ("slurm.prolog", "a step ran after it", "srun", PASSED, lambda: prolog(node())),
    ("slurm.prolog", "an operator drained the node to change the prolog", "sinfo -R", NOT_CHECKED, lambda: prolog(node("IDLE+DRAIN", f"new prolog version, Jane {BY_ROOT}"), None)),
    ("slurm.prolog", "the reason of an earlier drain remains in service", "cloud node", PASSED, lambda: prolog(node("IDLE+CLOUD", f"Prolog error {BY_SLURM}"))),
    ("slurm.epilog", "released and idle", "scontrol", PASSED, lambda: epilog(node())),
    ("slurm.epilog", "no Epilog", "slurm.conf", NOT_APPLICABLE, lambda: epilog(node(), script="")),
    ("slurm.epilog", "an operator tests a new epilog", "sinfo -R", PASSED, lambda: epilog(node("IDLE+DRAIN", f"testing epilog change {BY_ROOT}"))),
    ("slurm.epilog", "not released yet", "the run holds the node", NOT_CHECKED, lambda: epilog(node("ALLOCATED"), released=False)),
    *(("slurm.job_start", f"a busy cluster: {reason}", "squeue, job reason codes", NOT_CHECKED, lambda reason=reason: jobs_of(checks.job_start, reason, 60.0)) for reason in BUSY),
    *(("slurm.array", f"a busy cluster: {reason}", "squeue, job reason codes", NOT_CHECKED, lambda reason=reason: jobs_of(checks.array, reason)) for reason in BUSY),
    ("slurm.dependency", "a busy cluster: the first waits", "squeue", NOT_CHECKED, lambda: jobs_of(checks.dependency, "Priority")),
    ("slurm.dependency", "slurmctld has dropped the jobs", "MinJobAge", NOT_CHECKED, lambda: checks.dependency(jobs())),
    ("slurm.dependency", "a busy cluster: the second waits", "squeue", NOT_CHECKED, lambda: checks.dependency(jobs(element=job("FAILED", rc=3), dependent=waiting("Priority")))),
    ("slurm.requeue", "once", "squeue", PASSED, lambda: checks.requeue(jobs(**RAN))),
    ("slurm.requeue", "a busy cluster: not started", "squeue", NOT_CHECKED, lambda: jobs_of(checks.requeue, "Resources")),
    ("slurm.requeue", "dropped", "MinJobAge", NOT_CHECKED, lambda: checks.requeue(jobs())),
    ("slurm.begin", "on time", "squeue", PASSED, lambda: checks.begin(jobs(**RAN))),
    ("slurm.begin", "a busy cluster", "squeue", NOT_CHECKED, lambda: jobs_of(checks.begin, "Priority")),
    ("slurm.begin", "sbatch took 5 s", "loaded slurmctld", NOT_CHECKED, lambda: checks.begin(jobs(took=5.0, element=past()))),
    ("slurm.limits", "none stated", "cluster file", NOT_APPLICABLE, lambda: checks.limits({}, {})),
    ("slurm.limits", "as stated", "scontrol show partition", PASSED, partition),
    ("slurm.limits", "a key that is not stated may differ", "DefaultTime", PASSED, lambda: partition(default_time=60.0)),
    ("slurm.time_limit", "slurmstepd names it", "22.05", PASSED, lambda: overrun("slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***")),
    ("slurm.time_limit", "srun names it", "srun: Force Terminated job", PASSED, lambda: overrun("srun: error: gpu01: task 0: Terminated\nsrun: Job step aborted: step exceeded its time limit")),
    ("slurm.time_limit", "after KillWait", "SIGTERM, then SIGKILL", PASSED, lambda: overrun("error: *** STEP 7.0 CANCELLED DUE TO TIME LIMIT ***\nsrun: error: gpu01: task 0: Killed")),
)  # fmt: skip

SICK: tuple[Row, ...] = (
    ("slurm.known", "not in slurm.conf", "scontrol", CONFIGURE, lambda: checks.known("gpu01", None)),
    ("slurm.schedulable", "drained", "sinfo -R", MONITOR, lambda: checks.schedulable(node("IDLE+DRAIN", f"bad cable {BY_ROOT}"))),
    ("slurm.schedulable", "registered with less", "INVALID_REG", MONITOR, lambda: checks.schedulable(node("IDLE+INVALID_REG"))),
    ("slurm.schedulable", "drained within a reservation", "sinfo -R", MONITOR, lambda: checks.schedulable(node("IDLE+DRAIN+RESERVED", f"gpu xid 79 {BY_SLURM}"))),
    ("slurm.schedulable", "never started again", "aws-parallelcluster 7577: IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", MONITOR, lambda: checks.schedulable(node("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING"))),
    ("slurm.responding", "set DOWN by slurmctld", "Not responding", DRAIN, lambda: checks.responding(node("DOWN+NOT_RESPONDING", f"Not responding {BY_SLURM}"))),
    ("slurm.responding", "20.11: DOWN*", "elasticluster 272: down*", DRAIN, lambda: checks.responding(node("DOWN*", f"Not responding {BY_SLURM}"))),
    ("slurm.completing", "for ten minutes", "unkillable process", MONITOR, lambda: checks.completing(stuck())),
    ("slurm.gres", "seven GPUs", "gres.conf", CONFIGURE, lambda: gres("gpu:h200:7")),
    ("slurm.gres", "another type", "gres.conf", CONFIGURE, lambda: gres("gpu:h100:8")),
    ("slurm.cpus", "fewer than its peers", "slurm.conf", CONFIGURE, lambda: cpus(96, 224)),
    ("slurm.cpus", "more than there are", "slurm.conf", CONFIGURE, lambda: cpus(256, 256)),
    ("slurm.memory", "more than there is", "slurm.conf", CONFIGURE, lambda: memory(3000000, 3000000)),
    ("slurm.memory", "half of its peers", "slurm.conf", CONFIGURE, lambda: memory(1000000, 2063937)),
    ("slurm.version", "left out of the upgrade", "rolling upgrade", CONFIGURE, lambda: version("23.11.10", "24.05.4", "24.05.4")),
    ("slurm.version", "newer than the controller by a release", "upgrades.html: not supported", CONFIGURE, lambda: version("24.11.0", "24.05.4", "24.11.0")),
    ("slurm.step", "no task started", "slurmd", CONFIGURE, lambda: checks.step(DEAD)),
    ("slurm.output", "a line is lost twice", "slurmstepd", CONFIGURE, lambda: checks.output(step(task(0), task(1, stderr_arrived=False)))),
    ("slurm.environment", "changed", "TaskProlog", CONFIGURE, lambda: checks.environment(step(task(0), task(1, token="x")))),
    ("slurm.exit_code", "lost", "wrapper", CONFIGURE, lambda: checks.exit_code(step(task(0, rc=0), task(1)))),
    ("slurm.signal", "lost", "wrapper", CONFIGURE, lambda: checks.signal(step(task(0), task(1, signal=None)))),
    ("slurm.gpu_binding", "both tasks on one GPU", "gres.conf", CONFIGURE, lambda: checks.gpu_binding(step(task(0, openable=("/dev/nvidia0",)), task(1, openable=("/dev/nvidia0",))))),
    ("slurm.cpu_affinity", "slurmd is confined to one CPU", "systemd", CONFIGURE, lambda: checks.cpu_affinity(step(task(0, cpus=frozenset({0})), task(1, cpus=frozenset({0}))))),
    ("slurm.prolog", "drained by Slurm", "Prolog error", CONFIGURE, lambda: prolog(node("IDLE+DRAIN", f"Prolog error {BY_SLURM}"), None)),
    ("slurm.prolog", "the launch failed", "batch job: prolog launch failure", CONFIGURE, lambda: prolog(node("IDLE+DRAIN", f"Prolog launch failure {BY_SLURM}"), None)),
    ("slurm.epilog", "drained by Slurm", "Epilog error", CONFIGURE, lambda: epilog(node("IDLE+DRAIN", f"Epilog error {BY_SLURM}"))),
    ("slurm.epilog", "processes cannot be killed", "Kill task failed", CONFIGURE, lambda: epilog(node("IDLE+DRAIN", f"Kill task failed {BY_SLURM}"))),
    ("slurm.job_start", "started after ten minutes", "scheduler", MONITOR, lambda: checks.job_start(jobs(element=job(start="22:10:02")), 60.0)),
    ("slurm.job_start", "the scheduler does not start it", "PENDING (None)", MONITOR, lambda: jobs_of(checks.job_start, "None", 60.0)),
    ("slurm.array", "another exit status", "squeue", CONFIGURE, lambda: checks.array(jobs(**{**RAN, "element": job("FAILED", rc=1)}))),
    ("slurm.dependency", "started before", "squeue", CONFIGURE, lambda: checks.dependency(jobs(**{**RAN, "dependent": job(rc=5, start="22:00:01")}))),
    ("slurm.requeue", "not requeued", "JobRequeue", CONFIGURE, lambda: checks.requeue(jobs(**{**RAN, "requeued": job("FAILED", rc=9)}))),
    ("slurm.begin", "started before", "slurmctld", CONFIGURE, lambda: checks.begin(jobs(element=job(start="22:00:01")))),
    ("slurm.limits", "changed", "scontrol update", CONFIGURE, lambda: partition(max_time=3600.0)),
    ("slurm.time_limit", "not ended", "OverTimeLimit", CONFIGURE, lambda: overrun("")),
)  # fmt: skip


def past() -> JobRecord:
    """Return a job whose --begin was past when slurmctld accepted it."""
    at = "2026-01-01T22:00:05"
    return JobRecord("7_1", "FAILED", "None", 0, at, at, at, at, 3, "gpu01")


def stuck(*, unseen: bool = False) -> NodeInfo:
    """Return a node that does not release a job, or whose job Slurm hides."""
    held = None if unseen else StuckJob("77", "jane", 600.0, 300.0)
    return NodeInfo("gpu01", "IDLE", frozenset({"COMPLETING"}), stuck=held, ending_unseen=unseen)


COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_a_machine_gets_the_verdict_of_a_person(example: CounterExample) -> None:
    assert_as_expected(example)
