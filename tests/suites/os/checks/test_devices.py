"""Cards, links and drives on PCIe against the other nodes of the group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import (
    CONFIGURE,
    MONITOR,
    NOT_APPLICABLE,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
    result,
)
from judged import figures, judged

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks import devices as checks
from pytest_gpucluster.suites.os.device_facts import (
    Devices,
    Drive,
    Link,
    PciFunction,
    read_devices,
    usual_devices,
)

NIC = PciFunction("0000:18:00.0", "0200", "15b3:1021", Link(16, 32.0))
SECOND = PciFunction("0000:18:00.1", "0207", "15b3:1021", Link(16, 32.0))
GPU = PciFunction("0000:1b:00.0", "0302", "10de:2335", Link(16, 32.0))
SSDS = tuple(PciFunction(f"0000:0{n}:00.0", "0108", "144d:a80a", Link(4, 16.0)) for n in range(4))
DRIVES = tuple(Drive(f"nvme{n}", "MZWLJ3T8HBLS", "EPK9CB5Q", "live") for n in range(4))
NODE = Devices((NIC, SECOND, GPU, *SSDS), DRIVES)
EMPTY = Devices((NIC,))


def without(*addresses: str) -> Devices:
    return replace(NODE, functions=tuple(it for it in NODE.functions if it.address not in addresses))


def changed(function: PciFunction) -> Devices:
    return Devices(tuple(function if it.address == function.address else it for it in NODE.functions), DRIVES)


def judge(
    check: str, mine: Devices, usual: Devices = NODE, others: int = 3, *, virtual: bool = False
) -> Verdict:
    """Judge a node beside others that are alike."""
    fleet = {"n1": mine, **{f"n{n}": usual for n in range(2, 2 + others)}}
    known = usual_devices(fleet)
    if check == "os.pci_devices":
        return checks.pci_devices(mine, known, virtual)
    return {"os.pci_links": checks.pci_links, "os.nvme": checks.nvme}[check](mine, known)


@pytest.mark.parametrize(
    ("check", "mine", "usual", "expected", "part"),
    [
        ("os.pci_devices", without("0000:02:00.0"), NODE, CONFIGURE, "NVMe drives"),
        ("os.pci_devices", without("0000:18:00.1"), NODE, PASSED, ""),  # the functions of a card are one card
        ("os.pci_devices", without("0000:18:00.0", "0000:18:00.1"), NODE, CONFIGURE, "network adapters"),
        ("os.pci_devices", without("0000:1b:00.0"), NODE, CONFIGURE, "GPUs"),
        ("os.pci_links", changed(replace(NIC, link=Link(8, 32.0))), NODE, MONITOR, "0000:18:00.0"),
        ("os.pci_links", NODE, changed(replace(NIC, link=Link(8, 32.0))), PASSED, ""),
        ("os.pci_links", changed(replace(SSDS[0], link=None)), NODE, PASSED, ""),
    ],
)
def test_a_node_beside_others_that_are_alike(
    check: str, mine: Devices, usual: Devices, expected: str, part: str
) -> None:
    assert judged(judge(check, mine, usual)) == (expected, [part] if part else [])


def test_a_missing_drive_is_named_by_its_slot() -> None:
    (finding,) = judge("os.pci_devices", without("0000:02:00.0")).findings
    assert finding.measured == "3 without 0000:02:00"


@pytest.mark.parametrize("pci_class", ["0302", "0300", "0b40", "1200"])
def test_links_of_gpus_are_not_compared(pci_class: str) -> None:  # H200, RTX, Gaudi, MI300X
    busy = replace(GPU, pci_class=pci_class, link=Link(16, 32.0))
    idle = replace(busy, link=Link(16, 2.5))
    assert result(judge("os.pci_links", changed(idle), changed(busy))) == PASSED


def test_a_node_alone_is_compared_with_none() -> None:
    assert result(judge("os.pci_links", NODE, others=0)) == NOT_APPLICABLE
    assert result(judge("os.nvme", NODE, others=0)) == PASSED


def test_firmware_of_another_series_fails_since_which_is_newer_is_not_known() -> None:
    verdict = judge("os.nvme", firmware("EPK9DB5Q"))
    assert judged(verdict) == (CONFIGURE, ["nvme0 (MZWLJ3T8HBLS)"])
    assert figures(verdict.findings[0].expected) == [15, 16]
    assert result(judge("os.nvme", firmware("", ""))) == PASSED


# --- machines that were considered, judged by a person first

LENOVO_NVME = PciFunction("0000:01:00.0", "0108", "c0a9:540a", Link(4, 8.0))
E810 = PciFunction("0000:a2:00.0", "0200", "8086:159b", Link(8, 16.0))
SAS = PciFunction("0000:03:00.0", "0107", "1000:00ab", Link(8, 8.0))
EBS = PciFunction("0000:00:1f.0", "0108", "1d0f:8061", None)
ENA = PciFunction("0000:00:05.0", "0200", "1d0f:ec20", None)
EXTRA = PciFunction("0000:c5:00.0", "0200", "15b3:1021", Link(16, 32.0))
PROCFS = "https://github.com/prometheus/procfs testdata/fixtures.ttar"
AWS = "https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html"
ABI = "Documentation/ABI/testing/sysfs-bus-pci"


def only(*functions: PciFunction) -> Devices:
    return Devices(functions)


def firmware(text: str, state: str = "live", model: str = "MZWLJ3T8HBLS") -> Devices:
    return replace(NODE, drives=(Drive("nvme0", model, text, state), *DRIVES[1:]))


def raid(*lines: str) -> Verdict:
    """Judge a node with these lines in /proc/mdstat."""
    text = "".join(f"md {line}\n" for line in ("Personalities : [raid1]", *lines, "unused devices: <none>"))
    return checks.raid(
        read_devices(Answer("n1", 0, f"pci 0000:01:00.0 0108 c0a9:540a 4 8.0\n{text}end\n".encode()))
    )


HEALTHY = (
    ("os.pci_devices", "a server of 2023 among its like", PROCFS, PASSED, lambda: judge("os.pci_devices", only(LENOVO_NVME, E810, SAS), only(LENOVO_NVME, E810, SAS))),
    ("os.pci_devices", "a drive was replaced by one of another vendor", "RMA", PASSED, lambda: judge("os.pci_devices", changed(replace(SSDS[2], kind="1e0f:0007")))),
    ("os.pci_devices", "a drive moved to another bay", "hot plug", PASSED, lambda: judge("os.pci_devices", replace(without("0000:02:00.0"), functions=(*without("0000:02:00.0").functions, replace(SSDS[2], address="0000:09:00.0"))))),
    ("os.pci_devices", "a virtual machine without the volume that others have attached", AWS, WARNING, lambda: judge("os.pci_devices", only(ENA), only(ENA, EBS), virtual=True)),
    ("os.pci_devices", "an additional card", "login and storage in one node", PASSED, lambda: judge("os.pci_devices", replace(NODE, functions=(*NODE.functions, EXTRA)))),
    ("os.pci_devices", "the only node", "one node", NOT_APPLICABLE, lambda: judge("os.pci_devices", NODE, others=0)),
    ("os.pci_links", "a Gen 3 drive in a slot of eight lanes", PROCFS, PASSED, lambda: judge("os.pci_links", only(LENOVO_NVME, SAS), only(LENOVO_NVME, SAS))),
    ("os.pci_links", "an idle GPU at 2.5 GT/s", "https://docs.nvidia.com/deploy/nvidia-smi/ (PCIe generation of an idle GPU)", PASSED, lambda: judge("os.pci_links", changed(replace(GPU, link=Link(16, 2.5))))),
    ("os.pci_links", "devices of Nitro have no link", AWS, NOT_APPLICABLE, lambda: judge("os.pci_links", only(ENA, EBS), only(ENA, EBS))),
    ("os.pci_links", "a card with x16 in a slot of x8, as on all nodes", ABI, PASSED, lambda: judge("os.pci_links", changed(replace(NIC, link=Link(8, 32.0))), changed(replace(NIC, link=Link(8, 32.0))))),
    ("os.pci_links", "a replaced drive of an older PCIe generation", "RMA", PASSED, lambda: judge("os.pci_links", changed(replace(SSDS[2], kind="144d:a808", link=Link(4, 8.0))))),
    ("os.nvme", "one model, one firmware", PROCFS, PASSED, lambda: judge("os.nvme", firmware("1B2QEXP7", model="Samsung SSD 970 PRO 512GB"))),
    ("os.nvme", "a replaced drive of another model", "RMA", PASSED, lambda: judge("os.nvme", firmware("0103", model="KIOXIA KCD81RUG3T84"))),
    ("os.nvme", "newer firmware than the others", "first node of an update", WARNING, lambda: judge("os.nvme", firmware("EPK10CB5Q"))),
    ("os.nvme", "a kernel without the file state", "Linux before 4.10", PASSED, lambda: judge("os.nvme", firmware("EPK9CB5Q", ""))),
    ("os.nvme", "a controller that resets itself", "drivers/nvme/host/core.c: NVME_CTRL_RESETTING", WARNING, lambda: judge("os.nvme", firmware("EPK9CB5Q", "resetting"))),
    ("os.raid", "four disks in RAID 5", "md(4)", PASSED, lambda: raid("md0 : active raid5 nvme4n1[4] nvme3n1[2] nvme2n1[1] nvme1n1[0]", "  29300000000 blocks super 1.2 level 5, 512k chunk, algorithm 2 [4/4] [UUUU]")),
    ("os.raid", "RAID 0 of scratch", "md(4)", PASSED, lambda: raid("md127 : active raid0 nvme1n1[1] nvme0n1[0]", "  7501212672 blocks super 1.2 512k chunks")),
    ("os.raid", "the monthly check", "mdcheck", PASSED, lambda: raid("md1 : active raid1 sdb1[1] sda1[0]", "  1046528 blocks super 1.2 [2/2] [UU]", "  [==>....]  check = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec")),
    ("os.raid", "the replaced disk is rebuilt", "https://docs.kernel.org/admin-guide/md.html", WARNING, lambda: raid("md0 : active raid1 sdc1[2] sda1[0]", "  1046528 blocks super 1.2 [2/1] [U_]", "  [=>....]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec")),
    ("os.raid", "no array", "Personalities :", NOT_APPLICABLE, raid),
    ("os.nvme", "diskless", "no /sys/class/nvme", NOT_APPLICABLE, lambda: judge("os.nvme", EMPTY)),
)  # fmt: skip
SICK = (
    ("os.pci_devices", "a drive fell off the bus", "nvme: Device not ready; removing after probe failure", CONFIGURE, lambda: judge("os.pci_devices", without("0000:02:00.0"))),
    ("os.pci_devices", "an adapter is missing on bare metal", "lspci", CONFIGURE, lambda: judge("os.pci_devices", without("0000:18:00.0", "0000:18:00.1"))),
    ("os.pci_links", "an adapter on eight of sixteen lanes", "LnkSta: Width x8 (downgraded)", MONITOR, lambda: judge("os.pci_links", changed(replace(NIC, link=Link(8, 32.0))))),
    ("os.pci_links", "a drive at half its speed", "LnkSta: Speed 8GT/s (downgraded)", MONITOR, lambda: judge("os.pci_links", changed(replace(SSDS[0], link=Link(4, 8.0))))),
    ("os.nvme", "a node missed the update of the firmware", "nvme fw-log", CONFIGURE, lambda: judge("os.nvme", firmware("EPK8CB5Q"))),
    ("os.raid", "a disk failed", "md(4)", MONITOR, lambda: raid("md0 : active raid5 nvme3n1[2](F) nvme2n1[1] nvme1n1[0]", "  29300000000 blocks level 5, 512k chunk, algorithm 2 [3/2] [UU_]")),
    ("os.raid", "a disk was missing at boot", "mdadm --assemble --run", MONITOR, lambda: raid("md1 : active raid1 sda1[0]", "  1046528 blocks super 1.2 [2/1] [U_]")),
    ("os.nvme", "a dead controller", "drivers/nvme/host/core.c: NVME_CTRL_DEAD", MONITOR, lambda: judge("os.nvme", firmware("EPK9CB5Q", "dead"))),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)
