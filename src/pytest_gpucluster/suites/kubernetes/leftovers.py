"""Jobs of killed runs in the cluster's namespace, for `gpucluster clean`.

The label of the runs only lists them. A Job is removed by its name with its uid as precondition, and only if its run has
ended: the process of the label's mark no longer exists on this machine, or Kubernetes itself should have removed the Job.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.leftovers import Leftover, leftover_of
from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.facts import read_jobs
from pytest_gpucluster.suites.kubernetes.jobs import LABEL, deletion
from pytest_gpucluster.suites.kubernetes.steps import Kubectl

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.kubernetes.facts import Job

GONE = "(NotFound)"


def jobs(cluster: Cluster) -> list[Leftover]:
    """Return the Jobs of ended runs, and those of runs that cannot be judged here; GpuClusterError if none can be read."""
    config = cluster.section(KubernetesConfig)
    if config is None or not config.jobs:
        return []
    kubectl = Kubectl(config)
    text, problem = kubectl.ask("get", "jobs", f"--namespace={config.namespace}", f"--selector={LABEL}", "-o", "json")
    try:
        found = [] if problem else read_jobs(text)
    except ProbeError as error:
        problem = str(error)
    if problem:
        raise GpuClusterError(f"Jobs in namespace {config.namespace} of Kubernetes were not checked: {problem}")
    return [left for job in found if (left := _leftover(kubectl, job, time.time())) is not None]


def _leftover(kubectl: Kubectl, job: Job, now: float) -> Leftover | None:
    """Return the leftover; None for a Job of a running process, and for one that is being deleted."""
    if job.deleting:
        return None
    name, state = job.labels.get(LABEL, ""), "active" if job.ended is None else "ended"
    what = f"Kubernetes Job {kubectl.config.namespace}/{job.name} ({state})"
    remove = partial(_delete, kubectl, job)
    if run_mark.mark_in(name):
        found = leftover_of(what, name, remove)
        if found is None or found.remove is not None:
            return found
    else:  # a run without /proc
        found = Leftover(f"{what} of a run without a mark", None, "whether that run still exists is not known")
    if job.ended is not None and now > job.ended + job.keep:
        return replace(found, remove=remove, stays="")
    return replace(
        found, stays=f"{found.stays}; Kubernetes ends it by activeDeadlineSeconds and removes it {job.keep} s later"
    )


def _delete(kubectl: Kubectl, job: Job) -> None:
    """Delete a Job and what it owns; another Job of the same name stays, with GpuClusterError."""
    words, options = deletion(kubectl.config.namespace, job.name, preconditions={"uid": job.uid})
    _, problem = kubectl.ask(*words, stdin=options)
    if problem and GONE not in problem:
        raise GpuClusterError(problem)
