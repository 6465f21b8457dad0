"""The check for GPUs and nodes that are slower than others of their kind. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.suites.burnin.config import GPU_METRICS, HOST_METRICS
from pytest_gpucluster.suites.burnin.limits import Rate, misses
from pytest_gpucluster.suites.burnin.load_checks import PARTNERS
from pytest_gpucluster.suites.burnin.results import unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.outliers import Halves, Outliers
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals


# Equal GPUs below their power limit differ by up to a tenth for leakage and temperature
POWER = 0.2


@check(
    "burnin.stragglers",
    cause="slower than others of its kind: heat, power, settings, a neighbour, or another process",
    hint="compare nvidia-smi -q of this GPU and of a fast one, both under load",
    action=Action.MONITOR,
)
def stragglers(
    burnin: BurninResult, node_name: str, config: BurninConfig, peers: Collection[str] | None = None
) -> Judgement:
    """No GPU and no node is far below the median of its kind in the fleet (median and MAD), nor draws far less power.

    A rate below its hard limit is judged by the check of its load, not here again.
    """
    totals, compared, notes = burnin.nodes[node_name], 0, []
    for metric in (*GPU_METRICS, "power", *HOST_METRICS):
        if metric == "nccl_pairs" and len(totals.partners) < PARTNERS:
            continue  # a slow partner would slow the median too
        for values in _by_hardware(burnin, metric, peers).values():
            if not any(name[0] == node_name for name in values):
                continue
            named = {f"{owner}\n{part}": value for (owner, part), value in values.items()}
            of_gpus = config.min_relative if metric in GPU_METRICS else config.min_relative_host
            found = outliers(named, min_relative=POWER if metric == "power" else of_gpus)
            if found.note:
                notes.append(f"{metric}: {found.note}")
                continue
            compared += 1
            for part in sorted({part for owner, part in values if owner == node_name}):
                rate = Rate(node_name, part, metric, values[node_name, part])
                if not misses(burnin, rate, config) and (slower := _slower(totals, rate, found, len(values))):
                    yield slower
    if not compared:
        raise NotAvailable(notes[0] if notes else "nothing was measured that could be compared")


def _slower(totals: NodeTotals, rate: Rate, fleet: Outliers, among: int) -> Finding | None:
    """Return the finding on a rate that is an outlier of its kind, or belongs to the slow half of two."""
    name, unit = f"{rate.node}\n{rate.part}", unit_of(rate.metric)
    # with few GPUs the partner is always the same, and either of the two may be slow
    shared = rate.metric == "peer" and len(totals.used) <= PARTNERS
    part, whose = totals.part(rate.part), " (of it or its partner)" * shared
    capped = gpu.capped if (gpu := totals.gpus.get(rate.part)) else ""
    measured = f"{rate.metric} {rate.value:.4g} {unit}{', ' * bool(capped)}{capped}{whose}"
    if name in fleet.low:
        return Finding(
            part,
            Quantity(rate.value, unit, f"{measured}, {-fleet.low[name]:.0%} below"),
            Quantity(fleet.median, unit, f"about the median of {among}: {fleet.median:.4g} {unit}"),
            code="below_median",
        )
    if fleet.halves and name in fleet.halves.slow:
        slow = Quantity(rate.value, unit, f"{measured}, as the slow half of the fleet")
        fast = Quantity(fleet.halves.fast_median, unit, _halves_text(fleet.halves, unit))
        return Finding(part, slow, fast, code="slow_half")
    return None


def _halves_text(halves: Halves, unit: str) -> str:
    """Return the description of both halves: no majority decides which of them is right."""
    sides = ((halves.fast, halves.fast_median), (halves.slow, halves.slow_median))
    nodes = [hostlist.fold({name.partition("\n")[0] for name in names}) for names, _ in sides]
    words = [
        f"{len(names)} about {median:.4g} {unit} on {where}"
        for (names, median), where in zip(sides, nodes, strict=True)
    ]
    return f"one speed in the fleet; it has two: {'; '.join(words)}"


def _by_hardware(
    burnin: BurninResult, metric: str, peers: Collection[str] | None = None
) -> Mapping[str, dict[tuple[str, str], float]]:
    """Return the values of the peers by hardware: GPUs by their name, nodes by the number of their CPUs and GPUs."""
    groups: defaultdict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for (owner, part), value in burnin.fleet(metric).items():
        if peers is not None and owner not in peers:
            continue
        totals = burnin.nodes[owner]
        kind = gpu.name if (gpu := totals.gpus.get(part)) else ""
        if not gpu or metric not in (*GPU_METRICS, "power"):
            kind += f" {(totals.hello or {}).get('cpus')} CPUs, {len(totals.used)} GPUs"
        groups[kind][owner, part] = value
    return groups
