"""gpucluster record: sign, verify, and what becomes of a signed run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from report_helpers import a_run, passing, write_run
from signature_helpers import allow, make_key

from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.thorough  # by ssh-keygen


@pytest.fixture
def log(tmp_path: Path) -> Path:
    make_key(tmp_path / "key")
    allow(tmp_path / "key")
    return write_run(tmp_path / "run")


@pytest.fixture
def gpucluster(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str]]]:
    def run(*words: str) -> tuple[int, list[str]]:
        names = {"KEY": str(tmp_path / "key"), "SIGNERS": str(tmp_path / "signers")}
        status = cli.main([*(names.get(word, word) for word in words), str(log.parent)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).replace(f"{log.parent}/", "").splitlines()

    return run


def test_a_signed_record_is_verified(gpucluster: Callable[..., tuple[int, list[str]]], log: Path) -> None:
    status, lines = gpucluster("record", "sign", "--key", "KEY")
    signed = (
        "record.json.sig: signed: cluster prod, run 20261121T020000-1: Not accepted, 2 of 3 nodes (1 failed)"
    )
    assert (status, lines) == (0, [signed])
    assert log.with_name("record.json.sig").stat().st_mode & 0o777 == 0o600
    status, lines = gpucluster("record", "verify", "--signers", "SIGNERS", "--identity", "ops@site")
    assert status == 0
    assert [line.partition(":")[0] for line in lines] == ["ok"] * 6 + ["verified"]
    assert re.fullmatch(
        r"ok: record.json.sig: signed for gpucluster-record with ED25519 key SHA256:\S+ by ops@site",
        lines[-2],
    )
    assert lines[-1] == "verified: Not accepted, 2 of 3 nodes (1 failed)"


def test_what_was_not_checked_is_said(gpucluster: Callable[..., tuple[int, list[str]]]) -> None:
    status, lines = gpucluster("record", "verify")
    assert (status, lines[-2]) == (0, "open: record.json.sig: does not exist: the record is not signed")
    assert lines[-1].startswith("unchanged: Not accepted, 2 of 3 nodes (1 failed); but")
    assert gpucluster("record", "verify", "--signers", "SIGNERS")[0] == 1
    gpucluster("record", "sign", "--key", "KEY")
    status, lines = gpucluster("record", "verify")
    assert status == 0
    assert lines[-1].endswith("; but who signed was not checked: --signers names a file of allowed signers")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("events.jsonl", "FAILED: events.jsonl:2: does not follow from line 1: one of the two was changed"),
        ("record.json", "FAILED: record.json: does not hold what events.jsonl holds: host"),
    ],
)
def test_a_change_after_the_signature_is_found(
    gpucluster: Callable[..., tuple[int, list[str]]], log: Path, name: str, line: str
) -> None:
    gpucluster("record", "sign", "--key", "KEY")
    path = log.with_name(name)
    path.write_bytes(path.read_bytes().replace(b"login1", b"login2", 1))
    status, lines = gpucluster("record", "verify", "--signers", "SIGNERS")
    assert status == 1
    assert lines[0 if name == "events.jsonl" else 1].startswith(line)
    assert lines[-1].startswith("NOT VERIFIED: ")
    status, lines = gpucluster("record", "sign", "--key", "KEY", "--force")
    assert status == 1
    assert lines[-1] == (
        "gpucluster: error: record.json: not signed, because it does not fit the files beside it"
    )


def test_a_signature_is_replaced_by_force_only(gpucluster: Callable[..., tuple[int, list[str]]]) -> None:
    gpucluster("record", "sign", "--key", "KEY")
    assert gpucluster("record", "sign", "--key", "KEY") == (
        1,
        ["gpucluster: error: record.json.sig: exists already; --force replaces it"],
    )
    assert gpucluster("record", "sign", "--key", "KEY", "--force")[0] == 0
    status, lines = gpucluster("record", "verify", "--identity", "ops@site")
    assert status == 1
    assert "--identity: has no effect without --signers=FILE" in lines[0]


def test_reports_of_a_signed_run_are_written_elsewhere(
    gpucluster: Callable[..., tuple[int, list[str]]], tmp_path: Path, log: Path
) -> None:
    gpucluster("record", "sign", "--key", "KEY")
    before = log.with_name("report.html").stat().st_mtime_ns
    status, lines = gpucluster("report")
    assert status == 1
    assert lines[0].startswith("gpucluster: error: record.json.sig: the record of this run is signed")
    assert log.with_name("report.html").stat().st_mtime_ns == before
    assert gpucluster("report", "--output", str(tmp_path / "public"))[0] == 0
    assert not (tmp_path / "public" / "record.json").exists()
    assert gpucluster("record", "verify", "--signers", "SIGNERS")[0] == 0
    assert gpucluster("report", "--force")[0] == 0


def test_a_killed_run_gets_its_record_from_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_run(tmp_path / "run", *a_run([passing("gpu01")], finish=None))
    log.write_bytes(log.read_bytes() + b'{"time": 17')
    for name in ("record.json", "record.intoto.json", "report.html"):
        log.with_name(name).unlink()
    assert cli.main(["record", "verify", str(log.parent)]) == 1
    assert "record.json: does not exist; `gpucluster report DIR` writes the record" in capsys.readouterr().out
    assert cli.main(["report", str(log.parent)]) == 0
    assert f"{log.with_name('record.json')}: written\n" in capsys.readouterr().out
    assert cli.main(["record", "verify", str(log.parent)]) == 0
    printed = capsys.readouterr().out
    assert (
        "events.jsonl: 3 lines, each follows from all before it; cut lines, whose events are lost: 4"
        in printed
    )
    assert "unchanged: Not proved, " in printed


def test_a_log_without_a_chain_gets_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_run(tmp_path / "run")
    log.write_text(re.sub(r', "sha256_before": "\w+"', "", log.read_text()))
    assert cli.main(["report", str(log.parent)]) == 0
    assert (
        "record.json: not written: an earlier version of pytest-gpucluster wrote the log"
        in capsys.readouterr().out
    )


def test_a_changed_log_gets_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_run(tmp_path / "run")
    log.write_bytes(log.read_bytes().replace(b"login1", b"login2"))
    assert cli.main(["report", str(log.parent)]) == 1
    assert f"gpucluster: error: {log}:2: does not follow from line 1: " in capsys.readouterr().err
