"""Checks of the operating system. What the cluster file does not state is compared with the node's own group."""

from pytest_gpucluster.suites.os.checks import (
    disks,
    hardware,
    mounts,
    network,
    settings,
    software,
    state,
    system,
)

MODULES = (system, hardware, settings, mounts, state, disks, software, network)  # the order of items
