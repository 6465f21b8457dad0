"""However pytest ends, Slurm has its nodes back, and what was found out can be read."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from forked import DEFAULT_SIGNALS
from paths import ROOT
from plugin_helpers import Run, cases, command, names, on, processes, run_pytest, write_suites
from sandbox_helpers import DEADLINE, environment, queue, slurm, wait_for

from pytest_gpucluster.report.machine.events import events_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox


SLEEPY = """
import time


def test_quick(host):
    assert host.run("true").rc == 0


def test_sleeps(gpucluster_node, gpucluster_srun):
    open(f"asleep-{gpucluster_node.name}", "w").close()
    time.sleep(1200)
"""
STOPS = """
import os, pathlib, time
import pytest


def stop(point):
    if os.environ["STOP_AT"] == point:
        pathlib.Path(f"asleep-{point}").touch()
        time.sleep(1200)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    stop("collected")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.when == "teardown":
        stop("result")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    stop("reports")


def pytest_terminal_summary():
    stop("summary")
"""
DROPPED = """
import os, signal, time


class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_first(host):
    Finalized()


def test_second(host):
    time.sleep(1200)
"""
STEP = """
def test_in_a_step(gpucluster_node, gpucluster_srun):
    open("asleep-step", "w").close()
    gpucluster_srun(["sleep", "1200"])
"""
ASKED = """
def test_long(host):
    open("asleep-asked", "w").close()
    host.run("trap '' TERM; sleep 1200")
"""
UNTIL_LOCKED = """
import pathlib, time


def test_waits(host):
    open("asleep-x", "w").close()
    while not pathlib.Path("locked").exists():
        time.sleep(0.05)
"""
SLURM_SUITE = ROOT / "suites" / "slurm" / "test_slurm.py"


@dataclass
class Running:
    """A pytest that runs. Its processes, tasks included, are those of its Slurm that were not there `before`."""

    process: subprocess.Popen[str]
    before: frozenset[int]
    folder: Path
    sandbox: Sandbox

    def processes(self) -> list[tuple[int, str]]:
        return [found for found in of_slurm(self.sandbox) if found[0] not in self.before]

    def asleep(self) -> None:
        """Wait until a test is in its long sleep."""
        wait_for(lambda: list(self.folder.glob("asleep-*")) or self.process.poll() is not None, "a test sleeps")
        assert self.process.poll() is None, self.process.communicate()

    def runs(self, words: str) -> None:
        """Wait until a process with this command line runs."""
        wait_for(lambda: [1 for _, line in self.processes() if line.startswith(words)], f"{words} runs")

    def nodes_are_back(self, others: int = 0) -> None:
        wait_for(lambda: len(queue(self.sandbox)) == others, "squeue is empty")

    def nothing_is_left(self, others: int = 0) -> None:
        self.nodes_are_back(others)
        wait_for(lambda: not self.processes(), "all are gone")

    def ended(self) -> Run:
        out, _ = self.process.communicate(timeout=DEADLINE)
        return Run(self.process.returncode, out, "", self.folder)


def of_slurm(sandbox: Sandbox) -> Iterator[tuple[int, str]]:
    """Yield the processes with the sandbox's slurm.conf in their environment: steps have no other variable of the shell."""
    return processes(f"SLURM_CONF={sandbox.env['SLURM_CONF']}\0")


@contextlib.contextmanager
def running(
    sandbox: Sandbox, folder: Path, *args: str, where: tuple[str, ...] = (".",), env: Mapping[str, str] | None = None
) -> Iterator[Running]:
    before = frozenset(pid for pid, _ in of_slurm(sandbox))
    process = subprocess.Popen(
        [*DEFAULT_SIGNALS, *command(on(sandbox), *args, *where)],
        cwd=folder,
        env=environment(**(env or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process, before, folder, sandbox)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def readable(folder: Path) -> list[str]:
    """Return the kinds of events of a log that may not have been begun; every line but a cut last one is whole."""
    run = Run(0, "", "", folder)
    for path in (folder / "reports").glob("20*/events.jsonl"):
        lines, broken = path.read_text().splitlines(), list[int]()
        assert list(events_of(lines, broken)) == run.events
        assert broken in ([], [len(lines)])
    return [event["event"] for event in run.events]


@pytest.mark.parametrize(
    ("point", "workers"),
    [
        ("collected", "-n0"),
        pytest.param("result", "-n0", marks=pytest.mark.essential),
        ("result", "-n2"),
        ("reports", "-n0"),
        ("summary", "-n2"),
    ],
)
def test_sigkill_leaves_nothing(sandbox: Sandbox, tmp_path: Path, point: str, workers: str) -> None:
    write_suites(tmp_path, {"test_sleepy.py": SLEEPY, "conftest.py": STOPS})
    with running(sandbox, tmp_path, workers, "-k", "quick", env={"STOP_AT": point}) as run:
        run.asleep()
        run.process.kill()
        run.nothing_is_left()
    kinds = readable(tmp_path)
    assert ("result" in kinds) == (point != "collected")
    if point == "result" and workers == "-n0":
        assert kinds.count("result") == 1


@pytest.mark.parametrize("code", [STEP, ASKED], ids=["step", "asked"])
def test_sigkill_while_nodes_are_at_work(sandbox: Sandbox, tmp_path: Path, code: str) -> None:
    write_suites(tmp_path, {"test_long.py": code})
    with running(sandbox, tmp_path) as run:
        run.asleep()
        run.runs("sleep 1200")
        run.process.kill()
        run.nothing_is_left()
    assert "finish" not in readable(tmp_path)


def test_a_run_that_is_stopped_while_it_reads_evidence_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("remap_pending", "gpu02")
    tool = sandbox.layout.simbin / "ipmitool"
    whole = tool.read_text()
    tool.write_text(f"#!/bin/sh\n: > {tmp_path}/asleep-ipmitool\nexec sleep 1200\n")
    try:
        with running(sandbox, tmp_path, "-n2", "-m", "gpu", "-k", "remapped_pending", where=()) as run:
            run.asleep()
            run.process.terminate()
            ended = run.ended()
            run.nothing_is_left()
    finally:
        tool.write_text(whole)
    assert ended.rc == 2, ended.out
    assert "evidence" not in readable(tmp_path)


@pytest.fixture
def busy(sandbox: Sandbox) -> Iterator[None]:
    """Somebody else's job on all nodes."""
    job = slurm(sandbox, "sbatch", "--parsable", "-N4", "-o", "/dev/null", "--exclusive", "--wrap", "sleep 1200")
    wait_for(lambda: [1 for _, line in of_slurm(sandbox) if line.startswith("sleep 1200")], "the job runs")
    yield
    slurm(sandbox, "scancel", job.strip())
    wait_for(lambda: not queue(sandbox), "the queue is empty")


@pytest.mark.usefixtures("busy")
def test_a_kill_in_the_queue_withdraws_all_jobs(sandbox: Sandbox, tmp_path: Path) -> None:
    waits = re.compile(r" gpucluster-[0-9a-f]{8}-[0-9a-f-]+ PENDING$")
    with running(sandbox, tmp_path, "--nodes=gpu[01-04]", where=(str(SLURM_SUITE),)) as run:
        wait_for(lambda: any(waits.search(line) for line in queue(sandbox)), "it waits")
        run.process.kill()
        run.nothing_is_left(others=1)
    assert readable(tmp_path) == ["start", "nodes"]


def test_a_signal_that_python_drops_in_a_finalizer_stops_the_run_all_the_same(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "--cluster=local", files={"test_dropped.py": DROPPED})
    assert run.rc == 2, run.out
    assert [name.partition("[")[0] for name in names(run.outcomes, "passed")] == ["test_first"]
    assert "stopped by SIGTERM" in run.out
    assert "Traceback" not in run.out + run.err


@pytest.mark.parametrize(
    ("number", "workers"),
    [pytest.param(signal.SIGTERM, "-n0", marks=pytest.mark.essential), (signal.SIGTERM, "-n2"), (signal.SIGINT, "-n2")],
)
def test_a_stopped_run_writes_its_reports(
    sandbox: Sandbox, tmp_path: Path, number: signal.Signals, workers: str
) -> None:
    write_suites(tmp_path, {"test_sleepy.py": SLEEPY})
    with running(sandbox, tmp_path, workers, "--nodes=gpu[01-02]", "-k", "quick or sleeps") as run:
        run.asleep()
        wait_for(lambda: "result" in readable(tmp_path), "a result")
        if number == signal.SIGINT:  # a terminal sends it to the whole group
            os.killpg(run.process.pid, number)
        else:
            run.process.send_signal(number)
        done = run.ended()
        run.nothing_is_left()
    assert done.rc == 2, done.out
    finish = done.event("finish")
    assert finish["exit"] == 2
    passed = names(done.outcomes, "passed")
    assert passed
    assert len(passed) == finish["passed"]
    written = cases(tmp_path / "reports" / "latest" / "junit.xml")
    assert {f"gpucluster.sleepy.{name[-6:-1]} {name[:-7]}" for name in passed} <= set(written)
    assert "coverage:" in done.out
    came_to = {name[-6:-1] for name in passed}
    states = finish["nodes"]  # the end of the run is no loss of nodes
    assert states["fit"] + states["not proved"] == len(came_to)
    assert [event for event in done.events if event["event"] == "lost"] == []


def test_a_second_signal_does_not_break_the_cleaning_up(sandbox: Sandbox, tmp_path: Path) -> None:
    conftest = "def pytest_keyboard_interrupt():\n    open('interrupted', 'w').close()\n"
    write_suites(tmp_path, {"test_sleepy.py": SLEEPY, "conftest.py": conftest})
    with running(sandbox, tmp_path, "-n0", "-k", "sleeps") as run:
        run.asleep()
        run.process.send_signal(signal.SIGTERM)
        wait_for((tmp_path / "interrupted").exists, "the run begins to end")
        for number in (signal.SIGTERM, signal.SIGHUP):
            run.process.send_signal(number)
        run.nodes_are_back()
        done = run.ended()
        run.nothing_is_left()
    assert done.rc == 2, done.out
    assert done.event("finish")["exit"] == 2
    assert "INTERNALERROR" not in done.out


def test_a_locked_history_holds_no_nodes_and_is_not_waited_for_after_a_signal(sandbox: Sandbox, tmp_path: Path) -> None:
    write_suites(tmp_path, {"test_until_locked.py": UNTIL_LOCKED})
    with running(sandbox, tmp_path, "--history=h.db") as run:
        run.asleep()
        assert queue(sandbox)
        with contextlib.closing(sqlite3.connect(tmp_path / "h.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            (tmp_path / "locked").touch()
            run.nodes_are_back()
            assert run.process.poll() is None, "it waits for the history"
            metrics = tmp_path / "reports" / "latest" / "metrics.prom"
            wait_for(metrics.exists, "the reports are written")  # before the history, which waits for 60 s
            run.process.terminate()
            ended = run.ended()
    assert ended.rc == 2, ended.out
    assert [event["exit"] for event in ended.events if event["event"] == "finish"] == [0, 2]
    assert "the run is not in the history" in ended.errors[0]
