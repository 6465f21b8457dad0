"""Checks of the slurm suite on made-up results: what the machines of the counter-examples leave open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import figures, judged

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, StuckJob, parse_state
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.config.models import GpuProfile, JobLimits, NodeProfile, Profile
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm.diagnostic_step import (
    DiagnosticTask,
    JobFacts,
    JobRecord,
    Jobs,
    NodeDiagnostic,
    judge_step,
    parse_squeue,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

# squeue's columns of the diagnostic step as recorded; `{}` is exit_code
LISTED = (
    "1_1                           FAILED              NonZeroExitCode                         0         "
    "2026-11-21T22:34:29      2026-11-21T22:34:31      2026-11-21T22:34:31      2026-11-21T22:34:31      "
    "gpu01                                                                           {}"
)


def metrics(verdict: Verdict) -> list[tuple[str, float, str]]:
    return [(one.name, one.value, one.unit) for one in verdict.metrics]


def test_slurmstepd_may_speak_of_the_time_limit_through_the_task() -> None:
    # recorded: srun -N1 --time=1 sleep 300, Slurm 22.05.8
    told = "slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***\n"
    task = TaskResult(0, "gpu01", 143, 15, stderr=told)
    verdict = checks.time_limit(StepResult(143, (task,), "", 64.4, "srun --time=1 sleep 300"))
    assert (judged(verdict), metrics(verdict)) == ((PASSED, []), [("time_limit", 64.4, "s")])


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("768         ", 3),  # 22.05.8: a wait status
        ("3:0         ", 3),  # 23.11.11, 25.11.7: exit status and signal (since 23.02)
        ("9           ", 0),  # 22.05: ended by SIGKILL
        ("0:9         ", 0),
        ("", None),  # since 23.02, where it is not known
        ("x:0", None),
        ("3:", None),
    ],
)
def test_squeues_exit_code_is_read_as_each_version_writes_it(shown: str, code: int | None) -> None:
    (record,) = parse_squeue(LISTED.format(shown) + "\n").values()
    assert (record.job, record.state, record.node, record.exit_code) == ("1_1", "FAILED", "gpu01", code)
    assert (record.submitted, record.ended) == ("2026-11-21T22:34:29", "2026-11-21T22:34:31")


def _told(
    rank: int, procid: str, *, node: str = "gpu01", local: str = "0", ntasks: str = "2", cpus: str = "0-1"
) -> TaskResult:
    """Make a task of the diagnostic step that tells these variables."""
    line = f"diagnostic|{procid}|{node}|{local}|{ntasks}|0|0||{cpus}|0-1|tok|end\n"
    return TaskResult(rank, node, 7, None, stdout=line, stderr=f"diagnostic-err|{procid}|end\n")


def _judge_step(*tasks: TaskResult, nodes: tuple[str, ...] = ("gpu01",)) -> dict[str, NodeDiagnostic]:
    request = StepRequest(argv=("true",), nodes=nodes, ntasks_per_node=2)
    return judge_step(StepResult(7, tasks, "", 1.0, "srun"), request, 0, "tok")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"procid": ""}, "SLURM_PROCID"),
        ({"procid": "zero"}, "SLURM_PROCID"),
        ({"procid": "5"}, "SLURM_PROCID"),
        ({"local": ""}, "SLURM_LOCALID"),
        ({"ntasks": "\u00b2"}, "SLURM_NTASKS"),
        ({"ntasks": "0"}, "SLURM_NTASKS"),
    ],
)
def test_a_variable_that_a_task_prolog_took_away_is_named_on_that_node_alone(
    changed: dict[str, str], named: str
) -> None:
    bad = _told(0, **{"procid": "0", **changed})
    good = (_told(1, "1", node="gpu02"), _told(2, "2", node="gpu02", local="1"))
    exams = _judge_step(bad, *good, nodes=("gpu01", "gpu02"))
    verdict = checks.step(exams["gpu01"])
    assert judged(verdict) == (CONFIGURE, ["task 0"])
    assert named in verdict.findings[0].measured
    assert judged(checks.step(exams["gpu02"])) == (PASSED, [])


@pytest.mark.parametrize(("cpus", "read"), [("0-1", {0, 1}), ("", set()), ("0-1,?", set())])
def test_a_damaged_list_of_cpus_counts_as_unknown(cpus: str, read: set[int]) -> None:
    (found,) = _judge_step(_told(0, "0", cpus=cpus))["gpu01"].tasks
    assert found.cpus == read


# --- the inventory


def _info(state: str = "IDLE", **values: Any) -> NodeInfo:
    base, flags = parse_state(state)
    return replace(NodeInfo("gpu01", base, flags), **values)


PROFILE = Profile(
    name="p", description="", source="t", gpu=GpuProfile(count=8, name="NVIDIA H200", gres_type="h200")
)
STUCK = StuckJob("77", "jane", 600.0, 300.0)


def test_of_a_node_that_slurm_does_not_know_nothing_is_judged() -> None:
    for verdict in (
        checks.schedulable(None),
        checks.responding(None),
        checks.completing(None),
        checks.gres(None, PROFILE),
        checks.cpus(None, NodeProfile()),
        checks.memory(None, NodeProfile()),
        checks.version(None, "25.11.0"),
        checks.epilog(None, {"Epilog": "/e"}, released=True),
    ):
        assert result(verdict) == NOT_CHECKED, verdict.check


@pytest.mark.parametrize(
    ("state", "values", "expected"),
    [
        ("MIXED+DRAIN", {}, MONITOR),
        ("MIXED+DRAIN+NOT_RESPONDING", {}, MONITOR),  # drained, whether it responds or not
        ("DOWN", {}, MONITOR),
        ("IDLE+FAIL", {}, MONITOR),
        ("IDLE+NOT_RESPONDING", {}, NOT_CHECKED),  # slurm.responding judges it
        ("DOWN+DRAIN+NOT_RESPONDING", {}, NOT_CHECKED),
        ("IDLE+DRAIN", {"reason": "Prolog error"}, NOT_CHECKED),  # slurm.prolog judges it
        ("IDLE+CLOUD", {"reason": "Prolog error"}, PASSED),  # of a drain that is over
        ("IDLE+COMPLETING", {"stuck": STUCK}, NOT_CHECKED),  # slurm.completing judges it
        ("IDLE+DRAIN+COMPLETING", {"stuck": STUCK}, MONITOR),
    ],
)
def test_a_node_out_of_service_is_found_by_one_check(
    state: str, values: dict[str, Any], expected: str
) -> None:
    assert result(checks.schedulable(_info(state, **values))) == expected


def test_a_node_that_comes_up_cannot_answer() -> None:
    assert result(checks.responding(_info("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"))) == NOT_CHECKED
    assert result(checks.responding(_info("FUTURE"))) == MONITOR


def test_a_job_that_does_not_end_is_stated_with_the_bound() -> None:
    (finding,) = checks.completing(_info("IDLE+COMPLETING", stuck=STUCK)).findings
    assert figures(finding.expected) == [5]


@pytest.mark.parametrize(
    ("gres", "expected", "parts"),
    [
        ({"gpu:h200": 8, "shard": 64}, PASSED, []),
        ({"gpu:h200": 9}, CONFIGURE, ["Gres"]),
        ({}, CONFIGURE, ["Gres"]),
        ({"gpu:2080ti": 8}, CONFIGURE, ["Gres type"]),
        ({"gpu:h200": 4, "gpu:h100": 4}, CONFIGURE, ["Gres type"]),
        ({"gpu:h200": 4, "gpu:1g.10gb": 14}, NOT_APPLICABLE, []),  # instances are no GPUs
    ],
)
def test_gres_is_held_against_the_profile(gres: dict[str, int], expected: str, parts: list[str]) -> None:
    verdict = checks.gres(_info(gres=gres), PROFILE)
    assert judged(verdict) == (expected, parts)
    assert metrics(verdict) == [("slurm_gpus", sum(gres[it] for it in gres if it.startswith("gpu")), "GPUs")]


@pytest.mark.parametrize(
    ("gres", "mig"),
    [
        ("gpu:nvidia_a100_1g.5gb", True),
        ("gpu:1c.3g.20gb", True),
        ("gpu:7G.80GB", True),
        ("gpu:xg.5gb", False),
        ("gpu:g.5gb", False),
        ("gpu:1g.gb", False),
        ("gpu:1g.xgb", False),
        ("gpu:1gx5gb", False),
    ],
)
def test_names_of_mig_instances(gres: str, *, mig: bool) -> None:
    assert NodeInfo("gpu01", "IDLE", gres={gres: 7}).allocates_mig is mig


@pytest.mark.parametrize(
    ("gib", "expected"), [(84.9, WARNING), (85, PASSED), (105, PASSED), (105.1, CONFIGURE), (0.001, WARNING)]
)
def test_memory_is_85_to_105_percent_of_the_profile(gib: float, expected: str) -> None:
    verdict = checks.memory(_info(memory=int(gib * 2**30)), NodeProfile(memory=100 * 2**30))
    assert judged(verdict) == (expected, ["RealMemory"] if expected != PASSED else [])
    assert [figures(one.expected) for one in verdict.findings + verdict.advisories] in ([], [[85, 105]])


def test_what_is_not_stated_is_not_judged() -> None:
    assert result(checks.memory(_info(), NodeProfile())) == NOT_APPLICABLE
    assert result(checks.gres(_info(gres={"gpu": 8}), PROFILE.model_copy(update={"gpu": None}))) == (
        NOT_APPLICABLE
    )
    assert result(checks.version(_info(version="25.11.0"), "")) == NOT_CHECKED
    assert result(checks.limits({}, {})) == NOT_APPLICABLE
    assert result(checks.version(_info(version="25.11.0"), "25.11.0")) == PASSED


def test_figures_of_a_node() -> None:
    info = _info(cpus=64, memory=3 * 2**30)
    assert metrics(checks.cpus(info, NodeProfile(cpus=64))) == [("slurm_cpus", 64, "CPUs")]
    assert metrics(checks.memory(info, NodeProfile(memory=3 * 2**30))) == [("slurm_memory", 3, "GiB")]


def test_a_script_may_be_one_of_several() -> None:  # since 23.11
    reason = {"reason": "Prolog error", "reason_user": "slurm"}
    assert result(checks.prolog(None, _info("IDLE+DRAIN", **reason), {"Prolog[0]": "/p"})) == CONFIGURE
    assert result(checks.epilog(_info(reason="Epilog error"), {"Epilog[0]": "/e"}, released=True)) == PASSED


def test_of_a_node_that_the_run_drained_the_epilog_is_not_judged() -> None:
    drained = _info("IDLE+DRAIN", reason="gpucluster:slurm.epilog 1!=0 run=1 sum=0", reason_user="root")
    assert result(checks.epilog(drained, {"Epilog": "/e"}, released=True)) == NOT_CHECKED


# --- the step


def _task(rank: int, **values: Any) -> DiagnosticTask:
    rc, number = {0: (7, None), 1: (137, 9)}.get(rank, (0, None))
    gpu, cpus = str(rank), frozenset({rank})
    base = DiagnosticTask(rank, rank, 3, gpu, gpu, (), "tok", True, rc, number, cpus, 8)  # a record
    return replace(base, **values)


def _diagnostic(*tasks: DiagnosticTask, **values: Any) -> NodeDiagnostic:
    base = NodeDiagnostic(
        "gpu01", len(tasks), len(tasks), shared=False, token="tok", tasks=tasks, seconds=1.5, command="srun"
    )
    return replace(base, **values)


def test_a_step_that_did_not_run_is_one_finding_and_nothing_else_is_judged() -> None:
    sick = _diagnostic(_task(0, visible="0,1", token="x", stderr_arrived=False), problem="Task launch failed")
    assert judged(checks.step(sick)) == (CONFIGURE, ["step"])
    for judge in (
        checks.output,
        checks.environment,
        checks.exit_code,
        checks.signal,
        checks.gpu_binding,
        checks.cpu_affinity,
        lambda it: checks.prolog(it, _info(), {"Prolog": "/p"}),
    ):
        assert judged(judge(sick)) == (NOT_CHECKED, [])
    assert result(checks.prolog(None, None, {"Prolog": "/p"})) == NOT_CHECKED


@pytest.mark.parametrize(
    "values", [{"problem": "Prolog hung on node"}, {"problem": "x", "state_after": "DRAINED: Prolog error"}]
)
def test_a_prolog_that_kept_the_step_from_starting_is_found(values: dict[str, str]) -> None:
    verdict = checks.prolog(_diagnostic(_task(0), **values), _info(), {"Prolog": "/p"})
    assert judged(verdict) == (CONFIGURE, ["Prolog"])
    assert verdict.findings[0].measured == [*values.values()][-1]


@pytest.mark.parametrize(
    ("judge", "diagnostic", "part", "measured"),
    [
        (checks.step, _diagnostic(_task(0), tasks_requested=2), "tasks", "0"),
        (checks.output, _diagnostic(_task(0), tasks_requested=2), "stdout", "of 1 tasks"),
        (checks.exit_code, _diagnostic(_task(1)), "local task 0", "no report"),
        (checks.exit_code, _diagnostic(_task(0, rc=1)), "task 0", "exit status 1"),
        (checks.exit_code, _diagnostic(_task(0, rc=7, signal=15)), "task 0", "signal 15"),
        (checks.exit_code, _diagnostic(_task(0), _task(2, rc=1)), "task 2", "exit status 1"),
        (checks.exit_code, _diagnostic(_task(0), _task(2, signal=9)), "task 2", "signal 9"),
        (checks.signal, _diagnostic(_task(0)), "local task 1", "no report"),
        (checks.signal, _diagnostic(_task(1, signal=None, rc=0)), "task 1", "exit status 0"),
        (checks.signal, _diagnostic(_task(1, signal=15)), "task 1", "signal 15"),
        (checks.gpu_binding, _diagnostic(_task(0, visible="unset")), "task 0", "0 devices"),
        (checks.gpu_binding, _diagnostic(_task(0, visible="0,1")), "task 0", "2 devices"),
        (checks.gpu_binding, _diagnostic(_task(0), _task(1, visible="0")), "GPU 0", "used by tasks 0, 1"),
    ],
)
def test_what_a_diagnostic_step_finds(
    judge: Callable[[NodeDiagnostic], Verdict], diagnostic: NodeDiagnostic, part: str, measured: str
) -> None:
    verdict = judge(diagnostic)
    assert judged(verdict) == (CONFIGURE, [part])
    assert verdict.findings[0].measured.startswith(measured)


def test_fewer_cpus_than_tasks() -> None:
    cpus = ({3, 12}, {12}, {3})
    few = _diagnostic(*(_task(n, cpus=frozenset(of), online=8 if n else 1) for n, of in enumerate(cpus)))
    (finding,) = checks.cpu_affinity(few).findings
    assert [figures(text) for text in (finding.part, finding.measured, finding.expected)] == (
        [[3], [2, 3, 12], [3]]
    )
    assert result(checks.cpu_affinity(_diagnostic(_task(0, cpus=frozenset())))) == NOT_CHECKED


def test_figures_of_a_step() -> None:
    whole = _diagnostic(_task(0), _task(1))
    assert metrics(checks.step(whole)) == [("step", 1.5, "s")]
    assert metrics(checks.gpu_binding(whole)) == [("bound_gpus", 2, "GPUs")]
    assert metrics(checks.cpu_affinity(whole)) == [("step_cpus", 2, "CPUs")]


@pytest.mark.parametrize(
    ("visible", "openable", "devices"),
    [
        ("0", ("5",), ("5",)),
        ("0", ("5", "6"), ("0",)),
        ("3", ("0",), ("3",)),  # not renumbered: no cgroup hides the others
        ("unset", (), ()),
        ("", ("5",), ()),
    ],
)
def test_devices_that_open_count_where_they_are_as_many_as_named(
    visible: str, openable: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    assert checks.devices_of(_task(0, visible=visible, openable=openable)) == devices


# --- partitions and jobs


@pytest.mark.parametrize(
    ("stated", "part"),
    [
        ({"max_time": 7200}, "MaxTime of partition p"),
        ({"default_time": 60}, "DefaultTime of partition p"),
        ({"max_nodes": 2}, "MaxNodes of partition p"),
        ({"state": "DOWN"}, "State of partition p"),
    ],
)
def test_limits_of_a_partition_are_those_that_are_stated(stated: dict[str, Any], part: str) -> None:
    there = {"p": PartitionInfo("p", "UP", max_time=3600.0, max_nodes=1)}
    assert judged(checks.limits(there, {"p": JobLimits(**stated)})) == (CONFIGURE, [part])
    assert judged(checks.limits(there, {"q": JobLimits(), "p": JobLimits(**stated)})) == (
        (CONFIGURE, ["partition q", part])
    )


DAY = "2026-11-21T06:58"
ELEMENT = JobRecord("7_1", "FAILED", "", 0, f"{DAY}:04", f"{DAY}:06", f"{DAY}:06", f"{DAY}:07", exit_code=3)
ASKS = replace(ELEMENT, job="7_0", state="PENDING", restarts=1, exit_code=None)
DEPENDENT = JobRecord("8", "FAILED", "", 0, f"{DAY}:04", f"{DAY}:07", f"{DAY}:07", f"{DAY}:08", exit_code=5)
WAITS: dict[str, Any] = {"started": "", "state": "PENDING", "reason": "None"}


def _facts(*records: JobRecord, submitted_in: float = 0.1) -> JobFacts:
    return JobFacts(Jobs("7", "8", 2, submitted_in=submitted_in), {one.job: one for one in records})


@pytest.mark.parametrize(
    ("eligible", "submitted_in", "expected"),
    [
        (":06", 0.1, PASSED),
        (":04", 0.1, CONFIGURE),  # as without --begin
        (":04", 1.0, CONFIGURE),
        (":04", 1.9, NOT_CHECKED),  # a slow sbatch
        (":03", 0.1, NOT_CHECKED),  # sbatch's clock is behind slurmctld's
        (":05", 1.9, PASSED),
    ],
)
def test_a_slow_sbatch_is_no_begin_that_is_not_heeded(
    eligible: str, submitted_in: float, expected: str
) -> None:
    facts = _facts(replace(ELEMENT, eligible=DAY + eligible), submitted_in=submitted_in)
    assert result(checks.begin(facts)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PASSED),
        ({"state": "RUNNING", "restarts": 0}, NOT_CHECKED),  # it had no time to be requeued
        ({"state": "COMPLETED", "restarts": 0}, CONFIGURE),
        ({"restarts": 2}, CONFIGURE),
    ],
)
def test_a_job_that_requeues_itself_returns_once(changes: dict[str, Any], expected: str) -> None:
    assert result(checks.requeue(_facts(replace(ASKS, **changes)))) == expected


@pytest.mark.parametrize(
    ("judge", "records", "part"),
    [
        (checks.array, (replace(ASKS, started="", restarts=0, reason="None"), ELEMENT), "element 0"),
        (checks.array, (ASKS, replace(ELEMENT, **WAITS)), "element 1"),
        (checks.dependency, (ELEMENT, replace(DEPENDENT, ended="")), "dependent job"),
        (checks.dependency, (ELEMENT, replace(DEPENDENT, exit_code=1)), "dependent job"),
        (checks.dependency, (replace(ELEMENT, ended=""), DEPENDENT), "dependent job"),
        (checks.begin, (replace(ELEMENT, **{**WAITS, "reason": "BeginTime"}),), "job"),
    ],
)
def test_what_the_jobs_show(
    judge: Callable[[JobFacts], Verdict], records: tuple[JobRecord, ...], part: str
) -> None:
    assert judged(judge(_facts(*records))) == (CONFIGURE, [part])


def test_a_job_that_starts_at_the_bound_is_in_time() -> None:
    verdict = checks.job_start(_facts(replace(ELEMENT, started=f"{DAY}:07")), 1.0)
    assert (judged(verdict), metrics(verdict)) == ((PASSED, []), [("job_start", 1, "s")])


def test_jobs_that_slurm_has_forgotten_or_could_not_show_are_not_judged() -> None:
    for judge in (
        checks.array,
        checks.dependency,
        checks.requeue,
        checks.begin,
        lambda it: checks.job_start(it, 1.0),
    ):
        assert result(judge(_facts(ELEMENT, ASKS, DEPENDENT))) == PASSED
        assert result(judge(_facts())) == NOT_CHECKED
        assert judge(replace(_facts(), problem="no squeue")).reason == "no squeue"
