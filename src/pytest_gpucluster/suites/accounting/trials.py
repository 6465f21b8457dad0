"""Jobs that try limits, fair share, backfill and preemption, with what `accounting.trials` names only.

Their number is bounded by the file. A guard cancels them at any end of this process (cluster/slurm/job_cleanup.py), a time
limit ends them, and --deadline removes those that wait.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.errors import NotAvailable, ProbeError, SlurmError
from pytest_gpucluster.suites.accounting import facts
from pytest_gpucluster.suites.accounting.config import JOB_LIMITS, SUBMIT_LIMITS, Access
from pytest_gpucluster.suites.accounting.limit_plan import MEMORY, MIB, LimitResult, first_job, planned

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pytest_gpucluster.suites.accounting.config import FairshareTrial, LimitTrial, PreemptionTrial, Trials
    from pytest_gpucluster.suites.accounting.facts import Answer, Share, TrialJob
    from pytest_gpucluster.suites.accounting.limit_plan import JobSize
    from pytest_gpucluster.suites.accounting.steps import Accounting

BEHIND = 10  # --nice of the job that must not start before another
PAUSE = 0.5  # seconds between two calls of squeue
SETTLE = 15.0  # seconds within which slurmctld gives a waiting job its reason, or ends a preempted one


@dataclass(frozen=True)
class FairshareResult:
    """Usage of two accounts before and after a job of one, then the priorities of one job of each."""

    before: Mapping[str, Share] = field(default_factory=dict)
    after: Mapping[str, Share] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class PreemptionResult:
    """The preempting job `seconds` after its submission, and the preempted one after that.

    `resumed`: the preempted job once the other one ended, of mode suspend.
    """

    high: TrialJob | None = None
    low: TrialJob | None = None
    seconds: float = 0.0
    resumed: TrialJob | None = None
    problem: str = ""


@dataclass(frozen=True)
class BackfillResult:
    """The waiting job of two nodes, and the short one behind it. `idle`: nodes that were idle all the time."""

    waiting: TrialJob | None = None
    short: TrialJob | None = None
    idle: frozenset[str] = frozenset()
    seconds: float = 0.0
    problem: str = ""


class TrialRunner:
    """Submits the jobs. Each trial cancels its own at its end; `close` ends the guards."""

    def __init__(self, accounting: Accounting, trials: Trials) -> None:
        self._accounting, self._trials = accounting, trials
        self._guards: dict[str, JobGuard] = {}

    def close(self) -> None:
        """Cancel the remaining jobs."""
        for guard in self._guards.values():
            guard.release()

    @property
    def user(self) -> str:
        """The user of the jobs."""
        return self._trials.user or self._accounting.who.name

    def access(self, jobs: Iterable[Access]) -> dict[Access, tuple[Answer, TrialJob | None]]:
        """Submit one real job for each, wait until Slurm starts it or says why not, and cancel all."""
        found: dict[Access, tuple[Answer, TrialJob | None]] = {}
        numbers: dict[Access, str] = {}
        try:
            for job in jobs:
                try:
                    answer, number = self._submit(job, 1, "--no-requeue")
                except NotAvailable as error:
                    answer, number = facts.Answer("not tried", str(error)), ""
                found[job] = answer, None
                if number:
                    numbers[job] = number
            seen = self._wait(
                numbers.values(), lambda known: all(one.reason or one.started for one in known), SETTLE
            )
            return {job: (answer, seen.get(numbers.get(job, ""))) for job, (answer, _) in found.items()}
        finally:
            for job, number in numbers.items():
                self._cancel([number], job.user)

    def limit(self, trial: LimitTrial, amount: int) -> LimitResult:
        """Submit the jobs that reach a limit, and one beyond it."""
        others = 0 if trial.limit in JOB_LIMITS else self._others(trial)
        if others:
            return LimitResult(trial, amount, problem=f"{others} other jobs count against {trial}")
        numbers: list[str] = []
        try:
            return self._reached(trial, amount, numbers)
        except NotAvailable as error:
            return LimitResult(trial, amount, problem=str(error))
        finally:
            self._cancel(numbers)

    def _reached(self, trial: LimitTrial, amount: int, numbers: list[str]) -> LimitResult:
        known, unit = self._accounting.slurm.nodes(), 1
        result = LimitResult(trial, amount)
        if first := first_job(trial):
            result = self._with(result, [first], numbers)
            if not result.complete(started=True):
                return result
            unit = result.used[0]
        nodes = [known[name] for name in self._members() if name in known]
        for jobs in planned(trial, amount, unit, nodes):
            if result.complete():
                result = self._with(result, jobs, numbers)
        return result

    def _with(self, result: LimitResult, jobs: Iterable[JobSize], numbers: list[str]) -> LimitResult:
        """Submit jobs, up to the first that Slurm refuses, and wait until it starts the others or says why not."""
        trial, sizes, refused = result.trial, list(result.sizes), result.refused
        access = self._job(account=trial.account, qos=trial.qos)
        for job in jobs:
            sizes.append(job.amount)
            answer, number = self._submit(access, self._trials.start + SETTLE, "--no-requeue", *job.options)
            if not number:
                refused = len(sizes), answer
                break
            numbers.append(number)
        if trial.limit in SUBMIT_LIMITS:
            return LimitResult(trial, result.amount, refused=refused)
        seen = self._wait(numbers, _decided, self._trials.start)
        if len(seen) < len(numbers):
            raise NotAvailable("squeue no longer showed the jobs")
        ordered = tuple(seen[number] for number in numbers)
        return LimitResult(trial, result.amount, ordered, refused, sizes=tuple(sizes))

    def fairshare(self, trial: FairshareTrial) -> FairshareResult:
        """Give one account usage, wait until Slurm counts it, and compare the priorities of two equal jobs."""
        numbers: list[str] = []
        accounts = (trial.busy, trial.idle)
        if not facts.fairshare_weight(self._accounting.settings):
            return FairshareResult()  # which the check judges by the settings
        try:
            before = self._shares(accounts)
            if missing := [name for name in accounts if name not in before]:
                return FairshareResult(
                    problem=f"sshare shows no user {self.user} of account {', '.join(missing)}"
                )
            begin = time.monotonic()
            numbers.append(self._accepted(self._job(account=trial.busy), trial.run, "--no-requeue"))
            if why := self._not_running(numbers[0]):
                return FairshareResult(problem=why)
            end = time.monotonic() + trial.run + 2 * self._period() + SETTLE
            after, busy = before, before[trial.busy]
            # slurmctld adds the usage first, and computes the factors of all accounts then
            while time.monotonic() < end and not (
                after[trial.busy].usage > busy.usage and after[trial.busy].factor < after[trial.idle].factor
            ):
                time.sleep(min(5.0, max(1.0, self._period() / 20)))
                after = self._shares(accounts)
            seconds = time.monotonic() - begin
            equal = (self._job(account=name) for name in (trial.idle, trial.busy))
            numbers.extend(
                self._accepted(job, 1, "--no-requeue") for job in equal
            )  # also those before an error
            seen = self._wait(numbers[1:], lambda known: all(job.priority > 0 for job in known), SETTLE)
            priorities = {
                name: seen[number].priority
                for name, number in zip((trial.idle, trial.busy), numbers[1:], strict=True)
                if number in seen
            }
            return FairshareResult(before, after, priorities, seconds)
        except ProbeError as error:
            return FairshareResult(problem=str(error))
        finally:
            self._cancel(numbers)

    def preemption(self, trial: PreemptionTrial) -> PreemptionResult:
        """Run a job on a node of its own, and submit the one that preempts it there."""
        numbers: list[str] = []
        requeue = "--requeue" if trial.mode == "requeue" else "--no-requeue"
        low = self._job(partition=trial.low_partition, qos=trial.low_qos)
        high = self._job(partition=trial.high_partition, qos=trial.high_qos)
        try:
            whole = self._whole_node(trial)
            numbers.append(self._accepted(low, trial.within + self._trials.start, *whole, requeue))
            if why := self._not_running(numbers[0]):
                return PreemptionResult(problem=why)
            node = self._jobs(numbers)[numbers[0]].node
            begin = time.monotonic()
            options = (*whole, "--no-requeue", f"--nodelist={node}")
            numbers.append(self._accepted(high, SETTLE, *options))
            seen = self._wait(numbers[1:], lambda known: all(job.has_node for job in known), trial.within)
            seconds = time.monotonic() - begin
            upper = seen.get(numbers[1])
            if upper is None or not upper.has_node:
                return PreemptionResult(upper, self._jobs(numbers).get(numbers[0]), seconds)
            lower = self._wait(
                numbers[:1],
                lambda known: all(job.ended_as(trial.mode) for job in known),
                min(SETTLE, trial.within),
            )
            resumed = None
            if trial.mode == "suspend":
                self._cancel(numbers[1:])
                again = self._wait(
                    numbers[:1], lambda known: all(job.state == "RUNNING" for job in known), trial.within
                )
                resumed = again.get(numbers[0])
            return PreemptionResult(upper, lower.get(numbers[0]), seconds, resumed)
        except ProbeError as error:
            return PreemptionResult(problem=str(error))
        finally:
            self._cancel(numbers)

    def backfill(self) -> BackfillResult:
        """Run a job on one node, let another wait for two, and submit a short one that fits before it."""
        numbers: list[str] = []
        long = self._trials.start + 600  # the waiting job cannot start before the short one has ended
        try:
            numbers.append(self._accepted(self._job(), long, "--exclusive", "--no-requeue"))
            if why := self._not_running(numbers[0]):
                return BackfillResult(problem=why)
            node = self._jobs(numbers)[numbers[0]].node
            idle = self._wait_for_idle(self._trials.partition, {node})
            # not --nodelist: a job that waits for named nodes blocks no other job, also without backfill
            others = sorted(set(self._members()) - {node, idle[0]})
            away = (f"--exclude={hostlist.fold(others)}",) if others else ()
            two = ("--nodes=2", "--ntasks=2", "--exclusive", "--no-requeue", *away)
            numbers.append(self._accepted(self._job(), SETTLE, *two))
            self._wait(
                numbers[1:],
                lambda known: all(job.reason in ("Resources", "Priority") for job in known),
                SETTLE,
            )
            begin = time.monotonic()
            short = ("--exclusive", "--no-requeue", f"--exclude={node}", f"--nice={BEHIND}")
            numbers.append(self._accepted(self._job(), SETTLE, *short))
            self._wait(numbers[2:], lambda known: all(job.started for job in known), self._trials.start)
            seen, seconds = self._jobs(numbers), time.monotonic() - begin
            still = frozenset(idle) & self._idle()
            return BackfillResult(seen.get(numbers[1]), seen.get(numbers[2]), still, seconds)
        except ProbeError as error:
            return BackfillResult(problem=str(error))
        finally:
            self._cancel(numbers)

    def _whole_node(self, trial: PreemptionTrial) -> tuple[str, ...]:
        """Return the options of a job that has a node for itself.

        A suspended job retains its node where it is --exclusive, and its memory and GPUs everywhere.
        """
        if trial.mode != "suspend":
            return ("--exclusive",)
        idle = self._wait_for_idle(trial.low_partition or self._trials.partition)
        cpus = self._accounting.slurm.nodes()[idle[0]].job_cpus
        return (f"--nodelist={idle[0]}", f"--ntasks={cpus}", f"--ntasks-per-node={cpus}")

    def _job(
        self, *, account: str | None = None, partition: str | None = None, qos: str | None = None
    ) -> Access:
        trials = self._trials
        return Access(
            user=self.user,
            account=account or trials.account,
            partition=partition or trials.partition,
            qos=qos or trials.qos,
        )

    def _submit(self, access: Access, seconds: float, *options: str) -> tuple[Answer, str]:
        """Submit a job that sleeps; return Slurm's answer, and the number of a job that it accepted."""
        trials, minutes = self._trials, math.ceil(seconds / 60) + 1
        if access.user not in self._guards:
            become = self._accounting.become(access.user)
            self._guards[access.user] = JobGuard(self._accounting.slurm, become)
        where = {"reservation": trials.reservation, "constraint": trials.constraint}
        answer, output = self._accounting.submit(
            access,
            f"--job-name={self._guards[access.user].name}",
            f"--time={minutes}",
            f"--deadline=now+{minutes + 15}minutes",
            f"--mem={MEMORY // MIB}M",
            *(f"--{key}={value}" for key, value in where.items() if value),
            *options,
            f"--wrap=exec sleep {seconds:.0f}",
        )
        return answer, output.partition(";")[0] if answer.result == "accepted" else ""

    def _accepted(self, access: Access, seconds: float, *options: str) -> str:
        """Submit a job and return its number; NotAvailable if Slurm refused it."""
        answer, number = self._submit(access, seconds, *options)
        if not number:
            raise NotAvailable(f"Slurm did not accept a job ({access}): {answer.message}")
        return number

    def _not_running(self, number: str) -> str:
        """Wait until a job runs; return why it does not, '' if it does."""
        seen = self._wait([number], lambda known: all(job.started for job in known), self._trials.start)
        job = seen.get(number)
        if job is not None and job.state == "RUNNING":
            return ""
        shown = f"is {job.state} ({job.reason})" if job else "is unknown to squeue"
        return f"job {number} {shown} after {units.format_duration(self._trials.start)}; check that nodes are idle"

    def _wait(
        self, numbers: Iterable[str], until: Callable[[Iterable[TrialJob]], bool], patience: float
    ) -> dict[str, TrialJob]:
        """Query jobs until the condition holds for them, at most `patience` seconds; return the last answer."""
        wanted, end = list(numbers), time.monotonic() + patience
        seen: dict[str, TrialJob] = {}
        pause = PAUSE / 8  # mostly Slurm decides at once
        while wanted:
            seen = self._jobs(wanted)
            if (len(seen) == len(wanted) and until(seen.values())) or time.monotonic() > end:
                break
            time.sleep(pause)
            pause = min(PAUSE, 2 * pause)
        return seen

    def _jobs(self, numbers: Iterable[str]) -> dict[str, TrialJob]:
        argv = ("squeue", "-a", "-h", "-t", "all", "-j", ",".join(numbers), "-O", facts.JOB_COLUMNS)
        return self._accounting.query(facts.parse_jobs, *argv)

    def _others(self, trial: LimitTrial) -> int:
        whose = f"--qos={trial.qos}" if trial.qos else f"--account={trial.account}"
        states = "--states=PENDING,RUNNING,SUSPENDED"
        return len(self._accounting.run("squeue", "-a", "-h", states, whose, "-o", "%A").split())

    def _shares(self, accounts: tuple[str, ...]) -> dict[str, Share]:
        columns = "Account,User,RawUsage,FairShare,LevelFS"
        argv = ("sshare", "-nP", "-A", ",".join(accounts), "-u", self.user, "-o", columns)
        found = self._accounting.query(facts.parse_shares, *argv)
        return {account: share for (account, user), share in found.items() if user == self.user}

    def _wait_for_idle(self, partition: str, besides: Collection[str] = ()) -> list[str]:
        """Return the idle nodes of a partition; NotAvailable without one: a job of another trial may just have ended."""
        end = time.monotonic() + self._trials.start
        while not (idle := sorted(self._idle(partition) - set(besides))):
            if time.monotonic() > end:
                further = "further " if besides else ""
                raise NotAvailable(f"no {further}node of partition {partition} is idle")
            time.sleep(PAUSE)
        return idle

    def _idle(self, partition: str | None = None) -> frozenset[str]:
        slurm = self._accounting.slurm
        slurm.refresh()
        members = frozenset(self._members(partition))
        return frozenset(name for name, info in slurm.nodes().items() if name in members and info.available)

    def _members(self, partition: str | None = None) -> tuple[str, ...]:
        found = self._accounting.slurm.partitions().get(partition or self._trials.partition)
        return found.nodes if found else ()

    def _period(self) -> float:
        text = self._accounting.settings.get("PriorityCalcPeriod", "")
        with contextlib.suppress(ValueError):
            return units.parse_duration(text)
        return 300.0  # Slurm's default

    def _cancel(self, numbers: Iterable[str], user: str | None = None) -> None:
        """Cancel jobs by their numbers; the guard cancels what this misses."""
        wanted = list(numbers)
        if wanted:
            with contextlib.suppress(SlurmError, NotAvailable):
                self._accounting.slurm.run(
                    *self._accounting.become(user or self.user), "scancel", "--quiet", *wanted
                )


def _decided(known: Iterable[TrialJob]) -> bool:
    return all(job.decided for job in known)
