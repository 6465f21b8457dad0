"""The section `nccl_examples` of a cluster file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import OptionalSection


class NcclExamplesConfig(OptionalSection):
    """NCCL's example programs, and a toolchain that compiles for NCCL; `nccl.environment` is the environment."""

    about = "enables NCCL's example programs; requires nvcc, and NCCL's header, on the nodes unless `toolchain` is null"
    order = 12

    toolchain: tuple[Literal["nvcc", "cmake"], ...] | None = Field(
        ("nvcc", "cmake"),
        description="what compiles the example: nvcc itself, and CMake with nvcc; null: nothing is compiled",
    )
    # time limit of each compilation
    compile_time: ClassVar[float] = 180
