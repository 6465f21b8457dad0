"""The section `os` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Count, FolderPath, Model, Program, Section, Size, SystemName, Text


class MountConfig(Model):
    """A file system that every node must have mounted."""

    path: FolderPath = Field(description="where it is mounted")
    fstype: Text | None = Field(None, description="type of the file system, like nfs4")
    source: Text | None = Field(None, description="what is mounted, like nas:/export/home")
    options: tuple[Text, ...] = Field((), description="mount options that must be there, like rw or noatime")
    min_free: Size | None = Field(
        None, description="free space; default for /, /tmp and /dev/shm: 1 GiB or a tenth, whichever is less"
    )


class OsConfig(Section):
    """Requirements for the operating system of every node. Keys left out are compared between the nodes."""

    about = "requirements for the operating system of every node"
    order = 1

    release: Text | None = Field(None, description="ID VERSION_ID of os-release, like 'ubuntu 22.04'")
    kernel: Text | None = Field(None, description="uname -r, or a prefix that ends in *")
    # largest difference from the median of all nodes
    max_clock_skew: ClassVar[float] = 1.0
    governor: Text | None = Field(None, description="CPU frequency governor, like performance")
    limits: dict[str, str] = Field({}, description="lowest ulimit values in a step, like memlock: unlimited")
    sysctls: dict[SystemName, str] = Field({}, description="sysctl name: exact value")
    interfaces: dict[Program, Count] = Field(
        {}, description="network interface: its MTU in bytes; the interface must be up"
    )
    mounts: tuple[MountConfig, ...] = Field((), description="file systems that must be mounted on every node")
    shared_storage: tuple[FolderPath, ...] = Field((), description="writable folders that all nodes share")
    packages: dict[SystemName, str] = Field({}, description="package: version prefix, or '' for any")
    services: tuple[SystemName, ...] = Field((), description="systemd units that must be active")
    # 1-minute load of an idle node, per CPU
    max_load_per_cpu: ClassVar[float] = 1.0
    # accepted number of zombie processes
    max_zombies: ClassVar[int] = 0
    drift: tuple[Text, ...] = Field((), description="further commands whose output must be the same on all nodes")
