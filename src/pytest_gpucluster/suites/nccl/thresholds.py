"""The bounds of the runs on the nodes of one profile: rows of thresholds, hard limits, ceilings, figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.kit.nccl.measurement import GroupKind
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.nccl.baseline import Key
from pytest_gpucluster.suites.nccl.stage import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.config.models import BandwidthThreshold, Profile
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
    from pytest_gpucluster.kit.nccl.nccl_floor import Floor
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun

PAIR = 2
CONDITIONS = ("NCCL_NVLS_ENABLE", "NCCL_HOSTID")  # the variables that a recorded row depends on


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the nodes that share a profile and a number of GPUs.

    `rows`: those of the cluster before those of the profile. `env`: the variables that conditions of rows are compared
    with. `recording`: new rows are measured: the sizes are those of the known ones, and the floor judges.
    """

    rows: tuple[BandwidthThreshold, ...]
    profile: Profile
    config: NcclConfig
    gpus: int
    env: Mapping[str, str]
    recording: bool = False

    def sizes(self, collective: str, nodes: int) -> tuple[int, ...]:
        """Return the sizes that thresholds name for a run; () if none fits."""
        try:
            return nccl_bandwidth.sizes_for(
                self.rows, collective=collective, nodes=nodes, gpus_per_node=self.gpus, env=self.env
            )
        except GpuClusterError:
            return ()

    def judge(
        self, run: NcclRun, *, nodes: int, counted: int, floor: Callable[[int], Floor | str]
    ) -> Verdict:
        """Judge the bandwidth of a valid run. `counted`: the number of nodes that NCCL counts (0: not logged)."""
        limit = nccl_bandwidth.ceiling(
            run.collective,
            nodes=nodes,
            gpus_per_node=self.gpus,
            profile=self.profile,
            nvls=self.env.get("NCCL_NVLS_ENABLE") != "0",
            counted=counted,
        )
        rows = () if self.recording else self.rows
        return nccl_bandwidth.bandwidth(
            run, rows, nodes=nodes, gpus_per_node=self.gpus, env=self.env, limit=limit, floor=floor
        )

    @property
    def settings(self) -> frozenset[str]:
        """The settings, NAME=VALUE, that rows state as conditions."""
        return frozenset(f"{name}={value}" for row in self.rows for name, value in row.conditions.items())

    # --- pairs

    @cached_property
    def pair_row(self) -> BandwidthThreshold | None:
        """The threshold of a pair, None if no row fits."""
        try:
            return nccl_bandwidth.threshold_for(
                self.rows,
                collective=ALONE,
                nodes=PAIR,
                gpus_per_node=self.gpus,
                size=self.config.pair_size,
                env=self.env,
            ).row
        except GpuClusterError:
            return None

    @property
    def expected_of_pairs(self) -> dict[str, float]:
        """{kind of pair: lowest accepted GB/s}; {} if nothing is expected."""
        return {GroupKind.WITHIN.value: self.pair_row.bound} if self.pair_row else {}

    @property
    def hard_limit_of_pairs(self) -> float | None:
        """The hard limit of a pair, GB/s."""
        return self.pair_row.drain_below if self.pair_row else None

    # --- a baseline

    def figures(
        self, runs: Iterable[NcclRun], collective: str, nodes: int, least_size: int
    ) -> dict[Key, list[float]]:
        """Return the bus bandwidths (GB/s) of runs by what a row is for.

        Sizes below `least_size` measure the latency: their bus bandwidth is printed with too few digits.
        """
        conditions = tuple((name, self.env[name]) for name in CONDITIONS if name in self.env)
        found: dict[Key, list[float]] = {}
        for run in runs:
            for row in run.rows:
                if row.out_of_place.busbw and row.size >= least_size:
                    key = Key(collective, nodes, self.gpus, row.size, conditions)
                    found.setdefault(key, []).append(row.out_of_place.busbw)
        return found
