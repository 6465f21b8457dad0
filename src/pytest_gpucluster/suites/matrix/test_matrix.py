"""Which launcher runs which workload: mpirun, srun, srun + Pyxis, with CPU, GPU, MPI and NCCL; a table at the end.

One item a cell: `pytest --cluster=prod -m matrix -k 'mpi and srun_pyxis'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suites.matrix import checks
from pytest_gpucluster.suites.matrix.steps import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession

pytestmark = [pytest.mark.matrix]


@pytest.fixture(scope="session")
def asked_for(cluster: Cluster) -> None:
    """The matrix is made where the cluster file asks for it."""
    if cluster.matrix is None:
        pytest.skip("not applicable: cluster file does not ask for the experiment matrix (add `matrix:`)")


@pytest.fixture(scope="session")
def matrix(asked_for: None, allocation: Allocation, gpucluster_session: ClusterSession) -> Iterator[Matrix]:  # noqa: ARG001 - first
    """The matrix over the nodes of the first allocation."""
    session = gpucluster_session
    nodes = session.without_problem(allocation.nodes)
    channel, slurm = session.need_channel(), allocation.slurm
    made = Matrix(slurm, allocation, session.cluster, channel, session.inventory, nodes=nodes)
    yield made
    made.clean_up()


@pytest.mark.parametrize(
    ("row", "column"),
    [
        pytest.param(row, column, id=checks.name_of(row, column))
        for row in checks.ROWS
        for column in checks.COLUMNS
    ],
)
def test_cell(matrix: Matrix, row: str, column: str, expect: Expect, table: Callable[..., None]) -> None:
    """The workload works under the launcher, or fails as the cluster file expects."""
    cell = matrix.cell(row, column)
    place = [*checks.ROWS].index(row), [*checks.COLUMNS].index(column)
    table(
        checks.TITLE, checks.ROWS[row], checks.COLUMNS[column], cell.state.value, note=cell.note, place=place
    )
    expect(checks.cell(cell))
