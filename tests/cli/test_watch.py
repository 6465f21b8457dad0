"""`gpucluster watch` follows an event log that grows, and ends with its run."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING

from report.test_progress import BEGUN, event, result

from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_log_that_grows_is_followed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in [*BEGUN, result("gpu01")]))
    failed = json.dumps(result("gpu02", "failed"))
    pieces = [f"{failed}\nno event\n", *json.dumps(event("finish", exit=1)), "\n"]
    with log.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a run does

        def grow(_seconds: float) -> None:
            if pieces:
                file.write(pieces.pop(0))
                file.flush()
            else:
                fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr("pytest_gpucluster.cli.watch.time.sleep", grow)
        assert cli.main(["watch", str(tmp_path), "--once"]) == 0
        assert "1 of 8 items (12%), no failure" in capsys.readouterr().out
        assert cli.main(["watch", str(tmp_path), "--interval=0.1"]) == 0
    assert pieces == []
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("NOT ACCEPTED: ") for line in lines)
    assert any("gpu.count" in line for line in lines[-3:])


def test_with_none_running_the_newest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a killed one: no process holds the lock of its log."""
    for name, more in (("20261126T020000-9", result("gpu01")), ("20261127T020000-1", result("gpu02", "failed"))):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(one) + "\n" for one in [*BEGUN, more])
        (tmp_path / name / "events.jsonl").write_text(text)
    assert cli.main(["watch", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no run is being written; the newest is 20261127T020000-1:"
    assert lines[1].startswith("NOT ACCEPTED: ")


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", str(tmp_path)]) == 1
    assert "does not exist; name a --report-dir" in capsys.readouterr().err
