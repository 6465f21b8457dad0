"""Results of the jobs of trials: access, limits, fair share, backfill and preemption. Pure; no finding drains a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.text import some
from pytest_gpucluster.suites.accounting.config import JOB_LIMITS, SUBMIT_LIMITS
from pytest_gpucluster.suites.accounting.facts import FREE, fairshare_weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.accounting.config import Access, AccountingConfig, PreemptionTrial
    from pytest_gpucluster.suites.accounting.facts import Answer, TrialJob
    from pytest_gpucluster.suites.accounting.limit_plan import LimitResult
    from pytest_gpucluster.suites.accounting.trials import BackfillResult, FairshareResult, PreemptionResult

# reasons that keep a job waiting for its user, account, QoS or group
DENIED = frozenset({"AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS", "PartitionConfig"})
NO_TRIALS = "the cluster file states no `accounting.trials`"


@check(
    "accounting.access_jobs",
    cause="associations, QoS or partitions admit another user than intended",
    hint="sacctmgr show assoc user=; scontrol show partition; sbatch as that user, then squeue -o '%i %T %r'",
    action=Action.CONFIGURE,
    marks=("intrusive", "exclusive"),
)
def access_jobs(
    config: AccountingConfig, access_trial: Mapping[Access, tuple[Answer, TrialJob | None]] | None
) -> Judgement:
    """Real jobs of the stated users start where they may, and nowhere else."""
    if access_trial is None:
        raise NotApplicable(f"{NO_TRIALS}, or no `access`")
    unclear = []
    for wanted, jobs in ((True, config.access.may), (False, config.access.may_not)):
        for access in jobs:
            answer, job = access_trial[access]
            admitted, shown = _admitted(answer, job)
            if admitted is None:
                unclear.append(f"{access}: {shown}")
            elif admitted is not wanted:
                yield Finding(str(access), shown, "starts" if wanted else "refused")
    if unclear:
        raise NotAvailable(some(unclear, 3))


@check(
    "accounting.limits",
    cause="Slurm does not enforce the limit, or another limit applies first",
    hint="AccountingStorageEnforce of slurm.conf (limits); scontrol show assoc_mgr flags=assoc,qos; squeue -o '%i %T %r'",
    action=Action.CONFIGURE,
    marks=("intrusive", "exclusive"),
)
def limits(limit_trials: Sequence[LimitResult] | None) -> Judgement:
    """Jobs up to each limit run, and the job beyond it waits with the reason of this limit, or is refused."""
    if not limit_trials:
        raise NotApplicable(
            NO_TRIALS if limit_trials is None else "the cluster file states no `trials.limits`"
        )
    unclear = []
    for result in limit_trials:
        if result.problem:
            unclear.append(f"{result.trial}: {result.problem}")
            continue
        for item in _judged(result):
            if isinstance(item, NotAvailable):
                unclear.append(f"{result.trial}: {item}")
            else:
                yield item
    if unclear:
        raise NotAvailable(some(unclear, 3))


@check(
    "accounting.fairshare",
    cause="fair share has no weight, usage is not counted, or another factor outweighs it",
    hint="sshare -l; sprio -w; scontrol show config | grep Priority; slurmctld's log (decay)",
    action=Action.CONFIGURE,
    marks=("intrusive", "exclusive"),
)
def fairshare(
    config: AccountingConfig, fairshare_trial: FairshareResult | None, settings: Mapping[str, str]
) -> Judgement:
    """Usage of one account is counted, and lowers the priority of its jobs below those of another."""
    trial = config.trials.fairshare if config.trials else None
    if trial is None or fairshare_trial is None:
        raise NotApplicable("the cluster file states no `trials.fairshare`")
    result = fairshare_trial
    if result.problem:
        raise NotAvailable(result.problem)
    weight = fairshare_weight(settings)
    if not weight:
        shown = ", ".join(f"{key}={settings.get(key)}" for key in ("PriorityType", "PriorityWeightFairShare"))
        yield Finding("fair share", shown, "priority/multifactor with a weight above 0")
        return
    busy, idle, before = result.after[trial.busy], result.after[trial.idle], result.before[trial.busy]
    if busy.usage <= before.usage:
        yield Finding(
            f"usage of account {trial.busy}", f"still {busy.usage} after {result.seconds:.0f} s", "higher"
        )
        return
    yield Metric("fairshare_update", result.seconds, "s", detail=True, better="neither")
    factors = f"factors {busy.factor:.6f} (busy) and {idle.factor:.6f} (idle)"
    if busy.factor >= idle.factor:
        if idle.usage and (idle.level is None or busy.level is None or idle.level <= busy.level):
            yield NotAvailable(
                f"account {trial.idle} has used more of its share ({factors}): use another account"
            )
        else:
            yield Finding(
                f"fair share of account {trial.busy}", factors, "lower than that of the idle account"
            )
        return
    priorities = result.priorities
    if len(priorities) < 2:
        raise NotAvailable("squeue showed no priority of the two jobs")
    elif priorities[trial.busy] >= priorities[trial.idle]:
        shown = f"{priorities[trial.busy]} (busy) and {priorities[trial.idle]} (idle), {factors}"
        if weight * (idle.factor - busy.factor) < 2:  # rounded priorities
            raise NotAvailable(f"the factors differ by less than two units of priority: {shown}")
        else:
            yield Finding("priorities of two equal jobs", shown, "lower for the busy account")


@check(
    "accounting.backfill",
    cause="SchedulerType is not sched/backfill, or bf_max_job_test, bf_window or bf_interval keep it from these jobs",
    hint="scontrol show config | grep -i sched; sdiag (Backfilling stats)",
    action=Action.CONFIGURE,
    marks=("intrusive", "exclusive"),
)
def backfill(backfill_trial: BackfillResult | None) -> Judgement:
    """A short job starts on an idle node while a job that was submitted before it waits for more nodes."""
    result = backfill_trial
    if result is None:
        raise NotApplicable("the cluster file does not set `trials.backfill: true`")
    elif result.problem or result.short is None or result.waiting is None:
        raise NotAvailable(result.problem or "squeue no longer showed the jobs")
    elif result.waiting.started:
        raise NotAvailable("the job of two nodes did not wait")
    elif result.short.priority >= result.waiting.priority:
        raise NotAvailable(
            f"both jobs have the priority {result.waiting.priority}: no job is behind the other"
        )
    elif result.short.started:
        yield Metric("backfill", result.seconds, "s", better="neither")
    elif result.idle and result.short.reason == "Priority":
        yield Finding(
            "short job",
            f"{result.short} after {result.seconds:.0f} s, node {min(result.idle)} idle",
            "started",
        )
    else:
        raise NotAvailable(f"the short job is {result.short}; its nodes may have been busy")


@check(
    "accounting.preemption",
    cause="PreemptType, PreemptMode or the list of QoS to preempt; GraceTime, PreemptExemptTime; a job that cannot be killed",
    hint="scontrol show config | grep Preempt; sacctmgr show qos format=name,preempt,preemptmode,gracetime; squeue -o '%i %T %r'",
    action=Action.CONFIGURE,
    marks=("intrusive", "exclusive"),
)
def preemption(config: AccountingConfig, preemption_trials: Sequence[PreemptionResult]) -> Judgement:
    """A job of high priority takes the node of one of low priority in time, which is requeued, cancelled or suspended."""
    trials = config.trials.preemption if config.trials else ()
    if not trials or not preemption_trials:
        raise NotApplicable("the cluster file states no `trials.preemption`")
    unclear = []
    for trial, result in zip(trials, preemption_trials, strict=True):
        label = f" ({trial})" if len(trials) > 1 else ""
        for item in _preempted(trial, result, label):
            if isinstance(item, NotAvailable):
                unclear.append(f"{trial}: {item}" if label else str(item))
            else:
                yield item
    if unclear:
        raise NotAvailable(some(unclear, 3))


def _preempted(trial: PreemptionTrial, result: PreemptionResult, label: str) -> Judgement:
    high, low = result.high, result.low
    if result.problem or high is None or low is None:
        yield NotAvailable(result.problem or "squeue no longer showed the jobs")
    elif not high.has_node:
        late = f"{high} after {result.seconds:.0f} s"
        yield Finding(f"preempting job{label}", late, f"started within {trial.within:.0f} s")
    else:
        yield Metric("preemption", result.seconds, "s", device=label.strip(" ()"))
        if not low.ended_as(trial.mode):
            yield Finding(f"preempted job{label}", f"{low}, {low.restarts} restarts", _ENDINGS[trial.mode])
        elif trial.mode == "suspend" and (result.resumed is None or result.resumed.state != "RUNNING"):
            yield Finding(f"suspended job{label}", f"{result.resumed} after the other one ended", "RUNNING")


_ENDINGS = {"requeue": "requeued", "cancel": "cancelled", "suspend": "SUSPENDED"}


def _admitted(answer: Answer, job: TrialJob | None) -> tuple[bool | None, str]:
    """Return whether Slurm lets a job run, None if that is unclear, and what was seen."""
    if answer.result in ("refused", "limit"):
        return (False if answer.result == "refused" else None), answer.message
    if answer.result != "accepted" or job is None:
        return None, answer.message or "squeue no longer showed the job"
    if job.started or job.reason in FREE:
        return True, str(job)
    if job.reason in DENIED:
        return False, str(job)
    return None, str(job)


def _submitted(result: LimitResult) -> Iterator[Finding | NotAvailable]:
    """Judge a limit of jobs in the queue: `amount` were accepted, and one more was refused."""
    trial, amount = result.trial, result.amount
    if result.refused is None:
        yield Finding(str(trial), f"{amount + 1} jobs accepted", f"{amount}, and job {amount + 1} refused")
        return
    number, answer = result.refused
    if answer.result != "limit":
        yield NotAvailable(answer.message)
    elif number <= amount:
        yield Finding(str(trial), f"job {number} refused: {answer.message}", f"{amount} jobs accepted")
    elif not _names_reason(answer.message, result.expected):
        yield NotAvailable(f"job {number} was refused for another limit: {answer.message}")


def _ran(result: LimitResult) -> Iterator[Finding | NotAvailable]:
    """Judge a limit of running jobs or their TRES.

    A job may be allocated more than it requested, as the GPUs of a whole node: the sum counts.
    """
    trial, amount, jobs = result.trial, result.amount, result.jobs
    if result.refused is not None:
        yield NotAvailable(f"job {result.refused[0]} was not accepted: {result.refused[1].message}")
        return
    running = [size for size, job in zip(result.used, jobs, strict=True) if job.started]
    beyond = [job for job in jobs if not job.started and job.reason == result.expected]
    used, unit = sum(running), min(running, default=1)
    if used > amount:
        yield Finding(
            str(trial),
            f"{result.shown(used)} in use by {len(running)} running jobs",
            f"at most {result.shown(amount)}",
        )
    elif len(running) + len(beyond) < len(jobs):
        yield _undecided(result)
    elif used + unit <= amount:
        reached = f"reached by {result.shown(used)} in use ({result.expected})"
        yield Finding(str(trial), reached, result.shown(amount))


def _of_one_job(result: LimitResult) -> Iterator[Finding | NotAvailable]:
    """Judge a limit of one job: jobs of at most its size run, and a larger one waits or is refused."""
    trial, amount = result.trial, result.amount
    most = f"at most {result.shown(amount)}"
    unclear = False
    for size, job in zip(result.used, result.jobs, strict=False):
        if job.started and size > amount:
            yield Finding(str(trial), f"a job of {result.shown(size)} runs", most)
        elif not job.started and job.reason != result.expected:
            unclear = True
        elif not job.started and size <= amount:
            yield Finding(str(trial), f"a job of {result.shown(size)} waits ({job.reason})", "runs")
    if unclear:
        yield _undecided(result)
    if result.refused is None:
        return
    number, answer = result.refused
    if answer.result != "limit":
        yield NotAvailable(f"job {number} was not accepted: {answer.message}")
    elif result.sizes[number - 1] <= amount:
        shown = result.shown(result.sizes[number - 1])
        yield Finding(str(trial), f"a job of {shown} is refused: {answer.message}", "runs")
    elif not _names_reason(answer.message, result.expected):
        yield NotAvailable(f"job {number} was refused for another limit: {answer.message}")


def _undecided(result: LimitResult) -> NotAvailable:
    others = {str(job) for job in result.jobs if not job.started and job.reason != result.expected}
    return NotAvailable(f"jobs are {some(sorted(others), 3)}; check that nodes are idle")


def _judged(result: LimitResult) -> Iterator[Finding | NotAvailable]:
    if result.trial.limit in SUBMIT_LIMITS:
        return _submitted(result)
    return _of_one_job(result) if result.trial.limit in JOB_LIMITS else _ran(result)


def _names_reason(message: str, reason: str) -> bool:
    """Return whether sbatch named this limit; slurmctld also refuses without a name."""
    return reason.lower() in message.lower() or not any(
        word in message for word in ("QOS", "Assoc", "PerAccount", "PerUser")
    )
