"""Health and wear of drives, as they report it.

Formats: smartctl(8) of smartmontools 7.0 to 7.5 with --json, nvme-smart-log(1) of nvme-cli 1.0 to 2.16 with `-o json`, NVM
Express Base Specification 2.0 (5.16.1.3, SMART / Health Information).

smartctl reads all drives; nvme-cli reads those of NVMe where smartctl is absent or older than 7.0, which has no JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, finite, loads, text
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.own_folder import OWN_SH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECONDS = (
    5  # without an answer of any drive: a healthy one answers within 0.1 s, and a gate has 8 s for all its commands
)
MOST = 64  # drives that are read
_SMARTCTL = "smartmontools 7.0 or later"  # the first with --json

# What hypervisors and clouds name the drives that they present. Sources: QEMU hw/nvme/ctrl.c, VMware, VirtualBox,
# https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html, https://cloud.google.com/compute/docs/disks/local-ssd,
# https://learn.microsoft.com/azure/virtual-machines/enable-nvme-faqs
_VIRTUAL = re.compile(
    r"QEMU|VMware|VBOX|\bvirtual\b|Amazon E|nvme_card|PersistentDisk|EphemeralDisk|Microsoft NVMe|MSFT|Alibaba Cloud|BlockVolume",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class DriveHealth:
    """What a drive reports; None where it does not report it.

    passed: its own prediction (ATA, SCSI); `reason`: the words of SCSI; `warns`: they are of ASC 0Bh, a warning.
    critical: the bits of NVMe's critical warning. spare, spare_threshold: percent of the spare blocks. used: percent of the rated
    endurance, more than 100 too. failing, low: attributes of ATA at or below their thresholds, those that predict a failure and
    others. sectors: counts of sectors that cannot be read. problem: why nothing is known. asleep: the disk sleeps, and was not read.
    """

    name: str
    model: str = ""
    passed: bool | None = None
    reason: str = ""
    warns: bool = False
    critical: int | None = None
    spare: float | None = None
    spare_threshold: float | None = None
    used: float | None = None
    media_errors: float | None = None
    failing: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    sectors: tuple[tuple[str, float], ...] = ()
    problem: str = ""
    asleep: bool = False

    @property
    def is_nvme(self) -> bool:
        """Whether NVMe's log was read, whose values the specification defines; those of ATA are the vendor's."""
        return self.critical is not None

    @property
    def is_forbidden(self) -> bool:
        """Whether only the user lacks the permission."""
        return bool(re.search(r"permission denied|not permitted", self.problem, re.IGNORECASE))


_FILE = re.compile(r"sys/(?:class/nvme|block)/(\w+)/(?:device/)?(?:vendor|model):(.*)")


def read_drives(answer: Answer) -> tuple[DriveHealth, ...]:
    """Read the output of drives.sh: physical drives only. NotAvailable if no tool can read them."""
    lines = answer.out.splitlines()
    if "end" not in lines:
        if answer.rc:  # sudo, or the shell
            raise NotAvailable(f"{last_line(answer.err) or 'no message'} (exit {answer.rc})")
        raise ProbeError("health of drives: the answer ended early")
    models: dict[str, list[str]] = {}
    blocks: dict[str, list[str]] = {}
    found: list[str] = []
    hung: set[str] = set()
    tools = ""
    block: list[str] | None = None
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in ("drive", "hung", "end"):
            block = blocks.setdefault(rest, []) if word == "drive" else None
            hung.update([rest] if word == "hung" else [])
        elif block is not None:
            block.append(line)
        elif word == "found":
            found.append(rest)
        elif word == "tools":
            tools = rest.strip()
        elif match := _FILE.search(line):
            models.setdefault(match[1], []).append(match[2].strip())
    named = {name: " ".join(filter(None, models.get(name, ()))) for name in found}
    physical = {name: model.removeprefix("ATA ") for name, model in named.items() if not _VIRTUAL.search(model)}
    if physical and not tools:
        raise NotAvailable(f"neither smartctl nor nvme is installed: install {_SMARTCTL}, or nvme-cli")
    return tuple(_drive(name, model, blocks, hung, tools) for name, model in physical.items())


def _drive(name: str, model: str, blocks: Mapping[str, Iterable[str]], hung: set[str], tools: str) -> DriveHealth:
    if not name.startswith("nvme") and "smartctl" not in tools:
        return DriveHealth(name, model, problem=f"smartctl is not installed: install {_SMARTCTL}")
    if name in blocks:
        return read_health(name, model, "\n".join(blocks[name]))
    unread = f"not read: it is not among the first {MOST}, or no folder for the answers could be made"
    return DriveHealth(name, model, problem=f"no answer within {SECONDS} s" if name in hung else unread)


_STARTS = re.compile(r"(?:Smartctl open device: )?/dev/\S+?(?: \[\S+\])?(?: failed)?: ")
_NVME_LOG = "nvme_smart_health_information_log"  # of smartctl; nvme-cli prints the log alone
_ASLEEP = re.compile(r"Device is in .+ mode, exit")


def read_health(name: str, model: str, output: str) -> DriveHealth:
    """Read what smartctl or nvme printed of a drive."""
    try:
        printed = as_dict(loads(output[output.find("{") : output.rfind("}") + 1]))
    except ValueError:
        return DriveHealth(name, model, problem=_problem_of_text(output))
    messages = [text(one.get("string")) for one in as_dicts(as_dict(printed.get("smartctl")).get("messages"))]
    log = as_dict(printed if "critical_warning" in printed else printed.get(_NVME_LOG))
    status = as_dict(printed.get("smart_status"))
    scsi = as_dict(status.get("scsi"))
    attributes = as_dicts(as_dict(printed.get("ata_smart_attributes")).get("table"))
    passed = status.get("passed")
    asleep = any(_ASLEEP.match(message) for message in messages)
    if not (log or attributes or isinstance(passed, bool) or asleep):
        problem = next(filter(None, messages), "it reports no SMART status")
        return DriveHealth(name, model, problem=one_line(_STARTS.sub("", problem, count=1), 160))
    critical = log.get("critical_warning")
    low = [one for one in attributes if one.get("when_failed") == "now"]
    failing = [_label(one) for one in low if _predicts(one)]
    return DriveHealth(
        name,
        model,
        passed=passed if isinstance(passed, bool) and not log else None,
        reason=one_line(text(scsi.get("ie_string")), 80),
        warns=scsi.get("asc") == _SCSI_WARNING,
        critical=int(_number(as_dict(critical).get("value", critical)) or 0) if log else None,
        spare=_number(log.get("available_spare", log.get("avail_spare"))),
        spare_threshold=_number(log.get("available_spare_threshold", log.get("spare_thresh"))),
        used=_number(
            log.get("percentage_used", log.get("percent_used"))
            if log
            else as_dict(printed.get("endurance_used")).get("current_percent")
        ),
        media_errors=_number(log.get("media_errors")),
        failing=tuple(failing),
        low=tuple(_label(one) for one in low if not _predicts(one)),
        sectors=tuple(
            (text(one.get("name")), count)
            for one in attributes
            if one.get("id") in _SECTORS and re.search("(?i)pending|uncorrect", text(one.get("name")))
            if (count := _number(as_dict(one.get("raw")).get("value")))
        ),
        asleep=asleep,
    )


# SPC-5, Annex F: a warning, like "specified temperature exceeded"; 5Dh is the prediction of a failure
_SCSI_WARNING = 0x0B
# Current_Pending_Sector, Offline_Uncorrectable (drivedb.h of smartmontools); some SSDs use the numbers for other values
_SECTORS = (197, 198)


def _predicts(attribute: Mapping[str, Any]) -> bool:
    """Return whether an attribute at its threshold predicts a failure: smartctl(8), -A. A temperature never does."""
    is_of_failure = as_dict(attribute.get("flags")).get("prefailure") is True
    return is_of_failure and "Temperature" not in text(attribute.get("name"))


def _label(attribute: Mapping[str, Any]) -> str:
    """Like `Reallocated_Sector_Ct 1 (threshold 5)`."""
    value, threshold = attribute.get("value"), attribute.get("thresh")
    return one_line(f"{attribute.get('name')} {value} (threshold {threshold})", 80)


def _number(value: object) -> float | None:
    """Return a number; nvme-cli prints those of 128 bits as a text where they are large."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,40}", value):
        value = int(value)
    return finite(value)


def _problem_of_text(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "UNRECOGNIZED OPTION" in output:
        return f"{lines[0].partition(' [')[0]} has no --json: install {_SMARTCTL}, or nvme-cli"
    return one_line(_STARTS.sub("", lines[0], count=1), 160) if lines else "no output"


DRIVES: Probe[tuple[DriveHealth, ...]] = Probe(
    "health of drives",
    script(__package__, "drives.sh", OWN_FOLDER=OWN_SH, MOST=MOST, TICKS=SECONDS * 10),
    read_drives,
    root=True,
    by_hand="smartctl --scan | while read -r d _; do smartctl -n standby -H -A $d; done",
)
