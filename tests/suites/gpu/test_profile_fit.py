"""A profile contradicts a group only if no GPU of it fits: a bad card, or a missing one, is a fault of its node."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from counter_examples import CONFIGURE
from judged import judged

from pytest_gpucluster.config.models import Group
from pytest_gpucluster.config.profile_files import load_profile
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
from pytest_gpucluster.suites.gpu.profile_fit import PCI, ProfileMismatch, contradiction, unstated

if TYPE_CHECKING:
    from pathlib import Path

H200, H100, MIB = "NVIDIA H200", "NVIDIA H100 80GB HBM3", 2**20
OWN = "one that extends generic and states these GPUs"


def gpus(*names: str, memory: int = 143771) -> Gpus:
    return Gpus(tuple(Gpu(index=at, name=name, memory=memory * MIB) for at, name in enumerate(names)))


def contradicted(profile: str, *nodes: Gpus, gres: int = 8) -> ProfileMismatch | None:
    group = Group(nodes="gpu[01-02]", profile=load_profile(profile))
    fleet = {f"gpu{number:02}": one for number, one in enumerate(nodes, 1)}
    return contradiction(group, fleet, dict.fromkeys(fleet, gres))


def test_another_model_in_all_nodes_is_one_failure_with_the_profiles_that_fit() -> None:
    found = contradicted("dgx-a100", gpus(*[H200] * 8), gpus(*[H200] * 8))
    assert found is not None
    verdict = found.verdict()
    assert (verdict.check, judged(verdict)) == ("run.profile", (CONFIGURE, ["gpu[01-02]"]))
    (finding,) = verdict.findings
    assert finding.measured == "8 NVIDIA H200 of 140.4 GiB"
    assert finding.expected == "8 NVIDIA A100-SXM4-80GB (profile dgx-a100)"
    assert "h200-8 or " in verdict.hint
    assert verdict.hint.endswith(f" or {OWN}")
    assert "see run.profile" in found.reason


@pytest.mark.parametrize(
    ("profile", "nodes", "gres"),
    [
        ("h200-8", (gpus(*[H200] * 8),), 8),
        ("h200-8", (gpus(H200, *[H100] * 7),), 8),  # one fits: the others were replaced
        ("h200-8", (gpus(*[H200] * 7),), 8),  # Slurm has the eighth: it is lost
        ("h200-8", (gpus(*[H200] * 7), gpus(*[H200] * 8)), 7),
        ("h200-8", (Gpus(driver_problem="no driver"),), 8),
        ("h200-vm:1", (gpus(H200, memory=70000),), 1),  # the only GPU lacks memory: it may be bad
    ],
)
def test_a_fault_contradicts_no_profile(profile: str, nodes: tuple[Gpus, ...], gres: int) -> None:
    assert contradicted(profile, *nodes, gres=gres) is None


@pytest.mark.parametrize(
    ("profile", "nodes", "gres", "hint"),
    [
        ("h100-pcie:1", (gpus(H100, memory=81559),), 1, OWN),
        ("h200-8", (gpus(H200), gpus(H200)), 1, f"h200-vm:1 or {OWN}"),
        ("dgx-h100", (gpus(*[H100] * 8, memory=40960),), 8, OWN),
        ("dgx-h100", (gpus(*[H200] * 8), gpus("Tesla T4", memory=15360)), 8, OWN),  # two kinds in one group
    ],
)
def test_number_and_memory_contradict(profile: str, nodes: tuple[Gpus, ...], gres: int, hint: str) -> None:
    found = contradicted(profile, *nodes, gres=gres)
    assert found is not None
    assert found.verdict().hint.endswith(f": {hint}")


@pytest.mark.parametrize(
    ("fleet", "counted", "slots", "found"),
    [
        ({"gpu01": gpus(*[H200] * 7), "gpu02": Gpus()}, {"gpu01": 8}, {}, "7 NVIDIA H200 of 140.4 GiB"),
        ({"gpu01": Gpus(driver_problem="absent")}, {"gpu01": 8}, {"gpu01": 8}, "8 GPUs in Slurm's Gres"),
        ({}, {"gpu01": 0}, {"gpu02": 1}, "1 GPU on the PCI bus, which nvidia-smi does not show"),
        ({"gpu01": Gpus()}, {"gpu01": 0}, {"gpu01": 0}, ""),
    ],
)
def test_gpus_that_no_profile_states_are_not_accepted_unseen(
    fleet: dict[str, Gpus], counted: dict[str, int], slots: dict[str, int], found: str
) -> None:
    group = Group(nodes="gpu[01-02]", profile=load_profile("generic"))
    one = unstated(group, fleet, counted, slots)
    assert (one.found if one else "") == found
    assert one is None or one.stated == "no GPUs"


def test_a_compute_gpu_is_seen_on_the_pci_bus_and_a_display_or_a_switch_is_none(tmp_path: Path) -> None:
    functions = [("0x030200", "0x10de"), ("0x030000", "0x10de"), ("0x068000", "0x10de"), ("0x030200", "0x1002")]
    for number, (kind, vendor) in enumerate(functions):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0/class").write_text(kind + "\n")
        (tmp_path / f"0000:0{number}:00.0/vendor").write_text(vendor + "\n")
    (tmp_path / "0000:09:00.0").mkdir()
    command = PCI.command.replace("/sys/bus/pci/devices", str(tmp_path))
    done = subprocess.run(("sh", "-c", command), capture_output=True, text=True, check=True)
    assert done.stdout == "0000:00:00.0\n"
