"""Which nodes must leave a burn-in before its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suites.burnin.config import GPU_METRICS
from pytest_gpucluster.suites.burnin.error_checks import heat_findings, risen_counters, smi_failure, xid_of
from pytest_gpucluster.suites.burnin.limits import misses, rates
from pytest_gpucluster.suites.burnin.load_checks import dead_loads

if TYPE_CHECKING:
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

DEATHS = 3  # dead processes of loads after which a node must leave
# counters after which the node's results are not valid, or the node may break the collectives of others
FATAL = (
    "gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_uncorrectable", "remapped_failure"
)  # fmt: skip


def fatal(totals: NodeTotals) -> str:
    """Return why a node must leave the burn-in now, '' if it may stay."""
    for load, parts in totals.wrong.items():
        for part, count in parts.items():
            # a group does not show which of its nodes has the wrong data
            if count and (load != "nccl" or not totals.partners):
                return f"wrong data: {load}, {totals.part(part)}"
    for part, counters in totals.rose.items():
        for counter, count in counters.items():
            if counter in FATAL or ((entry := xid_of(counter)) and entry.fails):
                return f"{totals.part(part)}: {counter} rose by {count}"
    died = dead_loads(totals)
    if len(died) >= DEATHS:
        return f"{len(died)} processes of its loads died: {died[-1].measured}"
    return ""


def corrupt_nodes(burnin: BurninResult) -> dict[str, str]:
    """Return {node: why} of the nodes that must leave because their results differ from those of the majority."""
    return {
        node: f"wrong data: {burnin.nodes[node].part(part)}: {proved[0].text}"
        for (node, part), mismatches in burnin.corrupt_gpus().items()
        if (proved := [it for it in mismatches if not it.disputed])
    }


def suspicious(burnin: BurninResult, node: str, config: BurninConfig, seconds: float) -> bool:
    """Return whether anything found so far will fail the node, for the progress line."""
    totals = burnin.nodes[node]
    slow = any(
        misses(burnin, rate, config)
        for metric in (*GPU_METRICS, "h2d", "d2h")
        for rate in rates(burnin, node, metric)
    )
    risen = any(count > limit for _, _, count, limit in risen_counters(totals, seconds, config))
    broken = (
        totals.out or totals.lost or smi_failure(totals) or fatal(totals) or heat_findings(totals, config)
    )
    return bool(broken or slow or risen)
