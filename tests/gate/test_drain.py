"""A node that an earlier gate drained is judged by the present names of the checks in its reason. Drains are in system/test_gate.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucluster.core import former_names
from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.core.former_names import Former
from pytest_gpucluster.drain.reason import write_reason
from pytest_gpucluster.gate.drain import resume
from pytest_gpucluster.gate.gate import GateResult

if TYPE_CHECKING:
    from pathlib import Path


class Judged:
    """A check that passed."""

    check, outcome = "gpu.count", "passed"


class Slurm:
    """A controller with one node."""

    def __init__(self, reason: str) -> None:
        self.state = f"IDLE+DRAIN Reason={reason}"

    def run(self, *argv: str) -> str:
        if "State=UNDRAIN" in argv:
            self.state = "IDLE"
        return f"NodeName=n1 Arch=x86_64 CPUTot=4 RealMemory=1000 State={self.state}"


@pytest.mark.parametrize(
    ("former", "done"),
    [
        (Former("gpu.count"), "resumed: old.count passed"),
        (Former(why="gone"), "stays drained: old.count did not pass; 'old.count' was removed: gone"),
        (None, "stays drained: old.count did not pass"),
    ],
)
def test_the_present_check_resumes_a_node_that_was_drained_under_its_former_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: Former | None, done: str
) -> None:
    if former is not None:
        monkeypatch.setitem(former_names.CHECKS, "old.count", former)
    reason = write_reason("n1", ["old.count"], Finding("GPUs", "7", "8"), "gate-1")
    (tmp_path / "n1.drained").write_text(reason)
    found = GateResult("lab", "n1", cast("Any", [Judged()]))
    assert resume(found, cast("Any", Slurm(reason)), tmp_path) == done
