"""Facts of the training payload, by rank. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.gpu.gpu_peaks import figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

MODES = ("plain", "ddp", "fsdp")
# torch's name of a type: that of the peak
_PEAK = {"bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class RankInfo:
    """One rank of a step. `alike`: results of ranks with the same value are equal bit by bit.

    `size`: ranks in its group; `others`: foreign processes on its GPU, None if they are not known.
    """

    rank: int
    node: str
    name: str
    bus: str
    uuid: str
    model: str
    alike: str
    dtype: str
    size: int
    others: tuple[str, ...] | None

    @property
    def setup(self) -> tuple[str, str]:
        """What ranks must have in common to be compared."""
        return self.alike, self.model

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return bool(self.bus or self.uuid)

    def part(self, *, node: bool = False) -> Part:
        """Return the rank as a part of its GPU, and of its node if `node`."""
        of = Part("node", name=self.node) if node else None
        gpu = Part("gpu", name=self.uuid, address=self.bus, of=of) if self.on_gpu else of
        return Part("rank", self.rank, of=gpu)

    @property
    def label(self) -> str:
        """Like 'rank 3 (GPU 0000:9d:00, GPU-c12b...)'."""
        gpu = ", ".join(filter(None, (self.bus, self.uuid)))
        return f"rank {self.rank} (GPU {gpu})" if gpu else f"rank {self.rank}"

    @property
    def full_label(self) -> str:
        """The label with the node."""
        return f"{self.label} on {self.node}"

    @property
    def peak(self) -> float | None:
        """The dense peak in TFLOP/s, of the data sheet; None if unknown."""
        figures = figures_of(self.name) if self.on_gpu else None
        return figures.tflops.get(_PEAK.get(self.dtype, "")) if figures else None


@dataclass(frozen=True)
class TrainedMode:
    """One rank in one mode: seconds of the timed steps and of its own work in them, and all losses."""

    rank: RankInfo
    steps: tuple[float, ...]
    compute: tuple[float, ...]
    losses: tuple[float, ...]
    tokens: int
    flops: float
    before: str
    after: str

    @property
    def median(self) -> float:
        """Seconds of the median step."""
        return statistics.median(self.steps)

    @property
    def p95(self) -> float:
        """Seconds that 95% of the steps do not exceed."""
        return sorted(self.steps)[max(0, -(-95 * len(self.steps) // 100) - 1)]

    @property
    def busy(self) -> float | None:
        """Seconds of the rank's own work in the median step, before it waits for others; None if not measured."""
        return statistics.median(self.compute) if self.compute else None

    @property
    def rate(self) -> float:
        """Tokens/s of the rank."""
        return self.tokens / self.median

    @property
    def tflops(self) -> float:
        """TFLOP/s of the rank."""
        return self.flops / self.median / 1e12


def ranks_of(result: PayloadResult) -> Mapping[int, RankInfo]:
    """Return {rank: its device and group} of all ranks that joined their group."""
    return result.once(_ranks)


def ranks_on(result: PayloadResult, node: str) -> Sequence[RankInfo]:
    """Return the ranks of a node that joined their group."""
    return result.once(_ranks_by_node).get(node, ())


def _ranks_by_node(result: PayloadResult) -> Mapping[str, list[RankInfo]]:
    return grouped((rank.node, rank) for rank in ranks_of(result).values())


def _ranks(result: PayloadResult) -> Mapping[int, RankInfo]:
    devices = {rank: fact["device"] for rank, fact in result.by_rank("loaded").items()}
    found = {}
    for rank, fact in result.by_rank("joined").items():
        device = devices.get(rank, {"name": "", "bus": "", "uuid": ""})
        others = None if fact["others"] is None else tuple(fact["others"])
        found[rank] = RankInfo(
            rank, fact["node"], device["name"], device["bus"], device["uuid"], fact["model"],
            fact["alike"], fact["dtype"], int(fact["size"]), others,
        )  # fmt: skip
    return found


def trained_in(result: PayloadResult, mode: str) -> Mapping[int, TrainedMode]:
    """Return {rank: what it measured in this mode}."""
    return result.once(_trained_in, mode)


def trained_on(result: PayloadResult, mode: str, node: str) -> Sequence[TrainedMode]:
    """Return what the ranks of a node measured in this mode."""
    return trained_by_node(result, mode).get(node, ())


def trained_by_node(result: PayloadResult, mode: str) -> Mapping[str, Sequence[TrainedMode]]:
    """Return {node: what its ranks measured in this mode}."""
    return result.once(_trained_by_node, mode)


def _trained_by_node(result: PayloadResult, mode: str) -> Mapping[str, list[TrainedMode]]:
    return grouped((run.rank.node, run) for run in trained_in(result, mode).values())


def _trained_in(result: PayloadResult, mode: str) -> Mapping[int, TrainedMode]:
    ranks, found = ranks_of(result), {}
    for fact in result.facts("trained"):
        if fact["mode"] == mode and (rank := ranks.get(int(fact["rank"]))):
            found[rank.rank] = TrainedMode(
                rank, tuple(fact["steps"]), tuple(fact["compute"]), tuple(fact["losses"]), int(fact["tokens"]),
                float(fact["flops"]), fact["before"], fact["after"],
            )  # fmt: skip
    return found


def mean_curve(ranks: Sequence[TrainedMode]) -> tuple[float, ...]:
    """Return the loss of each step, the mean over ranks: the curve of their group."""
    return tuple(statistics.fmean(losses) for losses in zip(*(one.losses for one in ranks), strict=True))


def distances(curves: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return {name: largest relative distance of its curve from the median curve}, the farthest first; infinite for NaN."""
    middle = [statistics.median(values) for values in zip(*curves.values(), strict=True)]
    apart = {name: distance(curve, middle) for name, curve in curves.items()}
    return dict(sorted(apart.items(), key=lambda pair: -pair[1]))


def distance(curve: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative distance between two curves; infinite if a value is not a number."""
    apart = [abs(one - other) / abs(other) if other else abs(one) for one, other in zip(curve, reference, strict=True)]
    return max((it if it == it else float("inf") for it in apart), default=0.0)  # noqa: PLR0124 (NaN)
