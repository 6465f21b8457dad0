"""Readers of `scontrol ping`, `sdiag` and Slurm's logs. Pure.

Formats: src/scontrol/scontrol.c, src/sdiag/sdiag.c and src/common/log.c of Slurm 22.05 to 25.11.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, text_of
from pytest_gpucluster.core.run_mark import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_LINES, LINE_LENGTH = 300, 400
MOST_OF_JOURNAL = 50_000  # lines that are searched
_PING = re.compile(r"^Slurmctld\(([^)\s]+)\) at (\S+) is (UP|DOWN)$", re.MULTILINE)
_RPC = re.compile(r"^\t(\w+)\s*\(\s*\d+\) count:(\d+)\s+ave_time:(\d+)\s+total_time:(\d+)", re.MULTILINE)
_RPC_TITLE = "Remote Procedure Call statistics by message type"
_NO_LOG = 3  # exit status of the command for a log that cannot be read
# [2026-11-23T14:46:17.151], also with a zone and without the fraction; journalctl -o short-iso has no brackets
_ISO = re.compile(r"\[?(\d{4}-\d\d-\d\dT[\d:]{8})(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?(?:\]| )\s*")
# LogTimeFormat=short, thread_id; without brackets as syslog writes it
_SHORT = re.compile(r"(?P<open>\[)?(?P<time>[A-Z][a-z]{2} [ \d]\d [\d:]{8})(?(open)[^\]]*\]|(?= ))\s*")
_UNDATED = re.compile(r"\[\d+\]\s+")  # LogTimeFormat=clock
_JOURNAL = re.compile(r"^\S+ \S+\[\d+\]: ")  # HOST slurmd[PID]:
_DAEMON = re.compile(r"^(?:slurm(?:ctld|d|stepd|scriptd)(?:-[\w.-]+)?|spank-(?:prolog|epilog)): (?=error: |fatal: )")
_SELECTED = f"error: |fatal: |{NO_NODE}"


@dataclass(frozen=True)
class ControllerState:
    """One controller of slurm.conf: `role` is primary, backup, backup1, ..."""

    role: str
    host: str
    up: bool


@dataclass(frozen=True)
class Scheduler:
    """One scheduler since the last reset of the counters. `mean` in seconds, None before its first cycle."""

    cycles: int
    mean: float | None


@dataclass(frozen=True)
class SdiagStats:
    """What sdiag shows. `backfilled` is the time of the last backfill cycle, None before the first.

    `rpcs`: {type of request: (count, mean duration in seconds)}.
    """

    now: float
    threads: int
    agent_queue: int
    dbd_queue: int
    pending: int
    running: int
    main: Scheduler
    backfill: Scheduler
    backfilled: float | None
    rpcs: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LogLine:
    """An error line of a log. `age` in seconds, None where the line shows no time."""

    age: float | None
    text: str


@dataclass(frozen=True)
class LogTail:
    """The error lines at the end of a log, oldest first. `idle`: seconds since the last write; None: unknown."""

    lines: tuple[LogLine, ...]
    idle: float | None = None


def parse_ping(text: str) -> tuple[ControllerState, ...]:
    """Return the controllers of `scontrol ping`; ProbeError if it names none."""
    found = tuple(ControllerState(role, host, state == "UP") for role, host, state in _PING.findall(text))
    if not found:
        raise ProbeError(f"scontrol ping names no controller: {text.strip()[:120]!r}")
    return found


def parse_sdiag(text: str) -> SdiagStats:
    """Return the figures of sdiag; ProbeError if one is missing or the output is incomplete."""
    head, _, rest = text.partition("\nMain schedule statistics (microseconds):\n")
    main, _, rest = rest.partition("\nBackfilling stats")
    backfill, _, rest = rest.partition(f"\n{_RPC_TITLE}")
    rpcs, end, _ = rest.partition("\nRemote Procedure Call statistics by user")
    if not end:
        raise ProbeError("sdiag: the output is incomplete or of an unknown version")
    when = re.search(r"^\tLast cycle when: (?:.*\((\d+)\)|N/A)$", backfill, re.MULTILINE)
    clock = re.search(r"^sdiag output at .*\((\d+)\)$", head, re.MULTILINE)
    if when is None or clock is None:
        raise ProbeError("sdiag: the output shows no time")
    return SdiagStats(
        now=float(clock[1]),
        threads=_figure(head, "Server thread count"),
        agent_queue=_figure(head, "Agent queue size"),
        dbd_queue=_figure(head, "DBD Agent queue size"),
        pending=_figure(head, "Jobs pending"),
        running=_figure(head, "Jobs running"),
        main=_scheduler(main),
        backfill=_scheduler(backfill),
        backfilled=float(when[1]) if when[1] else None,
        rpcs={name: (int(count), int(mean) / 1e6) for name, count, mean, _ in _RPC.findall(rpcs)},
    )


def _figure(part: str, name: str) -> int:
    match = re.search(rf"^\t?{name}:\s+(\d{{1,18}})$", part, re.MULTILINE)
    if match is None:
        raise ProbeError(f"sdiag: the output has no {name!r}")
    return int(match[1])


def _scheduler(part: str) -> Scheduler:
    cycles = _figure(part, "Total cycles")
    return Scheduler(cycles, _figure(part, "Mean cycle") / 1e6 if cycles else None)


def log_command(path: str, unit: str, size: int) -> str:
    """Return a shell command that prints the error lines at the end of a log; parse_log reads them.

    `path` is the value of slurm.conf, '' if the daemon writes to syslog: then systemd's journal of the unit is read.
    """
    # newest lines only: one repeated error could fill megabytes
    keep = (
        f"LC_ALL=C awk '/{_SELECTED}/ {{ line[n++] = substr($0, 1, {LINE_LENGTH}) }} "
        f"END {{ for (i = n > {MOST_LINES} ? n - {MOST_LINES} : 0; i < n; i++) print line[i] }}'"
    )
    clock = "date '+now %s %Y-%m-%dT%H:%M:%S'"
    if not path:
        journal = f"journalctl -q -u {unit} -o short-iso --no-pager"
        return (
            f'{clock}; [ -n "$({journal} -n 1 2>/dev/null)" ] || '
            f"{{ echo 'the journal shows no line of {unit}' >&2; exit {_NO_LOG}; }}; "
            f"{journal} -n {MOST_OF_JOURNAL} 2>/dev/null | tail -c {size} | {keep}"
        )
    return (
        f"node=${{SLURMD_NODENAME:-$(hostname -s)}}; log={_shell_path(path)}; {clock}; "
        f'[ -r "$log" ] || {{ echo {shlex.quote(path)} cannot be read >&2; exit {_NO_LOG}; }}; '
        f'echo "written $(stat -c %Y -- "$log")"; tail -c {size} -- "$log" | {keep}'
    )


def dbd_log(text: str) -> str:
    """Return LogFile of slurmdbd.conf, '' if it is not stated: then slurmdbd writes to syslog. Keys have no case."""
    found = re.findall(r"^[ \t]*LogFile[ \t]*=[ \t]*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return found[-1] if found else ""


def _shell_path(path: str) -> str:
    """Return slurm.conf's path as a word of the shell: %n is the name of the node, %h its hostname."""
    shown = {"%n": '"$node"', "%h": '"$(hostname -s)"'}
    return "".join(shown.get(part) or shlex.quote(part) for part in re.split(r"(%[nh])", path) if part)


def read_log(answer: Answer) -> LogTail:
    """Return the error lines that the command of log_command printed; NotAvailable if the log cannot be read."""
    if answer.rc == _NO_LOG:
        raise NotAvailable(answer.err.strip().rpartition("\n")[2] or "the log cannot be read")
    return parse_log(text_of(answer))


def parse_log(text: str) -> LogTail:
    """Return the error lines with their age by the clock of the same machine; ProbeError without that clock."""
    lines = text.splitlines()
    clock = re.fullmatch(r"now (\d{1,12}) (\S+)", lines[0]) if lines else None
    if clock is None:
        raise ProbeError("the log's output does not begin with the time")
    epoch = int(clock[1])
    try:
        local = dt.datetime.fromisoformat(clock[2])
    except ValueError as error:
        raise ProbeError(f"the time of the machine is not understood: {clock[2]!r}") from error
    written = re.fullmatch(r"written (\d{1,12})", lines[1]) if len(lines) > 1 else None
    return LogTail(
        tuple(_line(one, epoch, local) for one in _of_others(lines[2 if written else 1 :]) if one.strip()),
        epoch - int(written[1]) if written else None,
    )


def _of_others(lines: list[str]) -> Iterator[str]:
    """Yield the lines without those of our own question for the rights of the user; a refusal names the node a line later."""
    for line, later in zip(lines, [*lines[1:], ""], strict=False):
        refused = "Security violation, UPDATE_NODE RPC" in line and NO_NODE in later
        if NO_NODE not in line and not refused:
            yield line


def _line(text: str, epoch: int, local: dt.datetime) -> LogLine:
    if text.startswith("{"):  # a log in JSON, as containers have it
        try:
            entry = safe_json.loads(text)
            text = f"[{entry['time']}] {entry['log']}"
        except (ValueError, KeyError, TypeError):
            return LogLine(None, text)
    age: float | None = None
    if match := _ISO.match(text):
        age = _age(match[1], match[2] or "", epoch, local)
    elif match := _SHORT.match(text):
        age = _age_of_short(match["time"], local)
    else:
        match = _UNDATED.match(text)
    rest = text[match.end() :] if match else text
    return LogLine(age, _DAEMON.sub("", _JOURNAL.sub("", rest)).strip())


def _age(time: str, zone: str, epoch: int, local: dt.datetime) -> float | None:
    try:
        when = dt.datetime.fromisoformat(time)
        if not zone:
            return (local - when).total_seconds()
        if zone != "Z":
            shift = dt.timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
            when = when - shift if zone[0] == "+" else when + shift
        return epoch - when.replace(tzinfo=dt.timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


def _age_of_short(time: str, local: dt.datetime) -> float | None:
    """Return the age of a time without a year: the last one before now, where a day of difference is the clock's."""
    for year in (local.year, local.year - 1):
        try:
            # both times are of the machine's own clock, without a zone
            when = dt.datetime.strptime(f"{year} {time}", "%Y %b %d %H:%M:%S")  # noqa: DTZ007
        except ValueError:  # 29 February
            continue
        if when <= local + dt.timedelta(days=1):
            return (local - when).total_seconds()
    return None
