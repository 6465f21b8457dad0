"""Files of a run: the event log, files that are there whole or not at all, logs of steps."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report.atomic_write import Reports, is_stream, take_away, write_whole
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.events import EventLog, read_events, read_log, strict_json
from pytest_gpucluster.report.step_logs import MAX_STREAM, StepLogs

# --- whole files


@pytest.mark.parametrize("data", [b"abc", [b"a", b"", b"bc"], iter([b"abc"])])
def test_a_file_is_whole(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "deep" / "er" / "x.prom"
    write_whole(path, data)
    assert path.read_bytes() == b"abc"
    assert os.listdir(path.parent) == ["x.prom"]  # hidden files too


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o777])
def test_a_file_is_for_its_owner_alone_or_for_a_stated_group_as_well(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "own", b"")
        write_whole(tmp_path / "group", b"", group=os.getegid())
        write_whole(tmp_path / "all", b"", mode=0o644)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "group": 0o640, "all": 0o644}


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", [b"ab", b"c"])
        assert os.read(reader, 9) == b"abc"
    finally:
        os.close(reader)
    assert is_stream(tmp_path / "pipe")
    assert is_stream(Path("/dev/null"))
    assert is_stream(Path("/dev/stdout"))
    assert not is_stream(tmp_path)
    assert not is_stream(tmp_path / "absent")
    assert not is_stream(Path(__file__))


def test_a_pipe_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("pytest_gpucluster.report.atomic_write.os.geteuid", lambda: 4711)
    if os.getuid() == 0:  # whose files are nobody else's
        os.chown(tmp_path / "pipe", 4712, -1)
    assert not is_stream(tmp_path / "pipe")


def test_what_became_of_each_file_is_kept(tmp_path: Path) -> None:
    reports, path = Reports(7), tmp_path / "x"

    def fail(error: BaseException) -> None:
        raise error

    assert (reports.group, reports.written, reports.problems) == (7, {}, {})
    with reports.writing(path):
        pass
    assert (reports.written, reports.problems) == ({path: None}, {})
    with reports.writing(path):
        fail(OSError(errno.ENOSPC, "No space left on device"))
    assert (reports.written, reports.problems) == (
        {},
        {path: f"{path}: cannot be written (No space left on device)"},
    )
    with reports.writing(path):
        fail(OSError("odd"))
    assert reports.problems == {path: f"{path}: cannot be written (odd)"}
    with reports.writing(path):
        fail(GpuClusterError("x:\n  full"))
    assert reports.problems == {path: "x: full"}
    with reports.writing(path):
        fail(KeyError("a"))
    assert reports.problems == {path: f"{path}: cannot be written (KeyError: 'a')"}
    with pytest.raises(KeyboardInterrupt), reports.writing(path):
        fail(KeyboardInterrupt())
    assert reports.written == {}
    with reports.writing(path):
        pass
    assert (reports.written, reports.problems) == ({path: None}, {})


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


def test_a_file_of_an_earlier_run_is_taken_away_but_no_pipe(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.write_text("old")
    take_away(path)
    take_away(path)
    os.mkfifo(path)
    take_away(path)
    assert [one.name for one in tmp_path.iterdir()] == ["x.prom"]


# --- the event log


def logged(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(len(event.pop("sha256_before")) == 64 for event in events)
    return events


def test_an_event_has_its_time_run_and_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucluster.report.events.time.time", lambda: 5.12345)
    path = tmp_path / "deep" / "events.jsonl"
    log = EventLog(path, "r1")
    log.write("start", clean={"a": "MY_TOKEN=hunter2", "n": 2}, n=1, why="B_TOKEN=hunter2")
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


def test_an_impossible_log_path_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuClusterError) as caught:
        EventLog(tmp_path / "file" / "events.jsonl", "r")
    message = str(caught.value)
    assert message.startswith(f"cannot write the event log {tmp_path}/file/events.jsonl: ")
    assert message.endswith(": --report-dir=DIR names another folder")


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
    log.write("finish", exit=1)
    log._file.room = [-1]
    log.write("finish", exit=2)
    assert log.model.exit == 2  # the model has also what is not in the file
    log.close()
    assert [event["event"] for event in read_events(path)] == ["first", "third", "finish"]
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


def test_a_log_that_is_no_plain_file_is_refused() -> None:
    with pytest.raises(GpuClusterError) as caught:
        EventLog(Path(os.devnull), "r")
    assert str(caught.value) == (
        "cannot write the event log /dev/null: is not a plain file of this user's own: --report-dir=DIR names another "
        "folder"
    )


def test_a_log_holds_its_lock_until_its_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "r1")
    with (tmp_path / "events.jsonl").open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_system_without_locks_has_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pytest_gpucluster.report.events.fcntl.flock", no_locks)
    log = EventLog(tmp_path / "events.jsonl", "r")
    log.write("start")
    log.close()
    assert log.failed == ""
    assert len(logged(log.path)) == 1


def test_the_model_of_a_log_equals_its_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "r")
    log.write("start", cluster="prod", arguments=("a", "b"), token="MY_TOKEN=hunter2")
    metrics = [{"name": "busbw", "unit": "GB/s", "device": "", "value": float("nan")}]
    log.write(
        "result", clean={"node": "gpu01", "check": "c", "metrics": metrics}, nodeid="x", outcome="failed"
    )
    log.write("drain_over_budget", nodes=("gpu01",))
    log.write("finish", exit=1)
    log.close()
    log.write("late")
    settle(log.model)
    assert log.model == read_log(log.path)
    assert [str(metric.value) for metric in log.model.results[0].metrics] == ["nan"]


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
    logs = StepLogs(Reports(folder=tmp_path))
    assert logs.keep("gpu.count x/y", step) == "steps/0001-gpu.count-x-y.log"
    text = (tmp_path / "steps" / "0001-gpu.count-x-y.log").read_text()
    assert text == (
        f"check:   gpu.count x/y\ncommand: {step.command}\nexit:    3 after 1.3 s\n\n--- srun\nsrun: error\n\n"
        "--- output without a task\nstray\n\n--- task 0 on gpu01: exit 0\nout\n--- its stderr\nerr\n\n"
        "--- task 1 on ?: exit unknown, output cut\n\n--- task 2 on gpu01: exit 7\n--- its stderr\nonly\n"
    )
    assert logs.keep("", a_step()) == "steps/0002-diagnostic.log"
    assert (
        (tmp_path / "steps" / "0002-diagnostic.log")
        .read_text()
        .startswith("check:   diagnostic step of the nodes\n")
    )
    assert (
        StepLogs(Reports(folder=tmp_path / "deep" / "er"), "gw3").keep("a", a_step())
        == "steps/gw3-0001-a.log"
    )
    assert (tmp_path / "deep" / "er" / "steps" / "gw3-0001-a.log").is_file()


def test_a_long_stream_keeps_both_ends(tmp_path: Path) -> None:
    half = MAX_STREAM // 2
    assert MAX_STREAM == 262144
    StepLogs(Reports(folder=tmp_path)).keep("a", a_step(stdout="x" * half + "y" * half + "\n"))
    assert "left out" not in (tmp_path / "steps" / "0001-a.log").read_text()
    StepLogs(Reports(folder=tmp_path)).keep("a", a_step(stdout="x" * half + "z" + "y" * half))
    text = (tmp_path / "steps" / "0001-a.log").read_text()
    assert text.endswith("x" * half + "\n[... 1 characters left out ...]\n" + "y" * half + "\n")


@pytest.mark.parametrize("link", [True, False])
def test_a_log_that_cannot_be_written_is_left_out_and_reported(tmp_path: Path, *, link: bool) -> None:
    (tmp_path / "home").mkdir()
    if link:
        (tmp_path / "steps").symlink_to("home")
    else:
        (tmp_path / "steps").write_text("")
    reports, path = Reports(folder=tmp_path), tmp_path / "steps" / "0001-a.log"
    assert StepLogs(reports).keep("a", a_step()) == ""
    assert reports.problems == {path: f"{path}: cannot be written (is a link or a file, not a folder)"}
    assert list((tmp_path / "home").iterdir()) == []


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "steps").mkdir()
    for name in ("0001-a.log", "0002-b.log"):
        (tmp_path / "steps" / name).symlink_to(tmp_path / "precious")
    assert StepLogs(Reports(folder=tmp_path)).keep("a", a_step()) == "steps/0001-a.log"
    assert not (tmp_path / "steps" / "0001-a.log").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_log_is_for_its_user_or_a_group_as_well(tmp_path: Path) -> None:
    for name, group in (("own", None), ("shared", os.getegid())):
        StepLogs(Reports(group, tmp_path / name)).keep("a", a_step())
    found = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in sorted(tmp_path.rglob("*"))
    }
    assert found == {
        "own": 0o700,
        "own/steps": 0o700,
        "own/steps/0001-a.log": 0o600,
        "shared": 0o750,
        "shared/steps": 0o750,
        "shared/steps/0001-a.log": 0o640,
    }


def test_a_log_has_no_secret_and_no_control_character(tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n"
    tasks = (
        a_task(0, stdout=f"x\n{key}", stderr="A_TOKEN=hunter2\x1b[0m\r\n"),
        a_task(1, node="A_TOKEN=hunter2\x07", stdout="kept"),
    )
    step = a_step(command="srun --token hunter2", stderr="pass\x1b[1mword=hunter2 \ud800", tasks=tasks)
    StepLogs(Reports(folder=tmp_path)).keep("A_TOKEN=hunter2\x07", step)
    (log,) = (tmp_path / "steps").iterdir()
    assert log.read_text() == (
        "check:   A_TOKEN=<redacted>\ncommand: srun --token <redacted>\nexit:    0 after 1.3 s\n\n"
        "--- srun\npassword=<redacted> \n\n"
        "--- task 0 on gpu01: exit 0\nx\n<redacted>\n--- its stderr\nA_TOKEN=<redacted>\n\n"
        "--- task 1 on A_TOKEN=<redacted> exit 0\nkept\n"
    )


@pytest.mark.thorough
def test_a_cut_divides_no_secret_from_its_name(tmp_path: Path) -> None:
    half = MAX_STREAM // 2
    for end in range(15):  # the cut leaves six characters out, of the secret or beside it
        text = "x " * (half // 2 - end) + "A_TOKEN=hunter2hunter2 "
        text += "y" * (MAX_STREAM + 6 - len(text))
        StepLogs(Reports(folder=tmp_path), f"w{end}").keep("a", a_step(stdout=text))
        text = (tmp_path / "steps" / f"w{end}-0001-a.log").read_text()
        assert "\n[... 2 characters left out ...]\n" in text
        assert "hunt" not in text
        assert "er2" not in text
