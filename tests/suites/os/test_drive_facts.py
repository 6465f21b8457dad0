"""What drives report of themselves: the reader, its command, and os.drive_health on machines that were considered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import answer, run, with_tools

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.suites.os import drive_facts
from pytest_gpucluster.suites.os.checks.drives import drive_health
from pytest_gpucluster.suites.os.drive_facts import DRIVES, DriveHealth, read_drives, read_health

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = "tools /usr/sbin/smartctl /usr/sbin/nvme"
# of smartmontools 7.3 (Debian 12), as it prints them
OLD = "smartctl 6.5 2016-01-24 r4214 [x86_64-linux-4.15.0] (local build)\n\n=======> UNRECOGNIZED OPTION: json=c\n"
NO_TYPE = "/dev/sda: Unable to detect device type"
# of nvme-cli 2.3 (Debian 12), before its usage
NVME_FAILS = "/dev/nvme9: No such file or directory\nUsage: nvme smart-log <device> [OPTIONS]\n"


def smartctl(*messages: str, status: int = 0, **values: Any) -> str:
    """Return what smartctl --json=c prints."""
    own: dict[str, Any] = {"version": [7, 3], "argv": ["smartctl", "--json=c"], "exit_status": status}
    if messages:
        own["messages"] = [{"string": message, "severity": "error"} for message in messages]
    return json.dumps({"json_format_version": [1, 0], "smartctl": own, **values}, separators=(",", ":"))


def log(used: float, spare: int = 100, threshold: int = 10, critical: int = 0, media_errors: int = 0) -> str:
    """Return what smartctl prints of an NVMe drive."""
    return smartctl(
        status=8 if critical else 0,
        smart_status={"passed": not critical, "nvme": {"value": critical}},
        nvme_smart_health_information_log={
            "critical_warning": critical,
            "available_spare": spare,
            "available_spare_threshold": threshold,
            "percentage_used": used,
            "media_errors": media_errors,
            "num_err_log_entries": 14,
        },
    )


def attribute(
    number: int, label: str, values: tuple[int, int, int], *, prefail: bool = False, now: bool = False
) -> dict[str, Any]:
    """Return an attribute of ATA; values: its value, its threshold, and its raw value."""
    value, least, raw = values
    return {
        "id": number,
        "name": label,
        "value": value,
        "worst": value,
        "thresh": least,
        "when_failed": "now" if now else "",
        "flags": {"value": 51 if prefail else 50, "prefailure": prefail},
        "raw": {"value": raw, "string": str(raw)},
    }


def ata(*table: dict[str, Any], passed: bool = True, status: int = 0, **values: Any) -> str:
    """Return what smartctl prints of a SATA drive."""
    attributes = {"revision": 16, "table": list(table)}
    return smartctl(status=status, smart_status={"passed": passed}, ata_smart_attributes=attributes, **values)


def scsi(*, passed: bool = True, **values: Any) -> str:
    status = {"passed": passed, **({"scsi": values} if values else {})}
    return smartctl(smart_status=status, scsi_grown_defect_list=0)


# values of recordings
PM983 = log(0)  # smartctl_exporter: SAMSUNG_MZQLB1T9HAJR-00007_20.json, smartctl 7.3
P4510 = log(73, spare=99)  # nvme-null-INTEL_SSDPE2KX010T8-nvme1.json
OPTANE = log(1, threshold=0)  # nvme-null-INTEL_MEMPEK1W032GA-nvme0.json
EVO970 = log(3, spare=99, media_errors=7)  # scrutiny: smart-nvme-failed.json, smartctl 7.0
# nvme-cli 1 (a test of a reader in Go), and nvme-cli 1.16 to 2.0 with -H (nvme-print.c)
NVME1 = '{"critical_warning" : 0, "avail_spare" : 100, "spare_thresh" : 5, "percent_used" : 15, "media_errors" : 0}'
NVME2_HUMAN = (
    '{\n  "critical_warning":{\n    "value":4,\n    "available_spare":0,\n    "ro":0\n  },\n  "avail_spare":100,\n'
    '  "spare_thresh":10,\n  "percent_used":41,\n  "media_errors":"18446744073709551616"\n}\n'
)
PENDING = attribute(197, "Current_Pending_Sector", (100, 0, 8))
REALLOCATED = attribute(5, "Reallocated_Sector_Ct", (1, 5, 1975), prefail=True, now=True)
HITACHI = ata(  # scrutiny: smart-fail2.json, smartctl 7.1, exit 216
    attribute(1, "Raw_Read_Error_Rate", (100, 16, 0), prefail=True),
    REALLOCATED,
    PENDING,
    attribute(198, "Offline_Uncorrectable", (100, 0, 0)),
    passed=False,
    status=216,
)
HP_SATA = ata(  # smartctl_exporter: MB0500EBNCR_13.json: one error in its life, which says nothing of today
    attribute(187, "Reported_Uncorrect", (100, 0, 1)), attribute(197, "Current_Pending_Sector", (200, 0, 0)), status=64
)
KINGSTON = ata(attribute(197, "Not_In_Use", (100, 0, 5)), status=4)  # sat-KINGSTON_SKC400S371T
DENIED = smartctl("Smartctl open device: /dev/nvme0 failed: Permission denied", status=2)
RAID = smartctl("Smartctl open device: /dev/sda [megaraid_disk_00] failed: DELL or MegaRaid controller")
ASLEEP = smartctl("Device is in STANDBY mode, exit(2)", status=2)


def read(output: str, model: str = "SAMSUNG MZQLB1T9HAJR-00007", drive: str = "nvme0") -> DriveHealth:
    return read_health(drive, model, output)


def test_what_a_drive_reports() -> None:
    for output, found in (
        (EVO970, DriveHealth("d", critical=0, spare=99, spare_threshold=10, used=3, media_errors=7)),
        (NVME1, DriveHealth("d", critical=0, spare=100, spare_threshold=5, used=15, media_errors=0)),
        (ata(endurance_used={"current_percent": 12}), DriveHealth("d", passed=True, used=12)),
        (  # a temperature is no prediction, whatever its flag
            ata(attribute(190, "Airflow_Temperature_Cel", (40, 45, 60), prefail=True, now=True)),
            DriveHealth("d", passed=True, low=("Airflow_Temperature_Cel 40 (threshold 45)",)),
        ),
        (smartctl("Device is in STANDBY (OS) mode, exit(2)", status=2), DriveHealth("d", asleep=True)),
        # why it cannot be judged
        (smartctl(NO_TYPE, status=1), DriveHealth("d", problem="Unable to detect device type")),
        (smartctl(status=4), DriveHealth("d", problem="it reports no SMART status")),
        (NVME_FAILS, DriveHealth("d", problem="No such file or directory")),
        ('{"smartctl": ', DriveHealth("d", problem='{"smartctl":')),
    ):
        assert read_health("d", "", output) == found


def test_what_tools_print_around_a_report() -> None:
    human = read("Failed to open a config: ignored\n" + NVME2_HUMAN)
    assert (human.critical, human.used, human.media_errors) == (4, 41, 2.0**64)
    hitachi = read(HITACHI)
    assert [hitachi.passed, *hitachi.failing] == [False, "Reallocated_Sector_Ct 1 (threshold 5)"]
    assert list(hitachi.sectors) == [("Current_Pending_Sector", 8)]
    failed = "Read NVMe SMART/Health Information failed: NVMe Status 0x02"
    assert read(smartctl(failed, status=4)).problem == failed
    problem = read(OLD).problem
    assert problem.startswith("smartctl 6.5 2016-01-24 r4214 has no --json: install smartmontools 7")


def test_virtual_drives_and_those_without_an_answer() -> None:
    text = "sys/class/nvme/nvme0/model:Amazon Elastic Block Store              \n"
    text += "/x/sys/class/nvme/nvme1/model:INTEL SSDPE2KX010T8\n/sys/block/sda/device/vendor:ATA     \n"
    text += "/sys/block/sda/device/model:QEMU HARDDISK\n/sys/block/sdb/device/vendor:ATA     \n/sys/block/sdb/device/model:MB0500EBNCR\n"
    names = "found nvme0\nfound nvme1\nfound nvme2\nfound sda\nfound sdb\n"
    found = read_drives(answer(f"{text}{TOOLS}\n{names}drive nvme1\n{P4510}\nhung sdb\nend\n"))
    drives = [("nvme1", "INTEL SSDPE2KX010T8", 73), ("nvme2", "", None), ("sdb", "MB0500EBNCR", None)]
    assert [(it.name, it.model, it.used) for it in found] == drives
    assert found[1].problem.startswith("not read:")
    assert found[2].problem == "no answer within 5 s"


OF_A_HYPERVISOR = (
    "QEMU NVMe Ctrl, VMware Virtual NVMe Disk, VMware Virtual disk, ORCL-VBOX-NVME-VER12, Msft Virtual Disk, "
    "Amazon Elastic Block Store, Amazon EC2 NVMe Instance Storage, nvme_card-pd, Google PersistentDisk, "
    "MSFT NVMe Accelerator v1.0, Microsoft NVMe Direct Disk v2"
)


@pytest.mark.parametrize("model", OF_A_HYPERVISOR.split(", "))
def test_what_a_hypervisor_presents_is_no_drive_of_the_node(model: str) -> None:
    text = f"/sys/class/nvme/nvme0/model:{model}\n{TOOLS}\nfound nvme0\ndrive nvme0\n{smartctl('x')}\nend\n"
    assert read_drives(answer(text)) == ()


def test_no_tool_no_right_and_no_end() -> None:
    drive = "sys/class/nvme/nvme0/model:KIOXIA KCD81RUG3T84\ntools  \nfound nvme0\nend\n"
    with pytest.raises(NotAvailable, match="install smartmontools 7"):
        read_drives(answer(drive))
    assert read_drives(answer("tools  \nend\n")) == ()
    with pytest.raises(NotAvailable, match="a password is required"):
        read_drives(answer("", 1, "sudo: a password is required\n"))
    with pytest.raises(ProbeError):
        read_drives(answer("tools\n"))
    (only,) = read_drives(answer("tools  /usr/sbin/nvme\nfound sda\ndrive sda\n\nend\n"))
    assert only.problem.startswith("smartctl is not installed")


def on_machine(folder: Path, ticks: int = 600, **tools: str) -> tuple[DriveHealth, ...]:
    """Run the command where /sys has a local NVMe drive, one over TCP and a SATA disk, and these are the tools."""
    for path, text in {
        "class/nvme/nvme0/model": "SAMSUNG MZWLJ3T8HBLS-00007              \n",
        "class/nvme/nvme0/transport": "pcie\n",
        "class/nvme/nvme1/model": "Linux\n",
        "class/nvme/nvme1/transport": "tcp\n",
        "block/sda/device/vendor": "ATA     \n",
        "block/sda/device/model": "MB0500EBNCR\n",
        "block/loop0/size": "0\n",
        "block/nvme0n1/size": "1\n",
    }.items():
        (folder / "sys" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sys" / path).write_text(text)
    command = DRIVES.command.replace("n=/sys", f"n={folder}/sys").replace("b=/sys", f"b={folder}/sys")
    command = command.replace(f"ticks={drive_facts.SECONDS * 10}", f"ticks={ticks}")
    command = command.replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
    return read_drives(run(command, PATH=with_tools(folder, **tools)))


def test_the_command_reads_each_drive_of_the_node(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    tool = f"echo \"$*\" >>{calls}\ncase $* in *nvme0) echo '{PM983}' ;; *) echo '{HP_SATA}' ;; esac"
    (tmp_path / "devices/usb1/sdb").mkdir(parents=True)
    (tmp_path / "sys/block").mkdir(parents=True)
    (tmp_path / "sys/block/sdb").symlink_to(tmp_path / "devices/usb1/sdb")
    found = on_machine(tmp_path, smartctl=tool)
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
    found = on_machine(tmp_path, smartctl=f"echo '{OLD}'; exit 1", nvme=nvme)
    assert (found[0].used, found[0].problem) == (15, "")
    assert "has no --json" in found[1].problem


@pytest.mark.thorough  # it waits for the drive
def test_a_drive_that_does_not_answer_delays_no_other(tmp_path: Path) -> None:
    tool = f"case $* in *sda) sleep 20 ;; *) echo '{PM983}' ;; esac"
    found = on_machine(tmp_path, 20, smartctl=tool)
    assert (found[0].used, found[1].problem) == (0, "no answer within 5 s")


def judge(*outputs: str, virtual: bool = False) -> Verdict:
    return drive_health(tuple(read(it, "SAMSUNG", f"nvme{n}") for n, it in enumerate(outputs)), virtual)


def test_wear_and_spare_blocks_at_their_bounds() -> None:
    for drive, said in (
        (log(89), (0, 0)),
        (log(90), (0, 1)),
        (log(100), (0, 1)),
        # used endurance explains the bit "degraded", and no other
        (log(100, critical=4), (1, 0)),
        (log(104, critical=4 | 8), (2, 0)),
        (log(99, critical=4), (1, 1)),
        (ata(endurance_used={"current_percent": 89}), (0, 0)),
        (ata(endurance_used={"current_percent": 90}), (0, 1)),
        (log(3, spare=10), (0, 0)),
        (log(3, spare=9), (1, 0)),
        (log(3, spare=101), (0, 1)),
        (log(3, spare=101, critical=1), (1, 0)),
    ):
        verdict = judge(drive)
        assert (len(verdict.findings), len(verdict.advisories)) == said


def test_findings_count_beside_drives_that_cannot_be_read() -> None:
    verdict = judge(DENIED, DENIED, PM983)
    assert "nvme0, nvme1: " in verdict.reason
    assert (result(verdict), len(verdict.metrics)) == (NOT_CHECKED, 2)
    assert result(judge(DENIED, HITACHI)) == DRAIN


HOT_SATA = ata(attribute(190, "Airflow_Temperature_Cel", (40, 45, 60), now=True))
HOT_SAS = scsi(passed=False, asc=11, ascq=1, ie_string="WARNING - SPECIFIED TEMPERATURE EXCEEDED")
SAS_FAILS = scsi(passed=False, asc=93, ascq=16, ie_string="HARDWARE IMPENDING FAILURE GENERAL HARD DRIVE")
RESERVED = log(255, spare=64, threshold=255)
READ_ONLY = log(12, critical=8)
WITHOUT_SMART = smartctl(NO_TYPE, status=1)
MACHINES: Machines = {
    ("os.drive_health", judge): [
        ("eight drives at three quarters of their endurance | smartctl_exporter", PASSED, *[P4510] * 8),
        ("Optane drives without spare blocks | nvme-null", PASSED, OPTANE, log(0, spare=0, threshold=0)),
        ("a SATA drive that reported one error in its life | smartctl_exporter", PASSED, HP_SATA),
        ("an SSD with another meaning of attribute 197 | smartctl_exporter", PASSED, KINGSTON),
        ("a SAS disk | HITACHI_H109060SESUN600G_9.json", PASSED, scsi()),
        ("a disk that sleeps | smartctl(8), -n", PASSED, ASLEEP, PM983),
        ("seven errors of the media in three years | scrutiny testdata", WARNING, EVO970),
        ("a hot aisle at noon | NVM Express Base Specification 2.0", WARNING, log(3, critical=2)),
        ("a SAS disk that is too hot | SPC-5, Annex F: 0Bh 01h", WARNING, HOT_SAS),
        ("a SATA disk that is too hot | smartctl(8), -A: Old_age", WARNING, HOT_SATA),
        ("sectors that wait for a write | Current_Pending_Sector", WARNING, ata(PENDING)),
        ("firmware that returns reserved values | CrystalDiskInfo, issue 186", WARNING, RESERVED),
        ("its only disk sleeps | smartctl(8), -n", NOT_CHECKED, ASLEEP),
        ("no sudo | rights.md", NOT_CHECKED, DENIED),
        ("disks behind a RAID controller | smartctl -d megaraid,N", NOT_CHECKED, RAID, PM983),
        ("a disk of its host | QEMU", NOT_APPLICABLE, lambda: judge(WITHOUT_SMART, virtual=True)),
        ("diskless | no /sys/class/nvme", NOT_APPLICABLE),
        ("sick: the drive says that spare blocks are low | NVMe", DRAIN, log(97, spare=4, critical=1)),
        ("sick: its endurance explains the bit | smartmontools 537", MONITOR, log(104, critical=4)),
        ("sick: the media is read-only | NVM Express", DRAIN, READ_ONLY),
        ("sick: reliability degraded before its time | NVM Express", DRAIN, log(41, critical=4)),
        ("sick: the capacitors failed | NVM Express", DRAIN, log(5, critical=16)),
        ("sick: 1975 reallocated sectors | scrutiny testdata", DRAIN, HITACHI),
        ("sick: an attribute predicts a failure first | smartctl(8), bit 4", DRAIN, ata(REALLOCATED)),
        ("sick: a SAS disk predicts its failure | SPC-5, Annex F: 5Dh", DRAIN, SAS_FAILS),
        ("sick: a drive of a VM | NVMe", DRAIN, lambda: judge(WITHOUT_SMART, READ_ONLY, virtual=True)),
    ]
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
