"""The submitit suite with the real submitit on virtual nodes, healthy and with faults."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from framework_helpers import DEADLINE, FRAMEWORKS, framework_python
from paths import ROOT
from plugin_helpers import Run, cluster_file, command, names, run_pytest
from sandbox_helpers import environment, left_in_queue, queue, slurm, wait_for

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from pathlib import Path

SUITE = ROOT / "suites" / "submitit" / "test_submitit.py"


def claimed(sandbox: Sandbox, where: Path) -> Path:
    """Write a cluster file that claims submitit on all nodes."""
    framework_python()
    shared = where / "shared"
    shared.mkdir(exist_ok=True)
    return cluster_file(
        sandbox,
        where,
        slurm={"partition": "batch", "queue_wait": "300s"},
        environments={"ours": {"python": str(FRAMEWORKS)}},
        submitit={"environment": "ours", "folder": str(shared)},
    )


def run_suite(path: Path) -> Run:
    words = (f"--cluster={path}", "-p", "no:cacheprovider")
    constants = {"submitit": {"wait": 60}}
    return run_pytest(path.parent, *words, timeout=DEADLINE, where=(str(SUITE),), constants=constants)


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path))
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 6
    assert names(done.outcomes, "not checked") == ["test_accounting"]
    assert not list((tmp_path / "shared").iterdir())
    assert left_in_queue(sandbox) == []


def test_no_job_outlives_us(sandbox: Sandbox, tmp_path: Path) -> None:
    path = claimed(sandbox, tmp_path)
    slurm(sandbox, "scontrol", "update", "PartitionName=batch", "State=DOWN")  # the jobs wait
    try:
        with subprocess.Popen(
            command(f"--cluster={path}", "-p", "no:cacheprovider", str(SUITE)),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_for(lambda: len(queue(sandbox)) >= 5, "the jobs are submitted")
            finally:  # else a failure would wait for its end
                process.kill()
        wait_for(lambda: not queue(sandbox), "the jobs are cancelled")
        wait_for(lambda: not list((tmp_path / "shared").iterdir()), "the folder is removed")
    finally:
        slurm(sandbox, "scontrol", "update", "PartitionName=batch", "State=UP")
