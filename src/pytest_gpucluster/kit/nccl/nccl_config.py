"""The section `nccl` of a cluster file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import Collective, Section, Text


class NcclConfig(Section):
    """How the nccl suite measures."""

    about = "how the nccl suite measures"
    order = 3

    runner: Literal["auto", "nccl-tests", "payload"] = Field(
        "auto", description="auto: nccl-tests where the nodes have it, else the bundled payload on torch.distributed"
    )
    launcher: Literal["srun", "mpirun"] = Field("srun", description="program that starts the ranks of nccl-tests")
    mpi: Text | None = Field(None, description="srun --mpi=TYPE, like pmix or pmi2")
    command: str = Field(
        "all_reduce_perf -b 1M -e 4G -f 2 -g 1",
        description="command of the all-reduce test; other collectives replace the program name",
    )
    collectives: tuple[Collective, ...] = Field(("all_reduce",), min_length=1, description="collectives to measure")
    environment: str | None = Field(
        None, description="name under `environments`, used for the steps; default: `default`"
    )
    payload: tuple[str, ...] = Field((), description="command instead of the bundled payload and its Python")
    # time limit of one step; a step that exceeds it counts as hanging
    deadline: ClassVar[float] = 600
    # message size of the measurements in pairs
    pair_size: ClassVar[int] = 2**28
    # a pair is suspect when it is below the median of all pairs by this share
    min_relative: ClassVar[float] = 0.15
