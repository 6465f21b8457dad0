"""The file of the history: several writers, one that is killed, damage, upgrades, and what SQLite says."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from report.test_history import ONE, bandwidths, log, store, write
from sandbox_helpers import environment

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.report.history import history_file as module
from pytest_gpucluster.report.history.history_file import APPLICATION
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEADLINE = 600
WRITER = """
import contextlib, json, os, signal, statistics, sys
from pathlib import Path
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.history.run_snapshot import recorded

how, path, *logs = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
with contextlib.closing(History(Path(path), create=True)) as kept:
    if how == "killed":
        kept._db.execute("PRAGMA cache_size = 1")  # pages reach the file before the end of the transaction
    for log in logs:
        run = recorded(read_run(json.loads(Path(log).read_text())))
        if how == "killed":
            statistics.median = die  # of the last table
        assert kept.add(run)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def writer(how: str, path: Path, nights: Iterable[int]) -> subprocess.Popen[str]:
    logs = []
    for number in nights:
        logs.append(path.with_name(f"log{number}.json"))
        logs[-1].write_text(json.dumps(log(number, bandwidths(number))))
    argv = [sys.executable, "-c", WRITER, how, str(path), *map(str, logs)]
    env = environment(PYTHONPATH=str(ROOT / "src"))
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def one_night(path: Path, number: int) -> None:
    with contextlib.closing(History(path, create=True)) as kept:
        assert store(kept, number, bandwidths(number))


def count(path: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


@pytest.mark.thorough
def test_two_writers_at_once_lose_nothing(path: Path) -> None:
    for one in [writer("whole", path, range(begin, 40, 2)) for begin in (0, 1)]:
        assert (one.communicate(timeout=DEADLINE)[1], one.returncode) == ("", 0)
    with contextlib.closing(History(path)) as kept:
        runs = kept.runs("prod", 100)
    assert sorted(past.run for past in runs) == [f"night{number:03}" for number in range(40)]
    assert {past.passed for past in runs} == {6}
    assert count(path, "metrics") == 40 * 3 * 4  # alone, two partners, the best of them
    assert count(path, "fleet") == 40 * 5


@pytest.mark.thorough
def test_a_writer_that_is_killed_leaves_no_half_run(path: Path) -> None:
    one_night(path, 1)
    before = path.read_bytes()
    killed = writer("killed", path, [2])
    killed.communicate(timeout=DEADLINE)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() != before, "nothing had reached the file: the test shows nothing"
    with contextlib.closing(History(path)) as kept:
        assert [past.run for past in kept.runs("prod")] == ["night001"]
    assert (count(path, "metrics"), count(path, "verdicts")) == (12, 6)
    one_night(path, 2)
    assert count(path, "runs") == 2


def damage(path: Path, how: str) -> None:
    if how == "text":
        path.write_text("no SQLite at all, but longer than the header of one " * 20)
    elif how == "folder":
        path.mkdir()
    elif how == "pages":  # the header is whole, the pages are not
        one_night(path, 1)
        data = bytearray(path.read_bytes())
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    else:
        if how == "PRAGMA user_version = 999":
            History(path, create=True).close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(how)
            db.commit()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("text", "damaged, or no SQLite file"),
        ("pages", "damaged, or no SQLite file"),
        ("folder", "unable to open database file"),
        ("CREATE TABLE bookmarks (url TEXT)", "an SQLite file of another program"),
        ("PRAGMA user_version = 999", "written by a newer pytest-gpucluster (schema 999, this one knows 7)"),
    ],
)
def test_an_unusable_file_is_reported_in_one_line_and_left_unchanged(
    path: Path, how: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(path, how)
    before = path.read_bytes() if path.is_file() else b""
    argv = ["history", "--history", str(path)]
    assert cli.main(argv) in (1, 4)
    out, err = capsys.readouterr()
    assert (out, message in err, err.count("\n")) == ("", True, 1)
    events = write(path.with_name("events.jsonl"), log(7, bandwidths(7)))
    assert cli.main([*argv, "--import", str(events)]) in (1, 4)
    assert (path.read_bytes() if path.is_file() else b"") == before


def stated(path: Path, question: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(question).fetchall()


def test_a_file_of_an_earlier_version_is_refused_until_it_is_converted_with_what_it_holds(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_night(path, 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in module.MIGRATIONS[3]:
            _, _, table, _, _, column, *_ = statement.split()
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for table in ("parts", "stays", "failures", "work", "factors"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 3")
    argv, before = ["history", "--history", str(path)], path.read_bytes()
    for words in (argv, [*argv, "--import", str(path.with_name("events.jsonl"))]):
        assert cli.main(words) == 4
        told = capsys.readouterr().err
        assert (
            f"an earlier pytest-gpucluster wrote it; convert it once: gpucluster history --history {path} --convert"
            in told
        )
    with pytest.raises(ConfigError, match="convert it once"):
        History(path, create=True)
    assert path.read_bytes() == before
    for done in ("converted from schema 3 to 7", "nothing to convert"):
        assert cli.main([*argv, "--convert"]) == 0
        assert capsys.readouterr().out == f"{path}: {done}\n"
    with contextlib.closing(History(path, create=True)) as kept:
        assert [past.run for past in kept.runs("prod")] == ["night001"]
    assert stated(path, "PRAGMA user_version") == [(len(module.MIGRATIONS),)]
    assert stated(path, "PRAGMA application_id") == [(APPLICATION,)]


def test_a_0_2_0_file_is_converted_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        steps = (*module.MIGRATIONS[0], f"PRAGMA application_id = {APPLICATION}", "PRAGMA user_version = 1")
        for statement in steps:
            db.execute(statement)
        db.commit()
    with monkeypatch.context() as later:
        later.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, ("CREATE TABLE runs (id)",)))
        with pytest.raises(GpuClusterError, match="table runs already exists"):
            History(path, convert=True)
    assert stated(path, "PRAGMA user_version") == [(1,)]
    History(path, convert=True).close()
    one_night(path, 1)
    assert count(path, "runs") == 1


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (sqlite3.OperationalError("database is busy"), GpuClusterError, "another writer has held it for 0 s"),
        (sqlite3.OperationalError("a readonly database"), ConfigError, "this user cannot write it"),
        (sqlite3.OperationalError("disk I/O error"), GpuClusterError, "disk I/O error"),
        (OSError(28, "No space left on device"), ConfigError, "No space left on device; name another file"),
    ],
)
def test_an_error_of_the_file(path: Path, error: Exception, kind: type[Exception], message: str) -> None:
    with contextlib.closing(History(path, create=True)) as kept:
        with pytest.raises(GpuClusterError) as caught, kept._readable_errors():
            raise error
        assert str(caught.value).startswith(f"history {path}: {message}")
        assert type(caught.value) is kind


def test_a_wait_for_another_writer_can_be_ended(path: Path) -> None:
    History(path, create=True).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        for statement, steps in (("BEGIN IMMEDIATE", [0.05, 0.05]), ("BEGIN EXCLUSIVE", [0.05])):
            other.execute(statement)
            waits: list[float] = []

            def wait(seconds: float, waits: list[float] = waits, most: int = len(steps)) -> bool:
                waits.append(seconds)
                return len(waits) < most

            with pytest.raises(GpuClusterError, match="another writer has held it for 0 s"):
                History(path, create=True, wait=wait)
            assert waits == steps
            other.execute("ROLLBACK")
        other.execute("BEGIN IMMEDIATE")
        with contextlib.closing(History(path, create=True, wait=lambda _: other.execute("ROLLBACK"))) as late:
            assert store(late, 1, ONE)
            assert late.query("PRAGMA busy_timeout") == [(60_000,)]  # a reader waits in SQLite
