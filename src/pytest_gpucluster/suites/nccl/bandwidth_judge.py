"""Judges runs by the thresholds, or by the floor of their links where no row fits, and remembers what a floor judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.kit.nccl.nccl_floor import Floor, Route
from pytest_gpucluster.suites.nccl.bandwidth import measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun
    from pytest_gpucluster.suites.nccl.thresholds import Thresholds


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
            value = measured(run, size)
            if isinstance(found, Floor) and value is not None:
                self.floors.setdefault((run.collective, len(nodes)), []).append((value, found))
            return found

        return self.thresholds.judge(run, nodes=len(nodes), counted=counted, floor=floor)

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
