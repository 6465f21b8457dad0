"""The section `nccl` of a cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import (
    Bandwidth,
    Collective,
    Duration,
    FolderPath,
    Image,
    Nodes,
    Section,
    Text,
    Variable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class NcclConfig(Section):
    """How the nccl suite measures. The keys in brackets are those of the DeepOps slurm-validation playbook."""

    about = "how the nccl suite measures"
    order = 3

    runner: Literal["auto", "nccl-tests", "payload"] = Field(
        "auto",
        description="auto: nccl-tests where the nodes have it, else the bundled payload on torch.distributed",
    )
    launcher: Literal["srun", "mpirun"] = Field(
        "srun", description="program that starts the ranks of nccl-tests"
    )
    mpi: Text | None = Field(None, description="srun --mpi=TYPE, like pmix or pmi2")
    command: str = Field(
        "all_reduce_perf -b 1M -e 4G -f 2 -g 1",
        description="command of the all-reduce test; other collectives replace the program name [allreduce_command]",
    )
    collectives: tuple[Collective, ...] = Field(
        ("all_reduce",), min_length=1, description="collectives to measure"
    )
    environment: str | None = Field(
        None, description="name under `environments`, used for the steps; default: `default`"
    )
    base_container: Image | None = Field(
        None, description="image to compile nccl-tests in, with NCCL and MPI [base_container]"
    )
    container: Image | None = Field(
        None, description="image with nccl-tests: a .sqsh path or a registry image [nccl_tests_container]"
    )
    compile: bool = Field(
        default=False,
        description="compile nccl-tests in base_container and save the result as container [compile_nccl_tests]",
    )
    source: FolderPath | None = Field(
        None, description="folder with the source of nccl-tests, visible on the nodes, for compile"
    )
    cleanup: bool = Field(default=False, description="delete the compiled container at the end [cleanup]")
    gpus_per_node: int | None = Field(
        None, ge=1, description="GPUs to use per node; default: those of the profile [num_gpus]"
    )
    nodes: Nodes | None = Field(
        None, description="number of nodes to use; default: all allocated nodes [num_nodes]"
    )
    exports: dict[Variable, str] = Field(
        {}, description="variables for the ranks, like NCCL_DEBUG [srun_exports]"
    )
    srun_args: tuple[str, ...] = Field((), description="further srun options [srun_options]")
    payload: tuple[str, ...] = Field((), description="command instead of the bundled payload and its Python")
    hostid_from_slurm: bool = Field(
        default=False,
        description="set NCCL_HOSTID to the node name, so that virtual nodes of one host use the network",
    )
    deadline: Duration = Field(
        600, description="time limit of one step; a step that exceeds it counts as hanging"
    )
    # message size of the measurements in pairs
    pair_size: ClassVar[int] = 2**28
    pair_busbw: Bandwidth | None = Field(
        None, gt=0, description="GB/s that a pair of nodes must reach at pair_size"
    )
    pair_drain_below: Bandwidth | None = Field(
        None,
        gt=0,
        description="GB/s; hard limit of a pair at pair_size: a node below it whose partners reach it may be "
        "drained; default: drain_below of the threshold for 2 nodes at pair_size",
    )
    # a pair is suspect when it is below the median of all pairs by this share
    min_relative: ClassVar[float] = 0.15

    def images_of_steps(self) -> tuple[str, ...]:
        """Return the image with nccl-tests, unless the run makes it."""
        return (self.container,) if self.container and not self.compile else ()

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield keys that have no effect without another one, and the reason."""
        if self.compile and not self.container:
            yield "compile", "has no effect without 'container', where the result is saved"
        if "compile" not in self.model_fields_set:  # where it is false, the others wait for it to be true
            for key in ("base_container", "source", "cleanup"):
                if getattr(self, key):
                    yield key, "has no effect without 'compile: true'"
