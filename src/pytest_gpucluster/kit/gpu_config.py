"""The section `gpu` of a cluster file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from pytest_gpucluster.core.values import Duration, Section


def _xid(number: int) -> int:
    """Return a number that the driver may print: Xids have three digits at most, SXids five.

    Xid catalogue of 2025-10-29: 1 to 172; Fabric Manager User Guide, Appendix D: SXids from 10001 on.
    """
    if not (1 <= number <= 999 or 10_000 <= number <= 99_999):
        raise ValueError(f"must be an Xid (1 to 999) or an SXid (10000 to 99999), not {number}")
    return number


class GpuConfig(Section):
    """How gpu.xid judges the kernel log."""

    about = "how the gpu suite judges Xids"
    order = 2

    xid_ignore: tuple[Annotated[int, AfterValidator(_xid)], ...] = Field(
        (), description="Xids and SXids that are only warnings, like [74, 119]"
    )
    xid_max_age: Duration | None = Field(
        None,
        description="an Xid or SXid older than this is only a warning, like 7d; default: all since boot count",
    )
