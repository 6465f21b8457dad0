"""Checks of submitit on plain facts; jobs that end as they should and look otherwise, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counter_examples import MONITOR, PASSED, WARNING
from framework_helpers import Table, decided
from machine_helpers import Machines, examples, verdicts_of_a_person

from pytest_gpucluster.kit.framework.payload_result import PayloadTask
from pytest_gpucluster.suites.submitit import checks
from pytest_gpucluster.suites.submitit import steps as runner
from pytest_gpucluster.suites.submitit.checks import SubmititResult

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_records_are_kept_where_slurm_says_so() -> None:
    for kind, kept in (("none", False), ("slurmdbd", True)):
        assert runner.stores_records({"AccountingStorageType": f"accounting_storage/{kind}"}) is kept
    assert not runner.stores_records({})


def result(*facts: Mapping[str, Any], accounting: bool = False, problem: str = "") -> SubmititResult:
    """Return the result of a driver that printed these facts."""
    task = PayloadTask(0, "", None, None, facts)
    return SubmititResult("submitit", (), 1, (task,), problem, accounting=accounting)


def place(rank: int, tasks: int = 3, slurm: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "tasks": tasks, "slurm": rank if slurm is None else slurm, "node": "a"}


def reported(*, accounting: bool = False, **changes: dict[str, Any] | None) -> SubmititResult:
    """Return what a healthy driver tells; `add={...}` replaces one result, None leaves it away."""
    results: dict[str, dict[str, Any] | None] = {
        "add": {"value": [12], "state": "COMPLETED"},
        "array": {"value": [11, 22, 33]},
        "multitask": {"value": [place(rank) for rank in range(3)]},
        "failure": {"error": "FailedJobError", "text": f"Traceback\nValueError: {checks.FAILURE}"},
        "cancel": {"over": True, "slurm": "", "known": accounting, "state": "CANCELLED by 0", "seconds": 1.0},
        **changes,
    }
    facts: list[dict[str, Any]] = [{"submitit": "submitted", "version": "1.5", "jobs": ["1"]}]
    facts += [{"submitit": name, **fact} for name, fact in results.items() if fact]
    return result(*facts, accounting=accounting)


def placed(*places: dict[str, Any]) -> SubmititResult:
    return reported(multitask={"value": list(places)})


def error(kind: str, text: str = "t") -> dict[str, Any]:
    return {"error": kind, "text": text}


def failed(kind: str, text: str = "t") -> dict[str, Any]:
    return {"submitit": "failed", **error(kind, text)}


def over(**change: Any) -> dict[str, Any]:
    return {"over": True, "slurm": "", "known": False, "state": "CANCELLED", "seconds": 2, **change}


LATE = error("late", "PENDING")
ALONE = [place(rank, slurm=0) for rank in range(3)]
UNDONE = "UncompletedJobError"
AFTER_ALL = result(*reported(add=None).tasks[0].facts, failed("OSError"))
CASES: Table = {
    checks.framework: [
        ("passed", reported()),
        ("configure: submission no_result", result()),
        ("configure: submission driver_failed", result(problem="python: not found")),
        ("configure: package submitit not_installed", result(failed("ImportError"))),
        ("configure: submission failed", result(failed("FailedJobError", "sbatch: refused"))),
    ],
    checks.add: [
        ("passed", reported()),
        ("configure: job other_result [13, 12]", reported(add={"value": [13]})),
        ("configure: job late", reported(add=LATE)),
        ("configure: job failed", reported(add=error(UNDONE, "no\nfile\n"))),
        ("configure: result of add no_message", reported(add=None)),
        ("configure: result of add failed", AFTER_ALL),
        ("not checked", result()),
    ],
    checks.array: [
        ("passed", reported()),
        ("configure: job other_result [11, 33, 22, 11, 22, 33]", reported(array={"value": [11, 33, 22]})),
    ],
    checks.multitask: [
        ("passed", reported()),
        ("configure: ranks other_ranks [0, 2]", placed()),
        ("configure: a task; a task other_place [1, 3, 0, 3, 2, 3, 0, 3]", placed(*ALONE)),
    ],
    checks.failure: [
        ("passed", reported()),
        ("configure: job other_exception", reported(failure={"error": "FailedJobError"})),
        ("configure: job no_exception", reported(failure={"value": [None]})),
        ("configure: job other_exception", reported(failure=error("FailedJobError", "another"))),
        ("configure: job other_exception", reported(failure=error(UNDONE, checks.FAILURE))),
    ],
    checks.cancel: [
        ("passed [1]", reported(accounting=True)),
        ("monitor: result of cancel no_message", reported(cancel=None)),
        ("monitor: job late", reported(cancel=LATE)),
        ("monitor: job still_runs [30]", reported(cancel={"over": False, "slurm": "RUNNING", "seconds": 30.0})),
        ("monitor: job other_state [2]", reported(accounting=True, cancel=over())),
        ("passed [2]", reported(cancel=over(state="UNKNOWN"))),
    ],
    checks.accounting: [
        ("not checked", reported(add={"value": [12], "state": "FAILED"})),
        ("passed", reported(accounting=True)),
        ("configure: result of add no_message", reported(accounting=True, add=None)),
        ("configure: job other_state", reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


def cancel(**fact: Any) -> Any:
    return lambda: checks.cancel(reported(accounting=True, cancel=over(**{"known": True, **fact})))


FORGOTTEN = reported(cancel=over(state="UNKNOWN"))
MACHINES: Machines = {
    ("submitit.cancel", checks.cancel): [
        ("cancelled by its user | sacct", PASSED, cancel(slurm="CANCELLED", state="CANCELLED by 1000")),
        ("Slurm has forgotten the job, and stores no records | squeue", PASSED, FORGOTTEN),
        ("its epilog takes a minute | prolog_epilog", WARNING, cancel(over=False, slurm="COMPLETING")),
        ("sick: it still runs | squeue", MONITOR, cancel(over=False, slurm="RUNNING", state="RUNNING")),
        ("sick: the accounting believes that it runs | sacct", MONITOR, cancel(state="RUNNING")),
    ]
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
