"""Where control commands run: this machine, or a login node. The only door to subprocess."""

from pytest_gpucluster.cluster.transport.base import Completed, FarProcess, Process, Transport
from pytest_gpucluster.cluster.transport.local import LocalTransport, kill_group

__all__ = ["Completed", "FarProcess", "LocalTransport", "Process", "Transport", "kill_group"]
