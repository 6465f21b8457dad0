"""The section `storage` of a cluster file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_gpucluster.core.values import Bandwidth, Count, Duration, FolderPath, Model, Size, Text
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig

GIB = 2**30 / 1e9  # GB
Rate = Annotated[Bandwidth, Field(gt=0)]
PerSecond = Annotated[float, Field(gt=0)]


class Expected(Model):
    """What a file system must reach; what is not stated is recorded and compared with earlier runs."""

    read: Rate | None = Field(
        None, description="sequential read; shared: all nodes together, local: each node"
    )
    write: Rate | None = Field(None, description="sequential write, as `read`")
    read_alone: Rate | None = Field(None, description="sequential read of one node while the others are idle")
    write_alone: Rate | None = Field(
        None, description="sequential write of one node while the others are idle"
    )
    read_iops: PerSecond | None = Field(None, description="random reads of 4 KiB per second, as `read`")
    write_iops: PerSecond | None = Field(None, description="random writes of 4 KiB per second, as `read`")
    creates: PerSecond | None = Field(None, description="small files created per second, as `read`")


# preset -> (its figures, their source)
PRESETS = {
    "together": (
        Expected(read=10 * GIB, write=5 * GIB),
        "Together AI, acceptance of shared storage: at least 10 GiB/s read and 5 GiB/s write",
    ),
}


class FileSystem(Model):
    """One file system, by a folder on it in which the user may write."""

    path: FolderPath = Field(
        description="folder on each node; a run creates its own folder in it, and removes that"
    )
    kind: Literal["shared", "local"] = Field(
        "shared", description="shared: all nodes see the same files; local: a disk of each node"
    )
    expect: Expected = Field(Expected(), description="figures that must be reached, like {read: 10 GB/s}")
    preset: Literal["together"] | None = Field(
        None,
        description="figures of those who sign for clusters, where `expect` states none: together (read: 10 GiB/s, write: 5 GiB/s)",
    )

    def figures(self) -> dict[str, tuple[float, str]]:
        """Return {figure: (least value, who states it)}; rates in GB/s."""
        known, source = PRESETS[self.preset] if self.preset else (Expected(), "")
        preset = {name: (value, source) for name, value in known.model_dump(exclude_none=True).items()}
        own = self.expect.model_dump(exclude_none=True)
        return preset | {name: (value, f"storage.expect.{name}") for name, value in own.items()}


class StorageConfig(FrameworkConfig):
    """Shared and local file systems."""

    about = "which file systems the storage suite tests"
    order = 6

    deadline: Duration = Field(600, description="time limit of the step")
    filesystems: tuple[FileSystem, ...] = Field(min_length=1, description="the file systems to test")
    budget: Size = Field(
        16 * 2**30, gt=0, description="most bytes that all nodes together write to one file system"
    )
    max_use: float = Field(
        0.9, gt=0, lt=1, description="share of a file system above which nothing is written"
    )
    files: Count = Field(
        10_000, ge=1, description="small files of all nodes together; N-013 of NVIDIA lists 1000000"
    )
    imports: tuple[Text, ...] = Field(
        (), description="modules of python3 to import on all nodes at once, like [torch]"
    )
    # most seconds of each measurement
    seconds: ClassVar[float] = 3.0
    # a node is an outlier only if it is slower than the median by this share
    min_relative: ClassVar[float] = 0.3

    @model_validator(mode="after")
    def _each_path_once(self) -> StorageConfig:
        paths = [one.path for one in self.filesystems]
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise ValueError(f"filesystems: {twice[0]} is named twice")
        return self
