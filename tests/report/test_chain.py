"""The chain of an event log: what a stranger can check, and where a change is found."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.report import chain
from pytest_gpucluster.report.events import EventLog, GrowingLog, read_events, read_log

if TYPE_CHECKING:
    from pathlib import Path


def write_log(path: Path, events: int = 5) -> Path:
    log = EventLog(path, "r")
    for number in range(events):
        log.write("result", number=number)
    log.close()
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "events.jsonl")


def test_every_line_ends_with_the_hash_of_all_bytes_before_it(log: Path) -> None:
    before = b""
    for line in log.read_bytes().splitlines(keepends=True):
        assert json.loads(line)["sha256_before"] == hashlib.sha256(before).hexdigest()
        before += line
    assert chain.check(log).chain.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
    assert chain.check(log)[1:] == (True, "", [])


def test_head_and_sha256sum_print_the_hash_of_a_line(log: Path) -> None:
    printed = subprocess.run(
        f"head -n 3 {log} | sha256sum", shell=True, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split()[0] == json.loads(log.read_text().splitlines()[3])["sha256_before"]


def test_readers_have_neither_the_hash_nor_another_model(log: Path) -> None:
    assert [sorted(event) for event in read_events(log)] == [["event", "number", "run", "time"]] * 5
    with contextlib.closing(GrowingLog(log)) as growing:
        assert [sorted(event) for event in growing.new()] == [["event", "number", "run", "time"]] * 5
    assert read_log(log).log == chain.check(log).chain
    assert read_log(log).log.lines == 5  # type: ignore[union-attr] # it is of a file


@pytest.mark.parametrize("at", range(5))
def test_a_changed_byte_is_found_at_its_line(log: Path, at: int) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    lines[at] = lines[at].replace(b'"number": %d' % at, b'"number": 9')
    log.write_bytes(b"".join(lines))
    found = chain.check(log)
    if at == 4:  # the last line: only the hash of the whole file can tell
        assert found.problem == ""
    else:
        assert found.problem == (
            f"{log}:{at + 2}: does not follow from line {at + 1}: one of the two was changed, or lines between them "
            "were added or removed"
        )


@pytest.mark.parametrize(
    ("order", "line"), [((0, 2, 3, 4), 2), ((0, 1, 1, 2, 3, 4), 3), ((1, 0, 2, 3, 4), 1), ((1, 2, 3, 4), 1)]
)
def test_a_line_that_is_removed_added_or_moved_is_found(log: Path, order: tuple[int, ...], line: int) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[number] for number in order))
    assert chain.check(log).problem.startswith(f"{log}:{line}: does not follow from ")


def test_a_line_without_a_hash_is_found(log: Path) -> None:
    with log.open("a") as file:
        file.write('{"event": "finish", "exit": 0}\n')
    assert (
        chain.check(log).problem
        == f"{log}:6: the line has no sha256_before: it was added or changed after it was written"
    )


def test_a_log_of_an_earlier_version_has_no_chain(tmp_path: Path) -> None:
    old = tmp_path / "events.jsonl"
    old.write_text('{"event": "start"}\n{"event": "finish"}\n')
    found = chain.check(old)
    assert not found.is_chained
    assert (
        found.problem == f"{old}: its lines are not chained: an earlier version of pytest-gpucluster wrote it"
    )


class Full:
    """A file on a disk that is full for one write."""

    closed = False

    def __init__(self, file: Any, room: list[int]) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        most = self.room.pop(0) if self.room else len(data)
        if most < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data[:most]))

    def close(self) -> None:
        self.file.close()


def test_a_line_that_a_full_disk_has_cut_is_named_and_is_part_of_the_chain(tmp_path: Path) -> None:
    log: Any = EventLog(tmp_path / "events.jsonl", "r")
    log.write("start")
    log._file = Full(log._file, [30, -1, -1, 1, 10, -1])
    for number in range(4):  # 1: cut; 2: no byte; 3: its newline, and cut again
        log.write("result", number=number)
    log.close()
    found = chain.check(log.path)
    assert found[1:] == (True, "", [2, 3])
    assert found.chain == log.chain
    assert found.chain.sha256 == hashlib.sha256(log.path.read_bytes()).hexdigest()
    log.path.write_bytes(log.path.read_bytes().replace(b'"event": "re', b'"event": "RE'))
    assert chain.check(log.path).chain != log.chain
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([lines[0], lines[1].replace(b"time", b"TIME"), *lines[2:]]))
    assert chain.check(log.path).problem.startswith(f"{log.path}:4: does not follow from line 3: ")


def test_a_last_line_that_sigkill_has_cut_is_named(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-30])
    found = chain.check(log)
    assert found[1:] == (True, "", [5])
    assert (found.chain.lines, found.chain.is_cut) == (4, True)


@pytest.mark.parametrize("cut", [0, 30])
def test_a_second_writer_continues_the_chain(log: Path, cut: int) -> None:
    log.write_bytes(log.read_bytes()[: -cut or None])
    second = EventLog(log, "r")
    second.write("finish", exit=0)
    second.close()
    assert chain.check(log)[1:] == (True, "", [5] if cut else [])
    assert [event["event"] for event in read_events(log)][-1] == "finish"
    assert len(log.read_bytes().splitlines()) == 6
