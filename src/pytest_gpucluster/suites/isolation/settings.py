"""Which resources Slurm's configuration leaves to all jobs. Pure.

slurmctld reports cgroup.conf in `scontrol show config` under "Cgroup Support Configuration", as it reads its own file: a
node may have another one, which is a fault that the checks find.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

STEPS = ("cpus", "devices", "tmp")  # tested by the pair of steps
_CGROUP_KEYS = {"cpus": "ConstrainCores", "devices": "ConstrainDevices", "memory": "ConstrainRAMSpace"}
# job_container/tmpfs; since 25.11 NamespaceType=namespace/tmpfs or namespace/linux
_PRIVATE_TMP = re.compile(r"(job_container/tmpfs|namespace/(tmpfs|linux))\b")


def sandbox_tree(cluster: Cluster) -> Path | None:
    """Return the folder of a sandbox with device files and ssh configuration of its own, None for any other cluster."""
    return Path(cluster.slurm.conf).parents[1] if cluster.sandbox and cluster.slurm.conf else None


def shared_resources(config: Mapping[str, str], cluster: Cluster) -> dict[str, str]:
    """Return {resource: the setting that leaves it to all jobs}, without those that the cluster file requires or excludes."""
    cgroup = "task/cgroup" in config.get("TaskPlugin", "")
    found = {
        resource: f"cgroup.conf of the controller has {key}={config.get(key) or 'no'}"
        if cgroup
        else f"slurm.conf has TaskPlugin={config.get('TaskPlugin') or 'task/none'}, without task/cgroup"
        for resource, key in _CGROUP_KEYS.items()
        if not cgroup or config.get(key, "").lower() != "yes"
    }
    parameters = config.get("SelectTypeParameters", "")
    if "MEMORY" not in parameters.upper():  # --mem is no limit then
        found.setdefault("memory", f"Slurm does not allocate memory (SelectTypeParameters={parameters})")
    if not any(_PRIVATE_TMP.search(config.get(key, "")) for key in ("JobContainerType", "NamespaceType")):
        found["tmp"] = "slurm.conf has neither JobContainerType=job_container/tmpfs nor NamespaceType"
    return {it: why for it, why in found.items() if cluster.stated(f"isolation.{it}") is None}


def require(shared: Mapping[str, str], resource: str) -> None:
    """Raise why the isolation of a resource is not tested; where Slurm isolates nothing, nothing is proved."""
    why = shared.get(resource)
    if why and isolates_nothing(shared):
        raise NotAvailable(
            f"{why}: Slurm isolates no job from another; in the cluster file, `required: [isolation.{resource}]` requires "
            f"that it does, `not_applicable: {{isolation.{resource}: REASON}}` accepts that it does not"
        )
    if why:
        raise NotApplicable(why)


def isolates_nothing(shared: Mapping[str, str]) -> bool:
    """Return whether jobs share CPUs, devices and folders."""
    return shared.keys() >= {*STEPS}


def allowed_memory(config: Mapping[str, str]) -> float:
    """Return the memory that a task may use as a multiple of its limit (AllowedRAMSpace=150.0%), at least 1."""
    number = re.match(r"\d{1,6}(\.\d{1,6})?", config.get("AllowedRAMSpace", ""))
    return max(1.0, float(number[0]) / 100) if number else 1.0


def why_idle(slurm: Slurm, cluster: Cluster) -> str:
    """Return why a run that does not name the suite leaves it out: Slurm isolates nothing; '' if it isolates something."""
    shared = shared_resources(slurm.config(), cluster)
    return f"Slurm isolates no job from another ({shared['cpus']})" if isolates_nothing(shared) else ""
