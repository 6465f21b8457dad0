"""Checks that submit jobs, with --intrusive: a burst of submissions, hold and release, singleton. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.client import outage
from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.metric_direction import HIGHER
from pytest_gpucluster.suites.controller.jobs import ENDED, FEWEST, is_held, is_limit

if TYPE_CHECKING:
    from pytest_gpucluster.suites.controller.config import ControllerConfig
    from pytest_gpucluster.suites.controller.jobs import BurstFacts, OrderedJob, OrderFacts

FORGOTTEN = "Slurm no longer knows the job"


@check(
    "controller.hold",
    cause="a job_submit plugin or a script releases or changes held jobs",
    hint="sbatch --hold --wrap true; scontrol show job ID; JobSubmitPlugins of slurm.conf",
    action=Action.CONFIGURE,
    marks=("intrusive", "inventory"),
)
def hold(order: OrderFacts) -> Judgement:
    """A held job stays pending with the reason JobHeldUser, and runs once it is released."""
    if order.hold_problem:
        raise NotAvailable(order.hold_problem)
    elif order.before is None:
        raise NotAvailable(FORGOTTEN)
    elif not is_held(order.before):
        yield Finding("held job", _state(order.before), "PENDING (JobHeldUser)")
    elif order.after is None or order.held is None:
        raise NotAvailable(FORGOTTEN)
    elif is_held(order.after):
        yield Finding("released job", _state(order.after), "not held any more")
    elif order.held.state not in ENDED:
        raise NotAvailable(f"the released job has not run yet: {_state(order.held)}")
    elif order.held.state != "COMPLETED":
        yield Finding("released job", order.held.state, "COMPLETED")


@check(
    "controller.singleton",
    cause="a job_submit plugin or a script removes the dependency",
    hint="sbatch --dependency=singleton --job-name=one --wrap 'sleep 30', twice; squeue --name=one; JobSubmitPlugins",
    action=Action.CONFIGURE,
    marks=("intrusive", "inventory"),
)
def singleton(order: OrderFacts) -> Judgement:
    """Two jobs of one name with --dependency=singleton never run at once."""
    if order.singleton_problem:
        raise NotAvailable(order.singleton_problem)
    spans = [job.span if job else None for job in order.singletons]
    first, second = spans if len(spans) == 2 else (None, None)
    if first is None or second is None:
        states = ", ".join(_state(job) if job else FORGOTTEN for job in order.singletons)
        raise NotAvailable(f"the two jobs have not both run: {states}")
    elif first[0] < second[1] and second[0] < first[1]:  # Slurm's times are whole seconds
        measured = f"{_span(first)} and {_span(second)}"
        yield Finding("two singletons", measured, "one after the other")


@check(
    "controller.burst",
    cause="slurmctld cannot keep up with submissions: StateSaveLocation or slurmdbd is slow, a job_submit plugin or a "
    "prolog of slurmctld takes long",
    hint="sdiag during a burst; df and iostat of StateSaveLocation; SchedulerParameters=defer,batch_sched_delay; MessageTimeout",
    action=Action.MONITOR,
    marks=("intrusive", "inventory", "exclusive"),
)
def burst(burst_facts: BurstFacts, config: ControllerConfig) -> Judgement:
    """The controller takes a burst of submissions in time and answers squeue meanwhile."""
    found = burst_facts
    if not found.requested:
        raise NotAvailable(found.problem)
    limited = sum(count for error, count in found.refused.items() if is_limit(error))
    lost = {error: count for error, count in found.refused.items() if outage(error)}
    others = [error for error in found.refused if not outage(error) and not is_limit(error)]
    if found.left:
        yield Finding("cancelled jobs", f"{found.left} are still in the queue", "none")
    for error, count in lost.items():
        yield Finding("submissions", f"{count} of {found.requested} failed: {error}", "all are accepted")
    if found.problem:
        yield Finding(
            "submissions",
            f"{found.problem}: {found.accepted} of {found.requested} were confirmed in {found.seconds:.0f} s",
            f"{found.requested} within {config.burst_time:g} s",
        )
    if found.answers:
        yield Metric("answer_in_burst", max(found.answers), "s")
        if max(found.answers) > config.burst_answer:
            yield Finding(
                "squeue during the burst", f"{max(found.answers):.1f} s", f"<= {config.burst_answer:g} s"
            )
    if limited:
        yield Advisory(
            "submissions", f"{found.accepted} were accepted before a limit of jobs", f"{found.requested}"
        )
    if found.accepted < min(FEWEST, found.requested):
        raise NotAvailable((others or list(found.refused) or ["no submission was accepted"])[0])
    elif found.seconds:
        yield Metric("submission_rate", found.accepted / found.seconds, "jobs/s", better=HIGHER)


def _state(job: OrderedJob) -> str:
    return f"{job.state} ({job.reason})" if job.reason and job.reason != "None" else job.state


def _span(times: tuple[object, object]) -> str:
    return " to ".join(str(time)[11:] for time in times)
