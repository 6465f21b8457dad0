"""The reader of cards and drives on PCIe, and its command on files of real machines."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.device_facts import DEVICES, Drive, Link, PciFunction, read_devices

if TYPE_CHECKING:
    from pathlib import Path


def files(folder: Path, texts: dict[str, str]) -> Answer:
    """Return the answer of a machine whose /sys has these files."""
    for name, text in texts.items():
        path = folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = DEVICES.command.replace("d=/sys", f"d={folder}/sys").replace("n=/sys", f"n={folder}/sys")
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    return Answer("n1", done.returncode, done.stdout, done.stderr)


def uevent(pci_class: str, kind: str) -> str:
    return f"DRIVER=x\nPCI_CLASS={pci_class}\nPCI_ID={kind}\nMODALIAS=pci:v000015B3d00001021\n"


@pytest.fixture
def machine(tmp_path: Path) -> Answer:
    top = "bus/pci/devices"
    return files(
        tmp_path,
        {
            f"{top}/0000:00:02.1/uevent": uevent("60400", "1022:1634"),
            f"{top}/0000:01:00.0/uevent": uevent("10802", "C0A9:540A"),
            f"{top}/0000:01:00.0/current_link_width": "4\n",
            f"{top}/0000:01:00.0/current_link_speed": "8.0 GT/s PCIe\n",
            f"{top}/0000:18:00.0/uevent": uevent("20700", "15B3:1021"),
            f"{top}/0000:18:00.0/current_link_width": "16\n",
            f"{top}/0000:18:00.0/current_link_speed": "32 GT/s\n",
            f"{top}/0000:18:00.1/uevent": uevent("20700", "15B3:101E"),
            f"{top}/0000:18:00.1/physfn/uevent": "",
            f"{top}/0000:c1:00.0/uevent": uevent("68000", "10DE:22A3"),
            f"{top}/0000:c1:00.0/current_link_width": "255\n",
            f"{top}/0000:c1:00.0/current_link_speed": "Unknown\n",
            f"{top}/0000:c2:00.0/uevent": uevent("68000", "1000:C030"),
            f"{top}/0000:c3:00.0/uevent": uevent("120000", "8086:1020"),
            "class/nvme/nvme0/model": "Samsung SSD 970 PRO 512GB               \n",
            "class/nvme/nvme0/firmware_rev": "1B2QEXP7\n",
            "class/nvme/nvme0/state": "live\n",
            "class/nvme/nvme0/transport": "pcie\n",
            "class/nvme/nvme1/model": "Linux\n",
            "class/nvme/nvme1/transport": "tcp\n",
        },
    )


def test_one_line_is_kept_of_each_card_and_drive(machine: Answer) -> None:
    found = read_devices(machine)
    assert found.functions == (
        PciFunction("0000:01:00.0", "0108", "c0a9:540a", Link(4, 8.0)),
        PciFunction("0000:18:00.0", "0207", "15b3:1021", Link(16, 32.0)),
        PciFunction("0000:c1:00.0", "0680", "10de:22a3", None),
        PciFunction("0000:c3:00.0", "1200", "8086:1020", None),
    )
    assert found.drives == (Drive("nvme0", "Samsung SSD 970 PRO 512GB", "1B2QEXP7", "live"),)
    groups = ["NVMe drives", "network adapters", "NVSwitches", "accelerators"]
    assert list(found.cards.values()) == groups


def test_a_machine_without_devices_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable):
        read_devices(files(tmp_path, {}))


def test_an_answer_without_its_end_or_with_other_words_is_an_error() -> None:
    with pytest.raises(ProbeError):
        read_devices(Answer("n1", 0, b"pci 0000:01:00.0 0108 c0a9:540a 4 8.0\n"))
    with pytest.raises(ProbeError):
        read_devices(Answer("n1", 0, b"pci 0000:01:00.0 0604 c0a9:540a 4 8.0\nend\n"))
