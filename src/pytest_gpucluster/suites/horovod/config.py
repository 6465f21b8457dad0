"""The section `horovod` of a cluster file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_gpucluster.core.values import Program, Text
from pytest_gpucluster.kit.framework.framework_config import RanksConfig


class HorovodConfig(RanksConfig):
    """Horovod on PyTorch and TensorFlow, with gloo and MPI controllers."""

    about = "requires Horovod"
    order = 9

    frameworks: tuple[Literal["pytorch", "tensorflow"], ...] = Field(
        ("pytorch",), min_length=1, description="frameworks that Horovod must be built for; each is tested"
    )
    controllers: tuple[Literal["gloo", "mpi"], ...] = Field(
        ("gloo",), min_length=1, description="controllers that Horovod must be built with; each is tested"
    )
    operations: tuple[Literal["nccl", "mpi", "gloo", "ccl", "ddl"], ...] | None = Field(
        None,
        min_length=1,
        description="tensor operations that the build must have; default: nccl if the profile has GPUs, else gloo",
    )
    launchers: tuple[Literal["srun", "horovodrun"], ...] | None = Field(
        None,
        min_length=1,
        description="launchers that must start jobs; default: srun, and horovodrun with gloo where ssh works between nodes",
    )
    interface: Program | None = Field(
        None, description="network interface; default: the interface between the nodes"
    )
    mpi: Text = Field("pmix", description="srun --mpi=TYPE of the MPI controller")
