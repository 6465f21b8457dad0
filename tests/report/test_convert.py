"""A log and a history that version 0.2.0 wrote, of two nodes with three faults, in the present form."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from paths import DATA

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.former_names import CHECKS
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.report.history.history_file import APPLICATION
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine import convert
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.proof import FAILED, FIT
from pytest_gpucluster.report.result import Annotation
from pytest_gpucluster.report.terminal.night import night

OLD = DATA / "of_0_2_0"
FORMER = {name for name, it in CHECKS.items() if it.new}
NVLINK = "GPU 4 (GPU-3ffeb815-30ae-80ae-02d9-0d7f7a150d5a, 0000:9d:00.0)"
FOUND = {
    "gpu.nvlink_state": [(NVLINK, "17 active links (inactive: link 7)", "18")],
    "os.drift": [("kernel", "6.8.0-60-generic", "6.8.0-79-generic"), ("sysctls kernel.numa_balancing", "1", "0")],
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Path(shutil.copy(OLD / "events.jsonl", tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "history.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript((OLD / "history.sql").read_text())
        db.executescript(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1")
    return path


def findings(log: Path) -> dict[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for result in read_log(log).results:
        for it in (it for verdict in result.verdicts for it in verdict.findings):
            words = str(it.part), str(it.measured), str(it.expected)
            found[result.check] = sorted([*found.get(result.check, ()), words])
            assert (it.code, it.part.kind) == ("", "setting" if result.check == "os.drift" else "")
    return found


def test_a_log_of_0_2_0_is_read_as_one_of_today_after_it_was_converted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_log(log)
    assert {str(it.part) for result in before.results for v in result.verdicts for it in v.findings} == {""}
    for done in ("converted", "nothing to convert"):
        assert cli.main(["history", "--convert", str(log)]) == 0
        assert capsys.readouterr().out == f"{log}: {done}\n"
    assert findings(log) == FOUND
    after = read_log(log)
    assert not {result.check for result in after.results} & FORMER
    assert after.totals == before.totals
    hot = {metric.part for result in after.results for metric in result.metrics if metric.name == "temperature"}
    assert {(it.kind, it.name[:4], bool(it.address)) for it in hot} == {("gpu", "GPU-", True)}
    assert after.proofs.nodes == {"gpu01": FIT, "gpu02": FAILED}


def test_what_else_a_line_holds_stays_and_a_cut_line_too(log: Path) -> None:
    unjudged = b'{"event": "result", "outcome": "not checked", "message": "not checked: no right"}\n'
    old, cut = [*log.read_bytes().splitlines(keepends=True), unjudged], b'{"time": 17'
    log.write_bytes(b"".join([*old, cut]))
    assert convert.convert_log(log)
    new = log.read_bytes().splitlines(keepends=True)
    assert (len(new), new[-1]) == (len(old) + 1, cut)
    for one, other in zip(old, new[:-1], strict=True):
        was, now = json.loads(one), json.loads(other)
        for it in (was, now):
            it.pop("check", None)
            it.pop("verdicts", None)
            it.pop("metrics", None)
        reason = now.pop("reason", None)
        shown = was.pop("annotation", []), Annotation.read(now.pop("annotation", None)).lines
        assert (was, shown[0]) == (now, shown[1])
    assert reason == "no right"


def test_required_checks_have_their_present_names_and_a_row_of_one_cell_stays(log: Path) -> None:
    log.write_text('{"event": "selection", "required": [["os"], ["os", "os.kernel", 1]]}\n')
    assert convert.convert_log(log)
    assert json.loads(log.read_text())["required"] == [["os"], ["os", "os.drift", 1]]


@pytest.mark.parametrize("name", ["SHA256SUMS.sig", "record.json.sig"])
def test_a_signed_log_stays_as_it_is(log: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.with_name(name).touch()
    before = log.read_bytes()
    assert cli.main(["history", "--convert", str(log)]) == 1
    assert "is signed: convert a copy" in capsys.readouterr().err
    assert log.read_bytes() == before


def test_a_history_of_0_2_0_has_the_present_names_after_it_was_converted(path: Path, log: Path) -> None:
    with contextlib.closing(History(path, convert=True)) as kept:
        checks = {it for (it,) in kept.query('SELECT "check" FROM items UNION SELECT "check" FROM series')}
        assert "os.drift" in checks
        assert not kept.query("SELECT message FROM verdicts WHERE message LIKE '% on gpu%: %'")
        assert not checks & FORMER
        rows = kept.query(
            'SELECT i."check", f.kind, f.part, f.measured, f.expected FROM findings f JOIN items i ON i.id = f.item ORDER BY f.part'
        )
        parts = [it.item.metric.part for it in kept.node_values("sandbox", "gpu02", simulated=True)]
        assert night(kept, "sandbox")[0].endswith("2 new, 0 changed, 0 healed, 0 open")
    assert sorted(row[2:] for row in rows) == sorted(it for found in FOUND.values() for it in found)
    assert {row[1] for row in rows if row[0] == "os.drift"} == {"setting"}
    assert {(part.kind, part.index) for part in parts} == {("", None), *(("gpu", number) for number in range(8))}
    convert.convert_log(log)  # the history that the converted log makes has the same rows
    with contextlib.closing(History(path.with_name("new.sqlite"), create=True)) as new:
        assert new.add(recorded(read_log(log)))
        rows_of = 'SELECT i."check", n.name, v.outcome FROM verdicts v JOIN items i ON i.id = v.item JOIN nodes n ON n.id = i.node ORDER BY 1, 2'
        with contextlib.closing(History(path)) as kept:
            assert kept.query(rows_of) == new.query(rows_of)
        found = "SELECT part, measured, expected FROM findings ORDER BY part"
        assert new.query(found) == [row[2:] for row in rows]


def test_of_several_results_that_become_one_check_the_worst_stays(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        former = db.execute("SELECT id FROM items WHERE \"check\" = 'os.kernel' ORDER BY id").fetchall()
        for outcome, (item,) in zip(("passed", "waived"), former, strict=True):
            db.execute("UPDATE verdicts SET outcome = ? WHERE item = ?", (outcome, item))
        db.commit()
    with contextlib.closing(History(path, convert=True)) as kept:
        rows = kept.query(
            "SELECT v.outcome FROM verdicts v JOIN items i ON i.id = v.item WHERE i.\"check\" = 'os.drift' ORDER BY i.node"
        )
    assert rows == [("passed",), ("failed",)]  # gpu02: waived, and failed by os.sysctls


def test_a_former_name_has_its_successor_and_the_part_that_it_judged() -> None:
    assert convert.present("controller.reported[x]") == ("controller.errors[x]", "")
    assert convert.present("os.uptime") == ("os.uptime", "")  # without a successor
    assert convert.present_part("memlock", convert.present("os.limits")[1]) == named("setting", "limits memlock")
    assert convert.present_part("kernel", "taint") == named("setting", "taint")
    assert convert.present_part("GPUs", "") == Part(name="GPUs")


@pytest.mark.parametrize(
    "device", ["GPU 4", NVLINK, "all_reduce 1 GiB", "with gpu02", "/tmp", "mlx5_0 port 1", "floor: 9"]
)
def test_the_device_of_a_metric_becomes_a_part_with_the_same_words(device: str) -> None:
    part = convert.measured_part(device)
    assert str(part) == device
    assert part.kind == {"G": "gpu", "a": "size", "w": "peer"}.get(device[0], "")
