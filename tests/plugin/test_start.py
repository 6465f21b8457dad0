"""Files of a run from the plugin's side: what is refused at its start, what is said of files that are not there."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from plugin_helpers import run_pytest

from pytest_gpucluster.cli import history as cli_history
from pytest_gpucluster.core import secure_tempfile as ownfile
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.plugin import outputs, start
from pytest_gpucluster.plugin.hooks import Hooks
from pytest_gpucluster.plugin.outputs import HistoryWriter
from pytest_gpucluster.report.atomic_write import Reports
from pytest_gpucluster.report.events import EventLog
from pytest_gpucluster.report.history import History
from pytest_gpucluster.suites.nccl import baseline


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let all folders be another user's; return what is said of them."""
    monkeypatch.setattr(ownfile, "_trusted", lambda: (54321,))
    return f"the folder belongs to another user ({os.getuid()})"


# --- the start of a run


def test_the_start_of_a_run_names_what_the_cluster_file_has_and_nothing_uses(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\nnodes: localhost\nslurm: {scheduler: none}\n"
        "environments:\n  trainig: {exports: {A: '1'}}\nthresholds: []\n"
    )
    run = run_pytest(tmp_path, f"--cluster={path}", "-m", "versions", "--collect-only", where=())
    assert f"{path}:5: environments.trainig: no section uses this environment" in run.out
    assert f"{path}:6: thresholds: is empty" in run.out


def test_the_file_of_pytest_is_private_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "x.xml").symlink_to("precious")
    for path in (tmp_path / "x.xml", tmp_path / "deep" / "x.xml"):
        start.make_private(path, os.getegid())
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("", 0o640)
    assert (tmp_path / "precious").read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    start.make_private(tmp_path / "pipe", None)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(ConfigError) as caught:
        start.make_private(tmp_path / "precious" / "x.xml", None)
    told = f"cannot write {tmp_path}/precious/x.xml: Not a directory: --junitxml=FILE names another"
    assert str(caught.value) == told


def test_folders_of_other_users_are_refused_for_every_file(
    tmp_path: Path, foreign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        start.make_private(tmp_path / "x.xml", None)
    assert str(caught.value) == f"cannot write {tmp_path}/x.xml: {foreign}: --junitxml=FILE names another"
    with pytest.raises(ConfigError) as caught:
        baseline.check_options(SimpleNamespace(baseline="record"))
    assert str(caught.value) == f"--baseline=record: {tmp_path}: {foreign}"
    with pytest.raises(GpuClusterError) as refused:
        outputs.refuse(tmp_path / "x.prom")
    assert (
        str(refused.value) == f"reports.metrics: {tmp_path}/x.prom: {tmp_path}: {foreign}; name another file"
    )
    with pytest.raises(ConfigError) as caught:
        History(tmp_path / "h.db", create=True)
    assert str(caught.value) == f"history {tmp_path}/h.db: {foreign}; name another file"
    assert list(tmp_path.iterdir()) == []


# --- the history


def test_a_history_makes_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "no" / "where" / "h.db"
    with pytest.raises(ConfigError) as caught:
        History(path, create=True)
    assert str(caught.value) == (
        f"history {path}: there is no folder {path.parent}: make it, or name another file"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_history_is_for_its_user_or_a_group_as_well_and_keeps_its_mode(tmp_path: Path) -> None:
    for name, group in (("own", None), ("shared", os.getegid())):
        History(tmp_path / name, create=True, group=group).close()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "shared")] == [0o600, 0o640]
    (tmp_path / "own").chmod(0o664)
    History(tmp_path / "own", create=True).close()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o664


def test_sqlite_opens_a_history_below_the_checked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = list[str](), sqlite3.connect

    def noted(name: Any, **options: Any) -> sqlite3.Connection:
        opened.append(str(name))
        made: sqlite3.Connection = connect(name, **options)
        return made

    monkeypatch.setattr("pytest_gpucluster.report.history_file.sqlite3.connect", noted)
    History(tmp_path / "h.db", create=True).close()
    (name,) = opened
    assert re.fullmatch(r"/proc/self/fd/\d+/h\.db", name)


def test_a_history_is_no_link(tmp_path: Path) -> None:
    History(tmp_path / "h.db", create=True).close()
    (tmp_path / "link").symlink_to("h.db")
    with pytest.raises(
        ConfigError, match=r"link: is not a plain file of this user's own; name another file$"
    ):
        History(tmp_path / "link", create=True)
    (tmp_path / "nowhere").symlink_to("absent")
    with pytest.raises(ConfigError, match="is not a plain file of this user's own"):
        History(tmp_path / "nowhere", create=True)
    assert not (tmp_path / "absent").exists()


# --- junit.xml


def hooks_with(tmp_path: Path) -> Any:
    """Return the hooks of a run that has ended, and says in its log a secret."""
    hooks: Any = object.__new__(Hooks)
    hooks.log = EventLog(tmp_path / "log" / "events.jsonl", "r", None)
    hooks.log.write("start", cluster="A_TOKEN=hunter2")
    hooks.log.write("finish", exit=0, complaints=[])
    hooks.log.close()
    hooks.session, hooks.reports = SimpleNamespace(messages=[]), Reports(os.getegid())
    hooks.end = SimpleNamespace(stated=0)
    hooks._junit = tmp_path / "deep" / "x.xml"
    return hooks


def test_junit_is_written_whole_without_secrets_and_for_its_user_and_group(tmp_path: Path) -> None:
    hooks = hooks_with(tmp_path)
    hooks.write_junit()
    assert hooks.reports.written == {hooks._junit: None}
    text = hooks._junit.read_text()
    assert "hunter2" not in text
    assert "A_TOKEN=&lt;redacted&gt;" in text
    assert hooks._junit.stat().st_mode & 0o777 == 0o640


def test_a_limit_on_files_hits_junit_as_a_whole(tmp_path: Path) -> None:
    hooks = hooks_with(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        hooks.write_junit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert hooks.reports.problems == {hooks._junit: f"{hooks._junit}: cannot be written (File too large)"}
    assert not hooks._junit.exists()


# --- logs of steps


def test_missing_logs_of_steps_are_counted_also_those_of_workers(tmp_path: Path) -> None:
    hooks = hooks_with(tmp_path)
    assert hooks._missing_logs() == []
    hooks.pytest_testnodedown(SimpleNamespace())
    hooks.pytest_testnodedown(SimpleNamespace(workeroutput={}))
    assert hooks.reports.problems == {}
    hooks.pytest_testnodedown(SimpleNamespace(workeroutput={"gpucluster": [("a", "a: full")]}))
    assert hooks.reports.problems == {Path("a"): "a: full"}
    assert hooks._missing_logs() == ["reports are missing: a: full"]
    hooks.pytest_testnodedown(SimpleNamespace(workeroutput={"gpucluster": [("b", "b: full"), ("c", "c")]}))
    assert hooks._missing_logs() == ["reports are missing: a: full (and 2 more)"]


# --- what a history of others holds is shown without terminal control


def test_a_history_of_others_has_no_hand_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        verbosity = 0
        said: ClassVar[list[tuple[str, bool]]] = []

        def section(self, title: str) -> None:
            self.said.append((title, False))

        def write_line(self, line: str, *, yellow: bool = False) -> None:
            self.said.append((line, yellow))

    history: Any = object.__new__(HistoryWriter)
    history.comparison = SimpleNamespace(
        head="a\x1b[2J",
        against=True,
        table=lambda _width, *, constant: [f"b\x00{constant}"],
        lines=lambda: ["c\x07"],
        verdict=lambda: "d A_TOKEN=hunter2",
    )
    history.pytest_terminal_summary(Terminal())
    shown = [("a?[2J", False), ("", False), ("b?False", False), ("", False), ("c?", True)]
    assert Terminal.said == [("history", False), *shown, ("d A_TOKEN=<redacted>", False)]
    cli_history._print("e\x1b[2J")
    assert capsys.readouterr().out == "e?[2J\n"
