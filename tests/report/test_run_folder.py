"""Each run has a folder of its own; the oldest are deleted, one in use or of a foreign name never."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cli.main import main
from pytest_gpucluster.report.machine.events import EventLog
from pytest_gpucluster.report.machine.run_folder import RunFolder, full_log, log_in, prune, runs_in_reasons

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_id(number: int) -> str:
    return f"20261101T0600{number:02}-{number}"


STOP, FAILED = {"event": "finish", "exit": 2}, {"event": "finish", "exit": 1}
FULL: list[dict[str, Any]] = [{"event": "start", "full": True}, FAILED]
STOPPED: list[dict[str, Any]] = [*FULL, STOP]
PART: dict[str, Any] = {"event": "start", "full": False}
DRAINED: list[dict[str, Any]] = [PART, {"event": "node_intent", "node": "gpu01"}]
QUOTED: list[dict[str, Any]] = [PART, {"event": "result", "message": '"event": "node_intent"'}]


def made(root: Path, number: int, events: Sequence[dict[str, Any]] = ({},)) -> Path:
    """Return the folder of a run that has ended, with a log and the log of a step."""
    folder = root / run_id(number)
    (folder / "steps").mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "steps" / "0001-a.log").write_text("")
    return folder


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def links(root: Path) -> tuple[str, ...]:
    """Return the numbers of the runs that `latest` and `latest-rerun` name."""
    found = (root / name for name in ("latest", "latest-rerun"))
    return tuple(link.readlink().name.rpartition("-")[2] if link.is_symlink() else "" for link in found)


def execute(root: Path, number: int, events: Sequence[dict[str, Any]] = ({},), **options: Any) -> list[str]:
    """Let a run publish, write its events and end; return what it removed."""
    folder = RunFolder(root, run_id(number), most=options.pop("most", 30), full=options.pop("full", False))
    folder.publish()
    made(root, number, events)
    return folder.close(**options)


def test_latest_is_the_newest_full_run_and_latest_rerun_the_newest_other(tmp_path: Path) -> None:
    execute(tmp_path, 1)
    assert links(tmp_path) == ("1", "1")  # there is no full run yet
    execute(tmp_path, 2, FULL, full=True)
    execute(tmp_path, 3)
    assert links(tmp_path) == ("2", "3")
    execute(tmp_path, 4, FULL, full=True)
    execute(tmp_path, 5, STOPPED, full=True)
    assert links(tmp_path) == ("4", "5")
    execute(tmp_path, 6)
    assert links(tmp_path) == ("4", "6")
    assert log_in(tmp_path).parent.name == run_id(6)  # the newest of both


def test_latest_is_not_taken_from_a_full_run_that_another_process_still_writes(tmp_path: Path) -> None:
    RunFolder(tmp_path, run_id(1), most=30, full=True).publish()
    log = EventLog(tmp_path / run_id(1) / "events.jsonl", run_id(1))
    log.write("start", full=True)
    execute(tmp_path, 2)
    assert links(tmp_path) == ("1", "2")
    log.close()  # killed: it has no `finish`
    execute(tmp_path, 3)
    assert links(tmp_path) == ("3", "3")


def test_forty_reruns_never_remove_the_full_run_or_other_evidence(tmp_path: Path) -> None:
    execute(tmp_path, 1, FULL, full=True)
    execute(tmp_path, 2, DRAINED)
    execute(tmp_path, 3)  # named by the reason of a node
    execute(tmp_path, 4)  # named by the history
    execute(tmp_path, 5, QUOTED)
    execute(tmp_path, 6)
    (tmp_path / run_id(6) / "SHA256SUMS.sig").touch()
    execute(tmp_path, 7)
    (tmp_path / run_id(7) / "record.json.sig").touch()  # of version 0.3
    reasons = [f"gpucluster:gpu.ecc 1>0 run={run_id(3)} sum=0badcafe", f"my own words, was run={run_id(99)}"]
    named = {*runs_in_reasons(reasons), run_id(4)}
    removed = [gone for number in range(10, 50) for gone in execute(tmp_path, number, named=named)]
    assert removed == [run_id(5), *map(run_id, range(10, 20))]
    left = [run_id(number) for number in (1, 2, 3, 4, 6, 7, *range(20, 50))]
    assert names(tmp_path) == [*left, "latest", "latest-rerun"]
    assert links(tmp_path) == ("1", "49")


def test_a_run_without_items_leaves_the_folders_as_they_were(tmp_path: Path) -> None:
    made(tmp_path, 1)
    RunFolder(tmp_path, run_id(1), most=9).publish()
    empty = RunFolder(tmp_path, run_id(2), most=1)
    made(tmp_path, 2)
    empty.close()
    assert names(tmp_path) == [run_id(1), "latest", "latest-rerun"]
    assert (tmp_path / "latest" / "events.jsonl").read_text() == "{}\n"
    first = RunFolder(tmp_path / "new", run_id(3), most=9)
    made(tmp_path / "new", 3)
    first.close()
    assert not (tmp_path / "new").exists()


def test_the_oldest_runs_are_deleted_but_none_that_is_still_written(tmp_path: Path) -> None:
    for number in (10, 9, 8, 7):
        made(tmp_path, number)
    for other in ("4711", "20261101T060001", "x20261101T060001-1"):
        (tmp_path / other).mkdir()
    log = EventLog(tmp_path / run_id(8) / "events.jsonl", run_id(8))
    assert prune(tmp_path, 2) == [run_id(7)]
    log.close()
    assert (prune(tmp_path, 2), prune(tmp_path, 2)) == ([run_id(8)], [])
    assert names(tmp_path) == ["20261101T060001", run_id(9), run_id(10), "4711", "x20261101T060001-1"]


def test_of_two_runs_of_one_second_the_one_of_the_lower_process_is_the_older(tmp_path: Path) -> None:
    for name in ("20261101T060001-10", "20261101T060001-9"):
        (tmp_path / name).mkdir()
    assert prune(tmp_path, 1) == ["20261101T060001-9"]


def test_a_link_with_the_name_of_a_run_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    precious = made(tmp_path / "home", 1)
    root = tmp_path / "reports"
    root.mkdir()
    (root / run_id(1)).symlink_to(precious)
    made(root, 2)
    (root / run_id(2) / "steps" / "home").symlink_to(tmp_path / "home")
    made(root, 3)
    assert prune(root, 1) == [run_id(2)]
    assert (precious / "steps" / "0001-a.log").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    os.chown(made(tmp_path, 1), 1, 1)
    made(tmp_path, 2)
    assert prune(tmp_path, 1) == []


def test_a_log_is_found_by_its_run_its_folder_or_itself(tmp_path: Path) -> None:
    folder = made(tmp_path, 1)
    RunFolder(tmp_path, run_id(1), most=9).publish()
    assert {log_in(at) for at in (tmp_path, folder, folder / "events.jsonl")} == {folder / "events.jsonl"}


def test_the_newest_full_run_goes_before_a_later_rerun(tmp_path: Path) -> None:
    full, rerun = made(tmp_path, 1), made(tmp_path, 2)
    (tmp_path / "latest-rerun").symlink_to(rerun.name)
    assert full_log(tmp_path) == log_in(tmp_path) == rerun / "events.jsonl"
    (tmp_path / "latest").symlink_to(full.name)
    assert (full_log(tmp_path), log_in(tmp_path)) == (full / "events.jsonl", rerun / "events.jsonl")


def test_a_record_is_of_a_folder_that_is_named_where_the_newest_run_is_not_the_newest_full_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, link in enumerate(("latest", "latest-rerun"), 1):
        (tmp_path / link).symlink_to(made(tmp_path, number).name)
    assert main(["record", "sign", str(tmp_path), "--key", str(tmp_path / "key")]) != 0
    error = capsys.readouterr().err
    assert (run_id(1) in error, run_id(2) in error, "name the folder" in error) == (True, True, True)
