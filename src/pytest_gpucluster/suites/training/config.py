"""The section `training` of a cluster file, and the rows `training` of a profile."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import FolderPath, ProfileRow
from pytest_gpucluster.kit.framework.framework_config import RanksConfig

Mode = Literal["plain", "ddp", "fsdp"]
Share = Annotated[float, Field(gt=0, le=1)]


class TrainingLimit(ProfileRow):
    """The lowest MFU of one mode and model size on one kind of node."""

    about = "lowest accepted MFU of the training step, for GPUs with the name in `gpu`"

    mode: Mode = Field(description="plain: one GPU without collectives; ddp, fsdp: the ranks of one group")
    # model size for which the figure holds
    model: ClassVar[str] = "large"
    max_gpus: int | None = Field(None, ge=1, description="GPUs in the group; default: any number")
    mfu: Share = Field(description="model FLOP/s as a share of the GPU's dense peak")
    source: str = Field(description="origin of the figure")


class TrainingConfig(RanksConfig):
    """A short pre-training of a transformer: speed, equal results, checkpoints."""

    about = "requires torch.distributed for a training step"
    order = 12

    # time limit of one step; a phase may take a third of it
    deadline: ClassVar[float] = 900
    # timed training steps per mode
    steps: ClassVar[int] = 20
    # training steps before the timed ones
    warmup: ClassVar[int] = 5
    # deterministic steps that are compared bit by bit
    replay_steps: ClassVar[int] = 3
    checkpoint: FolderPath | None = Field(
        None, description="folder on storage that all nodes share; without it no checkpoint is written"
    )
    # most bytes of a checkpoint, all ranks together
    checkpoint_size: ClassVar[int] = 4 * 2**30
    # accepted relative distance between equal loss curves
    loss_tolerance: ClassVar[Share] = 0.01
    # a rank is a straggler if it is an outlier and slower than the median by this share (GPUs)
    min_relative: ClassVar[Share] = 0.1
