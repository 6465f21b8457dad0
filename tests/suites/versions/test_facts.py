"""The report of a node about its versions, in the forms of real tools."""

from __future__ import annotations

import subprocess

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.container.enroot import Pyxis
from pytest_gpucluster.suites.versions.facts import VERSIONS, InstalledVersion, NodeVersions


def read(text: str) -> NodeVersions:
    return VERSIONS.parse(Answer("gpu01", 0, text.encode()))


def test_forms_of_versions() -> None:
    for line, component, version in (
        ("slurm slurm-wlm 22.05.8", "slurm", "22.05.8"),
        ("slurm slurm 25.11.0-0rc1", "slurm", "25.11.0-0rc1"),
        ("ofed MLNX_OFED_LINUX-23.10-0.5.5.0:", "ofed", "23.10-0.5.5.0"),
    ):
        assert read(f"{line}\nend\n").known == {component: InstalledVersion(version)}
        with pytest.raises(ProbeError, match="ended early"):
            read(f"{line}\n")


def test_who_maintains_the_package() -> None:
    for package, found, distribution in (
        ("deb slurmd 22.05.8-4+deb12u3 Debian HPC Team <x@y>", "slurmd 22.05.8-4+deb12u3", True),
        ("deb slurm-smd-slurmd 23.11.10-1 SchedMD LLC", "slurm-smd-slurmd 23.11.10-1", False),
        ("rpm slurm-slurmd 22.05.9-1.el9 Fedora Project", "slurm-slurmd 22.05.9-1.el9", True),
        ("rpm slurm-slurmd 25.05.3-1.el9 ", "slurm-slurmd 25.05.3-1.el9", False),
        ("deb", "", False),
    ):
        slurm = read(f"slurm slurm 23.11.4\npackage {package}\nend\n").known["slurm"]
        assert slurm == InstalledVersion("23.11.4", found, distribution=distribution)


def test_what_is_absent_has_a_reason() -> None:
    found = read("enroot \nofed \ncontainer_toolkit \nnccl \nend\n")
    assert found.known == {}
    assert found.absent["slurm"] == "neither slurmd nor srun is on PATH"
    assert found.absent["ofed"] == "ofed_info is absent"
    assert found.with_pyxis(Pyxis(absent="no plugstack.conf")).absent["pyxis"] == "no plugstack.conf"
    assert found.with_pyxis(Pyxis("/usr/lib/spank_pyxis.so", "")).absent["pyxis"] == "the version is unknown"
    assert found.with_pyxis(Pyxis("/x.so", "0.20.0")).known["pyxis"].text == "0.20.0"
    assert found.without(["driver"], "nvidia-smi: not found").absent["driver"] == "nvidia-smi: not found"


def test_the_script_reports_the_slurm_of_this_machine() -> None:
    done = subprocess.run(["sh", "-c", VERSIONS.command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    slurm = read(done.stdout).known["slurm"]
    assert slurm.text[:2].isdecimal()
    if slurm.package:  # installed by the distribution
        assert slurm.package.split()[1].startswith(slurm.text)
