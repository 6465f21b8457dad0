"""The state of a node behind the lines of its kernel log."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from pytest_gpucluster.kit.node import kernel_state
from pytest_gpucluster.kit.node.kernel_state import KernelState, MountState, read_state


def state(*lines: str) -> KernelState:
    return read_state(f"state\t{line}" for line in lines)


ROOT = MountState("/", "/dev/sda2", "ext4", read_only=False, wanted_rw=True)
DEVICE = replace(ROOT, number="259:2")


INFO = "mountinfo\t22 1 259:2 / /"


@pytest.mark.parametrize(
    ("lines", "mounts"),
    [
        ((f"{INFO} rw,relatime shared:1 - ext4 /dev/sda2 rw",), (DEVICE,)),
        ((f"{INFO} rw,relatime - ext4 /dev/sda2 ro",), (replace(DEVICE, read_only=True),)),
        ((f"{INFO} ro,relatime - ext4 /dev/sda2 rw",), (replace(DEVICE, read_only=True, wanted_rw=False),)),
        ((f"{INFO} - ext4 /dev/sda2 rw",), ()),  # a line that was cut
        ((f"{INFO} rw shared:1 - ext4 /dev/sda2",), ()),
        (("mounts\t/dev/sda2 / ext4 ro", "fstab\t/dev/sda2 / ext4 rw"), (replace(ROOT, read_only=True),)),
        (("mounts\t/dev/sda2 / ext4 rw,ro-x 0 0",), (replace(ROOT, wanted_rw=False),)),
        (("mounts\t/dev/sda2 / ext4", "fstab\t/dev/sda2 / ext4"), ()),
    ],
)
def test_who_made_a_mount_read_only(lines: tuple[str, ...], mounts: tuple[MountState, ...]) -> None:
    assert state(*lines).mounts == mounts


def test_the_processes_that_wait() -> None:
    found = state("task\ttasks 2", "task\t31415 dd voluntary_ctxt_switches: 7", "task\t4711 sh x")
    assert found.waiting == ("31415 dd", "4711 sh")
    assert state("task\ttasks 2").waiting == ()
    assert state("task\ttasks 0").waiting is state().waiting is None


KERNEL = (
    "proc sysfs tmpfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs pstore bpf hugetlbfs configfs "
    "efivarfs overlay rpc_pipefs nsfs ramfs binfmt_misc selinuxfs fusectl squashfs autofs iso9660 fuse.lxcfs "
    "fuse.gvfsd-fuse fuse.portal"
)
OTHERS = "ext4 xfs btrfs zfs nfs nfs4 lustre ceph cifs fuse.sshfs fuse gpfs beegfs wekafs 9p virtiofs"


@pytest.mark.parametrize(("kinds", "own"), [(KERNEL, True), (OTHERS, False)])
def test_which_file_systems_have_neither_a_device_nor_a_server(kinds: str, *, own: bool) -> None:
    assert {kind for kind in kinds.split() if bool(re.fullmatch(kernel_state._OWN, kind)) is not own} == set()


def test_file_systems_of_the_kernel_alone_are_not_read() -> None:
    script = f"f=$(printf 'need\\tmounts\\n'); {kernel_state.STATE_SH}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    found = read_state(done.stdout.splitlines())
    kinds = {line.partition(" - ")[2].split()[0] for line in found.lines.get("mountinfo", ())}
    kinds |= {line.split()[2] for line in found.lines.get("mounts", ())}
    assert not kinds & {*KERNEL.split()}
    assert not [job for job in found.jobs if job[1].startswith(("/proc", "/sys"))]
