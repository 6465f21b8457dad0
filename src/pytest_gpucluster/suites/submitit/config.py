"""The section `submitit` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import FolderPath, OptionalSection, Text


class SubmititConfig(OptionalSection):
    """submitit: functions as Slurm jobs, submitted where pytest runs."""

    about = "requires submitit"
    order = 12

    environment: Text | None = Field(
        None, description="name under `environments`, used for the jobs; default: `default`"
    )
    folder: FolderPath | None = Field(
        None, description="folder shared by this machine and all nodes; default: the first of os.shared_storage"
    )
    # the jobs must end within this time once the nodes are free
    wait: ClassVar[float] = 120
