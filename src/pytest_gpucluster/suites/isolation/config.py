"""The section `isolation` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import FolderPath, Section


class IsolationConfig(Section):
    """How the suite tests what isolates jobs from each other."""

    about = "how the isolation suite tests"
    order = 5

    private_folders: tuple[FolderPath, ...] = Field(
        ("/tmp", "/dev/shm"), min_length=1, description="folders that each job has for itself"
    )
    # device files, one per GPU
    device_files: ClassVar[str] = "/dev/nvidia[0-9]*"
    # memory limit of the task that must be ended
    step_memory: ClassVar[int] = 256 * 2**20
    # Python of the nodes, 3.6 or later
    python: ClassVar[str] = "python3"
    # time limit of one step, for a small number of nodes
    deadline: ClassVar[float] = 60
