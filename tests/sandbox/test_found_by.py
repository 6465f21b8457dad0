"""A fault of the kernel log that recovered is a warning on a simulated node, and a healthy one has none."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.kernel_log import kernel_log_of
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from pytest_gpucluster.suites.os.checks.kernel_log import PartsNow, kernel_log
from pytest_gpucluster.suites.os.device_facts import DEVICES
from pytest_gpucluster.suites.os.facts import MOUNTS
from slurm_sandbox import hardware, models
from slurm_sandbox import node_files as render
from slurm_sandbox.api import FAULTS
from slurm_sandbox.faults import resolve_options
from slurm_sandbox.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

pytestmark = pytest.mark.thorough

RECOVERED = sorted(at for at, it in FAULTS.items() if FOUND_BY[at][0] == "os.kernel_log" and it.harmless)


def answer(folder: Path, kind: str, command: str, model: str = "h100") -> Answer:
    """Return what the command prints on a simulated node with this fault; '' is a healthy one."""
    folder.mkdir(exist_ok=True)
    layout, spec = Layout(folder), models.MODELS[model]
    render.write_simulated_tools(layout)
    node = hardware.healthy_node("gpu01", 0, spec.gpus, spec, "/state/shared")
    if kind:
        change = FAULTS[kind].change
        assert change is not None
        change(node, resolve_options(FAULTS[kind], {}, spec, spec.gpus))
    for name, text in render.files(node).items():
        path = layout.node("gpu01") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = {"PATH": f"{layout.simbin}:{os.environ['PATH']}", "SLURMD_NODENAME": "gpu01"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, timeout=60, check=True)
    return Answer("gpu01", 0, done.stdout, done.stderr)


def judged(folder: Path, kind: str, model: str = "h100") -> Verdict:
    """Return the verdict of os.kernel_log."""
    log = kernel_log_of(())
    found = log.parse(answer(folder / "log", kind, log.command, model))
    mounts = MOUNTS.parse(answer(folder / "mounts", kind, MOUNTS.command, model))
    devices = DEVICES.parse(answer(folder / "devices", kind, DEVICES.command, model))
    return kernel_log(found, PartsNow(mounts, devices))


@pytest.mark.parametrize("kind", RECOVERED)
def test_what_recovered_is_a_warning(tmp_path: Path, kind: str) -> None:
    verdict = judged(tmp_path, kind)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, ())
    assert verdict.advisories


@pytest.mark.parametrize("model", sorted(models.MODELS))
def test_a_healthy_node_has_no_warning(tmp_path: Path, model: str) -> None:
    verdict = judged(tmp_path, "", model)
    assert (verdict.outcome, verdict.findings, verdict.advisories) == (Outcome.PASSED, (), ())
