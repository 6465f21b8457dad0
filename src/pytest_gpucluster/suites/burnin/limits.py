"""Hard limits of a burn-in's rates: a lower rate fails, and the node may be drained. Pure.

They come from the cluster file (`burnin.expect`), else from the hardware profile (`burnin`), else from kit/gpu/gpu_peaks.py. A
rate without a hard limit is judged only by burnin.stragglers.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.kit.gpu.gpu_peaks import RateFloor, bare, floor_of
from pytest_gpucluster.suites.burnin.results import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult


BELOW_LIMIT = "below_limit"  # the code of a finding


@dataclass(frozen=True)
class Rate:
    """One measured rate: a metric of a part (a GPU's UUID, or '' for the host) of a node."""

    node: str
    part: str
    metric: str
    value: float


def rates(burnin: BurninResult, node: str, metric: str) -> Iterator[Rate]:
    """Yield the rates of a node: medians over the rounds."""
    for part, value in sorted(burnin.median(metric, node).items()):
        yield Rate(node, part, metric, value)


def limit_of(burnin: BurninResult, rate: Rate, config: BurninConfig) -> RateFloor | None:
    """Return the hard limit of a rate, None if it has none."""
    unit = unit_of(rate.metric)
    if rate.metric in config.expect:
        return RateFloor(config.expect[rate.metric], unit, "burnin.expect of the cluster file")
    totals, row = burnin.nodes[rate.node], burnin.limits.get(rate.metric)
    gpu = totals.gpus.get(rate.part)
    names = {bare(totals.gpus[uuid].name) for uuid in ([rate.part] if gpu else totals.used)}
    if row is not None and names <= {bare(burnin.model)}:
        return RateFloor(row.drain_below, unit, f"the profile's row of burnin: {row.source}")
    return floor_of(rate.metric, gpu.name, gen=gpu.pcie_gen, width=gpu.pcie_width) if gpu else None


def bound_of(burnin: BurninResult, rate: Rate, config: BurninConfig) -> Quantity | None:
    """Return the hard limit of a rate as its metric has it, None if it has none."""
    limit = limit_of(burnin, rate, config)
    return limit.bound if limit else None


def misses(burnin: BurninResult, rate: Rate, config: BurninConfig) -> bool:
    """Return whether a rate is below its hard limit."""
    limit = limit_of(burnin, rate, config)
    return limit is not None and rate.value < limit.rate


def too_slow(burnin: BurninResult, rate: Rate, config: BurninConfig) -> Iterator[Finding]:
    """Yield the finding on a rate below its hard limit.

    It proves no fault if the power limit of the GPU was lowered, or if most of the fleet do not reach the limit either.
    """
    limit = limit_of(burnin, rate, config)
    if limit is None or rate.value >= limit.rate:
        return
    totals = burnin.nodes[rate.node]
    gpu = totals.gpus.get(rate.part)
    capped = gpu.capped if gpu else ""
    clocks = totals.peaks[rate.part].sm_mhz if rate.part in totals.peaks else []
    clock = f" at {statistics.median(clocks):.0f} MHz" if clocks else ""
    measured = f"{rate.metric} {rate.value:.4g} {limit.unit}{clock}"
    foreign = f"on it before the burn-in: {', '.join(gpu.foreign)}" if gpu and gpu.foreign else ""
    text = "; ".join(filter(None, (measured, capped, foreign)))
    missed, known = _missed(burnin, rate.metric, config)
    least = str(limit.bound)
    if 1 < known < 2 * missed:
        least += f"; {missed} of {known} in the fleet are below: first check the settings, the driver and the switches that they share"
    yield Finding(
        totals.part(rate.part),
        Quantity(rate.value, limit.unit, text),
        Quantity(limit.rate, limit.unit, least),
        None if known > 2 and decides(known - missed, known) and not capped else Action.MONITOR,
        code=BELOW_LIMIT,
    )


def _missed(burnin: BurninResult, metric: str, config: BurninConfig) -> tuple[int, int]:
    """Return how many parts of the fleet miss their limit, and how many have one."""
    if metric not in burnin.missed:
        known = [rate for node in burnin.nodes for rate in rates(burnin, node, metric)]
        known = [rate for rate in known if limit_of(burnin, rate, config) is not None]
        burnin.missed[metric] = sum(misses(burnin, rate, config) for rate in known), len(known)
    return burnin.missed[metric]
