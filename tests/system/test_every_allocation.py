"""A cluster whose partitions differ has several allocations: the framework suites visit the nodes of each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from framework_helpers import ends, run_suite

if TYPE_CHECKING:
    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores


def accept(sandbox: Sandbox, folder: Path, suite: str, *words: str, **keys: Any) -> Run:
    """Run a suite on two nodes in two partitions, without a framework on them."""
    groups = [{"nodes": "gpu01"}, {"nodes": "gpu02", "partition": "debug"}]
    python = Path(sys.executable)
    slurm = {"conf": sandbox.env["SLURM_CONF"], "partition": "batch", "time": "10m"}
    return run_suite(
        sandbox, folder, suite, *words, python=python, nodes=None, groups=groups, slurm=slurm, **keys
    )


def test_nodes_of_the_second_partition_are_judged(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks"}
    run = accept(sandbox, tmp_path, "test_ddp.py", "-k", "test_framework", ddp=claim)
    assert ends(run) == {"test_framework[gpu01]": "failed", "test_framework[gpu02]": "failed"}, run.out


def test_a_cell_of_the_matrix_has_the_nodes_of_every_partition(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=1)
    profile = yaml.safe_load(sandbox.cluster_file.read_text())["profile"]
    keys: dict[str, Any] = {"profile": profile, "matrix": {}}
    run = accept(sandbox, tmp_path, "test_matrix.py", "-k", "srun-cpu or srun-gpu", **keys)
    assert ends(run) == {"test_cell[srun-cpu]": "passed", "test_cell[srun-gpu]": "failed"}, run.out
    assert "gpu02: measured 7 GPUs, expected 8 GPUs" in run.out
