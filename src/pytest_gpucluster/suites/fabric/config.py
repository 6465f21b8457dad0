"""The section `fabric` of a cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pytest_gpucluster.core.values import Section

Counter = Literal[
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
]  # fmt: skip


class FabricConfig(Section):
    """What the fabric suite accepts."""

    about = "what the fabric suite accepts"
    order = 4

    counters: dict[Counter, Annotated[int, Field(ge=0)]] = Field(
        {},
        description="highest accepted value per error counter of a port, like {symbol_error: 100}; above it "
        "fabric.counters fails. Without it, an old value is a warning",
    )
