"""The jobs of the controller suite on a Slurm of the test, whose time passes only where someone sleeps or a command takes time."""

from __future__ import annotations

import re
import subprocess
import threading
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from constants import with_constants

from pytest_gpucluster.cluster.slurm.batch import submission
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.suites.controller import SUITE, jobs
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import Load, Scheduler
from pytest_gpucluster.suites.controller.jobs import BurstFacts, OrderedJob, OrderFacts

if TYPE_CHECKING:
    from collections.abc import Callable

HELD = OrderedJob("PENDING", "JobHeldUser", "N/A", "N/A")
WAITS = OrderedJob("PENDING", "Priority", "N/A", "N/A")
RUNS = OrderedJob("RUNNING", "None", "2026-11-23T15:07:10", "N/A")
DONE = OrderedJob("COMPLETED", "None", "2026-11-23T15:07:10", "2026-11-23T15:07:13")
NO_ONE = "squeue: error: slurm_load_jobs error: Invalid job id specified"
LIMIT = "sbatch: error: AssocMaxSubmitJobLimit"
AWAY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@dataclass
class Guard:
    name: str
    released: list[str]

    def release(self) -> None:
        self.released.append(self.name)


@dataclass
class FakeSlurm:
    """A transport, and the clock. `said`: {command: what answers its arguments}: output, an error line, or an exception."""

    said: dict[str, Callable[..., str]]
    now: float = 1000.0
    calls: list[tuple[str, ...]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    guards: int = 0
    released: list[str] = field(default_factory=list)

    def run(self, argv: tuple[str, ...], *, timeout: float, env: Any, input: str | None = None) -> Completed:
        assert (env["SLURM_TIME_FORMAT"], timeout > 0) == ("standard", True)
        self.calls.append(argv)
        self.scripts += [input] if input else []
        answer = self.said[argv[0]](argv) if argv[0] in self.said else ""
        wrong = ": error: " in answer and argv[0] != "sh"
        errors = "\n".join(line for line in answer.splitlines() if line.startswith("sbatch:"))
        return Completed(argv, 1, "", answer, 0.0) if wrong else Completed(argv, 0, answer, errors, 0.0)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def called(self, command: str) -> list[tuple[str, ...]]:
        return [argv[1:] for argv in self.calls if argv[0] == command]

    def guard(self, _: Slurm) -> Guard:
        self.guards += 1
        return Guard(f"guard{self.guards}", self.released)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm({})
    monkeypatch.setattr(jobs, "time", slurm)
    monkeypatch.setattr(jobs, "JobGuard", slurm.guard)
    # however long a command takes on a busy machine, squeue is called once meanwhile
    monkeypatch.setattr(jobs, "wait", lambda futures, _seconds: wait(futures))
    return slurm


def test_the_jobs_are_submitted_before_the_allocation_with_intrusive_alone() -> None:
    assert SUITE.before_allocation is not None
    assert (SUITE.before_allocation.fixture, SUITE.before_allocation.option) == ("order", "intrusive")
    assert SUITE.load(SUITE.before_allocation.part) is jobs.OrderJobs


# --- held job 1, singletons 2 and 3


def table(shown: dict[str, OrderedJob], argv: tuple[str, ...]) -> str:
    """Answer `squeue -O` about the jobs that it names."""
    assert (argv[1:6], argv[7]) == (("-h", "-a", "-t", "all", "-j"), "-O")
    columns = [(name, int(width)) for name, _, width in (one.partition(":") for one in argv[8].split(","))]
    rows = []
    for number in argv[6].split(","):
        if job := shown.get(number):
            times = {"StartTime": job.start, "EndTime": job.end}
            values = {"JobID": number, "State": job.state, "Reason": job.reason, **times}
            rows.append("".join(values[name].ljust(width) for name, width in columns))
    return "\n".join(["", *rows]) if rows else NO_ONE


def ordered(site: FakeSlurm, **config: Any) -> jobs.OrderJobs:
    transport: Any = site
    cluster = load_cluster("local").model_copy(update={"slurm": SlurmConfig(**config)})
    return jobs.OrderJobs(Slurm(transport), cluster)


def ordering(site: FakeSlurm, shown: Callable[[float, bool], dict[str, OrderedJob]]) -> None:
    """Let squeue show `shown(seconds since the start, whether the held job was released)`."""
    numbers = iter("123")
    site.said["sbatch"] = lambda *_: f"{next(numbers)};cluster\n"
    site.said["squeue"] = lambda argv: table(shown(site.now - 1000, bool(site.called("scontrol"))), argv)


def test_the_held_job_is_released_after_a_while_and_all_are_awaited(site: FakeSlurm) -> None:
    def shown(seconds: float, released: bool) -> dict[str, OrderedJob]:
        if seconds >= 40:
            return {"3": DONE}  # Slurm has forgotten the others
        single = DONE if seconds >= 20 else RUNS
        held = (HELD if seconds < 7 else WAITS if seconds < 10 else DONE) if released else HELD
        return {"1": held, "2": single, "3": DONE if seconds >= 30 else WAITS}

    ordering(site, shown)
    found = ordered(site)
    assert [argv[-1] for argv in site.called("sbatch")] == ["--hold", *2 * ["--dependency=singleton"]]
    assert [argv[-2] for argv in site.called("sbatch")] == [f"--job-name=guard{n}" for n in (1, 2, 2)]
    assert site.scripts == ["#!/bin/sh\ntrue\n", *2 * ["#!/bin/sh\nsleep 3\n"]]
    assert site.called("scontrol") == [("release", "1")]
    assert site.now == 1007  # 5 s held, then until it is released
    assert len(site.called("squeue")) == 1 + 1 + 4
    assert found.job_ids() == ("1", "2", "3")
    assert found.outcome() == OrderFacts(HELD, WAITS, DONE, (DONE, DONE))
    assert site.now == 1030
    site.now = 1050
    assert found.outcome() == OrderFacts(HELD, WAITS, DONE, (DONE, DONE))  # as they were seen last
    assert site.released == []
    found.close()
    assert site.released == ["guard1", "guard2"]


RELEASED = [("release", "1")]


@pytest.mark.parametrize(
    ("job", "released", "before", "after", "ids"),
    [
        (lambda _: HELD, RELEASED, HELD, HELD, "23"),  # stays held: no one waits for it
        (lambda _: RUNS, [], RUNS, None, "123"),  # was not held at all
        (lambda _: None, [], None, None, "23"),
        (lambda seconds: HELD if seconds < 6 else WAITS, RELEASED, HELD, WAITS, "123"),
    ],
)
def test_a_held_job_that_starts_or_stays_held_ends_the_wait(
    site: FakeSlurm, job: Any, released: object, before: OrderedJob | None, after: OrderedJob | None, ids: str
) -> None:
    def shown(seconds: float, _: bool) -> dict[str, OrderedJob]:
        held = job(seconds)
        return {"2": DONE, "3": DONE, **({"1": held} if held else {})}

    ordering(site, shown)
    found = ordered(site, queue_wait=60)
    assert (site.called("scontrol"), found.job_ids()) == (released, tuple(ids))
    assert site.now == 1000 + jobs.HELD_FOR + (10.5 if after is HELD else 1 if after else 0)
    began, waited = site.now, job(site.now - 1000) in (RUNS, WAITS)
    assert found.outcome() == OrderFacts(before, after, job(site.now - 1000), (DONE, DONE))
    assert site.now - began == (60.5 if waited else 0)
    assert found.withdraw("no nodes")
    withdrawn = found.outcome()
    assert withdrawn.hold_problem == "the jobs were withdrawn for the allocation: no nodes"
    assert withdrawn.singleton_problem == withdrawn.hold_problem
    assert site.released == ["guard1", "guard2"]


def test_refused_jobs_have_their_reason_and_advice(site: FakeSlurm) -> None:
    site.said["sbatch"] = lambda argv: "sbatch: error: Invalid qos" if "--hold" in argv else LIMIT
    found = ordered(site)
    facts = found.outcome()
    assert re.match(r"sbatch: Invalid qos \(.*\): set slurm.qos in", facts.hold_problem)
    assert re.match(r"sbatch: AssocMaxSubmitJobLimit \(.*\): the account or QOS", facts.singleton_problem)
    assert (site.called("squeue"), site.now) == ([], 1000)  # there is nothing to wait for
    assert (facts.held, facts.singletons, found.job_ids(), found.withdraw("x")) == (None, (), (), False)
    assert (found.outcome(), site.released) == (facts, [])


def test_a_job_that_cannot_be_released_is_not_checked(site: FakeSlurm) -> None:
    ordering(site, lambda *_: {"1": HELD, "2": DONE, "3": DONE})
    site.said["scontrol"] = lambda _: "scontrol: error: Access denied"
    facts = ordered(site).outcome()
    assert facts.hold_problem.startswith("scontrol: Access denied (exit 1: scontrol release 1)")
    assert (facts.before, facts.after, facts.singleton_problem) == (HELD, None, "")


@pytest.mark.parametrize(
    "state",
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"],
)
def test_a_job_in_a_state_of_its_end_is_not_awaited(site: FakeSlurm, state: str) -> None:
    ordering(site, lambda *_: {"1": HELD, "2": DONE, "3": replace(DONE, state=state)})
    found = ordered(site)
    began = site.now
    assert (found.outcome().singletons[1], site.now) == (replace(DONE, state=state), began)


# --- burst

IDLE = Load(0, 0, 0, 0, 0, 0, Scheduler(0, None), Scheduler(0, None), None)
MANY = {"MaxJobCount": "10000"}


@dataclass
class Queue:
    """The burst's side of Slurm. A command of submissions takes `seconds` and answers `said(number, count)`."""

    site: FakeSlurm
    said: Callable[[int, int], str]
    seconds: float = 1.0
    jobs: list[str] = field(default_factory=list)
    stays: Callable[[float], bool] = lambda _: False  # whether jobs survive scancel at this time
    asked: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.site.said |= {"sh": self.submit, "squeue": self.show, "scancel": self.cancel}
        self.chunks: list[int] = []

    def submit(self, argv: tuple[str, ...]) -> str:
        assert self.asked.wait(10)  # squeue is called meanwhile
        self.asked.clear()
        self.site.now += self.seconds
        assert argv[5:] == ("8", *submission(SlurmConfig(qos="q"), "guard1", "--hold", "--wrap=true"))
        self.chunks.append(int(argv[4]))
        answer = self.said(len(self.chunks), int(argv[4]))
        self.jobs += re.findall(r"^\d+(?=;c$)", answer, re.MULTILINE)
        return answer

    def show(self, argv: tuple[str, ...]) -> str:
        if argv == ("squeue", "--me", "-h", "-t", "RUNNING", "-o", "%A"):
            self.site.now += 0.25
            self.asked.set()
            return ""
        assert argv == ("squeue", "--me", "-h", "-a", "--name=guard1", "-o", "%A")
        return "\n".join(self.jobs)

    def cancel(self, argv: tuple[str, ...]) -> str:
        assert argv[1] == "--quiet"
        assert len(argv) <= 3 + jobs.CHUNK
        named = argv[3:] if argv[2] == "--name=guard1" else argv[2:]
        if not self.stays(self.site.now):
            self.jobs = [job for job in self.jobs if job not in named]
        return ""


def ids(number: int, count: int) -> str:
    """Answer as sbatch --parsable of a federation, beside a line of a site's wrapper."""
    first = 100 * number
    lines = [f"{one};c" for one in range(first, first + count)]
    return "\n".join(("2026-11-23 quota is fine: 7", "", *lines, "sbatch: a remark", "x;y"))


def burst(
    site: FakeSlurm, load: Load | None = IDLE, settings: dict[str, str] = MANY, **constants: Any
) -> BurstFacts:
    quick = {"submissions": 70, "burst_time": 20, "burst_answer": 2, **constants}
    transport: Any = site
    cluster = load_cluster("local").model_copy(update={"slurm": SlurmConfig(qos="q")})
    section = with_constants(ControllerConfig, quick)
    return jobs.Burst(Slurm(transport, retry_for=0), cluster, section).run(load, settings)


def lines(error: str) -> Callable[[int, int], str]:
    """Let the second half of each command's submissions be refused."""
    return lambda number, count: "\n".join((ids(number, count // 2), *(count - count // 2) * [error]))


def test_a_burst_is_submitted_counted_and_cancelled_by_its_ids(site: FakeSlurm) -> None:
    slurm = Queue(site, ids)
    assert burst(site) == BurstFacts(70, 70, {}, 3 * 1.25, 3 * (0.25,), 0, "")
    assert slurm.chunks == [10, 50, 10]
    numbers = [*range(100, 110), *range(200, 250), *range(300, 310)]
    cancelled = [argv[1:] for argv in site.called("scancel")]
    assert cancelled == [tuple(map(str, numbers[:50])), tuple(map(str, numbers[50:]))]
    assert site.now == 1000 + 3 * 1.25  # nothing is left: it waits no longer
    assert site.released == ["guard1"]


ODD = {"node # is odd": 35}


@pytest.mark.parametrize(
    ("said", "chunks", "expected"),
    [
        # a limit or no job at all: more would be refused too
        (lines(LIMIT), [10], BurstFacts(70, 5, {"AssocMaxSubmitJobLimit": 5}, 1.25, (0.25,))),
        (lambda *_: "sbatch: error: Invalid qos", [10], BurstFacts(70, 0, {"Invalid qos": 1}, 1.25, (0.25,))),
        (lines("sbatch: error: node 12 is odd"), [10, 50, 10], BurstFacts(70, 35, ODD, 3.75, 3 * (0.25,))),
    ],
)
def test_refused_submissions_are_counted_by_error(
    site: FakeSlurm, said: Callable[[int, int], str], chunks: list[int], expected: BurstFacts
) -> None:
    slurm = Queue(site, said)
    assert burst(site) == expected
    assert (slurm.chunks, slurm.jobs, site.released) == (chunks, [], ["guard1"])


def late(number: int, count: int) -> str:
    if number == 2:
        raise TransportError("timed out")
    return ids(number, count)


@pytest.mark.parametrize(
    ("said", "seconds", "chunks", "accepted"),
    [
        (late, 1.0, [10, 50], 10),  # the command itself reaches the limit
        (ids, 20.0, [10], 10),  # before the next command
    ],
)
def test_a_burst_ends_at_its_time_limit_and_the_queue_must_stay_empty(
    site: FakeSlurm, said: Callable[[int, int], str], seconds: float, chunks: list[int], accepted: int
) -> None:
    slurm = Queue(site, said, seconds)
    found = burst(site)
    took = len(chunks) * (seconds + 0.25)
    assert (found.accepted, found.seconds, found.left) == (accepted, took, 0)
    assert found.problem == "the time limit was reached"
    assert slurm.chunks == chunks
    # an sbatch that was cut off may still submit: the queue must be empty for the time of an answer
    assert site.now == 1000 + took + 2
    assert len(site.called("scancel")) == 1


def test_after_an_outage_jobs_that_appear_late_are_cancelled_too(site: FakeSlurm) -> None:
    slurm = Queue(site, lines(AWAY))

    def show(argv: tuple[str, ...]) -> str:
        if len(site.called("squeue")) == 3 + 2:  # the second look after the burst
            slurm.jobs.append("999")
        return Queue.show(slurm, argv)

    site.said["squeue"] = show
    found = burst(site)
    assert (found.accepted, sum(found.refused.values()), found.left) == (35, 35, 0)
    assert site.called("scancel")[-1] == ("--quiet", "--name=guard1", "999")
    assert site.now == 1000 + found.seconds + jobs.POLL + 2


@pytest.mark.parametrize(
    ("said", "until", "left", "waited"),
    [
        (ids, 5.0, 0, 6.0),  # 50 jobs with each command
        (ids, 1e9, 70, 30.5),
        (lines(AWAY), 1e9, 35, 32.5),  # after an outage the wait is longer
    ],
)
def test_jobs_that_outlive_scancel_are_cancelled_by_name_for_a_while(
    site: FakeSlurm, said: Callable[[int, int], str], until: float, left: int, waited: float
) -> None:
    Queue(site, said, stays=lambda now: now < 1003.75 + until)
    assert (burst(site).left, site.now) == (left, 1003.75 + waited)


def test_a_queue_that_cannot_be_read_is_not_empty(site: FakeSlurm) -> None:
    slurm = Queue(site, ids)
    site.said["squeue"] = lambda argv: "squeue: error: x" if "-a" in argv else Queue.show(slurm, argv)
    assert burst(site).left == 1


@pytest.mark.parametrize(
    ("load", "settings", "config", "requested"),
    [
        (replace(IDLE, pending=9000, running=980), MANY, {}, 10),
        (replace(IDLE, pending=9982), MANY, {}, 0),
        (replace(IDLE, pending=20_000), MANY, {}, 0),
        (replace(IDLE, pending=9990), MANY, {"submissions": 5}, 5),
        (None, MANY, {}, 0),
        (IDLE, {"MaxJobCount": "n/a"}, {}, 0),
    ],
)
def test_a_burst_needs_room_for_its_jobs(
    site: FakeSlurm, load: Load | None, settings: dict[str, str], config: dict[str, Any], requested: int
) -> None:
    Queue(site, ids)
    found = burst(site, load, settings, **config)
    assert (found.requested, found.accepted, bool(site.calls)) == (requested, requested, bool(requested))
    assert found.problem.startswith("" if requested else "slurmctld has no room for more jobs (MaxJobCount)")


def test_squeue_is_called_until_all_is_submitted(site: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL", 0.001)
    monkeypatch.setattr(jobs, "wait", wait)
    slurm = Queue(site, ids)

    def show(argv: tuple[str, ...]) -> str:
        calls = len(site.called("squeue"))
        if "RUNNING" in argv:
            site.now += 0.5
            if calls >= 3:
                slurm.asked.set()
            if calls == 2:
                raise TransportError("no answer in time")
        return ""

    site.said["squeue"] = show
    assert set(burst(site, submissions=10).answers[:3]) == {0.5}


def test_the_shell_runs_the_command_as_often_as_asked(site: FakeSlurm) -> None:
    Queue(site, ids)
    burst(site, submissions=10)
    (first,) = site.called("sh")
    argv = ("sh", *first[:3], "12", "3", "echo", "a", "b c")
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == 12 * "a b c\n"
