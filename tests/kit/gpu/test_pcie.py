"""Places in the PCIe tree."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.gpu.pcie import REPRESENTOR, served


def test_each_gpu_counts_once_per_board() -> None:
    found = served({"a": 2, "b": 1}, {"a": ["X", "X", "Y"], "b": ["X"], "c": ["Z"]})
    assert found == {"X": 3, "Y": 2, "Z": 0}


@pytest.mark.parametrize(
    ("name", "stands_for_a_function"),
    [("p0", False), ("", False), ("pf0vf12", True), ("c1pf0sf88", True), ("pf0", False), ("pf0vf", False)],
)
def test_names_of_ports(name: str, *, stands_for_a_function: bool) -> None:
    assert bool(REPRESENTOR.fullmatch(name)) is stands_for_a_function
