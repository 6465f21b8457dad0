"""One warning of the run: what the shell that runs pytest gives to its own jobs, and this run gives to no step.

A failure that only jobs from this shell have, or only this run has, is found by it. It concerns no node.
"""

from __future__ import annotations

import math
import resource
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import CLIENT, is_passed
from pytest_gpucluster.core.check import Action
from pytest_gpucluster.kit.limits import LIMITS, shown_limit, wanted_limits
from pytest_gpucluster.kit.os_config import OsConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.config.models import Cluster

# variables that change what a step of a framework, of MPI or of Slurm does
_MATTERS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *(
        "TF_CONFIG",
        "XLA_FLAGS",
        "OMP_NUM_THREADS",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
    ),
    *(
        "*_proxy",
        "*_PROXY",
        "*_VISIBLE_DEVICES",
        "CUDA_*",
        "NCCL_*",
        "GLOO_*",
        "TORCH_*",
        "HOROVOD_*",
        "RAY_*",
    ),
    *("UCX_*", "OMPI_*", "PMIX_*", "PRTE_*", "MPICH_*", "I_MPI_*", "FI_*", "ENROOT_*", "PYXIS_*"),
    *("SLURM_*", "SRUN_*", "SBATCH_*", "SALLOC_*"),
)
_FOLDED = 3  # more variables of one prefix are shown as PREFIX_*
# limits that Slurm can pass on: slurm.conf(5), PropagateResourceLimits
_PASSED = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack")


def shell_warning(
    cluster: Cluster, slurm: Mapping[str, str], shell: Mapping[str, str], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Return what the log says of this shell: `text`, `variables`, `limits` and `action`; {} if nothing would matter.

    `slurm`: slurmctld's configuration; `limits`: the soft limits of this process. Over SSH no shell variable or limit
    of this machine reaches a job.
    """
    if cluster.transport.kind != "local" or cluster.access == "ssh":
        return {}
    names = sorted(name for name in shell if matters(name) and not _passed_by(cluster, name))
    wanted = wanted_limits(cluster.section(OsConfig).limits)
    lower = {
        name: (limits[name], wanted[name])
        for name in inherited_limits(slurm)
        if name in wanted and limits.get(name, math.inf) < wanted[name]
    }
    parts = []
    if names:
        parts.append(
            f"it sets {', '.join(folded(names))}, which no step gets: `pass_env` of an environment names what jobs need"
        )
    if lower:
        shown = (
            f"{name} {shown_limit(mine, LIMITS[name][1])} (os.limits: {shown_limit(least, LIMITS[name][1])})"
            for name, (mine, least) in lower.items()
        )
        parts.append(
            f"jobs that are submitted from it inherit {', '.join(shown)}: raise it for logins, or set "
            "PropagateResourceLimits=NONE in slurm.conf"
        )
    if not parts:
        return {}
    return {
        "text": f"the shell that runs pytest: {'; '.join(parts)}",
        "variables": names,
        "limits": {name: shown_limit(mine, LIMITS[name][1]) for name, (mine, _) in lower.items()},
        "action": Action.CONFIGURE.value,
    }


def matters(name: str) -> bool:
    """Return whether a variable changes what a step does, and is none that Slurm's clients need."""
    return name not in CLIENT and any(fnmatchcase(name, pattern) for pattern in _MATTERS)


def inherited_limits(slurm: Mapping[str, str]) -> tuple[str, ...]:
    """Return the limits that jobs inherit from the shell that submits them, from slurmctld's configuration."""

    def stated(key: str) -> set[str]:
        text = slurm.get(key, "").strip("()").lower()
        return set() if text in ("", "null") else set(text.split(","))

    if excepted := stated("PropagateResourceLimitsExcept"):
        return tuple(name for name in _PASSED if name not in excepted)
    chosen = stated("PropagateResourceLimits") or {"all"}
    if "none" in chosen:
        return ()
    return tuple(name for name in _PASSED if "all" in chosen or name in chosen)


def own_limits() -> dict[str, float]:
    """Return the soft limits of this process in bytes or numbers; math.inf: unlimited."""
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in _PASSED}
    return {name: math.inf if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def folded(names: Iterable[str]) -> list[str]:
    """Return names of variables, many of one prefix as one word.

    >>> folded(["NCCL_A", "NCCL_B", "SLURM_A", "SLURM_B", "SLURM_C", "SLURM_D"])
    ['NCCL_A', 'NCCL_B', 'SLURM_* (4)']
    """
    by_prefix: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_prefix[name.partition("_")[0]].append(name)
    return [
        word
        for prefix, found in by_prefix.items()
        for word in ([f"{prefix}_* ({len(found)})"] if len(found) > _FOLDED else found)
    ]


def _passed_by(cluster: Cluster, name: str) -> bool:
    return any(is_passed(environment, name) for environment in cluster.environments.values())
