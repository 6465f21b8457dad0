"""Jobs of the intrusive checks: one that is held, two singletons, and a burst of held submissions.

All are bounded in number and time. A JobGuard cancels them however the run ends, also after SIGKILL.
"""

from __future__ import annotations

import collections
import contextlib
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.batch import submission
from pytest_gpucluster.cluster.slurm.client import error_line, outage
from pytest_gpucluster.cluster.slurm.error_hints import advice
from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.kit.suite_work import Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport.base import Completed
    from pytest_gpucluster.config.models import Cluster, SlurmConfig
    from pytest_gpucluster.suites.controller.config import ControllerConfig
    from pytest_gpucluster.suites.controller.facts import Load

WORK = "sleep 3"  # of a singleton: longer than the resolution of Slurm's times, one second
HELD_FOR = 5.0  # seconds: the scheduler has considered a new job by then (batch_sched_delay: 3 s)
RELEASED_WITHIN = 10.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
CHUNK, AT_ONCE = 50, 8  # submissions of one command, and how many run at once
FEWEST = 10  # accepted submissions that give a rate
POLL = 0.5
GONE_WITHIN = 30.0  # seconds from scancel until the queue has none of the jobs
_COLUMNS, _WIDTH = ("JobID", "State", "Reason", "StartTime", "EndTime"), 40
# Slurm's texts for a limit of the account or QOS (slurm_errno.c)
_LIMIT = re.compile(
    r"SubmitJob|violates accounting/QOS policy|job submit limit|Job count limit", re.IGNORECASE
)
_BURST = 'count=$1 at_once=$2; shift 2; seq "$count" | xargs -P "$at_once" -I @NUMBER@ "$@"'


@dataclass(frozen=True)
class OrderedJob:
    """One job as squeue shows it; missing times are ''."""

    state: str
    reason: str
    start: str
    end: str

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """Begin and end of its run, None if it did not run to its end."""
        try:
            return datetime.fromisoformat(self.start), datetime.fromisoformat(self.end)
        except ValueError:
            return None


@dataclass(frozen=True)
class OrderFacts:
    """The held job before and after its release, and the last view of the jobs; problems say why there is none."""

    before: OrderedJob | None = None
    after: OrderedJob | None = None
    held: OrderedJob | None = None
    singletons: tuple[OrderedJob | None, ...] = ()
    hold_problem: str = ""
    singleton_problem: str = ""


@dataclass(frozen=True)
class BurstFacts:
    """The burst. `refused`: {error: count}; `answers`: seconds that squeue took meanwhile; `left`: jobs that remain."""

    requested: int = 0
    accepted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    answers: tuple[float, ...] = ()
    left: int = 0
    problem: str = ""


class OrderJobs(Submission):
    """A held job, which is released here, and two singletons."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self._slurm, self._wait = slurm, cluster.slurm.queue_wait
        # singletons wait for every job of their name
        self._guards = JobGuard(slurm), JobGuard(slurm)
        self._held = ""
        self._singletons: tuple[str, ...] = ()
        self._known: dict[str, OrderedJob] = {}
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}
        self._before: OrderedJob | None = None
        self._after: OrderedJob | None = None
        config = cluster.slurm
        self._try("hold", lambda: self._submit_held(config))
        self._try("singleton", lambda: self._submit_singletons(config))
        if self._held:
            self._try("hold", self._release_held)

    def _try(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except SlurmError as error:
            hint = advice(error.stderr)
            self._problems[what] = f"{error}{hint and ': '}{hint}"

    def _submit_held(self, config: SlurmConfig) -> None:
        self._held = self._submit(submission(config, self._guards[0].name, "--hold"), "true")

    def _submit_singletons(self, config: SlurmConfig) -> None:
        command = submission(config, self._guards[1].name, "--dependency=singleton")
        for _ in range(2):
            self._singletons = (*self._singletons, self._submit(command, WORK))

    def _submit(self, command: tuple[str, ...], work: str) -> str:
        return self._slurm.run(*command, input=f"#!/bin/sh\n{work}\n").strip().split(";")[0]

    def _release_held(self) -> None:
        time.sleep(HELD_FOR)
        self.refresh()
        self._before = self._known.get(self._held)
        if self._before is None or not is_held(self._before):
            return  # the check reports it
        self._slurm.run("scontrol", "release", self._held)
        deadline = time.monotonic() + RELEASED_WITHIN
        while True:
            self.refresh()
            self._after = self._known.get(self._held)
            if self._after is None or not is_held(self._after) or time.monotonic() > deadline:
                return
            time.sleep(POLL)

    def job_ids(self) -> tuple[str, ...]:
        """Return the jobs that end by themselves: not one that is still held."""
        last = self._known.get(self._held)
        held = (self._held,) if last and not is_held(last) else ()
        return (*held, *self._singletons)

    def refresh(self) -> None:
        """Call squeue once for all jobs; those that it no longer shows stay as they were seen last."""
        ids = [job for job in (self._held, *self._singletons) if job]
        if not ids:
            return
        columns = ",".join(f"{name}:{_WIDTH}" for name in _COLUMNS)
        with contextlib.suppress(SlurmError):  # Slurm has forgotten all of them, or does not answer
            text = self._slurm.run("squeue", "-h", "-a", "-t", "all", "-j", ",".join(ids), "-O", columns)
            with self._lock:
                self._known |= parse_jobs(text)

    def outcome(self) -> OrderFacts:
        """Wait until the jobs have ended, at most `slurm.queue_wait`, and return what was seen of them."""
        deadline = time.monotonic() + self._wait
        while True:
            self.refresh()
            with self._lock:
                found = {job: self._known.get(job) for job in (self._held, *self._singletons)}
            waits = any(seen and seen.state not in ENDED and not is_held(seen) for seen in found.values())
            if not waits or time.monotonic() > deadline:
                break
            time.sleep(POLL)
        return OrderFacts(
            self._before,
            self._after,
            found.get(self._held),
            tuple(found[job] for job in self._singletons),
            self._problems.get("hold", ""),
            self._problems.get("singleton", ""),
        )

    def withdraw(self, why: str) -> bool:
        """Cancel the jobs; their checks report the reason."""
        if not self.job_ids():
            return False
        why = f"the jobs were withdrawn for the allocation: {why}"
        self._problems = dict.fromkeys(("hold", "singleton"), why)
        self.close()
        return True

    def close(self) -> None:
        """Cancel the remaining jobs."""
        for guard in self._guards:
            guard.release()


def is_held(job: OrderedJob) -> bool:
    """Return whether a job is held by a user or an administrator."""
    return job.state == "PENDING" and job.reason.startswith("JobHeld")


def parse_jobs(text: str) -> dict[str, OrderedJob]:
    """Read the columns of squeue, all of one width: {job id: job}."""
    found = {}
    for line in text.splitlines():
        job, *values = (line[at * _WIDTH :][:_WIDTH].strip() for at in range(len(_COLUMNS)))
        if job:
            found[job] = OrderedJob(*values)
    return found


class Burst:
    """The submissions of controller.burst: held jobs of one task, which never run."""

    def __init__(self, slurm: Slurm, cluster: Cluster, config: ControllerConfig) -> None:
        self._slurm, self._cluster, self._config = slurm, cluster, config
        self._ids: list[str] = []
        self._errors: collections.Counter[str] = collections.Counter()

    def run(self, load: Load | None, settings: Mapping[str, str]) -> BurstFacts:
        """Submit, query meanwhile, cancel by job id, and count what is left."""
        requested = min(self._config.submissions, room(load, settings))
        if requested < min(FEWEST, self._config.submissions):
            return BurstFacts(
                problem="slurmctld has no room for more jobs (MaxJobCount), or its load is unknown"
            )
        guard = JobGuard(self._slurm)
        try:
            seconds, answers, problem = self._submit(requested, guard.name)
            left = self._cancel(guard.name, lost=bool(problem) or any(map(outage, self._errors)))
        finally:
            guard.release()
        return BurstFacts(requested, len(self._ids), dict(self._errors), seconds, answers, left, problem)

    def _submit(self, requested: int, name: str) -> tuple[float, tuple[float, ...], str]:
        """Return the seconds of all submissions, those of each squeue meanwhile, and why it ended early."""
        began = time.monotonic()
        answers: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            sent = 0
            while sent < requested:
                # few at first: the ids of a command that reaches the time limit are lost
                size = min(CHUNK if sent else FEWEST, requested - sent)
                left = self._config.burst_time - (time.monotonic() - began)
                if left <= 0:
                    return time.monotonic() - began, tuple(answers), "the time limit was reached"
                chunk = pool.submit(self._chunk, size, name, left)
                sent += size
                answers += self._answers_during(chunk)
                if problem := self._taken(chunk):
                    return time.monotonic() - began, tuple(answers), problem
                if not self._ids or any(map(is_limit, self._errors)):
                    break  # more would be refused too
        return time.monotonic() - began, tuple(answers), ""

    def _chunk(self, count: int, name: str, timeout: float) -> Completed:
        # few submissions of one command: a shell that outlives this process ends soon, while JobGuard still cancels
        command = submission(self._cluster.slurm, name, "--hold", "--wrap=true")
        return self._slurm.transport.run(
            ("sh", "-c", _BURST, "sh", str(count), str(AT_ONCE), *command),
            timeout=timeout,
            env=self._slurm.env,
        )

    def _answers_during(self, chunk: Future[Completed]) -> list[float]:
        taken: list[float] = []
        while not taken or not chunk.done():
            began = time.monotonic()
            with contextlib.suppress(TransportError):
                self._slurm.transport.run(
                    ("squeue", "--me", "-h", "-t", "RUNNING", "-o", "%A"),
                    timeout=2 * self._config.burst_answer,
                    env=self._slurm.env,
                )
            taken.append(time.monotonic() - began)
            wait([chunk], POLL)
        return taken

    def _taken(self, chunk: Future[Completed]) -> str:
        try:
            done = chunk.result()
        except TransportError:
            return "the time limit was reached"
        self._ids += re.findall(r"^(\d+)(?:;|$)", done.stdout, re.MULTILINE)
        for line in done.stderr.splitlines():
            if "error:" in line:
                self._errors[re.sub(r"\d+", "#", error_line(line))] += 1
        return ""

    def _cancel(self, name: str, *, lost: bool) -> int:
        """Cancel the jobs by their ids; return how many the queue still has after GONE_WITHIN.

        `lost`: some sbatch did not end by itself. slurmctld may still take its request, so the queue must stay empty.
        """
        for first in range(0, len(self._ids), CHUNK):
            with contextlib.suppress(SlurmError):
                self._slurm.run("scancel", "--quiet", *self._ids[first : first + CHUNK])
        now = seen = time.monotonic()
        settled = self._config.burst_answer if lost else 0.0
        deadline = now + GONE_WITHIN + settled
        while True:
            left = self._queue(name)
            now = time.monotonic()
            seen = now if left else seen
            if now > deadline or (not left and now - seen >= settled):
                return len(left)
            if left:
                with contextlib.suppress(SlurmError):
                    self._slurm.run("scancel", "--quiet", f"--name={name}", *left[:CHUNK])
            time.sleep(POLL)

    def _queue(self, name: str) -> Sequence[str]:
        try:
            return self._slurm.run("squeue", "--me", "-h", "-a", f"--name={name}", "-o", "%A").split()
        except SlurmError:
            return ["?"]


def room(load: Load | None, settings: Mapping[str, str]) -> int:
    """Return half of the jobs that slurmctld still takes: ended ones count for MinJobAge too; 0 if unknown."""
    most = settings.get("MaxJobCount", "")
    if load is None or not re.fullmatch(r"\d{1,12}", most):
        return 0
    return max(0, (int(most) - load.pending - load.running) // 2)


def is_limit(error: str) -> bool:
    """Return whether an error of sbatch is a limit of the account, the QOS or slurm.conf."""
    return _LIMIT.search(error) is not None
