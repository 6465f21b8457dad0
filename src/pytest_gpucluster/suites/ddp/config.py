"""The section `ddp` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pytest_gpucluster.kit.framework.framework_config import RanksConfig


class DdpConfig(RanksConfig):
    """torch.distributed: rank environment, process groups, a training step."""

    about = "requires torch.distributed"
    order = 8

    # a job must end within this time after one of its ranks died
    lost_rank: ClassVar[float] = 60
