"""The section `rdma` of a cluster file, and the rows `rdma` of a profile."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Bandwidth, ProfileRow
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig


class RdmaLimit(ProfileRow):
    """The lowest bandwidth of one port on one kind of node."""

    about = "lowest accepted bandwidth of RDMA over one port"

    bandwidth: Bandwidth = Field(gt=0, description="what ib_write_bw reaches in one direction, like 375 Gb/s")
    source: str = Field(description="origin of the figure")


class RdmaConfig(FrameworkConfig):
    """RDMA between the adapters of nodes."""

    about = "requires perftest (ib_write_bw, ib_send_bw, ib_read_lat) on the nodes"
    order = 7

    # time limit of one test over one rail; a test that exceeds it counts as hanging
    deadline: ClassVar[float] = 20
