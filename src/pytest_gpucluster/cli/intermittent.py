"""`gpucluster history --intermittent`: the parts that were slow at times in the stored runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.output import print_clean, print_json
from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.intermittent import Decision
from pytest_gpucluster.core.sanitize import clean
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import labelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.intermittent import IntermittentLimits
    from pytest_gpucluster.report.history.slow_series import IntermittentTable, SlowSeries

COLUMNS = ("check", "metric", "node", "part", "slow", "newest", "fleet", "by chance", "decision")


def show_intermittent(table: IntermittentTable, cluster: str, *, as_json: bool) -> None:
    """Print the suspects, and how many parts are free of faults."""
    if as_json:
        print_json(_document(table, cluster))
        return
    if table.suspects:
        print_clean(COLUMNS, [_row(it, table.limits) for it in table.suspects])
        print()
    for line in _lines(table, cluster):
        print(clean(line))


def _row(it: SlowSeries, limits: IntermittentLimits) -> tuple[object, ...]:
    judged = it.judged
    newest = f"{it.newest} in a row" if it.newest else "fast"
    return (
        it.check, it.metric, it.node, it.part.place or "-", judged.count, newest, judged.fleet,
        f"{judged.corrected:.1g}", _decision(it, limits),
    )  # fmt: skip


def _decision(it: SlowSeries, limits: IntermittentLimits) -> str:
    if it.judged.decision is Decision.INTERMITTENT:
        return Decision.INTERMITTENT.value
    if it.judged.decision is Decision.FREE:
        return f"free of faults above {limits.share:.0%}"
    return f"open, {it.judged.more} more needed"


def _lines(table: IntermittentTable, cluster: str) -> Iterator[str]:
    limits, where = table.limits, labelled(cluster, simulated=table.simulated)
    if not table.series:
        yield f"cluster {where}, {count(table.runs, 'run')}: no four like parts have a metric of performance in one run"
        return
    found = sum(it.judged.decision is Decision.INTERMITTENT for it in table.suspects)
    yield (
        f"cluster {where}, {count(table.runs, 'run')}: {found:,} of {table.series:,} parts "
        f"(each by one metric) are intermittent; the probability that any good part is among them is at most {limits.alpha:.0%}"
    )
    free = ", ".join(f"{number:,} above {share:.0%}" for share, number in table.free.items())
    yield f"free of faults with {limits.confidence:.0%} confidence, by share of the measurements: {free}"
    if table.lasting:
        yield f"{table.lasting:,} are slower than the like parts in most runs: see `gpucluster compare`"
    if found:
        yield f"action: {Action.MONITOR.value}; no node is drained for it"


def _document(table: IntermittentTable, cluster: str) -> dict[str, Any]:
    limits = table.limits
    return {
        "cluster": cluster,
        "simulated": table.simulated,
        "runs": table.runs,
        "series": table.series,
        "alpha": limits.alpha,
        "floor": limits.floor,
        "confidence": limits.confidence,
        "suspects": [_suspect(it) for it in table.suspects],
        "free": [{"share": share, "series": number} for share, number in table.free.items()],
        "lasting": table.lasting,
    }


def _suspect(it: SlowSeries) -> dict[str, Any]:
    judged = it.judged
    return {
        "check": it.check,
        "metric": it.metric,
        "unit": it.unit,
        "node": it.node,
        "part": it.part.as_dict(),
        "slow": judged.count.slow,
        "measured": judged.count.measured,
        "newest": it.newest,
        "fleet_slow": judged.fleet.slow,
        "fleet_measured": judged.fleet.measured,
        "chance": judged.chance,
        "corrected": judged.corrected,
        "upper": judged.upper,
        "decision": judged.decision.value,
        "more": judged.more,
        "action": Action.MONITOR.value,
    }
