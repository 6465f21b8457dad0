"""The events of the kernel log since boot that concern hardware, drivers and file systems.

The node folds its log: one event for each kind of line and device, with the number of errors, the first and the last time,
and the last line, so that a flood of one kind hides no other and 1000 nodes send little. data/kernel-lines.yaml has the
kinds. A log that raised a question is followed by the state that answers it (kit/node/kernel_state.py). Sources of the formats:
dmesg(1), journalctl(1) with `-o short-monotonic`, and the sources of NVIDIA's driver (open-gpu-kernel-modules: kernel_rc.c
for Xids, error_nvswitch.c and intr_nvswitch.h for SXids).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.kernel_state import STATE_PARTS, STATE_SH, KernelState, read_state
from pytest_gpucluster.kit.node.log_rules import DRIVER, QUIET, LogRule, in_awk, joined, rule_of

if TYPE_CHECKING:
    from pytest_gpucluster.core.known_lines import KnownLine

SORTS = 200  # different Xids, and different other lines, that a node sends
COMPLAINTS = 40  # different lines of drivers that no entry has
LOADING = 60.0  # seconds; the driver prints its version after it has found the GPUs


def _fold(known: tuple[KnownLine, ...]) -> str:
    """Return the program of awk with the expressions of the data file and of the cluster file."""
    own = in_awk(entry.pattern for entry in known)
    needs = "\n".join(f'if (low ~ /{joined(asks=name)}/) needs["{name}"] = 1' for name in STATE_PARTS)
    return script(
        __package__,
        "kernel_log.awk",
        NEEDS=needs,
        QUIET=joined(kind=QUIET),
        GRAVE=joined(grave=True),
        DRIVER=joined(kind=DRIVER),
        RULES=joined(rest=True),
        COMPLAINTS=COMPLAINTS,
        SORTS=SORTS,
        KNOWN=f"text ~ /{own}/ {{ note(fold(text, 0), 0, NR, stamp, text, 0); next }}" if own else "",
    )


def command(known: tuple[KnownLine, ...] = ()) -> str:
    """Return the command that reads the log, and sends the lines that the cluster file knows too."""
    return script(__package__, "kernel_log.sh", FOLD=shlex.quote(_fold(known))) + "\n" + STATE_SH


_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
# [    0.000000] or [Sat Nov 21 10:00:00 2026], with <6>, "kern  :info  : ", an ISO or a syslog time before it or alone
_DATED = re.compile(
    r"(?:<\d+>)?(?:kernel: )?(?:[a-z0-9]+ *: *[a-z]+ *: *)?(?:\[[^\]]*\d|\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} +\d+ \d\d:)"
)
SHORT = 20  # lines: an error message instead of a log is shorter
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)[^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?"
)
_SXID = re.compile(r"(?P<switch>nvidia-nvswitch\d*):? SXid \([^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?")


@dataclass(frozen=True)
class Event:
    """One kind of line of one device: its `kind`, the number of errors, first and last time (seconds after boot).

    `line` is the number of the last such line in the log: it orders events without times.
    """

    kind: str
    count: int
    first: float | None
    last: float | None
    text: str
    line: int = 0

    @cached_property
    def rule(self) -> LogRule | None:
        """The entry of the data file; None for an Xid."""
        return None if self.kind in _OWN else rule_of(self.text)

    @cached_property
    def server(self) -> str:
        """The file server, or the Lustre target, of a stall."""
        match = _SERVER.search(self.text)
        return next((group for group in match.groups() if group), "") if match else ""

    @cached_property
    def device(self) -> str:
        """The PCI address, disk, file system or memory module that the line names, '' without one."""
        for pattern in _DEVICES:
            if found := pattern.findall(self.text):
                return str(found[-1] if pattern is _SENDER else found[0]).lower()
        return ""


_SERVER = re.compile(
    r": server (\S+) not responding|Connection to (\S+) .*was lost|[Vv][Ff][Ss]: \\\\(\S+) has not responded"
)
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
# a port reports an error that its device sent
_SENDER = re.compile(rf"(?:from|received:) ({_PCI})")
_DEVICES = (
    _SENDER,
    re.compile(rf"\b({_PCI})"),
    re.compile(r"NETDEV WATCHDOG: (\w[\w.-]*)"),
    re.compile(r"PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"),
    re.compile(r"GPU ?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b"),
    re.compile(r"\((?:device )?([a-z][\w-]*)(?:: state \w+)?\):"),
    re.compile(r"\bAborting journal on device ([a-z][\w-]*?)-\d+\."),  # and the inode of the journal
    re.compile(r"\bdev(?:ice)?:? ([a-z][\w/-]*)"),
    re.compile(r"failure on (\w+)"),
    re.compile(r"\[([a-z]{3}\w?)\]"),
    re.compile(r"\b(nvme\d+(?:n\d+)?|md\d+)\b"),
    re.compile(r"\bon (\S*(?:DIMM|SrcID|Chan)\S*)"),
    re.compile(r"\(((?:branch|channel|slot|csrow):\d+ \w+:\d+)"),
    re.compile(r"(EDAC MC\d+|Bank \d+)"),
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
    different ones), `unsent_xids`: those of Xids and SXids. `now`: the node's uptime. `loaded`: when NVIDIA's driver
    was loaded last (None: not in the log). `complaints`: lines of drivers beyond the 40 different ones that were sent.
    `state`: what answers the questions of the log.
    """

    source: str
    lines: int
    since: float | None
    booted: datetime | None
    events: tuple[Event, ...] = ()
    unsent: int = 0
    unsent_xids: int = 0
    now: float | None = None
    loaded: float | None = None
    complaints: int = 0
    state: KernelState = field(default_factory=KernelState)

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds, named as in the data file; xid and sxid."""
        return tuple(event for event in self.events if event.kind in kinds)

    def reloaded_after(self, event: Event) -> bool:
        """Return whether NVIDIA's driver was reloaded after an event; events of the loading itself do not count."""
        return event.last is not None and self.loaded is not None and event.last + LOADING < self.loaded

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """The different Xids of each GPU."""
        found = ((event, _XID.search(event.text)) for event in self.of("xid"))
        return tuple(
            XidEvent(int(match["number"]), match["bus"].lower(), event, match["text"] or "")
            for event, match in found
            if match
        )

    @property
    def sxids(self) -> tuple[XidEvent, ...]:
        """The different SXids, the Xids of NVSwitches; `bus` is the name of the switch."""
        found = ((event, _SXID.search(event.text)) for event in self.of("sxid"))
        return tuple(
            XidEvent(int(match["number"]), match["switch"], event, match["text"] or "")
            for event, match in found
            if match
        )

    def when(self, seconds: float | None) -> str:
        """Return a time after boot as text: 2026-11-20T10:00:00Z, or '90 s after boot' without a clock."""
        if seconds is None:
            return "at an unknown time"
        if self.booted is None:
            return f"{seconds:.0f} s after boot"
        return (self.booted + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


_SEEN = 6  # fields: seen, count, line, first, last, text
_END = 6  # fields: end, lines, unsent, unsent_xids, complaints, loaded


def parse(answer: Answer) -> KernelLog:
    """Return the folded log; NotAvailable without permission, ProbeError if the log is cut or unread."""
    lines = _permitted(answer).splitlines()
    ends = [line.split("\t") for line in lines if line.startswith("end\t")]
    if not ends or len(ends[-1]) != _END or not lines[0].startswith("source "):
        raise ProbeError(
            "the end of the kernel log is missing: the answer is cut or awk is absent; run dmesg on the node"
        )
    starts = [line[5:] for line in lines if line.startswith("from\t")]
    total, unsent, unsent_xids, complaints = (int(field) for field in ends[-1][1:-1])
    if not total:
        raise NotAvailable("the kernel log is empty: nothing shows that it was read")
    first = starts[0] if starts else ""
    # a kernel may write no times: then the length or known messages identify a log
    known = any(line.startswith(("seen\t", "quiet\t")) for line in lines)
    if (
        not known
        and not _DATED.match(first)
        and (total < SHORT or not first.isprintable() or "\ufffd" in first)
    ):
        plain = "".join(sign if sign.isprintable() else "?" for sign in first)
        raise NotAvailable(f"not a kernel log: {plain[:80]!r}")
    return KernelLog(
        source=lines[0][7:],
        lines=total,
        since=_stamp(starts[0]) if starts else None,
        booted=_booted(lines),
        now=_clock(lines, 2),
        loaded=_stamp(ends[-1][-1]),
        complaints=complaints,
        state=read_state(lines),
        unsent_xids=unsent_xids,
        events=tuple(_event(line) for line in lines if line.startswith("seen\t")),
        unsent=unsent,
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


_REMEDY = (
    "only root may read it (kernel.dmesg_restrict): set sudo: true in the cluster file, or add the user to group adm or "
    "systemd-journal"
)


UNKNOWN = "known"  # of a line that only the cluster file knows
_OWN = {"sxid": "SXid (", "xid": "NVRM: Xid ("}  # kinds that gpu.xid judges


def _event(line: str) -> Event:
    fields = line.split("\t", _SEEN - 1)
    if len(fields) != _SEEN or not (fields[1].isdecimal() and fields[2].isdecimal()):
        raise ProbeError(f"kernel log: not understood: {line[:80]!r}")
    _, count, place, first, last, text = fields
    kind = next((name for name, start in _OWN.items() if start in text), "")
    if not kind:
        rule = rule_of(text)
        kind = rule.kind if rule else UNKNOWN
    return Event(kind, int(count), _stamp(first), _stamp(last), text.strip(), int(place))


def _stamp(text: str) -> float | None:
    match = _STAMP.search(text)
    return float(match[1]) if match else None


def _clock(lines: list[str], field: int) -> float | None:
    """Return a field of the line `clock EPOCH UPTIME IDLE`, None if it is missing."""
    try:
        return float(next(line for line in lines if line.startswith("clock ")).split()[field])
    except (StopIteration, IndexError, ValueError):
        return None


def _booted(lines: list[str]) -> datetime | None:
    clock, uptime = _clock(lines, 1), _clock(lines, 2)
    try:
        return (
            None
            if clock is None or uptime is None
            else datetime.fromtimestamp(clock - uptime, tz=timezone.utc)
        )
    except (OverflowError, ValueError, OSError):
        return None


def kernel_log_of(known: tuple[KnownLine, ...]) -> Probe[KernelLog]:
    """Return the probe of the kernel log, with `known` of the cluster file."""
    return Probe(
        "kernel log", command(known), parse, root=True, timeout=60, by_hand="dmesg || journalctl -k -b"
    )
