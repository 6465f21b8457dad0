"""Checks of submitit on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled

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

ALL = (
    checks.framework,
    checks.add,
    checks.array,
    checks.multitask,
    checks.failure,
    checks.cancel,
)


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
        (
            {"value": [{"sum": 36, "runs": [{"restart": 1, "step": 0}]}]},
            "runs: restart 1 from step 0",
        ),
        (
            {"value": [{"sum": 36, "runs": [{"restart": 0, "step": 0}]}]},
            "runs: restart 0 from step 0",
        ),
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


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (lambda: checks.framework(reported()), "passed", "", [], []),
    (
        lambda: checks.framework(result()),
        "failed",
        "",
        ["submission: the driver sent no report / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result(problem="python: not found")),
        "failed",
        "",
        ["submission: python: not found / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result({"submitit": "failed", "error": "ImportError", "text": "t"})),
        "failed",
        "",
        ["package submitit: ImportError: t / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result({"submitit": "failed", "error": "ModuleNotFoundError", "text": "t"})),
        "failed",
        "",
        ["package submitit: ModuleNotFoundError: t / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(
            result({"submitit": "failed", "error": "FailedJobError", "text": "sbatch: refused"})
        ),
        "failed",
        "",
        ["submission: FailedJobError: sbatch: refused / submits jobs"],
        [],
    ),
    (lambda: checks.add(reported(add={"value": [13]})), "failed", "", ["result: [13] / [12]"], []),
    (
        lambda: checks.add(reported(add={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "late", "text": ""})),
        "failed",
        "",
        ["job: did not end in time: unknown to Slurm, without a result / runs and ends"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "UncompletedJobError", "text": "no\nfile\n"})),
        "failed",
        "",
        ["job: UncompletedJobError: file / a result"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "UncompletedJobError", "text": ""})),
        "failed",
        "",
        ["job: UncompletedJobError:  / a result"],
        [],
    ),
    (
        lambda: checks.add(reported(add=None)),
        "failed",
        "",
        ["result of add: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.add(
            result(
                *reported(add=None).tasks[0].facts, {"submitit": "failed", "error": "OSError", "text": "t"}
            )
        ),
        "failed",
        "",
        ["result of add: OSError: t / returned"],
        [],
    ),
    (
        lambda: checks.add(replace(reported(add=None), problem="killed")),
        "failed",
        "",
        ["result of add: killed / returned"],
        [],
    ),
    (
        lambda: checks.add(result()),
        "not checked",
        "nothing was submitted: see submitit.framework",
        [],
        [],
    ),
    (
        lambda: checks.array(reported(array={"value": [11, 33, 22]})),
        "failed",
        "",
        ["result: [11, 33, 22] / [11, 22, 33]"],
        [],
    ),
    (
        lambda: checks.array(reported(array=None)),
        "failed",
        "",
        ["result of array: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask=None)),
        "failed",
        "",
        ["result of multitask: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask={"value": []})),
        "failed",
        "",
        ["ranks: none / 0 to 2, once each"],
        [],
    ),
    (
        lambda: checks.multitask(
            reported(
                multitask={"value": [{"rank": r, "tasks": 3, "slurm": 0, "node": "a"} for r in range(3)]}
            )
        ),
        "failed",
        "",
        [
            "task on a: rank 1 of 3, Slurm's task 0 / the same rank, of 3",
            "task on a: rank 2 of 3, Slurm's task 0 / the same rank, of 3",
        ],
        [],
    ),
    (
        lambda: checks.multitask(
            reported(multitask={"value": [{"rank": 0, "tasks": 1, "slurm": 0, "node": "a"}]})
        ),
        "failed",
        "",
        ["ranks: 0 / 0 to 2, once each", "task on a: rank 0 of 1, Slurm's task 0 / the same rank, of 3"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure=None)),
        "failed",
        "",
        ["result of failure: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"value": [None]})),
        "failed",
        "",
        ["job: the value [None] / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "FailedJobError", "text": "another"})),
        "failed",
        "",
        ["job: FailedJobError: another / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "UncompletedJobError", "text": checks.FAILURE})),
        "failed",
        "",
        [
            "job: UncompletedJobError: gpucluster: expected failure / FailedJobError: gpucluster: expected failure"
        ],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "UncompletedJobError", "text": "y" + "x" * 200})),
        "failed",
        "",
        ["job: UncompletedJobError: " + "x" * 200 + " / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (lambda: checks.cancel(reported()), "passed", "", [], ["submitit_cancel 1 s"]),
    (lambda: checks.cancel(reported(accounting=True)), "passed", "", [], ["submitit_cancel 1 s"]),
    (
        lambda: checks.cancel(reported(cancel=None)),
        "failed",
        "",
        ["result of cancel: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.cancel(reported(cancel={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.cancel(reported(cancel={"over": False, "slurm": "RUNNING", "seconds": 30.0})),
        "failed",
        "",
        ["job: still RUNNING / cancelled"],
        ["submitit_cancel 30 s"],
    ),
    (
        lambda: checks.cancel(
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": False, "state": "CANCELLED", "seconds": 2},
            )
        ),
        "failed",
        "",
        ["submitit's state of the job: CANCELLED / CANCELLED, from sacct"],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.cancel(
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": True, "state": "COMPLETED", "seconds": 2},
            )
        ),
        "failed",
        "",
        ["submitit's state of the job: COMPLETED / CANCELLED, from sacct"],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.cancel(
            reported(cancel={"over": True, "slurm": "", "known": False, "state": "UNKNOWN", "seconds": 2})
        ),
        "passed",
        "",
        [],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.accounting(reported()),
        "not checked",
        "Slurm stores no job records, so submitit uses its result files: set AccountingStorageType of slurm.conf, or list "
        "submitit.accounting under `not_applicable`",
        [],
        [],
    ),
    (lambda: checks.accounting(reported(accounting=True)), "passed", "", [], []),
    (
        lambda: checks.accounting(reported(accounting=True, add=None)),
        "failed",
        "",
        ["result of add: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.accounting(reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})),
        "failed",
        "",
        ["state of the job: UNKNOWN / COMPLETED"],
        [],
    ),
    (
        lambda: checks.accounting(reported(accounting=True, add={"value": [12]})),
        "failed",
        "",
        ["state of the job: none / COMPLETED"],
        [],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


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
