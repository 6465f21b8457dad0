"""The section `isolation` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import FolderPath, Program, Section, Text

_DEFAULT = "; default: what Slurm's configuration states"


class IsolationConfig(Section):
    """What a job must be isolated from. Each key: true: required, false: not tested."""

    about = "what isolates jobs from each other, where Slurm's configuration does not state it"
    order = 5

    cpus: bool | None = Field(None, description=f"a job can use its own CPUs only{_DEFAULT}")
    devices: bool | None = Field(None, description=f"a job can open its own GPUs only{_DEFAULT}")
    memory: bool | None = Field(None, description=f"Slurm ends a task above its memory limit{_DEFAULT}")
    tmp: bool | None = Field(None, description=f"each job has its own temporary folders{_DEFAULT}")
    pam_slurm_adopt: bool | None = Field(
        None,
        description="sshd puts a login into the user's job; default: required if most nodes of a group do so",
    )
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
