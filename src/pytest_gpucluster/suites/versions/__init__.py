"""Versions of driver, CUDA, NCCL, OFED, Enroot, Pyxis and Slurm against stated minimum versions."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=4,
    markers=("versions: driver, libraries and Slurm are not older than stated; `-m nccl` selects it too",),
    section="config:VersionsConfig",
    proof=("versions.minimum",),
)
