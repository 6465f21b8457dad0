"""The section `matrix` of a cluster file."""

from __future__ import annotations

from pydantic import Field

from pytest_gpucluster.core.values import Duration, Nodes, OptionalSection, Tasks, Text


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
    nodes: Nodes | None = Field(None, description="number of nodes to use; default: all allocated nodes")
    ntasks_per_node: Tasks = Field(
        4,
        description="tasks per node of the CPU and MPI workloads; a launcher that binds all of them to one CPU is as many times slower",
    )
    expected: dict[str, str] = Field(
        {},
        description="ROW-COLUMN: words of the failure that is expected in this cell, like 'srun-mpi: no PMI support'; "
        "any other failure is BROKEN",
    )
    min_ratio: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="lowest accepted rate of a launcher, as a share of the fastest launcher of the same workload",
    )
    deadline: Duration = Field(120, description="time limit of one cell")
