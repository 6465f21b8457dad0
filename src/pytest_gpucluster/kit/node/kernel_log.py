"""The events of the kernel log since boot: the lines of docs/suites/os.md that may decide, and those that the kernel marks as errors.

The node folds its log: one event for each kind of line and device, with the number of errors, the first and the last time,
and the last line, so that a flood of one kind hides no other and 1000 nodes send little. Sources of the formats:
dmesg(1), journalctl(1) with `-o short-monotonic`, and the sources of NVIDIA's driver (open-gpu-kernel-modules: kernel_rc.c
for Xids, error_nvswitch.c and intr_nvswitch.h for SXids).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.log_classes import AGAIN, CRASH, MEMORY, class_of, in_awk

if TYPE_CHECKING:
    from pytest_gpucluster.core.known_lines import KnownLine

SORTS = 200  # different Xids, different lines that may decide, and different other errors, that a node sends
MINUTE = (
    60.0  # seconds; what the kernel prints of one event, or of one loading of a driver, is printed within this time
)
SHORT = 20  # lines: an error message instead of a log is shorter, and has neither a time nor a known line
_LINES = 30  # lines of one event, in a log without times
_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
_TIME = re.compile(r"\d[:.]\d|^\[\d|^<\d+>\[")  # with which a log may begin
_XID = re.compile(
    r"(NVRM: |(?P<switch>nvidia-nvswitch\d*):? S)Xid \((PCI:)?(?P<bus>[0-9A-Fa-f:.]*)[^)]*\): (?P<number>\d+)(,\s*(?P<text>.*))?"
)
_SLOT = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_PCI = rf"{_SLOT}\.[0-7]"
# What a line is about; the first expression that occurs decides.
_DEVICES = (
    r"EDAC .* on (\S*(?:DIMM|SrcID|Chan|csrow|mc#)\S*)",
    r"\(((?:branch|channel|slot|csrow):\d+ \w+:\d+)",
    rf".*(?:from|received:) ({_PCI})",  # a port reports an error that its device sent
    rf"\b({_PCI})",
    rf"(?:PCI:|GPU ?)({_SLOT})\b",
    r"\((?:device )?([a-z][\w-]*)(?: state \w+|: state \w+)?\):",
    r"\b((?:md|dm-|loop|nbd|rbd|mmcblk)\d+|nvme\d+(?:n\d+)?(?:p\d+)?|(?:sd|vd|xvd)[a-z]+\d*)\b",
    r"Pool '(\S+)'|(CPU:? ?\d+: Machine Check.* Bank \d+|CPU:\d+.* MC\d+_STATUS|EDAC \w*\s?MC\d+|nvidia-nvswitch\d*)",
)


def command(known: tuple[KnownLine, ...] = ()) -> str:
    """Return the command that reads the log, and sends the lines that the cluster file knows too."""
    own = "|".join(entry.pattern for entry in known).replace("/", "\\/")
    rule = f"text ~ /{own}/ {{ note(fold(text), 0, NR, stamp, text, 0); next }}" if own else ""
    words = {"CLASSES": in_awk(), "AGAIN": in_awk(AGAIN), "SORTS": SORTS, "KNOWN": rule}
    return script(__package__, "kernel_log.sh", FOLD=shlex.quote(script(__package__, "kernel_log.awk", **words)))


@dataclass(frozen=True)
class Event:
    """One kind of line of one device: its `kind`, the number of errors, first and last time (seconds after boot).

    `line` is the number of the last such line in the log: it orders events without times. `level`: the kernel's own, None
    where the log has none.
    """

    kind: str
    count: int
    first: float | None
    last: float | None
    text: str
    line: int = 0
    level: int | None = None

    @cached_property
    def device(self) -> str:
        """The memory module, PCI address, disk, array or file system that the line names, '' without one."""
        if record := re.findall(r"(?:fru_text|DIMM location|device_id): (?!0x)([^;]+)", self.text):
            return ", ".join(dict.fromkeys(map(str.strip, record)))
        found = next(filter(None, (re.search(pattern, self.text) for pattern in _DEVICES)), None)
        name = next(filter(None, found.groups())) if found else ""
        return name.lower() if re.match(_SLOT, name) else name

    @cached_property
    def part(self) -> str:
        """The device without the function of a PCI address, the namespace and the partition of a disk."""
        match = re.match(rf"{_SLOT}|nvme\d+|(?:sd|vd|xvd)[a-z]+(?=\d*$)", self.device)
        return match[0] if match else self.device

    def near(self, other: Event) -> bool:
        """Return whether all that this event counts was printed within a minute of what another one counts."""
        if self.first is None or self.last is None or other.first is None or other.last is None:
            return abs(self.line - other.line) <= _LINES
        return self.first >= other.first - MINUTE and self.last <= other.last + MINUTE

    def is_of(self, other: Event) -> bool:
        """Return whether this event is of the fault of another one: of the same part, or of memory or a crash, within a minute."""
        alike = any(self.kind in it and other.kind in it for it in (MEMORY, (CRASH,)))
        return (alike or (bool(self.part) and self.part == other.part)) and self.near(other)

    def is_named_by(self, other: Event) -> bool:
        """Return whether the text of another event names this one's device, or the part that it belongs to."""
        names = "|".join(re.escape(it) for it in (self.device, self.part) if it)
        return bool(names and re.search(rf"\b({names})(\b|n\d|p\d)", other.text, re.IGNORECASE))


@dataclass(frozen=True)
class XidEvent:
    """An Xid of one GPU. `bus` is its PCI address as the driver writes it, like 0000:1b:00; an SXid's is the name of the switch."""

    number: int
    bus: str
    event: Event
    text: str


@dataclass(frozen=True)
class KernelLog:
    """The events in the kernel log since boot.

    `since`: time of the oldest line, in seconds after boot; a wrapped ring buffer has lost the lines before it.
    `lines`: length of the whole log, which proves that it was read. `unsent`: lines that were not sent (more than 200
    different ones), `unsent_xids`: those of Xids and SXids, `unsent_errors`: those of other errors. `loaded`: when
    NVIDIA's driver was loaded last (None: not in the log).
    """

    source: str
    lines: int
    since: float | None
    booted: datetime | None
    events: tuple[Event, ...] = ()
    unsent: int = 0
    unsent_xids: int = 0
    unsent_errors: int = 0
    loaded: float | None = None

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds: those of log_classes.py, xid and sxid."""
        return tuple(event for event in self.events if event.kind in kinds)

    def reloaded_after(self, event: Event) -> bool:
        """Return whether NVIDIA's driver was reloaded after an event; events of the loading itself do not count."""
        return event.last is not None and self.loaded is not None and event.last + MINUTE < self.loaded

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """The different Xids of each GPU."""
        return self._numbered("xid", "bus")

    @property
    def sxids(self) -> tuple[XidEvent, ...]:
        """The different SXids, the Xids of NVSwitches."""
        return self._numbered("sxid", "switch")

    def _numbered(self, kind: str, name: str) -> tuple[XidEvent, ...]:
        found = ((_XID.search(it.text), it) for it in self.of(kind))
        return tuple(
            XidEvent(int(at["number"]), at[name].lower(), it, at["text"] or "") for at, it in found if at and at[name]
        )

    def when(self, seconds: float | None) -> str:
        """Return a time after boot as text: 2026-11-20T10:00:00Z, or '90 s after boot' without a clock."""
        if seconds is None:
            return "at an unknown time"
        if self.booted is None:
            return f"{seconds:.0f} s after boot"
        return (self.booted + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(answer: Answer) -> KernelLog:
    """Return the folded log; NotAvailable without permission, ProbeError if the log is cut or unread."""
    lines = _permitted(answer).splitlines()
    end = next((line.split("\t") for line in lines if line.startswith("end\t")), [])
    if len(end) != len(("end", "lines", "unsent", "xids", "errors", "loaded")) or not lines[0].startswith("source "):
        raise ProbeError(
            "the end of the kernel log is missing: the answer is cut or awk is absent; run dmesg on the node"
        )
    first = next((line[5:] for line in lines if line.startswith("from\t")), "")
    total, unsent, xids, errors = map(int, end[1:-1])
    if not total:
        raise NotAvailable("the kernel log is empty: nothing shows that it was read")
    events = tuple(_event(line) for line in lines if line.startswith("seen\t"))
    if total < SHORT and not _TIME.search(first) and not any(it.kind for it in events):
        raise NotAvailable(f"not a kernel log: {first[:80]!r}")
    clock = next((line for line in lines if line.startswith("clock ")), "")
    return KernelLog(lines[0][7:], total, _stamp(first), _booted(clock), events, unsent, xids, errors, _stamp(end[-1]))


def _permitted(answer: Answer) -> str:
    """Return the text; NotAvailable with a remedy if the user may not read the log."""
    try:
        return text_of(answer)
    except NotAvailable as error:
        if re.search(r"\bsudo: |Sorry, user|not in the sudoers", str(error)):
            raise NotAvailable(f"{error}: sudo: true in the cluster file needs NOPASSWD for sh") from error
        remedy = "set sudo: true in the cluster file, or add the user to group adm or systemd-journal"
        denied = re.search(r"not permitted|permission", str(error), re.IGNORECASE)
        hint = f": only root may read it (kernel.dmesg_restrict): {remedy}" if denied else ""
        raise NotAvailable(f"{error}{hint}") from error


def _event(line: str) -> Event:
    row = re.fullmatch(r"seen\t(\d+)\t(\d+)\t([^\t]*)\t([^\t]*)\t(\d*)\t(.*)", line)
    if row is None:
        raise ProbeError(f"kernel log: not understood: {line[:80]!r}")
    text = row[6].strip()
    kind = "sxid" if "SXid (" in text else "xid" if "NVRM: Xid (" in text else class_of(text)
    return Event(kind, int(row[1]), _stamp(row[3]), _stamp(row[4]), text, int(row[2]), int(row[5]) if row[5] else None)


def _stamp(text: str) -> float | None:
    match = _STAMP.search(text)
    return float(match[1]) if match else None


def _booted(clock: str) -> datetime | None:
    """Return the time of the boot from `clock EPOCH UPTIME IDLE`, None if it is not readable."""
    try:
        now, uptime = map(float, clock.split()[1:3])
        return datetime.fromtimestamp(now - uptime, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def kernel_log_of(known: tuple[KnownLine, ...]) -> Probe[KernelLog]:
    """Return the probe of the kernel log, with `known` of the cluster file."""
    return Probe("kernel log", command(known), parse, root=True, timeout=60, by_hand="dmesg || journalctl -k -b")
