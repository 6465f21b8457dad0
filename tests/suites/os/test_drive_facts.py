"""What drives report of themselves: the reader, its command, and os.drive_health on machines that were considered."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os import drive_facts
from pytest_gpucluster.suites.os.checks.drives import drive_health
from pytest_gpucluster.suites.os.drive_facts import DRIVES, DriveHealth, read_drives, read_health

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

EXPORTER = "https://github.com/prometheus-community/smartctl_exporter testdata"
SCRUTINY = "https://github.com/AnalogJ/scrutiny webapp/backend/pkg/models/testdata"
SPEC = "NVM Express Base Specification 2.0, 5.16.1.3"
TOOLS = "tools /usr/sbin/smartctl /usr/sbin/nvme"
# of smartmontools 7.3 (Debian 12), as it prints them
OLD = "smartctl 6.5 2016-01-24 r4214 [x86_64-linux-4.15.0] (local build)\n\n=======> UNRECOGNIZED OPTION: json=c\n\nUse smartctl -h to get a usage summary\n"
NO_TYPE = "/dev/sda: Unable to detect device type"
# of nvme-cli 2.3 (Debian 12), before its usage
NVME_FAILS = "/dev/nvme9: No such file or directory\nUsage: nvme smart-log <device> [OPTIONS]\n"


def smartctl(*messages: str, status: int = 0, version: tuple[int, int] = (7, 3), **values: Any) -> str:
    """Return what smartctl --json=c prints."""
    own: dict[str, Any] = {"version": list(version), "argv": ["smartctl", "--json=c"], "exit_status": status}
    if messages:
        own["messages"] = [{"string": message, "severity": "error"} for message in messages]
    return json.dumps({"json_format_version": [1, 0], "smartctl": own, **values}, separators=(",", ":"))


def log(used: float, spare: int = 100, threshold: int = 10, critical: int = 0, media_errors: int = 0) -> str:
    """Return what smartctl prints of an NVMe drive."""
    return smartctl(
        status=8 if critical else 0,
        device={"name": "/dev/nvme0", "info_name": "/dev/nvme0", "type": "nvme", "protocol": "NVMe"},
        smart_status={"passed": not critical, "nvme": {"value": critical}},
        nvme_smart_health_information_log={
            "critical_warning": critical,
            "temperature": 41,
            "available_spare": spare,
            "available_spare_threshold": threshold,
            "percentage_used": used,
            "media_errors": media_errors,
            "num_err_log_entries": 14,
            "temperature_sensors": [None, 43],
        },
        temperature={"current": 41},
    )


def attribute(
    number: int, label: str, value: int, least: int, raw: int, *, prefail: bool, now: bool
) -> dict[str, Any]:
    flags = {"value": 51 if prefail else 50, "prefailure": prefail, "updated_online": True}
    ids = {"id": number, "name": label, "value": value, "worst": value, "thresh": least}
    return {
        **ids,
        "when_failed": "now" if now else "",
        "flags": flags,
        "raw": {"value": raw, "string": str(raw)},
    }


def ata(*table: dict[str, Any], passed: bool = True, status: int = 0, **values: Any) -> str:
    """Return what smartctl prints of a SATA drive."""
    device = {"name": "/dev/sda", "info_name": "/dev/sda [SAT]", "type": "sat", "protocol": "ATA"}
    attributes = {"revision": 16, "table": list(table)}
    return smartctl(
        status=status,
        device=device,
        smart_status={"passed": passed},
        ata_smart_attributes=attributes,
        **values,
    )


def old_age(
    number: int, label: str, value: int, least: int, raw: int, *, now: bool = False
) -> dict[str, Any]:
    return attribute(number, label, value, least, raw, prefail=False, now=now)


def prefail(
    number: int, label: str, value: int, least: int, raw: int, *, now: bool = False
) -> dict[str, Any]:
    return attribute(number, label, value, least, raw, prefail=True, now=now)


def scsi(*, passed: bool = True, **values: Any) -> str:
    device = {"name": "/dev/sda", "info_name": "/dev/sda", "type": "scsi", "protocol": "SCSI"}
    status = {"passed": passed, **({"scsi": values} if values else {})}
    return smartctl(device=device, smart_status=status, scsi_grown_defect_list=0)


# values of recordings
PM983 = log(0)  # smartctl_exporter: SAMSUNG_MZQLB1T9HAJR-00007_20.json, smartctl 7.3
P4510 = log(73, spare=99)  # nvme-null-INTEL_SSDPE2KX010T8-nvme1.json
OPTANE = log(1, threshold=0)  # nvme-null-INTEL_MEMPEK1W032GA-nvme0.json
EVO970 = log(3, spare=99, media_errors=7)  # scrutiny: smart-nvme-failed.json, smartctl 7.0
# nvme-cli 1 (a test of a reader in Go), and nvme-cli 1.16 to 2.0 with -H (nvme-print.c)
NVME1 = '{\n  "critical_warning" : 0,\n  "temperature" : 301,\n  "avail_spare" : 100,\n  "spare_thresh" : 5,\n  "percent_used" : 15,\n  "media_errors" : 0,\n  "num_err_log_entries" : 17\n}\n'
NVME2_HUMAN = '{\n  "critical_warning":{\n    "value":4,\n    "available_spare":0,\n    "temp_threshold":0,\n    "reliability_degraded":1,\n    "ro":0,\n    "vmbu_failed":0,\n    "pmr_ro":0\n  },\n  "temperature":310,\n  "avail_spare":100,\n  "spare_thresh":10,\n  "percent_used":41,\n  "media_errors":"18446744073709551616"\n}\n'
PENDING = old_age(197, "Current_Pending_Sector", 100, 0, 8)
HITACHI = ata(  # scrutiny: smart-fail2.json, smartctl 7.1, exit 216
    prefail(1, "Raw_Read_Error_Rate", 100, 16, 0),
    prefail(5, "Reallocated_Sector_Ct", 1, 5, 1975, now=True),
    PENDING,
    old_age(198, "Offline_Uncorrectable", 100, 0, 0),
    passed=False,
    status=216,
)
HP_SATA = ata(  # smartctl_exporter: MB0500EBNCR_13.json: one error in its life, which says nothing of today
    old_age(187, "Reported_Uncorrect", 100, 0, 1),
    old_age(197, "Current_Pending_Sector", 200, 0, 0),
    status=64,
)
KINGSTON = ata(
    old_age(197, "Not_In_Use", 100, 0, 5), status=4
)  # sat-KINGSTON_SKC400S371T: 197 is another value
SAS = scsi()  # smartctl_exporter: HITACHI_H109060SESUN600G_9.json


def read(output: str, model: str = "SAMSUNG MZQLB1T9HAJR-00007", drive: str = "nvme0") -> DriveHealth:
    return read_health(drive, model, output)


def answered(text: str, status: int = 0, err: bytes = b"") -> Answer:
    return Answer("n1", status, text.encode(), err)


# --- the reader


def test_the_log_of_nvme_by_smartctl() -> None:
    found = read(EVO970)
    assert (found.critical, found.spare, found.spare_threshold, found.used) == (0, 99, 10, 3)
    assert (found.media_errors, found.passed, found.problem) == (7, None, "")
    assert read(OPTANE).spare_threshold == 0


def test_the_log_of_nvme_by_both_versions_of_nvme_cli() -> None:
    found = read(NVME1)
    assert (found.critical, found.spare, found.spare_threshold, found.used) == (0, 100, 5, 15)
    found = read("Failed to open a config: ignored\n" + NVME2_HUMAN)
    assert (found.critical, found.used, found.media_errors) == (4, 41, 2.0**64)


def test_attributes_and_status_of_ata() -> None:
    found = read(HITACHI)
    assert [found.passed, *found.failing] == [False, "Reallocated_Sector_Ct 1 (threshold 5)"]
    assert list(found.sectors) == [("Current_Pending_Sector", 8)]
    assert [len(one) for one in (found.low, read(KINGSTON).sectors, read(HP_SATA).sectors)] == [0, 0, 0]
    assert (read(KINGSTON).used, read(ata(endurance_used={"current_percent": 12})).used) == (None, 12)


def test_a_temperature_is_no_prediction_whatever_its_flag() -> None:
    hot = read(ata(prefail(190, "Airflow_Temperature_Cel", 40, 45, 60, now=True)))
    assert (hot.failing, hot.low) == ((), ("Airflow_Temperature_Cel 40 (threshold 45)",))


def test_a_disk_that_sleeps_was_not_read() -> None:
    asleep = read(smartctl("Device is in STANDBY mode, exit(2)", status=2))
    assert (asleep.asleep, asleep.problem) == (True, "")
    assert read(smartctl("Device is in STANDBY (OS) mode, exit(2)", status=2)).asleep


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (smartctl("Smartctl open device: /dev/nvme0 failed: Permission denied", status=2), "Permission denied"),
        (smartctl(NO_TYPE, status=1), "Unable to detect device type"),
        (
            smartctl("Smartctl open device: /dev/sda [megaraid_disk_00] failed: DELL or MegaRaid controller"),
            "DELL or MegaRaid controller",
        ),
        (
            smartctl("Read NVMe SMART/Health Information failed: NVMe Status 0x02", status=4),
            "Read NVMe SMART/Health Information failed: NVMe Status 0x02",
        ),
        (smartctl(status=4, device={"name": "/dev/sda"}), "it reports no SMART status"),
        (OLD, "smartctl 6.5 2016-01-24 r4214 has no --json: install smartmontools 7.0 or later, or nvme-cli"),
        (NVME_FAILS, "No such file or directory"),
        ("", "no output"),
        ('{"smartctl": ', '{"smartctl":'),
        ("[1, 2]", "[1, 2]"),
    ],
)  # fmt: skip
def test_why_a_drive_cannot_be_judged(output: str, problem: str) -> None:
    found = read(output)
    assert (found.problem, found.is_nvme, found.passed) == (problem, False, None)


def test_virtual_drives_and_those_without_an_answer() -> None:
    text = "sys/class/nvme/nvme0/model:Amazon Elastic Block Store              \n"
    text += "/x/sys/class/nvme/nvme1/model:INTEL SSDPE2KX010T8\n/sys/block/sda/device/vendor:ATA     \n"
    text += "/sys/block/sda/device/model:QEMU HARDDISK\n/sys/block/sdb/device/vendor:ATA     \n/sys/block/sdb/device/model:MB0500EBNCR\n"
    names = "found nvme0\nfound nvme1\nfound nvme2\nfound sda\nfound sdb\n"
    found = read_drives(answered(f"{text}{TOOLS}\n{names}drive nvme1\n{P4510}\nhung sdb\nend\n"))
    assert [(it.name, it.model, it.used) for it in found] == [
        ("nvme1", "INTEL SSDPE2KX010T8", 73), ("nvme2", "", None), ("sdb", "MB0500EBNCR", None),
    ]  # fmt: skip
    assert found[1].problem.startswith("not read:")
    assert found[2].problem == "no answer within 5 s"


@pytest.mark.parametrize(
    "model",
    [
        "QEMU NVMe Ctrl", "VMware Virtual NVMe Disk", "VMware Virtual disk", "ORCL-VBOX-NVME-VER12", "Msft Virtual Disk",
        "Amazon Elastic Block Store", "Amazon EC2 NVMe Instance Storage", "nvme_card-pd", "Google PersistentDisk",
        "MSFT NVMe Accelerator v1.0", "Microsoft NVMe Direct Disk v2",
    ],
)  # fmt: skip
def test_what_a_hypervisor_presents_is_no_drive_of_the_node(model: str) -> None:
    text = f"/sys/class/nvme/nvme0/model:{model}\n{TOOLS}\nfound nvme0\ndrive nvme0\n{smartctl('x')}\nend\n"
    assert read_drives(answered(text)) == ()


def test_no_tool_no_right_and_no_end() -> None:
    drive = "sys/class/nvme/nvme0/model:KIOXIA KCD81RUG3T84\ntools  \nfound nvme0\nend\n"
    with pytest.raises(NotAvailable, match="install smartmontools 7"):
        read_drives(answered(drive))
    assert read_drives(answered("tools  \nend\n")) == ()
    with pytest.raises(NotAvailable, match="a password is required"):
        read_drives(answered("", 1, b"sudo: a password is required\n"))
    with pytest.raises(ProbeError):
        read_drives(answered("tools\n"))
    only = read_drives(answered("tools  /usr/sbin/nvme\nfound sda\ndrive sda\n\nend\n"))
    assert only[0].problem.startswith("smartctl is not installed")


# --- the command


def run(
    folder: Path, tools: dict[str, str], files: dict[str, str], ticks: int = 50
) -> tuple[DriveHealth, ...]:
    """Run the command on a machine whose /sys has these files, and whose tools are these programs."""
    for path, text in files.items():
        (folder / "sys" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sys" / path).write_text(text)
    (folder / "bin").mkdir()
    for tool, text in tools.items():
        (folder / "bin" / tool).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / tool).chmod(0o755)
    command = DRIVES.command.replace("n=/sys", f"n={folder}/sys").replace("b=/sys", f"b={folder}/sys")
    command = command.replace(f"ticks={drive_facts.SECONDS * 10}", f"ticks={ticks}")
    command = command.replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, timeout=60, check=False)
    return read_drives(Answer("n1", done.returncode, done.stdout, done.stderr))


FILES = {
    "class/nvme/nvme0/model": "SAMSUNG MZWLJ3T8HBLS-00007              \n",
    "class/nvme/nvme0/transport": "pcie\n",
    "class/nvme/nvme1/model": "Linux\n",
    "class/nvme/nvme1/transport": "tcp\n",
    "block/sda/device/vendor": "ATA     \n",
    "block/sda/device/model": "MB0500EBNCR\n",
    "block/loop0/size": "0\n",
    "block/nvme0n1/size": "1\n",
}


def test_the_command_reads_each_drive_of_the_node(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    tool = f"echo \"$*\" >>{calls}\ncase $* in *nvme0) echo '{PM983}' ;; *) echo '{HP_SATA}' ;; esac"
    (tmp_path / "devices/usb1/sdb").mkdir(parents=True)
    (tmp_path / "sys/block").mkdir(parents=True)
    (tmp_path / "sys/block/sdb").symlink_to(tmp_path / "devices/usb1/sdb")
    found = run(tmp_path, {"smartctl": tool}, FILES)
    assert [(it.name, it.model, it.used, it.passed) for it in found] == [
        ("nvme0", "SAMSUNG MZWLJ3T8HBLS-00007", 0, None),
        ("sda", "MB0500EBNCR", None, True),
    ]
    assert sorted(calls.read_text().splitlines()) == [
        "--json=c -n standby -H -A /dev/nvme0",
        "--json=c -n standby -H -A /dev/sda",
    ]


def test_nvme_cli_reads_where_smartctl_is_old(tmp_path: Path) -> None:
    nvme = f"[ \"$*\" = 'smart-log /dev/nvme0 -o json' ] && echo '{NVME1}'"
    found = run(tmp_path, {"smartctl": f"echo '{OLD}'; exit 1", "nvme": nvme}, FILES)
    assert (found[0].used, found[0].problem) == (15, "")
    assert "has no --json" in found[1].problem


@pytest.mark.thorough  # it waits for the drive
def test_a_drive_that_does_not_answer_delays_no_other(tmp_path: Path) -> None:
    tool = f"case $* in *sda) sleep 30 ;; *) echo '{PM983}' ;; esac"
    found = run(tmp_path, {"smartctl": tool}, FILES, ticks=10)
    assert (found[0].used, found[1].problem) == (0, "no answer within 5 s")


# --- machines that were considered


def judge(*outputs: str, model: str = "SAMSUNG MZVL2512HCJQ-00B00", virtual: bool = False) -> Verdict:
    return drive_health(tuple(read(it, model, f"nvme{n}") for n, it in enumerate(outputs)), virtual)


def measured(verdict: Verdict) -> list[str]:
    return [it.measured for it in verdict.findings] + [it.measured for it in verdict.advisories]


def test_wear_and_errors_are_metrics_of_each_drive() -> None:
    verdict = judge(PM983, P4510, HP_SATA)
    assert [(it.name, it.value, it.unit, it.device) for it in verdict.metrics if it.name == "drive_wear"] == [
        ("drive_wear", 0, "%", "nvme0"),
        ("drive_wear", 73, "%", "nvme1"),
    ]
    assert {it.device for it in verdict.metrics if it.name == "drive_media_errors"} == {"nvme0", "nvme1"}


def test_each_bit_of_the_critical_warning_has_its_words() -> None:
    verdict = judge(log(1, critical=0xFE))
    assert len(verdict.findings) == 3
    words = ("temperature", "persistent memory", "0x40", "0x80")
    assert [word in it.measured for word, it in zip(words, verdict.advisories, strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("used", "findings", "advisories"), [(89, 0, 0), (90, 0, 1), (99, 0, 1), (100, 0, 1), (255, 0, 1)]
)
def test_wear_alone_is_a_warning_from_90_percent(used: int, findings: int, advisories: int) -> None:
    verdict = judge(log(used))
    assert (len(verdict.findings), len(verdict.advisories)) == (findings, advisories)


def test_used_endurance_explains_the_bit_degraded_and_no_other() -> None:
    assert len(measured(judge(log(104, critical=4)))) == 1
    assert len(measured(judge(log(104, critical=4 | 8)))) == 2
    assert len(measured(judge(log(99, critical=4)))) == 2


def test_findings_count_beside_drives_that_cannot_be_read() -> None:
    verdict = judge(DENIED, DENIED, PM983)
    assert "nvme0, nvme1: " in verdict.reason
    assert (verdict.outcome, len(verdict.metrics)) == (Outcome.NOT_CHECKED, 2)
    assert judge(DENIED, HITACHI).outcome is Outcome.FAILED


DENIED = smartctl("Smartctl open device: /dev/nvme0 failed: Permission denied", status=2)
RAID_VOLUME = smartctl("Smartctl open device: /dev/sda [megaraid_disk_00] failed: DELL or MegaRaid controller, please try adding '-d megaraid,N'", status=2)  # fmt: skip
HETZNER = "https://github.com/smartmontools/smartmontools/issues/537"
HEALTHY = (
    ("os.drive_health", "a new data centre drive", EXPORTER, PASSED, lambda: judge(PM983)),
    ("os.drive_health", "eight drives at three quarters of their endurance", EXPORTER, PASSED, lambda: judge(*[P4510] * 8)),
    ("os.drive_health", "an Optane drive without spare blocks", EXPORTER, PASSED, lambda: judge(OPTANE, log(0, spare=0, threshold=0))),
    ("os.drive_health", "a SATA drive that reported one error in its life, with an error log", EXPORTER, PASSED, lambda: judge(HP_SATA)),
    ("os.drive_health", "an SSD with another meaning of attribute 197", EXPORTER, PASSED, lambda: judge(KINGSTON)),
    ("os.drive_health", "a SAS disk", EXPORTER, PASSED, lambda: judge(SAS)),
    ("os.drive_health", "a disk that sleeps", "smartctl(8), -n", PASSED, lambda: judge(smartctl("Device is in STANDBY mode, exit(2)", status=2), PM983)),
    ("os.drive_health", "seven errors of the media in three years", SCRUTINY, WARNING, lambda: judge(EVO970)),
    ("os.drive_health", "a hot aisle at noon", SPEC, WARNING, lambda: judge(log(3, critical=2))),
    ("os.drive_health", "a SAS disk that is too hot", "SPC-5, Annex F: 0Bh 01h", WARNING, lambda: judge(scsi(passed=False, asc=11, ascq=1, ie_string="WARNING - SPECIFIED TEMPERATURE EXCEEDED"))),
    ("os.drive_health", "a SATA disk that is too hot", "smartctl(8), -A: Old_age", WARNING, lambda: judge(ata(old_age(190, "Airflow_Temperature_Cel", 40, 45, 60, now=True)))),
    ("os.drive_health", "sectors that wait for a write", "Current_Pending_Sector", WARNING, lambda: judge(ata(PENDING))),
    ("os.drive_health", "scratch at 95% of its endurance", SPEC, WARNING, lambda: judge(log(95))),
    ("os.drive_health", "firmware that returns reserved values", "https://github.com/hiyohiyo/CrystalDiskInfo/issues/186", WARNING, lambda: judge(log(255, spare=64, threshold=255))),
    ("os.drive_health", "a SATA SSD whose attributes mean no endurance left", "smartctl(8): SSDs use attributes otherwise", WARNING, lambda: judge(ata(endurance_used={"current_percent": 100}))),
    ("os.drive_health", "its only disk sleeps", "smartctl(8), -n", NOT_CHECKED, lambda: judge(smartctl("Device is in STANDBY mode, exit(2)", status=2))),
    ("os.drive_health", "no sudo", "rights.md", NOT_CHECKED, lambda: judge(DENIED)),
    ("os.drive_health", "disks behind a RAID controller", "smartctl -d megaraid,N", NOT_CHECKED, lambda: judge(RAID_VOLUME, PM983)),
    ("os.drive_health", "a virtual machine with a disk of its host", NO_TYPE, NOT_APPLICABLE, lambda: judge(smartctl(NO_TYPE, status=1), virtual=True)),
    ("os.drive_health", "diskless", "no /sys/class/nvme", NOT_APPLICABLE, judge),
)  # fmt: skip
SICK = (
    ("os.drive_health", "spare blocks below the threshold", SPEC, MONITOR, lambda: judge(log(97, spare=4, critical=1))),
    ("os.drive_health", "the same before the drive sets the bit", SPEC, MONITOR, lambda: judge(log(97, spare=4))),
    ("os.drive_health", "the media is read-only", SPEC, MONITOR, lambda: judge(log(12, critical=8))),
    ("os.drive_health", "reliability degraded before its time", SPEC, MONITOR, lambda: judge(log(41, critical=4))),
    ("os.drive_health", "the capacitors failed", SPEC, MONITOR, lambda: judge(log(5, critical=16))),
    ("os.drive_health", "all of the rated endurance used", HETZNER, MONITOR, lambda: judge(log(100, critical=4))),
    ("os.drive_health", "1975 reallocated sectors", SCRUTINY, MONITOR, lambda: judge(HITACHI)),
    ("os.drive_health", "an attribute predicts a failure before the status does", "smartctl(8): exit status, bit 4", MONITOR, lambda: judge(ata(prefail(5, "Reallocated_Sector_Ct", 1, 5, 1975, now=True), status=16))),
    ("os.drive_health", "a SAS disk predicts its failure", "SPC-5, Annex F: 5Dh", MONITOR, lambda: judge(scsi(passed=False, asc=93, ascq=16, ie_string="HARDWARE IMPENDING FAILURE GENERAL HARD DRIVE FAILURE"))),
    ("os.drive_health", "a passed-through drive fails in a virtual machine", SPEC, MONITOR, lambda: judge(smartctl(NO_TYPE, status=1), log(12, critical=8), virtual=True)),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)
