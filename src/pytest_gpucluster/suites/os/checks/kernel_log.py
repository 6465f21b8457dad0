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
from pytest_gpucluster.kit.node.log_classes import CORRECTED, CRASH, GIVEN_UP, MEMORY, RECOVERABLE, UNCORRECTED
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
MAX_CORRECTED, _DAY = 100, 86400.0
_ERROR = 3  # KERN_ERR
# code and action, the gravest first
_RANKS: dict[str, tuple[str, Action | None]] = {
    UNCORRECTED: ("uncorrected_error", Action.DRAIN),
    RECOVERABLE: ("recoverable_error", None),
    CRASH: ("crash", Action.REBOOT),
    **dict.fromkeys(GIVEN_UP, ("gave_up", None)),
    CORRECTED: ("corrected_errors", None),
}
OF_GPU_MEMORY = (48, 63, 64, 94, 95, 140, 171, 172)  # Xids
# devices whose medium is a file, a server or removable; they may fail without a fault of the node
_NO_DISK = re.compile(r"(loop|nbd|rbd|drbd|zram|ram|sr|fd|mmcblk)\d")


@dataclass(frozen=True)
class PartsNow:
    """What the checks of mounts, drives and arrays have read; None where the node could not report it."""

    mounts: Mapping[str, Mount] | None = None
    devices: Devices | None = None

    def state(self, event: Event) -> tuple[bool | None, str]:
        """Return (whether a part that the kernel gave up is down now, what shows it); None if nothing does."""
        name, devices = event.part if event.kind == classes.DRIVE else event.device, self.devices
        if _NO_DISK.match(event.device):
            return False, "no disk of the node"
        if event.kind == classes.FILE_SYSTEM:
            return self._file_system(event)
        if devices is None:
            return None, ""
        found: dict[str, tuple[bool | None, str]] = {}
        if event.kind == classes.DRIVE:
            states = {name: "absent"} | {it.name: it.state for it in devices.drives}
            found = {it: (state in (*GONE, "absent"), f"{it} is {state} now") for it, state in states.items() if state}
        elif event.kind == classes.ARRAY:
            found = dict.fromkeys(devices.arrays, (False, "no array lacks a member now"))
            found |= {it: (True, f"/proc/mdstat: {state}") for it, state in devices.degraded.items()}
        elif re.search("probe|_one failed", event.text):
            used = {it.address: it.driver for it in devices.functions}
            found = {
                it: (not driver, f"{f'driver {driver}' if driver else 'no driver'} uses it now")
                for it, driver in used.items()
            }
        return found.get(name, (None, ""))

    def mounted(self, name: str) -> list[Mount]:
        """Return the mounts of a drive, a partition, an array or a volume."""
        own = re.compile(rf"/dev/(mapper/)?{re.escape(name)}(n\d+)?(p?\d+)?")
        return [mount for mount in (self.mounts or {}).values() if own.fullmatch(mount.source)]

    def _file_system(self, event: Event) -> tuple[bool | None, str]:
        """Return its state. /proc/mounts may name a volume or the root device in other words: the type decides then."""
        mounts, own = [*(self.mounts or {}).values()], self.mounted(event.device)
        alias = "/dev/mapper/" if event.device.startswith("dm-") else "/dev/root"
        kind = re.sub("jbd|abo", "ext", event.text[:3].lower())  # a journal is of ext4
        alike = own or [it for it in mounts if it.source.startswith(alias) and it.fstype.startswith(kind)]
        read_only = [it.path for it in alike if READ_ONLY.intersection(it.options)]
        renamed = alias != "/dev/root" or any(re.match("/dev/(root|disk/|md/)", it.source) for it in mounts)
        if read_only:
            return True, f"{read_only[0]} is read-only now"
        if own and kind != "xfs":  # a mount of XFS shows no shutdown
            return False, f"{own[0].path} can be written to now"
        is_gone = kind in ("ext", "xfs", "btr") and mounts and not own and not renamed
        return (False, "it is not mounted now") if is_gone else (None, "")


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
        entry = known(known_lines, event.text)
        if event.kind in ("xid", "sxid") or (entry and entry.action == "ignore"):
            continue
        if entry:
            shown = (_device(event), Quote(f"{_measured(event, kernel_log)}; {entry.words}"), "no such line")
            failed = Finding(*shown, entry.failure, setting="known", code="known_line")
            yield failed if entry.failure else Advisory(*shown, code="known_line")
        else:
            events.append(event)
    faults: list[list[Event]] = []
    others: list[Event] = []
    deciding = _deciding(events)
    for event in [*deciding, *(it for it in events if it not in deciding)]:
        if fault := next((it for it in faults if any(event.is_of(one) for one in it)), None):
            fault.append(event)
        elif event in deciding:
            faults.append([event])
        elif event.kind != classes.AGAIN and (event.level is None or event.level <= _ERROR):
            others.append(event)
    for fault in faults:
        yield _judged(fault, [it for it in fault if it in deciding], kernel_log, parts_now)
    yield from _shown(others, kernel_log)


def _deciding(events: Sequence[Event]) -> list[Event]:
    """Return the events that may fail the node, the gravest first; of corrected errors those of a storm."""
    found = [it for it in events if it.kind in _RANKS]
    corrected: defaultdict[str, list[Event]] = defaultdict(list)
    for event in (it for it in found if it.kind == CORRECTED):
        corrected[event.part or event.text].append(event)
    for of_device in corrected.values():
        days = max(1.0, *(((it.last or 0.0) - (it.first or 0.0)) / _DAY for it in of_device))
        if sum(it.count for it in of_device) < MAX_CORRECTED * days:
            found = [it for it in found if it not in of_device]
    return sorted(found, key=lambda it: [*_RANKS].index(it.kind))


def _shown(others: list[Event], log: KernelLog) -> Iterator[Advisory | Remark]:
    """Yield one warning for all other errors; `-v` and HTML show what it has no room for."""
    others.sort(key=lambda it: (it.level or 0, -it.line))
    lines = [_measured(event, log) for event in others]
    fit = next((n for n in range(1, len(lines)) if sum(map(len, lines[:n])) > MOST_SHOWN), len(lines))
    more = len(lines) - fit + log.unsent_errors
    quoted = "; ".join([*lines[:fit], *[f"{more} more kinds"] * bool(more)])
    if others:
        measured = Quote(f"{sum(it.count for it in others)} other lines: {quoted}")
        yield Advisory(KERNEL, measured, "no line of level error or worse", code="other_errors")
    yield from (Remark(line, event.count) for line, event in zip(lines[fit:], others[fit:], strict=True))


def _judged(fault: Sequence[Event], deciding: Sequence[Event], log: KernelLog, now: PartsNow) -> Finding | Advisory:
    """Judge the events of one fault by the gravest of those that may decide and that nothing excuses."""
    states = {it: now.state(it) for it in deciding}
    excuses = {it: "" if down else _excuse(it, log) if down is None else why for it, (down, why) in states.items()}
    bad = [it for it in deciding if not excuses[it]]
    lead = (bad or fault)[0]
    others = [it for it in fault if it is not lead]
    lines = [_measured(lead, log), *(f"with {_measured(it, log, 80)}" for it in others[:WITH])]
    lines += [f"{len(others) - WITH} more"] * (len(others) > WITH)
    lines += [why for down, why in states.values() if down][:1] if bad else [excuses[lead]]
    (code, action), part = _RANKS[lead.kind], _device(lead)
    modules = [it.device for it in deciding if re.search("dimm|chan|csrow|mc#", it.device, re.IGNORECASE)]
    if lead.kind in MEMORY or modules:
        part = Part("memory", name=", ".join(dict.fromkeys(modules)) or lead.device)
    shown = (KERNEL if lead.kind == CRASH else part, Quote("; ".join(lines)), f"no {lead.kind}")
    if not bad:
        return Advisory(*shown, code=code)
    down = [it for it in bad if states[it][0]]
    used = (it.kind == classes.FILE_SYSTEM or (it.kind == classes.DRIVE and now.mounted(it.device)) for it in down)
    return Finding(*shown, Action.DRAIN if any(used) else action, code=code)


def _device(event: Event) -> Part:
    return Part("device", name=event.device) if event.device else KERNEL


def _excuse(event: Event, log: KernelLog) -> str:
    """Return why a line proves no fault of now, '' if it does."""
    if event.kind in MEMORY:
        if event.last is not None and event.last < MINUTE:
            return "of the boot before: printed in the first minute"
        before = [it for it in log.of(classes.INJECTED) if it.line <= event.line]
        if any(event.near(it) or "Inject" not in it.text for it in before):
            return "a test injected errors"
        of_gpu = any(event.near(it.event) for it in log.xids if it.number in OF_GPU_MEMORY)
        if of_gpu and event.text.startswith("Memory failure"):  # Grace addresses the memory of its GPU too
            return "with an Xid of the GPU's memory"
    if event.kind in GIVEN_UP:
        for again in log.of(classes.AGAIN):
            if again.line > event.line and event.is_named_by(again):
                return f"a later line, {again.text[:80]!r}, shows that it is used again"
    return ""


def _measured(event: Event, log: KernelLog, length: int = SHOWN) -> str:
    return f"{event.text[:length]} ({count(event.count, 'time')}, last {log.when(event.last)})"


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
        raise NotAvailable("the lines of the kernel log have no times: whether it begins with the boot is not known")
    if since > MINUTE:
        begin = f"begins {format_duration(since)} after boot ({kernel_log.when(since)})"
        lost = "earlier lines are lost to os.kernel_log and gpu.xid"
        raise NotAvailable(f"the kernel log ({kernel_log.source}) {begin}; {lost}")
    yield Metric("kernel_log_since", since, "s after boot", detail=True)
