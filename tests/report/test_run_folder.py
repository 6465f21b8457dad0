"""Each run has a folder of its own; the oldest are deleted, one in use or of a foreign name never."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.report.events import EventLog
from pytest_gpucluster.report.run_folder import RunFolder, log_in, prune

if TYPE_CHECKING:
    from pathlib import Path


def run_id(number: int) -> str:
    return f"20261101T0600{number:02}-{number}"


def made(root: Path, number: int) -> Path:
    """Return the folder of a run that has ended, with a log and the log of a step."""
    folder = root / run_id(number)
    (folder / "steps").mkdir(parents=True)
    (folder / "events.jsonl").write_text("{}\n")
    (folder / "steps" / "0001-a.log").write_text("")
    return folder


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_latest_is_the_run_that_was_published_last(tmp_path: Path) -> None:
    for number in (1, 2):
        made(tmp_path, number)
        run = RunFolder(tmp_path, run_id(number), most=9)
        run.publish()
        assert (tmp_path / "latest").readlink().name == run_id(number)
        run.close()
    assert names(tmp_path) == [run_id(1), run_id(2), "latest"]


def test_a_run_without_items_leaves_the_folders_as_they_were(tmp_path: Path) -> None:
    made(tmp_path, 1)
    RunFolder(tmp_path, run_id(1), most=9).publish()
    empty = RunFolder(tmp_path, run_id(2), most=1)
    made(tmp_path, 2)
    empty.close()
    assert names(tmp_path) == [run_id(1), "latest"]
    assert (tmp_path / "latest" / "events.jsonl").read_text() == "{}\n"
    first = RunFolder(tmp_path / "new", run_id(3), most=9)
    made(tmp_path / "new", 3)
    first.close()
    assert not (tmp_path / "new").exists()


def test_the_oldest_runs_are_deleted_with_all_that_they_hold(tmp_path: Path) -> None:
    for number in (10, 9, 8, 7):
        made(tmp_path, number)
    for other in ("4711", "20261101T060001", "x20261101T060001-1"):
        (tmp_path / other).mkdir()
    assert prune(tmp_path, 2) == [run_id(7), run_id(8)]
    assert names(tmp_path) == ["20261101T060001", run_id(9), run_id(10), "4711", "x20261101T060001-1"]
    assert prune(tmp_path, 2) == []


def test_a_run_that_is_still_written_is_not_deleted(tmp_path: Path) -> None:
    log = EventLog(tmp_path / run_id(1) / "events.jsonl", run_id(1))
    made(tmp_path, 2)
    assert prune(tmp_path, 1) == []
    log.close()
    assert prune(tmp_path, 1) == [run_id(1)]


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
    assert log_in(tmp_path) == tmp_path / "latest" / "events.jsonl"
    assert log_in(folder) == log_in(folder / "events.jsonl") == folder / "events.jsonl"
