"""Nodes that stay COMPLETING after the end of a job: a hanging epilog, or a process that cannot be killed."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.inventory import StuckJob
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo

# for a COMPLETING job, squeue lists only the nodes that still hold it (man squeue, %N)
SQUEUE = ("squeue", "-h", "-a", "-t", "CG", "-o", "%A|%u|%e|%N")
LONG = 2.0  # seconds between two queries, from which on a line states the reason of the wait
LEAST = 300.0  # seconds; epilogs that clean up or test the GPUs take a minute or two
# slurm.conf's limits: Slurm itself drains a node that exceeds them, so it is no fault before
_TIMEOUTS = ("UnkillableStepTimeout", "PrologEpilogTimeout", "EpilogTimeout")
_UNLIMITED = 65534  # as scontrol prints a timeout that is not set


@dataclass(frozen=True)
class EndingJob:
    """A job that has ended, in Slurm's local time, and that these nodes still hold."""

    job: str
    user: str
    ended: datetime
    nodes: tuple[str, ...]


def parse_ending(text: str) -> tuple[EndingJob, ...]:
    """Read squeue's lines 'JOB|USER|END|NODES'; lines without an end time are skipped."""
    jobs = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            job, user, end, nodes = line.strip().split("|", 3)
            ended = datetime.fromisoformat(end).replace(tzinfo=None)
            jobs.append(EndingJob(job, user, ended, hostlist.expand(nodes)))
    return tuple(jobs)


def allowed(config: Mapping[str, str], stated: float | None) -> float:
    """Return the seconds that a node may be COMPLETING: `stated`, else the longest of 5 min and Slurm's timeouts."""
    if stated is not None:
        return stated
    timeouts = (re.match(r"\d+", config.get(name, "")) for name in _TIMEOUTS)
    return max([LEAST, *(float(found[0]) for found in timeouts if found and float(found[0]) < _UNLIMITED)])


def with_stuck(
    nodes: Mapping[str, NodeInfo], jobs: Iterable[EndingJob], now: datetime, most: float
) -> dict[str, NodeInfo]:
    """Return the nodes, with a mark on those that have been COMPLETING for more than `most` seconds."""
    marked = dict(nodes)
    for job in sorted(jobs, key=lambda one: one.ended, reverse=True):  # the oldest last, so that it wins
        seconds = (now - job.ended).total_seconds()
        for name in job.nodes if seconds > most else ():
            if name in marked and "COMPLETING" in marked[name].flags:
                marked[name] = replace(marked[name], stuck=StuckJob(job.job, job.user, seconds, most))
    return marked


def with_unseen(nodes: Mapping[str, NodeInfo], jobs: Iterable[EndingJob]) -> dict[str, NodeInfo]:
    """Return the nodes, with a mark on those that are COMPLETING for a job that Slurm hides from this user."""
    seen = {name for job in jobs for name in job.nodes}
    unseen = {name for name, info in nodes.items() if "COMPLETING" in info.flags} - seen
    return {name: replace(info, ending_unseen=name in unseen) for name, info in nodes.items()}


def mark_stuck(slurm: Slurm, nodes: Mapping[str, NodeInfo], stated: float | None) -> Mapping[str, NodeInfo]:
    """Mark the nodes that have been COMPLETING for too long; no query unless a node is COMPLETING.

    If Slurm hides the jobs of other users (PrivateData=jobs), the mark is `ending_unseen`.
    """
    if not any("COMPLETING" in info.flags for info in nodes.values()):
        return nodes
    try:
        jobs = parse_ending(slurm.run(*SQUEUE))
        if "jobs" in slurm.config().get("PrivateData", "").split(","):
            nodes = with_unseen(nodes, jobs)
        if not jobs:
            return nodes
        # on the machine of squeue, in the time zone of its times
        now = datetime.fromisoformat(slurm.run("date", "+%Y-%m-%dT%H:%M:%S").strip())
    except (GpuClusterError, ValueError):
        return nodes
    return with_stuck(nodes, jobs, now, allowed(slurm.config(), stated))


def wait_completed(
    slurm: Slurm,
    nodes: Iterable[str],
    patience: float,
    progress: Callable[[str], None],
    wait: Callable[[float], object] = time.sleep,
) -> dict[str, NodeInfo]:
    """Wait until no job is COMPLETING on the nodes; return the nodes without one, in their current state.

    `patience` in seconds; `progress` is called with the reason of a long wait. `wait` sleeps for the given seconds, and
    returns False to stop waiting. SlurmError if Slurm does not answer.
    """
    wanted, begin, pause = frozenset(nodes), time.monotonic(), 0.25
    while True:
        slurm.refresh()
        found = {name: info for name, info in slurm.nodes().items() if name in wanted}
        done = {name: info for name, info in found.items() if "COMPLETING" not in info.flags}
        left = begin + patience - time.monotonic()
        if len(done) == len(found) or left <= 0:
            return done
        if pause == LONG:
            nodes = hostlist.fold(found.keys() - done.keys())
            progress(f"waiting for the epilog on {nodes}, at most {left:.0f} s")
        if wait(min(pause, left)) is False:
            return done
        pause = min(2 * pause, 2 * LONG)
