"""The section `horovod` of a cluster file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
    launchers: tuple[Literal["srun", "horovodrun"], ...] | None = Field(
        None,
        min_length=1,
        description="launchers that must start jobs; default: srun, and horovodrun with gloo where ssh works between nodes",
    )
