"""The parts of a node, as the tools print them, and what is no serial number."""

from __future__ import annotations

import re
import subprocess

import pytest
from counter_examples import NOT_APPLICABLE, PASSED, WARNING, CounterExample, result
from suite_helpers import considered

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import identity
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.parts.inventory import PARTS, NodeParts, read_inventory
from pytest_gpucluster.suites.parts import checks

# of an HGX H200, driver 580; lspci 3.9, ethtool 6.1, dmidecode 3.5
PRINTED = """\
@@ gpus
GPU 00000000:1B:00.0
    Product Name                                       : NVIDIA H200
    Serial Number                                      : 1650525012345
    GPU UUID                                           : GPU-a4c123b1-612d-d272-d137-1c17149d4395
    VBIOS Version                                      : 96.00.A5.00.1A
    Board Part Number                                  : 692-2G520-0282-001
    FRU Part Number                                    : N/A
        Chassis Serial Number                          : N/A
        Image Version                                  : G520.02
GPU 00000001:43:00.0
    Product Name                                       : NVIDIA H200
    Serial Number                                      : 0
== 0
@@ nvswitches
0000:05:00.0 BIOS Version: 96.10.4d.00.01
== 0
@@ adapter mlx5_0 0000:18:00.0
28.39.1002
MT_0000000838
a088:c203:00d5:7349
== 0
@@ vpd mlx5_0
\t\tProduct Name: ConnectX-7 HHHL Adapter Card
\t\t\t[PN] Part number: MCX75310AAS-NEAT
\t\t\t[SN] Serial number: MT2330X1234
== 0
@@ adapter mlx5_1 0000:18:00.1
28.39.1002
MT_0000000838
a088:c203:00d5:734a
== 0
@@ module mlx5_0
\tLength (Copper or Active cable)           : 3m
\tVendor name                               : NVIDIA
\tVendor PN                                 : MCP4Y10-N003
\tVendor SN                                 : MT2312VB01234
== 0
@@ module mlx5_1
netlink error: Operation not permitted
== 1
@@ drive nvme0
/sys/class/nvme/nvme0/address:0000:c1:00.0
/sys/class/nvme/nvme0/model:SAMSUNG MZWLJ3T8HBLS-00007
/sys/class/nvme/nvme0/serial:S64HNE0T301234
/sys/class/nvme/nvme0/firmware_rev:EPK9CB5Q
/sys/class/nvme/nvme0/transport:pcie
== 0
@@ drive nvme1
/sys/class/nvme/nvme1/transport:tcp
== 0
@@ disks
NAME="/dev/sda" MODEL="MICRON_5300" SERIAL="21262F9A1234" REV="D3MU001" TRAN="sata" HCTL="0:0:0:0"
NAME="/dev/sdb" MODEL="Virtual HDisk" SERIAL="AAAABBBBCCCC1" REV="1.00" TRAN="usb"
== 0
@@ dmi
Handle 0x0001, DMI type 1, 27 bytes
System Information
\tManufacturer: Supermicro
\tProduct Name: SYS-821GE-TNHR
\tSerial Number: S512345X3A01234

Handle 0x0040, DMI type 17, 92 bytes
Memory Device
\tSize: 64 GB
\tLocator: P1-DIMMA1
\tBank Locator: P0_Node0_Channel0
\tManufacturer: Samsung
\tSerial Number: 4A079210
\tPart Number: M321R8GA0BB0-CQKZJ

Handle 0x0041, DMI type 17, 92 bytes
Memory Device
\tSize: No Module Installed
\tLocator: P1-DIMMA2
== 0
@@ bmc
Firmware Revision         : 1.05
Manufacturer Name         : Supermicro
== 0
end
"""


def read(printed: str = PRINTED, rc: int = 0) -> NodeParts:
    return read_inventory(Answer("gpu01", rc, printed.encode()))


def test_each_part_has_its_serial_number_firmware_and_slot() -> None:
    found = read()
    assert [(it.slot, it.part.serial, it.number, it.firmware) for it in found.parts] == [
        ("gpu 0000:1b:00.0", "1650525012345", "692-2G520-0282-001", "96.00.A5.00.1A, InfoROM G520.02"),
        ("gpu 0001:43:00.0", "", "", ""),
        ("nvswitch 0000:05:00.0", "", "", "96.10.4d.00.01"),
        ("cable mlx5_0", "MT2312VB01234", "MCP4Y10-N003", ""),
        ("disk 0000:c1:00.0", "S64HNE0T301234", "", "EPK9CB5Q"),
        ("disk 0:0:0:0", "21262F9A1234", "", "D3MU001"),
        ("chassis", "S512345X3A01234", "", ""),
        ("dimm P1-DIMMA1, P0_Node0_Channel0", "4A079210", "M321R8GA0BB0-CQKZJ", ""),
        ("bmc", "", "", "1.05"),
        ("adapter 0000:18:00.0", "MT2330X1234", "MCX75310AAS-NEAT", "28.39.1002"),
    ]
    assert found.parts[3].length == "3"
    assert found.unread == {"module": "netlink error: Operation not permitted (exit 1)"}


@pytest.mark.parametrize(
    "serial", ["", "0", "00000000", "0123456789", "N/A", "To be filled by O.E.M.", "A1_SerNum0", "FFFFFFFF"]
)
def test_a_placeholder_is_no_serial_number(serial: str) -> None:
    assert identity(serial) == ""


def test_what_cannot_be_read_is_named() -> None:
    printed = "@@ gpus\nNVIDIA-SMI has failed\n== 9\n@@ dmi\n== absent dmidecode\n@@ bmc\n== deadline\nend\n"
    assert list(read(printed).unread) == ["gpus", "dmi", "bmc"]
    assert "no end within its deadline" in read(printed).unread["bmc"]
    assert result(checks.inventory(read(printed), {}, "gpu01")) == NOT_APPLICABLE
    # marks in the output of a tool
    assert read(PRINTED.replace("@@ gpus", "@@ vpd x\n== 0\n@@ gpus\n== no end")) == read()
    for rc, error in ((0, ProbeError), (1, NotAvailable)):
        with pytest.raises(error):
            read("@@ gpus\n", rc)


def test_an_adapter_without_a_board_id_has_no_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    device, adapter = (root := tmp_path_factory.mktemp("sys")) / "0000:18:00.0", root / "infiniband/irdma0"
    adapter.mkdir(parents=True)
    (adapter / "device").symlink_to(device)
    for key in ("fw_ver", "node_guid"):
        (adapter / key).write_text(f"{key}\n")
    words = PARTS.command.replace("/sys/class", str(root)).replace("/sys/", "/nowhere/")
    done = subprocess.run(["sh", "-c", words], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    (found,) = [it for it in read_inventory(Answer("a", 0, done.stdout)).parts if it.part.kind == "adapter"]
    assert (found.part.address, found.part.model, found.firmware) == (device.name, "", "fw_ver")


def judged(other: str) -> Verdict:
    """Judge gpu01 beside a node with these parts."""
    return checks.inventory(read(), checks.serial_owners({"gpu01": read(), "gpu02": read(other)}), "gpu01")


HGX = "nvidia-smi, lspci, ethtool and dmidecode of an HGX H200"
OTHER = re.sub(r"(?<=[A-Z0-9])(1234|210)\b", "9999", PRINTED)
COUNTER_EXAMPLES = [
    CounterExample("parts.inventory", "one cable between two nodes", HGX, PASSED, lambda: judged(OTHER)),
    CounterExample("parts.inventory", "one board in two nodes", HGX, WARNING, lambda: judged(PRINTED), sick=True),
]


test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)


def test_a_serial_number_of_two_nodes_is_a_warning_except_that_of_a_cable_or_a_gpu() -> None:
    assert {it.part.kind for it in judged(PRINTED).advisories} == {"chassis", "disk", "dimm", "adapter"}
