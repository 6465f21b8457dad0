"""The tensorflow suite with the real TensorFlow on virtual nodes, healthy and with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, names, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

SUITE = ROOT / "suites" / "tensorflow" / "test_tensorflow.py"
PATIENCE = 1200  # seconds; a run takes a tenth of it at most
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"


# -- the real TensorFlow on virtual nodes -------------------------------------------------------------------------


def claimed(
    sandbox: Sandbox, folder: Path, *, python: Path = PYTHON, deadline: str = "900s", **exports: str
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
