"""Checks of the slurm suite on made-up results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucluster.checks import slurm as checks
from pytest_gpucluster.checks.verdict import Outcome
from pytest_gpucluster.slurm.exam import JobFacts, JobRecord, Jobs, judge_step, parse_squeue
from pytest_gpucluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.slurm.step import StepRequest

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


# squeue's columns of the exam as recorded; `{}` is exit_code
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
    """Make a task of the exam that tells these variables."""
    line = f"exam|{procid}|{node}|{local}|{ntasks}|0|0||0-1|0-1|tok|end\n"
    return TaskResult(
        rank, "gpu01" if rank == 0 else "gpu02", 7, None, stdout=line, stderr=f"exam-err|{procid}|end\n"
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


def test_jobs_that_slurm_has_forgotten_are_not_judged() -> None:
    for judge in (checks.array, checks.dependency, checks.requeue, checks.begin):
        assert judge(_facts(ELEMENT, ASKS, DEPENDENT)).outcome is Outcome.PASSED
        assert judge(_facts()).outcome is Outcome.NOT_CHECKED
