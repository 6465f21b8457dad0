"""Checks of submitit on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadTask
from pytest_gpucluster.suites.submitit import checks
from pytest_gpucluster.suites.submitit import steps as runner
from pytest_gpucluster.suites.submitit.checks import SubmititResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

from framework_helpers import as_reported

from pytest_gpucluster.core.check import Finding
from pytest_gpucluster.suites.submitit import checks as submitit

ALL = (checks.framework, checks.add, checks.array, checks.multitask, checks.failure, checks.cancel)


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


def found(verdict: Verdict) -> str:
    return " | ".join(f"{x.part}: {x.measured}" for x in verdict.findings)


@pytest.mark.parametrize(
    ("check", "change", "printed"),
    [
        (checks.add, {"add": {"value": [13]}}, "result: [13]"),
        (checks.add, {"add": {"error": "late", "text": "PENDING"}}, "did not end in time: PENDING"),
        (
            checks.add,
            {"add": {"error": "UncompletedJobError", "text": "no\nfile"}},
            "UncompletedJobError: file",
        ),
        (checks.array, {"array": {"value": [11, 33, 22]}}, "[11, 33, 22]"),
        (
            checks.multitask,
            {"multitask": {"value": [{"rank": 0, "tasks": 1, "slurm": 0, "node": "a"}]}},
            "ranks: 0",
        ),
        (
            checks.multitask,
            {"multitask": {"value": [{"rank": r, "tasks": 3, "slurm": 0, "node": "a"} for r in range(3)]}},
            "rank 1 of 3, Slurm's task 0",
        ),
        (checks.failure, {"failure": {"value": [None]}}, "job: the value [None]"),
        (
            checks.failure,
            {"failure": {"error": "UncompletedJobError", "text": "x"}},
            "UncompletedJobError: x",
        ),
        (checks.cancel, {"cancel": {"over": False, "slurm": "RUNNING", "seconds": 30.0}}, "still RUNNING"),
        (checks.cancel, {"cancel": None}, "result of cancel: the driver ended without a message"),
    ],
)
def test_what_is_wrong_fails(check: Any, change: dict[str, Any], printed: str) -> None:
    verdict = check(reported(**change))
    assert verdict.outcome is Outcome.FAILED
    assert printed in found(verdict)


def test_with_accounting_submitit_has_to_know_the_states() -> None:
    unknown = {"over": True, "slurm": "", "known": False, "state": "UNKNOWN", "seconds": 1.0}
    assert (
        found(checks.cancel(reported(accounting=True, cancel=unknown)))
        == "submitit's state of the job: UNKNOWN"
    )
    assert checks.cancel(reported(cancel=unknown)).outcome is Outcome.PASSED
    assert checks.accounting(reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})).findings


def test_nothing_submitted_is_one_failure_and_never_a_pass() -> None:
    failed = {"submitit": "failed", "phase": "submit", "error": "ModuleNotFoundError", "text": "No module"}
    nothing = result(failed)
    assert found(checks.framework(nothing)) == "package submitit: ModuleNotFoundError: No module"
    assert {check(nothing).outcome for check in ALL[1:]} == {Outcome.NOT_CHECKED}
    assert found(checks.framework(result(problem="python: not found"))) == "submission: python: not found"


CONTINUED = {"sum": 36, "runs": [{"restart": 0, "step": 0}, {"restart": 1, "step": 4}]}


@pytest.mark.parametrize(
    ("fact", "printed"),
    [
        ({"value": [CONTINUED]}, ""),
        ({"value": [{"sum": 36, "runs": [{"restart": 1, "step": 0}]}]}, "runs: restart 1 from step 0"),
        ({"value": [{"sum": 36, "runs": [{"restart": 0, "step": 0}]}]}, "runs: restart 0 from step 0"),
        (
            {"value": [{"sum": 36, "runs": [{"restart": 0, "step": 0}, {"restart": 1, "step": 0}]}]},
            "runs: restart 0 from step 0, restart 1 from step 0",
        ),
        ({"value": [{**CONTINUED, "sum": 26}]}, "sum over both runs: 26"),
        ({"error": "late", "text": "PENDING"}, "job: did not end in time: PENDING"),
        (
            {"error": "FailedJobError", "text": "Traceback\nscontrol requeue: exit 1"},
            "job: FailedJobError: scontrol requeue: exit 1",
        ),
        (None, "result of checkpoint: the driver ended without a message"),
    ],
)
def test_a_requeued_job_continues(fact: dict[str, Any] | None, printed: str) -> None:
    verdict = checks.checkpoint(replace(reported(checkpoint=fact), checkpoint=True))
    assert found(verdict) == printed
    assert verdict.outcome is (Outcome.FAILED if printed else Outcome.PASSED)


def test_without_the_key_no_job_is_requeued() -> None:
    assert checks.checkpoint(reported()).outcome is Outcome.NOT_APPLICABLE


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


CASES: Table = {
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
        ("configure: result [11, 33, 22, 11, 22, 33]", reported(array={"value": [11, 33, 22]})),
        ("configure: result of array", reported(array=None)),
    ],
    checks.multitask: [
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
        ("configure: result of failure", reported(failure=None)),
        ("configure: job", reported(failure={"value": [None]})),
        ("configure: job", reported(failure={"error": "FailedJobError", "text": "another"})),
        ("configure: job", reported(failure={"error": "UncompletedJobError", "text": checks.FAILURE})),
        ("configure: job", reported(failure={"error": "UncompletedJobError", "text": "y" + "x" * 200})),
    ],
    checks.cancel: [
        ("passed [1]", reported()),
        ("passed [1]", reported(accounting=True)),
        ("monitor: result of cancel", reported(cancel=None)),
        ("monitor: job", reported(cancel={"error": "late", "text": "PENDING"})),
        ("monitor: job [30]", reported(cancel={"over": False, "slurm": "RUNNING", "seconds": 30.0})),
        (
            "monitor: submitit's state of the job [2]",
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": False, "state": "CANCELLED", "seconds": 2},
            ),
        ),
        (
            "monitor: submitit's state of the job [2]",
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": True, "state": "COMPLETED", "seconds": 2},
            ),
        ),
        (
            "passed [2]",
            reported(cancel={"over": True, "slurm": "", "known": False, "state": "UNKNOWN", "seconds": 2}),
        ),
    ],
    checks.accounting: [
        ("not checked", reported()),
        ("passed", reported(accounting=True)),
        ("configure: result of add", reported(accounting=True, add=None)),
        ("configure: state of the job", reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})),
        ("configure: state of the job", reported(accounting=True, add={"value": [12]})),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


def test_submitit_tells_ranks_and_exceptions_exactly() -> None:
    places = [{"rank": rank, "tasks": 3, "slurm": rank, "node": "a"} for rank in (0, 2)]
    facts = reported(multitask={"value": places})
    assert submitit.multitask(facts).findings == (Finding("ranks", "0, 2", "0 to 2, once each"),)
    silent = reported(failure={"error": "FailedJobError"})
    assert submitit.failure(silent).findings == (
        Finding("job", "FailedJobError", "FailedJobError: gpucluster: expected failure"),
    )
    unsaid = reported(accounting=False, add={"value": [12], "state": "FAILED"})
    assert as_reported(submitit.accounting(unsaid)) == (
        Outcome.NOT_CHECKED,
        "Slurm stores no job records, so submitit uses its result files: set AccountingStorageType of slurm.conf, or list "
        "submitit.accounting under `not_applicable`", (), (),
    )  # fmt: skip


@pytest.mark.parametrize("accounting", [False, True])
def test_healthy_results_pass(accounting: bool) -> None:  # a table of cases
    for check in ALL:
        assert check(reported(accounting=accounting)).outcome is Outcome.PASSED
    expected = Outcome.PASSED if accounting else Outcome.NOT_CHECKED
    assert checks.accounting(reported(accounting=accounting)).outcome is expected
