"""The GID index of NCCL's exports, and a node of the plan."""

from __future__ import annotations

from pytest_gpucluster.core.part import port
from pytest_gpucluster.kit.fabric.perftest_plan import node_plan
from pytest_gpucluster.kit.fabric.rails import RailPort


def test_a_node_has_its_address_its_place_and_its_rails() -> None:
    plan = node_plan("10.0.0.1", 4, {"0000:18:00.0 port 1": RailPort("mlx5_0", 1, port("mlx5_0", 1), 2)})
    assert plan == {"address": "10.0.0.1", "place": 4, "rails": {"0000:18:00.0 port 1": ["mlx5_0", 1, 2]}}
