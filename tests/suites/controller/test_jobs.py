"""The jobs of the controller suite on a Slurm of the test, whose time passes only where someone sleeps or a command takes time."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from constants import with_constants

from pytest_gpucluster.cluster.slurm.batch import submission
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.suites.controller import jobs
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
class FakeSlurm:
    """A transport. `said`: {command: what answers its arguments}: output, an error line, or an exception."""

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

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def called(self, command: str) -> list[tuple[str, ...]]:
        return [argv[1:] for argv in self.calls if argv[0] == command]

    def guard(self, _: Slurm) -> SimpleNamespace:
        self.guards += 1
        name = f"guard{self.guards}"
        return SimpleNamespace(name=name, release=lambda: self.released.append(name))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm({})
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: slurm.now, sleep=slurm.sleep))
    monkeypatch.setattr(jobs, "JobGuard", slurm.guard)
    return slurm


# --- held job 1, singletons 2 and 3


def table(shown: dict[str, OrderedJob], argv: tuple[str, ...]) -> str:
    """Answer `squeue -O` about the jobs that it names."""
    assert (argv[1:6], argv[7]) == (("-h", "-a", "-t", "all", "-j"), "-O")
    columns = [(name, int(width)) for name, _, width in (one.partition(":") for one in argv[8].split(","))]
    rows = []
    for number in argv[6].split(","):
        if job := shown.get(number):
            shown_job = {
                "JobID": number,
                "State": job.state,
                "Reason": job.reason,
                "StartTime": job.start,
                "EndTime": job.end,
            }
            rows.append("".join(shown_job[name].ljust(width) for name, width in columns))
    return "\n".join(rows) or NO_ONE


def ordered(site: FakeSlurm, **config: Any) -> jobs.OrderJobs:
    transport: Any = site
    cluster: Any = SimpleNamespace(slurm=SlurmConfig(**config))
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
        assert argv[:4] == ("sh", "-c", jobs._BURST, "sh")
        assert argv[5:] == (
            "8",
            *submission(SlurmConfig(qos="q"), "guard1", "--hold", "--wrap=true"),
        )
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
    section = with_constants(ControllerConfig, quick)
    transport: Any = site
    cluster: Any = SimpleNamespace(slurm=SlurmConfig(qos="q"))
    return jobs.Burst(Slurm(transport, retry_for=0), cluster, section).run(load, settings)


def test_a_burst_is_submitted_counted_and_cancelled_by_its_ids(site: FakeSlurm) -> None:
    slurm = Queue(site, ids)
    assert burst(site) == BurstFacts(70, 70, {}, 3 * 1.25, 3 * (0.25,), 0, "")
    assert slurm.chunks == [10, 50, 10]
    numbers = [*range(100, 110), *range(200, 250), *range(300, 310)]
    cancelled = [argv[1:] for argv in site.called("scancel")]
    assert cancelled == [tuple(map(str, numbers[:50])), tuple(map(str, numbers[50:]))]
    assert site.now == 1000 + 3 * 1.25  # nothing is left: it waits no longer
    assert site.released == ["guard1"]
