"""Checks of nodes as Slurm reports them, and of Slurm by steps and jobs. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, leave_to
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import Norm, less, older
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.core.text import count, listed
from pytest_gpucluster.kit.suite_work import LATER, LateCheck
from pytest_gpucluster.suites.slurm.diagnostic_step import ARRAY_EXIT, DEPENDENT_EXIT, ENDED, EXIT_CODE, KILLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import JobLimits, NodeProfile, Profile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.suite_work import SuiteContext
    from pytest_gpucluster.suites.slurm.diagnostic_step import DiagnosticTask, JobFacts, Jobs, NodeDiagnostic, QueuedJob

# RealMemory is usually a little below the installed memory, for the operating system (Slurm's FAQ on MemSpecLimit)
MEMORY_SHARE, MOST_MEMORY = 0.85, 1.05  # a profile states the nominal memory
NO_PEERS: Norm[Any] = Norm()
STATE, CPUS, REAL_MEMORY, PROLOG = (named("setting", name) for name in ("state", "CPUs", "RealMemory", "Prolog"))
SLURMD, STDOUT, STEP = named("service", "slurmd"), named("step", "stdout"), named("step", "step")
JOB, DEPENDENT, *ELEMENTS = (named("step", name) for name in ("job", "dependent job", "element 0", "element 1"))
# jobs of others, limits and reservations hold a job so (man squeue, job reason codes): the queue, not the scheduler
_IN_QUEUE = re.compile(
    r"Priority|Resources|ReqNodeNotAvail|Reservation|Licenses|QOS|Assoc|Partition|Nodes_required|Dependency"
)


@check(
    "slurm.known",
    cause="the node is in the cluster file, but not in slurm.conf",
    hint="scontrol show node NODE; correct slurm.conf or the group's nodes in the cluster file",
    action=Action.CONFIGURE,  # Slurm cannot drain a node that it does not know
    marks=("inventory", "judges_node"),
)
def known(node_name: str, info: NodeInfo | None) -> Judgement:
    """Judge that the node is in slurm.conf."""
    if info is None:
        part = Part("node", name=node_name)
        yield Finding(part, "not known to Slurm", "a node of slurm.conf", code="unknown")


@check(
    "slurm.schedulable",
    cause="an operator, a health check or Slurm itself took the node out of service, or a reservation holds it",
    hint="sinfo -R; remove the cause, then scontrol update NodeName=NODE State=RESUME; for a reservation: "
    "give its name to --set slurm.reservation=, or wait for its end",
    action=Action.MONITOR,  # a node that is out of service when the run begins is not tested
    marks=("judges_node",),
)
def schedulable(info: NodeInfo | None) -> Judgement:
    """Judge that jobs may start on the node; a failure states who took it out, when and why."""
    info = _known(info)
    # a reservation is no fault of the node, and it may be off for the maintenance
    if info.reserved or ("MAINTENANCE" in info.flags and not info.responding):
        raise NotAvailable(info.why_unavailable())
    if info.state == "DOWN" or "DRAIN" not in info.flags:
        leave_to(responding(info), "the node does not respond", info.why_unavailable())
    leave_to(prolog(None, info, {}), "drained for its prolog", info.why_unavailable())
    if info.in_service:
        leave_to(completing(info), "a job does not end there", str(info.stuck))
    if not info.schedulable:
        yield Finding(STATE, Quote(info.why_unavailable()), "schedulable", code="out_of_service")


@check(
    "slurm.responding",
    cause="slurmd is down, the node is off, or the network to it is cut",
    hint="on the node: systemctl status slurmd munge; scontrol ping",
    action=Action.DRAIN,
    never_healthy="slurmd left the pings of slurmctld unanswered for longer than SlurmdTimeout, and slurmctld set the node DOWN; one "
    "that is off, starts, shuts down, is in maintenance, was drained by a person or never registered stays as it is",
    marks=("inventory", "judges_node"),
)
def responding(info: NodeInfo | None) -> Judgement:
    """Judge that the node's slurmd responds to the controller."""
    info = _known(info)
    if info.away or (not info.responding and info.flags & _PASSING):
        raise NotAvailable(
            f"{info.full_state}: the node is off, starts, shuts down or is in maintenance: its slurmd cannot respond"
        )
    elif not info.responding:
        action = None if info.silenced else Action.MONITOR
        yield Finding(SLURMD, Quote(info.why_unavailable()), "responding", action, code="not_responding")


_PASSING = frozenset({"MAINTENANCE", "REBOOT_ISSUED"})


@check(
    "slurm.completing",
    cause="the epilog hangs, or a process of the job cannot be killed: it waits for storage that is down, a driver or a GPU",
    hint="on the node: ps -eo pid,stat,etimes,wchan:30,args (state D, the epilog); repair what it waits for, end the epilog, "
    "or reboot; a job that is stuck in Slurm alone: scontrol update NodeName=NODE State=DOWN Reason=stuck, then RESUME",
    action=Action.MONITOR,
    marks=("inventory", "judges_node"),
)
def completing(info: NodeInfo | None) -> Judgement:
    """Judge that the node releases jobs that have ended: it is not COMPLETING for minutes."""
    info = _known(info)
    if info.stuck:
        expected = f"free within {units.format_duration(info.stuck.most)}"
        yield Finding(STATE, Quote(str(info.stuck)), expected, code="completing")
    elif info.ending_unseen:
        raise NotAvailable("COMPLETING, and PrivateData=jobs hides for how long: run as Slurm's operator")


@check(
    "slurm.gres",
    cause="slurm.conf or gres.conf does not match the node, or slurmd found fewer GPUs",
    hint="scontrol show node NODE | grep -i gres; slurmd -G on the node; nvidia-smi -L",
    action=Action.CONFIGURE,  # gpu.count judges missing GPUs
    marks=("inventory",),
)
def gres(info: NodeInfo | None, profile: Profile) -> Judgement:
    """Judge type and count of the GPUs that Slurm allocates."""
    info = _known(info)
    yield Metric("slurm_gpus", info.gpus, "GPUs")
    types = sorted(name for name in info.gres if name.split(":")[0] == "gpu")
    if info.allocates_mig:
        raise NotApplicable(f"Slurm allocates MIG instances ({_gres(info)}), whose number is not that of the GPUs")
    if profile.gpu is None:
        raise NotApplicable(f"profile {profile.name} states no GPUs")
    if info.gpus != profile.gpu.count:
        found = Quantity(info.gpus, "GPUs", f"{count(info.gpus, 'GPU')} ({_gres(info)})")
        yield Finding(named("setting", "Gres"), found, Quantity(profile.gpu.count, "GPUs"), code="count")
    gres_type = profile.gpu.gres_type
    if gres_type and info.gpus and types != [f"gpu:{gres_type}"]:
        yield Finding(named("setting", "Gres type"), _gres(info), f"gpu:{gres_type}", code="type")


@check(
    "slurm.cpus",
    cause="CPUs or Sockets of slurm.conf do not match the hardware",
    hint="slurmd -C on the node prints the line for slurm.conf",
    action=Action.CONFIGURE,  # many sites count cores or reserve some; os.cpus judges missing CPUs
    marks=("inventory",),
)
def cpus(info: NodeInfo | None, node_profile: NodeProfile, usual_cpus: Norm[Any] = NO_PEERS) -> Judgement:
    """Judge the number of CPUs that Slurm allocates: at most that of the profile, and at least as on the other nodes."""
    info = _known(info)
    yield Metric("slurm_cpus", info.cpus, "CPUs")
    if node_profile.cpus is None:
        raise NotApplicable("the profile states no number of CPUs")
    found, stated = Quantity(info.cpus, "CPUs"), Quantity(node_profile.cpus, "CPUs")
    if info.cpus > node_profile.cpus:
        yield Finding(CPUS, found, stated, code="count")
    else:
        yield from usual_cpus.judge(CPUS, info.cpus, worse=less)
        if info.cpus < node_profile.cpus:  # a site may count cores, or reserve some
            yield Advisory(CPUS, found, stated, code="count")


@check(
    "slurm.memory",
    cause="RealMemory of slurm.conf is far from the installed memory",
    hint="slurmd -C on the node prints the line for slurm.conf; free -m",
    action=Action.CONFIGURE,  # it is a setting; os.memory judges missing memory
    marks=("inventory",),
)
def memory(info: NodeInfo | None, node_profile: NodeProfile, usual_memory: Norm[Any] = NO_PEERS) -> Judgement:
    """Judge the memory that Slurm allocates: at most 105% of the profile, and as on the other nodes; below 85% is a warning."""
    info = _known(info)
    yield Metric("slurm_memory", info.memory / 2**30, "GiB")
    if node_profile.memory is None:
        raise NotApplicable("the profile states no memory")
    least, most = (share * node_profile.memory for share in (MEMORY_SHARE, MOST_MEMORY))
    expected = f"{units.format_size(least)} to {units.format_size(most)}"
    found = Quantity(info.memory, "bytes", units.format_size(info.memory))
    if info.memory > most:
        yield Finding(REAL_MEMORY, found, Quantity(most, "bytes", expected), code="size")
        return
    yield from usual_memory.judge(
        REAL_MEMORY, info.memory, shown=units.format_size, worse=lambda mine, theirs: mine < MEMORY_SHARE * theirs
    )
    if info.memory < least:  # a site may reserve more, or not state it
        yield Advisory(REAL_MEMORY, found, Quantity(least, "bytes", expected), code="size")


@check(
    "slurm.version",
    cause="the node was left out of an upgrade, or upgraded before the controller",
    hint="slurmd -V on the node and the controller; install the controller's version",
    action=Action.CONFIGURE,
    marks=("inventory",),
)
def version(info: NodeInfo | None, slurm_version: str, usual_version: Norm[Any] = NO_PEERS) -> Judgement:
    """Judge that slurmd is of no later release than the controller (Slurm's upgrade guide), and no older than most others."""
    if info is None or not info.version:
        raise NotAvailable("slurmd has reported no version: it has not registered since the controller started")
    elif not slurm_version:
        raise NotAvailable("the controller has reported no version")
    elif older(_release(slurm_version), _release(info.version)):
        yield Finding(SLURMD, info.version, slurm_version, code="newer_than_controller")
    elif info.version != slurm_version:
        behind = tuple(usual_version.judge(SLURMD, info.version, worse=older))
        yield from behind or (Advisory(SLURMD, info.version, slurm_version, code="older_than_controller"),)


def _known(info: NodeInfo | None) -> NodeInfo:
    if info is None:
        raise NotAvailable("the node is not known to Slurm")
    return info


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


@check(
    "slurm.step",
    cause="slurmd could not start the tasks, or a task prolog or plugin changes their variables",
    hint="slurmd's log on the node; srun -w NODE hostname; TaskProlog and plugstack.conf",
    action=Action.CONFIGURE,
)
def step(diagnostic: NodeDiagnostic) -> Judgement:
    """Judge that all tasks of a step start, with the variables that Slurm sets for each."""
    yield Metric("step", diagnostic.seconds, "s")
    if diagnostic.problem:
        yield Finding(STEP, Quote(diagnostic.problem), f"{diagnostic.tasks_requested} tasks", code="not_started")
        return
    lost = {task.rank: task.lost for task in diagnostic.tasks if task.lost}
    for rank, names in lost.items():
        measured = f"{', '.join(names)} not as Slurm sets it"
        yield Finding(Part("task", rank), measured, "the values of this task", code="variables")
    ids, count = [task.local_id for task in diagnostic.tasks], diagnostic.tasks_requested
    if not lost and sorted(ids) != list(range(count)):
        yield Finding(STEP, f"local tasks {listed(ids)}", f"0 to {count - 1}", code="local_ids")


@check(
    "slurm.output",
    cause="output of tasks is lost between slurmstepd and srun",
    hint="srun -w NODE sh -c 'echo out; echo err >&2'; slurmd's log; firewall to the login node (SrunPortRange)",
    action=Action.CONFIGURE,
)
def output(diagnostic: NodeDiagnostic) -> Judgement:
    """Judge that stdout and stderr of every task arrive."""
    tasks = diagnostic.reported()
    if diagnostic.first_reports is not None:
        measured = f"incomplete in the first of two steps ({diagnostic.first_reports} tasks reported)"
        yield Advisory(STDOUT, measured, f"of {diagnostic.tasks_requested} tasks in both", code="at_times")
    if len(tasks) < diagnostic.tasks_requested:
        found, wanted = Quantity(len(tasks), "tasks"), Quantity(diagnostic.tasks_requested, "tasks")
        yield Finding(STDOUT, found, wanted, code="lost")
    for task in tasks:
        if not task.stderr_arrived:
            yield Finding(Part("task", task.rank), "no line on stderr", "its line", code="stderr_lost")


@check(
    "slurm.environment",
    cause="a task prolog, SPANK plugin or cli_filter changes the environment",
    hint="srun -w NODE --export=ALL env; TaskProlog and plugstack.conf",
    action=Action.CONFIGURE,
)
def environment(diagnostic: NodeDiagnostic) -> Judgement:
    """Judge that an exported variable with commas, quotes and blanks arrives unchanged."""
    for task in diagnostic.reported():
        if task.token != diagnostic.token:
            expected = f"GPUCLUSTER_DIAGNOSTIC={diagnostic.token!r}"
            yield Finding(Part("task", task.rank), Quote(repr(task.token)), expected, code="changed")


@check(
    "slurm.exit_code",
    cause="exit codes are lost: a wrapper, task epilog or plugin changes them",
    hint="srun -w NODE sh -c 'exit 7'; echo $?",
    action=Action.CONFIGURE,
)
def exit_code(diagnostic: NodeDiagnostic) -> Judgement:
    """Exit status 7 of the first task, and 0 of the tasks that succeed, are reported by srun."""
    yield from _endings(diagnostic, 0, EXIT_CODE, None)
    for task in diagnostic.tasks:
        if task.local_id > 1 and (task.rc or task.signal):
            yield Finding(Part("task", task.rank), _ending(task), "exit status 0", code="no_success")


@check(
    "slurm.signal",
    cause="the signal that ended a task is not reported",
    hint="srun -w NODE sh -c 'kill -KILL $$'",
    action=Action.CONFIGURE,
)
def signal(diagnostic: NodeDiagnostic) -> Judgement:
    """SIGKILL of the second task is reported by srun."""
    yield from _endings(diagnostic, 1, None, KILLED)


@check(
    "slurm.gpu_binding",
    cause="GPUs are not bound to tasks: gres.conf, a task prolog, or a profile script that sets CUDA_VISIBLE_DEVICES",
    hint="srun -w NODE --ntasks-per-node=2 --gpus-per-task=1 sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'",
    action=Action.CONFIGURE,
)
def gpu_binding(diagnostic: NodeDiagnostic) -> Judgement:
    """Judge that each task of a step with --gpus-per-task=1 has its own device."""
    tasks = diagnostic.reported()
    if diagnostic.gpus_requested == 0:
        raise NotApplicable("Slurm has no GPUs on this node")
    owners = grouped((device, task.rank) for task in tasks for device in devices_of(task))
    for task in tasks:
        devices = devices_of(task)
        if len(devices) != 1:
            text = f"{len(devices)} devices (CUDA_VISIBLE_DEVICES={task.visible})"
            found = Quantity(len(devices), "devices", text)
            yield Finding(Part("task", task.rank), found, Quantity(1, "devices"), code="devices")
    if diagnostic.shared:
        return
    yield Metric("bound_gpus", len(owners), "GPUs")
    for device, ranks in sorted(owners.items()):
        if len(ranks) > 1:
            part = gpu(int(device)) if device.isdecimal() else gpu(None, uuid=device)
            yield Finding(part, f"used by tasks {listed(ranks)}", "used by one task", code="shared")


@check(
    "slurm.cpu_affinity",
    cause="slurmd itself is confined to a few CPUs (CPUAffinity= or AllowedCPUs= of systemd, taskset, a cpuset), or "
    "binds tasks wrongly",
    hint="srun -w NODE grep Cpus_allowed_list /proc/self/status; taskset -cp $(pidof slurmd); TaskPlugin of slurm.conf",
    action=Action.CONFIGURE,
)
def cpu_affinity(diagnostic: NodeDiagnostic, virtual: bool = False) -> Judgement:
    """Judge that the tasks of a step may use at least one CPU per task, if the node has enough."""
    if virtual:
        raise NotApplicable("virtual nodes share the CPUs of their host")
    tasks = [task for task in diagnostic.reported() if task.cpus and task.online]
    if not tasks:
        raise NotAvailable("the tasks could not read the CPUs that they may run on")
    together = frozenset[int]().union(*(task.cpus for task in tasks))
    least = min(len(tasks), max(task.online for task in tasks))
    yield Metric("step_cpus", len(together), "CPUs")
    if len(together) < least:
        shown = ", ".join(map(str, sorted(together)))
        found = Quantity(len(together), "CPUs", f"{len(together)} CPUs ({shown}) for {len(tasks)} tasks")
        yield Finding(STEP, found, Quantity(least, "CPUs", f"at least {least} CPUs"), code="confined")


def _is_prolog(reason: str) -> bool:
    """Return whether Slurm wrote this reason for a prolog; a person may write of one too."""
    return bool(re.match(r"prolog (error|launch)", reason, re.IGNORECASE))


@check(
    "slurm.prolog",
    cause="the prolog failed or hangs on this node",
    hint="slurmd's log on the node; run the Prolog of `scontrol show config` there by hand",
    action=Action.CONFIGURE,
    marks=("inventory", "exclusive"),  # it may wait for the diagnostic step
)
def prolog(diagnostic_if_any: NodeDiagnostic | None, info: NodeInfo | None, config: Mapping[str, str]) -> Judgement:
    """Judge the prolog by its effects: slurmd starts a step only after it, and Slurm drains a node if it fails."""
    script, found = _script(config, "Prolog"), diagnostic_if_any
    # slurm.conf may have changed since
    if info is not None and _is_prolog(info.why_out):
        expected = f"{script or 'the Prolog'} ends with 0"
        yield Finding(PROLOG, Quote(info.why_unavailable()), expected, code="drained")
    elif not script:
        raise NotApplicable("slurm.conf names no Prolog")
    elif found and found.problem and (found.code == "prolog" or _is_prolog(found.out_after)):
        measured = Quote(found.state_after or found.problem)
        yield Finding(PROLOG, measured, f"{script} ends with 0", code="failed")
    elif found is None or found.problem:
        raise NotAvailable("no step has run on the node" + (f": {found.problem}" if found else ""))


GPUCLUSTER = "gpucluster:"  # begins the reasons of nodes that gpucluster has drained


@check(
    "slurm.epilog",
    cause="the epilog failed or hangs on this node",
    hint="slurmd's log on the node; run the Epilog of `scontrol show config` there by hand",
    action=Action.CONFIGURE,
)
def epilog(info: NodeInfo | None, config: Mapping[str, str], released: bool) -> Judgement:
    """Judge the epilog by its effects: the run's job ended on the node, which was neither drained for it nor stays completing."""
    script = _script(config, "Epilog")
    if not script:
        raise NotApplicable("slurm.conf names no Epilog")
    elif info is None:
        raise NotAvailable("the node is not known to Slurm")
    elif info.why_out.startswith(GPUCLUSTER):
        raise NotAvailable("this run drained the node, which hides a failure of its epilog: run it by hand")
    elif re.match(r"epilog error|kill task failed", info.why_out, re.IGNORECASE):
        measured = Quote(info.why_unavailable())
        yield Finding(named("setting", "Epilog"), measured, f"{script} ends with 0", code="drained")
    elif not released:
        raise NotAvailable("its epilog runs when the nodes are released", LATER)


def _epilog_ended(run: SuiteContext, info: NodeInfo) -> Verdict:
    assert run.slurm is not None  # nodes were allocated
    return epilog(info, run.slurm.config(), released=True)


EPILOGS = LateCheck("slurm.epilog", judge=_epilog_ended)


@check(
    "slurm.job_start",
    cause="the scheduler is slow or blocked, or the prolog takes long",
    hint="sdiag; scontrol show job; slurmctld's log",
    action=Action.MONITOR,
)
def job_start(jobs: JobFacts, max_job_start: float) -> Judgement:
    """Judge the time that an eligible job of one task waits for idle nodes; `max_job_start` is in seconds."""
    record = _not_queued(jobs.element)
    waited = record.waited()
    if waited is None:
        yield Finding(JOB, Quote(_state(record)), f"started within {max_job_start:g} s", code="not_started")
    else:
        yield Metric("job_start", waited, "s", better=NEITHER)  # it depends on the queue
        if waited > max_job_start:
            expected = Quantity(max_job_start, "s", f"within {max_job_start:g} s")
            yield Finding(JOB, Quantity(waited, "s", f"started after {waited:g} s"), expected, code="slow")


@check(
    "slurm.array",
    cause="job arrays do not run: MaxArraySize, a job submit plugin, or limits",
    hint="scontrol show config | grep MaxArraySize; sbatch --array=0-1 --wrap hostname",
    action=Action.CONFIGURE,
)
def array(jobs: JobFacts) -> Judgement:
    """Judge that both elements of an array ran, and that Slurm reports the exit status of one."""
    for number, expected in ((0, None), (1, ARRAY_EXIT)):
        try:
            record = _not_queued(jobs.element if number else jobs.requeued)
        except NotAvailable as error:
            yield error
            continue
        if not (record.started or record.restarts):  # a requeued element did start
            yield Finding(ELEMENTS[number], Quote(_state(record)), "started", code="not_started")
        elif expected is not None and record.started and record.exit_code != expected:
            measured = Quote(f"{_state(record)}, exit {record.exit_code}")
            yield Finding(ELEMENTS[number], measured, f"exit {expected}", code="exit_status")


@check(
    "slurm.dependency",
    cause="job dependencies are not resolved",
    hint="scontrol show config | grep Dependency; squeue -o '%i %E %r'",
    action=Action.CONFIGURE,
)
def dependency(jobs: JobFacts) -> Judgement:
    """Judge that a job started after the job that it depends on."""
    first, second = jobs.element, jobs.dependent
    if _not_queued(first).ended:
        _not_queued(second)
    if not second.ended or second.exit_code != DEPENDENT_EXIT:
        yield Finding(DEPENDENT, Quote(_state(second)), f"ended with exit {DEPENDENT_EXIT}", code="not_ended")
    elif not first.ended or second.started < first.ended:
        expected = f"not before {first.ended}"
        yield Finding(DEPENDENT, f"started {second.started}", expected, code="too_early")


@check(
    "slurm.requeue",
    cause="jobs cannot be requeued: JobRequeue=0, or a batch job is not ended",
    hint="scontrol show config | grep JobRequeue; scontrol requeue with the job's id",
    action=Action.CONFIGURE,
)
def requeue(jobs: JobFacts) -> Judgement:
    """Judge that a job that requeues itself returns to the queue once."""
    record = jobs.requeued
    if not record.restarts and record.state not in ENDED:
        raise NotAvailable(f"element 0 is {_state(record)}: it has not requeued itself yet")
    if record.restarts != 1:
        text = f"requeued {count(record.restarts, 'time')} ({_state(record)})"
        found, once = Quantity(record.restarts, "", text), Quantity(1, "", "once")
        yield Finding(ELEMENTS[0], found, once, code="requeued")


@check(
    "slurm.begin",
    cause="slurmctld ignores --begin",
    hint="sbatch --begin=now+60 --wrap hostname; scontrol show job",
    action=Action.CONFIGURE,
)
def begin(jobs: JobFacts) -> Judgement:
    """Judge that a job with --begin starts at that time or later."""
    record = _not_queued(jobs.element)
    if not record.started:
        yield Finding(JOB, Quote(_state(record)), "started after its --begin", code="not_started")
    elif _begin_was_past(jobs.jobs, record):
        raise NotAvailable(f"sbatch took {jobs.jobs.submitted_in:.1f} s, or clocks differ: its --begin was in the past")
    elif record.started < record.eligible or record.eligible <= record.submitted:
        times = f"submitted {record.submitted}, eligible {record.eligible}, started {record.started}"
        expected = f"eligible {jobs.jobs.begin_after} s after submission, started then"
        yield Finding(JOB, times, expected, code="too_early")


@check(
    "slurm.limits",
    cause="the partition's limits were changed in slurm.conf or by scontrol",
    hint="scontrol show partition",
    action=Action.CONFIGURE,
    marks=("inventory",),
)
def limits(partitions: Mapping[str, PartitionInfo], stated_limits: Mapping[str, JobLimits]) -> Judgement:
    """Judge the limits that the cluster file states."""
    if not stated_limits:
        raise NotApplicable("the cluster file states no limits", NOT_STATED)
    for name, limit in stated_limits.items():
        partition = partitions.get(name)
        if partition is None:
            yield Finding(named("partition", name), "unknown to Slurm", "a partition", code="unknown")
            continue
        pairs = (
            ("MaxTime", partition.max_time, limit.max_time),
            ("MaxNodes", partition.max_nodes, limit.max_nodes),
            ("State", partition.state, "UP"),
        )
        for what, measured, expected in pairs:
            if expected is not None and measured != expected:
                part = Part("setting", name=f"{what} of partition {name}")
                yield Finding(part, _limit(what, measured), _limit(what, expected), code="other_limit")


def _begin_was_past(jobs: Jobs, record: QueuedJob) -> bool:
    """Return whether the time of --begin was past when slurmctld accepted the job: both round down to seconds."""
    late = jobs.submitted_in > jobs.begin_after - 1
    return record.eligible < record.submitted or (late and record.eligible == record.submitted)


@check(
    "slurm.time_limit",
    cause="Slurm does not end a step at its time limit: OverTimeLimit, KillWait, or a task that cannot be killed",
    hint="scontrol show config | grep -E 'OverTimeLimit|KillWait|UnkillableStepTimeout'",
    action=Action.CONFIGURE,
    marks=("slow",),
)
def time_limit(overrun: StepResult) -> Judgement:
    """Judge that Slurm ends a step at its time limit of one minute, with the reason."""
    yield Metric("time_limit", overrun.seconds, "s", better=NEITHER)
    stderr = "\n".join((overrun.stderr, *(it.stderr for it in overrun.tasks)))  # slurmstepd uses the task's
    if not re.search(r"DUE TO TIME LIMIT|time limit", stderr, re.IGNORECASE):
        measured = f"ended with {overrun.rc}"
        yield Finding(STEP, measured, "cancelled due to its time limit", code="no_limit")


def devices_of(task: DiagnosticTask) -> tuple[str, ...]:
    """Return the GPUs of a task.

    If Slurm's cgroups hide devices, they are the ones that can be opened (CUDA_VISIBLE_DEVICES then counts from 0); else
    those of CUDA_VISIBLE_DEVICES.
    """
    named = () if task.visible == "unset" else tuple(filter(None, task.visible.split(",")))
    if len(task.openable) == len(named) and named == tuple(map(str, range(len(named)))):
        return task.openable
    return named


def _endings(diagnostic: NodeDiagnostic, local_id: int, rc: int | None, number: int | None) -> Judgement:
    expected = f"exit status {rc}" if number is None else f"signal {number}"
    ended = [task for task in diagnostic.reported() if task.local_id == local_id]
    if not ended:
        yield Finding(Part("task", name=f"local task {local_id}"), "no report", expected, code="no_report")
    for task in ended:
        if (number is None and (task.signal is not None or task.rc != rc)) or task.signal != number:
            yield Finding(Part("task", task.rank), _ending(task), expected, code="ending")


def _ending(task: DiagnosticTask) -> str:
    return f"exit status {task.rc}" if task.signal is None else f"signal {task.signal}"


def _state(record: QueuedJob) -> str:
    return f"{record.state} ({record.reason})" if record.reason not in {"", "None"} else record.state


def _not_queued(record: QueuedJob) -> QueuedJob:
    """Return a job that started, or whose wait nothing explains; NotAvailable while the queue holds it."""
    if not (record.started or record.restarts) and _IN_QUEUE.match(record.reason):
        raise NotAvailable(f"the queue holds the job ({record.reason}): repeat the check on an idle partition")
    return record


def _limit(what: str, value: float | str | None) -> str:
    if value is None:
        return "unlimited or not set"
    return units.slurm_time(float(value)) if what.endswith("Time") else str(value)


def _gres(info: NodeInfo) -> str:
    return ",".join(f"{name}:{count}" for name, count in sorted(info.gres.items())) or "none"


def _script(config: Mapping[str, str], key: str) -> str:
    return config.get(key) or config.get(f"{key}[0]", "")
