"""Variables of the shell that runs pytest which would change steps, and which no step gets. Pure.

`gpucluster check` names them. A run names them beside a finding that they may explain: one of a check that compares
with an environment of the cluster file (its `setting` is a key like `ddp.environment`), which is where `pass_env` belongs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import CLIENT, is_passed
from pytest_gpucluster.core.check import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Verdict

# variables that change what a step of a framework, of MPI or of Slurm does
_OF_SLURM = ("SLURM_*", "SRUN_*", "SBATCH_*", "SALLOC_*")
_OF_SOFTWARE = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TF_CONFIG", "XLA_FLAGS", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONHOME"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "*_proxy", "*_PROXY", "*_VISIBLE_DEVICES"),
    *("CUDA_*", "NCCL_*", "GLOO_*", "TORCH_*", "HOROVOD_*", "RAY_*"),
    *("UCX_*", "OMPI_*", "PMIX_*", "PRTE_*", "MPICH_*", "I_MPI_*", "FI_*", "ENROOT_*", "PYXIS_*"),
)
_FOLDED = 3  # more variables of one prefix are shown as PREFIX_*


def unpassed(
    cluster: Cluster, shell: Mapping[str, str], patterns: Iterable[str] = (*_OF_SOFTWARE, *_OF_SLURM)
) -> list[str]:
    """Return the variables that match the patterns and that no environment passes, by name.

    Slurm's commands over SSH, and nodes that are reached over SSH, get nothing of this machine's shell.
    """
    if cluster.transport.kind != "local" or cluster.access == "ssh":
        return []
    passed = cluster.environments.values()
    return sorted(
        name
        for name in shell
        if name not in CLIENT
        and any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(is_passed(environment, name) for environment in passed)
    )


def sentence(names: Iterable[str]) -> str:
    """Return what these variables mean, without their values; '' for none."""
    shown = ", ".join(folded(names))
    return shown and (
        f"the shell that runs pytest sets {shown}, which no step gets: `pass_env` of an environment names what jobs need"
    )


def folded(names: Iterable[str]) -> list[str]:
    """Return names of variables, many of one prefix as one word.

    >>> folded(["NCCL_A", "NCCL_B", "SLURM_A", "SLURM_B", "SLURM_C", "SLURM_D"])
    ['NCCL_A', 'NCCL_B', 'SLURM_* (4)']
    """
    prefixes = {name: name.partition("_")[0] for name in names}
    count = Counter(prefixes.values())
    words = (f"{one}_* ({count[one]})" if count[one] > _FOLDED else name for name, one in prefixes.items())
    return list(dict.fromkeys(words))


def with_shell(verdict: Verdict, cluster: Cluster, shell: Mapping[str, str]) -> Verdict:
    """Return a verdict whose hint names the variables that may explain a finding of it."""
    if verdict.outcome is not Outcome.FAILED or not any(
        _is_of_environment(finding.setting or verdict.setting, cluster) for finding in verdict.findings
    ):
        return verdict
    why = sentence(unpassed(cluster, shell, _OF_SOFTWARE))
    return replace(verdict, hint=f"{verdict.hint}. {why[:1].upper()}{why[1:]}") if why else verdict


def _is_of_environment(setting: str, cluster: Cluster) -> bool:
    suite, _, key = setting.partition(".")
    section = cluster.sections().get(suite)
    return section is not None and key in section.environment_keys
