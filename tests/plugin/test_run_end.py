"""The end of a run: reports one by one, one exit status in all of them, nodes without a proof, and late checks."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from argparse import Namespace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from plugin_helpers import FakeConfig, PytestRun, a_cluster, a_session, run_pytest

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.plan import Problem, ProblemKind
from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.config.models import ReportsConfig
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.run_end import HELD, STOPPED, Completeness, LateChecks, RunEnd
from pytest_gpucluster.plugin.run_outputs import MetricsFile
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.atomic_write import Reports
from pytest_gpucluster.report.machine.events import EventLog, read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    made = EventLog(tmp_path / "events.jsonl", "r")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "noted", lambda: "")


class Ending:
    """The end of a run of one writer that only counts, and what was written."""

    def __init__(self, log: EventLog | None, status: int) -> None:
        self.written = ["start"]
        self.session, self.run = a_session(), PytestRun(exitstatus=status)
        self.end = RunEnd(self.session, log, Reports())
        self.end.writers.append(lambda: self.written.append("writer"))
        self.end.stating.append(lambda: self.written.append("stating"))

    def write(self) -> None:
        run: Any = self.run
        self.end.write(run)

    def settle(self) -> None:
        run: Any = self.run
        self.end.settle(run)


def finishes(log: EventLog) -> list[tuple[int, list[str]]]:
    return [(it["exit"], it["complaints"]) for it in read_events(log.path) if it["event"] == "finish"]


def problem(end: RunEnd, path: Path) -> Callable[[], None]:
    return lambda: end.reports.problems.update({path: "x: full"})


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 1), (2, 2)])
def test_a_missing_report_is_no_success(tmp_path: Path, log: EventLog, before: int, after: int) -> None:
    made = Ending(log, before)
    made.end.writers.insert(0, problem(made.end, tmp_path / "x"))
    made.end.finish(before, ["few nodes"])
    made.write()
    assert (made.run.exitstatus, made.session.messages) == (after, ["x: full"])
    again = [(after, ["few nodes", "x: full"])] if after != before else []
    assert finishes(log) == [(before, ["few nodes"]), *again]
    assert made.written == ["start", "writer", *["stating"][: len(again)]]
    made.settle()
    assert made.session.messages == ["x: full"]  # once
    assert made.end.stated == after
    assert made.end.reports.written == {log.path: None}


def test_an_event_after_the_reports_is_in_the_reports(log: EventLog) -> None:
    made = Ending(log, 0)
    made.end.finish(0, [])
    made.write()
    made.settle()
    assert made.written == ["start", "writer"]
    log.write("error", message="job 7 could not be cancelled")
    made.settle()
    made.settle()
    assert made.written == ["start", "writer", "stating"]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 2), (2, 2), (4, 4)])
def test_a_signal_after_the_last_test_ends_the_run_with_2(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    made = Ending(log, before)
    made.end.finish(before, [])
    monkeypatch.setattr(signals, "noted", lambda: "stopped by SIGHUP")
    made.write()
    assert made.run.exitstatus == after
    told = ["stopped by SIGHUP after the last test: the run ends with 2"] if before != after else []
    assert made.session.messages == told
    assert finishes(log) == [(before, []), *([(after, told)] if told else [])]


def test_a_log_with_gaps_is_reported_and_not_listed_as_a_file(log: EventLog) -> None:
    made = Ending(log, 1)
    assert made.end.gaps() == []
    log.failed = "a: full"
    made.end.finish(1, [])
    made.settle()
    assert made.session.messages == ["the event log is not whole: a: full"]
    assert made.end.reports.written == {}


def test_a_run_that_only_collects_states_nothing(tmp_path: Path) -> None:
    made = Ending(None, 0)
    made.end.finish(0, [])
    problem(made.end, tmp_path / "x")()
    made.settle()
    assert (made.end.stated, made.run.exitstatus, made.session.messages) == (None, 1, ["x: full"])


@pytest.mark.parametrize("broken", [False, True])
def test_nodes_go_back_beside_the_reports(*, broken: bool) -> None:
    session, seen, checked = a_session(), list[str](), threading.Event()

    def give_back() -> list[str]:
        assert checked.wait(600)
        seen.append(threading.current_thread().name)
        if broken and len(seen) == 1:
            raise RuntimeError("broken")
        return []

    retest: Any = SimpleNamespace(end=give_back)
    session.retest = retest
    session.start_releasing()
    session.start_releasing()
    assert seen == []
    checked.set()
    session.release_nodes()
    assert seen == ["releasing", "MainThread"]


# --- nodes without a proof


PROBLEMS = {
    "gpu02": Problem(ProblemKind.BUSY, "ALLOCATED"),
    "gpu03": Problem(ProblemKind.UNAVAILABLE, 'DRAINED: "bad cable"'),
    "gpu04": Problem(ProblemKind.LOST, "does not answer"),
}
STATES = {"gpu01": "fit", "gpu02": "not tested", "gpu03": "not tested", "gpu04": "not proved"}


class Reported:
    def __init__(self) -> None:
        self.reports: list[Any] = []

    def pytest_runtest_logstart(self) -> None: ...

    def pytest_runtest_logfinish(self) -> None: ...

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def config_with(plugin: Reported, maxfail: int = 0) -> Any:
    made: Any = FakeConfig(option=Namespace(cluster="prod", profile=None, set=[], maxfail=maxfail))
    made.pluginmanager = pytest.PytestPluginManager()
    made.pluginmanager.register(plugin)
    made.hook = made.pluginmanager.hook
    return made


def completeness(min_nodes: int | str | None = None, plugin: Reported | None = None, maxfail: int = 0) -> Completeness:
    session = a_session(a_cluster("gpu[01-04]", min_nodes=min_nodes), problems=PROBLEMS)
    log: Any = SimpleNamespace(model=SimpleNamespace(selected=[*STATES], proofs=SimpleNamespace(nodes=STATES)))
    return Completeness(config_with(plugin or Reported(), maxfail), session, log)


def test_a_selected_node_that_is_drained_down_or_lost_is_an_error_and_a_busy_one_is_none() -> None:
    seen, run = Reported(), PytestRun()
    found, session = completeness(plugin=seen), cast("Any", run)
    assert found.report_untested(session)
    broken = [report for report in seen.reports if report.failed]
    assert [report.gpucluster["node"] for report in broken] == ["gpu03", "gpu04"]
    assert not found.report_untested(session), "once"


@pytest.mark.parametrize(("maxfail", "nodes"), [(0, []), (1, ["gpu03"])])
def test_a_run_with_maxfail_stops_at_a_node_that_cannot_be_tested(maxfail: int, nodes: list[str]) -> None:
    seen = Reported()
    completeness(plugin=seen, maxfail=maxfail).stop_at("gpu03")
    assert [report.gpucluster["node"] for report in seen.reports if report.failed] == nodes


def test_busy_nodes_count_with_min_nodes_only() -> None:
    assert completeness().too_few() == []
    assert completeness(1).too_few() == []
    (line,) = completeness("75%").too_few()
    assert line.startswith(
        "1 of 4 nodes were tested; min_nodes requires 75%; not tested: gpu02: ALLOCATED; gpu03: DRAINED"
    )


# --- checks that are judged after the release of the nodes

NODES = ("gpu01", "gpu02", "gpu03")
AFTER = (
    "NodeName=gpu01 State=IDLE CPUTot=8\n"
    "NodeName=gpu02 State=IDLE+DRAIN CPUTot=8 Reason=Epilog error [root@2026-11-01T10:00:00]\n"
)


class Released:
    """A session whose nodes show their epilogs after the release."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.done, self.cluster = error, list[str](), a_cluster()
        self.slurm = SimpleNamespace(config=lambda: {"Epilog": "/etc/slurm/epilog"})

    def let_agents_leave(self) -> None:
        self.done.append("agents")

    def release_nodes(self) -> None:
        self.done.append("nodes")

    def nodes_after_release(self, _say: object) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return dict(parse_nodes(AFTER))


def late(session: Any) -> tuple[LateChecks, Reported]:
    """Return three held items of slurm.epilog, one for each node, that a worker has sent."""
    seen = Reported()
    found = LateChecks(config_with(seen), session, lambda _line: None)
    held = [
        {
            "nodeid": f"test_slurm.py::test_epilog[{node}]",
            "location": ["test_slurm.py", 1, f"test_epilog[{node}]"],
            "record": {"suite": "slurm", "check": "slurm.epilog", "node": node, "logs": []},
            "annotation": {},
            "seconds": 0.1,
            "keywords": {},
        }
        for node in NODES
    ]
    found.pytest_testnodedown(SimpleNamespace(workeroutput={HELD: json.dumps(held)}))
    return found, seen


def ends(seen: Reported) -> dict[str, tuple[str, str]]:
    calls = (report for report in seen.reports if report.when == "call")
    return {it.gpucluster["node"]: (it.outcome, str(it.longrepr)) for it in calls}


def test_epilogs_are_judged_once_the_nodes_are_released() -> None:
    session = Released()
    found, seen = late(session)
    found.judge()
    assert session.done == ["agents", "nodes"]
    outcomes = ends(seen)
    assert [outcomes[node][0] for node in NODES] == ["passed", "failed", "skipped"]
    assert "Epilog error" in outcomes["gpu02"][1]
    assert "its job has not ended" in outcomes["gpu03"][1]
    found.judge()
    found.give_up()
    assert len(seen.reports) == 3 * len(NODES)


def test_items_that_cannot_be_judged_have_the_reason() -> None:
    found, seen = late(Released(GpuClusterError("slurmctld does not answer")))
    found.judge()
    assert {outcome for outcome, _ in ends(seen).values()} == {"skipped"}
    assert all("slurmctld does not answer" in text for _, text in ends(seen).values())
    found, seen = late(Released())
    found.give_up()  # the run was stopped
    assert {node: STOPPED in text for node, (_, text) in ends(seen).items()} == dict.fromkeys(NODES, True)


# --- files


def metrics_file(tmp_path: Path, log: EventLog) -> tuple[MetricsFile, Reports]:
    (tmp_path / "all").mkdir()
    cluster = a_cluster(reports=ReportsConfig(metrics=str(tmp_path / "all" / "x.prom")))
    reports = Reports(folder=tmp_path)
    return MetricsFile(cluster, log, reports), reports


def the_run(log: EventLog, status: int) -> None:
    log.write("start", cluster="a", simulated=False)
    log.write("finish", exit=status)


def test_metrics_of_an_earlier_run_do_not_stay_where_none_can_be_written(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reports = metrics_file(tmp_path, log)
    path = tmp_path / "all" / "x.prom"
    path.write_text("of an earlier run\n")
    the_run(log, 1)

    def broken(_handle: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("pytest_gpucluster.core.secure_tempfile.os.fsync", broken)
    made.write()
    assert not path.exists()
    assert reports.problems[path] == f"{path}: cannot be written (Bad file descriptor)"


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
    options = [f"--set=reports.metrics={collector}", "--cluster=local", "--history=h.db", "-pno:cacheprovider"]
    assert run_pytest(tmp_path, *options, files={"test_x.py": GOOD}).rc == 0
    assert 'exit_status{cluster="local"} 0.0\n' in collector.read_text()
    # its own process: a fork writes its output to files, which are full as well
    started = (shutil.which("env") or "env",)
    run = run_pytest(tmp_path, *options, files={"conftest.py": FULL_AT_THE_END}, signals=started)
    assert run.rc == 1
    assert "Traceback" not in run.out + run.err
    assert run.errors[0].partition(": cannot be")[0].endswith("/metrics.prom")
    missing = "\n".join(run.errors)
    for name in ("metrics.prom", "c.prom", "junit.xml", "report.html", "the run is not in the history"):
        assert name in missing
    assert "events.jsonl: File too large" in missing
    assert not collector.exists()
    for line in ("reports:", "HTML:", "metrics:", "generated xml"):
        assert line not in run.out
    assert [path.name for path in tmp_path.rglob(".*")] == []


SIGNALS = """
import inspect, os, signal

import pytest


def stop():
    if inspect.stack()[1].function in os.environ["AT"].split():
        for _ in range(3):
            os.kill(os.getpid(), getattr(signal, os.environ["WITH"]))


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
    options = ("--cluster=local", "--history=h.db", "-p", "no:cacheprovider")
    run = run_pytest(tmp_path, *options, files=files, env=env)
    assert run.rc == 2, run.out
    assert not {"Traceback", "INTERNALERROR"} & set((run.out + run.err).split())
    assert [event["exit"] for event in run.events if event["event"] == "finish"][-1] == 2
    assert 'exit_status{cluster="local"} 2.0\n' in (run.reports / "metrics.prom").read_text()
    assert len(run.cases) >= 1
    assert (run.reports / "report.html").exists()
    assert [path.name for path in tmp_path.rglob(".*")] == []
    said = "stopped by Ctrl-C" if name == "SIGINT" else "stopped by SIGTERM"
    assert said in run.out
    if at in {"pytest_terminal_summary", "pytest_unconfigure"}:  # after the history was written
        with contextlib.closing(History(tmp_path / "h.db")) as history:
            assert [past.exit for past in history.runs("local")] == [0]
