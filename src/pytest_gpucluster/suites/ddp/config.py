"""The section `ddp` of a cluster file."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig, RanksConfig


class DdpConfig(RanksConfig):
    """torch.distributed: rank environment, process groups, a training step."""

    about = "requires torch.distributed"
    order = 8
    removed = MappingProxyType(
        {**FrameworkConfig.removed, "provided": "the suite sets the variables that the site does not set"}
    )

    # a job must end within this time after one of its ranks died
    lost_rank: ClassVar[float] = 60
