"""What an Xid of NVIDIA's driver says of the GPU.

The severities follow the lists that azurehpc-health-checks ships (hardware, application); the meanings follow
NVIDIA's Xid catalogue. Two numbers are in both lists and are judged by their own evidence:

- 63, a row remapping was recorded, is the repair itself: what is left to do shows in `remapped_rows.pending`
  (check gpu.remapped_pending), and a repair that failed is Xid 64.
- 68, the video decoder raised an exception, is the application's far more often than the GPU's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """What an Xid asks for."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    EVENT = "event"  # a note of the driver; another check judges the state that it leaves
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Xid:
    """One number of the catalogue."""

    number: int
    meaning: str
    severity: Severity

    @property
    def fails(self) -> bool:
        """A hardware Xid fails the GPU; so does a number that nobody here knows, until somebody has looked."""
        return self.severity in (Severity.HARDWARE, Severity.UNKNOWN)


_HARDWARE = {
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    56: "display engine error",
    57: "error programming the video memory interface",
    58: "unstable video memory interface",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement could not be recorded",
    65: "video processor exception",
    69: "graphics engine class error",
    73: "video encoder error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    81: "VGA subsystem error",
    92: "high rate of single-bit ECC errors",
    94: "contained uncorrectable ECC error",
    95: "uncontained uncorrectable ECC error",
    110: "security fault",
    119: "GSP firmware did not answer in time",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    144: "NVLink error of the link unit (SAW)",
    145: "NVLink error of the retry layer (RLW)",
    146: "NVLink error of the translation layer (TLW)",
    147: "NVLink error of the tree unit (TREX)",
    148: "NVLink error of the power unit (NVLPW)",
    149: "NVLink error of the network port (NETIR)",
    150: "NVLink error of the memory subsystem (MSE)",
}
_APPLICATION = {
    8: "GPU stopped processing",
    11: "invalid or corrupted command stream",
    13: "graphics engine exception, like an access out of bounds",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    43: "GPU stopped processing for an application",
    44: "graphics engine fault during a context switch",
    45: "preemptive cleanup after an earlier error or a killed application",
    68: "video decoder exception",
    109: "context switch timeout",
    137: "an application's illegal NVLink peer access",
}
_EVENT = {
    63: "row remapping or page retirement was recorded",
    121: "corrected error of the C2C link",
    154: "the recovery action of the GPU changed",
}

TABLE: dict[int, Xid] = {
    number: Xid(number, meaning, severity)
    for severity, known in (
        (Severity.HARDWARE, _HARDWARE),
        (Severity.APPLICATION, _APPLICATION),
        (Severity.EVENT, _EVENT),
    )
    for number, meaning in known.items()
}


def lookup(number: int) -> Xid:
    """Return the entry of an Xid; one of unknown severity where the table has none."""
    return TABLE.get(number) or Xid(number, "not in the table of this release", Severity.UNKNOWN)
