"""The section `nccl_examples` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pytest_gpucluster.core.values import OptionalSection


class NcclExamplesConfig(OptionalSection):
    """NCCL's example programs, and a toolchain that compiles for NCCL; `nccl.environment` is the environment."""

    about = "enables NCCL's example programs; requires nvcc, CMake and NCCL's header on the nodes"
    order = 12

    # what compiles the example: nvcc itself, and CMake with nvcc
    toolchain: ClassVar[tuple[str, ...]] = ("nvcc", "cmake")
    # time limit of each compilation
    compile_time: ClassVar[float] = 180
