"""What `gpucluster init` finds on a running cluster; from it suites draft their sections of the cluster file. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pmi:
    """How srun may start MPI programs: the types of `srun --mpi=list`, and slurm.conf's MpiDefault ('' for none)."""

    types: tuple[str, ...]
    default: str = ""


@dataclass(frozen=True)
class Survey:
    """The argument of `Suite.draft`. `pmi`: None where srun was not run."""

    pmi: Pmi | None = None
