"""The parts of every node, by serial number: what a buyer signs, and what the history follows."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=2,
    lists_parts="parts.inventory",
    markers=("parts: the parts of the nodes by serial number; fails no node",),
)
