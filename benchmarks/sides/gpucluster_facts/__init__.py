"""The suite `facts` of the benchmark: PYTHONPATH has this folder, and its entry point."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(__name__, markers=("facts: The 40 checks as facts",))
