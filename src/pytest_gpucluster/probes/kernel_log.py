"""The kernel log since boot: what of it concerns hardware, drivers and file systems.

The node itself folds its log: of each sort of line that matters it sends the count, the first time and the last
line, so a flood of one sort hides no other and 1000 nodes send little. Sources of the formats: dmesg(1),
journalctl(1) with `-o short-monotonic`, and NVIDIA's Xid documentation ("NVRM: Xid (PCI:0000:65:00): 79, ...").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pytest_gpucluster.errors import NotAvailable, ProbeError
from pytest_gpucluster.probes.base import Answer, Probe, text_of

# Lines of these sorts are sent home; parse() then sorts them with KINDS.
_WANTED = (
    "nvrm|xid|mce|machine check|hardware error|edac|ext4-fs|xfs|btrfs|i/o error|out of memory|oom-kill|lockup"
    "|blocked for more|kernel bug|panic|call trace|aer:|dpc:|pcie bus error|stale file handle|not responding"
    "|table full, dropping|neighbor table overflow|nfs: server"
    "|nvme nvme[0-9]+: (i/o|controller is|device not|removing|disabling)"
)

# The key of a line is its text without numbers, an Xid's number and GPU excepted: same sort, same key.
_FOLD = " ".join(
    (
        r'{ gsub(/\r/, ""); lines++; low = tolower($0) }',
        r'NR == 1 { print "from\t" $0 }',
        "low ~ /" + _WANTED.replace("/", r"\/") + "/ {",
        r'key = $0; sub(/^(<[0-9]+>)?\[[^]]*\] */, "", key);',
        r"if (match(key, /Xid \([^)]*\): [0-9]+/)) key = substr(key, RSTART, RLENGTH);",
        r'else gsub(/[0-9]+/, "#", key);',
        "if (!(key in count)) { if (kinds == 200) { more++; next } order[kinds++] = key; first[key] = $0 }",
        "count[key]++; last[key] = $0 }",
        r'END { for (i = 0; i < kinds; i++) { k = order[i]; t = first[k]; sub(/\].*/, "]", t);',
        r'print "seen\t" count[k] "\t" t "\t" last[k] }',
        r'print "end\t" lines + 0 "\t" more + 0 }',
    )
)

COMMAND = (
    "w=dmesg; o=$(dmesg 2>&1); r=$?; "
    'if [ $r != 0 ] || [ -z "$o" ]; then e=$o; w=journalctl; '
    "o=$(journalctl -q -k -b --no-pager -o short-monotonic 2>&1); r=$?; "
    'if [ $r != 0 ] || [ -z "$o" ]; then '
    'echo "dmesg: ${e:-empty}; journalctl -k: ${o:-empty}" | tr "\\n" " " >&2; exit 1; fi; fi; '
    'echo "source $w"; echo "clock $(date +%s) $(cat /proc/uptime)"; '
    f"printf '%s\\n' \"$o\" | awk '{_FOLD}'"
)

KINDS: dict[str, re.Pattern[str]] = {
    "sxid": re.compile(r"nvidia-nvswitch\S*: SXid"),
    "xid": re.compile(r"NVRM: Xid \("),
    "nvrm": re.compile(
        r"NVRM: .*(fail|error|API mismatch|fallen off|assert|can't|unable|not supported|rpcRmApi|timed? ?out)",
        re.IGNORECASE,
    ),
    "mce": re.compile(r"\[Hardware Error\]|Machine check|mce: .*(error|event)", re.IGNORECASE),
    "edac": re.compile(r"EDAC .*\b(CE|UE)\b"),
    "filesystem": re.compile(
        # "Opts: errors=remount-ro" is what Debian and Ubuntu mount their root with
        r"(EXT4-fs|XFS|BTRFS)\b(?!.*\bOpts: ).*(error|corrupt|shutdown|remount\S* .*read-only)|stale file handle"
        r"|nfs: server .* not responding",
        re.IGNORECASE,
    ),
    "nfs back": re.compile(r"nfs: server \S+ OK"),
    "io": re.compile(
        r"I/O error|nvme nvme\d+: (I/O .*timeout, (?!completion polled)|controller is down|device not ready"
        r"|removing after probe failure|disabling device after)",
        re.IGNORECASE,
    ),
    # "X invoked oom-killer" comes first, be it of a job's cgroup or of the node: the lines after it tell which
    "oom": re.compile(r"Out of memory|oom-kill:", re.IGNORECASE),
    "lockup": re.compile(r"(soft|hard) lockup|blocked for more than|kernel BUG|kernel panic", re.IGNORECASE),
    "network": re.compile(r"nf_conntrack: table full, dropping packet|neighbor table overflow"),
    "pcie": re.compile(r"PCIe Bus Error|AER: .*error|DPC: containment event", re.IGNORECASE),
}

_STAMP = re.compile(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]")
_DATED = re.compile(r"(?:<\d+>)?\[[^\]]*\d[^\]]*\]")  # [    0.000000] or [Sat Nov 21 10:00:00 2026]
SHORT = 20  # lines: a message in place of a log is shorter
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)[^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?"
)
_SXID = re.compile(r"(?P<switch>nvidia-nvswitch\S*): SXid \([^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?")


@dataclass(frozen=True)
class Event:
    """One sort of line: `kind` of KINDS, how often it came, when first and last (seconds after boot)."""

    kind: str
    count: int
    first: float | None
    last: float | None
    text: str


@dataclass(frozen=True)
class XidEvent:
    """An Xid of one GPU. `bus` is its PCI address as the driver writes it, like 0000:1b:00."""

    number: int
    bus: str
    event: Event
    text: str


@dataclass(frozen=True)
class KernelLog:
    """What the kernel said since boot.

    `since` is the time of the oldest line, in seconds after boot: where the ring buffer has wrapped, what came
    before is lost. `lines` is the length of the whole log: the positive sign that it was read. `unsaid` counts
    lines of further sorts that were not sent (more than 200 sorts).
    """

    source: str
    lines: int
    since: float | None
    booted: datetime | None
    events: tuple[Event, ...] = ()
    unsaid: int = 0

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds; names are those of KINDS."""
        return tuple(event for event in self.events if event.kind in kinds)

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """Every Xid of every GPU, once, with its count."""
        found = ((event, _XID.search(event.text)) for event in self.of("xid"))
        return tuple(
            XidEvent(int(match["number"]), match["bus"].lower(), event, match["text"] or "")
            for event, match in found
            if match
        )

    @property
    def sxids(self) -> tuple[XidEvent, ...]:
        """Every SXid, the Xids of NVSwitches; `bus` is the name of the switch."""
        found = ((event, _SXID.search(event.text)) for event in self.of("sxid"))
        return tuple(
            XidEvent(int(match["number"]), match["switch"], event, match["text"] or "")
            for event, match in found
            if match
        )

    def when(self, seconds: float | None) -> str:
        """Write a time after boot for people: 2026-11-20T10:00:00Z, or '90 s after boot' without a clock."""
        if seconds is None:
            return "at an unknown time"
        if self.booted is None:
            return f"{seconds:.0f} s after boot"
        return (self.booted + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(answer: Answer) -> KernelLog:
    """Read the folded log; NotAvailable without permission, ProbeError where the log is cut or unread."""
    lines = _permitted(answer).splitlines()
    ends = [line.split("\t") for line in lines if line.startswith("end\t")]
    if not ends or len(ends[-1]) < 3 or not lines[0].startswith("source "):  # noqa: PLR2004 - end, lines, more
        raise ProbeError(
            "kernel log came without its end: the answer is cut or awk is absent; run dmesg by hand"
        )
    starts = [line[5:] for line in lines if line.startswith("from\t")]
    total, unsaid = (int(field) for field in ends[-1][1:3])
    if not total:
        raise NotAvailable("the kernel log is empty: nothing shows that it was read")
    first = starts[0] if starts else ""
    # a kernel may be told to write no times: then a log of some length in plain text shows itself
    if not _DATED.match(first) and (total < SHORT or not first.isprintable() or "\ufffd" in first):
        plain = "".join(sign if sign.isprintable() else "?" for sign in first)
        raise NotAvailable(f"that is no kernel log: {plain[:80]!r}")
    return KernelLog(
        source=lines[0][7:],
        lines=total,
        since=_stamp(starts[0]) if starts else None,
        booted=_booted(lines),
        events=tuple(event for line in lines if line.startswith("seen\t") if (event := _event(line))),
        unsaid=unsaid,
    )


def _permitted(answer: Answer) -> str:
    """Return the text; NotAvailable says how the log can be read where the user may not."""
    try:
        return text_of(answer)
    except NotAvailable as error:
        said = str(error)
        if re.search(r"\bsudo: |Sorry, user|not in the sudoers", said):
            raise NotAvailable(
                f"{said}: the cluster file says sudo: true, which needs NOPASSWD for sh"
            ) from error
        if re.search(r"not permitted|permission", said, re.IGNORECASE):
            raise NotAvailable(f"{said}: {_REMEDY}") from error
        raise


_REMEDY = (
    "for root alone (kernel.dmesg_restrict): sudo: true in the cluster file, or the user in group adm or "
    "systemd-journal"
)


def _event(line: str) -> Event | None:
    fields = line.split("\t", 3)
    if len(fields) != 4 or not fields[1].isdecimal():  # noqa: PLR2004 - seen, count, first, last
        raise ProbeError(f"kernel log: not understood: {line[:80]!r}")
    text = fields[3]
    kind = next((name for name, pattern in KINDS.items() if pattern.search(text)), None)
    if kind is None:
        return None  # a harmless line of a wanted word, like the driver's greeting
    return Event(kind, int(fields[1]), _stamp(fields[2]), _stamp(text), _STAMP.sub("", text).strip())


def _stamp(line: str) -> float | None:
    match = _STAMP.match(line)
    return float(match[1]) if match else None


def _booted(lines: list[str]) -> datetime | None:
    clocks = [line.split() for line in lines if line.startswith("clock ")]
    try:
        return datetime.fromtimestamp(float(clocks[0][1]) - float(clocks[0][2]), tz=timezone.utc)
    except (IndexError, ValueError):
        return None


KERNEL_LOG = Probe("kernel log", COMMAND, parse, root=True, timeout=30, by_hand="dmesg || journalctl -k -b")
