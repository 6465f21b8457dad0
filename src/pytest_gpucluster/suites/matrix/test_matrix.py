"""Which launcher runs which workload: mpirun, srun, srun + Pyxis, with CPU, GPU, MPI and NCCL; a table at the end.

One item per cell, and one per workload that compares its speed: `pytest --cluster=prod -m matrix -k 'mpi and srun_pyxis'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.kit.framework_step import nodes_by_allocation
from pytest_gpucluster.suite import required_section
from pytest_gpucluster.suites.matrix import checks, speed
from pytest_gpucluster.suites.matrix.config import MatrixConfig
from pytest_gpucluster.suites.matrix.steps import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession

pytestmark = [pytest.mark.matrix]

config = required_section(MatrixConfig)


@pytest.fixture(scope="session")
def matrices(
    config: MatrixConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> Iterator[list[Matrix]]:
    """One matrix per allocation."""
    session, channel = gpucluster_session, gpucluster_session.need_channel()
    made = [Matrix(held, session, channel, config, nodes) for held, nodes in nodes_by_allocation(session)]
    if not made:
        pytest.skip("not checked: no allocation has nodes that can be tested")
    yield made
    for matrix in made:
        matrix.clean_up()


@pytest.mark.parametrize(
    ("row", "column"),
    [
        pytest.param(row, column, id=checks.name_of(row, column))
        for row in checks.ROWS
        for column in checks.COLUMNS
    ],
)
def test_cell(
    matrices: list[Matrix], row: str, column: str, expect: Expect, table: Callable[..., None]
) -> None:
    """The workload works under the launcher, or fails as the cluster file expects."""
    cell = checks.together([matrix.cell(row, column) for matrix in matrices])
    place = [*checks.ROWS].index(row), [*checks.COLUMNS].index(column)
    table(checks.TITLE, checks.ROWS[row], checks.COLUMNS[column], cell.text, note=cell.note, place=place)
    expect(checks.cell(cell))


def test_works(matrices: list[Matrix], expect: Expect) -> None:
    """At least one launcher runs each workload that hardware and cluster file have."""
    expect(
        combined(
            checks.works([matrix.cell(row, column) for row in checks.ROWS for column in checks.COLUMNS])
            for matrix in matrices
        )
    )


@pytest.mark.parametrize("column", speed.MEASURED)
def test_speed(matrices: list[Matrix], column: str, expect: Expect) -> None:
    """The workload is as fast under each launcher as under the others."""
    expect(combined(speed.speed(matrix.compared(column)) for matrix in matrices))
