"""The section `storage` of a cluster file, and the rows `storage` of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_gpucluster.core.values import (
    Bandwidth,
    Count,
    Duration,
    FolderPath,
    Model,
    ProfileRow,
    Size,
    Text,
)
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30 / 1e9  # GB
Rate = Annotated[Bandwidth, Field(gt=0)]
PerSecond = Annotated[float, Field(gt=0)]


class LocalFigures(Model):
    """What a file system must reach, shared or local."""

    read: Rate | None = Field(
        None, description="sequential read; shared: all nodes together, local: each node"
    )
    write: Rate | None = Field(None, description="sequential write, as `read`")
    read_iops: PerSecond | None = Field(None, description="random reads of 4 KiB per second, as `read`")
    write_iops: PerSecond | None = Field(None, description="random writes of 4 KiB per second, as `read`")
    creates: PerSecond | None = Field(None, description="small files created per second, as `read`")


class Expected(LocalFigures):
    """What a file system must reach; what is not stated is recorded and compared with earlier runs."""

    read_alone: Rate | None = Field(
        None, description="shared: sequential read of one node while the others are idle"
    )
    write_alone: Rate | None = Field(
        None, description="shared: sequential write of one node while the others are idle"
    )


class LocalLimit(ProfileRow, LocalFigures):
    """What one local file system of one kind of node must reach."""

    about = "lowest accepted figures of local file systems"

    path: FolderPath = Field(description="folder of the file system, like /raid, or one above it")
    source: Text = Field(description="origin of the figures")


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
        description="shared: figures of those who sign for clusters, where `expect` states none: together (read: 10 GiB/s, write: 5 GiB/s)",
    )

    def figures(self, limits: Iterable[LocalLimit] = ()) -> dict[str, tuple[float, str]]:
        """Return {figure: (least value, who states it)}; rates in GB/s.

        Shared: of `expect`, else of the preset. Local: of `expect`, else of the profile's rows for its path.
        """
        stated: list[tuple[Model, str]] = [PRESETS[self.preset]] if self.preset else []
        if self.kind == "local":
            stated = [
                (row, f"the profile's row of storage: {row.source}")
                for row in limits
                if f"{self.path}/".startswith(f"{row.path.rstrip('/')}/")
            ]
        found = {
            name: (value, source)
            for known, source in stated
            for name, value in known.model_dump(exclude_none=True, exclude={"path", "source"}).items()
        }
        own = self.expect.model_dump(exclude_none=True)
        return found | {name: (value, f"storage.expect.{name}") for name, value in own.items()}

    @model_validator(mode="after")
    def _local_is_alone(self) -> FileSystem:
        if self.kind == "local" and (self.preset or self.expect.read_alone or self.expect.write_alone):
            raise ValueError("preset, read_alone and write_alone are for kind: shared; use read and write")
        return self


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
