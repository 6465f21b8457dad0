"""The section `ray` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Duration, FolderPath, Program
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig


class RayConfig(FrameworkConfig):
    """Ray: head and workers as steps of one allocation."""

    about = "requires Ray"
    order = 10

    cpus: int | None = Field(None, ge=1, description="CPUs for Ray per node; default: those of Slurm")
    gpus: int | None = Field(None, ge=0, description="GPUs for Ray per node; default: those of Slurm")
    interface: Program | None = Field(
        None, description="network interface; default: the interface between the nodes"
    )
    port: int | None = Field(
        None, ge=1024, le=32000, description="first port of the head, the others follow; default: free ports"
    )
    temp: FolderPath = Field(
        "/tmp",
        max_length=20,
        description="folder on each node for Ray's session; the path must be short",
    )
    token: bool = Field(default=True, description="start Ray with token authentication (Ray 2.52 and later)")
    join: Duration = Field(60, description="time limit for head and workers to start")
    # time limit for workers to end after the head is lost
    leave: ClassVar[float] = 60
