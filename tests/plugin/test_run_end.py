"""The end of a run: reports one by one, and one exit status in all of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import run_pytest

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.config.models import ReportsConfig
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.outputs import MetricsFile
from pytest_gpucluster.plugin.run_end import RunEnd
from pytest_gpucluster.report.atomic_write import Reports
from pytest_gpucluster.report.events import EventLog, read_events
from pytest_gpucluster.report.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    made = EventLog(tmp_path / "events.jsonl", "r")
    yield made
    made.close()


def run_end(log: EventLog) -> tuple[Any, Any, list[str]]:
    """Return the end of a run of one writer that only counts, its session, and what was written."""
    written = ["start"]
    session: Any = SimpleNamespace(messages=[], slurm=None)
    end = RunEnd(session, log, Reports())
    end.writers.append(lambda: written.append("writer"))
    end.stating.append(lambda: written.append("stating"))
    signals._state.noted = ""
    return end, session, written


def finishes(log: EventLog) -> list[tuple[int, list[str]]]:
    return [(it["exit"], it["complaints"]) for it in read_events(log.path) if it["event"] == "finish"]


def problem(end: RunEnd, path: Path) -> Callable[[], None]:
    return lambda: end.reports.problems.update({path: "x: full"})


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 1), (2, 2)])
def test_a_report_that_is_missing_is_no_success(
    tmp_path: Path, log: EventLog, before: int, after: int
) -> None:
    end, session, written = run_end(log)
    run: Any = SimpleNamespace(exitstatus=before)
    end.writers.insert(0, problem(end, tmp_path / "x"))
    end.finish(before, ["few nodes"])
    end.write(run)
    assert (run.exitstatus, session.messages) == (after, ["x: full"])
    again = [(after, ["few nodes", "x: full"])] if after != before else []
    assert finishes(log) == [(before, ["few nodes"]), *again]
    assert written == ["start", "writer", *["stating"][: len(again)]]
    end.settle(run)
    assert session.messages == ["x: full"]  # once
    assert end.stated == after
    assert end.reports.written == {log.path: None}


def test_an_event_after_the_reports_is_in_the_reports(log: EventLog) -> None:
    end, _, written = run_end(log)
    run: Any = SimpleNamespace(exitstatus=0)
    end.finish(0, [])
    end.write(run)
    end.settle(run)
    assert written == ["start", "writer"]
    log.write("error", message="job 7 could not be cancelled")
    end.settle(run)
    end.settle(run)
    assert written == ["start", "writer", "stating"]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 2), (2, 2), (4, 4)])
def test_a_signal_after_the_last_test_ends_the_run_with_2(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    end, session, _ = run_end(log)
    run: Any = SimpleNamespace(exitstatus=before)
    end.finish(before, [])
    monkeypatch.setattr(signals._state, "noted", "stopped by SIGHUP")
    end.write(run)
    assert run.exitstatus == after
    said = ["stopped by SIGHUP after the last test: the run ends with 2"] if before != after else []
    assert session.messages == said
    assert finishes(log) == [(before, []), *([(after, said)] if said else [])]


def test_a_log_with_gaps_is_reported_and_not_listed_as_a_file(log: EventLog) -> None:
    end, session, _ = run_end(log)
    run: Any = SimpleNamespace(exitstatus=1)
    assert end.gaps() == []
    log.failed = "a: full"
    end.finish(1, [])
    assert end.reports.written == {}
    end.settle(run)
    assert session.messages == ["the event log is not whole: a: full"]
    assert end.reports.written == {}


def test_a_run_that_only_collects_states_nothing(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(messages=[], slurm=None)
    end, run = RunEnd(session, None, Reports()), SimpleNamespace(exitstatus=0)
    end.finish(0, [])
    problem(end, tmp_path / "x")()
    stopped: Any = run
    end.settle(stopped)
    assert (end.stated, run.exitstatus, session.messages) == (None, 1, ["x: full"])


@pytest.mark.parametrize("broken", [False, True])
def test_nodes_go_back_beside_the_reports(*, broken: bool) -> None:
    session: Any = object.__new__(Controller)
    session._releasing = session._lost_at_end = session.channel = None
    seen: list[str] = []
    checked = threading.Event()

    def give_all_back() -> None:
        assert checked.wait(60)
        seen.append(threading.current_thread().name)
        if broken and len(seen) == 1:
            raise RuntimeError("broken")

    session._release_all = give_all_back
    session.start_releasing()
    session.start_releasing()
    assert seen == []
    assert session._lost_at_end == {}
    checked.set()
    session.release_nodes()
    assert seen == ["releasing", "MainThread"]


def metrics_file(tmp_path: Path, log: EventLog) -> tuple[MetricsFile, Reports]:
    (tmp_path / "all").mkdir()
    cluster: Any = SimpleNamespace(reports=ReportsConfig(metrics=str(tmp_path / "all" / "x.prom")))
    reports = Reports(folder=tmp_path)
    return MetricsFile(cluster, log, reports), reports


def the_run(log: EventLog, status: int) -> None:
    log.write("start", cluster="a", simulated=False)
    log.write("finish", exit=status)


SUCCESS = 'gpucluster_last_success_timestamp_seconds{cluster="a"} '


def test_metrics_of_an_earlier_run_make_room_on_a_full_disk(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reports = metrics_file(tmp_path, log)
    path = tmp_path / "all" / "x.prom"
    path.write_text(f"{SUCCESS}5.0\n")
    the_run(log, 1)
    fsync = os.fsync

    def full(handle: int) -> None:
        if path.exists():
            raise OSError(28, "No space left on device")
        fsync(handle)

    def broken(_handle: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("pytest_gpucluster.core.secure_tempfile.os.fsync", full)
    made.write()
    assert path not in reports.problems
    assert f"{SUCCESS}5.0\n" in path.read_text()
    monkeypatch.setattr("pytest_gpucluster.core.secure_tempfile.os.fsync", broken)
    made.write()
    assert not path.exists()
    assert reports.problems[path] == f"{path}: cannot be written (Bad file descriptor)"

    def stays(_path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pytest_gpucluster.plugin.outputs.take_away", stays)
    made.write()
    assert reports.problems[path] == (
        f"{path}: cannot be written (Bad file descriptor); the file of an earlier run is still there (Read-only file "
        "system)"
    )


def test_metrics_of_a_log_that_is_lost_are_whole(tmp_path: Path, log: EventLog) -> None:
    made, reports = metrics_file(tmp_path, log)
    the_run(log, 1)
    log.write("result", node="n", outcome="failed", check="c")
    log.path.unlink()
    log.failed = "full"
    made.write()
    assert reports.problems == {}
    for path in ("all/x.prom", "metrics.prom"):
        text = (tmp_path / path).read_text()
        assert 'exit_status{cluster="a"} 1.0\n' in text
        assert 'gpucluster_check_failed{check="c",cluster="a",node="n"} 1.0\n' in text


GOOD = "def test_whole(gpucluster):\n    assert gpucluster.cluster.name\n"
FULL_AT_THE_END = """
import resource

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
"""


@pytest.mark.thorough
def test_a_disk_that_is_full_at_the_end_leaves_nothing_of_yesterday(tmp_path: Path) -> None:
    collector = tmp_path / "c.prom"
    options = (
        "--cluster=local",
        f"--set=reports.metrics={collector}",
        "--history=h.db",
        "-p",
        "no:cacheprovider",
    )
    assert run_pytest(tmp_path, *options, files={"test_x.py": GOOD}).rc == 0
    assert 'exit_status{cluster="local"} 0.0\n' in collector.read_text()
    # its own process: a fork writes its output to files, which are full as well
    started = (shutil.which("env") or "env",)
    run = run_pytest(tmp_path, *options, files={"conftest.py": FULL_AT_THE_END}, signals=started)
    assert run.rc == 1
    assert "Traceback" not in run.out + run.err
    assert [error.partition(": cannot be")[0].rpartition("/")[2] for error in run.errors[:1]] == [
        "metrics.prom"
    ]
    missing = "\n".join(run.errors)
    for name in ("metrics.prom", "c.prom", "junit.xml", "report.html", "the run is not in the history"):
        assert name in missing
    assert "events.jsonl: File too large" in missing
    assert not collector.exists()
    for line in ("reports:", "HTML:", "metrics:", "generated xml"):
        assert line not in run.out
    assert [path.name for path in tmp_path.rglob(".*")] == []


SIGNALS = """
import os, signal

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config):
    stop()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary():
    stop()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    found = yield
    stop()
    return found


def pytest_keyboard_interrupt():
    stop()


def stop():
    import inspect
    if inspect.stack()[1].function in os.environ["AT"].split():
        for _ in range(3):
            os.kill(os.getpid(), getattr(signal, os.environ["WITH"]))
"""


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("pytest_runtestloop pytest_keyboard_interrupt pytest_sessionfinish", "SIGINT"),
        ("pytest_sessionfinish", "SIGINT"),
        ("pytest_terminal_summary", "SIGTERM"),
        ("pytest_unconfigure", "SIGINT"),
    ],
)
def test_signals_at_the_end_of_a_run(tmp_path: Path, at: str, name: str) -> None:
    files = {"conftest.py": SIGNALS, "test_x.py": GOOD}
    env = {"AT": at, "WITH": name}
    run = run_pytest(
        tmp_path, "--cluster=local", "--history=h.db", "-p", "no:cacheprovider", files=files, env=env
    )
    assert run.rc == 2, run.out
    assert "Traceback" not in run.out + run.err
    assert "INTERNALERROR" not in run.out + run.err
    assert [event["exit"] for event in run.events if event["event"] == "finish"][-1] == 2
    assert (
        'exit_status{cluster="local"} 2.0\n' in (tmp_path / "reports" / "latest" / "metrics.prom").read_text()
    )
    assert len(run.cases) >= 1
    assert (tmp_path / "reports" / "latest" / "report.html").exists()
    assert [path.name for path in tmp_path.rglob(".*")] == []
    said = "stopped by Ctrl-C" if name == "SIGINT" else "stopped by SIGTERM"
    assert said in run.out
    if at in {"pytest_terminal_summary", "pytest_unconfigure"}:  # after the history was written
        with contextlib.closing(History(tmp_path / "h.db")) as history:
            assert [past.exit for past in history.runs("local")] == [0]
