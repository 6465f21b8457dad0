"""What a suite gets from its run: a cluster file of two nodes with this section, and a Slurm that knows some jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.config.models import Cluster, Group, Profile

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = ("gpu01", "gpu02")


def cluster_of(*, simulated: bool = False, **sections: Any) -> Cluster:
    """Return a cluster; `sections` are those of suites."""
    profile = Profile(name="x", description="", source="", simulated=simulated)
    cluster = Cluster(name="lab", groups=(Group(nodes="gpu[01-02]", profile=profile),))
    return cluster.model_copy(update=sections)


class Jobs:
    """A Slurm with two jobs in its queue."""

    def run(self, *_argv: str) -> str:
        return "7\n8_1\n"

    def config(self) -> dict[str, str]:
        return {"ClusterName": "lab"}


def allocation_of(slurm: Any = None, nodes: Sequence[str] = NODES) -> Allocation:
    return Allocation(slurm or Jobs(), 10, nodes)
