"""Judges the bandwidth of a valid NCCL run: per size, out-of-place, against a threshold with a source. Pure.

Averages are not judged, since they depend on the sweep, and thresholds are not extrapolated: `NoThresholdError` names the
nearest rows and the differences. Without a row, the largest message must reach the floor of kit/nccl/nccl_floor.py. A figure
above the capacity of the links fails.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import ConfigError, NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.nccl.nccl_validation import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpucluster.config.models import BandwidthThreshold, Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.nccl.nccl_floor import Floor
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun

_SLACK = 1.02  # clocks and rounding
_NEAREST = 3


RunKey = Mapping[str, "str | int"]  # fields of a row that a run has: collective, nodes, gpus_per_node, size


class NoThresholdError(ConfigError, LookupError):
    """No row fits the run; the message names the nearest rows and the differences."""


@dataclass(frozen=True)
class Chosen:
    """The lowest accepted bus bandwidth (GB/s), its row, and a text with the row's conditions and source."""

    bound: float
    row: BandwidthThreshold
    why: str


@dataclass(frozen=True)
class Ceiling:
    """The highest possible bus bandwidth (GB/s) of the hardware, and what limits it."""

    busbw: float
    why: str


def threshold_for(rows: Iterable[BandwidthThreshold], run: RunKey, env: Mapping[str, str]) -> Chosen:
    """Return the threshold of the row that fits a run in every field: with most conditions, else the first in `rows`.

    `rows`: those of the cluster before those of the profile. NoThresholdError if no row fits: more nodes, another size,
    or a condition that `env` does not meet.
    """
    row = max(_fitting(rows, run, env), key=lambda row: len(row.conditions))  # the first of equal ones
    less = f" less {100 * row.tolerance:.3g}%" if row.tolerance else ""
    conditions = "".join(f", {name}={value}" for name, value in sorted(row.conditions.items()))
    why = f"{'' if less else 'minimum '}{row.busbw:g} GB/s{less}{conditions}; source: {row.source}"
    return Chosen(row.bound, row, why)


def sizes_for(rows: Iterable[BandwidthThreshold], run: RunKey, env: Mapping[str, str]) -> tuple[int, ...]:
    """Return the sizes (bytes) of the rows for a run; NoThresholdError if there is none."""
    return tuple(sorted({row.size for row in _fitting(rows, run, env)}))


def _fitting(rows: Iterable[BandwidthThreshold], run: RunKey, env: Mapping[str, str]) -> list[BandwidthThreshold]:
    known = list(rows)
    fitting = [row for row in known if not _differences(row, run, env)]
    if not fitting:
        raise NoThresholdError(_no_threshold(known, run, env))
    return fitting


def _differences(row: BandwidthThreshold, run: RunKey, env: Mapping[str, str]) -> list[str]:
    """Return in what a row does not fit."""
    found = []
    for key, value in run.items():
        have = getattr(row, key)
        if have != value and not (key == "gpus_per_node" and have is None):
            shown = format_size(have) if key == "size" else have
            found.append(f"{key} {shown}")
    for name, value in row.conditions.items():
        if env.get(name) != value:
            found.append(f"{name}={value} (is {env.get(name, 'not set')})")
    return found


def _no_threshold(rows: Sequence[BandwidthThreshold], run: RunKey, env: Mapping[str, str]) -> str:
    size = f" at {format_size(int(run['size']))}" if "size" in run else ""
    what = f"{run['collective']} on {run['nodes']} nodes x {run['gpus_per_node']} GPUs{size}"
    if not rows:
        none = "neither the cluster file nor the profile has one; add one, or record a baseline"
        return f"no threshold for {what}: {none}"
    most = max((row.nodes for row in rows if row.collective == run["collective"]), default=0)
    more = f"; no row has more than {most} nodes, and rows are not extrapolated"
    beyond = more if int(run["nodes"]) > most > 0 else ""
    nearest = sorted(rows, key=lambda row: (len(_differences(row, run, env)), _distance(row, run)))[:_NEAREST]
    differences = "; ".join(f"{_name(row)} differs in {', '.join(_differences(row, run, env))}" for row in nearest)
    return f"no threshold for {what}{beyond}; nearest: {differences}; add a row to thresholds, or record a baseline"


def _distance(row: BandwidthThreshold, run: RunKey) -> int:
    size = abs(row.size.bit_length() - int(run["size"]).bit_length()) if "size" in run else 0
    return abs(row.nodes - int(run["nodes"])) * 64 + size


def _name(row: BandwidthThreshold) -> str:
    gpus = f" x {row.gpus_per_node}" if row.gpus_per_node else ""
    return f"{row.collective} {row.nodes}{gpus} {format_size(row.size)} {row.busbw:g} GB/s"


# --- the ceiling ------------------------------------------------------------------------------------------


def ceiling(
    collective: str, *, nodes: int, gpus_per_node: int, profile: Profile, nvls: bool = True, counted: int = 0
) -> Ceiling | None:
    """Return the capacity of the profile's links, None if the profile does not state it.

    Within a node: NVLinks x speed of a link, one direction. Between nodes: the node's adapters, divided by the share of
    the bytes that must cross (all_gather: S(N-1)/N, alltoall: all but a node's own). If the switch reduces (NVLS,
    SHARP), all_reduce sends each byte once, so its bus bandwidth may reach 2(n-1)/n of the link.

    `counted`: the number of nodes that NCCL counts (nNodes of its log; 0: not logged). It is lower if NVLink joins
    nodes (MNNVL: GB200 NVL72): then only NVLink is the limit.
    """
    ranks = nodes * gpus_per_node
    if ranks < 2:  # one rank moves nothing
        return None
    found = [
        _within(collective, ranks, profile, nvls=nvls),
        None if _linked(nodes, counted, profile) else _between(collective, nodes, gpus_per_node, profile),
    ]
    known = [limit for limit in found if limit]
    return min(known, key=lambda limit: limit.busbw) if known else None


def _within(collective: str, ranks: int, profile: Profile, *, nvls: bool) -> Ceiling | None:
    gpu = profile.gpu
    if gpu is None or not gpu.nvlinks or not gpu.nvlink_speed:
        return None
    link = gpu.nvlinks * gpu.nvlink_speed
    reduces = nvls and (gpu.nvswitch or gpu.fabric_state) and collective == "all_reduce"
    share = 2 * (ranks - 1) / ranks if reduces else 1.0
    why = f"{gpu.nvlinks} NVLinks x {gpu.nvlink_speed:g} GB/s" + (
        f" x {share:.3g} (the switch reduces)" if reduces else ""
    )
    return Ceiling(link * share * _SLACK, why)


def _linked(nodes: int, counted: int, profile: Profile) -> bool:
    """Return whether NVLink may join GPUs of several nodes, by NCCL's log or else by the place of the switches."""
    return counted < nodes if counted else may_be_linked(profile)


def may_be_linked(profile: Profile) -> bool:
    """Return whether NVSwitches outside of the node may join its GPUs with others: in the rack, or in the host of a virtual machine."""
    return profile.gpu is not None and profile.gpu.fabric_state and not profile.gpu.nvswitch


def _between(collective: str, nodes: int, gpus: int, profile: Profile) -> Ceiling | None:
    fabric = profile.fabric
    if nodes < 2 or not fabric.hcas or not fabric.rate:
        return None
    ranks = nodes * gpus
    share = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": (ranks - 1) / ranks * nodes / (nodes - 1),
        "reduce_scatter": (ranks - 1) / ranks * nodes / (nodes - 1),
        "alltoall": (ranks - 1) / (gpus * (ranks - gpus)),
    }.get(collective, 1.0)
    why = f"{fabric.hcas} adapters x {fabric.rate:g} GB/s x {share:.3g} (bytes that cross)"
    return Ceiling(fabric.hcas * fabric.rate * share * _SLACK, why)


# --- judgement --------------------------------------------------------------------------------------------


@check(
    "nccl.bandwidth",
    item=False,
    cause="a slow GPU, NVLink, NIC or switch, traffic on a worse transport, or other load on the fabric",
    hint="check the transports (NCCL_DEBUG=INFO), then test each node alone, then pairs",
    action=Action.MONITOR,
    never_healthy="two thirds of the nodes, each alone, are above the hard limit of the same profile, and no variable of NCCL slows this "
    "one",
)
def bandwidth(
    run: NcclRun,
    rows: Sequence[BandwidthThreshold],
    *,
    nodes: int,
    gpus_per_node: int,
    env: Mapping[str, str],
    limit: Ceiling | None = None,
    floor: Callable[[int], Floor | str] | None = None,
) -> Judgement:
    """Compare a valid run with the rows, at each of their sizes. `limit` is that of `ceiling`.

    floor: a function of the size, for a run that no row fits: the floor of the route, or why it is unknown.
    """
    key: RunKey = {"collective": run.collective, "nodes": nodes, "gpus_per_node": gpus_per_node}
    try:
        sizes = sizes_for(rows, key, env)
    except NoThresholdError as error:
        if floor is None:
            raise
        yield from _above_floor(run, nodes, floor, str(error))
        sizes = ()
    for size in sizes:
        chosen = threshold_for(rows, {**key, "size": size}, env)
        value = measured(run, size)
        if value is None:
            yield Finding(_messages(run, size), "not measured", str(_least(chosen)), code="not_measured")
            continue
        yield from _figure(run, size, nodes, value, _least(chosen))
        if value < chosen.bound:
            yield _slow(_messages(run, size), value, chosen, alone=nodes == 1)
    yield from _implausible(run, limit)


def largest(run: NcclRun) -> tuple[int, float] | None:
    """Return the largest size with a bus bandwidth, and the bandwidth (GB/s, out-of-place); None without any."""
    sizes = sorted({row.size for row in run.rows}, reverse=True)
    return next(((size, value) for size in sizes if (value := measured(run, size)) is not None), None)


def _above_floor(run: NcclRun, nodes: int, floor: Callable[[int], Floor | str], no_row: str) -> Judgement:
    found = largest(run)
    if found is None:
        yield NotAvailable("no message was measured")
        return
    size, value = found
    lowest = floor(size)
    if isinstance(lowest, str):
        yield from _figure(run, size, nodes, value, None)
        yield NotAvailable(f"{no_row}; without a row, a floor is computed from the links: {lowest}")
        return
    least = Quantity(lowest.bound, "GB/s", f"at least {lowest.bound:.2f} GB/s ({lowest})")
    yield from _figure(run, size, nodes, value, least)
    if value < lowest.bound:
        yield _rate(_messages(run, size), value, least, code="below_floor")


def scope_of(nodes: int) -> str:
    """Return the words for a run on this many nodes."""
    return "alone" if nodes == 1 else f"{nodes} nodes"


def _messages(run: NcclRun, size: int) -> Part:
    return Part("size", size, of=named("run", run.collective))


def _least(chosen: Chosen, more: str = "") -> Quantity:
    return Quantity(chosen.bound, "GB/s", f"at least {chosen.bound:.2f} GB/s ({chosen.why}){more}")


def _figure(run: NcclRun, size: int, nodes: int, value: float, least: Quantity | None) -> Iterator[Metric]:
    """Yield a judged figure, and its bound for the picture of the run."""
    scope = scope_of(nodes)
    yield Metric(f"busbw {run.collective} {format_size(size)} {scope}", value, "GB/s", bound=least)
    if least is not None:
        part = Part("size", size, of=named("run", f"{run.collective} {scope}"))
        yield Metric("busbw_bound", least.number, "GB/s", part, better=NEITHER)


def _slow(part: Part, value: float, chosen: Chosen, *, alone: bool) -> Finding:
    """Return the finding on a figure below its bound; a figure of several nodes proves none of them bad."""
    hard = chosen.row.drain_below
    broken = alone and hard is not None and value < hard
    limit = f"; hard limit {hard:.2f} GB/s" if broken else ""
    code = "below_hard_limit" if broken else "below_threshold"
    return _rate(part, value, _least(chosen, limit), code, Action.DRAIN if broken else None)


def _rate(part: Part, value: float, bound: Quantity, code: str, action: Action | None = None) -> Finding:
    return Finding(part, Quantity(value, "GB/s", f"{value:.2f} GB/s"), bound, action, code=code)


def measured(run: NcclRun, size: int) -> float | None:
    """Return the median out-of-place bus bandwidth (GB/s) at a size, None if it was not measured."""
    values = [
        row.out_of_place.busbw
        for row in run.rows
        if aligned(row.size, size, run.world) and row.out_of_place.busbw is not None
    ]
    return statistics.median(values) if values else None


def _implausible(run: NcclRun, limit: Ceiling | None) -> Judgement:
    for row in run.rows if limit else ():
        value = row.out_of_place.busbw
        if limit and value is not None and value > limit.busbw:
            text = f"at most {limit.busbw:.2f} GB/s ({limit.why}): implausible, so the figure is not valid"
            yield _rate(_messages(run, row.size), value, Quantity(limit.busbw, "GB/s", text), "above_capacity")
