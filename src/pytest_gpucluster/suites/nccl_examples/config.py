"""The section `nccl_examples` of a cluster file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_gpucluster.core.values import Duration, NamedNodes, OptionalSection


class NcclExamplesConfig(OptionalSection):
    """A toolchain on the nodes that compiles programs for NCCL; `nccl.environment` is the environment."""

    about = "requires nvcc, and NCCL's header, on the nodes"
    order = 12

    toolchain: tuple[Literal["nvcc", "cmake"], ...] = Field(
        ("nvcc", "cmake"),
        min_length=1,
        description="what compiles the example: nvcc itself, and CMake with nvcc",
    )
    nodes: NamedNodes | None = Field(
        None, description="hostlist of the nodes with the toolchain; default: all nodes with GPUs"
    )
    compile_time: Duration = Field(180, description="time limit of each compilation")
