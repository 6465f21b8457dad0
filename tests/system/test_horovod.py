"""The horovod suite with the real Horovod on two virtual nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from framework_helpers import ends, run_suite

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores


def test_horovod_runs_over_two_nodes_of_two_tasks(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks", "operations": ["gloo"], "interface": "lo", "launchers": ["srun"]}
    run = run_suite(sandbox, tmp_path, "test_horovod.py", "-m", "gloo", nodes="gpu[01-02]", horovod=claim)
    found = ends(run)
    nodes = [f"[gpu0{n}]" for n in (1, 2)]
    good = {f"test_{name}{node}" for name in ("build", "versions", "interface", "between") for node in nodes}
    good |= {f"test_{name}[pytorch-gloo-srun]" for name in ("ranks", "all_reduce", "broadcast", "training")}
    assert {item for item, end in found.items() if end == "passed"} == good, run.out[-4000:]
    assert all(item.startswith("test_transport") for item in found.keys() - good)
