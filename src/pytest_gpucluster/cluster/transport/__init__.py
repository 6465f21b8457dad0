"""Where control commands run: this machine, or a login node. The only door to subprocess."""

from pytest_gpucluster.cluster.transport.base import Completed, Process, RemoteProcess, Transport
from pytest_gpucluster.cluster.transport.local import LocalTransport, kill_group

__all__ = ["Completed", "LocalTransport", "Process", "RemoteProcess", "Transport", "kill_group"]
