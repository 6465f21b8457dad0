"""Files of a run: the event log, files that are there whole or not at all, logs of steps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.machine.atomic_write import Reports, is_stream, take_away, write_whole
from pytest_gpucluster.report.machine.events import EventLog, GrowingLog, read_events, read_log, strict_json
from pytest_gpucluster.report.machine.step_logs import MAX_STREAM, StepLogs

# --- whole files


def test_a_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x.prom"
    for data in (b"abc", [b"a", b"", b"bc"], iter([b"abc"])):
        write_whole(path, data)
        assert path.read_bytes() == b"abc"
        assert os.listdir(path.parent) == ["x.prom"]  # hidden files too
        path.write_bytes(b"")


@pytest.mark.parametrize("mask", [0o022, 0o777])
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


def test_a_pipe_is_written_to_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", [b"ab", b"c"])
        assert os.read(reader, 9) == b"abc"
    finally:
        os.close(reader)
    take_away(tmp_path / "pipe")
    assert all(map(is_stream, (tmp_path / "pipe", Path("/dev/null"), Path("/dev/stdout"))))
    assert not any(map(is_stream, (tmp_path, tmp_path / "absent", Path(__file__))))
    monkeypatch.setattr("pytest_gpucluster.report.machine.atomic_write.os.geteuid", lambda: 4711)
    if os.getuid() == 0:  # whose files are nobody else's
        os.chown(tmp_path / "pipe", 4712, -1)
    assert not is_stream(tmp_path / "pipe")  # of another user


def test_what_became_of_each_file_is_kept(tmp_path: Path) -> None:
    reports, path = Reports(7), tmp_path / "x"
    assert (reports.group, reports.written, reports.problems) == (7, {}, {})

    def write(error: BaseException | None = None) -> tuple[dict[Path, None], list[str]]:
        with reports.writing(path):
            if error is not None:
                raise error
        return reports.written, [reports.problems[path]] if reports.problems else []

    assert write() == ({path: None}, [])
    for error, problem in (
        (OSError(errno.ENOSPC, "No space left on device"), f"{path}: cannot be written (No space left on device)"),
        (OSError("odd"), f"{path}: cannot be written (odd)"),
        (GpuClusterError("x:\n  full"), "x: full"),
        (KeyError("a"), f"{path}: cannot be written (KeyError: 'a')"),
    ):
        assert write(error) == ({}, [problem])
    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt())
    assert reports.written == {}
    assert write() == ({path: None}, [])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def full() -> Any:
        yield b"new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(GpuClusterError, match=r"x: cannot be written \(No space left on device\)$"):
        write_whole(path, full())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]
    with pytest.raises(GpuClusterError, match=r"cannot be written \((Not a directory|File exists)\)"):
        write_whole(path / "below", b"")
    for _ in range(2):  # what is not there is no error
        take_away(path)
        assert list(tmp_path.iterdir()) == []


# --- the event log


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_has_its_time_run_and_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucluster.report.machine.events.time.time", lambda: 5.12345)
    path = tmp_path / "deep" / "events.jsonl"
    log = EventLog(path, "r1")
    log.write("start", clean={"a": "MY_TOKEN=hunter2", "n": 2}, n=1, why="B_TOKEN=hunter2")
    log.write("end")
    log.close()
    log.write("late")
    start, end = logged(path)
    # what a record holds is clean already; fields are redacted here
    assert (start.pop("n"), start.pop("why"), start.pop("a")) == (2, "B_TOKEN=<redacted>", "MY_TOKEN=hunter2")
    assert (start, end["event"]) == ({"time": 5.123, "run": "r1", "event": "start"}, "end")
    assert log.failed == ""
    log.close()


@pytest.mark.parametrize(("path", "why"), [("file/x.jsonl", ""), (os.devnull, "is not a plain file")])
def test_an_impossible_log_path_is_reported_with_what_to_do(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuClusterError) as caught:
        EventLog(tmp_path / path, "r")
    message = str(caught.value)
    assert message.startswith(f"cannot write the event log {tmp_path / path}: {why}")
    assert message.endswith(": --report-dir=DIR names another folder")


class Full:
    """A file on a disk that takes a few bytes at first, then none (-1), then all (None)."""

    def __init__(self, file: Any) -> None:
        self.file, self.closed = file, False
        self.room: list[int | None] = []

    def write(self, data: bytes) -> int:
        most = self.room.pop(0) if self.room else None
        if most == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data if most is None else data[:most]))

    def close(self) -> None:
        self.file.close()
        if self.room:
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[Full]:
    """Return the files of the logs that are opened from here on."""
    opened: list[Full] = []
    real = os.fdopen

    def fdopen(*args: Any, **options: Any) -> Full:
        opened.append(Full(real(*args, **options)))
        return opened[-1]

    monkeypatch.setattr("pytest_gpucluster.report.machine.events.os.fdopen", fdopen)
    return opened


def test_a_full_disk_is_remembered_and_costs_no_later_event(tmp_path: Path, disk: list[Full]) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, "r")
    disk[0].room = [5, 0, 7, None, 9, -1]
    log.write("first")  # in four pieces
    assert log.failed == ""
    log.write("second")  # 9 bytes of it, then the disk is full
    assert log.failed == f"{path}: No space left on device"
    log.write("third")
    log.write("finish", exit=1)
    disk[0].room = [-1]
    log.write("finish", exit=2)
    assert log.model.exit == 2  # the model has also what is not in the file
    log.close()
    assert [event["event"] for event in read_events(path)] == ["first", "third", "finish"]
    lines = path.read_text().splitlines()
    assert (len(lines[1]), json.loads(lines[2])["event"]) == (9, "third")


def test_a_line_that_an_earlier_process_has_cut_stays_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "start"}\n{"event": "res')
    with contextlib.closing(EventLog(path, "r")) as log:
        log.write("finish")
        log.write("end")
    assert [event["event"] for event in read_events(path)] == ["start", "finish", "end"]


def test_a_growing_log_yields_each_event_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"number": 1}\n')
    with contextlib.closing(GrowingLog(path)) as growing, path.open("a") as file:
        assert [event["number"] for event in growing.new()] == [1]
        file.write('{"number": 2}\n{"numb')
        file.flush()
        assert [event["number"] for event in growing.new()] == [2]
        file.write('er": 3}\n')
        file.flush()
        assert [event["number"] for event in growing.new()] == [3]


def test_a_log_that_cannot_be_closed_is_not_whole(tmp_path: Path, disk: list[Full]) -> None:
    log = EventLog(tmp_path / "events.jsonl", "r")
    disk[0].room = [-1]
    log.close()
    assert log.failed == f"{tmp_path}/events.jsonl: Input/output error"


def test_a_file_system_without_locks_has_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pytest_gpucluster.report.machine.events.fcntl.flock", no_locks)
    log = EventLog(tmp_path / "events.jsonl", "r")
    log.write("start")
    log.close()
    assert log.failed == ""
    assert len(logged(log.path)) == 1


def test_the_model_of_a_log_equals_its_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "r")
    log.write("start", cluster="prod", arguments=("a", "b"), token="MY_TOKEN=hunter2")
    metrics = [{"name": "busbw", "unit": "GB/s", "part": {}, "value": float("inf")}]
    clean = {"node": "gpu01", "check": "c", "metrics": metrics}
    log.write("result", clean=clean, nodeid="x", outcome="failed")
    log.write("drain_over_budget", nodes=("gpu01",))
    log.write("finish", exit=1)
    log.close()
    log.write("late")
    settle(log.model)
    assert log.model == read_log(log.path)
    assert [str(metric.value) for metric in log.model.results[0].metrics] == ["inf"]


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


def a_log(folder: Path, step: StepResult, check: str = "a", **options: Any) -> str:
    """Return what is written of a step."""
    path = StepLogs(Reports(folder=folder), **options).keep(check, step)
    return (folder / path).read_text()


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
    assert (tmp_path / "steps" / "0001-gpu.count-x-y.log").read_text() == (
        f"check:   gpu.count x/y\ncommand: {step.command}\nexit:    3 after 1.3 s\n\n--- srun\nsrun: error\n\n"
        "--- output without a task\nstray\n\n--- task 0 on gpu01: exit 0\nout\n--- its stderr\nerr\n\n"
        "--- task 1 on ?: exit unknown, output cut\n\n--- task 2 on gpu01: exit 7\n--- its stderr\nonly\n"
    )
    assert logs.keep("", a_step()) == "steps/0002-diagnostic.log"
    text = (tmp_path / "steps" / "0002-diagnostic.log").read_text()
    assert text.startswith("check:   diagnostic step of the nodes\n")
    other = StepLogs(Reports(folder=tmp_path / "deep" / "er"), "gw3").keep("a", a_step())
    assert (other, (tmp_path / "deep" / "er" / other).is_file()) == ("steps/gw3-0001-a.log", True)


def test_a_long_stream_keeps_both_ends(tmp_path: Path) -> None:
    half = MAX_STREAM // 2
    assert MAX_STREAM == 262144
    assert "left out" not in a_log(tmp_path, a_step(stdout="x" * half + "y" * half + "\n"))
    text = a_log(tmp_path, a_step(stdout="x" * half + "z" + "y" * half))
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
    for group, modes in ((None, (0o700, 0o700, 0o600)), (os.getegid(), (0o750, 0o750, 0o640))):
        folder = tmp_path / str(group)
        log = folder / StepLogs(Reports(group, folder)).keep("a", a_step())
        assert tuple(path.stat().st_mode & 0o777 for path in (folder, log.parent, log)) == modes


def test_a_log_has_no_secret_and_no_control_character(tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n"
    tasks = (
        a_task(0, stdout=f"x\n{key}", stderr="A_TOKEN=hunter2\x1b[0m\r\n"),
        a_task(1, node="A_TOKEN=hunter2\x07", stdout="kept"),
    )
    step = a_step(command="srun --token hunter2", stderr="pass\x1b[1mword=hunter2 \ud800", tasks=tasks)
    assert a_log(tmp_path, step, "A_TOKEN=hunter2\x07") == (
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
        shown = a_log(tmp_path, a_step(stdout=text))
        assert "\n[... 2 characters left out ...]\n" in shown
        assert "hunt" not in shown
        assert "er2" not in shown
