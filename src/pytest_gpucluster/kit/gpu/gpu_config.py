"""The section `gpu` of a cluster file."""

from __future__ import annotations

from pydantic import Field

from pytest_gpucluster.core.values import Duration, Section


class GpuConfig(Section):
    """How gpu.xid judges the kernel log."""

    about = "how the gpu suite judges Xids"
    order = 2

    xid_max_age: Duration | None = Field(
        None,
        description="an Xid or SXid older than this is only a warning, like 7d; default: all since boot count",
    )
