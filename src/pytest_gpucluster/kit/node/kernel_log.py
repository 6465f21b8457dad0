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
LOADING = 60.0  # seconds; the driver prints its version after it has found the GPUs


def command(known: tuple[KnownLine, ...] = ()) -> str:
    """Return the command that reads the log, and sends the lines that the cluster file knows too."""
    own = "|".join(entry.pattern for entry in known).replace("/", "\\/")
    rule = f"text ~ /{own}/ {{ note(fold(text), 0, NR, stamp, text, 0); next }}" if own else ""
    fold = script(
        __package__, "kernel_log.awk", CLASSES=in_awk(), AGAIN=in_awk(AGAIN), SORTS=SORTS, KNOWN=rule
    )
    return script(__package__, "kernel_log.sh", FOLD=shlex.quote(fold))


_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
# [    0.000000] or [Sat Nov 21 10:00:00 2026], with <6>, "kern  :info  : ", an ISO or a syslog time before it or alone
_DATED = re.compile(
    r"(?:<\d+>)?(?:kernel: )?(?:[a-z0-9]+ *: *[a-z]+ *: *)?(?:\[[^\]]*\d|\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} +\d+ \d\d:)"
)
SHORT = 20  # lines: an error message instead of a log is shorter
_XID = re.compile(
    r"(NVRM: |(?P<switch>nvidia-nvswitch\d*):? S)Xid \((PCI:)?(?P<bus>[0-9A-Fa-f:.]*)[^)]*\): (?P<number>\d+)(,\s*(?P<text>.*))?"
)


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
        for pattern in _DEVICES:
            if found := pattern.findall(self.text):
                name = str(found[-1] if pattern is _SENDER else found[0]).removeprefix("/dev/")
                return name.lower() if re.fullmatch(f"{_PCI}|{_SLOT}", name) else name
        return ""

    @cached_property
    def part(self) -> str:
        """The device without the function of a PCI address, the namespace and the partition of a disk."""
        if match := re.match(rf"{_SLOT}|nvme\d+|(?:sd|vd|xvd)[a-z]+(?=\d*$)", self.device):
            return match[0]
        return self.device

    @property
    def seconds(self) -> float:
        """The time between the first and the last line, 0 without times."""
        return 0.0 if self.first is None or self.last is None else self.last - self.first

    def near(self, other: Event) -> bool:
        """Return whether all that this event counts was printed within a minute of what another one counts."""
        if self.first is None or self.last is None or other.first is None or other.last is None:
            return abs(self.line - other.line) <= _LINES
        return self.first >= other.first - MINUTE and self.last <= other.last + MINUTE

    def with_(self, other: Event) -> bool:
        """Return whether this event happened within a minute of another one of the same part, or of a part of it."""
        return bool(self.part) and self.part == other.part and self.near(other)

    def is_one_fault(self, other: Event) -> bool:
        """Return whether two events are of one fault: of memory, a crash, or of one class and part, within a minute."""
        alike = self.kind == other.kind and (self.kind == CRASH or self.part == other.part)
        both = self.kind in MEMORY and other.kind in MEMORY
        return (alike or both) and (self.near(other) or other.near(self))

    def is_named_by(self, other: Event) -> bool:
        """Return whether the text of another event names this one's device, or the part that it belongs to."""
        names = "|".join(re.escape(it) for it in (self.device, self.part) if it)
        return bool(names and re.search(rf"\b({names})(\b|n\d|p\d)", other.text, re.IGNORECASE))


MINUTE = 60.0  # seconds; what the kernel prints of one event is printed within this time
_LINES = 30  # lines, in a log without times
_SLOT = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_PCI = rf"{_SLOT}\.[0-7]"
# a port reports an error that its device sent
_SENDER = re.compile(rf"(?:from|received:) ({_PCI})")
_DEVICES = (
    re.compile(r"EDAC .* on (\S*(?:DIMM|SrcID|Chan|csrow|mc#)\S*)"),
    re.compile(r"\(((?:branch|channel|slot|csrow):\d+ \w+:\d+)"),
    _SENDER,
    re.compile(rf"\b({_PCI})"),
    re.compile(rf"(?:PCI:|GPU ?)({_SLOT})\b"),
    re.compile(r"\((?:device )?([a-z][\w-]*)(?:: state \w+| state \w+)?\):"),
    re.compile(r"\bAborting journal on device ([a-z][\w-]*?)-\d+\."),  # and the inode of the journal
    re.compile(
        r"\b(md\d+|nvme\d+(?:n\d+)?(?:p\d+)?|(?:sd|vd|xvd)[a-z]+\d*|(?:dm-|loop|nbd|rbd|mmcblk)\d+)\b"
    ),
    re.compile(r"Pool '(\S+)'"),
    re.compile(
        r"(CPU:? ?\d+: Machine Check.* Bank \d+|CPU:\d+.* MC\d+_STATUS|EDAC \w*\s?MC\d+|nvidia-nvswitch\d*)"
    ),
)


@dataclass(frozen=True)
class XidEvent:
    """An Xid of one GPU. `bus` is its PCI address as the driver writes it, like 0000:1b:00."""

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
        return event.last is not None and self.loaded is not None and event.last + LOADING < self.loaded

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """The different Xids of each GPU."""
        return self._numbered("xid", "bus")

    @property
    def sxids(self) -> tuple[XidEvent, ...]:
        """The different SXids, the Xids of NVSwitches; `bus` is the name of the switch."""
        return self._numbered("sxid", "switch")

    def _numbered(self, kind: str, name: str) -> tuple[XidEvent, ...]:
        found = ((event, _XID.search(event.text)) for event in self.of(kind))
        return tuple(
            XidEvent(int(match["number"]), match[name].lower(), event, match["text"] or "")
            for event, match in found
            if match and match[name]
        )

    def when(self, seconds: float | None) -> str:
        """Return a time after boot as text: 2026-11-20T10:00:00Z, or '90 s after boot' without a clock."""
        if seconds is None:
            return "at an unknown time"
        if self.booted is None:
            return f"{seconds:.0f} s after boot"
        return (self.booted + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


_SEEN = 7  # fields: seen, count, line, first, last, level, text
_END = 6  # fields: end, lines, unsent, unsent_xids, unsent_errors, loaded


def parse(answer: Answer) -> KernelLog:
    """Return the folded log; NotAvailable without permission, ProbeError if the log is cut or unread."""
    lines = _permitted(answer).splitlines()
    ends = [line.split("\t") for line in lines if line.startswith("end\t")]
    if not ends or len(ends[-1]) != _END or not lines[0].startswith("source "):
        raise ProbeError(
            "the end of the kernel log is missing: the answer is cut or awk is absent; run dmesg on the node"
        )
    first = next((line[5:] for line in lines if line.startswith("from\t")), "")
    total, unsent, unsent_xids, unsent_errors = (int(field) for field in ends[-1][1:-1])
    if not total:
        raise NotAvailable("the kernel log is empty: nothing shows that it was read")
    events = tuple(_event(line) for line in lines if line.startswith("seen\t"))
    # a kernel may write no times: then the length or known messages identify a log
    is_log = any(it.kind for it in events) or _DATED.match(first)
    if not is_log and (total < SHORT or not first.isprintable() or "\ufffd" in first):
        plain = "".join(sign if sign.isprintable() else "?" for sign in first)
        raise NotAvailable(f"not a kernel log: {plain[:80]!r}")
    clock = next((line for line in lines if line.startswith("clock ")), "")
    loaded = _stamp(ends[-1][-1])
    counts = (unsent, unsent_xids, unsent_errors)
    return KernelLog(lines[0][7:], total, _stamp(first), _booted(clock), events, *counts, loaded)


_REMEDY = (
    "only root may read it (kernel.dmesg_restrict): set sudo: true in the cluster file, or add the user to group adm or "
    "systemd-journal"
)


def _permitted(answer: Answer) -> str:
    """Return the text; NotAvailable with a remedy if the user may not read the log."""
    try:
        return text_of(answer)
    except NotAvailable as error:
        message = str(error)
        if re.search(r"\bsudo: |Sorry, user|not in the sudoers", message):
            raise NotAvailable(f"{message}: sudo: true in the cluster file needs NOPASSWD for sh") from error
        if re.search(r"not permitted|permission", message, re.IGNORECASE):
            raise NotAvailable(f"{message}: {_REMEDY}") from error
        raise


_OWN = {"sxid": "SXid (", "xid": "NVRM: Xid ("}  # kinds that gpu.xid judges


def _event(line: str) -> Event:
    fields = line.split("\t", _SEEN - 1)
    if len(fields) != _SEEN or not (fields[1].isdecimal() and fields[2].isdecimal()):
        raise ProbeError(f"kernel log: not understood: {line[:80]!r}")
    _, count, place, first, last, level, text = fields
    kind = next((name for name, start in _OWN.items() if start in text), "") or class_of(text)
    severity = int(level) if level else None
    return Event(kind, int(count), _stamp(first), _stamp(last), text.strip(), int(place), severity)


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
    return Probe(
        "kernel log", command(known), parse, root=True, timeout=60, by_hand="dmesg || journalctl -k -b"
    )
