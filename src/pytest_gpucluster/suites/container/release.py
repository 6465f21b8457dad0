"""The containers of a run go before its nodes are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.containers import remove_containers

if TYPE_CHECKING:
    from pytest_gpucluster.kit.suite_work import SuiteContext


def clear_nodes(run: SuiteContext, *, hurry: bool) -> list[str]:
    """Remove the containers that steps of this run, or of one that was killed, have left; return what stays."""
    if run.slurm is None or run.channel is None or not run.cluster.starts_containers:
        return []
    return remove_containers(run.slurm, run.channel, {held.job_id for held in run.allocations}, hurry=hurry)
