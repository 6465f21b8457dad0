"""The plan of kit/payloads/perftest.py: addresses and rails of nodes, and the GID index that the cluster file exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.kit.framework.payload_step import environment_named
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig
    from pytest_gpucluster.kit.fabric.rails import RailPort

GID_INDEX = "NCCL_IB_GID_INDEX"


def gid_index(cluster: Cluster, environment: EnvironmentConfig | None) -> int | None:
    """Return the GID index that the environment, or that of NCCL, exports; None if perftest is to choose it."""
    of_nccl = environment_named(cluster, cluster.section(NcclConfig).environment, "nccl")
    text = {**variables(environment), **variables(of_nccl)}.get(GID_INDEX, "")
    return int(text) if text.isdecimal() else None


def node_plan(address: str, place: int, rails: Mapping[str, RailPort]) -> dict[str, Any]:
    """Return a node of the plan. `place`: its number among the nodes of the run."""
    return {
        "address": address,
        "place": place,
        "rails": {location: [rail.device, rail.number, rail.gpu] for location, rail in rails.items()},
    }
