"""The section `ddp` of a cluster file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.kit.framework.framework_config import RanksConfig

RankVariable = Literal["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]


class DdpConfig(RanksConfig):
    """torch.distributed: rank environment, process groups, a training step."""

    about = "requires torch.distributed"
    order = 8

    provided: tuple[RankVariable, ...] = Field(
        (),
        description="variables that the site's Pyxis, hooks or prologs must set; the suite sets the others",
    )
    # a job must end within this time after one of its ranks died
    lost_rank: ClassVar[float] = 60
