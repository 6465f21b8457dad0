"""The section `burnin` of a cluster file, and the rows `burnin` of a profile."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pytest_gpucluster.core.values import Duration, FolderPath, ProfileRow, Section

Load = Literal["dcgm", "matmul", "gpu_memory", "hbm", "copies", "peer", "cpu", "memory", "storage", "rdma", "nccl"]
Shape = Literal["steady", "cycles", "bursts"]
Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
Metric = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "hbm", "h2d", "d2h", "peer", "nccl_alone", "nccl_pairs",
    "cpu", "memory", "storage_write", "storage_read", "rdma",
]  # fmt: skip
ALL: tuple[Load, ...] = (
    "dcgm", "matmul", "gpu_memory", "hbm", "copies", "peer", "cpu", "memory", "storage", "nccl"
)  # fmt: skip
GPU_LOADS: tuple[Load, ...] = ("matmul", "gpu_memory", "hbm", "copies", "peer", "nccl")
DTYPES: tuple[Dtype, ...] = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
GPU_METRICS: tuple[str, ...] = (*DTYPES, "hbm")
HOST_METRICS: tuple[str, ...] = (
    "h2d", "d2h", "peer", "nccl_alone", "nccl_pairs", "cpu", "memory", "storage_write", "storage_read", "rdma"
)  # fmt: skip


class BurninLimit(ProfileRow):
    """The hard limit of one rate of the burn-in on one kind of node."""

    about = "hard limits of the burn-in, for GPUs with the name in `gpu`"

    metric: Metric = Field(description="data type of the matrix products, or another rate that the burn-in measures")
    drain_below: float = Field(
        gt=0, description="TFLOP/s (int8: TOP/s), GB/s, or units/s for cpu; a lower rate fails and may drain the node"
    )
    source: str = Field(description="origin of the figure, and why every healthy node reaches it")


class BurninConfig(Section):
    """How the burnin suite loads the nodes, and what it accepts."""

    about = "how the burnin suite loads the nodes"
    order = 5

    environment: str | None = Field(
        None,
        description="name under `environments`, used for the step: its python or container must have torch; default: `default`",
    )
    time: Duration = Field(3600, description="duration; --burnin-time overrides it")
    # duration of one load; shorter if fewer than three rounds would fit into the time
    load: ClassVar[float] = 10
    loads: tuple[Load, ...] = Field(
        ALL, min_length=1, description="loads to run; `rdma` (perftest over all rails) only if listed"
    )
    profile: Shape = Field(
        "steady",
        description="how the GPUs are loaded over time: `steady` heat; `cycles` of heat and "
        "idle; `bursts` that switch all GPUs of all nodes together",
    )
    # heat of a cycle; whole rounds
    cycle_heat: ClassVar[float] = 600
    # idle time of a cycle
    cycle_idle: ClassVar[float] = 300
    # seconds of a burst and the pause after it, which are equally long
    burst_period: ClassVar[float] = 2.0
    # data types of the matrix products; types that a GPU lacks are left out
    dtypes: ClassVar[tuple[Dtype, ...]] = DTYPES
    dcgm: int = Field(1, ge=1, le=4, description="level of `dcgmi diag -r`, once, where DCGM is installed")
    # time limit of dcgmi; level 3 takes half an hour
    dcgm_timeout: ClassVar[float] = 3600
    storage: FolderPath | None = Field(
        "/tmp",  # of the node
        description="folder on each node for the storage load; null: no storage load",
    )
    # bytes written and read back per round
    storage_size: ClassVar[int] = 2**30
    # message size of the all-reduce
    nccl_size: ClassVar[int] = 2**30
    expect: dict[Metric, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="hard limits, instead of those of profile and card; below them a node may be drained: "
        "bf16: 600 (TFLOP/s), hbm: 3600, h2d: 40, peer, nccl_alone, nccl_pairs, memory, storage_write, storage_read, rdma "
        "(GB/s), cpu (units/s)",
    )
    # a GPU is a straggler if it is an outlier and below the median of all GPUs by this share
    min_relative: ClassVar[float] = 0.1
    # the same for copies, NCCL, CPU, memory and storage
    min_relative_host: ClassVar[float] = 0.3
    # accepted share of samples in which heat or the power brake slows a GPU
    max_throttled: ClassVar[float] = 0.2
    # accepted corrected ECC errors per GPU
    max_corrected: ClassVar[int] = 100
    # a node that sends nothing for this time counts as lost
    silence: ClassVar[float] = 60
    # interval of a node's heartbeat
    beat: ClassVar[float] = 5
    # interval between readings of temperature, clocks and power
    sample: ClassVar[float] = 2

    def load_seconds(self, total: float) -> float:
        """Return seconds for one load, so that about three rounds fit into `total` seconds."""
        return min(self.load, max(0.2, total / 50))
