"""What a run or a gate took out of service, as rows for people: drained nodes, held jobs. Pure.

A gate that fails a Prolog or Epilog has its node drained by Slurm, with a reason of Slurm's and the job held (22.05 to 25.11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.drain import policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo


BY_SCRIPT = {"Prolog error": "(Prolog)", "Epilog error": "(Epilog)"}
LAUNCH_FAILED = "launch failed requeued held"
JOBS = ("squeue", "-h", "-a", "-t", "PD", "-o", "%i|%u|%r")


def held(printed: str) -> list[dict[str, str]]:
    """Return the jobs that Slurm holds because their launch failed, from the output of JOBS."""
    rows = [dict(zip(("job", "user", "reason"), line.split("|"), strict=False)) for line in printed.splitlines()]
    return [row for row in rows if row.get("reason") == LAUNCH_FAILED]


def listed(nodes: Iterable[NodeInfo], runs: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row for each node drained with a reason of gpucluster or for a script; `runs`: run -> its event log."""
    rows = []
    for info in sorted(nodes, key=lambda one: one.name):
        script = next((mark for why, mark in BY_SCRIPT.items() if info.reason.startswith(why)), "")
        if not policy.counts(info) and not ("DRAIN" in info.flags and script):
            continue
        mine = policy.own_reason(info)
        rows.append(
            {
                "node": info.name,
                "state": info.label,
                "checks": ",".join(mine.checks) if mine else script or "(edited)",
                "repair": mine.repair if mine else "",
                "found": mine.detail if mine else info.reason,
                "run": mine.run if mine else "",
                "since": info.reason_time,
                "by": info.reason_user,
                "log": runs.get(mine.run, "") if mine else "",
            }
        )
    return rows
