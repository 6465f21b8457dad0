"""Run a payload as one step and read what its tasks told."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from pytest_gpucluster.checks.told import StepTold, TaskTold, last_words, read_facts
from pytest_gpucluster.errors import ConfigError, StepError, StepTimeout
from pytest_gpucluster.slurm.pyxis import explain
from pytest_gpucluster.slurm.result import StepResult
from pytest_gpucluster.slurm.step import run_step

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig
    from pytest_gpucluster.slurm.allocation import Allocation
    from pytest_gpucluster.slurm.client import Slurm
    from pytest_gpucluster.slurm.step import StepRequest


def source_of(name: str) -> str:
    """Return the text of a payload, to be run by -c."""
    return resources.files("pytest_gpucluster.payloads").joinpath(name).read_text()


def environment_named(cluster: Cluster, name: str | None, section: str) -> EnvironmentConfig | None:
    """Return an environment of the cluster file; ConfigError where the section names one that is not there."""
    if name is None:
        return None
    if name not in cluster.environments:
        known = ", ".join(sorted(cluster.environments)) or "none"
        raise ConfigError(f"{section}.environment {name!r} is not among the environments: {known}")
    return cluster.environments[name]


def run_payload(slurm: Slurm, allocation: Allocation, request: StepRequest, key: str) -> StepTold:
    """Run the step. A deadline and a container that does not start are results; broken Slurm raises StepError."""
    nodes = request.nodes or allocation.nodes
    ntasks = request.ntasks or len(nodes) * (request.ntasks_per_node or 1)
    try:
        result, problem = run_step(slurm, allocation, request), ""
    except StepTimeout as error:
        if not isinstance(error.result, StepResult):
            raise
        result, problem = error.result, str(error)
    except StepError as error:
        if explain(error.stderr) is None:
            raise
        return StepTold(key, nodes, ntasks, problem=str(error), rc=error.rc or -1)
    tasks = tuple(
        TaskTold(
            task.rank, task.node, task.rc, task.signal, read_facts(task.stdout, key), last_words(task.stderr)
        )
        for task in result.tasks
    )
    return StepTold(key, nodes, ntasks, tasks, problem, result.command, result.seconds, result.rc)
