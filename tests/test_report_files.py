"""Files of a run: the event log, files that are there whole or not at all, logs of steps."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.errors import GpuClusterError
from pytest_gpucluster.report import files
from pytest_gpucluster.report.events import EventLog, read_events, strict_json
from pytest_gpucluster.report.files import write_whole
from pytest_gpucluster.report.steps import MAX_STREAM, StepLogs, clear
from pytest_gpucluster.slurm.result import StepResult, TaskResult

# --- whole files


@pytest.mark.parametrize("data", [b"abc", [b"a", b"", b"bc"], iter([b"abc"])])
def test_a_file_is_whole(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "deep" / "er" / "x.prom"
    write_whole(path, data)
    assert path.read_bytes() == b"abc"
    assert os.listdir(path.parent) == ["x.prom"]  # noqa: PTH208 - hidden files too


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_has_the_mode_that_others_expect(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "x", b"")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~mask


def test_where_linux_shows_no_umask_it_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_args: Any, **_more: Any) -> str:
        raise OSError(errno.ENOENT, "no /proc")

    monkeypatch.setattr(Path, "read_text", nowhere)
    assert files._umask() == 0o022
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_more: "Name: x\n")
    assert files._umask() == 0o022
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_more: "Name: x\nUmask:\t0027\nState: R\n")
    assert files._umask() == 0o027


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def full() -> Any:
        yield b"new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(GpuClusterError) as caught:
        write_whole(path, full())
    assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]
    with pytest.raises(
        GpuClusterError, match=r"cannot be written \(Not a directory\)|cannot be written \(File exists\)"
    ):
        write_whole(path / "below", b"")


def test_a_file_that_is_written_is_hidden_from_collectors(tmp_path: Path) -> None:
    seen: list[str] = []

    def look() -> Any:
        seen.extend(one.name for one in tmp_path.iterdir())
        yield b""

    write_whole(tmp_path / "x.prom", look())
    assert len(seen) == 1
    assert seen[0].startswith(".x.prom.")
    assert seen[0].endswith(".tmp")


# --- the event log


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_has_its_time_run_and_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucluster.report.events.time.time", lambda: 5.12345)
    path = tmp_path / "deep" / "events.jsonl"
    log = EventLog(path, "r1")
    log.write("start", {"a": "MY_TOKEN=hunter2", "n": 2}, n=1, why="B_TOKEN=hunter2")
    log.write("end")
    log.close()
    log.write("late")
    # what a record holds is clean already; fields are redacted here
    assert logged(path) == [
        {
            "time": 5.123,
            "run": "r1",
            "event": "start",
            "n": 2,
            "why": "B_TOKEN=<redacted>",
            "a": "MY_TOKEN=hunter2",
        },
        {"time": 5.123, "run": "r1", "event": "end"},
    ]
    assert log.failed == ""
    log.close()


def test_a_log_that_cannot_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuClusterError) as caught:
        EventLog(tmp_path / "file" / "events.jsonl", "r")
    said = str(caught.value)
    assert said.startswith(f"cannot write the event log {tmp_path}/file/events.jsonl: ")
    assert said.endswith(": --report-dir=DIR names another folder")


class Full:
    """A file on a disk that takes a few bytes at first, then none, then all."""

    def __init__(self, file: Any, room: list[int | None]) -> None:
        self.file, self.room, self.closed = file, room, False

    def write(self, data: bytes) -> int:
        most = self.room.pop(0) if self.room else None
        if most == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data if most is None else data[:most]))

    def close(self) -> None:
        self.file.close()


def test_a_full_disk_is_remembered_and_costs_no_later_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log: Any = EventLog(path, "r")
    log._file = Full(log._file, [5, 0, 7, None, 9, -1])
    log.write("first")  # in four pieces
    assert log.failed == ""
    log.write("second")  # 9 bytes of it, then the disk is full
    assert log.failed == f"{path}: No space left on device"
    log.write("third")
    log.close()
    assert [event["event"] for event in read_events(path)] == ["first", "third"]
    lines = path.read_text().splitlines()
    assert [len(line) for line in lines[1:2]] == [9]
    assert json.loads(lines[2])["event"] == "third"


def test_a_log_that_cannot_be_closed_is_not_whole(tmp_path: Path) -> None:
    log: Any = EventLog(tmp_path / "events.jsonl", "r")

    class Broken:
        closed = False

        def close(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    log._file.close()
    log._file = Broken()
    log.close()
    assert log.failed == f"{tmp_path}/events.jsonl: Input/output error"


def test_a_log_that_is_no_plain_file_is_not_emptied() -> None:
    log = EventLog(Path(os.devnull), "r")
    log.write("start")
    log.close()
    assert log.failed == ""


def test_an_event_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "events.jsonl"
    log = EventLog(path, "r1")
    assert (log.failed, log._cut) == ("", False)
    log.write("start")
    assert [event["event"] for event in logged(path)] == ["start"]
    log.close()


@pytest.mark.parametrize(
    ("first", "named"), [("", "?"), ('{"event": "start"}', "?"), ('{"run": "r1"}\n{"run": "r2"}', "r1")]
)
def test_a_log_that_is_written_already_names_its_run(tmp_path: Path, first: str, named: str) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, "r1")
    path.write_text(first)
    with pytest.raises(GpuClusterError) as caught:
        EventLog(path, "r2")
    assert str(caught.value) == (
        f"{path}: run {named} still writes it: wait for its end, or give this run a folder of its own with "
        "--report-dir=DIR"
    )
    assert path.read_text() == first
    log.close()
    EventLog(path, "r3").close()
    assert path.read_text() == ""


def test_a_file_system_without_locks_has_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = tmp_path / "events.jsonl"
    path.write_text("old")
    monkeypatch.setattr("pytest_gpucluster.report.events.fcntl.flock", no_locks)
    EventLog(path, "r").close()
    assert path.read_text() == ""


def test_numbers_that_json_has_not_become_texts() -> None:
    assert strict_json({"a": float("nan"), "b": [float("-inf")], "c": 1.5, "d": None, "e": "\u202e"}) == (
        '{"a": "NaN", "b": ["-Infinity"], "c": 1.5, "d": null, "e": "\\u202e"}'
    )


def test_what_is_no_event_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1]\n"x"\n{"b": "\xff"}\n{"c": 1')
    assert list(read_events(path)) == [{"a": 1}, {"b": "\ufffd"}]
    with pytest.raises(OSError, match="a device is no event log") as caught:
        list(read_events(Path("/dev/zero")))
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/dev/zero")


# --- logs of steps


def a_step(**more: Any) -> StepResult:
    known: dict[str, Any] = {"rc": 0, "tasks": (), "stderr": "", "seconds": 1.26, "command": "srun x"}
    return StepResult(**(known | more))


def a_task(rank: int, **more: Any) -> TaskResult:
    known: dict[str, Any] = {"node": "gpu01", "rc": 0}
    return TaskResult(rank, **(known | more))


def test_the_log_of_a_step(tmp_path: Path) -> None:
    tasks = (
        a_task(0, stdout="out\n\n", stderr="err\n"),
        a_task(1, node="", rc=None, truncated=True),
        a_task(2, rc=7, stderr="only"),
    )
    step = a_step(rc=3, stderr="srun: error\n", stdout="stray", tasks=tasks)
    logs = StepLogs(tmp_path)
    assert logs.keep("gpu.count x/y", step) == "steps/0001-gpu.count-x-y.log"
    text = (tmp_path / "steps" / "0001-gpu.count-x-y.log").read_text()
    assert text == (
        f"check:   gpu.count x/y\ncommand: {step.command}\nexit:    3 after 1.3 s\n\n--- srun\nsrun: error\n\n"
        "--- output without a task\nstray\n\n--- task 0 on gpu01: exit 0\nout\n--- its stderr\nerr\n\n"
        "--- task 1 on ?: exit unknown, output cut\n\n--- task 2 on gpu01: exit 7\n--- its stderr\nonly\n"
    )
    assert logs.keep("", a_step()) == "steps/0002-exam.log"
    assert (tmp_path / "steps" / "0002-exam.log").read_text().startswith("check:   exam of the nodes\n")
    assert StepLogs(tmp_path / "deep" / "er", "gw3").keep("a", a_step()) == "steps/gw3-0001-a.log"
    assert (tmp_path / "deep" / "er" / "steps" / "gw3-0001-a.log").is_file()


def test_a_long_stream_keeps_both_ends(tmp_path: Path) -> None:
    half = MAX_STREAM // 2
    assert MAX_STREAM == 262144
    StepLogs(tmp_path).keep("a", a_step(stdout="x" * half + "y" * half + "\n"))
    assert "left out" not in (tmp_path / "steps" / "0001-a.log").read_text()
    StepLogs(tmp_path).keep("a", a_step(stdout="x" * half + "z" + "y" * half))
    text = (tmp_path / "steps" / "0001-a.log").read_text()
    assert text.endswith("x" * half + "\n[... 1 characters left out ...]\n" + "y" * half + "\n")


def test_a_log_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("")
    assert StepLogs(tmp_path).keep("a", a_step()) == ""


def test_only_our_own_logs_are_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    clear(tmp_path)
    folder.mkdir()
    ours = ("0001-gpu.x.log", "gw12-0001-a_b-c.log")
    others = (
        "001-a.log",
        "x0001-a.log",
        "0001-a.txt",
        "0001-a.log.log.gz",
        "gw-0001-a.log",
        "00001-a.log",
        "0001-.log x",
        "0001-.log",
        "gw3x0001-a.log",
        "gwx-0001-a.log",
        "abcd-a.log",
    )
    for name in (*ours, *others):
        (folder / name).write_text("")
    clear(tmp_path)
    assert sorted(one.name for one in folder.iterdir()) == sorted(others)


def test_a_log_that_another_run_took_away_meanwhile_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", lambda folder, _pattern: [folder / "0001-a.log"])
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_logs_that_cannot_be_taken_away_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "0001-a.log").write_text("")

    def no(_path: Path, **_more: Any) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", no)
    with pytest.raises(GpuClusterError) as caught:
        clear(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/steps: logs of an earlier run cannot be taken away (Permission denied): --report-dir=DIR names "
        "another folder"
    )
