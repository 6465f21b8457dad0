"""NVIDIA's decode sheet of NVLink 5 errors, Xids 144 to 150. data/nvlink5.yaml has its rules, source and date.

The driver prints `UNIT SEVERITY XCn in Link NN (INTRINFO ERRORSTATUS ...)` (sheet "Guidance Classes",
WORKFLOW_NVLINK5_ERR). INTRINFO has another form before and since driver R575. No word has both forms, so that the word
itself shows the driver that printed it: the driver of today may be a newer one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from pytest_gpucluster.core.values import Model, Text
from pytest_gpucluster.kit.node.known_lines import data_file

XIDS = range(144, 151)
BEFORE, SINCE = "before R575", "R575 or later"
Bits = Annotated[str, Field(pattern=r"^[01]{6,11}$")]


class Nvlink5Rule(Model):
    """One row of the sheet; data/nvlink5.yaml describes the keys."""

    xid: int
    unit: Text
    subcode: Bits
    before_r575: Bits
    since_r575: Bits
    status: int | None = None
    severity: Literal["Fatal", "Link Fatal", "Non-fatal"]
    action: Literal["IGNORE", "RESET_GPU", "XID_154_EVAL"]
    investigate: Text

    def driver(self, intrinfo: int) -> str:
        """Return which drivers print this word for the rule, '' if none does."""
        if intrinfo >> 20 & 0x3F != int(self.subcode, 2):
            return ""
        for bits, branch in ((self.before_r575, BEFORE), (self.since_r575, SINCE)):
            if intrinfo & ((1 << len(bits)) - 1) == int(bits, 2):
                return branch
        return ""


@dataclass(frozen=True)
class Decoded:
    """A message that the sheet holds: its unit and link, the driver that printed it, and both actions of the sheet."""

    unit: str
    link: str
    driver: str
    action: str
    investigate: str

    @property
    def words(self) -> str:
        """What a report says of the message: 'NETIR_LINK_EVT, link 01; the other end of the link caused it'."""
        where = f"{self.unit}, link {self.link}" if self.link else self.unit
        advice = ADVICE[self.investigate]
        return f"{where}; {advice}" if advice else where

    @property
    def worth_a_warning(self) -> bool:
        """Whether the sheet names a cause outside of the GPU, like a cable or the peer: a warning if no reset is due."""
        return self.investigate not in ("IGNORE", "CONTACT_SUPPORT", "CHECK_NVLINK_FAILURE_FLOW")


# sheet "Guidance Classes": the investigatory actions
ADVICE = {
    "IGNORE": "",
    "CONTACT_SUPPORT": "contact support if it recurs",
    "CHECK_NVLINK_FAILURE_FLOW": "ignore it if a link of the partition went down in the 30 s before, else report it",
    "INVESTIGATE_HOST": "an action or a fault of the host caused it: see the other logs",
    "INVESTIGATE_LINK_SI": "examine the signal of the link",
    "INVESTIGATE_LINK_SI_AND_CABLES": "examine the cable, the transceiver, its seat and temperature",
    "INVESTIGATE_PEER_DEVICE": "the peer at the other end of the link caused it: examine that GPU or switch",
    "INVESTIGATE_SW_USER": "software or a person took the link down: examine it if that was not intended",
    "INVESTIGATE_SW_USER_LINK_SI": "software, a person or the signal took the link down: examine them",
    "REPORT_ISSUE (if seen >1 per day)": "report it if it recurs within a day",
    "SYMPATHETIC_REPORT_SOLO": "another error causes it: resolve that first",
}
_MESSAGE = re.compile(
    r"\s*(?P<unit>[a-z][\w/ ]*?)\s+(?P<severity>non-?fatal|fatal)\b(?:.*\blink\s+(?P<link>-?\d+))?"
    r".*?\(0x(?P<intrinfo>[0-9a-f]{1,8})\s+0x(?P<status>[0-9a-f]{1,8})",
    re.IGNORECASE,
)


@cache
def rules() -> dict[int, tuple[Nvlink5Rule, ...]]:
    """Return {Xid: rows of the sheet}."""
    found = data_file("nvlink5.yaml", Nvlink5Rule, __package__)
    return {number: tuple(rule for rule in found if rule.xid == number) for number in XIDS}


def decode(number: int, words: str) -> Decoded | None:
    """Return what the sheet requires for a message after its Xid and process; None if it does not hold the form."""
    match = _MESSAGE.match(words)
    if match is None:
        return None
    unit = re.sub(r"\s+", "_", match["unit"]).upper()
    fatal, intrinfo, status = (match["severity"][0] in "fF", int(match["intrinfo"], 16), int(match["status"], 16))
    for rule in rules()[number]:
        if (
            set(unit.split("/")) & set(rule.unit.split("/"))
            and rule.status in (None, status)
            and (rule.severity != "Non-fatal") is fatal
            and (driver := rule.driver(intrinfo))
        ):
            return Decoded(unit, match["link"] or "", driver, rule.action, rule.investigate)
    return None
