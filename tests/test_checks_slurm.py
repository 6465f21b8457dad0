"""Checks of the slurm suite on made-up results."""

from __future__ import annotations

from pytest_gpucluster.checks import slurm as checks
from pytest_gpucluster.checks.verdict import Outcome
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
