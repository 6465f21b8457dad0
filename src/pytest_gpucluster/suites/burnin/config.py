"""What a cluster file says of the burn-in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pytest_gpucluster.config.values import Duration, FolderPath, Model, Size

Load = Literal["dcgm", "matmul", "hbm", "copies", "peer", "cpu", "memory", "storage", "nccl"]
Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
Metric = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "hbm", "h2d", "d2h", "peer", "nccl_alone", "nccl_pairs",
    "cpu", "memory", "storage_write", "storage_read",
]  # fmt: skip
ALL: tuple[Load, ...] = ("dcgm", "matmul", "hbm", "copies", "peer", "cpu", "memory", "storage", "nccl")
DTYPES: tuple[Dtype, ...] = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")


class BurninLimit(Model):
    """The hard limit of one rate of the burn-in on one kind of node."""

    metric: Metric = Field(description="data type of the products, or another rate that the burn-in measures")
    drain_below: float = Field(
        gt=0, description="TFLOP/s (int8: TOP/s), GB/s, for cpu units/s: what is below it fails and may drain"
    )
    source: str = Field(description="where the figure comes from, and why no healthy node misses it")


class BurninConfig(Model):
    """How the burnin suite loads the nodes, and what it accepts."""

    environment: str | None = Field(
        None, description="name under `environments` for the step: its python has torch, or its container"
    )
    time: Duration = Field(3600, description="how long, where --burnin-time does not say")
    load: Duration = Field(
        10, description="of one load; less where fewer than three rounds would fit into the time"
    )
    loads: tuple[Load, ...] = Field(ALL, min_length=1, description="which loads")
    dtypes: tuple[Dtype, ...] = Field(
        DTYPES, min_length=1, description="of the products; what a GPU lacks is left out"
    )
    dcgm: int = Field(1, ge=1, le=4, description="level of `dcgmi diag -r`, once, where DCGM is installed")
    dcgm_timeout: Duration = Field(3600, description="of dcgmi; level 3 takes half an hour")
    storage: FolderPath | None = Field("/tmp", description="folder of each node to write to; null: none")  # noqa: S108 - a node's own
    storage_size: Size = Field(2**30, gt=0, description="bytes written and read back a round")
    memory: Size | None = Field(
        None, gt=0, description="bytes; default: a quarter of what is available, 64 GiB at most"
    )
    cpus: int | None = Field(None, ge=1, description="processes on CPUs; default: all CPUs but one a GPU")
    nccl_size: Size = Field(2**30, gt=0, description="message of the all-reduce")
    expect: dict[Metric, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="hard limits, in place of those of profile and card; below them a node may be drained: "
        "bf16: 600 (TFLOP/s), hbm: 3600, h2d: 40, peer, nccl_alone, nccl_pairs, memory, storage_write, storage_read "
        "(GB/s), cpu (units/s)",
    )
    min_relative: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="a GPU this share below the fleet's median, and an outlier, is a straggler",
    )
    min_relative_host: float = Field(
        0.3, gt=0, lt=1, description="the same for copies, NCCL, CPU, memory and storage, which vary more"
    )
    max_temperature: float | None = Field(
        None, gt=0, description="degrees Celsius under load; default: the GPU's own slowdown temperature"
    )
    max_throttled: float = Field(
        0.2, ge=0, le=1, description="share of samples in which heat or the power brake may slow a GPU"
    )
    max_corrected: int = Field(100, ge=0, description="corrected ECC errors of one GPU that are accepted")
    silence: Duration = Field(60, description="a node that says nothing for so long is lost")
    beat: Duration = Field(5, description="how often a node gives a sign of life")
    sample: Duration = Field(2, description="how often temperature, clocks and power are read")
    payload: tuple[str, ...] = Field((), description="command in place of the workers of our payload")

    def load_seconds(self, total: float) -> float:
        """Return seconds for one load, so that about three rounds fit into `total` seconds."""
        return min(self.load, max(0.2, total / 40))
