"""Execution of control commands on this machine or on a login node; the only package that starts processes."""

from pytest_gpucluster.cluster.transport.base import Completed, RemoteProcess, Transport
from pytest_gpucluster.cluster.transport.local import LocalTransport, kill_group

__all__ = ["Completed", "LocalTransport", "RemoteProcess", "Transport", "kill_group"]
