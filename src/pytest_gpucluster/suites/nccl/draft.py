"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.yaml_loader import clip

if TYPE_CHECKING:
    from pytest_gpucluster.core.survey import Survey

PREFERRED = ("pmix", "pmi2", "cray_shasta")  # what Open MPI understands before what MPICH does


def lines(survey: Survey) -> list[str]:
    """Say how the ranks of nccl-tests find each other."""
    pmi = survey.pmi
    if pmi is None:
        return ["", "# how srun starts the ranks of nccl-tests: srun --mpi=list", "# nccl: {mpi: pmix}"]
    found = f"# srun --mpi=list: {clip(', '.join(pmi.types) or 'none', 200)}; MpiDefault={clip(pmi.default or 'none')}"
    if pmi.default:
        return ["", f"{found}, which starts the ranks of nccl-tests", "# nccl: {mpi: TYPE}  # another type"]
    best = next((kind for kind in PREFERRED if kind in pmi.types), "")
    if best:
        hint = "# pmix is for Open MPI, pmi2 for MPICH and its kin: use the one that nccl-tests is built with"
        return ["", found, hint, f"nccl: {{mpi: {best}}}"]
    return ["", f"{found}: srun starts no MPI program here", "nccl: {launcher: mpirun}"]
