"""The section `mpi` of a cluster file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import Bandwidth, FolderPath, Program
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig

Launcher = Annotated[str, Field(pattern=r"^(mpirun|srun( --mpi=[\w.]+)?)$")]


class MpiConfig(FrameworkConfig):
    """MPI by mpirun and by srun."""

    about = "requires MPI"
    order = 7

    launchers: tuple[Launcher, ...] = Field(
        ("mpirun", "srun"),
        min_length=1,
        description="launchers that must start MPI programs: mpirun, 'srun --mpi=TYPE', or srun with the type of the "
        "environment or Slurm's MpiDefault",
    )
    languages: tuple[Literal["c", "python"], ...] = Field(
        ("c",), min_length=1, description="c: compiled on the nodes or in the image; python: mpi4py"
    )
    mpirun: Program = Field(
        "mpirun", description="name or path of mpirun; mpicc is searched in the folder of a path, then on PATH"
    )
    # thread level that the MPI library must provide
    threads: ClassVar[str] = "funneled"
    max_latency: float | None = Field(
        None, gt=0, description="highest latency between nodes in microseconds, one direction, 8 bytes"
    )
    min_bandwidth: Bandwidth | None = Field(
        None, gt=0, description="lowest bandwidth between nodes in GB/s, one direction, 4 MiB"
    )
    scratch: FolderPath = Field(
        "/tmp", description="folder on each node for the compiled program; must not be mounted noexec"
    )
