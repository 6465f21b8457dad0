"""The tensorflow suite with the real TensorFlow on virtual nodes, healthy and with faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, names, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = ROOT / "suites" / "tensorflow" / "test_tensorflow.py"
PATIENCE = 400  # seconds; a run takes a tenth of it on a quiet machine
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"


# -- the real TensorFlow on virtual nodes -------------------------------------------------------------------------


def claimed(
    sandbox: Sandbox, folder: Path, *, python: Path = PYTHON, deadline: str = "120s", **exports: str
) -> Path:
    """Write a cluster file that claims TensorFlow on two nodes."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make .cache/frameworks")
    return cluster_file(
        sandbox,
        folder,
        nodes="gpu[01-02]",
        environments={"tf": {"python": str(python), "exports": exports}},
        tensorflow={"environment": "tf", "deadline": deadline},
    )


def run_suite(path: Path, *args: str) -> Run:
    return run_pytest(
        path.parent,
        f"--cluster={path}",
        "-p",
        "no:cacheprovider",
        *args,
        timeout=PATIENCE,
        where=(str(SUITE),),
    )


def wrapper(folder: Path, body: str) -> Path:
    """Write an interpreter that does something of its own on one node or rank first."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{body}\nexec {PYTHON} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path))
    assert done.rc == 0, done.out
    assert set(done.outcomes.values()) == {"passed", "not applicable"}
    assert len(done.outcomes) == 11
    assert names(done.outcomes, "not applicable") == ["test_devices[gpu01]", "test_devices[gpu02]"]


def test_what_is_selected_without_its_section_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(cluster_file(sandbox, tmp_path, nodes="gpu01"), "-v")
    assert set(done.outcomes.values()) == {"error"}
    assert "add `tensorflow:`" in done.out


def test_tensorflow_absent_on_one_node(sandbox: Sandbox, tmp_path: Path) -> None:
    python = wrapper(tmp_path, f'[ "$SLURMD_NODENAME" = gpu02 ] && exec {os.path.realpath(PYTHON)} -I "$@"')
    done = run_suite(claimed(sandbox, tmp_path, python=python), "-k", "framework or mirrored")
    assert names(done.outcomes, "failed") == ["test_framework[gpu02]"], done.out
    assert names(done.outcomes, "passed") == ["test_framework[gpu01]", "test_mirrored[gpu01]"]
    assert "No module named 'tensorflow'" in done.out


def test_a_killed_worker_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    body = 'case "$3" in workers) [ "$SLURM_PROCID" = 3 ] && { (sleep 0.3; kill -9 $$) & } ;; esac'
    path = claimed(sandbox, tmp_path, python=wrapper(tmp_path, body), deadline="240s")
    done = run_suite(path, "-k", "workers or equal")
    assert names(done.outcomes, "failed") == ["test_workers"], done.out
    assert "worker 3 (gpu02): measured ended by signal 9 (SIGKILL)" in done.out, done.out
    assert names(done.outcomes, "not checked") == ["test_equal"]
