"""Judgement of a believed NCCL run: per size, out-of-place, against a threshold with a source. Pure.

No average is judged (it depends on the sweep), nothing is extrapolated: where no row fits, `NoThresholdError` names
the nearest rows and what differs. A figure above what the links can carry is refused, not admired.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.nccl_validation import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.config.models import NcclThreshold, Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.nccl_tests import NcclRun

__all__ = [
    "Ceiling",
    "Chosen",
    "NoThresholdError",
    "bandwidth",
    "ceiling",
    "sizes_for",
    "table_rows",
    "threshold_for",
]

_SLACK = 1.02  # clocks and rounding
_NEAREST = 3


class NoThresholdError(ConfigError, LookupError):
    """No row fits what was run; the message names the nearest rows and what differs."""


@dataclass(frozen=True)
class Chosen:
    """The lowest accepted bus bandwidth (GB/s), the row that it comes from, and the whole of it in words."""

    bound: float
    row: NcclThreshold
    why: str


@dataclass(frozen=True)
class Ceiling:
    """The highest bus bandwidth (GB/s) that the hardware can give, and what limits it."""

    busbw: float
    why: str


def threshold_for(
    rows: Iterable[NcclThreshold],
    *,
    collective: str,
    nodes: int,
    gpus_per_node: int,
    size: int,
    env: Mapping[str, str],
) -> Chosen:
    """Choose the row for a run: all of it has to fit; more conditions go first, then the earlier row.

    `rows` come with the cluster's own first. NoThresholdError where none fits: more nodes than any row, another
    size, a condition that `env` does not meet.
    """
    known = list(rows)
    asked: dict[str, str | int] = {
        "collective": collective,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "size": size,
    }
    fitting = [row for row in known if not _differences(row, asked, env)]
    if not fitting:
        raise NoThresholdError(_no_threshold(known, asked, env))
    row = max(fitting, key=lambda row: len(row.conditions))  # max keeps the first of equals
    less = (
        f"{row.busbw:g} GB/s less {row.tolerance:.3g} of it"
        if row.tolerance
        else f"minimum {row.busbw:g} GB/s"
    )
    held = "".join(f", {name}={value}" for name, value in sorted(row.conditions.items()))
    return Chosen(row.bound, row, f"{less}{held}; source: {row.source}")


def sizes_for(
    rows: Iterable[NcclThreshold], *, collective: str, nodes: int, gpus_per_node: int, env: Mapping[str, str]
) -> tuple[int, ...]:
    """Return the sizes (bytes) that the rows name for a run; NoThresholdError where they name none."""
    known = list(rows)
    asked: dict[str, str | int] = {"collective": collective, "nodes": nodes, "gpus_per_node": gpus_per_node}
    sizes = {row.size for row in known if not _differences(row, asked, env)}
    if not sizes:
        raise NoThresholdError(_no_threshold(known, asked, env))
    return tuple(sorted(sizes))


def _differences(row: NcclThreshold, asked: Mapping[str, str | int], env: Mapping[str, str]) -> list[str]:
    """Say in what a row does not fit."""
    found = []
    for key, value in asked.items():
        have = getattr(row, key)
        if have != value and not (key == "gpus_per_node" and have is None):
            shown = format_size(have) if key == "size" else have
            found.append(f"{key} {shown}")
    for name, value in row.conditions.items():
        if env.get(name) != value:
            found.append(f"{name}={value} (is {env.get(name, 'not set')})")
    return found


def _no_threshold(
    rows: Sequence[NcclThreshold], asked: Mapping[str, str | int], env: Mapping[str, str]
) -> str:
    size = f" at {format_size(int(asked['size']))}" if "size" in asked else ""
    what = f"{asked['collective']} on {asked['nodes']} nodes x {asked['gpus_per_node']} GPUs{size}"
    if not rows:
        return (
            f"no threshold for {what}: neither cluster nor profile has any; write one, or record a baseline"
        )
    same = [row.nodes for row in rows if row.collective == asked["collective"]]
    most = max(same, default=0)
    beyond = (
        f"; no row goes beyond {most} nodes, and none is extrapolated"
        if int(asked["nodes"]) > most > 0
        else ""
    )
    nearest = sorted(rows, key=lambda row: (len(_differences(row, asked, env)), _distance(row, asked)))[
        :_NEAREST
    ]
    told = "; ".join(f"{_name(row)} differs in {', '.join(_differences(row, asked, env))}" for row in nearest)
    return f"no threshold for {what}{beyond}; nearest: {told}; add a row to thresholds, or record a baseline"


def _distance(row: NcclThreshold, asked: Mapping[str, str | int]) -> int:
    size = abs(row.size.bit_length() - int(asked["size"]).bit_length()) if "size" in asked else 0
    return abs(row.nodes - int(asked["nodes"])) * 64 + size


def _name(row: NcclThreshold) -> str:
    gpus = f" x {row.gpus_per_node}" if row.gpus_per_node else ""
    return f"{row.collective} {row.nodes}{gpus} {format_size(row.size)} {row.busbw:g} GB/s"


# --- the ceiling ------------------------------------------------------------------------------------------


def ceiling(
    collective: str, *, nodes: int, gpus_per_node: int, profile: Profile, nvls: bool = True, counted: int = 0
) -> Ceiling | None:
    """Return what the links of the profile can carry at most, None where the profile does not say.

    Within a node: NVLinks x speed of a link, one direction. Between nodes: the node's adapters, held against the
    bytes that have to cross (all_gather: S(N-1)/N, alltoall: all but a node's own). Where the switch adds up
    (NVLS, SHARP), all_reduce sends each byte once, so its bus bandwidth may reach 2(n-1)/n of the link.

    `counted` is NCCL's own number of nodes (nNodes of its log; 0: not logged). NVLink beyond the node (MNNVL: GB200
    NVL72) makes one of several: then it is the limit, and adapters are none.
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
    adds = nvls and (gpu.nvswitch or gpu.fabric_state) and collective == "all_reduce"
    share = 2 * (ranks - 1) / ranks if adds else 1.0
    why = f"{gpu.nvlinks} NVLinks x {gpu.nvlink_speed:g} GB/s" + (
        f" x {share:.3g} (the switch adds up)" if adds else ""
    )
    return Ceiling(link * share * _SLACK, why)


def _linked(nodes: int, counted: int, profile: Profile) -> bool:
    """Tell whether NVLink may join GPUs of several nodes; where NCCL has not said so, by the switches' place."""
    gpu = profile.gpu
    # GPUs of a fabric whose switches are not the node's own: those of a rack, or of a virtual machine's host
    return counted < nodes if counted else gpu is not None and gpu.fabric_state and not gpu.nvswitch


def _between(collective: str, nodes: int, gpus: int, profile: Profile) -> Ceiling | None:
    fabric = profile.fabric
    if nodes < 2 or not fabric.hcas or not fabric.rate:  # one node has no between
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
    cause="a slow GPU, NVLink, NIC or switch, traffic on a worse transport, or other load on the fabric",
    hint="look at the transports (NCCL_DEBUG=INFO), then test each node alone, then pairs",
    action=Action.MONITOR,
)
def bandwidth(
    run: NcclRun,
    rows: Sequence[NcclThreshold],
    *,
    nodes: int,
    gpus_per_node: int,
    env: Mapping[str, str],
    limit: Ceiling | None = None,
) -> Judgement:
    """Hold a believed run against the rows, at every size that they name. `limit` is that of `ceiling`."""
    for size in sizes_for(rows, collective=run.collective, nodes=nodes, gpus_per_node=gpus_per_node, env=env):
        chosen = threshold_for(
            rows, collective=run.collective, nodes=nodes, gpus_per_node=gpus_per_node, size=size, env=env
        )
        name = f"{run.collective} {format_size(size)}"
        value = measured(run, size)
        if value is None:
            yield Finding(name, "not measured", f"at least {chosen.bound:.2f} GB/s ({chosen.why})")
            continue
        scope = "alone" if nodes == 1 else f"{nodes} nodes"
        yield Metric(f"busbw {name} {scope}", value, "GB/s")
        yield Metric(f"bound {name} {scope}", chosen.bound, "GB/s", chosen.row.source, better=NEITHER)
        if value < chosen.bound:
            yield _slow(name, value, chosen, alone=nodes == 1)
    yield from _implausible(run, limit)


def _slow(name: str, value: float, chosen: Chosen, *, alone: bool) -> Finding:
    """Return the finding on a figure below its bound; what several nodes measure together proves none of them bad."""
    hard = chosen.row.drain_below
    broken = alone and hard is not None and value < hard
    limit = f"; hard limit {hard:.2f} GB/s" if broken else ""
    return Finding(
        name,
        f"{value:.2f} GB/s",
        f"at least {chosen.bound:.2f} GB/s ({chosen.why}){limit}",
        Action.DRAIN if broken else None,
    )


def measured(run: NcclRun, size: int) -> float | None:
    """Return the median out-of-place bus bandwidth (GB/s) at a size, None where it was not measured."""
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
            yield Finding(
                f"{run.collective} {format_size(row.size)}",
                f"{value:.2f} GB/s",
                f"at most {limit.busbw:.2f} GB/s ({limit.why}): implausible, so the figure is not believed",
            )


def table_rows(
    run: NcclRun, bounds: Mapping[int, Chosen] | None = None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a run for tabulate: size, time, algbw, busbw, wrong, bound and its source."""
    header = ("size", "time us", "algbw GB/s", "busbw GB/s", "wrong", "at least", "source")
    rows: list[tuple[str, ...]] = []
    for row in run.rows:
        half, chosen = row.out_of_place, (bounds or {}).get(row.size)
        numbers = (_cell(half.time_us), _cell(half.algbw), _cell(half.busbw))
        wrong = "not checked" if half.wrong is None and half.error is None else f"{half.wrong or 0}"
        bound = (f"{chosen.bound:.2f}", chosen.row.source) if chosen else ("", "")
        rows.append((format_size(row.size), *numbers, wrong, *bound))
    return header, rows


def _cell(value: float | None) -> str:
    return "nan" if value is None else f"{value:.2f}"
