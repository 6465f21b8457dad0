"""Hard limits of a burn-in's rates: what is below them fails, and the node may be drained. Pure.

They come from the cluster file (`burnin.expect`), else from the hardware profile (`burnin`), else from what is known of
the card. Where none of them says anything a rate has no hard limit, and only burnin.stragglers compares it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding
from pytest_gpucluster.suites.burnin.gpu_peaks import Floor, bare, floor_of
from pytest_gpucluster.suites.burnin.results import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, GpuAbout


@dataclass(frozen=True)
class Rate:
    """One measured rate: a metric of a part (a GPU's UUID, or '' for the host) of a node."""

    node: str
    part: str
    metric: str
    value: float


def rates(whole: BurninResult, node: str, metric: str) -> Iterator[Rate]:
    """Yield the rates of a node, medians over the rounds."""
    for part, value in sorted(whole.median(metric, node).items()):
        yield Rate(node, part, metric, value)


def limit_of(whole: BurninResult, rate: Rate, config: BurninConfig) -> Floor | None:
    """Return the hard limit of a rate, None where it has none."""
    unit = unit_of(rate.metric)
    if rate.metric in config.expect:
        return Floor(config.expect[rate.metric], unit, "burnin.expect of the cluster file")
    told, row = whole.nodes[rate.node], whole.limits.get(rate.metric)
    gpu = told.gpus.get(rate.part)
    names = {bare(told.gpus[uuid].name) for uuid in ([rate.part] if gpu else told.used)}
    if row is not None and names <= {bare(whole.model)}:
        return Floor(row.drain_below, unit, f"the profile's row of burnin: {row.source}")
    return floor_of(rate.metric, gpu.name, gen=gpu.pcie_gen, width=gpu.pcie_width) if gpu else None


def misses(whole: BurninResult, rate: Rate, config: BurninConfig) -> bool:
    """Tell whether a rate is below its hard limit."""
    limit = limit_of(whole, rate, config)
    return limit is not None and rate.value < limit.rate


def too_slow(whole: BurninResult, rate: Rate, config: BurninConfig) -> Finding | None:
    """Return the finding on a rate below its hard limit; a GPU whose power was limited is not broken by that."""
    limit = limit_of(whole, rate, config)
    if limit is None or rate.value >= limit.rate:
        return None
    told = whole.nodes[rate.node]
    gpu = told.gpus.get(rate.part)
    capped = gpu.capped if gpu else ""
    clocks = told.peaks[rate.part].sm_mhz if rate.part in told.peaks else []
    clock = f" at {statistics.median(clocks):.0f} MHz" if clocks else ""
    measured = f"{rate.metric} {rate.value:.4g} {limit.unit}{clock}"
    return Finding(
        told.part(rate.part),
        "; ".join(filter(None, (measured, capped, _before_us(gpu)))),
        f">= {limit.rate:.4g} {limit.unit}: {limit.why}{_most(whole, rate.metric, config)}",
        Action.MONITOR if capped else None,
    )


def _before_us(gpu: GpuAbout | None) -> str:
    return f"before us on it: {', '.join(gpu.foreign)}" if gpu and gpu.foreign else ""


def _most(whole: BurninResult, metric: str, config: BurninConfig) -> str:
    """Say that most of the fleet miss their limit, where they do: one cause is then likelier than many broken parts."""
    if metric not in whole.below:
        known = [rate for node in whole.nodes for rate in rates(whole, node, metric)]
        known = [rate for rate in known if limit_of(whole, rate, config) is not None]
        missed = sum(misses(whole, rate, config) for rate in known)
        words = (
            f"; {missed} of {len(known)} in the fleet are below: look first for a setting, a driver or a switch that "
            "they share"
        )
        whole.below[metric] = words if 1 < len(known) < 2 * missed else ""
    return whole.below[metric]
