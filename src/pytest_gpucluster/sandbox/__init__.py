"""A real Slurm of virtual nodes on one machine."""

from pytest_gpucluster.sandbox import environment_faults  # noqa: F401 (it registers its faults)
from pytest_gpucluster.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]
