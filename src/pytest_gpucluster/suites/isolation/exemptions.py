"""What need not be isolated, by the cluster file or by Slurm's configuration. Pure.

slurmctld reports cgroup.conf in `scontrol show config` under "Cgroup Support Configuration", as it reads its own file: a
node may have another one, which is a fault that the checks find.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

_CGROUP_KEYS = {"cpus": "ConstrainCores", "devices": "ConstrainDevices", "memory": "ConstrainRAMSpace"}
# job_container/tmpfs; since 25.11 NamespaceType=namespace/tmpfs or namespace/linux
_PRIVATE_TMP = re.compile(r"(job_container/tmpfs|namespace/(tmpfs|linux))\b")


@dataclass(frozen=True)
class Exemptions:
    """For each resource why it is not tested, '' if it is."""

    cpus: str = ""
    devices: str = ""
    memory: str = ""
    tmp: str = ""
    allowed_memory: float = 1.0
    """The memory that a task may use, as a multiple of its limit (AllowedRAMSpace)."""
    nothing: bool = False
    """Slurm isolates neither CPUs, devices nor folders, and the cluster file does not say that it need not."""

    def require(self, resource: str) -> None:
        """Raise why the isolation of a resource is not tested, if it is not: a suite with nothing to test has proved nothing."""
        reason = str(getattr(self, resource))
        if reason and not self.nothing:
            raise NotApplicable(reason)
        if reason:
            raise NotAvailable(
                f"{reason}: Slurm isolates no job from another; in the cluster file, `required: [isolation.{resource}]` requires "
                f"that it does, `not_applicable: {{isolation.{resource}: REASON}}` accepts that it does not"
            )

    @property
    def any_step(self) -> bool:
        """Whether a step must be run to test something, apart from memory."""
        return not (self.cpus and self.devices and self.tmp)


def read_exemptions(config: Mapping[str, str], cluster: Cluster) -> Exemptions:
    """Return what the cluster file exempts, or else what Slurm's configuration does not isolate."""
    reasons = {
        "cpus": _no_cgroup(config, "cpus"),
        "devices": _no_cgroup(config, "devices"),
        "tmp": _no_private_tmp(config),
        "memory": _no_cgroup(config, "memory") or _memory_not_allocated(config),
    }
    stated = {resource: cluster.stated(f"isolation.{resource}") for resource in reasons}
    steps = [resource for resource in reasons if resource != "memory"]
    excluded = "the cluster file has it under not_applicable"
    return Exemptions(
        nothing=all(reasons[resource] and stated[resource] is None for resource in steps),
        **{
            resource: why if stated[resource] is None else "" if stated[resource] else excluded
            for resource, why in reasons.items()
        },
        allowed_memory=_percent(config.get("AllowedRAMSpace", "")) / 100,
    )


def why_idle(slurm: Slurm, cluster: Cluster) -> str:
    """Return why a run that does not name the suite leaves it out: Slurm isolates nothing; '' if it isolates something."""
    found = read_exemptions(slurm.config(), cluster)
    return f"Slurm isolates no job from another ({found.cpus})" if found.nothing else ""


def _no_cgroup(config: Mapping[str, str], resource: str) -> str:
    """Return why Slurm does not confine jobs by a cgroup, '' if it does."""
    if "task/cgroup" not in config.get("TaskPlugin", ""):
        return f"slurm.conf has TaskPlugin={config.get('TaskPlugin') or 'task/none'}, without task/cgroup"
    key = _CGROUP_KEYS[resource]
    value = config.get(key, "")
    return "" if value.lower() == "yes" else f"cgroup.conf of the controller has {key}={value or 'no'}"


def _memory_not_allocated(config: Mapping[str, str]) -> str:
    """Return why the limit of a task is not its --mem, '' if it is."""
    parameters = config.get("SelectTypeParameters", "")
    return (
        ""
        if "MEMORY" in parameters.upper()
        else f"Slurm does not allocate memory (SelectTypeParameters={parameters})"
    )


def _no_private_tmp(config: Mapping[str, str]) -> str:
    plugins = [config.get(key, "") for key in ("JobContainerType", "NamespaceType")]
    if any(_PRIVATE_TMP.search(plugin) for plugin in plugins):
        return ""
    return "slurm.conf has neither JobContainerType=job_container/tmpfs nor NamespaceType"


def _percent(text: str) -> float:
    """Return the number of '100.0%', at least 100; 100 if it cannot be read."""
    number = re.match(r"\d{1,6}(\.\d{1,6})?", text)
    return max(100.0, float(number[0])) if number else 100.0
