"""Cards, links and drives on PCIe against the other nodes of the group."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_APPLICABLE, PASSED, WARNING, result
from judged import figures, judged
from machine_helpers import Machines, examples, verdicts_of_a_person

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks import devices as checks
from pytest_gpucluster.suites.os.device_facts import Devices, Drive, PcieLink, PciFunction, read_devices
from pytest_gpucluster.suites.os.device_facts import usual_devices as usual_of

NIC = PciFunction("0000:18:00.0", "0200", "15b3:1021", PcieLink(16, 32.0), "mlx5_core", "mlx5_4")
SECOND = PciFunction("0000:18:00.1", "0207", "15b3:1021", PcieLink(16, 32.0))
GPU = PciFunction("0000:1b:00.0", "0302", "10de:2335", PcieLink(16, 32.0))
SSDS = tuple(PciFunction(f"0000:0{n}:00.0", "0108", "144d:a80a", PcieLink(4, 16.0)) for n in range(4))
DRIVES = tuple(Drive(f"nvme{n}", "MZWLJ3T8HBLS", "EPK9CB5Q", "live") for n in range(4))
NODE = Devices((NIC, SECOND, GPU, *SSDS), DRIVES)


def without(*addresses: str) -> Devices:
    return replace(NODE, functions=tuple(it for it in NODE.functions if it.address not in addresses))


def changed(function: PciFunction, **values: object) -> Devices:
    other = replace(function, **values)  # type: ignore[arg-type]
    return Devices(tuple(other if it == function else it for it in NODE.functions), DRIVES)


def firmware(text: str, state: str = "live", model: str = "MZWLJ3T8HBLS") -> Devices:
    return replace(NODE, drives=(Drive("nvme0", model, text, state), *DRIVES[1:]))


def cards(mine: Devices, usual: Devices = NODE, others: int = 3, *, virtual: bool = False) -> Verdict:
    """Judge a node beside others that are alike."""
    known = usual_of({"n1": mine, **{f"n{n}": usual for n in range(2, 2 + others)}})
    return checks.pci_devices(mine, known, virtual)


def links(mine: Devices, usual: Devices = NODE, others: int = 3) -> Verdict:
    return checks.pci_links(mine, usual_of({"n1": mine, **{f"n{n}": usual for n in range(2, 2 + others)}}))


def nvme(mine: Devices, others: int = 3) -> Verdict:
    return checks.nvme(mine, usual_of({"n1": mine, **{f"n{n}": NODE for n in range(2, 2 + others)}}))


def raid(*lines: str) -> Verdict:
    """Judge a node with these lines in /proc/mdstat."""
    text = "".join(f"md {line}\n" for line in ("Personalities : [raid1]", *lines, "unused devices: <none>"))
    answer = f"pci 0000:01:00.0 0108 c0a9:540a 4 8.0 nvme - -\n{text}end\n"
    return checks.raid(read_devices(Answer("n1", 0, answer.encode())))


def test_a_card_that_is_missing_is_named_by_its_kind_and_slot() -> None:
    for mine, part in (
        (without("0000:02:00.0"), "NVMe drives"),
        (without("0000:18:00.1"), ""),  # the functions of a card are one card
        (without("0000:18:00.0", "0000:18:00.1"), "network adapters"),
        (without("0000:1b:00.0"), "GPUs"),
    ):
        assert judged(cards(mine)) == ((CONFIGURE, [part]) if part else (PASSED, []))
        if part == "NVMe drives":
            assert cards(mine).findings[0].measured == Quantity(3, text="3 without 0000:02:00")


@pytest.mark.parametrize("pci_class", ["0302", "0300", "0b40", "1200"])
def test_links_of_gpus_are_not_compared(pci_class: str) -> None:  # H200, RTX, Gaudi, MI300X
    busy, idle = (changed(GPU, pci_class=pci_class, link=PcieLink(16, speed)) for speed in (32.0, 2.5))
    assert result(links(idle, busy)) == PASSED


def test_links_and_firmware_are_compared_where_both_sides_are_known() -> None:
    assert judged(links(changed(NIC, link=PcieLink(8, 32.0)))) == (MONITOR, ["mlx5_4 (0000:18:00.0)"])
    assert result(links(NODE, changed(NIC, link=PcieLink(8, 32.0)))) == PASSED
    assert result(links(changed(SSDS[0], link=None))) == PASSED
    assert result(links(NODE, others=0)) == NOT_APPLICABLE
    assert (result(nvme(NODE, others=0)), result(nvme(firmware("", "")))) == (PASSED, PASSED)


def test_firmware_of_another_series_fails_since_which_is_newer_is_not_known() -> None:
    verdict = nvme(firmware("EPK9DB5Q"))
    assert judged(verdict) == (CONFIGURE, ["nvme0 (MZWLJ3T8HBLS)"])
    assert figures(verdict.findings[0].expected) == [15, 16]


GEN_3 = PciFunction("0000:01:00.0", "0108", "c0a9:540a", PcieLink(4, 8.0))
LENOVO = Devices((GEN_3, PciFunction("0000:03:00.0", "0107", "1000:00ab", PcieLink(8, 8.0))))
ENA = PciFunction("0000:00:05.0", "0200", "1d0f:ec20", None)
EBS = PciFunction("0000:00:1f.0", "0108", "1d0f:8061", None)
EXTRA = PciFunction("0000:c5:00.0", "0200", "15b3:1021", PcieLink(16, 32.0))
PROCFS = "https://github.com/prometheus/procfs testdata/fixtures.ttar"
NITRO = "Amazon EBS, nvme-ebs-volumes"
HALF, SPLIT = (changed(NIC, link=PcieLink(8, 32.0), lanes=lanes) for lanes in (16, 8))
REBUILT = "  [=>....]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec"
VOLUMES = Devices((ENA,)), Devices((ENA, EBS))
WHOLE = "md1 : active raid1 sdb1[1] sda1[0]", "  1046528 blocks super 1.2 [2/2] [UU]"
ONE_OF_TWO = "  1046528 blocks super 1.2 [2/1] [U_]"

MACHINES: Machines = {
    ("os.pci_devices", cards): [
        ("a drive was replaced by one of another vendor | RMA", PASSED, changed(SSDS[2], kind="1e0f:0007")),
        ("a drive moved to another bay | hot plug", PASSED, changed(SSDS[2], address="0000:09:00.0")),
        (f"a VM without the volume of others | {NITRO}", WARNING, partial(cards, *VOLUMES, virtual=True)),
        ("an additional card | login node", PASSED, replace(NODE, functions=(*NODE.functions, EXTRA))),
        ("the only node | one node", NOT_APPLICABLE, NODE, NODE, 0),
        ("sick: a drive fell off the bus | removing after probe failure", CONFIGURE, without("0000:02:00.0")),
    ],
    ("os.pci_links", links): [
        (f"a Gen 3 drive in a slot of eight lanes | {PROCFS}", PASSED, LENOVO, LENOVO),
        ("devices of Nitro have no link | Amazon", NOT_APPLICABLE, Devices((ENA, EBS)), Devices((ENA, EBS))),
        ("a card with x16 in a slot of x8, as on all nodes | sysfs-bus-pci", PASSED, HALF, HALF),
        ("a replaced drive | RMA", PASSED, changed(SSDS[2], kind="144d:a808", link=PcieLink(4, 8.0))),
        ("sick: firmware has split the slot | LnkCap of the port: x8", MONITOR, SPLIT),
        ("sick: an adapter on eight of sixteen lanes | LnkSta: Width x8 (downgraded)", DRAIN, HALF),
        ("sick: a drive at half its speed | LnkSta", MONITOR, changed(SSDS[0], link=PcieLink(4, 8.0))),
    ],
    ("os.nvme", nvme): [
        ("a replaced drive of another model | RMA", PASSED, firmware("0103", model="KIOXIA KCD81RUG3T84")),
        ("newer firmware than the others | first node of an update", WARNING, firmware("EPK10CB5Q")),
        ("a kernel without the file state | Linux before 4.10", PASSED, firmware("EPK9CB5Q", "")),
        ("a controller that resets itself | NVME_CTRL_RESETTING", WARNING, firmware("EPK9CB5Q", "resetting")),
        ("diskless | no /sys/class/nvme", NOT_APPLICABLE, Devices((NIC,))),
        ("sick: it missed the update of the firmware | nvme fw-log", CONFIGURE, firmware("EPK8CB5Q")),
        ("sick: a dead controller | NVME_CTRL_DEAD", MONITOR, firmware("EPK9CB5Q", "dead")),
    ],
    ("os.raid", raid): [
        ("RAID 1 | md(4)", PASSED, *WHOLE),
        ("RAID 0 | md(4)", PASSED, "md127 : active raid0 nvme1n1[1] nvme0n1[0]", "  7501212672 blocks"),
        ("the monthly check | mdcheck", PASSED, *WHOLE, REBUILT.replace("recovery", "check")),
        ("the replaced disk is rebuilt | md.html of the kernel", WARNING, WHOLE[0], ONE_OF_TWO, REBUILT),
        ("no array | Personalities :", NOT_APPLICABLE),
        ("sick: a RAID 0 lost a disk | md.c: broken", MONITOR, "md0 : broken raid0 nvme2n1[1] nvme1n1[0]"),
        ("sick: a disk failed | md(4)", MONITOR, "md0 : active raid1 sdb1[1](F) sda1[0]", ONE_OF_TWO),
        ("sick: a disk was missing at boot | mdadm", MONITOR, "md1 : active raid1 sda1[0]", ONE_OF_TWO),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
