"""Cards and drives on PCIe, against the other nodes of the group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import Norm, less, older
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.suites.os.device_facts import GPUS

if TYPE_CHECKING:
    from pytest_gpucluster.suites.os.device_facts import Devices, Drive, PcieLink, UsualDevices
    from pytest_gpucluster.suites.os.drive_facts import DriveHealth

register("cards", "cards", named=True)
register("array", "array")

# of drivers/nvme/host/core.c: the controller answers no command any more
GONE = ("dead", "deleting", "deleting (no IO)")


@check(
    "os.pci_devices",
    cause="a card or drive does not answer on PCIe, was removed or failed, or the node is of another kind than its group",
    hint="lspci -nn here and on another node; dmesg | grep -iE 'pci|nvme'; power-cycle the node; reseat or replace the part; "
    "move a node of another kind to a group of its own",
    action=Action.CONFIGURE,
)
def pci_devices(devices: Devices, usual_devices: UsualDevices, is_virtual: bool = False) -> Judgement:
    """The node has as many drives, network adapters, GPUs and other cards on PCIe as most nodes; in a virtual machine fewer are a warning.

    Cards are counted, since a replaced one may be of another vendor. is_virtual: the host attaches and removes its devices.
    """
    if any(usual.absent for usual in usual_devices.counts.values()):
        raise NotApplicable("no other node to compare with")
    for group, usual in usual_devices.counts.items():
        count = devices.count(group)
        yield Metric("pci_devices", count, "cards", group)
        gone = [slot for slot, of in usual_devices.slots.items() if of == group and slot not in devices.cards]
        without = f" without {', '.join(gone)}" if gone else ""
        for found in usual.judge(named("cards", group), count, worse=less, measured=f"{count}{without}"):
            advisory = Advisory(found.part, found.measured, found.expected, found.code)
            yield advisory if is_virtual else found


@check(
    "os.pci_links",
    rules_out="seating of other devices (PCIe width)",
    cause="a card, drive or riser is not seated well or has dirty contacts, a lane failed, or the firmware splits the slot differently",
    hint="lspci -vv of the address (LnkCap, LnkSta) here and on another node; power-cycle the node; reseat; compare the firmware settings",
    action=Action.MONITOR,
    never_healthy="the device and its slot allow more lanes than the link has, and the same device in the same slot of most nodes uses "
    "more; a slot that the firmware has split, and a lower speed, take no node out of service",
    show="grep -H . /sys/bus/pci/devices/ADDRESS/current_link_width /sys/bus/pci/devices/ADDRESS/current_link_speed",
)
def pci_links(devices: Devices, usual_devices: UsualDevices) -> Judgement:
    """The PCIe link of an adapter or drive has the lanes and the speed that the same kind of device has in the same slot of most nodes.

    GPUs are judged by the gpu suite: they lower the speed of an idle link.
    """
    judged = False
    for function in devices.functions:
        if function.group in GPUS or function.link is None:
            continue
        usual = usual_devices.links.get((function.address, function.kind), Norm())
        judged = judged or not usual.absent
        measured = f"{function.link} ({function.kind}, {function.group})"
        lost = function.link.width < min(function.lanes, usual.value.width if usual.value else 0)
        for found in usual.judge(function.part, function.link, worse=_slower, measured=measured):
            yield replace(found, action=Action.DRAIN) if lost and isinstance(found, Finding) else found
    if not judged:
        raise NotApplicable("no other node has the same device in the same slot")


def _slower(mine: PcieLink, theirs: PcieLink) -> bool:
    return mine.width < theirs.width or mine.speed < theirs.speed


def disk(drive: Drive | DriveHealth) -> Part:
    """Return a drive as a part."""
    return Part("disk", name=drive.name, model=drive.model or "unknown model")


@check(
    "os.nvme",
    cause="the firmware of a drive was not updated on this node, or its controller stopped",
    hint="nvme list; nvme fw-log; update the firmware as on the other nodes; of a dead controller: dmesg | grep nvme, power-cycle, replace",
    action=Action.CONFIGURE,
)
def nvme(devices: Devices, usual_devices: UsualDevices) -> Judgement:
    """Every NVMe controller is live, and has firmware that is not older than most drives of its model in the group."""
    if not devices.drives:
        raise NotApplicable("the node has no NVMe drive on PCIe")
    for drive in devices.drives:
        part, state = disk(drive), Quote(f"state {drive.state}")
        if drive.state in GONE:
            yield Finding(part, state, "live", Action.MONITOR, code="controller_stopped")
        elif drive.state not in ("live", ""):
            yield Advisory(part, state, "live", code="controller_not_live")
        if drive.firmware:
            usual = usual_devices.firmware.get(drive.model, Norm())
            yield from usual.judge(part, drive.firmware, worse=older, harmless="newer than on other drives")


@check(
    "os.raid",
    cause="a disk of a software array failed or was missing at boot",
    hint="cat /proc/mdstat; mdadm --detail; smartctl -a of the disk; mdadm --manage with --add after its replacement",
    action=Action.MONITOR,
    show="cat /proc/mdstat",
)
def raid(devices: Devices) -> Judgement:
    """No md array lacks a member; one that is being rebuilt is a warning."""
    if not devices.arrays:
        raise NotApplicable("the node has no md array")
    for name, state in devices.degraded.items():
        deviation = Advisory if name in devices.rebuilding else Finding
        yield deviation(Part("array", name=name), Quote(state), "all members in use", code="lacks_member")
