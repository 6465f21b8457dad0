"""Each fault of the kernel log has two sides: what recovered fails no node, what lasts is found by the simulated tools."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.kernel_log import kernel_log_of
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from pytest_gpucluster.suites.ibfabric.lldp import NEIGHBOURS, Neighbour
from pytest_gpucluster.suites.os.checks.drives import drive_health
from pytest_gpucluster.suites.os.checks.kernel_log import PartsNow, kernel_log
from pytest_gpucluster.suites.os.device_facts import DEVICES
from pytest_gpucluster.suites.os.drive_facts import DRIVES
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

LASTING = {
    "file_system_read_only": (Action.DRAIN, "/raid is read-only now"),
    "array_degraded": (Action.MONITOR, "nvme3n1[2](F)"),
    "corrected_memory_errors": (Action.MONITOR, "32,767 times"),
    "mce": (Action.DRAIN, "Bank 7: be00000000800092"),
}
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


def test_every_lasting_fault_is_judged_here() -> None:
    own = {name for name, it in FAULTS.items() if FOUND_BY[name][0] == "os.kernel_log" and not it.harmless}
    assert own == LASTING.keys()


@pytest.mark.parametrize("kind", LASTING)
def test_what_lasts_fails(tmp_path: Path, kind: str) -> None:
    action, words = LASTING[kind]
    verdict = judged(tmp_path, kind)
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    assert words in str(verdict.findings[0].measured)


@pytest.mark.parametrize("kind", RECOVERED)
def test_what_recovered_is_a_warning(tmp_path: Path, kind: str) -> None:
    verdict = judged(tmp_path, kind)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, ())
    assert verdict.advisories


@pytest.mark.parametrize("model", sorted(models.MODELS))
def test_a_healthy_node_has_no_warning(tmp_path: Path, model: str) -> None:
    verdict = judged(tmp_path, "", model)
    assert (verdict.outcome, verdict.findings, verdict.advisories) == (Outcome.PASSED, (), ())


@pytest.mark.parametrize(
    ("kind", "outcome", "words"),
    [
        ("", Outcome.PASSED, ""),
        ("drive_missing", Outcome.PASSED, ""),
        ("drive_hot", Outcome.PASSED, "the temperature is outside the drive's limits"),
        ("drive_failing", Outcome.FAILED, "4% of the spare blocks left"),
        ("drive_dead", Outcome.NOT_CHECKED, "nvme4: No such device"),
    ],
)
def test_simulated_smartctl_reports_drives(tmp_path: Path, kind: str, outcome: Outcome, words: str) -> None:
    verdict = drive_health(DRIVES.parse(answer(tmp_path, kind, DRIVES.command)))
    assert verdict.outcome is outcome
    texts = [str(it.measured) for it in verdict.findings] + [str(it.measured) for it in verdict.advisories]
    assert words in ["", verdict.reason, *(text.removeprefix("critical warning: ") for text in texts)]
    wear = [it.device for it in verdict.metrics if it.name == "drive_wear"]
    absent = {"drive_missing": "nvme3", "drive_dead": "nvme4"}.get(kind)
    assert wear == [name for name in (f"nvme{n}" for n in range(5)) if name != absent]


@pytest.mark.parametrize(("kind", "port"), [("", "swp1"), ("ethernet_cable", "swp47")])
def test_the_simulated_lldpcli_shows_the_neighbour_of_its_node(tmp_path: Path, kind: str, port: str) -> None:
    found = NEIGHBOURS.parse(answer(tmp_path, kind, NEIGHBOURS.command))
    assert found.found == (Neighbour("eno1", "eth01", (port,), "2c:5e:ab:00:00:01"),)
    assert (found.states["eno1"], found.rdma["ib0"]) == ("up", "mlx5_0")
