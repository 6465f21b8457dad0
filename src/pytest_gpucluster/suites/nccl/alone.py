"""The bandwidth of nodes alone: figures to compare, and the causes that a slow node gains from the others. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Outcome, with_contention
from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.suites.nccl.bandwidth import measured
from pytest_gpucluster.suites.nccl.fleet import COMPARE, INSIDE
from pytest_gpucluster.suites.nccl.stage import because

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun

MIN_COMPARED = 3  # nodes


def largest_values(runs: Mapping[str, NcclRun]) -> tuple[dict[str, float], str]:
    """Return {node: GB/s} of all valid runs at the largest size, and the name of that measurement."""
    sizes = [run.rows[-1].size for run in runs.values() if run.rows]
    if not sizes:
        return {}, "no valid run"
    size = max(sizes)
    found = {node: measured(run, size) for node, run in runs.items()}
    return {node: value for node, value in found.items() if value}, f"all_reduce alone, {format_size(size)}"


def explained(
    verdict: Verdict, node: str, log: NcclLog, *, slow: Sequence[bool], known_settings: AbstractSet[str], others: str
) -> Verdict:
    """Add possible causes to the failure of a node alone, and drain it only if the node is the cause.

    `slow`: whether each node is below its hard limit. `known_settings`: those that thresholds state. `others`: a text
    about processes of others.
    """
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    summary = log.summary(dict.fromkeys(log.hosts, node)) if log.channels else ""
    if log.slowing - known_settings or not most_reach(slow):  # a setting is the cause, no part of the node
        mild = tuple(replace(finding, action=None) for finding in verdict.findings)
        verdict = replace(verdict, findings=mild, action=Action.MONITOR)
    else:
        verdict = replace(verdict, cause=INSIDE, hint=COMPARE)
    return because(with_contention(verdict, others), summary, most_are_slow(slow))


def most_reach(slow: Sequence[bool]) -> bool:
    """Return whether at least three nodes were measured alone, and two thirds of them are not slow."""
    return len(slow) >= MIN_COMPARED and decides(slow.count(False), len(slow))


def most_are_slow(slow: Sequence[bool]) -> str:
    """Return a hint if most nodes alone are below their hard limit; else ''."""
    count = sum(slow)
    if not 1 < len(slow) < 2 * count:
        return ""
    return (
        f"{count} of {len(slow)} nodes are below their hard limit: first check the settings and the driver that "
        "they share"
    )
