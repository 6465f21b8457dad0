"""The action that NVIDIA requires for an Xid of its driver.

The table holds the column "Resolution Bucket (Immediate Action)" of NVIDIA's Xid catalogue
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, Xid-Catalog.xlsx of 2025-10-29). Where the catalogue
names a workflow instead of an action:

- 45 (WORKFLOW_XID_45): follow the other Xid of that GPU; alone it is a process that was killed.
- 48 (WORKFLOW_XID_48) and 74 (WORKFLOW_NVLINK_ERR): a reset of the GPU is the first step of both.
- 144 to 150 (WORKFLOW_NVLINK5_ERR): the sheet "Xid 144-150 Decode" requires a reset if the severity is fatal, and
  nothing if it is non-fatal; the driver prints the severity.
- 154: the driver prints the action (open-gpu-kernel-modules, gpu.c, _gpuRecoveryActionName).
- 171 and 172 come with a 48 and name the memory that failed. 78 and 159 are software faults. 162 to 170 have no action.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace


class Advice(str, enum.Enum):
    """The required action, from mild to severe."""

    IGNORE = "nothing to do"
    APPLICATION = "restart the application"
    UNKNOWN = "no action known"
    SOFTWARE = "update or check software"
    RESET = "reset the GPU"
    REBOOT = "restart the node"
    SUPPORT = "contact support"


@dataclass(frozen=True)
class Xid:
    """One number of the catalogue."""

    number: int
    meaning: str
    advice: Advice
    kind: str = "Xid"

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.meaning} ({self.advice.value})"

    @property
    def fails(self) -> bool:
        """Whether the GPU needs a repair; a number without a known action does not prove a fault."""
        return self.advice in (Advice.RESET, Advice.REBOOT, Advice.SUPPORT)

    @property
    def warns(self) -> bool:
        """Whether an operator should check it, although nothing proves a fault of the GPU."""
        return self.advice in (Advice.UNKNOWN, Advice.SOFTWARE)


_UNUSED = "unused according to NVIDIA's catalogue"
_NVLINK5 = "NVLink 5 error of the"
_ACTIONS: dict[Advice, dict[int, str]] = {
    Advice.IGNORE: {
        14: _UNUSED,
        37: "driver firmware error",
        38: "driver firmware error",
        43: "GPU stopped processing for an application",
        44: "graphics engine fault during a context switch",
        63: "row remapping or page retirement was recorded",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        92: "high rate of single-bit ECC errors",
        93: "wear limit of the InfoROM exceeded",
        106: "SMBPBI test message",
        107: "SMBPBI test message",
        108: _UNUSED,
        121: "error of the C2C link",
        137: "NVLink privilege error",
        141: "CUDA fast path error",
        152: "DLA SMMU error",
        153: "DLA timeout",
        157: "resource retirement failed",
        160: "a channel was retired",
        161: "channel retirement failed",
        162: "power smoothing was engaged again",
        163: "power smoothing was disengaged",
    },
    Advice.APPLICATION: {
        8: "GPU stopped processing",
        11: "invalid or corrupted push buffer stream",
        13: "graphics engine exception",
        25: "invalid or illegal push buffer stream",
        31: "GPU memory page fault",
        32: "invalid or corrupted push buffer stream",
        **dict.fromkeys((39, 40, 41), "copy engine exception"),
        45: "preemptive cleanup, due to previous errors",
        60: "video processor exception",
        68: "video decoder exception",
        69: "graphics engine class error",
        **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
        80: "corrupted data sent to the GPU",
        **dict.fromkeys((82, *range(99, 106)), "JPEG decoder error"),
        **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
        86: "optical flow accelerator exception",
        94: "contained memory error",
        139: "optical flow accelerator error",
    },
    Advice.RESET: {
        46: "GPU stopped processing",
        48: "double-bit ECC error",
        62: "internal micro-controller halt",
        64: "row remapping or page retirement failed",
        74: "NVLink error",
        95: "uncontained memory error",
        109: "context switch timeout",
        110: "security fault",
        119: "GSP firmware did not answer in time",
        120: "GSP firmware error",
        136: "NVLink training failed",
        140: "unrecovered ECC error",
        143: "GPU initialization failed",
        144: f"{_NVLINK5} link unit (SAW)",
        145: f"{_NVLINK5} retry layer (RLW)",
        146: f"{_NVLINK5} translation layer (TLW)",
        147: f"{_NVLINK5} tree unit (TREX)",
        148: f"{_NVLINK5} control unit (NVLPW)",
        149: f"{_NVLINK5} network port (NETIR)",
        150: f"{_NVLINK5} memory subsystem (MSE)",
        155: "NVLink error defined by software",
        156: "a resource was retired",
        158: "GPU fatal timeout",
        171: "uncorrectable DRAM error",
        172: "uncorrectable SRAM error",
    },
    Advice.REBOOT: {79: "GPU has fallen off the bus", 151: "key rotation error"},
    Advice.SUPPORT: {
        54: "auxiliary power is not connected",
        142: "video encoder error",
        **dict.fromkeys(
            (
                *(
                    *range(1, 8),
                    9,
                    10,
                    12,
                    *range(15, 25),
                    *range(26, 31),
                    33,
                    34,
                    35,
                    36,
                    42,
                    47,
                    *range(49, 54),
                ),
                *(55, 56, 57, 58, 59, 61, 65, 73, 81, 87, 90, 91, *range(111, 119), 122, 123, 124, 125, 138),
            ),
            _UNUSED,
        ),
    },
    Advice.SOFTWARE: {78: "vGPU start error", 159: "CHI non-data error"},
    Advice.UNKNOWN: {
        154: "the recovery action of the GPU changed",
        164: "power smoothing: low lifetime",
        165: "power smoothing: lifetime exhausted",
        166: "NVLink traffic before encryption was configured",
        167: "PCIe fatal timeout",
        168: "errors in the write-protected region, less GPU memory",
        169: "internal micro-controller halt (SEC2)",
        170: "NVLink interrupt in confidential mode",
    },
}

TABLE: dict[int, Xid] = {
    number: Xid(number, meaning, advice)
    for advice, known in _ACTIONS.items()
    for number, meaning in known.items()
}

RECOVERY = {
    "None": Advice.IGNORE,
    "GPU Reset Required": Advice.RESET,
    "Node Reboot Required": Advice.REBOOT,
    "Drain P2P": Advice.SUPPORT,  # no job may use NVLink until all that do have ended: the node must be drained
    "Drain and Reset": Advice.RESET,
}
_RECOVERY = re.compile(r"to 0x[0-9a-f]+ \(([^)]*)\)", re.IGNORECASE)
_NVLINK = range(144, 151)
# "Contained: CE User Channel (0x9). RST: No, D-RST: No" (kern_gpu_error_cont_ga100.c); D-RST: drain and reset
_RESET = re.compile(r"RST: Yes")
_PROCESS = re.compile(r"pid=[^,]*,\s*name=[^,]*")


def lookup(number: int, text: str = "") -> Xid:
    """Return the entry of an Xid. `text` follows the number in the log and takes precedence over the table."""
    entry = TABLE.get(number) or Xid(number, "not in the table of this release", Advice.UNKNOWN)
    words = _PROCESS.sub("", text)
    if number == RECOVERY_CHANGED:
        action = _RECOVERY.search(words)
        name = action[1] if action else ""
        return replace(
            entry,
            meaning=f"{entry.meaning} to {name}" if name else entry.meaning,
            advice=RECOVERY.get(name, Advice.UNKNOWN),
        )
    if number in _NVLINK and nonfatal(words):
        return replace(entry, advice=Advice.IGNORE)
    if number == CONTAINED and _RESET.search(words):
        return replace(entry, advice=Advice.RESET)
    return entry


CONTAINED = 94
RECOVERY_CHANGED = 154


def nonfatal(words: str) -> bool:
    """Return whether the driver calls an event non-fatal: "Nonfatal" in Xids, "Non-fatal" in SXids."""
    return re.search(r"\bnon-?fatal\b", words, re.IGNORECASE) is not None


def lookup_sxid(number: int, text: str) -> Xid:
    """Return the entry of an SXid, from the first word that the driver of the NVSwitch prints after its number.

    open-gpu-kernel-modules, intr_nvswitch.h and error_nvswitch.h: Fatal, Non-fatal or Correctable; messages of its
    firmware, temperature and modules have no such word. NVIDIA's Fabric Manager User Guide, "Fatal NVSwitch SXid
    Errors": the GPUs and NVSwitches must be reset.
    """
    first = re.match(r"\s*(non-fatal|correctable|fatal)\b", text, re.IGNORECASE)
    found = _SWITCH[first[1].lower()] if first else Advice.UNKNOWN
    return Xid(number, text[:QUOTED_LENGTH], found, "SXid")


_SWITCH = {"fatal": Advice.RESET, "non-fatal": Advice.IGNORE, "correctable": Advice.IGNORE}
QUOTED_LENGTH = 80  # characters of an SXid's message that a finding quotes
