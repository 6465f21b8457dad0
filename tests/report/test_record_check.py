"""A changed byte of a record, its log, its page or another file is found; an unchanged one never is."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import write_run

from pytest_gpucluster.report import record, record_check
from pytest_gpucluster.report.events import read_log

if TYPE_CHECKING:
    from pathlib import Path

COVERED = (
    "events.jsonl",
    "record.json",
    "record.intoto.json",
    "report.html",
    "junit.xml",
    "steps/1.log",
)
POSITIONS = 25  # of changed bytes in each file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def failed(log: Path) -> list[str]:
    return [outcome.text for outcome in record_check.verify(log) if outcome.failed]


def change(log: Path, key: str, value: Any) -> None:
    """Change a key of the record as somebody would who can write all files: the statement is made again."""
    path = log.with_name("record.json")
    document = {**json.loads(path.read_text()), key: value}
    path.write_bytes(record.encode(document))
    statement = record.statement(read_log(log), document, path.read_bytes())
    log.with_name("record.intoto.json").write_bytes(record.encode(statement))


def test_an_unchanged_record_fits(log: Path) -> None:
    folder = log.parent
    assert [outcome.text for outcome in record_check.verify(log)] == [
        f"{log}: 9 lines, each follows from all before it",
        f"{folder}/record.json: holds what the events hold (all keys)",
        f"{folder}: 3 other files have the hashes of the record",
        f"{folder}/report.html: shows what the events hold",
        f"{folder}/record.intoto.json: is the in-toto statement of this record",
    ]


@pytest.mark.parametrize("name", COVERED)
def test_a_changed_byte_is_found_wherever_it_is(log: Path, name: str) -> None:
    path, chosen = log.parent / name, random.Random(name)
    whole = path.read_bytes()
    for at in {0, len(whole) - 1, *(chosen.randrange(len(whole)) for _ in range(POSITIONS))}:
        changed = whole[at] ^ 1 << chosen.randrange(7)
        path.write_bytes(whole[:at] + bytes([changed]) + whole[at + 1 :])
        assert failed(log), f"byte {at} of {name}: {whole[at]:#x} became {changed:#x}"
    path.write_bytes(whole)
    assert failed(log) == []


def test_a_page_that_shows_something_else_is_found_though_the_record_names_it(log: Path) -> None:
    page = log.with_name("report.html")
    page.write_text(page.read_text().replace("17 active links", "18 active links"))
    change(log, "files", record.hashes(log.parent))
    assert failed(log) == [f"{page}: does not show what the events hold"]


def test_a_record_that_holds_something_else_is_found(log: Path) -> None:
    change(log, "nodes", {"gpu01": "fit", "gpu02": "fit", "gpu03": "fit"})
    assert failed(log) == [f"{log.with_name('record.json')}: does not hold what {log} holds: nodes"]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"", "is not JSON: "),
        (b"[]", "is no record of format 1: "),
        (b'{"format": 2}', "is no record of format 1: format: "),
        (b"{" * 100_000, "is not JSON: "),
    ],
)
def test_a_file_that_is_no_record_is_refused(log: Path, written: bytes, why: str) -> None:
    log.with_name("record.json").write_bytes(written)
    (only,) = failed(log)
    assert only.startswith(f"{log.with_name('record.json')}: {why}")


def test_a_path_out_of_the_folder_is_not_read(log: Path) -> None:
    change(log, "files", {**record.hashes(log.parent), "../secret": "0" * 64})
    (log.parents[1] / "secret").write_text("x")
    assert failed(log) == [f"{log.parent}/../secret: does not exist, and the record names it"]
