"""What the BMC of a node knows: its event log and its sensors, as ipmitool prints them.

Formats: lib/ipmi_sel.c, lib/ipmi_sdr.c and include/ipmitool/ipmi_sel.h of ipmitool 1.8.11 to 1.8.19. States and sensor types:
tables 42-2 and 42-3 of the IPMI specification 2.0, whose texts ipmitool prints for the BMC of every vendor.
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EVENT_SECONDS = (
    25  # 500 to 1200 entries took 15 to 33 s: github.com/canonical/prometheus-hardware-exporter issues 62 and 101
)
SENSOR_SECONDS = 45
CLOCK_SLACK = 600.0  # seconds that an entry may be ahead of the clock
POWER_SUPPLY = "10."  # the entity


class Grade(enum.IntEnum):
    """What a state proves. FAULT: the part failed. COMPARED: a fault only where other nodes do not have it."""

    FINE = 0
    NOTABLE = 1
    COMPARED = 2
    FAULT = 3


def _graded(grade: Grade, *texts: str) -> dict[str, Grade]:
    return dict.fromkeys(texts, grade)


# The state lasts: the present one is that of the sensor.
_STATES = {
    **_graded(Grade.FAULT, "failure detected", "drive fault"),
    **_graded(Grade.COMPARED, "power supply ac lost", "ac lost or out-of-range", "ac lost"),
    **_graded(Grade.COMPARED, "transition to critical from less severe", "transition to non-recoverable"),
    **_graded(Grade.COMPARED, "transition to non-recoverable from less severe"),
    **_graded(Grade.NOTABLE, "predictive failure", "predictive failure asserted", "ac out-of-range; but present"),
    **_graded(Grade.NOTABLE, "redundancy lost", "redundancy degraded", "non-redundant: insufficient resources"),
    **_graded(Grade.NOTABLE, "non-redundant: sufficient from redundant", "redundancy degraded from fully redundant"),
    **_graded(Grade.NOTABLE, "in critical array", "in failed array", "rebuild aborted", "fault status"),
    **_graded(Grade.NOTABLE, "memory device disabled", "configuration error", "config error", "install error"),
}
# It happened at one time, and only the log has the time; a sensor may show it until the next power cycle.
_MOMENTS = {
    **_graded(Grade.FAULT, "uncorrectable ecc", "parity", "ierr", "thermal trip"),
    **_graded(Grade.FAULT, "uncorrectable machine check exception", "sm bios uncorrectable cpu-complex error"),
    **_graded(Grade.FAULT, "bus uncorrectable error", "bus fatal error", "pci serr"),
    **_graded(Grade.FAULT, "frb1/bist failure", "frb3/processor startup/init failure"),
    **_graded(Grade.FAULT, "undetermined system hardware failure"),
    **_graded(Grade.NOTABLE, "pci perr", "fatal nmi", "memory scrub failed", "critical overtemperature"),
    **_graded(Grade.NOTABLE, "correctable ecc logging limit reached"),
}
# the side on which a value is dangerous: l(ower), u(pper)
_SIDES = {"degrees C": "u", "RPM": "l", "Volts": "lu"}
_SIDES_OF_TYPE = {"Temperature": "u", "Fan": "l", "Cooling Device": "l", "Voltage": "lu"}
_THRESHOLD = re.compile(r"(lower|upper) (?:critical|non-recoverable) going (low|high)")
_PRESENT = ("presence detected", "drive present", "present", "device present")
_BOOTS = re.compile(
    r"System Boot Initiated|OS Boot|System Firmware.*\| system boot initiated|System Event.*\| oem system boot event"
    r"|System ACPI Power State.*\| s0/g0: working"
)
_NAMED = re.compile(r"(.*?)\s*(#0x[0-9a-fA-F]+)?")


@dataclass(frozen=True)
class SelEntry:
    """An entry of the log. kind: the sensor type. asserted: None if not printed. time: seconds by the BMC's clock, None if unknown."""

    kind: str
    sensor: str
    text: str
    asserted: bool | None
    time: float | None

    @cached_property
    def state(self) -> str:
        """The text without what a vendor adds in parentheses, in lower case."""
        return self.text.partition(" (")[0].strip().lower()

    @property
    def of_moment(self) -> bool:
        """Whether no sensor shows if it has ended."""
        return self.state in _MOMENTS

    @cached_property
    def grade(self) -> Grade:
        """What the entry proves, if it has not ended."""
        if crossed := _THRESHOLD.fullmatch(self.state):
            side = crossed[1][0]
            if side + crossed[2] not in ("llow", "uhigh"):
                return Grade.FINE
            return Grade.FAULT if side in _SIDES_OF_TYPE.get(self.kind, "") else Grade.NOTABLE
        return _STATES.get(self.state, _MOMENTS.get(self.state, Grade.FINE))

    @property
    def part(self) -> str:
        """The sensor, as ipmitool names it."""
        return f"{self.kind} {self.sensor}".strip()


@dataclass(frozen=True)
class Sensor:
    """A row of `sdr elist`: status like ok, ns or ucr; entity like 10.1; reading like `35 degrees C` or states."""

    name: str
    number: str
    status: str
    entity: str
    reading: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What is the same on equal nodes."""
        return self.name, self.number, self.entity

    @property
    def worst(self) -> str:
        """The state, or the threshold that the value crossed, that proves most."""
        _, _, states = _reading(self.reading)
        return max(states, key=_grade_of_state) if any(map(_grade_of_state, states)) else f"status {self.status}"

    @cached_property
    def grade(self) -> Grade:
        """What the present state proves."""
        value, unit, states = _reading(self.reading)
        if self.status == "ns":
            return Grade.FINE
        grade = max(map(_grade_of_state, states), default=Grade.FINE)
        if grade is Grade.FAULT and (value == 0 or _without_input(states) or not set(states) & set(_PRESENT)):
            grade = Grade.COMPARED  # it may be a part without a cable, or none
        return max(grade, self._crossed(value, unit))

    def _crossed(self, value: float | None, unit: str) -> Grade:
        if self.status in ("ok", "us"):  # us: unspecified
            return Grade.FINE
        side, dangerous = self.status[0] if len(self.status) == 3 else "", _SIDES.get(unit, "")
        if self.status[-2:] == "nc":
            return Grade.NOTABLE if dangerous and side in dangerous else Grade.FINE
        if not dangerous or side not in dangerous:
            return Grade.NOTABLE
        absent = value == 0 or self.entity.startswith(POWER_SUPPLY)
        return Grade.COMPARED if absent and side != "u" else Grade.FAULT

    @property
    def shown(self) -> str:
        """The reading, with a status that is not ok."""
        return self.reading if self.status == "ok" else f"{self.reading} ({self.status})"


def _grade_of_state(state: str) -> Grade:
    return _STATES.get(state, min(_MOMENTS.get(state, Grade.FINE), Grade.NOTABLE))


def code_word(state: str) -> str:
    """Return a state of the tables above as the code of a finding: `power_supply_ac_lost`."""
    return "_".join(re.findall(r"[a-z0-9]+", state))


def _reading(text: str) -> tuple[float | None, str, list[str]]:
    """Return the value, its unit, and the states in lower case."""
    words = [one.strip() for one in text.replace("range, but", "range; but").split(",")]
    value, unit = None, ""
    if found := re.fullmatch(r"(-?\d+(?:\.\d+)?) (.*)", words[0]):
        value, unit = float(found[1]), found[2]
        words = words[1:]
    return value, unit, [re.sub("config error:.*", "config error", one.lower()) for one in words]


def _without_input(states: list[str]) -> bool:
    return any("ac lost" in one for one in states)


@dataclass(frozen=True)
class Bmc:
    """What the BMC knows. now: its clock. events: the oldest first. problems: {'events' or 'sensors': why there are none}."""

    now: float
    events: tuple[SelEntry, ...] = ()
    sensors: tuple[Sensor, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def booted_at(self) -> int:
        """How many entries precede the last one that a boot writes."""
        return max((n for n, one in enumerate(self.events) if _BOOTS.match(f"{one.part} | {one.state}")), default=0)

    def lasting(self) -> Iterator[tuple[SelEntry, bool]]:
        """Yield the entries that no later one ends, each with whether no boot follows it."""
        for index, event in enumerate(self.events):
            later = self.events[index + 1 :]
            if event.asserted is not False and not any(_ends(one, event) for one in later):
                yield event, index >= self.booted_at

    @cached_property
    def _numbers(self) -> dict[str, list[Sensor]]:
        found: defaultdict[str, list[Sensor]] = defaultdict(list)
        for sensor in self.sensors:
            found[sensor.number].append(sensor)
            found[sensor.name].append(sensor)
        return dict(found)

    def has_sensor(self, event: SelEntry) -> bool:
        """Return whether the sensor of an entry can be read, so that its present state is known."""
        names = (event.sensor.removeprefix("#0x").lower(), event.sensor)
        return any(one.status != "ns" for name in names for one in self._numbers.get(name, ()))


def _ends(later: SelEntry, event: SelEntry) -> bool:
    """Return whether a later entry of the same sensor ends it: deasserted, or the part was taken out or put in."""
    if (later.kind, later.sensor) != (event.kind, event.sensor):
        return False
    return later.state in _PRESENT or (later.asserted is False and later.state == event.state)


@dataclass(frozen=True)
class UsualBmc:
    """What most nodes of a group show: the grade of each sensor, and of each kind of entry whether a log has it."""

    sensors: Mapping[tuple[str, str, str], Norm[Grade]] = field(default_factory=dict)
    logs: int = 0
    logged: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def is_logged(self, event: SelEntry) -> bool:
        """Return whether at least two thirds of the other logs, and two of them, have such an entry of any time."""
        others = self.logs - 1
        return others > 1 and 3 * (self.logged.get((event.kind, event.state), 0) - 1) >= 2 * others


def usual_bmc(found: Mapping[str, Bmc]) -> UsualBmc:
    """Return what most of these nodes show."""
    grades: defaultdict[tuple[str, str, str], list[tuple[str, Grade]]] = defaultdict(list)
    logged: defaultdict[tuple[str, str], int] = defaultdict(int)
    for node, bmc in found.items():
        for sensor in bmc.sensors:
            if sensor.status != "ns":
                grades[sensor.key].append((node, sensor.grade))
        for kind in {(one.kind, one.state) for one in bmc.events if one.asserted is not False and one.grade}:
            logged[kind] += 1
    logs = sum("events" not in bmc.problems for bmc in found.values())
    return UsualBmc({key: norm(votes) for key, votes in grades.items()}, logs, dict(logged))


def read_bmc(answer: Answer) -> Bmc:
    """Read the output of bmc.sh; NotAvailable without ipmitool, the device or the right to open it, or without an answer."""
    lines = answer.out.splitlines()
    if "end" not in lines:
        if answer.rc:  # sudo refused it
            raise NotAvailable(f"{last_line(answer.err) or 'no message'} (exit {answer.rc})")
        raise ProbeError("ipmitool: the answer ended early")
    parts = _parts(lines)
    if "time" not in parts:
        raise NotAvailable("ipmitool is not installed: install the package ipmitool on the nodes")
    end, text = parts["time"]
    if end.status != 0:
        raise NotAvailable(_no_access(lines, end, text))
    now = next((time for line in text if (time := _time(line)) is not None), None)
    problems = {}
    for name, limit in (("events", EVENT_SECONDS), ("sensors", SENSOR_SECONDS)):
        end, printed = parts.get(name, _NOT_READ)
        if end.hung:
            problems[name] = (
                f"the BMC did not answer within {limit} s: ipmitool mc reset cold, or ipmitool sel clear after saving the log"
            )
        elif end.signal or (end.status and not any("|" in line for line in printed)):
            problems[name] = f"ipmitool: {last_line(chr(10).join(printed)) or 'no message'} ({end})"
    if now is None:
        problems["events"] = (
            "the clock of the BMC is not set, so the times of its events mean nothing: ipmitool sel time set now"
        )
    return Bmc(
        now or 0.0,
        () if "events" in problems else _events(parts["events"][1], now or 0.0),
        () if "sensors" in problems else _confirmed(parts["sensors"][1], parts.get("second", _NOT_READ)[1]),
        problems,
    )


_NOT_READ: tuple[CommandEnd, list[str]] = (CommandEnd(1), [])


def _parts(lines: list[str]) -> dict[str, tuple[CommandEnd, list[str]]]:
    """Return {part: how it ended and its lines}."""
    parts: dict[str, tuple[CommandEnd, list[str]]] = {}
    name, text = "", list[str]()
    for line in lines:
        if found := re.fullmatch(r"part (\w+)", line):
            name, text = found[1], []
        elif name and (found := re.fullmatch(f"rc ({STATUS})", line)):
            parts[name] = CommandEnd.of(found[1]), text
            name = ""
        elif name:
            text.append(line)
    return parts


def _no_access(lines: list[str], end: CommandEnd, text: list[str]) -> str:
    """Return why the BMC could not be read."""
    if "no device" in lines:
        return "no /dev/ipmi0: modprobe ipmi_si ipmi_devintf; without a BMC there is none"
    if end.hung:
        return "the BMC did not answer within 10 s: ipmitool mc reset cold"
    if "user 0" not in lines:
        return "/dev/ipmi0 is open to root only: set sudo: true in the cluster file"
    return f"ipmitool: {last_line(chr(10).join(text)) or 'no message'} ({end})"


_DATE = re.compile(r"(\d\d)/(\d\d)/(\d{4}|\d\d) (\d\d):(\d\d):(\d\d)(?: ([AP]M))?(?: [A-Z]{1,5})?")


def _time(text: str) -> float | None:
    """Return the seconds of `11/27/2026 22:10:01` or `11/27/26 22:10:01 UTC`; None where no time is known."""
    found = _DATE.fullmatch(text.strip())
    if not found:
        return None
    month, day, year, hour, minute, second = map(int, found.groups()[:6])
    if found[7]:
        hour = hour % 12 + 12 * (found[7] == "PM")
    try:
        moment = datetime(year if year > 99 else 2000 + year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment.timestamp()


def _events(lines: list[str], now: float) -> tuple[SelEntry, ...]:
    """Return the entries; one without a time, or ahead of the clock, has that of the entry before it."""
    found: list[SelEntry] = []
    for line in lines:
        words = [one.strip() for one in line.split("|")]
        if len(words) < 5 or not re.fullmatch(r"[0-9a-fA-F]{1,4}", words[0]) or words[3].startswith("OEM record"):
            continue
        end = next((n for n in range(5, len(words)) if words[n] in ("Asserted", "Deasserted")), 0)
        asserted = words[end] == "Asserted" if end else None
        time = _time(f"{words[1]} {words[2]}")
        if time is None or time > now + CLOCK_SLACK:
            time = found[-1].time if found else None
        kind, sensor = _named(words[3])
        found.append(SelEntry(kind, sensor, " | ".join(words[4 : end or 5]), asserted, time))
    return tuple(found)


def _named(text: str) -> tuple[str, str]:
    """Return type and sensor of `Power Supply #0x62`; an entry of the firmware has no sensor."""
    kind, sensor = re.fullmatch(_NAMED, text).groups("")  # type: ignore[union-attr] # it takes any text
    return kind, sensor


def _confirmed(lines: list[str], repeated: list[str]) -> tuple[Sensor, ...]:
    """Return the sensors, each with the better of its two readings if a second one was made."""
    second = {one.key: one for one in _sensors(repeated)}
    return tuple(min(one, second.get(one.key, one), key=lambda it: it.grade) for one in _sensors(lines))


_STATUS = re.compile(r"ok|ns|us|[lu]?(?:nc|cr|nr)")


def _sensors(lines: list[str]) -> Iterator[Sensor]:
    for line in lines:
        words = [one.strip() for one in line.split("|")]
        if len(words) == 5 and re.fullmatch(r"[0-9A-F]{2}h", words[1]) and _STATUS.fullmatch(words[2]):
            yield Sensor(words[0], words[1][:2].lower(), words[2], words[3], words[4])


BMC: Probe[Bmc] = Probe(
    "BMC",
    LIMITED_SH + script(__package__, "bmc.sh", EVENT_SECONDS=EVENT_SECONDS, SENSOR_SECONDS=SENSOR_SECONDS),
    read_bmc,
    root=True,
    timeout=10 + EVENT_SECONDS + 2 * SENSOR_SECONDS + 10,
    alone=True,
    by_hand="ipmitool sel list last 200; ipmitool sdr elist",
)
