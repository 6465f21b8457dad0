"""The files of a run at its end: JUnit, logs of steps, the history, and which reports of old runs are removed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from plugin_helpers import TINY, FakeConfig, a_cluster, a_session, run_pytest

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import ReportsConfig
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.hooks import Hooks
from pytest_gpucluster.plugin.run_outputs import HistoryWriter
from pytest_gpucluster.report.machine.atomic_write import Reports
from pytest_gpucluster.report.machine.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Collection

REASON = "gpucluster:gpu.count 7<8 GPUs repair=reboot run=20261101T060003-3 sum=0123abcd"


@dataclass
class History:
    error: Exception | None = None

    def runs(self) -> set[str]:
        if self.error:
            raise self.error
        return {"20261101T060002-2"}


@dataclass
class OldReports:
    """The reports of a run whose end removes one old run; `kept`: the runs that had to stay."""

    is_published = True
    kept: list[set[str]] = field(default_factory=list)

    def close(self, named: Collection[str]) -> list[str]:
        self.kept.append({*named})
        return ["20261101T060001-1"]


def removed_at_the_end(history: History | None) -> tuple[list[set[str]], list[str]]:
    printed: list[str] = []
    inventory = {"gpu01": NodeInfo("gpu01", "IDLE", reason=REASON), "gpu02": NodeInfo("gpu02", "IDLE")}
    config: Any = FakeConfig()
    config.pluginmanager = SimpleNamespace(get_plugin=lambda _name: history)
    hooks: Any = object.__new__(Hooks)
    hooks.session = a_session(a_cluster(reports=ReportsConfig(keep=1)), inventory=inventory)
    hooks.reports, hooks.config, hooks.write_message = OldReports(), config, printed.append
    hooks._remove_old_reports()
    return hooks.reports.kept, printed


def test_runs_that_a_reason_or_the_history_names_stay_and_what_is_removed_is_printed() -> None:
    kept, printed = removed_at_the_end(History())
    assert kept == [{"20261101T060003-3", "20261101T060002-2"}]
    assert printed == ["reports of 1 old run removed (reports.keep: 1): 20261101T060001-1"]
    assert removed_at_the_end(None)[0] == [{"20261101T060003-3"}]
    kept, printed = removed_at_the_end(History(GpuClusterError("locked")))  # cannot be read: nothing goes
    assert kept == []
    assert printed == ["reports of old runs stay: the history cannot be read: locked"]


def ended(tmp_path: Path) -> tuple[Any, Path]:
    """Return the hooks of a run that has ended, and says in its log a secret, and its JUnit file."""
    hooks: Any = object.__new__(Hooks)
    hooks.log = EventLog(tmp_path / "log" / "events.jsonl", "r", None)
    hooks.log.write("start", cluster="A_TOKEN=hunter2")
    hooks.log.write("finish", exit=0, complaints=[])
    hooks.log.close()
    hooks.session, hooks.reports = a_session(), Reports(os.getegid())
    hooks.end = SimpleNamespace(stated=0)
    hooks.junit_file = path = tmp_path / "deep" / "x.xml"
    return hooks, path


def test_junit_is_written_whole_without_secrets_and_for_its_user_and_group(tmp_path: Path) -> None:
    hooks, path = ended(tmp_path)
    hooks.write_junit()
    assert hooks.reports.written == {path: None}
    text = path.read_text()
    assert "hunter2" not in text
    assert "A_TOKEN=&lt;redacted&gt;" in text
    assert path.stat().st_mode & 0o777 == 0o640


def test_missing_logs_of_steps_are_counted_also_those_of_workers(tmp_path: Path) -> None:
    hooks, _ = ended(tmp_path)
    for sent, missing in (
        ({}, []),
        ({"gpucluster": [("a", "a: full")]}, ["reports are missing: a: full"]),
        ({"gpucluster": [("b", "b: full"), ("c", "c")]}, ["reports are missing: a: full (and 2 more)"]),
    ):
        hooks.pytest_testnodedown(SimpleNamespace(workeroutput=sent))
        assert hooks._missing_logs() == missing
    hooks.pytest_testnodedown(SimpleNamespace())  # a worker that has crashed
    assert hooks.reports.problems[Path("a")] == "a: full"


class Terminal:
    verbosity = 0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def write_line(self, line: str, **_colour: bool) -> None:
        self.lines.append(line)


class Comparison:
    """A comparison with a history that others have written."""

    head, against = "a\x1b[2J", True

    def table(self, _width: int, *, constant: bool) -> list[str]:
        return [f"b\x00{constant}"]

    def lines(self) -> list[str]:
        return ["c\x07"]

    def verdict(self) -> str:
        return "d A_TOKEN=hunter2"


def test_a_history_of_others_has_no_hand_on_the_terminal(tmp_path: Path) -> None:
    log, terminal = EventLog(tmp_path / "events.jsonl", "r", None), Terminal()
    history: Any = HistoryWriter(tmp_path / "h.db", log, Reports())
    history.comparison = Comparison()
    history.pytest_terminal_summary(terminal)
    log.close()
    assert terminal.lines == ["history", "a?[2J", "", "b?False", "", "c?", "d A_TOKEN=<redacted>"]


def test_a_worker_that_dies_as_it_starts_ends_the_run_in_order(tmp_path: Path) -> None:
    dies = "def pytest_xdist_setupnodes():\n    raise EOFError('gone')\n"
    run = run_pytest(tmp_path, "--cluster=local", "-n2", files={"conftest.py": dies, "test_tiny.py": TINY})
    shown = run.out + run.err
    assert (run.rc, "INTERNALERROR" in shown) == (1, False), shown
    assert "an xdist worker died as it started (gone)" in shown
