"""The reader of cards and drives on PCIe, and its command on files of real machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from os_helpers import answer, run

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.os.device_facts import DEVICES, Devices, Drive, PcieLink, PciFunction, read_devices

if TYPE_CHECKING:
    from pathlib import Path

# {address: (class, vendor and device, width and speed of the link)}
FUNCTIONS = {
    "0000:00:02.1": ("60400", "1022:1634", ()),
    "0000:01:00.0": ("10802", "C0A9:540A", ("4", "8.0 GT/s PCIe")),
    "0000:18:00.0": ("20700", "15B3:1021", ("16", "32 GT/s")),
    "0000:18:00.1": ("20700", "15B3:101E", ()),
    "0000:c1:00.0": ("68000", "10DE:22A3", ("255", "Unknown")),
    "0000:c2:00.0": ("68000", "1000:C030", ()),
    "0000:c3:00.0": ("120000", "8086:1020", ()),
}
NAMES = "class/net/ib4/device/uevent", "class/infiniband/mlx5_4/device/uevent"
NVME = {
    "nvme0/model": "Samsung SSD 970 PRO 512GB               ",
    "nvme0/firmware_rev": "1B2QEXP7",
    "nvme0/state": "live",
    "nvme0/transport": "pcie",
    "nvme0/device/uevent": "DRIVER=nvme\nPCI_SLOT_NAME=0000:01:00.0",
    "nvme1/model": "Linux",
    "nvme1/transport": "tcp",
}


def on_machine(folder: Path, files: dict[str, str]) -> Devices:
    """Run the command on a machine whose /sys has these files."""
    for name, text in files.items():
        path = folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text and f"{text}\n")
    command = DEVICES.command.replace("d=/sys", f"d={folder}/sys").replace("n=/sys", f"n={folder}/sys")
    return read_devices(run(command))


def test_one_line_is_kept_of_each_card_and_drive(tmp_path: Path) -> None:
    files = {f"class/nvme/{name}": text for name, text in NVME.items()}
    files |= dict.fromkeys(NAMES, "PCI_SLOT_NAME=0000:18:00.0")
    files["bus/pci/devices/0000:18:00.1/physfn/uevent"] = ""  # a virtual function
    files["bus/pci/devices/max_link_width"] = "8"  # of the slot: the folder of a card is a link below its port's
    for address, (pci_class, kind, link) in FUNCTIONS.items():
        top = f"bus/pci/devices/{address}"
        files[f"{top}/max_link_width"] = "16"
        files[f"{top}/uevent"] = f"DRIVER=x\nPCI_CLASS={pci_class}\nPCI_ID={kind}\nMODALIAS=pci:v0000"
        for name, text in zip(("width", "speed"), link, strict=False):
            files[f"{top}/current_link_{name}"] = text
    found = on_machine(tmp_path, files)
    assert found.functions == (
        PciFunction("0000:01:00.0", "0108", "c0a9:540a", PcieLink(4, 8.0), "x", "nvme0", 8),
        PciFunction("0000:18:00.0", "0207", "15b3:1021", PcieLink(16, 32.0), "x", "mlx5_4", 8),
        PciFunction("0000:c1:00.0", "0680", "10de:22a3", None, "x", "", 8),
        PciFunction("0000:c3:00.0", "1200", "8086:1020", None, "x", "", 8),
    )
    assert found.drives == (Drive("nvme0", "Samsung SSD 970 PRO 512GB", "1B2QEXP7", "live"),)
    groups = ["NVMe drives", "network adapters", "NVSwitches", "accelerators"]
    assert list(found.cards.values()) == groups


def test_a_list_that_is_cut_is_not_understood() -> None:
    with pytest.raises(ProbeError):
        read_devices(answer("pci 0000:01:00.0 0108 c0a9:540a 4 8.0 - 4 8\n"))
    found = read_devices(answer("pci 0000:01:00.0 0108 c0a9:540a 4 8.0 - 4 8\nend\n"))
    assert found.functions[0].driver == ""
