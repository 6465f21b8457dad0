"""The GID index of NCCL's exports, and a node of the plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.kit.fabric.perftest_plan import gid_index, node_plan
from pytest_gpucluster.kit.fabric.rails import RailPort
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig


@pytest.mark.parametrize(
    ("of_nccl", "of_environment", "expected"),
    [({}, {}, None), ({"NCCL_IB_GID_INDEX": "3"}, {}, 3), ({}, {"NCCL_IB_GID_INDEX": "1"}, 1), ({"NCCL_IB_GID_INDEX": "-1"}, {}, None),
     ({"NCCL_IB_GID_INDEX": "3"}, {"NCCL_IB_GID_INDEX": "1"}, 3)],
)  # fmt: skip
def test_the_gid_index_is_that_of_the_jobs(
    of_nccl: dict[str, str], of_environment: dict[str, str], expected: int | None
) -> None:
    cluster: Any = SimpleNamespace(section=lambda _: NcclConfig(exports=of_nccl))
    assert gid_index(cluster, EnvironmentConfig(exports=of_environment)) == expected


def test_a_node_has_its_address_its_place_and_its_rails() -> None:
    plan = node_plan("10.0.0.1", 4, {"0000:18:00.0 port 1": RailPort("mlx5_0", 1, "mlx5_0 port 1", 2)})
    assert plan == {"address": "10.0.0.1", "place": 4, "rails": {"0000:18:00.0 port 1": ["mlx5_0", 1, 2]}}
