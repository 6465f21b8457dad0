"""The section `matrix` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import OptionalSection, Text


class MatrixConfig(OptionalSection):
    """The experiment matrix: launchers by workloads. The column MPI uses the section `mpi`, NCCL uses `nccl`."""

    about = "enables the experiment matrix"
    order = 14
    environment_keys = ("container", "framework")

    container: Text | None = Field(
        None,
        description="name under `environments`, with a plain container_image; default: `default`, where it has an image",
    )
    framework: Text | None = Field(
        None,
        description="name under `environments`, with the container_image of a framework, like PyTorch; default: `default`, "
        "where it has an image",
    )
    # tasks per node of the CPU and MPI workloads; a launcher that binds all of them to one CPU is as many times slower
    ntasks_per_node: ClassVar[int] = 4
    expected: dict[str, str] = Field(
        {},
        description="ROW-COLUMN: the failure that is expected in this cell: its code, words that a node printed, or 'no PMI "
        "support'; any other failure is BROKEN",
    )
    # lowest accepted rate of a launcher, as a share of the fastest launcher of the same workload
    min_ratio: ClassVar[float] = 0.5
    # time limit of one cell
    deadline: ClassVar[float] = 120
