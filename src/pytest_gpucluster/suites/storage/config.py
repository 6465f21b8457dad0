"""The section `storage` of a cluster file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_gpucluster.core.values import Bandwidth, FolderPath, Model, Size, Text
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig

Rate = Annotated[Bandwidth, Field(gt=0)]
PerSecond = Annotated[float, Field(gt=0)]


class Expected(Model):
    """What a file system must reach, shared or local; what is not stated is recorded and compared with earlier runs."""

    read: Rate | None = Field(None, description="sequential read; shared: all nodes together, local: each node")
    write: Rate | None = Field(None, description="sequential write, as `read`")
    read_iops: PerSecond | None = Field(None, description="random reads of 4 KiB per second, as `read`")
    write_iops: PerSecond | None = Field(None, description="random writes of 4 KiB per second, as `read`")
    creates: PerSecond | None = Field(None, description="small files created per second, as `read`")


class FileSystem(Model):
    """One file system, by a folder on it in which the user may write."""

    path: FolderPath = Field(description="folder on each node; a run creates its own folder in it, and removes that")
    kind: Literal["shared", "local"] = Field(
        "shared", description="shared: all nodes see the same files; local: a disk of each node"
    )
    expect: Expected = Field(Expected(), description="figures that must be reached, like {read: 10 GB/s}")

    @property
    def figures(self) -> dict[str, float]:
        """{figure: least value}; rates in GB/s."""
        return self.expect.model_dump(exclude_none=True)


class StorageConfig(FrameworkConfig):
    """Shared and local file systems."""

    about = "which file systems the storage suite tests"
    order = 6

    # time limit of the step
    deadline: ClassVar[float] = 600
    filesystems: tuple[FileSystem, ...] = Field(min_length=1, description="the file systems to test")
    imports: tuple[Text, ...] = Field((), description="modules of python3 to import on all nodes at once, like [torch]")
    budget: Size = Field(16 * 2**30, gt=0, description="most bytes that all nodes together write to one file system")
    # share of a file system above which nothing is written
    max_use: ClassVar[float] = 0.9
    # small files of all nodes together; N-013 of NVIDIA lists 1000000
    files: ClassVar[int] = 10_000
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
