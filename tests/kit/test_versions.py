"""The versions that the facts of a node tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpucluster.kit.fabric_manager import FabricManager
from pytest_gpucluster.kit.nvidia_smi import Gpus
from pytest_gpucluster.kit.versions import versions_in


def _gpus(cuda: str, *devices: tuple[str, str, str]) -> Gpus:
    told = [SimpleNamespace(name=name, driver=driver, vbios=vbios) for name, driver, vbios in devices]
    return Gpus(cast("Any", tuple(told)), cuda=cuda)  # of a GPU, only these three count here


@pytest.mark.parametrize(
    ("probe", "facts", "versions"),
    [
        ("kernel", "6.8.0", {"kernel": "6.8.0"}),
        ("release", "ubuntu 24.04", {"operating system": "ubuntu 24.04"}),
        ("kernel", ("6.8.0",), {}),
        ("hostname", "gpu01", {}),
    ],
)
def test_probes_whose_facts_are_a_version(probe: str, facts: object, versions: dict[str, str]) -> None:
    assert versions_in(probe, facts) == versions


def test_versions_of_gpus_are_told_of_all_of_them() -> None:
    assert versions_in(
        "gpus", _gpus("12.4", ("H200", "550", "B"), ("H200", "550", "A"), ("H100", "550", ""))
    ) == {
        "GPUs": "H100, H200",
        "NVIDIA driver": "550",
        "VBIOS": "A, B",
        "CUDA of the driver": "12.4",
    }
    assert versions_in("gpus", _gpus("", ("H200", "550", ""))) == {"GPUs": "H200", "NVIDIA driver": "550"}
    assert versions_in("gpus", _gpus("")) == {}


@pytest.mark.parametrize(
    ("version", "versions"), [("550.54.15", {"fabric manager": "550.54.15"}), (None, {}), ("", {})]
)
def test_the_version_of_the_fabric_manager_is_told_where_it_says_one(
    version: str | None, versions: dict[str, str]
) -> None:
    assert versions_in("fabric manager", FabricManager("active", version)) == versions
