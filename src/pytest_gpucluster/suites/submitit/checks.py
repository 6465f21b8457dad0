"""Does submitit submit functions, bring their results back and cancel? Judged on what the driver told. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Metric, NotApplicable, NotChecked, check
from pytest_gpucluster.core.text import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Judgement

# what the payload submits
SUM, ARRAY_SUMS, TASKS = 12, [11, 22, 33], 3
FAILURE = "gpucluster: told to fail"


@dataclass(frozen=True)
class SubmititTold:
    """What the driver told. `accounting`: Slurm keeps job records (sacct). `problem`: why it did not end by itself."""

    facts: tuple[Mapping[str, Any], ...] = ()
    accounting: bool = False
    problem: str = ""

    def fact(self, kind: str) -> Mapping[str, Any] | None:
        """Return the only fact of a kind."""
        return next((fact for fact in self.facts if fact.get("submitit") == kind), None)

    def result(self, name: str) -> Mapping[str, Any] | None:
        """Return how one submission ended."""
        return next((x for x in self.facts if x.get("submitit") == "result" and x.get("name") == name), None)


@check(
    "submitit.framework",
    cause="submitit is not installed for this python where pytest runs, or sbatch refuses the jobs",
    hint="PYTHON -m pip install submitit; or name another python: submitit.environment, "
    "environments.NAME.python; see the words of sbatch",
    action=Action.MONITOR,
)
def framework(submitted: SubmititTold) -> Judgement:
    """Judge that submitit is there and that its jobs are accepted."""
    if submitted.fact("submitted"):
        return
    failed = submitted.fact("failed")
    part = (
        "package submitit"
        if failed and failed["error"] in {"ModuleNotFoundError", "ImportError"}
        else "submission"
    )
    said = (
        f"{failed['error']}: {failed['text']}" if failed else submitted.problem or "the driver told nothing"
    )
    yield Finding(part, said, "submits jobs")


@check(
    "submitit.add",
    cause="the job did not run, or its result did not come back through the shared folder",
    hint="the log in the shared folder; can the nodes write there, and is the python there too?",
)
def add(submitted: SubmititTold) -> Judgement:
    """Judge the sum of 5 and 7."""
    yield from _value(submitted, "add", [SUM])


@check(
    "submitit.multitask",
    cause="srun within a batch job does not start all tasks, or numbers them wrongly",
    hint="sbatch --ntasks-per-node=3 --wrap 'srun env | grep SLURM_PROCID'",
)
def multitask(submitted: SubmititTold) -> Judgement:
    """Judge a function in three tasks: each rank once, as Slurm has it."""
    result = submitted.result("multitask")
    if result is None or "value" not in result:
        yield from _value(submitted, "multitask", [])
        return
    ranks = [place["rank"] for place in result["value"]]
    if ranks != list(range(TASKS)):
        yield Finding("ranks", listed(ranks), f"0 to {TASKS - 1}, once each")
    for place in result["value"]:
        if place["rank"] != place["slurm"] or place["tasks"] != TASKS:
            said = f"rank {place['rank']} of {place['tasks']}, Slurm's task {place['slurm']}"
            yield Finding(f"task on {place['node']}", said, f"the same rank, of {TASKS}")


@check(
    "submitit.array",
    cause="job arrays do not run, or results are mixed up",
    hint="scontrol show config | grep MaxArraySize; sbatch --array=0-2 --wrap hostname",
)
def array(submitted: SubmititTold) -> Judgement:
    """Judge a map over three pairs, submitted as one array."""
    yield from _value(submitted, "array", ARRAY_SUMS)


@check(
    "submitit.failure",
    cause="an exception in a job does not come back",
    hint="the log in the shared folder",
    action=Action.MONITOR,
)
def failure(submitted: SubmititTold) -> Judgement:
    """Judge that a function's exception reaches the caller with its traceback."""
    result = submitted.result("failure")
    if result is None:
        yield from _absent(submitted, "failure")
    elif result.get("error") != "FailedJobError" or FAILURE not in result.get("text", ""):
        said = result.get("error") or f"the value {result.get('value')}"
        yield Finding(
            "job", f"{said}: {result.get('text', '')[-200:]}".rstrip(": "), f"FailedJobError: {FAILURE}"
        )


@check(
    "submitit.cancel",
    cause="scancel does not reach the job, or its processes cannot be killed",
    hint="scancel JOB; squeue -j JOB -t all; KillWait and UnkillableStepTimeout of `scontrol show config`",
)
def cancel(submitted: SubmititTold) -> Judgement:
    """Judge that a running job that is cancelled is over; with accounting submitit itself has to know it."""
    result = submitted.result("cancel")
    if result is None or "over" not in result:
        yield from _absent(submitted, "cancel") if result is None else _late(result)
        return
    yield Metric("submitit_cancel", float(result["seconds"]), "s")
    if not result["over"]:
        yield Finding("job", f"still {result['slurm']}", "cancelled")
    elif submitted.accounting and not (result["known"] and result["state"].startswith("CANCELLED")):
        yield Finding("submitit's state of the job", result["state"], "CANCELLED, from sacct")


@check(
    "submitit.accounting",
    cause="sacct does not answer, or slurmdbd lags behind",
    hint="sacct -j JOB; sacctmgr show cluster",
    action=Action.MONITOR,
)
def accounting(submitted: SubmititTold) -> Judgement:
    """Judge that submitit reads the state of an ended job from sacct, where Slurm keeps job records."""
    if not submitted.accounting:
        yield NotApplicable(
            "Slurm keeps no job records (AccountingStorageType): submitit goes by its result files"
        )
        return
    result = submitted.result("add")
    if result is None:
        yield from _absent(submitted, "add")
    elif result.get("state") != "COMPLETED":
        yield Finding("state of the job", str(result.get("state", "")) or "none", "COMPLETED")


def _value(told: SubmititTold, name: str, expected: list[int]) -> Judgement:
    result = told.result(name)
    if result is None:
        yield from _absent(told, name)
    elif result.get("error") == "late":
        yield from _late(result)
    elif "error" in result:
        lines = result["text"].strip().splitlines() or [""]
        yield Finding("job", f"{result['error']}: {lines[-1]}", "a result")
    elif result["value"] != expected:
        yield Finding("result", str(result["value"]), str(expected))


def _late(result: Mapping[str, Any]) -> Judgement:
    yield Finding(
        "job", f"not over in time: {result['text'] or 'unknown to Slurm, without a result'}", "runs and ends"
    )


def _absent(told: SubmititTold, name: str) -> Judgement:
    if not told.fact("submitted"):
        yield NotChecked("nothing was submitted: see submitit.framework")
        return
    failed = told.fact("failed")
    said = (
        f"{failed['error']}: {failed['text']}"
        if failed
        else told.problem or "the driver ended without a word"
    )
    yield Finding(f"result of {name}", said, "told")
