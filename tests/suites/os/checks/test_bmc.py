"""What BMCs of several vendors print, and the verdicts on it. Real output is named with its source."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, WARNING, CounterExample, assert_as_expected, name
from judged import figures, judged

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.bmc_facts import BMC, Bmc, Grade, read_bmc, usual_bmc
from pytest_gpucluster.suites.os.checks import bmc as checks

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

NOW = "11/27/26 12:00:00 UTC"
WEEK = 7 * 86_400.0


def said(events: str = "", sensors: str = "", again: str | None = None, now: str = NOW) -> Answer:
    second = "" if again is None else f"part second\n{again}\nrc 0\n"
    text = f"user 0\npart time\n{now}\nrc 0\npart events\n{events}\nrc 0\npart sensors\n{sensors}\nrc 0\n{second}end\n"
    return Answer("n1", 0, text.encode())


def read(events: str = "", sensors: str = "", again: str | None = None, now: str = NOW) -> Bmc:
    return read_bmc(said(events, sensors, again, now))


def judge_events(
    events: str, sensors: str = "", *others: str, uptime: float = WEEK, now: str = NOW
) -> Verdict:
    """Judge the log of a node beside the logs of others."""
    mine = read(events, sensors, now=now)
    fleet = {"n1": mine, **{f"n{n}": read(text) for n, text in enumerate(others, 2)}}
    return checks.bmc_events(mine, uptime, usual_bmc(fleet))


def judge_sensors(sensors: str, usual: str = "", others: int = 3, again: str | None = None) -> Verdict:
    """Judge the sensors of a node beside others that are alike."""
    mine = read(sensors=sensors, again=again)
    fleet = {"n1": mine, **({f"n{n}": read(sensors=usual) for n in range(2, 2 + others)} if usual else {})}
    return checks.bmc_sensors(mine, usual_bmc(fleet))


# --- sensors, in the words of ipmitool

DELL = """\
Fan1A            | 30h | ok  |  7.1 | 7560 RPM
Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C
Current 1        | 6Bh | ok  | 10.1 | 1 Amps
Voltage 1        | 6Dh | ok  | 10.1 | 220 Volts
Voltage 2        | 6Eh | ok  | 10.2 | 222 Volts
Intrusion        | 73h | ok  |  7.1 |
BP0 Presence     | 59h | ok  | 26.1 | Absent
SEL              | 72h | ns  |  0.1 | No Reading
PS Redundancy    | 77h | ok  |  7.1 | Fully Redundant
Status           | 85h | ok  | 10.1 | Presence detected
Status           | 86h | ok  | 10.2 | Presence detected
CMOS Battery     | 87h | ok  |  7.1 | Presence Detected"""
DELL_BAY = (
    DELL.replace("10.2 | Presence detected", "10.2 |")
    .replace("222 Volts", "0 Volts")
    .replace("Fully Redundant", "Redundancy Lost")
)
DELL_NO_INPUT = """\
Status           | 64h | ok  | 10.1 | Presence detected
Status           | 65h | ok  | 10.2 | Presence detected, Power Supply AC lost
PS Redundancy    | 74h | ok  |  7.1 | Redundancy Degraded"""
DELL_INPUT = DELL_NO_INPUT.replace(", Power Supply AC lost", "").replace(
    "Redundancy Degraded", "Fully Redundant"
)
SUPERMICRO = """\
CPU1 Temp        | 01h | ok  |  3.1 | 40 degrees C
System Temp      | 0Bh | ok  |  7.1 | 34 degrees C
FAN1             | 41h | ok  | 29.1 | 3400 RPM
FAN5             | 45h | ns  | 29.5 | No Reading
P1-DIMMA2 Temp   | B1h | ns  | 32.65 | No Reading
12V              | 30h | ok  |  7.17 | 12.19 Volts
PS1 Status       | C8h | ok  | 10.1 | Presence detected
PS2 Status       | C9h | ok  | 10.2 | Presence detected"""
SUPERMICRO_FAILED = SUPERMICRO.replace(
    "10.2 | Presence detected", "10.2 | Presence detected, Failure detected"
)
HPE = """\
UID Light        | 03h | ok  | 23.1 |
Power Supply 1   | 3Dh | ok  | 10.1 | 50 Watts, Presence detected
PS 1 Output      | 3Eh | ok  | 10.1 | 50 Watts
Power Supply 2   | 40h | ok  | 10.2 | 25 Watts, Presence detected
PS 2 Presence    | 42h | ok  | 10.2 | Device Present
Power Supplies   | 45h | ok  | 10.3 | Fully Redundant
Fan Block 1      | 09h | ok  |  7.1 | 21.56 percent, Transition to Running
Fans             | 0Dh | ok  |  7.5 | 0 percent, Fully Redundant
Temp 1           | 0Eh | ok  | 64.1 | 20 degrees C
Temp 4           | 11h | ns  |  8.1 | Disabled
Power Meter      | 2Ah | ok  |  7.6 | 100 Watts, Device Enabled
VRM 1            | 01h | ok  |  9.1 | Device Present"""
HPE_NO_INPUT = HPE.replace(
    "25 Watts, Presence detected", "Presence detected, Failure detected, Power Supply AC lost"
).replace("10.3 | Fully Redundant", "10.3 | Redundancy Lost")
HPE_ONE = """\
Power Supply 1   | 32h | ok  | 10.1 | Presence detected
PS 1 Output      | 3Ah | ok  | 10.1 | 40 Watts
Power Supply 2   | 33h | ok  | 10.2 |
PS 2 Output      | 3Bh | ns  | 10.2 | Disabled"""
HPE_G7 = """\
Power Supply 1   | 06h | ok  | 10.1 | 0 Watts, Presence detected, Failure detected
Power Supply 2   | 07h | ok  | 10.2 | 95 Watts, Presence detected
Power Supplies   | 08h | ok  | 10.3 | Non-Redundant: Sufficient from Redundant
Memory           | 2Bh | ok  |  7.7 | Correctable ECC, Correctable ECC logging limit reached, Presence Detected"""
DGX1_NO_INPUT = """\
PSU Alert        | 34h | ns  | 208.1 | Event-Only
PSU Redundancy   | E8h | ok  | 21.1 | Non-Redundant: Insufficient Resources
PSU1 Status      | E0h | ok  | 10.1 | Presence detected, Power Supply AC lost
PSU2 Status      | E1h | ok  | 10.2 | Presence detected, Power Supply AC lost
PSU3 Status      | E2h | ok  | 10.3 | Presence detected
PSU4 Status      | E3h | ok  | 10.4 | Presence detected"""
DGX1 = DGX1_NO_INPUT.replace(", Power Supply AC lost", "").replace(
    "Non-Redundant: Insufficient Resources", "Fully Redundant"
)
DRIVE_FAULT = "Drive 4          | 64h | ok  |  4.4 | Drive Present, Drive Fault\nDrive 5          | 65h | ok  |  4.5 | Drive Present"
FANS = "Fan3A            | 34h | ok  |  7.1 | 7320 RPM\nFan3B            | 35h | ok  |  7.1 | 7080 RPM"
DEAD_FAN = FANS.replace("35h | ok  |  7.1 | 7080 RPM", "35h | lcr |  7.1 | 0 RPM")
HOT = "MB_Air_Inlet_T   | 10h | ucr | 55.0 | 50 degrees C"
FAST_FAN = "BPN-FAN2         | 4Ah | unc | 29.10 | 13300 RPM"
SKIBOOT = """\
OCC Active 1     | 08h | ok  | 210.0 | Device Enabled
OCC Active 2     | 09h | ok  | 210.1 | Device Disabled
DIMM Func 0      | 1Eh | ok  | 32.0 | Presence Detected
DIMM Func 1      | 1Fh | ok  | 32.1 |"""
RAINIER = """\
dimm3            | 04h | ok  | 32.4 | Presence Detected
dimm4            | 05h | ok  | 32.5 | Memory Device Disabled, Presence Detected"""
COLD = "Ambient Temp     | 0Eh | lcr |  7.1 | 3 degrees C"

CHECKMK = "Checkmk, plugin ipmi"
R740, DGX1_REAL = "recorded from a PowerEdge R740", "recorded from a DGX-1"
HOME_ASSISTANT = "https://github.com/ateodorescu/home-assistant-ipmi/issues"
PROLIANT = "https://github.com/CollegeBoreal/Laboratoires 3202/proliant/IPMI"


def test_what_an_unplugged_part_shows_too_fails_beside_others_alone() -> None:
    for sick, healthy in (
        (DELL_NO_INPUT, DELL_INPUT),
        (HPE_NO_INPUT, HPE),
        (DGX1_NO_INPUT, DGX1),
        (DEAD_FAN, FANS),
    ):
        assert judge_sensors(sick, healthy).outcome is Outcome.FAILED
        alone = judge_sensors(sick)
        assert (alone.outcome, bool(alone.advisories)) == (Outcome.PASSED, True)
        assert judge_sensors(sick, sick).outcome is Outcome.PASSED


def test_a_state_that_the_second_reading_does_not_show_is_none() -> None:
    assert judge_sensors(SUPERMICRO_FAILED, again=SUPERMICRO).outcome is Outcome.PASSED
    assert judge_sensors(SUPERMICRO_FAILED, again=SUPERMICRO_FAILED).outcome is Outcome.FAILED
    assert judge_sensors(SUPERMICRO_FAILED, again="").outcome is Outcome.FAILED  # it was not read


def test_the_dangerous_side_of_a_value_counts() -> None:
    fault, notable, fine = Grade.FAULT, Grade.NOTABLE, Grade.FINE
    grades = {
        "20 degrees C": {"ucr": fault, "unr": fault, "unc": notable, "lnc": fine, "lcr": notable},
        "300 RPM": {"lcr": fault, "lnr": fault, "ucr": notable, "cr": fault, "nc": notable},
        "0 RPM": {"lcr": Grade.COMPARED, "ok": fine},
        "1.10 Volts": {"lcr": fault, "ucr": fault},
        "236 Watts": {"cr": notable, "nc": fine},
        "No Reading": {"ns": fine},
    }
    for reading, of_status in grades.items():
        for status, grade in of_status.items():
            (sensor,) = read(sensors=f"X | 01h | {status} | 7.1 | {reading}").sensors
            assert sensor.grade is grade, (reading, status)


# --- events

DELL_UE = "   1 | 05/30/26 | 01:11:59 UTC | Memory #0x02 | Uncorrectable ECC (UnCorrectable ECC |  DIMMD7) | Asserted"
QUIET = """\
   1 | 11/01/2026 | 02:57:25 | Event Logging Disabled #0x72 | Log area reset/cleared | Asserted
   e |  Pre-Init  |0000000093| System ACPI Power State #0xd5 | S0/G0: working | Asserted
  11 | 11/25/2026 | 07:02:17 | System ACPI Power State #0xd5 | S4/S5: soft-off | Asserted
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
   1 | 11/23/2026 | 06:25:18 | Event Logging Disabled System Event Log | Log area reset/cleared | Asserted
   3 | 11/24/2026 | 09:39:19 | Power Supply PS1 Status | Failure detected () | Asserted
   4 | 11/24/2026 | 09:39:53 | Power Supply PS1 Status | Failure detected () | Deasserted"""
INTEL = """\
 2cb | 11/24/2026 | 06:33:02 | Temperature SSB Temp | Lower Critical going low  | Asserted | Reading 0 < Threshold 0 degrees C
 2cc | 11/24/2026 | 06:33:04 | Temperature SSB Temp | Lower Critical going low  | Deasserted | Reading 43 < Threshold 0 degrees C
 2ce | 11/24/2026 | 12:00:28 | Critical Interrupt PCIe Cor Sensor |  | Asserted"""
INTEL_UE = """\
 2cd | 11/27/2026 | 02:00:27 | Memory Mmry ECC Sensor | Uncorrectable ECC | Asserted
 2cf | 11/27/2026 | 02:01:33 | System Event BIOS Evt Sensor | Timestamp Clock Sync | Asserted
 2d1 | 11/27/2026 | 02:01:52 | System Event BIOS Evt Sensor | OEM System boot event | Asserted"""
IERR = """\
  88 | 11/25/2026 | 02:58:51 | System Firmware Progress #0x05 | System boot initiated | Asserted
  89 | 11/25/2026 | 06:20:30 | Processor #0xc9 | IERR | Asserted"""
BUS = "   2 | 11/26/2026 | 14:49:30 | Critical Interrupt #0x90 | Bus Fatal Error | Asserted"
DRIVE = """\
 547 | 11/25/2026 | 02:18:29 | Drive Slot / Bay #0x44 | Predictive Failure | Asserted
 548 | 11/26/2026 | 14:11:40 | Drive Slot / Bay #0x44 | Drive Fault | Asserted"""
SWAPPED = (
    DRIVE
    + """
 549 | 11/26/2026 | 15:11:40 | Drive Slot / Bay #0x44 | Drive Present | Deasserted
 54a | 11/26/2026 | 15:12:02 | Drive Slot / Bay #0x44 | Drive Present | Asserted"""
)

DRIVE_AGAIN = """\
   4 | 06/18/2017 | 07:42:09 | Drive Slot HDD Status | Drive Fault () | Asserted
   5 | 06/18/2017 | 10:08:38 | Drive Slot HDD Status | Drive Present () | Asserted
   6 | 06/18/2017 | 10:08:39 | Unknown #0x52 |  | Asserted
   8 | 12/03/2017 | 01:14:04 | Physical Security Chassis Intru | General Chassis intrusion () | Asserted"""
DRIVE_AGAIN_FAULT = (
    DRIVE_AGAIN + "\n   9 | 12/03/2017 | 01:14:06 | Drive Slot HDD Status | Drive Fault () | Asserted"
)
SERR = " e68 | 09/29/2026 | 02:50:42 PM CEST | Critical Interrupt | PCI SERR | Asserted"
SERR_NOW = "09/29/2026 03:01:25 PM CEST"
POWER_PEAK = (
    " 575 | 12/03/2024 | 11:27:10 | Module / Board PWR_GB1_TOT_HSC | Upper Critical going high | Asserted"
)
OPENPOWER = "https://github.com/open-power/op-build/issues/607"
SANECZ = "https://sanecz.net/blog/post-3"
VECTOR = "https://github.com/vectordotdev/vector/issues/1624"


def test_an_event_is_named_once_with_its_age_and_count() -> None:
    verdict = judge_events(f"{BUS}\n{BUS.replace('14:49:30', '15:00:00').replace('  2 |', '  3 |')}")
    assert judged(verdict) == (MONITOR, ["Critical Interrupt #0x90"])
    assert figures(verdict.findings[0].measured) == [21, 2]


def test_what_a_vendor_adds_may_have_a_bar() -> None:
    (event,) = read(DELL_UE).events
    assert (event.part, event.state, event.asserted) == ("Memory #0x02", "uncorrectable ecc", True)
    assert event.text == "Uncorrectable ECC (UnCorrectable ECC | DIMMD7)"


def test_times_of_all_versions_of_ipmitool() -> None:
    row = "  1 | {} | Memory #0x02 | Uncorrectable ECC | Asserted"
    times = {read(row.format(text)).events[0].time for text in (
        "11/26/2026 | 14:49:30", "11/26/26 | 14:49:30 CET", "11/26/2026 | 02:49:30 PM EST")}  # fmt: skip
    assert times == {1_795_704_570.0}
    assert read(row.format("11/28/2026 | 14:49:30")).events[0].time is None  # ahead of the clock
    assert read(row.format("S+ 01/002 | 00:03:10 UTC")).events[0].time is None
    undated = read(f"{BUS}\n{row.format(' Pre-Init  |0000000093')}").events
    assert undated[1].time == undated[0].time


def test_an_event_before_the_boot_is_a_warning_for_a_day() -> None:
    assert judged(judge_events(BUS, uptime=86_400.0)) == (MONITOR, ["Critical Interrupt #0x90"])
    before = judge_events(BUS, uptime=3600.0)
    assert judged(before) == (WARNING, ["Critical Interrupt #0x90"])
    assert figures(before.advisories[0].measured) == [21, 10]
    assert not judge_events(BUS.replace("11/26", "11/25"), uptime=3600.0).advisories


def test_what_most_logs_have_proves_nothing() -> None:
    old = BUS.replace("2026", "2024")
    assert judge_events(BUS, "", old, old, "").outcome is Outcome.PASSED
    assert judge_events(BUS, "", old, "", "").outcome is Outcome.FAILED
    assert judge_events(BUS, "", old).outcome is Outcome.FAILED


def test_a_sensor_that_can_be_read_decides() -> None:
    assert not judge_events(HPE_POWER, HPE).advisories
    assert judge_events(HPE_POWER).advisories  # the log alone: no sensor has such a number
    unread = read_bmc(
        Answer("n1", 0, said(HPE_POWER).stdout.replace(b"part sensors\n\nrc 0", b"part sensors\nrc 124"))
    )
    verdict = checks.bmc_events(unread, WEEK, usual_bmc({"n1": unread}))
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 2)
    assert checks.bmc_sensors(unread, usual_bmc({"n1": unread})).outcome is Outcome.NOT_CHECKED


# --- no answer


def no_answer(text: str, rc: int = 0, err: str = "") -> str:
    with pytest.raises(NotAvailable) as caught:
        read_bmc(Answer("n1", rc, text.encode(), err.encode()))
    return str(caught.value)


def test_why_the_bmc_could_not_be_read() -> None:
    closed = (
        "part time\nCould not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: {}\nrc 1\nend\n"
    )
    assert "install the package ipmitool" in no_answer("user 0\nend\n")
    assert "sudo: true" in no_answer("user 1000\n" + closed.format("Permission denied"))
    assert "modprobe ipmi_si ipmi_devintf" in no_answer(
        "user 0\nno device\n" + closed.format("No such file or directory")
    )
    assert "mc reset cold" in no_answer("user 0\npart time\nrc 124\nend\n")
    assert "a password is required" in no_answer("", 1, "sudo: a password is required\n")
    with pytest.raises(ProbeError):
        read_bmc(Answer("n1", 0, b"user 0\npart time\n"))


def test_a_slow_part_does_not_hide_the_other() -> None:
    text = said(BUS, DELL).stdout.replace(f"part events\n{BUS}\nrc 0".encode(), b"part events\nrc 124")
    slow = read_bmc(Answer("n1", 0, text))
    assert checks.bmc_events(slow, WEEK, usual_bmc({"n1": slow})).outcome is Outcome.NOT_CHECKED
    assert checks.bmc_sensors(slow, usual_bmc({"n1": slow})).outcome is Outcome.PASSED
    assert judge_events(BUS, now="S+ 00:05:00").outcome is Outcome.NOT_CHECKED


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


# --- machines that were considered, judged by a person first

HEALTHY = (
    ("os.bmc_sensors", "a Dell PowerEdge with two supplies", R740, PASSED, lambda: judge_sensors(DELL)),
    ("os.bmc_sensors", "a Dell with an empty bay, beside others with two supplies", "iDRAC", WARNING, lambda: judge_sensors(DELL_BAY, DELL)),
    ("os.bmc_sensors", "a Supermicro with unused fan connectors and DIMM slots", f"{HOME_ASSISTANT}/22", PASSED, lambda: judge_sensors(SUPERMICRO)),
    ("os.bmc_sensors", "an HPE ProLiant", "test data of a monitoring program", PASSED, lambda: judge_sensors(HPE, HPE)),
    ("os.bmc_sensors", "an HPE with one supply of two", "test data of a monitoring program", PASSED, lambda: judge_sensors(HPE_ONE)),
    ("os.bmc_sensors", "an HPE alone whose second supply has no cable", PROLIANT, WARNING, lambda: judge_sensors(HPE_G7)),
    ("os.bmc_sensors", "all nodes are fed by half of the supplies, on purpose", DGX1_REAL, WARNING, lambda: judge_sensors(DGX1_NO_INPUT, DGX1_NO_INPUT)),
    ("os.bmc_sensors", "a cold room", "direct air cooling", WARNING, lambda: judge_sensors(COLD)),
    ("os.bmc_sensors", "a power meter of HPE that is always critical", CHECKMK, WARNING, lambda: judge_sensors("Power Meter      | 2Ah | cr  |  7.6 | 236 Watts")),
    ("os.bmc_sensors", "fans of a Supermicro at full speed", "https://github.com/luckylinux/supermicro-fan-control/issues/1", PASSED, lambda: judge_sensors(FAST_FAN)),
    ("os.bmc_sensors", "OpenPOWER with one processor of two", "https://github.com/open-power/skiboot/issues/53", PASSED, lambda: judge_sensors(SKIBOOT)),
    ("os.bmc_sensors", "DIMMs that OpenBMC calls disabled", "https://github.com/ibm-openbmc/dev/issues/3625", WARNING, lambda: judge_sensors(RAINIER)),
    ("os.bmc_sensors", "the BMC has no sensors", "ipmitool sdr elist", NOT_CHECKED, lambda: judge_sensors("")),
    ("os.bmc_events", "old and harmless entries, a panic and a watchdog", "entries of several vendors", PASSED, lambda: judge_events(QUIET)),
    ("os.bmc_events", "a DIMM was replaced half a year ago, the log was not cleared", "recorded from a Dell, dates moved", PASSED, lambda: judge_events(DELL_UE)),
    ("os.bmc_events", "the power feed returned; HPE makes no entry of it", "HPE ProLiant, entries 532 to 539", PASSED, lambda: judge_events(HPE_POWER, HPE)),
    ("os.bmc_events", "a supply failed and was replaced", "test data of Qumulo, dates moved", PASSED, lambda: judge_events(QUMULO)),
    ("os.bmc_events", "a sensor of Intel that reads 0 for a second", "Intel S2600, SSB Temp", PASSED, lambda: judge_events(INTEL)),
    ("os.bmc_events", "memory failed last night; the node booted since", "Intel S2600, entries 2cd to 2d1", WARNING, lambda: judge_events(INTEL_UE, uptime=36_000.0)),
    ("os.bmc_events", "the same by a clock of the BMC that is hours off", "BMC in local time", WARNING, lambda: judge_events(INTEL_UE)),
    ("os.bmc_events", "a drive was replaced", "hot plug", PASSED, lambda: judge_events(SWAPPED)),
    ("os.bmc_events", "a drive that was replaced within hours", VECTOR, PASSED, lambda: judge_events(DRIVE_AGAIN, uptime=365 * 86_400.0, now="12/03/2017 01:14:05")),
    ("os.bmc_events", "a power peak of an HGX board", SANECZ, WARNING, lambda: judge_events(POWER_PEAK, now="12/04/2024 00:00:00")),
    ("os.bmc_events", "a reset by PCI SERR, ten minutes ago", "an EPYC server with 8 GPUs", WARNING, lambda: judge_events(SERR, uptime=600.0, now=SERR_NOW)),
    ("os.bmc_events", "a clock of 1970 in the log", "https://github.com/ipmitool/ipmitool/pull/340", PASSED, lambda: judge_events("   1 |  Pre-Init  |0000198492| Critical Interrupt #0xa1 | Bus Fatal Error | Asserted")),
    ("os.bmc_events", "entries without a direction, of an old ipmitool", "ipmitool of Supermicro X8", WARNING, lambda: judge_events(BUS.removesuffix(" | Asserted"))),
)  # fmt: skip
SICK = (
    ("os.bmc_sensors", "a failed supply of a Supermicro, alone", CHECKMK, MONITOR, lambda: judge_sensors(SUPERMICRO_FAILED)),
    ("os.bmc_sensors", "two supplies of a DGX without input", DGX1_REAL, MONITOR, lambda: judge_sensors(DGX1_NO_INPUT, DGX1)),
    ("os.bmc_sensors", "a Dell supply without input", "recorded from an iDRAC6", MONITOR, lambda: judge_sensors(DELL_NO_INPUT, DELL_INPUT)),
    ("os.bmc_sensors", "an HPE supply without input", "HPE", MONITOR, lambda: judge_sensors(HPE_NO_INPUT, HPE)),
    ("os.bmc_sensors", "a dead fan of a Dell R320", f"{HOME_ASSISTANT}/52", MONITOR, lambda: judge_sensors(DEAD_FAN, FANS)),
    ("os.bmc_sensors", "a failed drive", CHECKMK, MONITOR, lambda: judge_sensors(DRIVE_FAULT)),
    ("os.bmc_sensors", "inlet air of 50 degrees under load", "ASRock Rack", MONITOR, lambda: judge_sensors(HOT)),
    ("os.bmc_events", "an uncorrectable error of memory on Dell, since the boot", "recorded from a Dell, dates moved", MONITOR, lambda: judge_events(DELL_UE.replace("05/30", "11/26"))),
    ("os.bmc_events", "a processor error after the boot", OPENPOWER, MONITOR, lambda: judge_events(IERR)),
    ("os.bmc_events", "a fatal error of the bus", "test data of gcm, dates moved", MONITOR, lambda: judge_events(BUS)),
    ("os.bmc_events", "the next drive fails", VECTOR, MONITOR, lambda: judge_events(DRIVE_AGAIN_FAULT, uptime=365 * 86_400.0, now="12/03/2017 03:00:00")),
    ("os.bmc_events", "PCI SERR since the boot", "an EPYC server with 8 GPUs", MONITOR, lambda: judge_events(SERR, now=SERR_NOW)),
    ("os.bmc_events", "a drive fault of HPE that no sensor shows", "HPE ProLiant, entries 547 and 548", MONITOR, lambda: judge_events(DRIVE, HPE)),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)
