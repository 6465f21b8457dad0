"""The history: what it keeps, what it calls worse, and how it fails. Pure, on event logs made here."""

from __future__ import annotations

import ast
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from sandbox_helpers import environment

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.metric_direction import HIGHER, LOWER, NEITHER, RULES, rule_of
from pytest_gpucluster.report import history_file as module
from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.history import History
from pytest_gpucluster.report.history_file import APPLICATION
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.run_snapshot import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.regression import Comparison

NODES = ("gpu01", "gpu02", "gpu03")
DAY = 86_400
FIRST = 1_763_600_000.0
SOURCE = ROOT / "src"
DEADLINE = 120


def metric(name: str, value: Any, unit: str, device: str = "", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "device": device,
        "detail": False,
        "better": "",
        **more,
    }


def result(
    node: str, check: str, outcome: str = "passed", metrics: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    suite, _, what = check.partition(".")
    inside = f"[{node}]" if node else ""
    return {
        "event": "result",
        "nodeid": f"suites/test_{suite}.py::test_{what}{inside}",
        "suite": suite,
        "check": check,
        "node": node,
        "outcome": outcome,
        "message": "",
        "verdicts": [],
        "metrics": list(metrics),
        **more,
    }


def log(
    night: int, results: Sequence[dict[str, Any]], *, end: int | None = 0, real: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Return the events of one night's run; `end` None: it was killed."""
    run, time = f"night{night:03}", FIRST + night * DAY
    start = {
        "event": "start",
        "cluster": "prod",
        "simulated": not real,
        "arguments": ["--cluster=prod"],
        **more,
    }
    events: list[dict[str, Any]] = [start, *map(dict, results)]
    if end is not None:
        events.append({"event": "finish", "exit": end})
    return [{"time": time + place, "run": run, **event} for place, event in enumerate(events)]


def bandwidths(night: int, factors: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Return a night's results of the bandwidth of each node alone and in pairs, with the noise of real runs."""
    noise = random.Random(night)
    speed = {node: (factors or {}).get(node, 1.0) for node in NODES}
    slow = {tuple(key.split("-")): factor for key, factor in (factors or {}).items() if "-" in key}

    def measured(base: float, *nodes: str) -> float:
        link = slow.get(tuple(sorted(nodes)), 1.0)
        return base * min(speed[node] for node in nodes) * link * noise.lognormvariate(0.0, 0.004)

    found = []
    for node in NODES:
        alone = [metric("busbw all_reduce 1 GiB alone", measured(478, node), "GB/s")]
        pairs = [
            metric("pair_busbw", measured(365, node, other), "GB/s", f"with {other}")
            for other in NODES
            if other != node
        ]
        found += [
            result(node, "nccl.alone_bandwidth", metrics=alone),
            result(node, "nccl.pairs", metrics=pairs),
        ]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def kept(path: Path) -> Iterator[History]:
    with contextlib.closing(History(path, create=True)) as opened:
        yield opened


def add(kept: History, events: Sequence[dict[str, Any]]) -> Comparison:
    run = recorded(read_run(events))
    assert kept.add(run)
    return kept.compare(kept.find(run.cluster, run.run))


def named(comparison: Comparison) -> set[tuple[str, str]]:
    return {(it.where, it.change.label) for it in comparison.worse}


# --- which way is worse, and how far


WITHOUT_DIRECTION = (
    ",s after boot,of 5,GiB,MiB,B,C,W,MHz,%,lines,processes,bridges,containers,ranks,records,rules,controllers,"
    "messages,accounts,threads,managers,cards,rounds,steps,products,counters,tests,cells"
)


@pytest.mark.thorough
def test_every_unit_of_our_checks_is_thought_of() -> None:
    """A new unit is to get a direction, or to be named here as one that has none."""
    none = {*WITHOUT_DIRECTION.split(",")}
    found = set()
    for file in sorted((SOURCE / "pytest_gpucluster" / "suites").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Metric" and len(call.args) > 2:
                if any(keyword.arg == "better" for keyword in call.keywords):
                    continue  # it says its direction itself
                unit = call.args[2]
                found |= {unit.value} if isinstance(unit, ast.Constant) else set()
    assert len(found) > 15
    assert found - set(RULES) <= none
    assert not none & set(RULES)
    assert {kind.better for kind in RULES.values()} == {HIGHER, LOWER}
    assert rule_of("W").better == NEITHER


# --- what got worse


def test_a_node_that_loses_8_percent_is_named_on_the_second_night_and_no_other(kept: History) -> None:
    first = add(kept, log(1, bandwidths(1)))
    assert (named(first), first.verdict()) == (set(), "")
    assert "nothing to compare with" in first.head
    second = add(kept, log(2, bandwidths(2, {"gpu02": 0.92})))
    # its partners are as fast as ever with each other, so no link and no partner is named
    assert named(second) == {
        ("gpu02", "busbw all_reduce 1 GiB alone"),
        ("gpu02", "pair_busbw best partner"),
    }
    assert second.run.good  # all within the threshold
    assert second.verdict() == "history: got worse: gpu02"
    (line,) = (line for line in second.lines() if "alone" in line)
    assert line.startswith("worse: gpu02: busbw all_reduce 1 GiB alone: 44")
    assert "below its last good run (47" in line or "below its last good run (48" in line
    assert any("gpu02" in row and ("-8." in row or "-7." in row) for row in second.table(200))
    html = second.for_html()
    assert {row.node for row in html.rows if row.worse and row.note} == {"gpu02"}
    assert html.last_good.startswith("night001")


def test_noise_alone_names_no_node_in_thirty_nights(kept: History) -> None:
    assert [night for night in range(30) if named(add(kept, log(night, bandwidths(night))))] == []


def test_what_got_worse_stays_named_until_it_is_accepted(kept: History) -> None:
    def alone(node: str, comparison: Comparison) -> bool:
        return (node, "busbw all_reduce 1 GiB alone") in named(comparison)

    for night in range(6):
        add(kept, log(night, bandwidths(night)))
    slower = {"gpu02": 0.92}
    for night in range(6, 26):  # longer than the window
        comparison = add(kept, log(night, bandwidths(night, slower)))
        assert alone("gpu02", comparison), night
    kept.accept(comparison.run, "gpu02")
    after = add(kept, log(26, bandwidths(26, slower)))
    assert not named(after)
    runs = {(it.item.node, it.metric.device): it.judged.runs for it in after.changes}
    assert (runs["gpu02", ""], runs["gpu01", "with gpu02"], runs["gpu01", "with gpu03"]) == (1, 1, 10)
    assert alone("gpu02", add(kept, log(27, bandwidths(27, {"gpu02": 0.85}))))
    assert alone("gpu01", add(kept, log(28, bandwidths(28, {"gpu01": 0.92}))))


def test_simulated_runs_are_no_baseline_of_real_ones(kept: History) -> None:
    add(kept, log(1, bandwidths(1), real=False))
    comparison = add(kept, log(2, bandwidths(2, {"gpu02": 0.5})))
    assert (comparison.against, named(comparison)) == ((), set())
    assert {change.trend for change in comparison.changes} == {"new"}
    first = kept.find("prod", "night001")
    for one, other in ((first, comparison.run), (comparison.run, first)):
        with pytest.raises(ConfigError, match="night001 is simulated and night002 is real"):
            kept.compare(one, other)


@pytest.mark.parametrize("end", [None, 2, 3, 4, 5])
def test_a_run_that_was_killed_or_stopped_is_never_good_nor_a_baseline(
    kept: History, end: int | None
) -> None:
    add(kept, log(1, bandwidths(1), end=end))
    (past,) = kept.runs("prod")
    assert (past.complete, past.good, past.outcome) == (False, False, "incomplete")
    comparison = add(kept, log(2, bandwidths(2, {"gpu02": 0.5})))
    assert (comparison.against, named(comparison), comparison.last_good) == ((), set(), None)
    with pytest.raises(ConfigError, match="no good run of cluster prod before night002"):
        kept.find("prod", "last-good", before=comparison.run)
    with pytest.raises(ConfigError, match="night001 is incomplete"):
        kept.accept(past)


def test_a_number_that_is_none_is_worse_and_never_a_baseline(kept: History) -> None:
    name = "busbw all_reduce 1 GiB alone"
    for night, value in enumerate(("NaN", 478.0, "NaN", 10**400)):
        found = [metric(name, value, "GB/s")]
        comparison = add(kept, log(night, [result("gpu01", "nccl.alone_bandwidth", metrics=found)]))
        assert bool(named(comparison)) == (night > 1)
    assert "not a number; 478 GB/s in its last good run" in comparison.lines()[0]


def test_a_gpu_that_was_exchanged_goes_on_in_its_slot(kept: History) -> None:
    for night, serial in enumerate(("GPU 4 (GPU-aaaa, 9d:00)", "GPU 4 (GPU-bbbb, 9d:00)")):
        links = [metric("nvlinks_active", 18 - night, "links", serial)]
        comparison = add(kept, log(night, [result("gpu01", "gpu.nvlink_state", metrics=links)]))
    assert [it.text for it in comparison.worse] == [
        "gpu01: nvlinks_active GPU 4: 17 links, 18 in its last good run"
    ]


# --- the file


WRITER = """
import contextlib, json, os, signal, sys
from pathlib import Path
from pytest_gpucluster.report.history import History
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.run_snapshot import recorded

how, path, *logs = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if how == "killed":
    History._insert_fleet = die
with contextlib.closing(History(Path(path), create=True)) as kept:
    if how == "killed":
        kept._db.execute("PRAGMA cache_size = 1")  # pages reach the file before the end of the transaction
    for log in logs:
        assert kept.add(recorded(read_run(json.loads(Path(log).read_text()))))
"""


def writer(how: str, path: Path, logs: Sequence[Path]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, how, str(path), *map(str, logs)]
    env = environment(PYTHONPATH=str(SOURCE))
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def store(path: Path, events: Path) -> None:
    with contextlib.closing(History(path, create=True)) as kept:
        assert kept.add(recorded(read_run(json.loads(events.read_text()))))


def logs_of(folder: Path, nights: Sequence[int]) -> list[Path]:
    found = []
    for night in nights:
        found.append(folder / f"log{night}.json")
        found[-1].write_text(json.dumps(log(night, bandwidths(night))))
    return found


@pytest.mark.thorough
def test_two_writers_at_once_lose_nothing(path: Path, tmp_path: Path) -> None:
    shares = (range(0, 40, 2), range(1, 40, 2))
    writers = [writer("whole", path, logs_of(tmp_path, share)) for share in shares]
    for one in writers:
        assert (one.communicate(timeout=DEADLINE)[1], one.returncode) == ("", 0)
    with contextlib.closing(History(path)) as kept:
        runs = kept.runs("prod", 100)
        assert sorted(past.run for past in runs) == [f"night{night:03}" for night in range(40)]
        assert {past.passed for past in runs} == {6}
    assert count(path, "metrics") == 40 * 3 * 4  # alone, two partners, the best of them
    assert count(path, "fleet") == 40 * 5


@pytest.mark.thorough
def test_a_writer_that_is_killed_leaves_no_half_run(path: Path, tmp_path: Path) -> None:
    first, second = logs_of(tmp_path, (1, 2))
    store(path, first)
    before = path.read_bytes()
    killed = writer("killed", path, [second])
    killed.communicate(timeout=DEADLINE)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() != before, "nothing had reached the file: the test shows nothing"
    with contextlib.closing(History(path)) as kept:
        assert [past.run for past in kept.runs("prod")] == ["night001"]
    assert (count(path, "metrics"), count(path, "verdicts")) == (12, 6)
    store(path, second)
    assert count(path, "runs") == 2


def count(path: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def damage(path: Path, how: str) -> None:
    if how == "text":
        path.write_text("no SQLite at all, but longer than the header of one " * 20)
    elif how == "folder":
        path.mkdir()
    elif how == "foreign":
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE bookmarks (url TEXT)")
            db.commit()
    elif how == "newer":
        History(path, create=True).close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 999")
    else:  # the header is whole, the pages are not
        with contextlib.closing(History(path, create=True)) as kept:
            kept.add(recorded(read_run(log(1, bandwidths(1)))))
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xa5" * (len(data) - 4096)
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("text", "damaged, or no SQLite file"),
        ("folder", "unable to open database file"),
        ("foreign", "an SQLite file of another program"),
        ("newer", "written by a newer pytest-gpucluster (schema 999, this one knows 3)"),
        ("pages", "damaged, or no SQLite file"),
    ],
)
def test_an_unusable_file_is_reported_in_one_line_and_left_unchanged(
    path: Path, how: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(path, how)
    before = path.read_bytes() if path.is_file() else b""
    assert cli.main(["history", "--history", str(path)]) in (1, 4)
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
    events = path.with_name("events.jsonl")
    events.write_text("".join(json.dumps(event) + "\n" for event in log(7, bandwidths(7))))
    assert cli.main(["history", "--history", str(path), "--import", str(events)]) in (1, 4)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_older_file_is_upgraded_with_what_it_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(History(path, create=True)) as kept:
        kept.add(recorded(read_run(log(1, bandwidths(1)))))
    step = (
        "ALTER TABLE runs ADD COLUMN site TEXT NOT NULL DEFAULT 'here'",
        "CREATE INDEX runs_site ON runs (site)",
    )
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, step))
    with contextlib.closing(History(path)) as kept:
        assert [past.run for past in kept.runs("prod")] == ["night001"]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT site FROM runs").fetchall() == [("here",)]
        assert db.execute("PRAGMA user_version").fetchone() == (4,)
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, ("CREATE TABLE runs (id)",)))
    with pytest.raises(GpuClusterError, match="table runs already exists"):
        History(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (4,)  # all of an upgrade, or nothing


def test_keeping_a_few_runs_deletes_all_of_the_others_but_the_last_good_one(
    kept: History, path: Path
) -> None:
    add(kept, log(0, [result("gone01", "os.kernel"), *bandwidths(0)]))
    for night in range(1, 4):
        add(kept, log(night, bandwidths(night)))
    for night in range(4, 7):
        add(kept, log(night, [*bandwidths(night), result("gpu01", "gpu.count", "failed")], end=1))
    assert kept.keep(2) == 4
    assert [past.run for past in kept.runs("prod")] == ["night006", "night005", "night003"]
    assert (count(path, "metrics"), count(path, "verdicts"), count(path, "fleet")) == (36, 20, 15)
    assert count(path, "items") == 3 * 2 + 1
    assert named(add(kept, log(7, bandwidths(7, {"gpu02": 0.92})))) >= {
        ("gpu02", "busbw all_reduce 1 GiB alone")
    }


HOSTILE = (
    "'; DROP TABLE runs; --",
    "\x1b[2J\x1b[31mgpu",
    "\ud800gpu",
    "(cluster)",
    "*",
    "x" * 5000,
    "gpu[01-99]",
)


def test_hostile_names_are_names(kept: History, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for night, factor in enumerate((1.0, 0.9)):
        found = [
            result(node, "nccl.alone_bandwidth", metrics=[metric("busbw\x1b[2J", 400 * factor, "GB/s", node)])
            for node in HOSTILE
        ]
        comparison = add(kept, log(night, found, cluster="prod"))
    assert len(comparison.worse) == len(HOSTILE)
    assert len(kept.nodes("prod")) == len(HOSTILE)
    kept.accept(comparison.run, "*")
    assert cli.main(["history", "--history", str(path), "'; DROP TABLE runs; --"]) == 0
    assert cli.main(["compare", "--history", str(path), "night000", "night001"]) == 3
    out = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in out)
    assert "DROP TABLE" in out


@pytest.mark.parametrize(
    "event",
    [
        {"event": "result", "node": 3, "check": None, "metrics": 7, "verdicts": "x", "outcome": []},
        {"event": "result", "metrics": [{"name": {}, "value": "1"}, 5], "verdicts": [{"findings": [1]}]},
        {"event": "finish", "exit": True},
        {"event": 5},
    ],
)
def test_foreign_events_are_stored_as_far_as_they_go(kept: History, event: dict[str, Any]) -> None:
    kept.add(recorded(read_run([*log(1, bandwidths(1), end=None), event])))
    (past,) = kept.runs("prod")
    assert not past.complete
    assert past.passed == 6


# --- the command


@pytest.fixture
def three_nights(path: Path) -> Path:
    with contextlib.closing(History(path, create=True)) as kept:
        kept.add(recorded(read_run(log(1, bandwidths(1)))))
        kept.add(recorded(read_run(log(2, bandwidths(2), end=None))))
        kept.add(recorded(read_run(log(3, bandwidths(3, {"gpu02": 0.92})))))
    return path


def called(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = cli.main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_compare_names_what_got_worse_and_sets_the_exit_status(
    three_nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = "worse: gpu02: busbw all_reduce 1 GiB alone: 4"
    for argv, head, base in (
        ((), "history: against the last run, the last good one night001", "below its last good run (47"),
        (("last-good", "last"), "A  night001", "below run night001 (47"),
    ):
        status, out, _ = called(capsys, "compare", *argv, "--history", three_nights)
        assert status == 3
        assert out.startswith(head)
        assert base in out
        assert worse in out
    status, out, _ = called(capsys, "compare", "night003", "night001", "--history", three_nights)
    assert status == 0
    assert worse.replace("worse", "better") in out


def test_no_run_has_to_be_good_as_a_whole_and_what_is_not_compared_is_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A one-check rerun was the last good run; the loss of bandwidth was compared with nothing."""
    bad = result("gpu01", "os.governor", outcome="failed", message="powersave")
    with contextlib.closing(History(path, create=True)) as kept:
        kept.add(recorded(read_run(log(1, [bad, *bandwidths(1)], end=1))))
        kept.add(recorded(read_run(log(2, [result("gpu01", "gpu.count")]))))
        kept.add(recorded(read_run(log(3, [bad, *bandwidths(3, {"gpu02": 0.4})], end=1))))
    status, out, _ = called(capsys, "compare", "--history", path)
    assert status == 3
    assert "worse: gpu02: busbw all_reduce 1 GiB alone: " in out
    status, out, _ = called(capsys, "compare", "last-good", "last", "--history", path)
    assert "not compared, since only B has them: metrics of nccl.alone_bandwidth, nccl.pairs" in out


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("night", "last"), "'night' begins several runs: night003"),
        (("x", "last"), "no run 'x' of cluster prod; the last are night003"),
        (("last", "night001"), "no run of cluster prod before night001"),
        (("night003", "last"), "run night003 is compared with itself"),
        (("last-good", "last", "--cluster", "other"), "no run of cluster other; it has: prod"),
        (("last' OR 1=1 --", "last"), 'no run "last\' OR 1=1 --" of cluster prod'),
    ],
)
def test_missing_runs_are_reported_in_one_line(
    three_nights: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], error: str
) -> None:
    status, out, err = called(capsys, "compare", *argv, "--history", three_nights)
    assert (status, out) == (4, "")
    assert error in err
    assert err.count("\n") == 1


def test_history_lists_runs_and_the_past_of_a_node(
    three_nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = called(capsys, "history", "--history", three_nights)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["run", "night001", "night002", "night003"]
    assert ["incomplete" in line for line in out.splitlines()] == [False, False, True, False]
    status, out, _ = called(capsys, "history", "gpu02", "--history", three_nights, "--metric", "busbw*")
    (row,) = (line for line in out.splitlines() if "busbw all_reduce 1 GiB alone" in line)
    assert "-8." in row or "-7." in row
    assert "pair_busbw" not in out
    status, _, err = called(capsys, "history", "gpu77", "--history", three_nights)
    assert status == 4
    assert "no node 'gpu77' of cluster prod; it has: gpu[01-03]" in err


def test_why_a_node_was_drained_and_who_resumed_it_is_shown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One chronic failure hides no new one."""
    chronic = result("gpu03", "os.governor", outcome="failed", message="os.governor on gpu03: powersave")
    fresh = result("gpu03", "gpu.ecc", outcome="failed", message="gpu.ecc on gpu03: 2 errors")
    reason = "gpucluster:gpu.ecc 2!=0 errors repair=reset-gpu"
    drained = {"event": "node_result", "node": "gpu03", "result": "drained", "problem": "", "reason": reason}
    resumed = drained | {"result": "resumed", "reason": None}
    with contextlib.closing(History(path, create=True)) as kept:
        for night in range(1, 31):
            more = [fresh, drained] if night == 30 else []
            kept.add(recorded(read_run(log(night, [chronic, *more], end=1, user="ops"))))
        kept.add(recorded(read_run(log(31, [resumed], user="anna"))))
    out = called(capsys, "history", "gpu03", "--history", path)[1]
    assert "night030  failed: gpu.ecc on gpu03: 2 errors\n" in out
    assert "night030  failed (and in 18 of the runs before, since night012): os.governor on gpu03" in out
    acts = [line.split() for line in out.splitlines() if " drained " in line or " resumed " in line]
    assert [act[2:5] for act in acts] == [["resumed", "anna", "night031"], ["drained", "ops", "night030"]]
    assert acts[1][5:] == reason.split()

    def listed() -> list[tuple[str, str]]:
        rows = json.loads(called(capsys, "history", "gpu03", "--history", path, "--json")[1])["acts"]
        return [(act["result"], act["user"]) for act in rows]

    assert listed() == [("resumed", "anna"), ("drained", "ops")]
    called(capsys, "history", "--keep", "1", "--history", path)
    assert listed() == [("resumed", "anna")]


def test_what_never_changed_is_counted_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(History(path, create=True)) as kept:
        for night, speed in ((1, 478.0), (2, 470.0)):
            metrics = [metric("gpu_count", 8, "GPUs"), metric("busbw", speed, "GB/s")]
            kept.add(recorded(read_run(log(night, [result("gpu01", "nccl.alone", metrics=metrics)]))))
    output = called(capsys, "history", "gpu01", "--history", path)[1]
    assert "nccl.alone  busbw" in output
    assert "gpu_count" not in output
    assert output.splitlines()[-1] == "1 more metrics did not change in these runs (--all shows them)"
    assert "gpu_count" in called(capsys, "history", "gpu01", "--history", path, "--all")[1]


def test_accept_and_keep_from_the_command_line(
    three_nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = called(capsys, "history", "--accept", "last", "--history", three_nights)
    assert (status, out) == (0, "all nodes of cluster prod: baselines begin with run night003 from here on\n")
    status, out, _ = called(capsys, "history", "--keep", "1", "--history", three_nights)
    assert (status, out) == (0, f"{three_nights}: 2 runs deleted\n")
    with contextlib.closing(History(three_nights)) as kept:
        assert not named(add(kept, log(4, bandwidths(4, {"gpu02": 0.92}))))
    with pytest.raises(SystemExit):
        cli.main(["history", "--keep", "0", "--history", str(three_nights)])


def test_logs_are_imported_in_the_order_of_their_nights(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = []
    for night, events in (
        (2, log(2, bandwidths(2, {"gpu02": 0.92}))),
        (1, log(1, bandwidths(1))),
        (3, log(3, bandwidths(3), end=None)),
    ):
        logs.append(tmp_path / f"{night}.jsonl")
        logs[-1].write_text("".join(json.dumps(event) + "\n" for event in events))
    with logs[-1].open("a") as cut:
        cut.write('{"time": 1, "event": "res')
    status, out, _ = called(capsys, "history", "--history", path, "--import", *logs)
    assert status == 0
    assert [line.split(": ")[1] for line in out.splitlines()] == [
        "run night001 of cluster prod stored",
        "run night002 of cluster prod stored",
        "run night003 of cluster prod stored, incomplete",
    ]
    assert "is stored already" in called(capsys, "history", "--history", path, "--import", logs[0])[1]
    assert called(capsys, "compare", "last-good", "night002", "--history", path)[0] == 3
    assert recorded(read_log(logs[-1])).exit is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not the event log of a run"),
        ("not json\n[1]\n", "not the event log of a run"),
        ('{"event": "start", "run": "x", "time": "now", "cluster": "c"}\n', "not the event log of a run"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_what_is_no_event_log_is_not_imported(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, error: str
) -> None:
    events = tmp_path / "events.jsonl"
    if text is not None:
        events.write_text(text)
    status, out, err = called(capsys, "history", "--history", path, "--import", events)
    assert (status, out) == (1, "")
    assert error in err
    assert err.count("\n") == 1


def test_where_the_file_is_found(
    three_nights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUCLUSTER_HISTORY", raising=False)
    status, _, err = called(capsys, "history")
    assert status == 4
    assert "no history file: use --history FILE" in err
    own = tmp_path / "prod.yaml"
    own.write_text(f"nodes: gpu[01-03]\nhistory: {three_nights}\n")
    assert "night003" in called(capsys, "history", "--cluster", own)[1]
    monkeypatch.setenv("GPUCLUSTER_HISTORY", str(three_nights))
    assert "night003" in called(capsys, "history")[1]
    status, _, err = called(capsys, "history", "--history", tmp_path / "none.sqlite")
    assert status == 4
    assert "no such file; a run with --history=" in err
    assert not (tmp_path / "none.sqlite").exists()


def test_a_page_over_all_runs_is_written(
    three_nights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "fleet.html"
    argv = ["history", "--history", str(three_nights), "--html", str(page)]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"{page}: written: 3 runs of 3 nodes of cluster prod\n"
    assert page.stat().st_mode & 0o777 == 0o600
    assert "3 runs from " in page.read_text(encoding="utf-8")
    assert cli.main([*argv, "--runs", "2"]) == 0
    assert "1 older runs are in the history." in page.read_text(encoding="utf-8")
    assert cli.main([*argv, "gpu01"]) == 4
    assert "--html shows all nodes" in capsys.readouterr().err


def test_a_comparison_has_the_values_of_the_last_runs(three_nights: Path) -> None:
    with contextlib.closing(History(three_nights)) as kept:
        last, *before = (kept.find("prod", name) for name in ("night003", "night002"))
        change = next(it for it in kept.compare(last).changes if it.metric.name.startswith("busbw"))
        earlier = next(
            it for it in kept.compare(before[0]).changes if it.item == change.item or it.label == change.label
        )
        assert len(change.values) == 3
        assert change.values[-1] == change.metric.value
        assert len(earlier.values) == 2  # no value of a later run
        shown = next(row for row in kept.compare(last).for_html().rows if row.values == change.values)
        assert shown.metric == change.metric


def test_a_node_that_failed_or_is_waived_is_no_baseline_and_the_others_are(kept: History) -> None:
    add(kept, log(1, bandwidths(1)))
    failed = [*bandwidths(2, {"gpu02": 0.6, "gpu03": 0.97}), result("gpu02", "gpu.count", "failed")]
    bad = add(kept, log(2, failed, end=1))
    assert (bad.run.complete, bad.run.good) == (True, False)
    waived = bandwidths(3, {"gpu02": 0.6})
    for one in waived:
        if (one["node"], one["check"]) == ("gpu02", "nccl.alone_bandwidth"):
            one["outcome"] = "waived"
    add(kept, log(3, waived))
    comparison = add(kept, log(4, bandwidths(4)))
    runs = {it.item.node: it.judged.runs for it in comparison.changes if "alone" in it.label}
    assert runs == {"gpu01": 3, "gpu02": 1, "gpu03": 3}
    assert comparison.last_good is not None
    assert comparison.last_good.run == "night003"
