"""The lines of the kernel log since boot that concern hardware, drivers and file systems.

The node folds its log: for each kind of relevant line it sends the count, the first time and the last line, so that
a flood of one kind hides no other and 1000 nodes send little. Sources of the formats: dmesg(1),
journalctl(1) with `-o short-monotonic`, and the sources of NVIDIA's driver (open-gpu-kernel-modules: kernel_rc.c for
Xids, error_nvswitch.c and intr_nvswitch.h for SXids).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, text_of

# Lines that the node sends; parse() classifies them by KINDS
_WANTED = (
    "nvrm|mce|machine check|hardware error|edac|ext4-fs|xfs|btrfs|i/o error|out of memory|oom-kill|lockup"
    "|kernel bug|panic|aer:|dpc:|pcie bus error|stale file handle|table full, dropping|neighbor table overflow"
    "|mlx5_core|md/raid|disk failure|rcu_.*stall"
    "|nvme nvme[0-9]+: (i/o|controller is|device not|removing|disabling)|critical medium error|failing i/o"
    "|bug: (kernel null|unable to handle)|\\[#[0-9]+\\]"
)
# A blocked task waits for a file server if its call trace has a module or a function of a network file system
_CLIENT = (
    r"\[(nfs|nfsv3|nfsv4|lockd|sunrpc|lustre|ptlrpc|osc|mdc|lov|lmv|ldlm|obdclass|ceph|libceph|fuse|mmfs26|mmfslinux|beegfs)\]"
    r"|(^|[ ?(])(nfs|nfs3|nfs4|rpc|xprt|ptlrpc|ll|ldlm|osc|mdc|ceph|fuse)_[a-z0-9_]+[+]0x"
)
# While a server does not answer, tasks also wait for locks of waiting tasks, unless their trace has one of these
_LOCAL = (
    r"\[(nvidia[a-z_]*|xfs|ext4|jbd2|btrfs|nvme[a-z_]*|scsi_mod|dm_mod|raid[0-9]+|mlx[45]_[a-z]+)\]"
    r"|(^|[ ?(])(xfs|ext4|jbd2|btrfs|blk|nvme|scsi|dm|md)_[a-z0-9_]+[+]0x"
)
WAITS = "(waits for a file server)"
SORTS = 200  # different Xids, and different other lines, that a node sends
LOADING = 60.0  # seconds; the driver prints its version after it has found the GPUs
TRACE = 60  # lines; a call trace is shorter

# note: counts a line under its key. settle: notes a blocked task after its call trace, or without one.
# A key is the text without numbers, but with what a verdict depends on: number, GPU and severity of an Xid, the registers
# of an NVLink error (of NVLink 5 without the bits of the link), device and severity of an SXid, the first digit of a machine check's status (it has the bit "uncorrected").
# dmesg and journalctl write before the text: <3>, "kern  :err   : ", times and columns in [], a date, "HOST kernel: ".
# Lines of processes like systemd have the form "[HOST ]NAME[PID]: ": they are not from the kernel.
# The second and third line of an SXid hold registers. A line that begins with a blank continues the previous one.
# A stall of a file server is noted while it lasts. A task that is reported as blocked after the server has answered may
# have waited for it, if it was blocked longer than that.
_AWK = r"""
function note(key, xid, at, time, words) {
  if (!(key in count)) {
    if (sorts[xid] + 0 == SORTS) { more[xid]++; return }
    sorts[xid]++; order[kinds++] = key; first[key] = time }
  count[key]++; line[key] = at; last[key] = time; latest[key] = words }
function settle(server, key) {
  if (blocked == "") return;
  key = blocked; gsub(/[0-9]+/, "#", key);
  if (server || (!own && behind)) { key = key "s"; blocked = blocked " WAITS" }
  note(key, 0, since, start, blocked); blocked = "" }
function registers(words) {
  if (!match(words, /[(]0x[0-9a-f]+,? 0x[0-9a-f]+/)) return "";
  words = substr(words, RSTART + 1, RLENGTH - 1);
  if (words !~ /,/) words = substr(words, 1, 5) substr(words, 8);
  return " " words }
function seconds(at) { gsub(/[^0-9.]/, "", at); return at + 0 }
function recent(words) {
  sub(/.*blocked for more than /, "", words);
  return back && seconds(stamp) - seconds(answered) <= words + 0 }
function stall(server, over) {
  if (over) { if (server in away) { delete away[server]; stalled--; back++; answered = stamp } return }
  if (!(server in away)) { stalled++; gone[server] = stamp; times[server] = 0 }
  away[server] = text; times[server]++; place[server] = NR; late[server] = stamp }
{ gsub(/\r/, ""); lines++; text = $0; stamp = "";
  if (match(text, /\[ *[0-9]+[.][0-9]+\]/) && RSTART < 60) stamp = substr(text, RSTART, RLENGTH);
  else if (text ~ /^ /) stamp = before;
  before = stamp;
  sub(/^<[0-9]+>/, "", text);
  sub(/^[a-z0-9]+ *: *(emerg|alert|crit|err|warn|notice|info|debug) *: */, "", text);
  sub(/^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[-0-9:.,+]+ */, "", text);
  sub(/^[A-Z][a-z][a-z] +[0-9]+ [0-9][0-9]:[0-9:.]+ /, "", text);
  sub(/^([^ []+ )?kernel: */, "", text);
  while (sub(/^\[ *[TC0-9.+]+\] */, "", text) || sub(/^\[[A-Z][a-z][a-z] [^]]*[0-9]\] */, "", text));
  sub(/^([^ []+ )?kernel: */, "", text);
  low = tolower(text) }
NR == 1 { print "from\t" $0 }
text ~ /^([^ []+ )?[^][ :]+\[[0-9]+\]: / { next }
blocked != "" {
  if (low ~ /CLIENT/) settle(1);
  else if (NR > since + TRACE) settle(0);
  else if (low ~ /LOCAL/) own = 1 }
text ~ /NVRM: loading NVIDIA/ { loaded = stamp }
text ~ /Xid [(]/ && match(text, /(NVRM: |nvidia-nvswitch[^ ]* S)Xid [(][^)]*[)]: [0-9]+/) {
  key = substr(text, RSTART, RLENGTH); rest = substr(low, RSTART + RLENGTH);
  if (rest ~ /^, *(severity [0-9]|data [{])/) next;
  sub(/ GPU-[^)]*/, "", key);
  sub(/^, *pid=[^,]*,( *name=[^,]*,)?/, "", rest);
  if (rest ~ /non-?fatal/) key = key " n"; else if (rest ~ /fatal/) key = key " f";
  if (rest ~ /correctable/) key = key " c";
  if (rest ~ /rst: yes/) key = key " r";
  if (key ~ /: (74|14[4-9]|150)$/ || key ~ /: (74|14[4-9]|150) [nf]$/) key = key registers(rest);
  note(key, 1, NR, stamp, text); next }
match(text, /: server [^ ]+ (not responding|OK)/) {
  name = text; sub(/.*: server /, "", name); sub(/ .*/, "", name);
  stall(name, text ~ /: server [^ ]+ OK/); next }
text ~ /^Lustre/ && match(text, /[^ ]+: Connection (to [^ ]+ .*was lost|restored)/) {
  name = substr(text, RSTART); sub(/: Connection.*/, "", name); sub(/-[0-9a-f]+$/, "", name);
  stall(name, text ~ /: Connection restored/); next }
text ~ /^Lustre: Unmounted / {
  name = text; sub(/^Lustre: Unmounted /, "", name); sub(/-client.*/, "", name);
  for (k in away) if (index(k, name "-") == 1) stall(k, 1);
  next }
text ~ /blocked for more than [0-9]+ seconds/ {
  settle(0); blocked = text; own = 0; behind = stalled || recent(text); since = NR; start = stamp; next }
text ~ /^BERT: .*previous boot/ { past = 1; note("bert", 0, NR, stamp, text); next }
past && text ~ /^\[Hardware Error\]/ { next }
{ past = 0 }
low ~ /WANTED/ {
  if (match(text, /active with [0-9]+ out of [0-9]+/)) {
    split(substr(text, RSTART, RLENGTH), word, " ");
    if (word[3] == word[6]) next }
  key = text;
  gsub(/0x[0-9a-fA-F]+/, "#", key);
  gsub(/[0-9]+/, "#", key); gsub(/[a-fA-F]+#/, "#", key); gsub(/#[a-fA-F#]+/, "#", key);
  if (match(low, /bank [0-9]+: (0x)?[0-9a-f]/)) key = key substr(low, RSTART + RLENGTH - 1, 1);
  note(key, 0, NR, stamp, text) }
END { settle(0);
  for (k in away) { if (stalls++ < SORTS) print "seen\t" times[k] "\t" place[k] "\t" gone[k] "\t" late[k] "\t" away[k] }
  for (i = 0; i < kinds; i++) { k = order[i];
    print "seen\t" count[k] "\t" line[k] "\t" first[k] "\t" last[k] "\t" latest[k] }
  print "end\t" lines + 0 "\t" more[0] + 0 "\t" more[1] + 0 "\t" back + 0 "\t" loaded }
"""
_FOLD = " ".join(part.strip() for part in _AWK.splitlines())
for _name, _value in (
    ("CLIENT", _CLIENT),
    ("LOCAL", _LOCAL),
    ("WANTED", _WANTED),
    ("WAITS", WAITS),
    ("SORTS", str(SORTS)),
    ("TRACE", str(TRACE)),
):
    _FOLD = _FOLD.replace(_name, _value.replace("/", r"\/"))

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
        r"NVRM: .*(fail|error|API mismatch|fallen off|is lost|assert|can't|unable|not supported|rpcRmApi|timed? ?out"
        r"|probably locked|I/O region|Cannot attach)",
        re.IGNORECASE,
    ),
    "boot record": re.compile(r"BERT: .*previous boot"),
    "mce": re.compile(r"\[Hardware Error\]|Machine check|mce: .*(error|event)", re.IGNORECASE),
    "edac": re.compile(r"EDAC .*\b(CE|UE)\b"),
    # net/sunrpc/clnt.c; lustre/ptlrpc/import.c
    "stall": re.compile(r": server (?P<server>\S+) not responding|Connection to (?P<target>\S+) .*was lost"),
    "waiting": re.compile(rf"blocked for more than .*{re.escape(WAITS)}"),
    "filesystem": re.compile(
        # Debian and Ubuntu mount their root with "Opts: errors=remount-ro"
        r"(EXT4-fs|XFS|BTRFS)\b(?!.*\bOpts: ).*(error|corrupt|shutdown|remount\S* .*read-only)|stale file handle",
        re.IGNORECASE,
    ),
    # drivers/md/raid1.c, raid5.c, raid10.c
    "raid": re.compile(r"(md/)?raid\S* ?Disk failure on|md/raid\S* active with \d+ out of"),
    # drivers/net/ethernet/mellanox/mlx5/core/health.c and cmd.c
    "nic": re.compile(
        r"mlx5_core:? .*(health compromised|Health issue observed|Fatal error|firmware internal error|assert_var\["
        r"|health recovery (flow aborted|failed)|health poll failed|unrecoverable|probe of \S+ failed"
        r"|mlx5_load_one failed|\(0x[0-9a-f]+\) timeout)",
        re.IGNORECASE,
    ),
    "io": re.compile(
        r"I/O error|critical medium error|no available path - failing I/O"
        r"|nvme nvme\d+: (I/O .*timeout, (?!completion polled)|controller is down|device not ready"
        r"|removing after probe failure|disabling device after)",
        re.IGNORECASE,
    ),
    # "X invoked oom-killer" comes first; the lines after it show whether a job's cgroup or the node is out of memory
    "oom": re.compile(r"Out of memory|oom-kill:", re.IGNORECASE),
    "lockup": re.compile(
        r"(soft|hard) lockup(?! detector)|blocked for more than|kernel BUG|kernel panic"
        # an oops: arch/x86/mm/fault.c and kernel/dumpstack.c, arch/arm64/kernel/traps.c
        r"|BUG: (kernel NULL|unable to handle)|: [0-9a-f]{4,} \[#\d+\]"
        r"|INFO: rcu_\S+ (self-)?detected stall",  # kernel/rcu/tree_stall.h; expedited ones are of 21 jiffies
        re.IGNORECASE,
    ),
    "network": re.compile(r"nf_conntrack: table full, dropping packet|neighbor table overflow"),
    "pcie": re.compile(r"PCIe Bus Error|AER: .*error|DPC: containment event", re.IGNORECASE),
}

_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
# [    0.000000] or [Sat Nov 21 10:00:00 2026], with <6>, "kern  :info  : ", an ISO or a syslog time before it or alone
_DATED = re.compile(
    r"(?:<\d+>)?(?:[a-z0-9]+ *: *[a-z]+ *: *)?(?:\[[^\]]*\d|\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} +\d+ \d\d:)"
)
SHORT = 20  # lines: an error message instead of a log is shorter
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)[^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?"
)
_SXID = re.compile(r"(?P<switch>nvidia-nvswitch\w*):? SXid \([^)]*\): (?P<number>\d+)(?:,\s*(?P<text>.*))?")


@dataclass(frozen=True)
class Event:
    """One kind of line: `kind` of KINDS, its count, first and last time (seconds after boot).

    `line` is the number of the last such line in the log: it orders events without times.
    """

    kind: str
    count: int
    first: float | None
    last: float | None
    text: str
    line: int = 0

    @property
    def server(self) -> str:
        """The file server, or the Lustre target, of a stall."""
        match = KINDS["stall"].search(self.text)
        return (match["server"] or match["target"]) if match else ""


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
    was loaded last (None: not in the log). `stalls_over`: how often a file server stalled and answered again.
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
    stalls_over: int = 0

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds, named as in KINDS."""
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
_END = 6  # fields: end, lines, unsent, unsent_xids, stalls_over, loaded


def parse(answer: Answer) -> KernelLog:
    """Return the folded log; NotAvailable without permission, ProbeError if the log is cut or unread."""
    lines = _permitted(answer).splitlines()
    ends = [line.split("\t") for line in lines if line.startswith("end\t")]
    if not ends or len(ends[-1]) != _END or not lines[0].startswith("source "):
        raise ProbeError(
            "the end of the kernel log is missing: the answer is cut or awk is absent; run dmesg on the node"
        )
    starts = [line[5:] for line in lines if line.startswith("from\t")]
    total, unsent, unsent_xids, over = (int(field) for field in ends[-1][1:-1])
    if not total:
        raise NotAvailable("the kernel log is empty: nothing shows that it was read")
    first = starts[0] if starts else ""
    # a kernel may write no times: then the length or known messages identify a log
    known = any(line.startswith("seen\t") for line in lines)
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
        stalls_over=over,
        unsent_xids=unsent_xids,
        events=tuple(event for line in lines if line.startswith("seen\t") if (event := _event(line))),
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


def _event(line: str) -> Event | None:
    fields = line.split("\t", _SEEN - 1)
    if len(fields) != _SEEN or not (fields[1].isdecimal() and fields[2].isdecimal()):
        raise ProbeError(f"kernel log: not understood: {line[:80]!r}")
    _, count, place, first, last, text = fields
    kind = next((name for name, pattern in KINDS.items() if pattern.search(text)), None)
    if kind is None:
        return None  # a harmless line that matches _WANTED, like the driver's version
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


KERNEL_LOG = Probe("kernel log", COMMAND, parse, root=True, timeout=30, by_hand="dmesg || journalctl -k -b")
