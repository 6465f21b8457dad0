"""Checks of the slurm suite on made-up results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, StuckJob, parse_state
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.config.models import GpuProfile, JobLimits, NodeProfile, Profile
from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.suites.matrix import checks as matrix
from pytest_gpucluster.suites.monitoring import checks as monitoring
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm.diagnostic_step import (
    FORGOTTEN,
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

# recorded: srun -N1 --time=1 sleep 300, Slurm 22.05.8
CANCELLED = (
    "slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***\n"
)


def _ended(*, of_task: str = "", of_srun: str = "") -> StepResult:
    task = TaskResult(0, "gpu01", 143, 15, stderr=of_task)
    return StepResult(143, (task,), of_srun, 64.4, "srun --time=1 sleep 300")


def test_slurmstepd_speaks_of_the_time_limit_through_the_task_or_through_srun() -> None:
    assert checks.time_limit(_ended(of_task=CANCELLED)).outcome is Outcome.PASSED
    assert checks.time_limit(_ended(of_srun=CANCELLED)).outcome is Outcome.PASSED


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
        ("0:0", 0),
        ("", None),  # since 23.02, where it is not known
        ("x:0", None),
        ("3:", None),
    ],
)
def test_squeues_exit_code_is_read_as_each_version_writes_it(shown: str, code: int | None) -> None:
    (record,) = parse_squeue(LISTED.format(shown) + "\n").values()
    assert (record.job, record.state, record.node, record.exit_code) == ("1_1", "FAILED", "gpu01", code)
    assert (record.submitted, record.ended) == ("2026-11-21T22:34:29", "2026-11-21T22:34:31")


def test_an_array_whose_element_ended_as_asked_passes_on_every_version() -> None:
    for shown in ("768", "3:0"):
        ran = parse_squeue(LISTED.format(shown))
        again = {"1_0": replace(ran["1_1"], job="1_0", restarts=1)}
        facts = JobFacts(Jobs("1", "2", 2), ran | again)
        assert checks.array(facts).outcome is Outcome.PASSED


def test_a_step_that_ended_for_another_reason_proves_no_time_limit() -> None:
    verdict = checks.time_limit(_ended(of_srun="srun: error: gpu01: task 0: Terminated\n"))
    assert verdict.outcome is Outcome.FAILED


def _told(rank: int, *, procid: str, node: str = "gpu01", local: str = "0", ntasks: str = "2") -> TaskResult:
    """Make a task of the diagnostic step that tells these variables."""
    line = f"diagnostic|{procid}|{node}|{local}|{ntasks}|0|0||0-1|0-1|tok|end\n"
    return TaskResult(
        rank, "gpu01" if rank == 0 else "gpu02", 7, None, stdout=line, stderr=f"diagnostic-err|{procid}|end\n"
    )


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"procid": ""}, "SLURM_PROCID"),
        ({"procid": "zero"}, "SLURM_PROCID"),
        ({"procid": "5"}, "SLURM_PROCID"),
        ({"local": ""}, "SLURM_LOCALID"),
        ({"ntasks": "\u00b2"}, "SLURM_NTASKS"),
    ],
)
def test_a_variable_that_a_task_prolog_took_away_is_named_on_that_node_alone(
    changed: dict[str, str], named: str
) -> None:
    bad = _told(0, **{"procid": "0", **changed})
    good = (_told(1, procid="1", node="gpu02"), _told(2, procid="2", node="gpu02", local="1"))
    request = StepRequest(argv=("true",), nodes=("gpu01", "gpu02"), ntasks_per_node=2)
    exams = judge_step(StepResult(7, (bad, *good), "", 1.0, "srun"), request, 0, "tok")
    verdict = checks.step(exams["gpu01"])
    assert verdict.outcome is Outcome.FAILED
    assert (
        f"task 0: measured {named} not as Slurm sets it"
        in f"{verdict.findings[0].part}: measured {verdict.findings[0].measured}"
    )
    assert checks.step(exams["gpu02"]).outcome is Outcome.PASSED


@pytest.mark.parametrize(("cpus", "read"), [("0-1", {0, 1}), ("", set()), ("0-1,?", set())])
def test_a_damaged_list_of_cpus_counts_as_unknown(cpus: str, read: set[int]) -> None:
    task = _told(0, procid="0")
    task = replace(task, stdout=task.stdout.replace("||0-1|", f"||{cpus}|"))
    request = StepRequest(argv=("true",), nodes=("gpu01",), ntasks_per_node=1)
    (found,) = judge_step(StepResult(0, (task,), "", 1.0, "srun"), request, 0, "tok")["gpu01"].tasks
    assert found.cpus == read


# --- the inventory


def _info(state: str = "IDLE", **values: Any) -> NodeInfo:
    base, flags = parse_state(state)
    return replace(NodeInfo("gpu01", base, flags), **values)


REASON = {"reason": "bad dimm", "reason_user": "jane@EXAMPLE.COM", "reason_time": "2026-01-02T03:04:05"}
WHY = '"bad dimm" by jane@EXAMPLE.COM since 2026-01-02T03:04:05'
PROFILE = Profile(
    name="p", description="", source="t", gpu=GpuProfile(count=8, name="NVIDIA H200", gres_type="h200")
)
INFO_CHECKS: dict[str, Callable[[NodeInfo | None], Verdict]] = {
    "slurm.schedulable": checks.schedulable,
    "slurm.responding": checks.responding,
    "slurm.completing": checks.completing,
    "slurm.gres": lambda info: checks.gres(info, PROFILE),
    "slurm.cpus": lambda info: checks.cpus(info, NodeProfile()),
    "slurm.memory": lambda info: checks.memory(info, NodeProfile()),
    "slurm.epilog": lambda info: checks.epilog(info, {"Epilog": "/e"}, True),  # a fact
}


@pytest.mark.parametrize("name", INFO_CHECKS)
def test_of_a_node_that_slurm_does_not_know_nothing_is_judged(name: str) -> None:
    verdict = INFO_CHECKS[name](None)
    assert (verdict.check, verdict.outcome, verdict.reason) == (
        name,
        Outcome.NOT_CHECKED,
        "the node is not known to Slurm",
    )


def test_a_node_that_slurm_does_not_know_is_named() -> None:
    verdict = checks.known("gpu01", None)
    assert verdict.findings == (Finding("gpu01", "not known to Slurm", "a node of slurm.conf"),)
    assert verdict.action is Action.CONFIGURE
    assert checks.known("gpu01", _info()).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("state", "measured"),
    [
        ("IDLE+DRAIN", f"DRAINED: {WHY}"),
        ("MIXED+DRAIN", f"DRAINING: {WHY}"),
        ("DOWN", f"DOWN: {WHY}"),
        ("IDLE+FAIL", f"IDLE+FAIL: {WHY}"),
        ("DOWN+CLOUD+REBOOT_ISSUED", f"DOWN+REBOOT_ISSUED: {WHY}"),
        ("IDLE+DRAIN+RESERVED", f"DRAINED: {WHY}"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", f"IDLE+NOT_RESPONDING: {WHY}"),
    ],
)
def test_a_node_out_of_service_is_named_with_who_when_and_why(state: str, measured: str) -> None:
    verdict = checks.schedulable(_info(state, **REASON))
    assert verdict.findings == (Finding("state", measured, "schedulable"),)
    assert verdict.action is Action.MONITOR


STUCK = StuckJob("77", "jane", 600.0, 300.0)


@pytest.mark.parametrize(
    ("info", "outcome", "reason"),
    [
        (_info("IDLE"), Outcome.PASSED, ""),
        (_info("MIXED+PLANNED"), Outcome.PASSED, ""),
        (_info("IDLE+BLOCKED"), Outcome.PASSED, ""),
        (_info("IDLE+CLOUD+POWERED_DOWN", **REASON), Outcome.PASSED, ""),
        (_info("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"), Outcome.PASSED, ""),
        (
            _info("RESERVED"),
            Outcome.NOT_CHECKED,
            "IDLE+RESERVED: held by a reservation (scontrol show reservation); --set slurm.reservation=NAME runs within it",
        ),
        (
            _info("DOWN*", **REASON),
            Outcome.NOT_CHECKED,
            f"the node does not respond, which slurm.responding judges: DOWN+NOT_RESPONDING: {WHY}",
        ),
        (
            _info("IDLE+DRAIN", reason="Prolog error"),
            Outcome.NOT_CHECKED,
            'drained for its prolog, which slurm.prolog judges: DRAINED: "Prolog error"',
        ),
        (
            _info("IDLE+COMPLETING", stuck=STUCK),
            Outcome.NOT_CHECKED,
            f"a job does not end there, which slurm.completing judges: {STUCK}",
        ),
    ],
)
def test_what_is_no_fault_of_being_schedulable(info: NodeInfo, outcome: Outcome, reason: str) -> None:
    verdict = checks.schedulable(info)
    assert (verdict.outcome, verdict.reason, verdict.findings) == (outcome, reason, ())


def test_a_node_that_was_drained_is_not_schedulable_whether_it_responds_or_not() -> None:
    (finding,) = checks.schedulable(_info("MIXED+DRAIN+NOT_RESPONDING", **REASON)).findings
    assert (finding.part, finding.measured) == ("state", f"DRAINING: {WHY}")


@pytest.mark.parametrize(
    ("state", "measured", "action"),
    [
        ("IDLE*", f"IDLE+NOT_RESPONDING: {WHY}", Action.MONITOR),
        ("DOWN+NOT_RESPONDING", f"DOWN+NOT_RESPONDING: {WHY}", Action.MONITOR),  # by a person
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", f"DOWN+NOT_RESPONDING: {WHY}", Action.MONITOR),
        ("UNKNOWN", f"UNKNOWN: {WHY}", Action.MONITOR),
        ("FUTURE", f"FUTURE: {WHY}", Action.MONITOR),
    ],
)
def test_a_silent_slurmd_is_found(state: str, measured: str, action: Action) -> None:
    verdict = checks.responding(_info(state, **REASON))
    assert [(one.part, one.measured, one.expected) for one in verdict.findings] == [
        ("slurmd", measured, "responding")
    ]
    assert verdict.action is action


def test_a_node_that_is_off_or_comes_up_cannot_answer() -> None:
    verdict = checks.responding(_info("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP: the node is off, starts, shuts down or is in maintenance: its "
        "slurmd cannot respond",
    )
    assert checks.responding(_info("IDLE+RESERVED")).outcome is Outcome.PASSED
    assert checks.responding(_info("IDLE+DRAIN", **REASON)).outcome is Outcome.PASSED


def test_a_job_that_does_not_end_is_found_and_one_that_is_hidden_is_not_judged() -> None:
    verdict = checks.completing(_info("IDLE+COMPLETING", stuck=STUCK))
    assert verdict.findings == (Finding("state", str(STUCK), "free within 5 min"),)
    assert verdict.action is Action.MONITOR
    hidden = checks.completing(_info("IDLE+COMPLETING", ending_unseen=True))
    assert (hidden.outcome, hidden.reason) == (
        Outcome.NOT_CHECKED,
        "COMPLETING, and PrivateData=jobs hides for how long: run as Slurm's operator",
    )
    assert checks.completing(_info("IDLE+COMPLETING")).outcome is Outcome.PASSED


def test_gres_is_held_against_the_profile_and_drains_nobody() -> None:
    assert checks.gres(_info(gres={"gpu:h200": 8, "shard": 64}), PROFILE).outcome is Outcome.PASSED
    few = checks.gres(_info(gres={"gpu:h200": 4}), PROFILE)
    assert few.findings == (Finding("Gres", "4 GPUs (gpu:h200:4)", "8 GPUs"),)
    none = checks.gres(_info(), PROFILE)
    assert none.findings == (Finding("Gres", "0 GPUs (none)", "8 GPUs"),)
    other = checks.gres(_info(gres={"gpu:2080ti": 8}), PROFILE)
    assert other.findings == (Finding("Gres type", "gpu:2080ti:8", "gpu:h200"),)
    two = checks.gres(_info(gres={"gpu:h200": 4, "gpu:h100": 4}), PROFILE)
    assert two.findings == (Finding("Gres type", "gpu:h100:4,gpu:h200:4", "gpu:h200"),)
    assert {one.action for one in (few, none, other, two)} == {Action.CONFIGURE}
    assert [(one.name, one.value, one.unit) for one in few.metrics] == [("slurm_gpus", 4, "GPUs")]


@pytest.mark.parametrize("kind", ["1g.10gb", "a100_1g.5gb", "nvidia_h100_80gb_hbm3_3g.40gb", "1c.3g.20gb"])
def test_instances_of_mig_are_not_counted_as_gpus(kind: str) -> None:
    verdict = checks.gres(_info(gres={"gpu:h200": 4, f"gpu:{kind}": 14}), PROFILE)
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert verdict.reason == (
        f"Slurm allocates MIG instances ({checks._gres(_info(gres={'gpu:h200': 4, f'gpu:{kind}': 14}))}), "
        "whose number is not that of the GPUs"
    )


def test_a_profile_without_gpus_demands_none() -> None:
    verdict = checks.gres(_info(gres={"gpu": 8}), PROFILE.model_copy(update={"gpu": None}))
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_APPLICABLE, "profile p states no GPUs")


def test_cpus_are_those_of_the_profile() -> None:
    verdict = checks.cpus(_info(cpus=129), NodeProfile(cpus=128))
    assert (verdict.findings, verdict.action) == ((Finding("CPUs", "129", "128"),), Action.CONFIGURE)
    assert checks.cpus(_info(cpus=64), NodeProfile(cpus=128)).advisories == (Advisory("CPUs", "64", "128"),)
    assert checks.cpus(_info(cpus=128), NodeProfile(cpus=128)).outcome is Outcome.PASSED
    assert checks.cpus(_info(cpus=1), NodeProfile()).reason == "the profile states no number of CPUs"


@pytest.mark.parametrize(
    ("gib", "found"),
    [(84.9, "warned"), (85, ""), (105, ""), (105.1, "failed"), (1 / 1024, "warned")],
)
def test_memory_is_85_to_105_percent_of_the_profile(gib: float, found: str) -> None:
    verdict = checks.memory(_info(memory=int(gib * 2**30)), NodeProfile(memory=100 * 2**30))
    deviations = verdict.findings or verdict.advisories
    assert [(one.part, one.expected) for one in deviations] == [("RealMemory", "85 GiB to 105 GiB")] * bool(
        found
    )
    assert (bool(verdict.findings), bool(verdict.advisories)) == (found == "failed", found == "warned")
    assert verdict.action is Action.CONFIGURE
    assert checks.memory(_info(), NodeProfile()).reason == "the profile states no memory"


def test_the_version_of_slurmd_is_the_controllers() -> None:
    verdict = checks.version(_info(version="25.11.0"), "24.05.1")
    assert (verdict.findings, verdict.action) == (
        (Finding("slurmd", "25.11.0", "24.05.1"),),
        Action.CONFIGURE,
    )
    behind = checks.version(_info(version="24.05.1"), "25.11.0")
    assert behind.advisories == (Advisory("slurmd", "24.05.1", "25.11.0"),)
    assert checks.version(_info(version="25.11.0"), "25.11.0").outcome is Outcome.PASSED
    untold = "slurmd has reported no version: it has not registered since the controller started"
    assert checks.version(None, "25.11.0").reason == checks.version(_info(), "25.11.0").reason == untold
    assert checks.version(_info(version="25.11.0"), "").reason == "the controller has reported no version"
    assert checks.version(_info(version="25.11.0"), "").outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("reason", "script", "judge"),
    [
        ("Prolog error", "Prolog", lambda info, config: checks.prolog(None, info, config)),
        ("Epilog error", "Epilog", lambda info, config: checks.epilog(info, config, released=True)),
        ("Kill task failed", "Epilog", lambda info, config: checks.epilog(info, config, released=True)),
    ],
)
def test_a_script_that_failed_is_found_by_the_reason_of_the_drain(
    reason: str, script: str, judge: Callable[[NodeInfo, dict[str, str]], Verdict]
) -> None:
    for config in ({script: "/etc/s.sh"}, {f"{script}[0]": "/etc/s.sh"}):  # since 23.11 several
        verdict = judge(_info("IDLE+DRAIN", reason=reason, reason_user="slurm"), config)
        assert verdict.findings == (
            Finding(script, f'DRAINED: "{reason}" by slurm', "/etc/s.sh ends with 0"),
        )
        assert verdict.action is Action.CONFIGURE
    assert judge(_info("IDLE", reason=reason), {}).reason == f"slurm.conf names no {script}"
    # the reason of a drain that is over: the node is in service
    assert judge(_info("IDLE", reason=reason), {script: "/s"}).outcome is not Outcome.FAILED
    assert checks.schedulable(_info("IDLE+CLOUD", reason=reason)).outcome is Outcome.PASSED


def test_an_epilog_is_judged_when_the_nodes_are_released() -> None:
    verdict = checks.epilog(_info(), {"Epilog": "/e"}, released=False)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, checks.EPILOG_LATER)
    assert checks.epilog(_info(), {"Epilog": "/e"}, released=True).outcome is Outcome.PASSED
    drained = _info("IDLE+DRAIN", reason="gpucluster:slurm.epilog 1!=0 run=1 sum=0", reason_user="root")
    assert "run it by hand" in checks.epilog(drained, {"Epilog": "/e"}, released=True).reason


def _diagnostic(*tasks: DiagnosticTask, **values: Any) -> NodeDiagnostic:
    base = NodeDiagnostic(
        "gpu01", len(tasks), len(tasks), shared=False, token="tok", tasks=tasks, seconds=1.0, command="srun"
    )
    return replace(base, **values)


def _task(rank: int, **values: Any) -> DiagnosticTask:
    rc, number = {0: (7, None), 1: (137, 9)}.get(rank, (0, None))
    base = DiagnosticTask(
        rank, rank, 3, str(rank), str(rank), (), "tok", stderr_arrived=True, rc=rc, signal=number,
        cpus=frozenset({rank}), online=8,
    )  # fmt: skip
    return replace(base, **values)


GOOD = _diagnostic(_task(0), _task(1), _task(2))
DIAGNOSTIC_CHECKS = (
    checks.step, checks.output, checks.environment, checks.exit_code, checks.signal, checks.gpu_binding,
    checks.cpu_affinity,
)  # fmt: skip


def test_a_good_diagnostic_passes() -> None:
    assert {judge(GOOD).outcome for judge in DIAGNOSTIC_CHECKS} == {Outcome.PASSED}
    assert checks.prolog(GOOD, _info(), {"Prolog": "/p"}).outcome is Outcome.PASSED


def test_a_step_that_did_not_run_is_one_finding_and_nothing_else_is_judged() -> None:
    diagnostic = _diagnostic(_task(0), problem="srun: error: Task launch failed")
    assert checks.step(diagnostic).findings == (
        Finding("step", "srun: error: Task launch failed", "1 tasks"),
    )
    others = [judge(diagnostic) for judge in DIAGNOSTIC_CHECKS[1:]]
    assert {(one.outcome, one.reason) for one in others} == {(Outcome.NOT_CHECKED, diagnostic.problem)}
    prolog = checks.prolog(diagnostic, _info(), {"Prolog": "/p"})
    assert (prolog.outcome, prolog.reason) == (
        Outcome.NOT_CHECKED,
        f"no step has run on the node: {diagnostic.problem}",
    )
    assert checks.prolog(None, None, {"Prolog": "/p"}).reason == "no step has run on the node"


@pytest.mark.parametrize(
    ("values", "measured"),
    [
        ({"problem": "Prolog hung on node"}, "Prolog hung on node"),
        ({"problem": "x", "state_after": "DRAINED: Prolog error"}, "DRAINED: Prolog error"),
    ],
)
def test_a_prolog_that_kept_the_step_from_starting_is_found(values: dict[str, str], measured: str) -> None:
    verdict = checks.prolog(_diagnostic(_task(0), **values), _info(), {"Prolog": "/p"})
    assert verdict.findings == (Finding("Prolog", measured, "/p ends with 0"),)


@pytest.mark.parametrize(
    ("judge", "diagnostic", "finding"),
    [
        (
            checks.step,
            _diagnostic(_task(0), tasks_requested=2),
            Finding("tasks", "0", "0 to 1"),
        ),
        (
            checks.step,
            _diagnostic(_task(0, lost=("SLURM_PROCID", "SLURM_LOCALID"))),
            Finding("task 0", "SLURM_PROCID, SLURM_LOCALID not as Slurm sets it", "the values of this task"),
        ),
        (
            checks.output,
            _diagnostic(_task(0), tasks_requested=2),
            Finding("stdout", "of 1 tasks", "of 2 tasks"),
        ),
        (
            checks.output,
            _diagnostic(_task(0, stderr_arrived=False)),
            Finding("stderr of task 0", "nothing", "its line"),
        ),
        (
            checks.environment,
            _diagnostic(_task(0, token="to")),
            Finding("GPUCLUSTER_DIAGNOSTIC of task 0", "'to'", "'tok'"),
        ),
        (checks.exit_code, _diagnostic(_task(1)), Finding("local task 0", "no report", "exit status 7")),
        (checks.exit_code, _diagnostic(_task(0, rc=1)), Finding("task 0", "exit status 1", "exit status 7")),
        (
            checks.exit_code,
            _diagnostic(_task(0, rc=7, signal=15)),
            Finding("task 0", "signal 15", "exit status 7"),
        ),
        (
            checks.exit_code,
            _diagnostic(_task(0), _task(2, rc=1)),
            Finding("task 2", "exit status 1", "exit status 0"),
        ),
        (
            checks.exit_code,
            _diagnostic(_task(0), _task(2, signal=9)),
            Finding("task 2", "signal 9", "exit status 0"),
        ),
        (checks.signal, _diagnostic(_task(0)), Finding("local task 1", "no report", "signal 9")),
        (
            checks.signal,
            _diagnostic(_task(1, signal=None, rc=0)),
            Finding("task 1", "exit status 0", "signal 9"),
        ),
        (checks.signal, _diagnostic(_task(1, signal=15)), Finding("task 1", "signal 15", "signal 9")),
        (
            checks.gpu_binding,
            _diagnostic(_task(0, visible="unset")),
            Finding("task 0", "0 devices (CUDA_VISIBLE_DEVICES=unset)", "1 device"),
        ),
        (
            checks.gpu_binding,
            _diagnostic(_task(0, visible="0,1")),
            Finding("task 0", "2 devices (CUDA_VISIBLE_DEVICES=0,1)", "1 device"),
        ),
        (
            checks.gpu_binding,
            _diagnostic(_task(0), _task(1, visible="0")),
            Finding("GPU 0", "used by tasks 0, 1", "used by one task"),
        ),
        (
            checks.cpu_affinity,
            _diagnostic(_task(0), _task(1, cpus=frozenset({0}))),
            Finding("CPUs of 2 tasks", "1 (CPU 0)", "at least 2"),
        ),
    ],
)
def test_what_a_diagnostic_step_finds(
    judge: Callable[[NodeDiagnostic], Verdict], diagnostic: NodeDiagnostic, finding: Finding
) -> None:
    verdict = judge(diagnostic)
    assert (verdict.findings, verdict.action) == ((finding,), Action.CONFIGURE)


def test_gpus_that_are_shared_or_not_there_are_not_held_against_the_tasks() -> None:
    shared = _diagnostic(_task(0), _task(1, visible="0"), shared=True)
    assert checks.gpu_binding(shared).outcome is Outcome.PASSED
    none = checks.gpu_binding(_diagnostic(_task(0, visible="unset"), gpus_requested=0))
    assert (none.outcome, none.reason) == (Outcome.NOT_APPLICABLE, "Slurm has no GPUs on this node")
    # where cgroups hide devices CUDA_VISIBLE_DEVICES counts from 0 in each task
    hidden = _diagnostic(_task(0, visible="0", openable=("3",)), _task(1, visible="0", openable=("5",)))
    assert checks.gpu_binding(hidden).outcome is Outcome.PASSED


def test_cpus_that_no_task_could_tell_are_not_judged() -> None:
    verdict = checks.cpu_affinity(_diagnostic(_task(0, cpus=frozenset())))
    assert verdict.reason == "the tasks could not read the CPUs that they may run on"
    assert verdict.outcome is Outcome.NOT_CHECKED
    one = frozenset({0})  # a node of one CPU has no other
    assert checks.cpu_affinity(
        _diagnostic(_task(0, cpus=one, online=1), _task(1, cpus=one, online=1))
    ).outcome is (Outcome.PASSED)


@pytest.mark.parametrize(
    ("stated", "finding"),
    [
        ({"max_time": 7200}, Finding("MaxTime of partition p", "0-01:00:00", "0-02:00:00")),
        ({"default_time": 60}, Finding("DefaultTime of partition p", "unlimited or not set", "0-00:01:00")),
        ({"max_nodes": 2}, Finding("MaxNodes of partition p", "1", "2")),
        ({"state": "DOWN"}, Finding("State of partition p", "UP", "DOWN")),
    ],
)
def test_limits_of_a_partition_are_those_that_are_stated(stated: dict[str, Any], finding: Finding) -> None:
    there = {"p": PartitionInfo("p", "UP", max_time=3600.0, max_nodes=1)}
    verdict = checks.limits(there, {"p": JobLimits(**stated)})
    assert (verdict.findings, verdict.action) == ((finding,), Action.CONFIGURE)
    assert checks.limits(there, {"p": JobLimits(max_time=3600)}).outcome is Outcome.PASSED
    (unknown,) = checks.limits(there, {"q": JobLimits()}).findings
    assert unknown == Finding("partition q", "unknown to Slurm", "a partition")
    assert checks.limits(there, {}).reason == "the cluster file states no limits"


DAY = "2026-11-21T06:58"
ELEMENT = JobRecord("7_1", "FAILED", "", 0, f"{DAY}:04", f"{DAY}:06", f"{DAY}:06", f"{DAY}:07", exit_code=3)
ASKS = replace(ELEMENT, job="7_0", state="PENDING", restarts=1, exit_code=None)
DEPENDENT = JobRecord("8", "FAILED", "", 0, f"{DAY}:04", f"{DAY}:07", f"{DAY}:07", f"{DAY}:08", exit_code=5)


def _facts(*records: JobRecord, submitted_in: float = 0.1) -> JobFacts:
    return JobFacts(Jobs("7", "8", 2, submitted_in=submitted_in), {one.job: one for one in records})


@pytest.mark.parametrize(
    ("eligible", "submitted_in", "outcome"),
    [
        (":06", 0.1, Outcome.PASSED),
        (":04", 0.1, Outcome.FAILED),  # as without --begin
        (":04", 1.9, Outcome.NOT_CHECKED),
        (":03", 0.1, Outcome.NOT_CHECKED),  # sbatch's clock is behind slurmctld's
        (":05", 1.9, Outcome.PASSED),
    ],
)
def test_a_slow_sbatch_is_no_begin_that_is_not_heeded(
    eligible: str, submitted_in: float, outcome: Outcome
) -> None:
    facts = _facts(replace(ELEMENT, eligible=DAY + eligible), submitted_in=submitted_in)
    assert checks.begin(facts).outcome is outcome


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (ASKS, Outcome.PASSED),
        (replace(ASKS, state="RUNNING", restarts=0), Outcome.NOT_CHECKED),
        (replace(ASKS, state="COMPLETED", restarts=0), Outcome.FAILED),
        (replace(ASKS, state="FAILED", restarts=0, exit_code=9), Outcome.FAILED),
    ],
)
def test_a_job_that_has_just_started_had_no_time_to_be_requeued(record: JobRecord, outcome: Outcome) -> None:
    assert checks.requeue(_facts(record)).outcome is outcome


@pytest.mark.parametrize(
    ("judge", "records", "finding"),
    [
        (
            lambda facts: checks.job_start(facts, 1.0),
            (replace(ELEMENT, started="", state="PENDING", reason="None"),),
            Finding("job", "PENDING", "started within 1 s"),
        ),
        (
            lambda facts: checks.job_start(facts, 1.0),
            (replace(ELEMENT, started=f"{DAY}:08"),),
            Finding("job", "started after 2 s", "within 1 s"),
        ),
        (
            checks.array,
            (replace(ASKS, started="", restarts=0, reason="None"), ELEMENT),
            Finding("element 0", "PENDING", "started"),
        ),
        (
            checks.array,
            (ASKS, replace(ELEMENT, started="", state="PENDING", reason="None")),
            Finding("element 1", "PENDING", "started"),
        ),
        (
            checks.array,
            (ASKS, replace(ELEMENT, exit_code=0)),
            Finding("element 1", "FAILED, exit 0", "exit 3"),
        ),
        (
            checks.dependency,
            (ELEMENT, replace(DEPENDENT, ended="", state="PENDING", reason="Dependency")),
            Finding("dependent job", "PENDING (Dependency)", "ended with exit 5"),
        ),
        (
            checks.dependency,
            (ELEMENT, replace(DEPENDENT, exit_code=1)),
            Finding("dependent job", "FAILED", "ended with exit 5"),
        ),
        (
            checks.dependency,
            (ELEMENT, replace(DEPENDENT, started=f"{DAY}:06")),
            Finding("dependent job", f"started {DAY}:06", f"not before {DAY}:07"),
        ),
        (
            checks.dependency,
            (replace(ELEMENT, ended=""), DEPENDENT),
            Finding("dependent job", f"started {DAY}:07", "not before "),
        ),
        (
            checks.requeue,
            (replace(ASKS, state="COMPLETED", restarts=0),),
            Finding("element 0", "requeued 0 times (COMPLETED)", "once"),
        ),
        (
            checks.requeue,
            (replace(ASKS, restarts=2),),
            Finding("element 0", "requeued 2 times (PENDING)", "once"),
        ),
        (
            checks.begin,
            (replace(ELEMENT, started="", state="PENDING", reason="BeginTime"),),
            Finding("job", "PENDING (BeginTime)", "started after its --begin"),
        ),
        (
            checks.begin,
            (replace(ELEMENT, started=f"{DAY}:05"),),
            Finding(
                "job",
                f"submitted {DAY}:04, eligible {DAY}:06, started {DAY}:05",
                "eligible 2 s after submission, started then",
            ),
        ),
    ],
)
def test_what_the_jobs_show(
    judge: Callable[[JobFacts], Verdict], records: tuple[JobRecord, ...], finding: Finding
) -> None:
    verdict = judge(_facts(*records))
    assert verdict.findings == (finding,)
    assert not verdict.action.is_repair


def test_a_job_that_starts_at_the_bound_is_in_time() -> None:
    verdict = checks.job_start(_facts(replace(ELEMENT, started=f"{DAY}:07")), 1.0)
    assert verdict.outcome is Outcome.PASSED
    assert [(one.name, one.value, one.unit) for one in verdict.metrics] == [("job_start", 1.0, "s")]
    assert checks.job_start(_facts(), 1.0).reason == FORGOTTEN


def test_jobs_of_which_nothing_is_known_are_not_judged() -> None:
    facts = replace(_facts(), problem="no squeue")
    judges = (
        checks.array,
        checks.dependency,
        checks.requeue,
        checks.begin,
        lambda it: checks.job_start(it, 1.0),
    )
    assert {(judge(facts).outcome, judge(facts).reason) for judge in judges} == {
        (Outcome.NOT_CHECKED, "no squeue")
    }
    waiting = checks.requeue(_facts(replace(ASKS, state="RUNNING", restarts=0)))
    assert waiting.reason == "element 0 is RUNNING: it has not requeued itself yet"
    late = checks.begin(_facts(replace(ELEMENT, eligible=f"{DAY}:04"), submitted_in=1.9))
    assert late.reason == "sbatch took 1.9 s, or clocks differ: its --begin was in the past"


def test_a_step_without_a_word_of_its_time_limit_is_named() -> None:
    verdict = checks.time_limit(_ended(of_srun="srun: error: gpu01: task 0: Terminated\n"))
    assert verdict.findings == (Finding("step", "ended with 143", "cancelled due to its time limit"),)
    assert verdict.action is Action.CONFIGURE


def test_jobs_that_slurm_has_forgotten_are_not_judged() -> None:
    for judge in (checks.array, checks.dependency, checks.requeue, checks.begin):
        assert judge(_facts(ELEMENT, ASKS, DEPENDENT)).outcome is Outcome.PASSED
        assert judge(_facts()).outcome is Outcome.NOT_CHECKED


# --- value by value ---


def told(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.outcome, verdict.reason, verdict.findings, verdict.metrics


def test_figures_of_a_node() -> None:
    info = replace(NodeInfo("gpu01", *parse_state("IDLE")), cpus=64, memory=3 * 2**30)
    assert told(checks.cpus(info, NodeProfile(cpus=64))) == (
        Outcome.PASSED, "", (), (Metric("slurm_cpus", 64, "CPUs"),)
    )  # fmt: skip
    assert checks.memory(info, NodeProfile(memory=3 * 2**30)).metrics == (Metric("slurm_memory", 3.0, "GiB"),)


@pytest.mark.parametrize(
    ("gres", "mig"),
    [
        ("gpu:nvidia_a100_1g.5gb", True), ("gpu:1g.10gb", True), ("gpu:1c.3g.20gb", True), ("gpu:7G.80GB", True),
        ("gpu:h200", False), ("gpu:xg.5gb", False), ("gpu:g.5gb", False), ("gpu:1g.gb", False), ("gpu:1g.xgb", False),
        ("gpu:1gx5gb", False),
    ],
)  # fmt: skip
def test_names_of_mig_instances(gres: str, *, mig: bool) -> None:
    assert NodeInfo("gpu01", "IDLE", gres={gres: 7}).allocates_mig is mig


def task(rank: int, **change: Any) -> DiagnosticTask:
    cpus = frozenset({rank})
    whole = DiagnosticTask(rank, rank, 2, str(rank), "", (), "tok", True, 0, None, cpus, 8)  # a record
    return replace(whole, **change)


def diagnostic(*tasks: DiagnosticTask, **change: Any) -> NodeDiagnostic:
    return replace(NodeDiagnostic("gpu01", 2, 2, False, "tok", tasks, 1.5, "srun"), **change)  # a record


def test_figures_of_a_step() -> None:
    whole = diagnostic(task(0), task(1))
    assert told(checks.step(whole)) == (Outcome.PASSED, "", (), (Metric("step", 1.5, "s"),))
    assert told(checks.gpu_binding(whole)) == (Outcome.PASSED, "", (), (Metric("bound_gpus", 2, "GPUs"),))
    assert told(checks.cpu_affinity(whole)) == (Outcome.PASSED, "", (), (Metric("step_cpus", 2, "CPUs"),))


def test_fewer_cpus_than_tasks() -> None:
    few = diagnostic(
        task(0, cpus=frozenset({3, 12}), online=1),
        task(1, cpus=frozenset({12})),
        task(2, cpus=frozenset({3})),
    )
    assert checks.cpu_affinity(few).findings == (Finding("CPUs of 3 tasks", "2 (CPU 3, 12)", "at least 3"),)


def test_of_a_step_that_failed_nothing_else_is_judged() -> None:
    sick = diagnostic(task(0, visible="0,1", token="x", stderr_arrived=False), problem="it hung")
    assert told(checks.step(sick)) == (
        Outcome.FAILED, "", (Finding("step", "it hung", "2 tasks"),), (Metric("step", 1.5, "s"),)
    )  # fmt: skip
    for judge in (checks.output, checks.environment, checks.exit_code, checks.signal, checks.gpu_binding):
        assert told(judge(sick)) == (Outcome.NOT_CHECKED, "it hung", (), ())


def test_devices_that_open_count_where_they_are_as_many_as_named() -> None:
    assert checks.devices_of(task(0, visible="0", openable=("5",))) == ("5",)
    assert checks.devices_of(task(0, visible="0", openable=("5", "6"))) == ("0",)
    assert checks.devices_of(task(0, visible="3", openable=("0",))) == (
        "3",
    )  # not renumbered: no cgroup hides the others
    assert checks.devices_of(task(0, visible="unset", openable=())) == ()
    assert checks.devices_of(task(0, visible="", openable=("5",))) == ()


def test_a_step_of_a_time_limit_has_its_seconds() -> None:
    result = StepResult(143, (TaskResult(0, "gpu01", 143, 15, stderr="LIMIT"),), "DUE TO TIME", 64.4, "srun")
    verdict = checks.time_limit(result)
    assert verdict.metrics == (Metric("time_limit", 64.4, "s", better="neither"),)
    assert verdict.findings == (Finding("step", "ended with 143", "cancelled due to its time limit"),)


def test_causes_and_hints_of_jobs() -> None:
    assert (CHECKS["slurm.dependency"].cause, CHECKS["slurm.begin"].cause, CHECKS["slurm.limits"].hint) == (
        "job dependencies are not resolved", "slurmctld ignores --begin", "scontrol show partition",
    )  # fmt: skip


# --- matrix


def test_words_of_the_matrix() -> None:
    assert matrix.TITLE == "experiment matrix"
    assert [state.value for state in matrix.State] == [
        "works",
        "fails as expected",
        "BROKEN",
        "not checked",
        "n/a",
    ]
    part = Finding("MPI without PMI", "x", "y"), Finding("ranks 0", "told nothing", "all")
    settled = matrix.settle("srun", "mpi", Verdict("mpi.world", Outcome.FAILED, part), {}, pmi_required=False)
    assert (settled.state, settled.why) == (matrix.State.EXPECTED, "no PMI support")


# --- monitoring


def monitored(*targets: Target, **change: Any) -> MonitoringFacts:
    service = Service("Prometheus", "http://p:9090")
    return MonitoringFacts(service, None, {"n": targets}, **{"now": 100.0, **change})


def test_a_target_that_is_missing_among_two() -> None:
    seen = monitored(Target("a", "http://n:1", 1, "up"), Target("b", "http://n:2", 2, "up"))
    assert told(monitoring.target(seen, "n", {"node_exporter": 9100})) == (
        Outcome.FAILED, "",
        (
            Finding(
                "node_exporter on port 9100",
                "not a target of Prometheus (the node has a on port 1, b on port 2)", "a target",
            ),
        ),
        (Metric("node_targets", 2, "targets"),),
    )  # fmt: skip


def test_without_exporters_of_the_cluster_nothing_is_judged() -> None:
    assert told(monitoring.exporters(monitored(), MonitoringConfig(cluster_exporters={}))) == (
        Outcome.NOT_APPLICABLE, "the cluster file sets no monitoring.cluster_exporters", (), ()
    )  # fmt: skip


def test_one_pattern_of_several_is_enough_to_ignore_an_alert() -> None:
    claim = MonitoringConfig(ignored_alerts=("Other*", "Disk*"))
    seen = monitored(alerts={"n": (Alert("DiskFull", "firing"), Alert("Late", "firing", "page", "words"))})
    assert told(monitoring.alerts(seen, "n", claim)) == (
        Outcome.FAILED, "", (Finding("alert Late", "page firing: words", "no firing alert"),),
        (Metric("alerts_firing", 2, "alerts"),),
    )  # fmt: skip
