"""Checks of the GPUs of a node."""

from pytest_gpucluster.suites.gpu.checks import health, inventory, links, memory

MODULES = (inventory, memory, links, health)  # the order of items
