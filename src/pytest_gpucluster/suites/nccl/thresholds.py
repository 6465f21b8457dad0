"""The bounds of the runs on the nodes of one profile, and the judgement of runs by them, or by the floor of their links."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.kit.nccl.measurement import Bound, GroupKind
from pytest_gpucluster.kit.nccl.nccl_floor import Floor, Route
from pytest_gpucluster.kit.nccl.nccl_step import DOMAIN
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.nccl.baseline import Key
from pytest_gpucluster.suites.nccl.stage import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.config.models import BandwidthThreshold, Profile
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
    from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
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
            return nccl_bandwidth.sizes_for(self.rows, self._key(collective, nodes), self.env)
        except GpuClusterError:
            return ()

    def without_domain(self) -> Thresholds:
        """Return the thresholds of runs without NVLink between nodes: only rows that state this condition."""
        rows = tuple(row for row in self.rows if row.conditions.get(DOMAIN) == "0")
        return replace(self, rows=rows, env={**self.env, DOMAIN: "0"})

    def _key(self, collective: str, nodes: int) -> nccl_bandwidth.RunKey:
        return {"collective": collective, "nodes": nodes, "gpus_per_node": self.gpus}

    @property
    def settings(self) -> frozenset[str]:
        """The settings, NAME=VALUE, that rows state as conditions."""
        return frozenset(f"{name}={value}" for row in self.rows for name, value in row.conditions.items())

    # --- pairs

    @cached_property
    def pair_row(self) -> BandwidthThreshold | None:
        """The threshold of a pair, None if no row fits."""
        try:
            key = {**self._key(ALONE, PAIR), "size": self.config.pair_size}
            return nccl_bandwidth.threshold_for(self.rows, key, self.env).row
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

    def figures(self, runs: Iterable[NcclRun], collective: str, nodes: int, least_size: int) -> dict[Key, list[float]]:
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


@dataclass
class BandwidthJudge:
    """Judges the bandwidth of valid runs on the nodes of one allocation.

    `floor_of` returns the floor of (collective, size, nodes, route), or why it is unknown; `route_of` the route of
    (profile, log, node of each rank). `floors`: the figures that no row judged: {(collective, nodes): [(GB/s, floor)]}.
    """

    thresholds: Thresholds
    floor_of: Callable[[str, int, Iterable[str], Route], Floor | str]
    route_of: Callable[..., Route]
    floors: dict[tuple[str, int], list[tuple[float, Floor]]] = field(default_factory=dict)

    def alone(self, run: NcclRun, node: str) -> Verdict:
        """Judge the run of one node."""
        return self._judge(run, (node,), Route())

    def whole(self, run: NcclRun, nodes: tuple[str, ...], step: NcclMeasurement) -> Verdict:
        """Judge a run over several nodes with the thresholds of these nodes."""
        route = self.route_of(self.thresholds.profile, step.log, step.node_of_rank)
        return self._judge(run, nodes, route, counted=step.log.nodes)

    def _judge(self, run: NcclRun, nodes: tuple[str, ...], route: Route, *, counted: int = 0) -> Verdict:
        def floor(size: int) -> Floor | str:
            found = self.floor_of(run.collective, size, nodes, route)
            value = nccl_bandwidth.measured(run, size)
            if isinstance(found, Floor) and value is not None:
                self.floors.setdefault((run.collective, len(nodes)), []).append((value, found))
            return found

        its, count, gpus = self.thresholds, len(nodes), self.thresholds.gpus
        nvls = its.env.get("NCCL_NVLS_ENABLE") != "0"
        limit = nccl_bandwidth.ceiling(
            run.collective, nodes=count, gpus_per_node=gpus, profile=its.profile, nvls=nvls, counted=counted
        )
        rows = () if its.recording else its.rows
        return nccl_bandwidth.bandwidth(
            run, rows, nodes=count, gpus_per_node=gpus, env=its.env, limit=limit, floor=floor
        )

    def judged_by_floor(self, collective: str, nodes: int) -> tuple[str, str] | None:
        """Return the lowest figure and its floor, and what the floor is; None if a threshold judged these runs."""
        found = self.floors.get((collective, nodes))
        if not found or self.thresholds.recording:
            return None
        value, lowest = min(found, key=lambda one: one[0])
        return f"{value:.4g} GB/s, floor {lowest.bound:.4g}", str(lowest)


def lowest_bound(floors: Iterable[Floor | str]) -> Bound | None:
    """Return the lowest of the known floors as a bound; None if none is known."""
    known = [floor for floor in floors if isinstance(floor, Floor)]
    lowest = min(known, key=lambda floor: floor.bound, default=None)
    return Bound(lowest.bound, str(lowest)) if lowest else None
