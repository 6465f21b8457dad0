"""The keys that the sections of all frameworks share."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Nodes, OptionalSection, Text


class FrameworkConfig(OptionalSection):
    """A framework that must work on the nodes."""

    environment: Text | None = Field(
        None, description="name under `environments`, used for the steps; default: `default`"
    )
    nodes: Nodes | None = Field(None, description="number of nodes to use; default: all allocated nodes")
    # time limit of one step
    deadline: ClassVar[float] = 300
    # tasks per node where no GPU determines them
    without_gpus: ClassVar[int] = 2


class RanksConfig(FrameworkConfig):
    """A framework with one process per GPU."""

    ntasks_per_node: ClassVar[str] = "one per GPU, or 2"
