"""The jobs that reach a limit: how many, of which size, on how many nodes."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suites.accounting.config import LimitTrial
from pytest_gpucluster.suites.accounting.limit_plan import JobSize, first_job, planned

MIB, GIB = 1024**2, 1024**3
TWO_CPUS = "2 nodes=1 ntasks=1 cpus-per-task=2"
CORE, ONE = "cpus-per-task=2", "nodes=1 ntasks=1 "
FOUR, TWO = "gpus-per-task=4", "nodes=2 ntasks=2 mem="
NODES = [
    NodeInfo("a", "IDLE", cpus=16, memory=100 * GIB, gres={"gpu:h200": 4}),
    NodeInfo("login", "IDLE", cpus=0),
]


def trial(limit: str, tres: str | None = None) -> LimitTrial:
    return LimitTrial(qos="q", limit=limit, tres=tres)


def written(jobs: list[list[JobSize]]) -> str:
    """Return '2 nodes=1 mem=4M & 3 ... then ...': what each job requests, and its options."""
    return " then ".join(
        " & ".join(
            " ".join([str(job.amount), *(one.removeprefix("--") for one in job.options)]) for job in one
        )
        for one in jobs
    )


def test_planned() -> None:
    for limit, tres, amount, unit, expected in (
        ("MaxJobsPU", None, 2, 1, "1 & 1 & 1"),
        ("GrpTRES", "node", 1, 1, "1 nodes=1 ntasks=1 exclusive & 1 nodes=1 ntasks=1 exclusive"),
        ("GrpTRES", "gres/gpu:h200", 0, 1, "1 nodes=1 ntasks=1 gpus-per-task=h200:1"),
        # after the first job, of one core with two threads
        ("MaxTRESPU", "cpu", 41, 2, f"38 nodes=3 ntasks=19 cpus-per-task=2 then {TWO_CPUS}"),
        ("MaxTRESPU", "cpu", 3, 2, TWO_CPUS),
        ("MaxTRES", "cpu", 5, 2, f"4 nodes=1 ntasks=2 {CORE} then 6 nodes=1 ntasks=3 {CORE}"),
        # on nodes that are allocated whole
        ("MaxTRES", "gres/gpu", 8, 4, f"8 nodes=2 ntasks=2 {FOUR} then 12 nodes=3 ntasks=3 {FOUR}"),
        ("MaxTRES", "node", 2, 1, "2 nodes=2 ntasks=2 exclusive then 3 nodes=3 ntasks=3 exclusive"),
        ("GrpTRES", "mem", 300 * MIB, 1, " then ".join(f"{n * MIB} {ONE}mem={n}M" for n in (100, 200, 100))),
        ("MaxTRES", "mem", 100 * GIB, 1, f"{100 * GIB} {TWO}51200M & {100 * GIB + 2 * MIB} {TWO}51201M"),
        ("MaxWall", None, 30, 1, "30 time=30 deadline=now+45minutes & 31 time=31 deadline=now+46minutes"),
    ):
        assert written(planned(trial(limit, tres), amount, unit, NODES)) == expected


def test_unit_is_measured_where_a_job_may_get_more_than_it_requests() -> None:
    for limit, tres in (("MaxTRESPU", "cpu"), ("MaxTRES", "cpu"), ("MaxTRES", "gres/gpu")):
        assert first_job(trial(limit, tres)) is not None
    for limit, tres in (("MaxTRES", "mem"), ("MaxTRES", "node"), ("GrpTRES", "gres/gpu")):
        assert first_job(trial(limit, tres)) is None
    for limit in ("MaxWall", "MaxJobsPU"):
        assert first_job(trial(limit)) is None


def test_job_of_too_many_nodes_is_not_submitted() -> None:
    assert written(planned(trial("MaxTRES", "cpu"), 127, 1, NODES)).count("nodes=8 ") == 2
    with pytest.raises(NotAvailable, match="needs 9 nodes; a trial takes at most 8"):
        planned(trial("MaxTRES", "cpu"), 128, 1, NODES)
