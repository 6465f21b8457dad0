"""The submitit suite with the real submitit on virtual nodes, healthy and with faults."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, command, jobs_so_far, names, run_pytest
from sandbox_helpers import environment, left_in_queue, queue, slurm, wait_for

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.submitit import steps as runner

SUITE = ROOT / "suites" / "submitit" / "test_submitit.py"
PATIENCE = 1200  # seconds; a run takes a tenth of it at most
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"


# -- the real submitit on virtual nodes ---------------------------------------------------------------------------


def claimed(
    sandbox: Sandbox,
    where: Path,
    *,
    python: Path = PYTHON,
    nodes: str = "gpu[01-04]",
    queue_wait: str = "300s",
    **claim: Any,
) -> Path:
    """Write a cluster file that claims submitit on all nodes."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make .cache/frameworks")
    shared = where / "shared"
    shared.mkdir(exist_ok=True)
    return cluster_file(
        sandbox,
        where,
        nodes=nodes,
        slurm={"partition": "batch", "queue_wait": queue_wait},
        environments={"ours": {"python": str(python)}},
        submitit={"environment": "ours", "folder": str(shared), **claim},
    )


def run_suite(path: Path, *args: str, where: tuple[str, ...] = (str(SUITE),)) -> Run:
    return run_pytest(
        path.parent,
        f"--cluster={path}",
        "-p",
        "no:cacheprovider",
        *args,
        timeout=PATIENCE,
        where=where,
        constants={"submitit": {"wait": 60}},
    )


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path))
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 6
    assert names(done.outcomes, "not applicable") == ["test_checkpoint"]
    assert names(done.outcomes, "not checked") == ["test_accounting"]
    assert not list((tmp_path / "shared").iterdir())
    assert left_in_queue(sandbox) == []


def test_what_is_not_claimed_is_not_applicable(sandbox: Sandbox, tmp_path: Path) -> None:
    before = jobs_so_far(sandbox)
    done = run_suite(cluster_file(sandbox, tmp_path, nodes="gpu01"), "-v")
    assert set(done.outcomes.values()) == {"error"}
    assert "no section `submitit` (add `submitit:`)" in " ".join(done.out.split())
    assert jobs_so_far(sandbox) == before


def test_submitit_absent(sandbox: Sandbox, tmp_path: Path) -> None:
    base = tmp_path / "python"
    base.write_text(f'#!/bin/sh\nexec {os.path.realpath(PYTHON)} -I "$@"\n')
    base.chmod(0o755)
    done = run_suite(claimed(sandbox, tmp_path, python=base))
    assert names(done.outcomes, "failed") == ["test_framework"], done.out
    assert "package submitit: measured ModuleNotFoundError: No module named 'submitit'" in done.out
    assert not names(done.outcomes, "passed")


def test_the_first_shared_storage_is_the_default(sandbox: Sandbox) -> None:
    cluster = load_cluster(str(sandbox.cluster_file))
    claim = cluster.model_copy(update={"submitit": None})
    assert runner.shared_folder(claim, _claim()) == cluster.section(OsConfig).shared_storage[0]


def _claim() -> Any:
    from pytest_gpucluster.suites.submitit.config import SubmititConfig  # used here alone

    return SubmititConfig()


def reconfigure(own: Sandbox, old: str, new: str) -> None:
    """Replace a setting of slurm.conf."""
    conf = Path(own.env["SLURM_CONF"])
    text = conf.read_text()
    assert old in text
    conf.write_text(text.replace(old, new))
    slurm(own, "scontrol", "reconfigure")
    wait_for(lambda: new.partition("=")[2] in slurm(own, "scontrol", "show", "config"), "the setting is read")


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
