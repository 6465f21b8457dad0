"""Execution of control commands on this machine or on a login node. No other package imports subprocess.run or Popen."""

from pytest_gpucluster.cluster.transport.base import Completed, Process, RemoteProcess, Transport
from pytest_gpucluster.cluster.transport.local import LocalTransport, kill_group

__all__ = ["Completed", "LocalTransport", "Process", "RemoteProcess", "Transport", "kill_group"]
