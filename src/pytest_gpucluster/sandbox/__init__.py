"""A real Slurm of virtual nodes on one machine."""

from pytest_gpucluster.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]
