"""Checks of the slurm suite on made-up results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucluster.checks import slurm as checks
from pytest_gpucluster.checks.verdict import Outcome
from pytest_gpucluster.slurm.exam import JobFacts, JobRecord, Jobs
from pytest_gpucluster.slurm.step import StepResult, TaskResult

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


def test_a_step_that_ended_for_another_reason_proves_no_time_limit() -> None:
    verdict = checks.time_limit(_ended(of_srun="srun: error: gpu01: task 0: Terminated\n"))
    assert verdict.outcome is Outcome.FAILED


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
