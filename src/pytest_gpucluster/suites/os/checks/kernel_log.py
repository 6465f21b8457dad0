"""What the kernel log may decide on a node: four of the five classes of docs/suites/os.md; gpu.xid judges GPUs. All else is shown."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Remark, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.known_lines import known
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.kit.node import log_classes as classes
from pytest_gpucluster.kit.node.file_systems import READ_ONLY
from pytest_gpucluster.kit.node.kernel_log import MINUTE
from pytest_gpucluster.kit.node.log_classes import CORRECTED, CRASH, GAVE_UP, RECOVERABLE, UNCORRECTED
from pytest_gpucluster.suites.os.checks.crashes import KERNEL
from pytest_gpucluster.suites.os.checks.devices import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog
    from pytest_gpucluster.suites.os.device_facts import Devices
    from pytest_gpucluster.suites.os.facts import Mount

SHOWN, WITH = 160, 3  # characters of a message, and further messages of its fault, that a finding quotes
MOST_SHOWN = 400  # characters of the warning of all other errors
# Corrected errors of one device per day; fewer are ordinary. mcelog.conf(5) gives up a page after 10 in 24 hours.
MAX_CORRECTED = 100
_DAY = 86400.0  # seconds
_ERROR = 3  # KERN_ERR
_RANKS = (UNCORRECTED, RECOVERABLE, CRASH, GAVE_UP, CORRECTED)
_CODES = {
    UNCORRECTED: "uncorrected_error",
    RECOVERABLE: "recoverable_error",
    CRASH: "crash",
    GAVE_UP: "gave_up",
    CORRECTED: "corrected_errors",
}
_ACTIONS = {UNCORRECTED: Action.DRAIN, CRASH: Action.REBOOT}
OF_GPU_MEMORY = (48, 63, 64, 94, 95, 140, 171, 172)  # Xids
_FILE_SYSTEM = re.compile(r"(EXT\d|XFS|BTRFS|GFS2|JBD2|Aborting journal)", re.IGNORECASE)


@dataclass(frozen=True)
class PartsNow:
    """What the checks of mounts, drives and arrays have read; None where the node could not report it."""

    mounts: Mapping[str, Mount] | None = None
    devices: Devices | None = None

    def mounted(self, name: str) -> list[Mount]:
        """Return the mounts of a drive, a partition, an array or a volume."""
        own = re.compile(rf"/dev/(mapper/)?{re.escape(name)}(n\d+)?(p?\d+)?")
        return [mount for mount in (self.mounts or {}).values() if own.fullmatch(mount.source)]

    def _read_only(self, event: Event) -> list[str]:
        """Return the paths where a file system that the kernel gave up is read-only now.

        /proc/mounts may name a volume (/dev/mapper/vg-root for dm-0) or the root device in other words: its type decides then.
        """
        found = self.mounted(event.device)
        if not found:
            alias = "/dev/mapper/" if event.device.startswith("dm-") else "/dev/root"
            kind = event.text[:3].lower().replace("jbd", "ext").replace("abo", "ext")  # journals are of ext4
            of_kind = [it for it in (self.mounts or {}).values() if it.fstype.startswith(kind)]
            found = [it for it in of_kind if it.source.startswith(alias)]
        return [it.path for it in found if READ_ONLY.intersection(it.options)]

    def state(self, event: Event) -> tuple[bool | None, str]:
        """Return (whether a part that the kernel gave up is down now, what shows it); None if nothing does."""
        name, devices, mounts = event.device, self.devices, self.mounted(event.device)
        found: tuple[bool | None, str] = (None, "")
        if _FILE_SYSTEM.match(event.text):
            if read_only := self._read_only(event):
                found = (True, f"{read_only[0]} is read-only now")
            elif mounts and not event.text.startswith(("XFS", "GFS2")):  # a mount of these shows no shutdown
                found = (False, f"{mounts[0].path} can be written to now")
            elif self.mounts and not mounts and not name.startswith("dm-") and not self._has_other_names():
                found = (False, "it is not mounted now")
        elif devices and name in devices.arrays:
            state = devices.degraded.get(name)
            found = (bool(state), f"/proc/mdstat: {state}" if state else "no array lacks a member now")
        elif devices and event.part.startswith("nvme"):
            state = next((drive.state for drive in devices.drives if drive.name == event.part), "absent")
            found = (state in (*GONE, "absent"), f"{event.part} is {state} now") if state else found
        elif devices and re.search("probe|_one failed", event.text):
            for driver in (it.driver for it in devices.functions if it.address == name):
                found = (not driver, f"driver {driver} uses it now" if driver else "no driver uses it now")
        return found

    def _has_other_names(self) -> bool:
        return any(re.match("/dev/(root|disk/|md/)", it.source) for it in (self.mounts or {}).values())


@check(
    "os.kernel_log",
    cause="memory or a processor lost data, the kernel crashed, it gave up a part, or a part corrects errors all the time",
    hint="dmesg -T (or journalctl -k -b); ipmitool sel list; a reboot clears the log, not the cause",
    action=Action.MONITOR,
    never_healthy="memory or a processor lost data in this boot, no test injected it, and the broken cell stays; or the kernel crashed "
    "and only a boot releases what it holds; or it gave up a file system or a drive that is mounted, and the mount is read-only "
    "or the drive dead now; or the site requires it (`known`)",
)
def kernel_log(
    kernel_log: KernelLog, parts_now: PartsNow = PartsNow(), known_lines: Sequence[KnownLine] = ()
) -> Judgement:
    """Since boot: no uncorrected error, no crash, no part given up, no storm of corrected errors; all other errors are one warning."""
    yield Metric("kernel_log_lines", kernel_log.lines, "lines")
    if kernel_log.unsent:
        unread = f"not read: {count(kernel_log.unsent, 'line')} of the kernel log"
        yield NotAvailable(f"{unread}: more than 200 different messages")
    events = []
    for event in kernel_log.events:
        if event.kind in ("xid", "sxid"):
            continue
        if entry := known(known_lines, event.text):
            yield from _known(event, _measured(event, kernel_log), entry)
        else:
            events.append(event)
    faults = _faults(events)
    others: list[Event] = []
    for event in (it for it in events if not any(it in fault for fault in faults)):
        of_fault = next((it for it in faults if any(event.with_(one) for one in it)), None)
        if of_fault is not None:
            of_fault.append(event)
        elif event.kind != classes.AGAIN and (event.level is None or event.level <= _ERROR):
            others.append(event)
    for fault in faults:
        yield _judged(fault, kernel_log, parts_now)
    yield from _shown(others, kernel_log)


def _faults(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events that may fail the node; those of one part, or of memory, within a minute are one fault."""
    found: list[list[Event]] = []
    deciding = [*(it for it in events if it.kind in _RANKS[:-1]), *_storms(events)]
    for event in sorted(deciding, key=lambda it: _RANKS.index(it.kind)):
        fault = next((it for it in found if event.is_one_fault(it[0])), [])
        found += [fault] * (not fault)
        fault.append(event)
    return found


def _storms(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the lines of devices with too many corrected errors; without times they are of one day."""
    of_device: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == CORRECTED:
            of_device[event.part or event.text].append(event)
    for found in of_device.values():
        days = max(1.0, max(it.seconds for it in found) / _DAY)
        yield from found if sum(it.count for it in found) >= MAX_CORRECTED * days else ()


def _judged(fault: Sequence[Event], log: KernelLog, now: PartsNow) -> Finding | Advisory:
    deciding = [it for it in fault if it.kind in _RANKS[:-1]] or [fault[0]]
    excuses = [_excuse(it, log) for it in deciding]
    given_up = [it for it in deciding if it.kind == GAVE_UP]
    states = [now.state(it) for it in given_up]
    excuse = excuses[0] if all(excuses) else ""
    if states and all(is_down is False for is_down, _ in states):
        excuse = states[0][1]
    lead = fault[0] if excuse else deciding[excuses.index("")]
    others = [it for it in fault if it is not lead]
    lines = [_measured(lead, log), *(f"with {_measured(it, log, 80)}" for it in others[:WITH])]
    lines += [f"{len(others) - WITH} more"] * (len(others) > WITH)
    lines += [excuse] if excuse else [words for is_down, words in states if is_down][:1]
    part, measured, expected = _part(lead, deciding), Quote("; ".join(lines)), f"no {lead.kind}"
    if excuse:
        return Advisory(part, measured, expected, code=_CODES[lead.kind])
    down = [it for it, (is_down, _) in zip(given_up, states, strict=True) if is_down]
    broken = [it for it in down if now.mounted(it.device) or _FILE_SYSTEM.match(it.text)]
    used = any(not it.text.startswith("md/") for it in broken)  # an array works on without a member
    action = _ACTIONS.get(lead.kind) or (Action.DRAIN if used else None)
    return Finding(part, measured, expected, action, code=_CODES[lead.kind])


def _part(lead: Event, deciding: Sequence[Event]) -> Part:
    """Name the part of a fault; of memory the modules that any line of it names."""
    if lead.kind == CRASH:
        return KERNEL
    modules = [it.device for it in deciding if re.search("dimm|chan|csrow|mc#", it.device, re.IGNORECASE)]
    if lead.kind in classes.MEMORY or modules:
        return Part("memory", name=", ".join(dict.fromkeys(modules)) or lead.device)
    return _device(lead)


def _device(event: Event) -> Part:
    return Part("device", name=event.device) if event.device else KERNEL


# devices whose medium is a file, a server or removable; they may fail without a fault of the node
_NO_DISK = re.compile(r"(loop|nbd|rbd|drbd|zram|ram|sr|fd|mmcblk)\d")


def _excuse(event: Event, log: KernelLog) -> str:
    """Return why a line proves no fault of now, '' if it does."""
    if event.kind in classes.MEMORY:
        if event.last is not None and event.last < MINUTE:
            return "of the boot before: printed in the first minute"
        if any(
            it.line <= event.line and (event.near(it) or "Inject" not in it.text)
            for it in log.of(classes.INJECTED)
        ):
            return "a test injected errors"
        if event.text.startswith("Memory failure"):  # Grace addresses the memory of its GPU too
            of_gpu = any(event.near(it.event) for it in log.xids if it.number in OF_GPU_MEMORY)
            return "with an Xid of the GPU's memory, which gpu.xid judges" if of_gpu else ""
    if event.kind == GAVE_UP and _NO_DISK.match(event.device):
        return "no disk of the node"
    again = (it for it in log.of(classes.AGAIN) if it.line > event.line and event.is_named_by(it))
    later = next(again, None) if event.kind == GAVE_UP else None
    return f"a later line, {later.text[:80]!r}, shows that it is used again" if later else ""


def _measured(event: Event, log: KernelLog, length: int = SHOWN) -> str:
    return f"{event.text[:length]} ({count(event.count, 'time')}, last {log.when(event.last)})"


def _known(event: Event, measured: str, entry: KnownLine) -> Iterator[Finding | Advisory]:
    part, quoted = _device(event), Quote(f"{measured}; {entry.words}")
    if entry.failure:
        yield Finding(part, quoted, "no such line", entry.failure, setting="known", code="known_line")
    elif entry.action == "warn":
        yield Advisory(part, quoted, "no such line", code="known_line")


def _shown(others: Sequence[Event], log: KernelLog) -> Iterator[Advisory | Remark]:
    """Yield one warning for all other errors; `-v` and HTML show what it has no room for."""
    ordered = sorted(others, key=lambda it: (it.level or 0, -it.line))
    quoted = list[str]()
    for event in ordered:
        quoted.append(_measured(event, log))
        if sum(map(len, quoted)) > MOST_SHOWN:
            break
    rest = ordered[len(quoted) :]
    more = len(rest) + log.unsent_errors
    quoted += [f"{more} more kinds"] * bool(more)
    if ordered:
        total = f"{sum(it.count for it in ordered)} other lines"
        measured = Quote(f"{total}: {'; '.join(quoted)}")
        yield Advisory(KERNEL, measured, "no line of level error or worse", code="other_errors")
    yield from (Remark(_measured(event, log), event.count) for event in rest)


@check(
    "os.kernel_log_start",
    cause="the ring buffer of the kernel is full and has lost its first lines, or a person cleared it (dmesg -C)",
    hint="journalctl -k -b has earlier lines where the journal is persistent; log_buf_len=16M on the kernel command line; search for what "
    "floods the log",
    action=Action.MONITOR,
)
def kernel_log_start(kernel_log: KernelLog) -> Judgement:
    """The kernel log begins with the boot; otherwise the lines that it has lost are not checked, which fails no node."""
    since = kernel_log.since
    if since is None:
        raise NotAvailable(
            "the lines of the kernel log have no times: whether it begins with the boot is not known"
        )
    if since > MINUTE:
        lost = format_duration(since)
        raise NotAvailable(
            f"the kernel log ({kernel_log.source}) begins {lost} after boot ({kernel_log.when(since)}); earlier lines are lost to "
            "os.kernel_log and gpu.xid"
        )
    yield Metric("kernel_log_since", since, "s after boot", detail=True)
