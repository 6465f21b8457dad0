"""The keys that the sections of all frameworks share."""

from __future__ import annotations

from pydantic import Field

from pytest_gpucluster.core.values import Duration, Nodes, OptionalSection, Tasks, Text


class FrameworkConfig(OptionalSection):
    """A framework that must work on the nodes."""

    environment: Text | None = Field(
        None, description="name under `environments`, used for the steps; default: `default`"
    )
    nodes: Nodes | None = Field(None, description="number of nodes to use; default: all allocated nodes")
    ntasks_per_node: Tasks | None = Field(
        None, description="tasks per node; default: one per GPU, or two without GPUs"
    )
    deadline: Duration = Field(300, description="time limit of one step")
