"""The section `container` of a cluster file."""

from __future__ import annotations

from pydantic import Field

from pytest_gpucluster.core.values import ContainerMount, FolderPath, Image, Size, Text
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig


class ContainerConfig(FrameworkConfig):
    """Pyxis and Enroot: the images that must start."""

    about = "the images that must start with Pyxis and Enroot"
    order = 6
    starts_containers = True

    image: Image | None = Field(
        None,
        description="image of most checks: a .sqsh path or REGISTRY#IMAGE:TAG; default: that of the environment",
    )
    images: tuple[Image, ...] = Field((), description="further images that every node must import")
    release: Text | None = Field(
        None, description="ID VERSION_ID of the image's os-release, like 'ubuntu 24.04'"
    )
    mounts: tuple[ContainerMount, ...] = Field(
        (), description="mounts that must work on every node: SOURCE:TARGET[:FLAGS], like /data:/data:ro"
    )
    version: Text | None = Field(None, description="version of Pyxis or its beginning, like 0.24")
    mount_home: bool = Field(default=False, description="the site mounts the home folder by default")
    rank_hook: bool | None = Field(
        None, description="Enroot's hook 50-slurm-pytorch.sh; true: it must be installed, false: it must not"
    )
    entrypoint_sets: Text | None = Field(None, description="variable that the image's entrypoint sets")
    memlock: Text | None = Field(
        None, description="limit of locked memory in the container, like unlimited; default: that of the node"
    )
    shm: Size | None = Field(
        None, description="lowest size of /dev/shm in the container; default: that of the node"
    )
    min_free: Size = Field(10 * 2**30, description="free space on Enroot's data, cache and temporary paths")
    scratch: FolderPath = Field("/tmp", description="folder on each node for files of the checks")
    save: bool = Field(
        default=True, description="also save a container, which packs the whole image once per node"
    )
    sshd: bool = Field(
        default=False,
        description="the image has sshd, ssh and ssh-keygen: start them in a container as the user, on a port of 127.0.0.1",
    )
    keep: bool = Field(default=False, description="keep imported containers on the nodes for the next run")

    def images_of_steps(self) -> tuple[str, ...]:
        """Return the images that every node must start."""
        return (*((self.image,) if self.image else ()), *self.images)
