"""Which nodes must leave a burn-in before its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suites.burnin.error_checks import heat_findings, risen_counters, smi_failure, xid_of
from pytest_gpucluster.suites.burnin.limits import GPU_METRICS, misses, rates
from pytest_gpucluster.suites.burnin.load_checks import dead_loads

if TYPE_CHECKING:
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

DEATHS = 3  # processes of loads that may die until the node has to leave
# After these the node's results cannot be trusted, or it may take others down: it leaves the burn-in at once
FATAL = (
    "gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_uncorrectable", "remapped_failure"
)  # fmt: skip


def fatal(told: NodeTotals) -> str:
    """Return why a node has to leave the burn-in now, '' where it may stay."""
    for load, parts in told.wrong.items():
        for part, count in parts.items():
            # of a group of nodes nobody knows yet whose data are wrong
            if count and (load != "nccl" or not told.partners):
                return f"wrong data: {load}, {told.part(part)}"
    for part, counters in told.rose.items():
        for counter, count in counters.items():
            if counter in FATAL or ((entry := xid_of(counter)) and entry.fails):
                return f"{told.part(part)}: {counter} rose by {count}"
    died = dead_loads(told)
    if len(died) >= DEATHS:
        return f"{len(died)} processes of its loads died: {died[-1].measured}"
    return ""


def corrupt_nodes(whole: BurninResult) -> dict[str, str]:
    """Return {node: why} for nodes that have to leave since their results differ from those of most others."""
    return {
        node: f"wrong data: {whole.nodes[node].part(part)}: {proved[0].text}"
        for (node, part), lies in whole.corrupt_gpus().items()
        if (proved := [lie for lie in lies if not lie.disputed])
    }


def suspicious(whole: BurninResult, node: str, config: BurninConfig, seconds: float) -> bool:
    """Tell whether anything was found so far that will fail the node, for the progress line."""
    told = whole.nodes[node]
    slow = any(
        misses(whole, rate, config)
        for metric in (*GPU_METRICS, "h2d", "d2h")
        for rate in rates(whole, node, metric)
    )
    risen = any(count > limit for _, _, count, limit in risen_counters(told, seconds, config))
    broken = told.out or told.lost or smi_failure(told) or fatal(told) or heat_findings(told, config)
    return bool(broken or slow or risen)
