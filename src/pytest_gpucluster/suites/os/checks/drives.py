"""What drives report of their own health and wear."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, Remark, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.suites.os.checks.devices import disk

if TYPE_CHECKING:
    from pytest_gpucluster.suites.os.drive_facts import DriveHealth

# Bits of the critical warning, NVM Express Base Specification 2.0, 5.16.1.3 (SMART / Health Information)
SPARE, TEMPERATURE, DEGRADED, READ_ONLY, BACKUP, PMR = (1 << bit for bit in range(6))
_BITS = {
    TEMPERATURE: ("temperature", "the temperature is outside the drive's limits"),
    DEGRADED: ("degraded", "reliability is degraded by errors of the media or of the controller"),
    READ_ONLY: ("read_only", "the media is read-only"),
    BACKUP: ("backup_failed", "the backup of the volatile memory failed"),
    PMR: ("unreliable_region", "the persistent memory region is read-only or unreliable"),
}
_FAILED = (DEGRADED, READ_ONLY, BACKUP)
_MOST_SPARE = 100  # percent; same section: 101 to 255 are reserved
# percent; same section: the endurance is consumed, which "may not indicate an NVM subsystem failure"
CONSUMED = 100
NEARLY = 90  # time to order a replacement; no specification states it


@check(
    "os.drive_health",
    cause="a drive is worn out, or predicts its own failure",
    hint="smartctl -x of the drive, or nvme smart-log; copy what is needed from it; replace it at the next maintenance, or waive the check until then",
    action=Action.DRAIN,
    never_healthy="the drive itself states that it fails or has passed its own threshold; a temperature, errors of the past, and a bit that "
    "the used endurance explains take no node out of service",
    show="smartctl -x /dev/PART",
)
def drive_health(drives: tuple[DriveHealth, ...], is_virtual: bool = False) -> Judgement:
    """No drive reports that it fails or lacks spare blocks; errors of media and 90% of the rated endurance are a warning.

    What fails is the drive's own statement: NVMe's critical warning and its spare blocks against its own threshold, the status of
    ATA and SCSI, and attributes of ATA that predict a failure. No healthy drive makes it. 100% of the endurance is the vendor's
    estimate, after which a drive may work on for years. Some vendors set the bit "degraded" then (smartmontools issue 537): one
    finding, not two. A temperature, errors that the drive has
    counted since it was made, and sectors that wait for a write are no prediction. is_virtual: a drive without SMART is the host's.
    """
    unread: defaultdict[str, list[str]] = defaultdict(list)
    known, asleep = 0, [drive.name for drive in drives if drive.asleep]
    for drive in drives:
        if drive.problem and (drive.is_forbidden or not is_virtual):
            allow = ": set sudo: true in the cluster file" if drive.is_forbidden else ""
            unread[drive.problem + allow].append(drive.name)
        if drive.problem or drive.asleep:
            continue
        known += 1
        yield from _nvme(drive) if drive.is_nvme else _ata_or_scsi(drive)
        if drive.used is not None and not _is_reserved(drive):
            yield Metric("drive_wear", drive.used, "%", drive.name, better="neither")
    for problem, names in unread.items():
        yield NotAvailable(f"{', '.join(names)}: {problem}")
    if asleep:
        text = f"in standby, and not read: {', '.join(asleep)}"
        yield Remark(text) if known else NotAvailable(text)
    if not known and not unread and not asleep:
        raise NotApplicable("the node has no drive of its own that reports its health")


def _worn(used: float, bound: int, more: str = "") -> tuple[Quantity, Quantity]:
    """Return the endurance that is used, and its bound."""
    measured = Quantity(used, "%", f"{used:g}% of the rated endurance used{more}")
    return measured, Quantity(bound, "%", f"less than {bound}%")


def _nvme(drive: DriveHealth) -> Judgement:
    part, critical = disk(drive), drive.critical or 0
    used = 0 if _is_reserved(drive) else drive.used or 0
    yield from _spare(drive, below=bool(critical & SPARE))
    if used >= CONSUMED and critical & DEGRADED:
        measured = _worn(used, CONSUMED, f", {_BITS[DEGRADED][1]}")
        yield Finding(part, *measured, Action.MONITOR, code="worn_out")
        critical &= ~DEGRADED
    elif used >= NEARLY:
        yield Advisory(part, *_worn(used, NEARLY), code="nearly_worn_out")
    for bit in (1 << place for place in range(8)):
        if critical & bit & ~SPARE:
            deviation = Finding if bit in _FAILED else Advisory
            code, words = _BITS.get(bit, ("unknown_warning", f"unknown bit {bit:#x}"))
            yield deviation(part, f"critical warning: {words}", "none", code=code)
    if drive.media_errors is not None:
        yield Metric("drive_media_errors", drive.media_errors, "errors", drive.name)
        if drive.media_errors:
            text = f"{drive.media_errors:.0f} errors of the media in its life"
            errors, none = Quantity(drive.media_errors, "errors", text), Quantity(0, "errors", "0")
            yield Advisory(part, errors, none, code="media_errors")


def _is_reserved(drive: DriveHealth) -> bool:
    """Return whether the log has values of spare blocks above 100%: firmware that returns them says nothing of the wear either."""
    return max(drive.spare or 0, drive.spare_threshold or 0) > _MOST_SPARE


def _spare(drive: DriveHealth, *, below: bool) -> Judgement:
    """Judge the spare blocks. below: the drive itself says that they are below the threshold."""
    part = disk(drive)
    if drive.spare is None or drive.spare_threshold is None or _is_reserved(drive):
        if below:
            measured = "the spare blocks are below the threshold"
            yield Finding(part, measured, "above it", code="few_spare_blocks")
        elif _is_reserved(drive):
            values = f"{drive.spare or 0:g}% of the spare blocks left, threshold {drive.spare_threshold or 0:g}%"
            expected = f"at most {_MOST_SPARE}%"
            yield Advisory(part, f"{values} (reserved values)", expected, code="reserved_values")
    elif below or drive.spare < drive.spare_threshold:
        text = f"at least {drive.spare_threshold:g}%, the drive's threshold"
        spare = Quantity(drive.spare, "%", f"{drive.spare:g}% of the spare blocks left")
        yield Finding(part, spare, Quantity(drive.spare_threshold, "%", text), code="few_spare_blocks")


def _ata_or_scsi(drive: DriveHealth) -> Judgement:
    part = disk(drive)
    attributes = ", ".join(drive.failing)
    if drive.passed is False and drive.warns:
        yield Advisory(part, Quote(drive.reason or "SMART warning"), "SMART status OK", code="smart_warning")
    elif drive.passed is False:
        reason = drive.reason or attributes or "it names no attribute"
        yield Finding(part, Quote(f"SMART status FAILED: {reason}"), "PASSED", code="smart_failed")
    elif attributes:
        yield Finding(part, Quote(f"FAILING_NOW: {attributes}"), "above the thresholds", code="failing_now")
    if drive.low:
        measured = Quote(f"FAILING_NOW, by age or temperature: {', '.join(drive.low)}")
        yield Advisory(part, measured, "above the thresholds", code="failing_by_age")
    for name, count in drive.sectors:
        sectors = Quantity(count, "sectors", f"{name} {count:.0f}")
        yield Advisory(part, sectors, Quantity(0, "sectors", "0"), code="bad_sectors")
    if drive.used is not None and drive.used >= NEARLY:
        yield Advisory(part, *_worn(drive.used, NEARLY), code="nearly_worn_out")
