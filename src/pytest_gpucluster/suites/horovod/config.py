"""The section `horovod` of a cluster file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.kit.framework.framework_config import RanksConfig


class HorovodConfig(RanksConfig):
    """Horovod on PyTorch and TensorFlow, with the gloo controller."""

    about = "requires Horovod"
    order = 9

    frameworks: tuple[Literal["pytorch", "tensorflow"], ...] = Field(
        ("pytorch",), min_length=1, description="frameworks that Horovod must be built for; each is tested"
    )
    # controller that Horovod must be built with, and that jobs use
    controller: ClassVar[str] = "gloo"
    launchers: tuple[Literal["srun", "horovodrun"], ...] | None = Field(
        None,
        min_length=1,
        description="launchers that must start jobs; default: srun, and horovodrun where ssh works between nodes",
    )
