"""The jobs that reach a limit: how many, of which size, on how many nodes."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suites.accounting.config import LimitTrial
from pytest_gpucluster.suites.accounting.limit_plan import JobSize, first_job, planned

GIB = 1024**3
MIB = 1024**2
NODES = [
    NodeInfo("a", "IDLE", cpus=16, memory=100 * GIB, gres={"gpu:h200": 4}),
    NodeInfo("login", "IDLE", cpus=0),
]


def trial(limit: str, tres: str | None = None) -> LimitTrial:
    return LimitTrial(qos="q", limit=limit, tres=tres)


def options(jobs: list[list[JobSize]]) -> list[list[tuple[int, str]]]:
    return [[(job.amount, " ".join(job.options)) for job in together] for together in jobs]


@pytest.mark.parametrize(
    ("limit", "tres", "amount", "unit", "expected"),
    [
        ("MaxJobsPU", None, 2, 1, [[(1, "")] * 3]),
        ("GrpTRES", "node", 1, 1, [[(1, "--nodes=1 --ntasks=1 --exclusive")] * 2]),
        ("GrpTRES", "gres/gpu:h200", 1, 1, [[(1, "--nodes=1 --ntasks=1 --gpus-per-task=h200:1")] * 2]),
        # after the first job, of one core with two threads
        (
            *("MaxTRESPU", "cpu", 41, 2),
            [
                [(38, "--nodes=3 --ntasks=19 --cpus-per-task=2")],
                [(2, "--nodes=1 --ntasks=1 --cpus-per-task=2")],
            ],
        ),
        ("MaxTRESPU", "cpu", 3, 2, [[(2, "--nodes=1 --ntasks=1 --cpus-per-task=2")]]),
        (
            *("MaxTRES", "cpu", 5, 2),
            [
                [(4, "--nodes=1 --ntasks=2 --cpus-per-task=2")],
                [(6, "--nodes=1 --ntasks=3 --cpus-per-task=2")],
            ],
        ),
        # on nodes that are allocated whole
        (
            *("MaxTRES", "gres/gpu", 8, 4),
            [
                [(8, "--nodes=2 --ntasks=2 --gpus-per-task=4")],
                [(12, "--nodes=3 --ntasks=3 --gpus-per-task=4")],
            ],
        ),
        (
            *("MaxTRES", "node", 2, 1),
            [[(2, "--nodes=2 --ntasks=2 --exclusive")], [(3, "--nodes=3 --ntasks=3 --exclusive")]],
        ),
        (
            *("GrpTRES", "mem", 300 * MIB, 1),
            [
                [(100 * MIB, "--nodes=1 --ntasks=1 --mem=100M")],
                [(200 * MIB, "--nodes=1 --ntasks=1 --mem=200M")],
                [(100 * MIB, "--nodes=1 --ntasks=1 --mem=100M")],
            ],
        ),
        (
            *("MaxTRES", "mem", 100 * GIB, 1),
            [
                [
                    (100 * GIB, "--nodes=2 --ntasks=2 --mem=51200M"),
                    (100 * GIB + 2 * MIB, "--nodes=2 --ntasks=2 --mem=51201M"),
                ]
            ],
        ),
        (
            *("MaxWall", None, 30, 1),
            [[(30, "--time=30 --deadline=now+45minutes"), (31, "--time=31 --deadline=now+46minutes")]],
        ),
    ],
)
def test_planned(
    limit: str, tres: str | None, amount: int, unit: int, expected: list[list[tuple[int, str]]]
) -> None:
    assert options(planned(trial(limit, tres), amount, unit, NODES)) == expected


@pytest.mark.parametrize(
    ("limit", "tres", "needed"),
    [
        ("MaxTRESPU", "cpu", True),
        ("MaxTRES", "cpu", True),
        ("MaxTRES", "gres/gpu", True),
        ("MaxTRES", "mem", False),
        ("MaxTRES", "node", False),
        ("GrpTRES", "gres/gpu", False),
        ("MaxWall", None, False),
        ("MaxJobsPU", None, False),
    ],
)
def test_unit_is_measured_where_a_job_may_get_more_than_it_requests(
    limit: str, tres: str | None, needed: bool
) -> None:
    assert (first_job(trial(limit, tres)) is not None) is needed


def test_job_of_too_many_nodes_is_not_submitted() -> None:
    with pytest.raises(NotAvailable, match="needs 9 nodes; a trial takes at most 8"):
        planned(trial("MaxTRES", "cpu"), 144, 1, NODES)
