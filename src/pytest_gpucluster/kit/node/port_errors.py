"""How many errors the port of a healthy link counts in a time, and which of them prove that the port is at fault. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Thresholds of ibqueryerrors (infiniband-diags/etc/error_thresholds). A higher value is only a warning: the counters run
# since the driver's start or since they were cleared, and the time of an error is not known.
USUAL = {
    "symbol_error": 10,
    "link_error_recovery": 10,
    "link_downed": 10,
    "port_rcv_errors": 10,
    "port_rcv_remote_physical_errors": 100,
    "port_xmit_discards": 100,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 10,
    "VL15_dropped": 100,
}
# faults of another port, congestion, and sweeps of the subnet manager: healthy ports count these
CAUSED_ELSEWHERE = ("port_rcv_remote_physical_errors", "port_xmit_discards", "VL15_dropped")
LINK_LOST = ("link_downed", "link_error_recovery")  # no increase is accepted while a test runs
BIT_ERRORS = ("symbol_error", "local_link_integrity_errors")
# twice the bit error ratio of 1e-12 that volume 2 of IBTA allows for a link, in errors per GB
ERRORS_PER_GB = 2e-12 * 8e9


def allowed(counter: str, rate: float, seconds: float) -> float:
    """Return how far a counter of USUAL may rise in a time; rate: of the port, in GB/s."""
    return 0 if counter in LINK_LOST else USUAL[counter] + ERRORS_PER_GB * rate * seconds


def proves_fault(counter: str, rises: Mapping[str, float]) -> bool:
    """Return whether this counter, beyond what is allowed, proves a fault of the port or its cable.

    Only bit errors do, and only if the link did not go down meanwhile: work at the cable or the restart of a switch causes
    errors at any port. rises: {counter: increase} of the port.
    """
    return counter in BIT_ERRORS and not any(rises.get(lost) for lost in LINK_LOST)
