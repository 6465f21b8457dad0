"""`gpucluster events` prints whole events, whatever form they have in the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from report_helpers import a_run, passing, write_run

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.report.machine.events import read_events

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_rows_are_printed_as_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ["gpu01", "gpu02", "gpu03"]
    log = write_run(tmp_path / "run", *a_run([passing(node) for node in nodes], nodes=nodes))
    assert '["gpu.nvlink_state","gpu03",' in log.read_text()
    assert cli.main(["events", str(log.parent)]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == list(read_events(log))
    assert [it["nodeid"] for it in printed if it.get("node") == "gpu03"] == [
        "suites/test_gpu.py::test_nvlink_state[gpu03]"
    ]
    assert cli.main(["events", str(tmp_path / "absent")]) == 1
