"""The programs of sh and awk: how they are sent, and that the shells and awks of supported nodes accept each of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

import pytest_gpucluster
from pytest_gpucluster.core import scripts
from pytest_gpucluster.core.scripts import script

PACKAGE = Path(pytest_gpucluster.__file__).parent
FILES = [path for path in PACKAGE.rglob("*") if path.suffix in (".sh", ".awk") and "sandbox" not in path.parts]
SH, AWK = ([path for path in FILES if path.suffix == suffix] for suffix in (".sh", ".awk"))
SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}
AWKS = {"mawk": ("mawk",), "gawk": ("gawk",), "busybox": ("busybox", "awk"), "original-awk": ("original-awk",)}


def sent(path: Path) -> str:
    """Return a program as it is sent; each placeholder is 1, which is a word of sh, a pattern and a statement of awk."""
    package = ".".join(("pytest_gpucluster", *path.relative_to(PACKAGE).parent.parts))
    code = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    names = re.findall(r"@([A-Z_]+)@", "\n".join(code))
    return script(package, path.name, **dict.fromkeys(names, 1))


def of_path(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def installed(programs: dict[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    if not shutil.which(programs[name][0]):
        pytest.skip(f"{programs[name][0]} is not installed")
    return programs[name]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("path", SH, ids=of_path)
def test_every_shell_accepts_the_program(path: Path, shell: str) -> None:
    of_bash = "# shellcheck shell=bash" in path.read_text().splitlines()[:1]
    argv = installed(SHELLS, "bash" if of_bash else shell)
    done = subprocess.run([*argv, "-n", "-c", sent(path)], capture_output=True, text=True, check=False)
    # bash parses one line of -c at a time and others stop at the first error: all state it on stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize("path", AWK, ids=of_path)
def test_every_awk_accepts_the_program(path: Path, awk: str) -> None:
    done = subprocess.run(
        [*installed(AWKS, awk), sent(path)], input="a line\n", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


FOLDED = {
    "kit/gpu/nvlink_errors.awk": (
        """GPU 0: NVIDIA H200 (UUID: GPU-1)
\t Link 0: Replay Errors: 0
\t Link 0: Tx packets: 77
\t Link 0: FEC Errors - 3: 12
\t Link 0: Raw Errors Lane 0: 5
\t Link 0: Raw BER Lane 0: 15e-255
\t Link 0: CRC Errors: 10

GPU 1: NVIDIA H200 (UUID: GPU-2)
\t Link 0: Replay Errors: 7
""",
        """GPU 0: NVIDIA H200 (UUID: GPU-1)
\t Link 0: CRC Errors: 10
zero 5
GPU 1: NVIDIA H200 (UUID: GPU-2)
\t Link 0: Replay Errors: 7
zero 0
""",
    ),
    "suites/os/processes.awk": (
        "      1       0 Ss    100 root systemd\n     50       1 Z      12 alice sh <defunct>\n     51       1 R   1 alice ps\n",
        "     50       1 Z      12 alice sh <defunct>\nprocesses 3\n",
    ),
    "suites/os/memory_use.awk": (
        """Filesystem 1024-blocks Used Available Capacity Mounted on
none 528000000 9000000 519000000 2% /
tmpfs 528000000 200000000 328000000 38% /dev/shm
tmpfs 0 0 0 - /run/credentials/systemd-journald.service
shm 1000 ada /dev/shm/a b
  9000     1 root     systemd
""",
        """file 1000 ada /dev/shm/a b
process   9000     1 root     systemd
tmpfs 9000000
shm 1000
""",
    ),
    "suites/os/devices.awk": (
        """/proc/mdstat:md0 : active raid1 sdb1[1] sda1[0]
/sys/bus/pci/devices/0000:00:02.1/uevent:PCI_CLASS=60400
/sys/bus/pci/devices/0000:01:00.0/uevent:DRIVER=nvme
/sys/bus/pci/devices/0000:01:00.0/uevent:PCI_CLASS=10802
/sys/bus/pci/devices/0000:01:00.0/uevent:PCI_ID=C0A9:540A
/sys/bus/pci/devices/0000:01:00.0/current_link_width:4
/sys/bus/pci/devices/0000:01:00.0/current_link_speed:8.0 GT/s PCIe
/sys/bus/pci/devices/0000:01:00.0/max_link_width:4
/sys/bus/pci/devices/0000:01:00.0/../max_link_width:8
/sys/bus/pci/devices/0000:c1:00.0/uevent:PCI_CLASS=120000
/sys/bus/pci/devices/0000:c1:00.0/uevent:PCI_ID=1002:74A1
/sys/class/nvme/nvme0/model:CT1000P3PSSD8
""",
        """md md0 : active raid1 sdb1[1] sda1[0]
pci 0000:01:00.0 0108 c0a9:540a 4 8.0 nvme 4 8
sys/class/nvme/nvme0/model:CT1000P3PSSD8
pci 0000:c1:00.0 1200 1002:74a1 - - - - -
""",
    ),
    "kit/fabric/acs.awk": (
        """00:01.0 PCI bridge: Root
\tCapabilities: [40] Express (v2) Root Port (Slot+)
\t\tACSCtl: SrcValid+
01:00.0 PCI bridge: Switch
\tCapabilities: [68] Express (v2) Downstream Port (Slot+)
\t\tACSCtl: SrcValid-
02:00.0 3D controller
\tCapabilities: <access denied>
""",
        """acs 00:01.0 root \t\tACSCtl: SrcValid+
acs 01:00.0 downstream \t\tACSCtl: SrcValid-
end 3 1
""",
    ),
}


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize("name", FOLDED)
def test_every_awk_folds_alike(name: str, awk: str) -> None:
    given, expected = FOLDED[name]
    argv = [*installed(AWKS, awk), sent(PACKAGE / name)]
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (expected, "")


def in_package(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "x.sh").write_text(text)
    monkeypatch.setattr(resources, "files", {"programs": folder}.__getitem__)
    scripts._text.cache_clear()


def test_comments_and_blanks_are_not_sent_and_a_value_takes_the_place_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_package(monkeypatch, tmp_path, "#!/bin/sh\n# why\nif a; then\n\n  # why\n  b '#' # c\nfi\n")
    assert script("programs", "x.sh") == "#!/bin/sh\nif a; then\nb '#' # c\nfi"
    in_package(monkeypatch, tmp_path, '# @COMMENT@\na @A@ @B_C@ "$@" x@y @A@\n')
    assert script("programs", "x.sh", A=r"\1 @B_C@", B_C=7) == r'a \1 @B_C@ 7 "$@" x@y \1 @B_C@'
