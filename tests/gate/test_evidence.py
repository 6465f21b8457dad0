"""The quick set of a gate: stored once a day for each check, and never a reason to fail."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, cast

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.check import Action, Outcome, Verdict
from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.gate.evidence import AGAIN, keep
from pytest_gpucluster.gate.gate import GateResult
from pytest_gpucluster.gate.judge import CheckResult

if TYPE_CHECKING:
    from pathlib import Path

LOST = Finding(gpu(4, address="0000:5e:00.0"), "1 row", "0", action=Action.RESET_GPU, code="pending")
VERDICT = Verdict("gpu.remapped_pending", Outcome.FAILED, findings=(LOST,), action=Action.RESET_GPU, never_healthy="n")
import_checks()
FOUND = GateResult("lab", "n1", [CheckResult("gpu.remapped_pending", "failed", VERDICT)])


def test_the_quick_set_is_kept_once_a_day(tmp_path: Path) -> None:
    place = tmp_path / "evidence/n1-gpu.remapped_pending"
    assert keep(FOUND, LocalTransport(), tmp_path, sudo=False).startswith(f"evidence: {place}: ")
    about = json.loads((place / "capture.json").read_text())
    assert (about["node"], about["findings"]) == ("n1", [LOST.as_dict()])
    assert about["missing"].keys() | {it["name"].removesuffix(".txt") for it in about["files"]} >= {
        "nvidia-smi-q-0000_5e_00.0"
    }
    assert "nvidia-bug-report" not in about["missing"]  # of the full set
    before = place.stat().st_mtime_ns
    assert keep(FOUND, LocalTransport(), tmp_path, sudo=False) == f"evidence: {place}, of an earlier gate"
    assert place.stat().st_mtime_ns == before
    os.utime(place, (1.0, place.stat().st_mtime - AGAIN - 1))
    assert keep(FOUND, LocalTransport(), tmp_path, sudo=False).startswith(f"evidence: {place}: ")


def test_a_gate_judges_its_node_where_nothing_can_be_stored_or_read(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("no folder")
    assert keep(FOUND, LocalTransport(), tmp_path, sudo=False).startswith("evidence: not stored: ")
    assert keep(GateResult("lab", "n1", []), LocalTransport(), tmp_path, sudo=False) == ""

    def run(*_: Any, **__: Any) -> Any:
        raise OSError("no shell")

    (tmp_path / "evidence").unlink()
    transport = cast("Any", type("Broken", (), {"run": staticmethod(run)}))
    assert keep(FOUND, transport, tmp_path, sudo=False) == "evidence: not stored: no shell"
