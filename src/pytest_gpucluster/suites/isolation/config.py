"""The section `isolation` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import FolderPath, Program, Section, Text


class IsolationConfig(Section):
    """How the suite tests what isolates jobs from each other."""

    about = "how the isolation suite tests"
    order = 5

    private_folders: tuple[FolderPath, ...] = Field(
        ("/tmp", "/dev/shm"), min_length=1, description="folders that each job has for itself"
    )
    device_files: tuple[FolderPath, ...] = Field(
        ("/dev/nvidia[0-9]*",), min_length=1, description="patterns of device files, one file per GPU"
    )
    # memory limit of the task that must be ended
    step_memory: ClassVar[int] = 256 * 2**20
    ssh_options: tuple[Text, ...] = Field(
        (), description="further options of ssh for logins to the nodes, like [-i, ~/.ssh/id_test]"
    )
    python: Program = Field("python3", description="Python of the nodes, 3.6 or later")
    # time limit of one step, for a small number of nodes
    deadline: ClassVar[float] = 60
