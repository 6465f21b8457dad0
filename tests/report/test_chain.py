"""The chain of an event log: what a stranger can check, and where a change is found."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.report import chain
from pytest_gpucluster.report.events import EventLog, GrowingLog, read_events

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


def test_readers_have_neither_the_hash_nor_another_model(log: Path) -> None:
    assert [sorted(event) for event in read_events(log)] == [["event", "number", "run", "time"]] * 5
    with contextlib.closing(GrowingLog(log)) as growing:
        assert [event["number"] for event in growing.new()] == [*range(5)]
        with log.open("a") as file:
            file.write('{"number": 5}\n{"numb')
            file.flush()
            assert [event["number"] for event in growing.new()] == [5]
            file.write('er": 6}\n')
        assert [event["number"] for event in growing.new()] == [6]


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
