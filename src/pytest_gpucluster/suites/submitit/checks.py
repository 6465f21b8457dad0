"""submitit submits functions, returns their results and cancels. Pure; the facts are those of payload.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Explanation, Quote
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.framework.payload_result import PayloadResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Judgement

_JOB = Part("job")
# what the payload submits
SUM, ARRAY_SUMS, TASKS = 12, [11, 22, 33], 3
FAILURE = "gpucluster: expected failure"


@dataclass(frozen=True)
class SubmititResult(PayloadResult):
    """The result of the driver.

    `accounting`: whether Slurm stores job records, which sacct shows.
    """

    accounting: bool = False


@check(
    "submitit.framework",
    cause="submitit is not installed for this python where pytest runs, or sbatch refuses the jobs",
    hint="python3 -m pip install submitit; or name another python under "
    "`environments` and that under submitit.environment; see the message of sbatch",
    action=Action.CONFIGURE,
)
def framework(submitted: SubmititResult) -> Judgement:
    """Judge that submitit is installed and that Slurm accepts its jobs."""
    facts = submitted.last_facts()
    if "submitted" in facts:
        return
    why = _why(submitted, Explanation("no_result", "the driver sent no report"))
    absent = why.code == "not_installed"
    part = named("software", "package submitit") if absent else Part("job", name="submission")
    yield why.finding(part, "submits jobs")


@check(
    "submitit.add",
    cause="the job did not run, or the shared folder did not return its result",
    hint="the log in the shared folder; the nodes must be able to write there, and need the same python",
    action=Action.CONFIGURE,
)
def add(submitted: SubmititResult) -> Judgement:
    """Judge the sum of 5 and 7."""
    yield from _value(submitted, "add", [SUM])


@check(
    "submitit.multitask",
    cause="srun within a batch job does not start all tasks, or numbers them wrongly",
    hint="sbatch --ntasks-per-node=3 --wrap 'srun env | grep SLURM_PROCID'",
    action=Action.CONFIGURE,
)
def multitask(submitted: SubmititResult) -> Judgement:
    """Judge a function in three tasks: each rank once, equal to Slurm's."""
    result = submitted.last_facts().get("multitask")
    if result is None or "value" not in result:
        yield from _value(submitted, "multitask", [])
        return
    ranks = [task["rank"] for task in result["value"]]
    if ranks != list(range(TASKS)):
        expected = f"0 to {TASKS - 1}, once each"
        yield Finding(Part("rank", name="ranks"), listed(ranks), expected, code="other_ranks")
    for task in result["value"]:
        if str(task["rank"]) != str(task["slurm"]) or task["tasks"] != TASKS:
            measured = f"rank {task['rank']} of {task['tasks']}, Slurm's task {task['slurm']}"
            part = Part("task", of=Part("node", name=task["node"]))
            yield Finding(part, Quote(measured), f"the same rank, of {TASKS}", code="other_place")


@check(
    "submitit.array",
    cause="job arrays do not run, or results are mixed up",
    hint="scontrol show config | grep MaxArraySize; sbatch --array=0-2 --wrap hostname",
    action=Action.CONFIGURE,
)
def array(submitted: SubmititResult) -> Judgement:
    """Judge a map over three pairs, submitted as one array."""
    yield from _value(submitted, "array", ARRAY_SUMS)


@check(
    "submitit.failure",
    cause="an exception in a job does not reach the caller",
    hint="the log in the shared folder",
    action=Action.CONFIGURE,
)
def failure(submitted: SubmititResult) -> Judgement:
    """Judge that a function's exception reaches the caller with its traceback."""
    result = submitted.last_facts().get("failure")
    if result is None:
        yield from _absent(submitted, "failure")
    elif result.get("error") != "FailedJobError" or FAILURE not in result.get("text", ""):
        error = result.get("error") or f"the value {result.get('value')}"
        measured = Quote(f"{error}: {result.get('text', '')[-200:]}".rstrip(": "))
        code = "other_exception" if result.get("error") else "no_exception"
        yield Finding(_JOB, measured, f"FailedJobError: {FAILURE}", code=code)


@check(
    "submitit.cancel",
    cause="scancel does not reach the job, or its processes cannot be killed",
    hint="squeue --me -t all; KillWait and UnkillableStepTimeout of `scontrol show config`",
    action=Action.MONITOR,
)
def cancel(submitted: SubmititResult) -> Judgement:
    """Judge that a running job ends when it is cancelled; with accounting submitit must report its state."""
    result = submitted.last_facts().get("cancel")
    if result is None or "over" not in result:
        yield from _absent(submitted, "cancel") if result is None else _late(result)
        return
    yield Metric("submitit_cancel", float(result["seconds"]), "s")
    if not result["over"] and result["slurm"] == "COMPLETING":
        measured = "its processes are gone or dying, its epilog runs: see slurm.completing"
        yield Advisory(_JOB, measured, "cancelled", code="completing")
    elif not result["over"]:
        yield Finding(_JOB, f"still {result['slurm']}", "cancelled", code="still_runs")
    elif submitted.accounting and not (result["known"] and result["state"].startswith("CANCELLED")):
        measured = f"submitit's state {result['state']}"
        yield Finding(_JOB, measured, "CANCELLED, from sacct", code="other_state")


@check(
    "submitit.accounting",
    cause="sacct does not answer, or slurmdbd lags behind",
    hint="sacct -X; sacctmgr show cluster",
    action=Action.CONFIGURE,
)
def accounting(submitted: SubmititResult) -> Judgement:
    """Judge that submitit reads the state of an ended job from sacct, if Slurm stores job records."""
    if not submitted.accounting:
        raise NotAvailable(
            "Slurm stores no job records, so submitit uses its result files: set AccountingStorageType of slurm.conf, or list "
            "submitit.accounting under `not_applicable`"
        )
    result = submitted.last_facts().get("add")
    if result is None:
        yield from _absent(submitted, "add")
    elif result.get("state") != "COMPLETED":
        measured = f"state {result.get('state') or 'none'}"
        yield Finding(_JOB, measured, "state COMPLETED", code="other_state")


def _value(submitted: SubmititResult, name: str, expected: list[int]) -> Judgement:
    result = submitted.last_facts().get(name)
    if result is None:
        yield from _absent(submitted, name)
    elif result.get("error") == "late":
        yield from _late(result)
    elif "error" in result:
        lines = result["text"].strip().splitlines() or [""]
        yield Finding(_JOB, Quote(f"{result['error']}: {lines[-1]}"), "a result", code="failed")
    elif result["value"] != expected:
        yield Finding(_JOB, f"result {result['value']}", f"result {expected}", code="other_result")


def _late(result: Mapping[str, Any]) -> Judgement:
    state = result["text"] or "unknown to Slurm, without a result"
    yield Finding(_JOB, f"did not end in time: {state}", "runs and ends", code="late")


def _absent(submitted: SubmititResult, name: str) -> Judgement:
    if "submitted" not in submitted.last_facts():
        yield NotAvailable("nothing was submitted: see submitit.framework")
    else:
        silent = Explanation("no_message", "the driver ended without a message")
        yield _why(submitted, silent).finding(Part("job", name=f"result of {name}"), "returned")


def _why(submitted: SubmititResult, otherwise: Explanation) -> Explanation:
    """Return why the driver has no result."""
    if failed := submitted.last_facts().get("failed"):
        absent = failed["error"] in {"ModuleNotFoundError", "ImportError"}
        code = "not_installed" if absent else "failed"
        return Explanation(code, f"{failed['error']}: {failed['text']}")
    return Explanation("driver_failed", submitted.problem) if submitted.problem else otherwise
