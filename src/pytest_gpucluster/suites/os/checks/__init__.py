"""Checks of the operating system. Values that the cluster file does not state are compared within the node's group."""

from pytest_gpucluster.suites.os.checks import (
    bmc,
    crashes,
    devices,
    disks,
    drives,
    hardware,
    mounts,
    network,
    settings,
    software,
    state,
    system,
)

MODULES = (
    system,
    hardware,
    devices,
    drives,
    settings,
    mounts,
    state,
    bmc,
    crashes,
    disks,
    software,
    network,
)  # the order of items
