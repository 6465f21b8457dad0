"""Checks of submitit on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadTask
from pytest_gpucluster.suites.submitit import checks
from pytest_gpucluster.suites.submitit import steps as runner
from pytest_gpucluster.suites.submitit.checks import SubmititResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# -- verdicts on plain facts --------------------------------------------------------------------------------------


def result(*facts: Mapping[str, Any], accounting: bool = False, problem: str = "") -> SubmititResult:
    """Return the result of a driver that printed these facts."""
    task = PayloadTask(0, "", None, None, facts)
    return SubmititResult("submitit", (), 1, (task,), problem, accounting=accounting)


def reported(*, accounting: bool = False, **changes: dict[str, Any] | None) -> SubmititResult:
    """Return what a healthy driver tells; `add={...}` replaces one result, None leaves it away."""
    places = [{"rank": rank, "tasks": 3, "slurm": rank, "node": "gpu01"} for rank in range(3)]
    results: dict[str, dict[str, Any] | None] = {
        "add": {"value": [12], "state": "COMPLETED"},
        "array": {"value": [11, 22, 33]},
        "multitask": {"value": places},
        "failure": {"error": "FailedJobError", "text": f"Traceback\nValueError: {checks.FAILURE}"},
        "cancel": {"over": True, "slurm": "", "known": accounting, "state": "CANCELLED by 0", "seconds": 1.0},
        **changes,
    }
    facts: list[dict[str, Any]] = [{"submitit": "submitted", "version": "1.5", "jobs": ["1"]}]
    facts += [{"submitit": name, **fact} for name, fact in results.items() if fact]
    return result(*facts, accounting=accounting)


@pytest.mark.parametrize(
    ("auth", "seconds"),
    [("(null)", 120), ("socket=/run/munge,cred_expire=15", 15), ("cred_expire=1200,ttl=3", 1200)],
)
def test_the_delay_of_a_requeue_is_that_of_slurm(auth: str, seconds: float) -> None:
    assert runner.requeue_delay({"AuthInfo": auth}) == seconds
    assert runner.requeue_delay({}) == 120


def test_records_are_kept_where_slurm_says_so() -> None:
    assert not runner.stores_records({})
    assert not runner.stores_records({"AccountingStorageType": "accounting_storage/none"})
    assert runner.stores_records({"AccountingStorageType": "accounting_storage/slurmdbd"})


def over(**change: Any) -> dict[str, Any]:
    return {"over": True, "slurm": "", "known": False, "state": "CANCELLED", "seconds": 2, **change}


def ran(*runs: tuple[int, int]) -> dict[str, Any]:
    """Return what a job that was requeued computed in its runs (restart, first step)."""
    return {"sum": 36, "runs": [{"restart": restart, "step": step} for restart, step in runs]}


def requeued(fact: dict[str, Any] | None) -> SubmititResult:
    return replace(reported(checkpoint=fact), checkpoint=True)


CASES: Table = {
    checks.checkpoint: [
        ("configure: result of checkpoint", requeued(None)),
        (
            "configure: job [1]",
            requeued({"error": "FailedJobError", "text": "Traceback\nscontrol requeue: exit 1"}),
        ),
        ("configure: job", requeued({"error": "late", "text": "PENDING"})),
        ("configure: sum over both runs [26, 36]", requeued({"value": [{**ran((0, 0), (1, 4)), "sum": 26}]})),
        ("configure: runs [0, 0, 1, 0, 0, 0, 1, 4]", requeued({"value": [ran((0, 0), (1, 0))]})),
        ("configure: runs [0, 0, 0, 0, 1, 4]", requeued({"value": [ran((0, 0))]})),
        ("configure: runs [1, 0, 0, 0, 1, 4]", requeued({"value": [ran((1, 0))]})),
        ("passed", requeued({"value": [ran((0, 0), (1, 4))]})),
        ("not applicable", reported()),
    ],
    checks.framework: [
        ("passed", reported()),
        ("configure: submission", result()),
        ("configure: submission", result(problem="python: not found")),
        ("configure: package submitit", result({"submitit": "failed", "error": "ImportError", "text": "t"})),
        (
            "configure: package submitit",
            result({"submitit": "failed", "error": "ModuleNotFoundError", "text": "t"}),
        ),
        (
            "configure: submission",
            result({"submitit": "failed", "error": "FailedJobError", "text": "sbatch: refused"}),
        ),
    ],
    checks.add: [
        ("passed", reported()),
        ("configure: result [13, 12]", reported(add={"value": [13]})),
        ("configure: job", reported(add={"error": "late", "text": "PENDING"})),
        ("configure: job", reported(add={"error": "late", "text": ""})),
        ("configure: job", reported(add={"error": "UncompletedJobError", "text": "no\nfile\n"})),
        ("configure: job", reported(add={"error": "UncompletedJobError", "text": ""})),
        ("configure: result of add", reported(add=None)),
        (
            "configure: result of add",
            result(
                *reported(add=None).tasks[0].facts, {"submitit": "failed", "error": "OSError", "text": "t"}
            ),
        ),
        ("configure: result of add", replace(reported(add=None), problem="killed")),
        ("not checked", result()),
    ],
    checks.array: [
        ("not checked", result()),
        ("passed", reported()),
        ("configure: result [11, 33, 22, 11, 22, 33]", reported(array={"value": [11, 33, 22]})),
        ("configure: result of array", reported(array=None)),
    ],
    checks.multitask: [
        (
            "configure: ranks [0, 2, 0, 2]",
            reported(
                multitask={
                    "value": [{"rank": rank, "tasks": 3, "slurm": rank, "node": "a"} for rank in (0, 2)]
                }
            ),
        ),
        ("not checked", result()),
        ("passed", reported()),
        ("configure: result of multitask", reported(multitask=None)),
        ("configure: job", reported(multitask={"error": "late", "text": "PENDING"})),
        ("configure: ranks [0, 2]", reported(multitask={"value": []})),
        (
            "configure: task on a; task on a [1, 3, 0, 3, 2, 3, 0, 3]",
            reported(
                multitask={"value": [{"rank": r, "tasks": 3, "slurm": 0, "node": "a"} for r in range(3)]}
            ),
        ),
        (
            "configure: ranks; task on a [0, 0, 2, 0, 1, 0, 3]",
            reported(multitask={"value": [{"rank": 0, "tasks": 1, "slurm": 0, "node": "a"}]}),
        ),
    ],
    checks.failure: [
        ("configure: job", reported(failure={"error": "FailedJobError"})),
        ("not checked", result()),
        ("passed", reported()),
        ("configure: result of failure", reported(failure=None)),
        ("configure: job", reported(failure={"value": [None]})),
        ("configure: job", reported(failure={"error": "FailedJobError", "text": "another"})),
        ("configure: job", reported(failure={"error": "UncompletedJobError", "text": checks.FAILURE})),
        ("configure: job", reported(failure={"error": "UncompletedJobError", "text": "y" + "x" * 200})),
    ],
    checks.cancel: [
        ("not checked", result()),
        ("passed [1]", reported()),
        ("passed [1]", reported(accounting=True)),
        ("monitor: result of cancel", reported(cancel=None)),
        ("monitor: job", reported(cancel={"error": "late", "text": "PENDING"})),
        ("monitor: job [30]", reported(cancel={"over": False, "slurm": "RUNNING", "seconds": 30.0})),
        ("monitor: submitit's state of the job [2]", reported(accounting=True, cancel=over())),
        (
            "monitor: submitit's state of the job [2]",
            reported(accounting=True, cancel=over(known=True, state="COMPLETED")),
        ),
        ("passed [2]", reported(cancel=over(state="UNKNOWN"))),
    ],
    checks.accounting: [
        ("not checked", reported(add={"value": [12], "state": "FAILED"})),
        ("passed", reported(accounting=True)),
        ("configure: result of add", reported(accounting=True, add=None)),
        ("configure: state of the job", reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})),
        ("configure: state of the job", reported(accounting=True, add={"value": [12]})),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected
