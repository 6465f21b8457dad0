"""The nodes that gpucluster drained, as rows for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.drain import policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo


def listed(nodes: Iterable[NodeInfo], runs: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row for each drained node whose reason begins with PREFIX; `runs`: run -> its event log."""
    rows = []
    for info in sorted(nodes, key=lambda one: one.name):
        if not policy.counts(info):
            continue
        mine = policy.own_reason(info)
        rows.append(
            {
                "node": info.name,
                "state": info.label,
                "checks": ",".join(mine.checks) if mine else "(edited)",
                "repair": mine.repair if mine else "",
                "found": mine.detail if mine else info.reason,
                "run": mine.run if mine else "",
                "since": info.reason_time,
                "by": info.reason_user,
                "log": runs.get(mine.run, "") if mine else "",
            }
        )
    return rows
