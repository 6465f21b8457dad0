"""MPI programs by mpirun and srun."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=7,
    markers=("mpi: MPI programs by mpirun and srun",),
    section="pytest_gpucluster.kit.mpi.mpi_config:MpiConfig",
    frameworks=("mpi4py",),
    partners=1,
    proof=("mpi.installed", "mpi.between"),
    draft="draft:lines",
    tried="draft:tried",
)
