"""What BMCs of several vendors print, and the verdicts on it. Real output is named with its source."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, WARNING, result
from judged import figures, judged
from machine_helpers import Machines, examples, verdicts_of_a_person

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.bmc_facts import BMC, Bmc, read_bmc, usual_bmc
from pytest_gpucluster.suites.os.checks import bmc as checks

if TYPE_CHECKING:
    from pathlib import Path

NOW = "11/27/26 12:00:00 UTC"
WEEK, YEAR = 7 * 86_400.0, 365 * 86_400.0


def said(events: str = "", sensors: str = "", again: str | None = None, now: str = NOW) -> Answer:
    second = "" if again is None else f"part second\n{again}\nrc 0\n"
    text = f"user 0\npart time\n{now}\nrc 0\npart events\n{events}\nrc 0\npart sensors\n{sensors}\nrc 0\n{second}end\n"
    return Answer("n1", 0, text.encode())


def read(events: str = "", sensors: str = "", again: str | None = None, now: str = NOW) -> Bmc:
    return read_bmc(said(events, sensors, again, now))


def of_events(
    events: str, sensors: str = "", uptime: float = WEEK, now: str = NOW, others: tuple[str, ...] = ()
) -> Verdict:
    """Judge the log of a node beside the logs of others."""
    mine = read(events, sensors, now=now)
    fleet = {"n1": mine, **{f"n{n}": read(text) for n, text in enumerate(others, 2)}}
    return checks.bmc_events(mine, uptime, usual_bmc(fleet))


def of_sensors(sensors: str, usual: str = "", again: str | None = None) -> Verdict:
    """Judge the sensors of a node beside three others that are alike."""
    mine = read(sensors=sensors, again=again)
    fleet = {"n1": mine, **({f"n{n}": read(sensors=usual) for n in (2, 3, 4)} if usual else {})}
    return checks.bmc_sensors(mine, usual_bmc(fleet))


DELL = """\
Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C
Voltage 2        | 6Eh | ok  | 10.2 | 222 Volts
Intrusion        | 73h | ok  |  7.1 |
BP0 Presence     | 59h | ok  | 26.1 | Absent
SEL              | 72h | ns  |  0.1 | No Reading
PS Redundancy    | 77h | ok  |  7.1 | Fully Redundant
Status           | 86h | ok  | 10.2 | Presence detected"""
DELL_BAY = (
    DELL.replace("10.2 | Presence detected", "10.2 |")
    .replace("222 Volts", "0 Volts")
    .replace("Fully Redundant", "Redundancy Lost")
)
DELL_INPUT = """\
Status           | 65h | ok  | 10.2 | Presence detected
PS Redundancy    | 74h | ok  |  7.1 | Fully Redundant"""
DELL_NO_INPUT = DELL_INPUT.replace("detected", "detected, Power Supply AC lost").replace(
    "Fully Redundant", "Redundancy Degraded"
)
SUPERMICRO = """\
CPU1 Temp        | 01h | ok  |  3.1 | 40 degrees C
FAN1             | 41h | ok  | 29.1 | 3400 RPM
FAN5             | 45h | ns  | 29.5 | No Reading
12V              | 30h | ok  |  7.17 | 12.19 Volts
PS2 Status       | C9h | ok  | 10.2 | Presence detected"""
SUPERMICRO_FAILED = f"{SUPERMICRO}, Failure detected"
HPE = """\
UID Light        | 03h | ok  | 23.1 |
Power Supply 2   | 40h | ok  | 10.2 | 25 Watts, Presence detected
PS 2 Presence    | 42h | ok  | 10.2 | Device Present
Power Supplies   | 45h | ok  | 10.3 | Fully Redundant
Fan Block 1      | 09h | ok  |  7.1 | 21.56 percent, Transition to Running
Temp 4           | 11h | ns  |  8.1 | Disabled
Power Meter      | 2Ah | ok  |  7.6 | 100 Watts, Device Enabled"""
HPE_NO_INPUT = HPE.replace(
    "25 Watts, Presence detected", "Presence detected, Failure detected, Power Supply AC lost"
).replace("10.3 | Fully Redundant", "10.3 | Redundancy Lost")
HPE_G7 = """\
Power Supply 1   | 06h | ok  | 10.1 | 0 Watts, Presence detected, Failure detected
Power Supplies   | 08h | ok  | 10.3 | Non-Redundant: Sufficient from Redundant
Memory           | 2Bh | ok  |  7.7 | Correctable ECC, Correctable ECC logging limit reached, Presence Detected"""
DGX1 = """\
PSU Alert        | 34h | ns  | 208.1 | Event-Only
PSU Redundancy   | E8h | ok  | 21.1 | Fully Redundant
PSU1 Status      | E0h | ok  | 10.1 | Presence detected
PSU2 Status      | E1h | ok  | 10.2 | Presence detected"""
DGX1_NO_INPUT = DGX1.replace("detected", "detected, Power Supply AC lost").replace(
    "Fully Redundant", "Non-Redundant: Insufficient Resources"
)
DRIVE_FAULT = "Drive 4          | 64h | ok  |  4.4 | Drive Present, Drive Fault\nDrive 5          | 65h | ok  |  4.5 | Drive Present"
FANS = "Fan3B            | 35h | ok  |  7.1 | 7080 RPM"
DEAD_FAN = FANS.replace("ok  |  7.1 | 7080", "lcr |  7.1 | 0")
HOT = "MB_Air_Inlet_T   | 10h | ucr | 55.0 | 50 degrees C"
FAST_FAN = "BPN-FAN2         | 4Ah | unc | 29.10 | 13300 RPM"
COLD = "Ambient Temp     | 0Eh | lcr |  7.1 | 3 degrees C"
METER = "Power Meter      | 2Ah | cr  |  7.6 | 236 Watts"
RAINIER = "dimm4            | 05h | ok  | 32.5 | Memory Device Disabled, Presence Detected"

CHECKMK = "Checkmk, plugin ipmi"
HOME_ASSISTANT = "https://github.com/ateodorescu/home-assistant-ipmi/issues"
OPENBMC = "https://github.com/ibm-openbmc/dev/issues/3625"


@pytest.mark.parametrize(
    ("sick", "healthy"), [(DELL_NO_INPUT, DELL_INPUT), (HPE_NO_INPUT, HPE), (DGX1_NO_INPUT, DGX1), (DEAD_FAN, FANS)]
)
def test_what_an_unplugged_part_shows_too_fails_beside_others_alone(sick: str, healthy: str) -> None:
    assert result(of_sensors(sick, healthy)) == MONITOR
    assert result(of_sensors(sick)) == WARNING
    assert result(of_sensors(sick, sick)) != MONITOR


def test_a_state_that_the_second_reading_does_not_show_is_none() -> None:
    assert result(of_sensors(SUPERMICRO_FAILED, again=SUPERMICRO)) == PASSED
    assert result(of_sensors(SUPERMICRO_FAILED, again=SUPERMICRO_FAILED)) == MONITOR
    assert result(of_sensors(SUPERMICRO_FAILED, again="")) == MONITOR  # it was not read


def event(what: str, at: str = "11/26/2026 | 14:49:30", number: str = "2", ends: str = "Asserted") -> str:
    return f" {number} | {at} | {what} | {ends}"


def log(*rows: tuple[str, str], ends: str = "Asserted") -> str:
    """Return entries of (time, what)."""
    return "\n".join(event(what, at, f"{n:x}", ends) for n, (at, what) in enumerate(rows, 1))


DELL_UE = event("Memory #0x02 | Uncorrectable ECC (UnCorrectable ECC |  DIMMD7)", "05/30/26 | 01:11:59 UTC")
QUIET = """\
   1 | 11/01/2026 | 02:57:25 | Event Logging Disabled #0x72 | Log area reset/cleared | Asserted
   e |  Pre-Init  |0000000093| System ACPI Power State #0xd5 | S0/G0: working | Asserted
  12 | 11/25/2026 | 07:02:42 | Watchdog2 #0x71 | Hard reset | Asserted
  13 | 11/25/2026 | 07:03:17 | Physical Security #0x73 | General Chassis intrusion | Asserted
  14 | 11/25/2026 | 07:05:48 | Memory #0x87 | Correctable ECC | Asserted
  15 | 11/25/2026 | 07:11:48 | OEM record df | 040020 | 12616faaaaaa
  16 | Linux kernel panic: Fatal excep"""
HPE_POWER = """\
 532 | 11/25/2026 | 11:25:37 | Power Supply #0x40 | Failure detected | Asserted
 533 | 11/25/2026 | 11:25:39 | Power Supply #0x40 | Power Supply AC lost | Asserted
 534 | 11/25/2026 | 11:25:39 | Power Supply #0x45 | Redundancy Lost | Asserted
 535 | 11/25/2026 | 11:28:06 | Power Supply #0x45 | Redundancy Lost | Deasserted"""
QUMULO = """\
   3 | 11/24/2026 | 09:39:19 | Power Supply PS1 Status | Failure detected () | Asserted
   4 | 11/24/2026 | 09:39:53 | Power Supply PS1 Status | Failure detected () | Deasserted"""
INTEL = """\
 2cb | 11/24/2026 | 06:33:02 | Temperature SSB Temp | Lower Critical going low  | Asserted | Reading 0 < Threshold 0 degrees C
 2cc | 11/24/2026 | 06:33:04 | Temperature SSB Temp | Lower Critical going low  | Deasserted | Reading 43 < Threshold 0 degrees C
 2ce | 11/24/2026 | 12:00:28 | Critical Interrupt PCIe Cor Sensor |  | Asserted"""
INTEL_UE = log(
    ("11/27/2026 | 02:00:27", "Memory Mmry ECC Sensor | Uncorrectable ECC"),
    ("11/27/2026 | 02:01:52", "System Event BIOS Evt Sensor | OEM System boot event"),
)
IERR = log(
    ("11/25/2026 | 02:58:51", "System Firmware Progress #0x05 | System boot initiated"),
    ("11/25/2026 | 06:20:30", "Processor #0xc9 | IERR"),
)
BUS = event("Critical Interrupt #0x90 | Bus Fatal Error")
OLD_CLOCK = event("Critical Interrupt #0xa1 | Bus Fatal Error", " Pre-Init  |0000198492")
DRIVE = log(
    ("11/25/2026 | 02:18:29", "Drive Slot / Bay #0x44 | Predictive Failure"),
    ("11/26/2026 | 14:11:40", "Drive Slot / Bay #0x44 | Drive Fault"),
)
SWAPPED = f"{DRIVE}\n{event('Drive Slot / Bay #0x44 | Drive Present', '11/26/2026 | 15:12:02', '54a')}"
DRIVE_AGAIN = """\
   4 | 06/18/2017 | 07:42:09 | Drive Slot HDD Status | Drive Fault () | Asserted
   5 | 06/18/2017 | 10:08:38 | Drive Slot HDD Status | Drive Present () | Asserted
   6 | 06/18/2017 | 10:08:39 | Unknown #0x52 |  | Asserted"""
NEXT_DRIVE = f"{DRIVE_AGAIN}\n{event('Drive Slot HDD Status | Drive Fault ()', '12/03/2017 | 01:14:06', '9')}"
SERR = event("Critical Interrupt | PCI SERR", "09/29/2026 | 02:50:42 PM CEST")
SERR_NOW = "09/29/2026 03:01:25 PM CEST"
PEAK = event("Module / Board PWR_GB1_TOT_HSC | Upper Critical going high", "12/03/2024 | 11:27:10")
SANECZ = "https://sanecz.net/blog/post-3"
VECTOR = "https://github.com/vectordotdev/vector/issues/1624"


def test_times_of_all_versions_of_ipmitool() -> None:
    def time(at: str) -> float | None:
        return read(f"{BUS}\n{event('Memory #0x02 | Uncorrectable ECC', at)}").events[1].time

    known, ahead = 1_795_704_570.0, read(BUS).events[0].time
    for at in ("11/26/2026 | 14:49:30", "11/26/26 | 14:49:30 CET", "11/26/2026 | 02:49:30 PM EST"):
        assert time(at) == known
    assert time("11/26/2026 | 12:49:30 AM") == known - 14 * 3600
    # ahead of the clock, or of no day: that of the entry before it
    times = ("11/28/2026 | 14:49:30", "S+ 01/002 | 00:03:10 UTC", "13/26/2026 | 14:49:30", " Pre-Init  |93")
    for at in times:
        assert time(at) == ahead
    assert read(OLD_CLOCK).events[0].time is None


def test_an_event_before_the_boot_is_a_warning_for_a_day() -> None:
    assert judged(of_events(BUS, uptime=86_400.0)) == (MONITOR, ["Critical Interrupt #0x90"])
    before = of_events(BUS, uptime=3600.0)
    assert judged(before) == (WARNING, ["Critical Interrupt #0x90"])
    assert figures(before.advisories[0].measured) == [21, 10]
    assert result(of_events(BUS.replace("11/26", "11/25"), uptime=3600.0)) == PASSED
    # what most logs have proves nothing
    old = BUS.replace("2026", "2024")
    for others, expected in (((old, old, ""), WARNING), ((old, "", ""), MONITOR), ((old,), MONITOR)):
        assert result(of_events(BUS, others=others)) == expected


def test_a_sensor_that_can_be_read_decides() -> None:
    codes = [of_sensors(it).findings[0].code for it in (SUPERMICRO_FAILED, HOT)]
    assert [*codes, of_events(BUS).findings[0].code] == ["failure_detected", "status_ucr", "bus_fatal_error"]
    assert judged(of_events(HPE_POWER, HPE)) == (PASSED, [])
    assert of_events(HPE_POWER).advisories  # the log alone: no sensor has such a number
    text = said(HPE_POWER).stdout.replace(b"part sensors\n\nrc 0", b"part sensors\nrc deadline")
    unread = read_bmc(Answer("n1", 0, text))
    verdict = checks.bmc_events(unread, WEEK, usual_bmc({"n1": unread}))
    assert (result(verdict), len(verdict.advisories)) == (WARNING, 2)
    assert result(checks.bmc_sensors(unread, usual_bmc({"n1": unread}))) == NOT_CHECKED


def test_why_the_bmc_could_not_be_read() -> None:
    for text, rc, words in (
        ("user 0\nend\n", 0, "install the package ipmitool"),
        ("user 1000\npart time\nCould not open device\nrc 1\nend\n", 0, "sudo: true"),
        ("user 0\nno device\npart time\nCould not open device\nrc 1\nend\n", 0, "modprobe ipmi_si"),
        ("user 0\npart time\nrc deadline\nend\n", 0, "mc reset cold"),
        ("user 0\npart time\nodd\nrc 3\nend\n", 0, r"odd \(exit 3\)"),
        ("", 1, "a password is required"),
    ):
        with pytest.raises(NotAvailable, match=words):
            read_bmc(Answer("n1", rc, text.encode(), b"sudo: a password is required\n"))
        with pytest.raises(ProbeError):
            read_bmc(Answer("n1", 0, b"user 0\npart time\n"))


def test_a_slow_part_does_not_hide_the_other() -> None:
    text = said(BUS, DELL).stdout
    for end in (b"rc deadline", b"Get SEL Info command failed\nrc 1"):
        slow = read_bmc(Answer("n1", 0, text.replace(f"{BUS}\nrc 0".encode(), end)))
        assert result(checks.bmc_events(slow, WEEK, usual_bmc({"n1": slow}))) == NOT_CHECKED
        assert result(checks.bmc_sensors(slow, usual_bmc({"n1": slow}))) == PASSED
    assert result(of_events(BUS, now="S+ 00:05:00")) == NOT_CHECKED


def test_the_script_reads_twice_where_a_state_is_bad(tmp_path: Path) -> None:
    tool = tmp_path / "ipmitool"
    tool.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\ncase $* in *time*) echo "{NOW}" ;; sdr*) cat {tmp_path}/sensors ;; esac\n'
    )
    tool.chmod(0o755)
    command = f"PATH={tmp_path}:$PATH; {BMC.command}".replace("sleep 3", "sleep 0")
    for text, calls in ((SUPERMICRO, 1), (SUPERMICRO_FAILED, 2), (DEAD_FAN, 2), (HOT, 2), (DRIVE_FAULT, 2)):
        (tmp_path / "sensors").write_text(text + "\n")
        (tmp_path / "calls").write_text("")
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
        assert read_bmc(Answer("n1", done.returncode, done.stdout)).sensors
        assert (tmp_path / "calls").read_text().count("sdr elist") == calls, text


MACHINES: Machines = {
    ("os.bmc_sensors", of_sensors): [
        ("a PowerEdge with two supplies | recorded from a PowerEdge R740", PASSED, DELL),
        ("a Dell with an empty bay, beside others with two supplies | iDRAC", WARNING, DELL_BAY, DELL),
        (f"unused fan connectors and DIMM slots | {HOME_ASSISTANT}/22", PASSED, SUPERMICRO),
        ("an HPE ProLiant | test data of a monitoring program", PASSED, HPE, HPE),
        ("an HPE alone whose second supply has no cable | CollegeBoreal 3202", WARNING, HPE_G7),
        ("all are fed by half of the supplies | a DGX-1", WARNING, DGX1_NO_INPUT, DGX1_NO_INPUT),
        ("a cold room | direct air cooling", WARNING, COLD),
        (f"a power meter of HPE that is always critical | {CHECKMK}", WARNING, METER),
        ("fans at full speed | luckylinux/supermicro-fan-control, issue 1", PASSED, FAST_FAN),
        (f"DIMMs that OpenBMC calls disabled | {OPENBMC}", WARNING, RAINIER),
        ("the BMC has no sensors | ipmitool sdr elist", NOT_CHECKED, ""),
        (f"sick: a failed supply of a Supermicro, alone | {CHECKMK}", MONITOR, SUPERMICRO_FAILED),
        (f"sick: a failed drive | {CHECKMK}", MONITOR, DRIVE_FAULT),
        ("sick: inlet air of 50 degrees under load | ASRock Rack", MONITOR, HOT),
    ],
    ("os.bmc_events", of_events): [
        ("harmless entries, a panic and a watchdog | entries of several vendors", PASSED, QUIET),
        ("a DIMM was replaced, the log was not cleared | recorded from a Dell", PASSED, DELL_UE),
        ("a supply failed and was replaced | test data of Qumulo, dates moved", PASSED, QUMULO),
        ("a sensor of Intel that reads 0 for a second | S2600, SSB Temp", PASSED, INTEL),
        ("memory failed last night; it booted since | S2600", WARNING, INTEL_UE, "", 36_000.0),
        ("the same by a clock of the BMC that is hours off | BMC in local time", WARNING, INTEL_UE),
        ("a drive was replaced | hot plug", PASSED, SWAPPED),
        (f"replaced within hours | {VECTOR}", PASSED, DRIVE_AGAIN, "", YEAR, "12/03/2017 01:14:05"),
        (f"a power peak of an HGX board | {SANECZ}", WARNING, PEAK, "", WEEK, "12/04/2024 00:00:00"),
        ("a reset by PCI SERR, ten minutes ago | EPYC, 8 GPUs", WARNING, SERR, "", 600.0, SERR_NOW),
        ("a clock of 1970 in the log | ipmitool, pull request 340", PASSED, OLD_CLOCK),
        ("no direction | ipmitool of Supermicro X8", WARNING, BUS.removesuffix(" | Asserted")),
        ("sick: uncorrectable memory error | a Dell", MONITOR, DELL_UE.replace("05/30", "11/26")),
        ("sick: a processor error after the boot | op-build, issue 607", MONITOR, IERR),
        (f"sick: the next drive fails | {VECTOR}", MONITOR, NEXT_DRIVE, "", YEAR, "12/03/2017 03:00:00"),
        ("sick: PCI SERR since the boot | EPYC, 8 GPUs", MONITOR, SERR, "", WEEK, SERR_NOW),
        ("sick: a drive fault that no sensor shows | HPE ProLiant, entry 548", MONITOR, DRIVE, HPE),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
