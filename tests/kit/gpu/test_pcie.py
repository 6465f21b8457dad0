"""Places in the PCIe tree."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.gpu.pcie import REPRESENTOR, pci_path, root_port, served


def test_a_device_without_a_bridge_has_no_root_port() -> None:
    assert root_port(("0000:15:01.0", "0000:18:00.0")) == "0000:15:01.0"
    assert root_port(("0001:00:00.0",)) == ""
    assert root_port(()) == ""


def test_paths() -> None:
    assert pci_path("/sys/devices/x/10000:e0:06.0/10000:e1:00.0") == ("10000:e0:06.0", "10000:e1:00.0")
    assert pci_path("/sys/class/infiniband/mlx5_0/device") == ()


def test_each_gpu_counts_once_per_board() -> None:
    found = served({"a": 2, "b": 1}, {"a": ["X", "X", "Y"], "b": ["X"], "c": ["Z"]})
    assert found == {"X": 3, "Y": 2, "Z": 0}


@pytest.mark.parametrize(
    ("name", "stands_for_a_function"),
    [("p0", False), ("", False), ("pf0vf12", True), ("c1pf0sf88", True), ("pf0", False), ("pf0vf", False)],
)
def test_names_of_ports(name: str, *, stands_for_a_function: bool) -> None:
    assert bool(REPRESENTOR.fullmatch(name)) is stands_for_a_function
