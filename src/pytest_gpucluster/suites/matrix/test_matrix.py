"""Which launcher runs which workload: mpirun, srun, srun + Pyxis, with CPU, GPU, MPI and NCCL; a table at the end.

One item per cell, and one per workload that compares its speed: `pytest --cluster=prod -m matrix -k 'mpi and srun_pyxis'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.framework.framework_step import nodes_by_allocation
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.matrix import checks, speed
from pytest_gpucluster.suites.matrix.config import MatrixConfig
from pytest_gpucluster.suites.matrix.steps import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.run.session import ClusterSession


config = required_section(MatrixConfig)


@of_fleet(config, given.allocation, given.session)
def matrices(
    config: MatrixConfig,
    allocation: Allocation,  # not applicable without a scheduler
    session: ClusterSession,
) -> Iterator[list[Matrix]]:
    """One matrix per allocation."""
    channel = session.need_channel()
    made = [Matrix(held, session, channel, config, nodes) for held, nodes in nodes_by_allocation(session)]
    if not made:
        raise NotAvailable("no allocation has nodes that can be tested")
    yield made
    for matrix in made:
        matrix.clean_up()


cells = of_node(
    each=lambda _cluster: {
        checks.name_of(row, column): (row, column) for row in checks.ROWS for column in checks.COLUMNS
    }
)
measured = of_node(each=lambda _cluster: {column: column for column in speed.MEASURED})


def test_cell(matrices: list[Matrix], cells: tuple[str, str], table: Callable[..., None]) -> Verdict:
    """The workload works under the launcher, or fails as the cluster file expects."""
    row, column = cells
    cell = checks.together([matrix.cell(row, column) for matrix in matrices])
    place = [*checks.ROWS].index(row), [*checks.COLUMNS].index(column)
    table(checks.TITLE, checks.ROWS[row], checks.COLUMNS[column], cell.text, note=cell.note, place=place)
    return checks.cell(cell)


def test_works(matrices: list[Matrix]) -> Verdict:
    """At least one launcher runs each workload that hardware and cluster file have."""
    return combined(
        checks.works([matrix.cell(row, column) for row in checks.ROWS for column in checks.COLUMNS])
        for matrix in matrices
    )


def test_speed(matrices: list[Matrix], measured: str) -> Verdict:
    """The workload is as fast under each launcher as under the others."""
    return combined(speed.speed(matrix.compared(measured)) for matrix in matrices)


TESTS = Tests(marks=("matrix",))
