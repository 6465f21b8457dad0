"""Packages, services, processes, sysctls, time service, name resolution and further commands of the cluster file."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.command_end import DEADLINE, LIMITED_SH
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import NOT_EXECUTABLE, NOT_FOUND, Answer, Probe, last_line, text_of
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.core.values import system_name
from pytest_gpucluster.suites.os.facts import SECTIONS_SH, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class ProcessRow:
    """One row of ps. `age` in seconds, None if ps does not print it.

    kernel: a thread of the kernel. switches: its context switches, None if not read: a process that gets on has more of
    them in each sample (as check_hung_task() of the kernel judges it).
    """

    pid: int
    ppid: int
    state: str
    age: int | None
    user: str
    command: str
    kernel: bool = False
    switches: int | None = None


@dataclass(frozen=True)
class Processes:
    """The number of processes, and those that were zombies or in uninterruptible sleep in every sample."""

    total: int
    stuck: tuple[ProcessRow, ...]

    def of_state(self, letter: str) -> tuple[ProcessRow, ...]:
        """Return the stuck processes whose state begins with a letter, Z or D."""
        return tuple(process for process in self.stuck if process.state.startswith(letter))


_HIDDEN = (
    "ps does not show process 1: /proc hides the processes of others (hidepid); run as root, or as a member of the "
    "group that its option gid= names"
)
_ROW = re.compile(r"(?:@(\d+|kernel)\s+)?(\d+)\s+(\d+)\s+([A-Z]\S*)\s+(\d+|-)\s+(\S+)\s+(.+)")


def read_processes(answer: Answer) -> Processes:
    """Return the processes with the same state and pid in every sample."""
    if not answer.out.endswith("\n"):
        raise ProbeError(f"ps: the last line is cut: {last_line(answer.out)[:80]!r}")
    samples: list[dict[int, ProcessRow]] = [{}]
    totals: list[int] = []
    for line in text_of(answer).splitlines():
        end = re.fullmatch(r"processes (\d+)( visible)?", line.strip())
        if end:
            if end[2]:
                raise NotAvailable(_HIDDEN)
            totals.append(int(end[1]))
            samples.append({})
        elif line.strip():
            process = _process(line.strip())
            samples[-1][process.pid] = process
    if not totals or min(totals) == 0:
        raise NotAvailable(last_line(answer.err) or "ps lists no process")
    whole = samples[: len(totals)]
    stuck = (process for pid, process in whole[-1].items() if all(_same(process, sample.get(pid)) for sample in whole))
    return Processes(totals[0], tuple(stuck))


def _process(line: str) -> ProcessRow:
    match = _ROW.fullmatch(line)
    if not match:
        raise ProbeError(f"ps: not understood: {line[:80]!r}")
    mark, pid, ppid, state, age, user, command = match.groups()
    kernel = mark == "kernel" if mark else int(ppid) == _KTHREADD
    switches = int(mark) if mark and not kernel else None
    seconds = int(age) if age != "-" else None
    return ProcessRow(int(pid), int(ppid), state, seconds, user, command, kernel, switches)


_KTHREADD = 2  # the parent of all threads of the kernel


def _same(process: ProcessRow, before: ProcessRow | None) -> bool:
    return (
        before is not None
        and before.state[0] == process.state[0]
        and (before.switches == process.switches or None in (before.switches, process.switches))
    )


PROCESSES: Probe[Processes] = Probe(
    "processes",
    script(__package__, "processes.sh", FOLD=shlex.quote(script(__package__, "processes.awk"))),
    read_processes,
    by_hand="ps -eo pid,ppid,stat,etimes,user,comm | awk '$3 ~ /^[DZ]/'",
)


@dataclass(frozen=True)
class TimeSync:
    """State of the time service. `offset` in seconds, None if unknown; `source`: the tool that was used.

    error: the largest error of the clock that the service estimates, in seconds; None if unknown.
    silent: seconds since the last measurement of a source, None if unknown; `interval`: those between two.
    """

    synchronised: bool
    source: str
    offset: float | None = None
    detail: str = ""
    error: float | None = None
    silent: float | None = None
    interval: float = 0.0


_TIME_SH = (
    SECTIONS_SH + "s now date +%s; s chronyc chronyc -c tracking; "
    '[ "$r" = 0 ] || s ntpq ntpq -c rv; [ "$r" = 0 ] || s timedatectl timedatectl show'
)


def read_time_sync(answer: Answer) -> TimeSync:
    """Use chronyd, else ntpd, else timedatectl, which has no offset."""
    found = sections(answer)
    now = _float(found.pop("now").text) if "now" in found else None
    for name, read in (("chronyc", _chrony), ("ntpq", _ntp), ("timedatectl", _timedatectl)):
        part = found.get(name)
        if part is not None and part.rc == 0 and (sync := read(part.text)):
            measured = sync.silent  # as read, the time of the last measurement
            return replace(sync, silent=None if now is None or measured is None else now - measured)
    errors = (f"{name}: {last_line(part.text)}" for name, part in found.items() if part.rc != NOT_FOUND)
    raise NotAvailable("; ".join(errors) or "none of chronyc, ntpq and timedatectl is installed")


def _chrony(text: str) -> TimeSync | None:
    """`chronyc -c tracking`: fields 4 and 5 are the time of the last measurement and the offset, the last one the leap status."""
    fields = text.strip().split(",")
    if len(fields) < 14:  # fields of chronyc(1) tracking
        return None
    return TimeSync(
        fields[-1] != "Not synchronised",
        "chronyc",
        _float(fields[4]),
        f"leap status {fields[-1]}",
        silent=_float(fields[3]),
        interval=_float(fields[12]) or 0.0,
    )


def _ntp(text: str) -> TimeSync | None:
    """`ntpq -c rv`: leap=11 (leap_alarm) means not synchronised; offset and rootdisp in milliseconds."""
    leap = re.search(r"leap_\w+|leap=\d+", text)
    offset = re.search(r"\boffset=([-+.\d]+)", text)
    if not leap:
        return None
    alarm = leap[0] in ("leap_alarm", "leap=11", "leap=3")
    error = re.search(r"\brootdisp=([.\d]+)", text)
    return TimeSync(not alarm, "ntpq", _seconds(offset), leap[0], _seconds(error))


def _seconds(milliseconds: re.Match[str] | None) -> float | None:
    value = _float(milliseconds[1]) if milliseconds else None
    return None if value is None else value / 1000


def _timedatectl(text: str) -> TimeSync | None:
    """`timedatectl show`: NTPSynchronized is the flag of the kernel, for any time service."""
    match = re.search(r"^NTPSynchronized=(yes|no)$", text, re.MULTILINE)
    return TimeSync(match[1] == "yes", "timedatectl", None, match[0]) if match else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


TIME_SYNC: Probe[TimeSync] = Probe(
    "time service", _TIME_SH, read_time_sync, timeout=15.0, by_hand="chronyc tracking || ntpq -p || timedatectl"
)


def read_failed_units(answer: Answer) -> tuple[str, ...]:
    """Return the names of failed units; an empty answer with exit status 0 means none."""
    failed = []
    for line in text_of(answer).splitlines():
        fields = line.replace("\u25cf", "").split()
        if fields and not (len(fields) > 1 and re.fullmatch(r"\S+\.[a-z]+", fields[0])):
            raise ProbeError(f"systemctl: not a unit: {line[:80]!r}")
        failed += fields[:1]
    return tuple(failed)


FAILED_UNITS: Probe[tuple[str, ...]] = Probe(
    "failed units",
    "export LC_ALL=C; exec systemctl list-units --state=failed --plain --no-legend --no-pager",
    read_failed_units,
    timeout=15.0,
    by_hand="systemctl --failed",
)


@dataclass(frozen=True)
class SystemState:
    """State of systemd: the word of `systemctl is-system-running`; '' if there is none, with the reason in `problem`."""

    word: str
    problem: str = ""
    hung: bool = False

    @property
    def answers(self) -> bool:
        """Whether systemd reported its state."""
        return bool(self.word)


# man systemctl; without `unknown`, which means no connection to systemd
_SYSTEM_STATES = frozenset({"initializing", "starting", "running", "degraded", "maintenance", "stopping", "offline"})


def read_system_state(answer: Answer) -> SystemState:
    """Return the state, or why systemd cannot be reached; NotAvailable if the user may not query it."""
    if answer.rc == NOT_FOUND:
        text_of(answer)
    message = last_line(answer.err) or last_line(answer.out)
    word = last_line(answer.out)
    if word in _SYSTEM_STATES:
        return SystemState(word)
    if word == DEADLINE:
        return SystemState("", f"no answer, twice, within {_SYSTEM_SECONDS} s", hung=True)
    if "not been booted with systemd" in answer.err + answer.out:  # a line about the bus may follow it
        return SystemState("offline")
    if re.search(r"denied|not permitted|authentication required", message, re.IGNORECASE):
        raise NotAvailable(message)
    return SystemState("", message)


_SYSTEM_SECONDS = 10
SYSTEM_STATE: Probe[SystemState] = Probe(
    "systemd",
    f"{LIMITED_SH}export LC_ALL=C; for i in 1 2; do "
    f"limited {_SYSTEM_SECONDS} systemctl is-system-running; [ $ended = {DEADLINE} ] || exit $ended; done; echo {DEADLINE}",
    read_system_state,
    by_hand="systemctl is-system-running",
)


def _nothing(name: str) -> Probe[dict[str, str]]:
    """Return the probe of an empty list: {}. Without names the tools would list everything, or fail."""
    return Probe(name, "true", lambda _: {})


def services(units: Sequence[str]) -> Probe[dict[str, str]]:
    """Return the probe of {unit: active|inactive|failed|...} of the cluster file's units.

    An inactive service whose socket is active starts with the first connection: it is 'active'.
    """
    if not units:
        return _nothing("services")
    names = tuple(_name(unit, "os.services") for unit in units)

    def parse(answer: Answer) -> dict[str, str]:
        if answer.rc == NOT_FOUND:
            text_of(answer)
        states = answer.out.split()
        if len(states) != 2 * len(names):  # without systemd there is one error message instead
            raise NotAvailable(last_line(answer.err) or last_line(answer.out) or "systemctl printed nothing")
        pairs = zip(states[: len(names)], states[len(names) :], strict=True)
        listens = (own if own != "inactive" else socket for own, socket in pairs)
        return dict(zip(names, listens, strict=True))

    sockets = [f"{name.removesuffix('.service')}.socket" for name in names]
    command = "export LC_ALL=C; exec systemctl is-active " + shlex.join((*names, *sockets))
    return Probe("services", command, parse, timeout=15.0, by_hand=f"systemctl status {shlex.join(names)}")


def packages(names: Iterable[str]) -> Probe[dict[str, str]]:
    """Return the probe of {package: installed version}, '' if it is not installed."""
    wanted = tuple(_name(name, "os.packages") for name in names)
    if not wanted:
        return _nothing("packages")
    quoted = " ".join(shlex.quote(name) for name in wanted)
    command = script(__package__, "packages.sh", NAMES=quoted)

    def parse(answer: Answer) -> dict[str, str]:
        if answer.rc == NOT_FOUND:
            text_of(answer)
        return {name: _version(name, answer.out) for name in wanted}

    return Probe("packages", command, parse, by_hand=f"dpkg -l {quoted} || rpm -q {quoted}")


def _version(name: str, text: str) -> str:
    row = re.search(rf"^{re.escape(name)}\t([^\t\n]*)\t(.*)$", text, re.MULTILINE)
    if row:  # dpkg's status has three words; a removed package with remaining configuration is not installed
        return row[1] if row[2].split()[-1:] == ["installed"] else ""
    gone = rf"no packages found matching {re.escape(name)}$|package {re.escape(name)} is not installed"
    if not re.search(gone, text, re.MULTILINE):
        raise ProbeError(f"packages: nothing about {name} in {last_line(text)[:80]!r}")
    return ""


def sysctls(names: Iterable[str]) -> Probe[dict[str, str]]:
    """Return the probe of {sysctl: value} with single blanks; '' if the kernel has no such name."""
    wanted = tuple(_name(name, "os.sysctls") for name in names)
    if not wanted:
        return _nothing("sysctls")
    paths = [shlex.quote(_proc_path(name)) for name in wanted]
    singly = "; ".join(f"s {shlex.quote(name)} cat {path}" for name, path in zip(wanted, paths, strict=True))
    # one process for all; one per name if a name is missing or has not exactly one line
    reads = (
        f"v=$(cat {' '.join(paths)} 2>/dev/null) && set -f && IFS='\n' && set -- $v && [ $# = {len(wanted)} ] && "
        f"s all printf '%s\\n' \"$@\" || {{ {singly}; }}"
    )

    def parse(answer: Answer) -> dict[str, str]:
        found = sections(answer)
        if "all" in found:
            lines = found["all"].text.splitlines()
            return {name: " ".join(line.split()) for name, line in zip(wanted, lines, strict=True)}
        values: dict[str, str] = {}
        for name in wanted:
            part = found.get(name)
            if part is None:
                raise ProbeError(f"sysctl: no answer about {name}")
            if part.rc != 0 and "No such file" not in part.text:
                raise NotAvailable(last_line(part.text) or f"{name}: exit {part.rc}")
            values[name] = " ".join(part.text.split()) if part.rc == 0 else ""
        return values

    return Probe("sysctls", SECTIONS_SH + reads, parse, by_hand="sysctl " + shlex.join(wanted))


def _proc_path(name: str) -> str:
    """Return the file of a sysctl. As in sysctl(8), dots and slashes are exchanged if the first separator is a dot."""
    first = re.search(r"[./]", name)
    swapped = name.translate(str.maketrans("./", "/.")) if first and first[0] == "." else name
    return f"/proc/sys/{swapped}"


def _name(name: str, key: str) -> str:
    try:
        return system_name(name)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


@dataclass(frozen=True)
class CommandOutput:
    """Output and exit status of a command, for the comparison with other nodes."""

    text: str
    rc: int


def command_output(command: str) -> Probe[CommandOutput]:
    """Return the probe of a command of the cluster file whose output must be the same on all nodes."""

    def parse(answer: Answer) -> CommandOutput:
        if answer.rc in (NOT_FOUND, NOT_EXECUTABLE):
            text_of(answer)
        return CommandOutput(answer.out.strip(), answer.rc or 0)

    return Probe(f"drift: {command}", command, parse, by_hand=command, alone=True)  # it may take long


def resolution(names: Sequence[str]) -> Probe[dict[str, str]]:
    """Return the probe of {name: its sorted addresses}, '' if the node cannot resolve the name."""
    wanted = tuple(_name(name, "nodes") for name in names)
    quoted = [shlex.quote(name) for name in wanted]
    singly = "; ".join(f"s {name} getent hosts {name}" for name in quoted)
    # one process for all; one per name if a name is unknown or a line does not contain its name
    lookups = (
        f"v=$(getent hosts {' '.join(quoted)} 2>/dev/null); g=$?; "
        f'for n in {" ".join(quoted)}; do case "$v " in *[[:space:]]"$n"[[:space:].]*) ;; *) g=1;; esac; done; '
        f"if [ $g = 0 ]; then s '*' printf '%s\\n' \"$v\"; else {singly}; fi"
    )

    def parse(answer: Answer) -> dict[str, str]:
        found = sections(answer)
        if "*" in found:
            return {name: _addresses(_lines_of(name, found["*"].text)) for name in wanted}
        addresses: dict[str, str] = {}
        for name in wanted:
            part = found.get(name)
            if part is None or part.rc not in (0, 2):  # 2: getent found nothing
                raise NotAvailable(last_line(part.text) if part else f"no answer about {name}")
            addresses[name] = _addresses(part.text.splitlines())
        return addresses

    return Probe("names", SECTIONS_SH + lookups, parse, by_hand="getent hosts " + shlex.join(wanted))


def _lines_of(name: str, text: str) -> list[str]:
    """Return the lines of getent with the name, or the name with its domain."""
    return [
        line
        for line in text.splitlines()
        if any(word == name or word.startswith(f"{name}.") for word in line.split()[1:])
    ]


def _addresses(lines: Iterable[str]) -> str:
    return " ".join(sorted({fields[0] for line in lines if (fields := line.split())}))
