"""Launchers by workloads."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=8,
    markers=("matrix: launchers by workloads, a table at the end",),
    section="config:MatrixConfig",
    proof=("matrix.works",),
    settings={"expected": "checks:refuse_cells"},
    stated="the launchers to compare: a section `mpi`, and environments with images",
)
