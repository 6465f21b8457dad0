"""The action that NVIDIA requires for an Xid of its driver. data/xid.yaml has its catalogue, with source and date.

Where the catalogue names a workflow instead of an action:

- 45 (WORKFLOW_XID_45): follow the other Xid of that GPU; alone it is a process that was killed.
- 48 (WORKFLOW_XID_48) and 74 (WORKFLOW_NVLINK_ERR): a reset of the GPU is the first step of both; a 74 whose registers
  have only bits that the workflow ignores needs none.
- 144 to 150 (WORKFLOW_NVLINK5_ERR): kit/gpu/nvlink5.py decodes the message by NVIDIA's sheet; a form that the sheet does not
  hold is a warning.
- 154: the driver prints the action (open-gpu-kernel-modules, gpu.c, _gpuRecoveryActionName).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from pytest_gpucluster.core.values import Model, Text
from pytest_gpucluster.kit.gpu import nvlink5
from pytest_gpucluster.kit.node.known_lines import data_file


class Advice(str, enum.Enum):
    """The required action, from mild to severe."""

    IGNORE = "nothing to do"
    APPLICATION = "restart the application"
    UNKNOWN = "no action known"
    SOFTWARE = "update or check software"
    SUPPORT = "contact support"
    RESET = "reset the GPU"
    REBOOT = "restart the node"
    INSPECT = "inspect the node"


@dataclass(frozen=True)
class Xid:
    """One number of the catalogue.

    `recovery`: the driver sets its recovery action for the GPU with this Xid. `noteworthy`: nothing to do, but the
    message names a cause that an operator can find, like a cable.
    """

    number: int
    meaning: str
    advice: Advice
    kind: str = "Xid"
    recovery: bool = False
    noteworthy: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.meaning} ({self.advice.value})"

    @property
    def fails(self) -> bool:
        """Whether the GPU needs a repair, or a person must ask NVIDIA; a number without a known action proves no fault."""
        return self.advice in (Advice.SUPPORT, Advice.RESET, Advice.REBOOT, Advice.INSPECT)

    @property
    def warns(self) -> bool:
        """Whether an operator should check it, although nothing proves a fault of the GPU."""
        return self.noteworthy or self.advice in (Advice.UNKNOWN, Advice.SOFTWARE)


class _Entry(Model):
    """One line of data/xid.yaml, which describes the keys."""

    xids: tuple[int, ...]
    meaning: Text
    action: Literal[
        "IGNORE", "RESTART_APP", "WORKFLOW_XID_45", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR",
        "RESET_GPU", "RESTART_VM", "RESTART_BM", "UPDATE_SWFW", "CHECK_UVM", "CHECK_MECHANICALS", "CONTACT_SUPPORT",
        "XID_154", "NONE",
    ]  # fmt: skip
    recovery: bool = False
    harmless: tuple[int, ...] = ()


_ADVICE = {
    "IGNORE": Advice.IGNORE,
    "RESTART_APP": Advice.APPLICATION,
    "WORKFLOW_XID_45": Advice.APPLICATION,
    "WORKFLOW_XID_48": Advice.RESET,
    "WORKFLOW_NVLINK_ERR": Advice.RESET,
    "RESET_GPU": Advice.RESET,
    "RESTART_VM": Advice.REBOOT,
    "RESTART_BM": Advice.REBOOT,
    "UPDATE_SWFW": Advice.SOFTWARE,
    "CHECK_UVM": Advice.SOFTWARE,  # a reset only if UVM or vGPU is in use; the driver then prints a 154
    "CHECK_MECHANICALS": Advice.INSPECT,
    "CONTACT_SUPPORT": Advice.SUPPORT,
}


@cache
def _catalogue() -> dict[int, _Entry]:
    return {number: entry for entry in data_file("xid.yaml", _Entry, __package__) for number in entry.xids}


@cache
def table() -> dict[int, Xid]:
    """Return {number: entry} of the catalogue."""
    return {
        number: Xid(number, entry.meaning, _ADVICE.get(entry.action, Advice.UNKNOWN), recovery=entry.recovery)
        for number, entry in _catalogue().items()
    }


RECOVERY = {
    "None": Advice.IGNORE,
    "GPU Reset Required": Advice.RESET,
    "Node Reboot Required": Advice.REBOOT,
    "Drain P2P": Advice.INSPECT,  # no job may use NVLink until all that do have ended: the node must be drained
    "Drain and Reset": Advice.RESET,
    "PF FLR": Advice.RESET,  # a reset of the PCIe function, of drivers since 610
    "Recover IMEX Domain": Advice.SOFTWARE,  # of several nodes: no repair of this one
}
_RECOVERY = re.compile(r"to 0x[0-9a-f]+ \(([^)]*)\)", re.IGNORECASE)
# "Contained: CE User Channel (0x9). RST: No, D-RST: No" (kern_gpu_error_cont_ga100.c); D-RST: drain and reset
_RESET = re.compile(r"RST: Yes")
_PROCESS = re.compile(r"pid=[^,]*,\s*name=[^,]*")


def lookup(number: int, text: str = "") -> Xid:
    """Return the entry of an Xid. `text` follows the number in the log and takes precedence over the table."""
    entry = table().get(number) or Xid(number, "not in the table of this release", Advice.UNKNOWN)
    words = _PROCESS.sub("", text).lstrip(", ")
    if number == RECOVERY_CHANGED:
        action = _RECOVERY.search(words)
        name = action[1] if action else ""
        meaning = f"{entry.meaning} to {name}" if name else entry.meaning
        return replace(entry, meaning=meaning, advice=RECOVERY.get(name, Advice.UNKNOWN))
    if number in nvlink5.XIDS:
        return _decoded(entry, words)
    if number == CONTAINED and _RESET.search(words):
        return replace(entry, advice=Advice.RESET)
    if number in _catalogue() and _only(words, _catalogue()[number].harmless):
        return replace(entry, advice=Advice.IGNORE)
    return entry


def _decoded(entry: Xid, words: str) -> Xid:
    """Return the entry with the action of NVIDIA's decode sheet for this message of NVLink 5."""
    found = nvlink5.decode(entry.number, words)
    if found is None:
        unknown = f"{words[:QUOTED_LENGTH]}, which NVIDIA's sheet does not hold"
        return replace(entry, meaning=f"{entry.meaning}: {unknown}")
    # XID_154_EVAL: follow the Xid 154 of this GPU, else restart the application
    advice, meaning = _ADVICE.get(found.action, Advice.APPLICATION), f"{entry.meaning}: {found.words}"
    return replace(entry, meaning=meaning, advice=advice, noteworthy=found.worth_a_warning)


def _only(words: str, harmless: tuple[int, ...]) -> bool:
    """Return whether the registers of a message have bits, and only those that the workflow ignores."""
    match = re.search(r"\((0x[0-9a-f]+(?:, *0x[0-9a-f]+)+)\)", words, re.IGNORECASE) if harmless else None
    registers = [int(word, 16) for word in match[1].split(",")] if match else []
    masks = (*harmless, *[0] * len(registers))
    return any(registers) and not any(word & ~mask for word, mask in zip(registers, masks, strict=False))


CONTAINED = 94
RECOVERY_CHANGED = 154


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
