"""The GID index of NCCL's exports, and a node of the plan."""

from __future__ import annotations

import pytest

from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, Group, Profile
from pytest_gpucluster.kit.fabric.perftest_plan import gid_index, node_plan
from pytest_gpucluster.kit.fabric.rails import RailPort


@pytest.mark.parametrize(
    ("of_nccl", "of_environment", "expected"),
    [("", "", None), ("3", "", 3), ("", "1", 1), ("-1", "", None), ("3", "1", 3)],
)
def test_the_gid_index_is_that_of_the_jobs(of_nccl: str, of_environment: str, expected: int | None) -> None:
    cluster, environment = ({"NCCL_IB_GID_INDEX": it} if it else {} for it in (of_nccl, of_environment))
    groups = (Group(nodes="gpu01", profile=Profile(name="p", description="", source="")),)
    of_jobs = Cluster(name="c", groups=groups, environments={"default": EnvironmentConfig(exports=cluster)})
    assert gid_index(of_jobs, EnvironmentConfig(exports=environment)) == expected


def test_a_node_has_its_address_its_place_and_its_rails() -> None:
    plan = node_plan("10.0.0.1", 4, {"0000:18:00.0 port 1": RailPort("mlx5_0", 1, "mlx5_0 port 1", 2)})
    assert plan == {"address": "10.0.0.1", "place": 4, "rails": {"0000:18:00.0 port 1": ["mlx5_0", 1, 2]}}
