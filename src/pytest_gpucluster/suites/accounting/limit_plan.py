"""The jobs that reach a limit, and what became of them. Pure.

A limit of the sum of jobs: jobs that use it up run, and one more waits. A limit of one job: a job of its size runs, and
one just above it waits or is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import units
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suites.accounting.config import JOB_LIMITS, MOST_JOBS, reason_beyond

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.suites.accounting.config import LimitTrial
    from pytest_gpucluster.suites.accounting.facts import Answer, TrialJob

MIB = 1024**2
MEMORY = 100 * MIB  # bytes of a job of a trial; without --mem it may get all memory of its node
USABLE = 0.9  # of a node's memory: MemSpecLimit


@dataclass(frozen=True)
class JobSize:
    """A job: how much of the limit it requests, and its options of sbatch."""

    amount: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class LimitResult:
    """Jobs that reached a limit, in the order of `sizes`, which has 1 for each where it is empty.

    `refused`: Slurm's answer to the first job that it did not accept, and its number, from 1.
    """

    trial: LimitTrial
    amount: int
    jobs: tuple[TrialJob, ...] = ()
    refused: tuple[int, Answer] | None = None
    problem: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def expected(self) -> str:
        """The reason of the job beyond the limit."""
        return reason_beyond(self.trial.owner, self.trial.limit, self.trial.tres or "")

    @property
    def used(self) -> tuple[int, ...]:
        """How much of the limit each job uses: what it is allocated, at least what it requested."""
        sizes = self.sizes or (1,) * len(self.jobs)
        tres = self.trial.tres or ""
        return tuple(max(size, job.tres.get(tres, 0)) for size, job in zip(sizes, self.jobs, strict=False))

    def complete(self, *, started: bool = False) -> bool:
        """Return whether Slurm accepted each job so far, and started it or (unless `started`) gave a reason of its own."""
        return not self.refused and all(job.started if started else job.decided for job in self.jobs)

    def shown(self, amount: int) -> str:
        """Return an amount for a message."""
        if self.trial.tres == "mem":
            return units.write_size(amount)
        return units.slurm_time(60.0 * amount) if self.trial.limit == "MaxWall" else str(amount)


def first_job(trial: LimitTrial) -> JobSize | None:
    """Return the job whose allocation is the unit of the others: a job may get whole cores or nodes; else None."""
    of_job = trial.limit in JOB_LIMITS
    if trial.tres == "cpu" or (of_job and trial.tres not in (None, "mem", "node")):
        return JobSize(1, _tasks(trial, 1, 1, 1))
    return None


def planned(trial: LimitTrial, amount: int, unit: int, nodes: Sequence[NodeInfo]) -> list[list[JobSize]]:
    """Return the jobs to submit after `first_job`, which was allocated `unit`; NotAvailable if they need too many nodes.

    Slurm must decide on each list before the next one is submitted. The last job is beyond the limit. `nodes`: those of
    the partition.
    """
    if trial.limit == "MaxWall":
        return [[_of_time(minutes) for minutes in (amount, amount + 1)]]
    if trial.tres == "mem":
        if trial.limit in JOB_LIMITS:
            return [[_of_memory(amount, nodes), _of_memory(amount, nodes, more=1)]]
        return [[_of_memory(size, nodes)] for size in (MEMORY, amount - MEMORY, MEMORY)]
    if trial.limit in JOB_LIMITS:
        counts = (amount // unit, amount // unit + 1)
    elif trial.tres == "cpu":
        counts = (amount // unit - 1, 1)
    else:
        return [[JobSize(1, _tasks(trial, 1, 1, 1))] * (amount + 1)]
    return [[_of_tasks(trial, count, unit, nodes)] for count in counts if count > 0]


def _of_tasks(trial: LimitTrial, count: int, unit: int, nodes: Sequence[NodeInfo]) -> JobSize:
    """Return a job of `count` tasks, each with `unit` of the TRES."""
    if trial.tres == "node":
        wanted = count
    elif trial.tres == "cpu":
        wanted = _nodes(count * unit, [node.job_cpus for node in nodes])
    else:
        wanted = _nodes(count * unit, [node.gpus for node in nodes])
    return JobSize(count * unit, _tasks(trial, count, unit, wanted))


def _tasks(trial: LimitTrial, count: int, unit: int, nodes: int) -> tuple[str, ...]:
    if not trial.tres:
        return ()
    size = (f"--nodes={nodes}", f"--ntasks={count}")
    if trial.tres == "node":
        return (*size, "--exclusive")
    if trial.tres == "cpu":
        return (*size, f"--cpus-per-task={unit}")
    gpu_type = trial.tres.partition(":")[2]
    return (*size, f"--gpus-per-task={gpu_type}:{unit}" if gpu_type else f"--gpus-per-task={unit}")


def _of_memory(size: int, nodes: Sequence[NodeInfo], *, more: int = 0) -> JobSize:
    """Return a job of this many bytes, rounded down to MiB on each node, and `more` MiB on each."""
    count = _nodes(size, [int(node.memory * USABLE) for node in nodes])
    each = size // MIB // count + more
    return JobSize(each * count * MIB, (f"--nodes={count}", f"--ntasks={count}", f"--mem={each}M"))


def _of_time(minutes: int) -> JobSize:
    # --deadline must be later than the end of the job
    return JobSize(minutes, (f"--time={minutes}", f"--deadline=now+{minutes + 15}minutes"))


def _nodes(amount: int, capacities: list[int]) -> int:
    """Return how many of the smallest nodes have an amount."""
    least = min((capacity for capacity in capacities if capacity > 0), default=amount)
    count = max(1, math.ceil(amount / least))
    if count > MOST_JOBS:
        raise NotAvailable(f"a job of this size needs {count} nodes; a trial takes at most {MOST_JOBS}")
    return count
