"""NCCL's three example programs."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    by_profile=("nccl_examples.*",),
    order=14,
    markers=("nccl_examples: NCCL's three example programs, one or many devices per process",),
    section="config:NcclExamplesConfig",
    proof=("nccl_examples.one_process", "nccl_examples.*_device*", "nccl_examples.compiled*"),
    needs=("nvcc", "cmake"),
    stated="that the nodes are for compiling programs of NCCL",
)
