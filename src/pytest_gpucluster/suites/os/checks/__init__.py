"""Checks of the operating system. Values that the cluster file does not state are compared within the node's group."""

from pytest_gpucluster.suites.os.checks import (
    bmc,
    crashes,
    devices,
    disks,
    drift,
    drives,
    hardware,
    mounts,
    network,
    software,
    state,
    system,
)

# the order of items
MODULES = (system, hardware, devices, drives, drift, mounts, state, bmc, crashes, disks, software, network)
