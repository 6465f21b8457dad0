"""The suite `probes` of the benchmark: PYTHONPATH has this folder, and its entry point."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(__name__, markers=("probes: The 40 checks as probes",))
