"""The section `ibfabric` of a cluster file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Count, LocalPath, OptionalSection

Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class IbFabricConfig(OptionalSection):
    """The InfiniBand subnet as a whole: infiniband-diags, run on one host."""

    about = "requires infiniband-diags on a node or on a management host"
    order = 16

    host: Host | None = Field(
        None,
        description="management host with infiniband-diags, reached by `ssh -o BatchMode=yes HOST` from where Slurm's commands "
        "run; default: the first node that has them",
    )
    switches: Count | None = Field(
        None,
        description="number of switches that the subnet must have; default: no fewer than in the last accepted run",
    )
    links: Count | None = Field(
        None,
        description="number of links that the subnet must have; default: no fewer between switches than in the last accepted run",
    )
    plan: tuple[LocalPath, ...] = Field(
        (),
        description="files of the cabling plan, beside the cluster file: a CSV sheet of NVIDIA's Cable Validation Tool, a saved "
        "output of ibnetdiscover, Slurm's topology.conf or topology.yaml, and a node name map or HCA mapping",
    )
    # seconds between two readings of the error counters
    counted: ClassVar[int] = 5
    # seconds for all tools; a discovery of 10,000 ports takes about 10
    timeout: ClassVar[float] = 180
    # where ibdiagnet leaves its files
    diagnet: ClassVar[str] = "/var/tmp/ibdiagnet2"
