"""Removes the containers of a run before its nodes are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suites.container.containers import remove_containers

if TYPE_CHECKING:
    from pytest_gpucluster.kit.suite_work import SuiteContext


def clear_nodes(run: SuiteContext, *, hurry: bool) -> list[str]:
    """Remove the containers that this run, or a killed one, left; return those that could not be removed."""
    if run.slurm is None or run.channel is None or not run.cluster.starts_containers:
        return []
    return remove_containers(run.slurm, run.channel, {held.job_id for held in run.allocations}, hurry=hurry)
