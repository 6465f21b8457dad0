"""The section `container` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import ContainerMount, Image, Size, Text
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig


class ContainerConfig(FrameworkConfig):
    """Pyxis and Enroot: the image that must start."""

    about = "the image that must start with Pyxis and Enroot"
    order = 6
    starts_containers = True

    image: Image | None = Field(
        None, description="image of most checks: a .sqsh path or REGISTRY#IMAGE:TAG; default: that of the environment"
    )
    release: Text | None = Field(None, description="ID VERSION_ID of the image's os-release, like 'ubuntu 24.04'")
    mounts: tuple[ContainerMount, ...] = Field(
        (), description="mounts that must work on every node: SOURCE:TARGET[:FLAGS], like /data:/data:ro"
    )
    min_free: Size = Field(10 * 2**30, description="free space on Enroot's data, cache and temporary paths")
    # folder on each node for files of the checks
    scratch: ClassVar[str] = "/tmp"

    def images_of_steps(self) -> tuple[str, ...]:
        """Return the image that every node must start."""
        return (self.image,) if self.image else ()
