"""The section `ray` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Program
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig


class RayConfig(FrameworkConfig):
    """Ray: head and workers as steps of one allocation."""

    about = "requires Ray"
    order = 10
    cpus: ClassVar[int | None] = None  # of each node; None: those of Slurm
    gpus: ClassVar[int | None] = None

    interface: Program | None = Field(None, description="network interface; default: the interface between the nodes")
    # folder on each node for Ray's session; the path must be short
    temp: ClassVar[str] = "/tmp"
    # time limit for head and workers to start
    join: ClassVar[float] = 60
    # time limit for workers to end after the head is lost
    leave: ClassVar[float] = 60
