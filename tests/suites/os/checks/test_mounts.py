from __future__ import annotations

from dataclasses import replace
from typing import Any

from counter_examples import CONFIGURE, DRAIN, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING
from judged import judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import GIB, GROUP, NONE, ROOT, peers

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.node.os_config import MountConfig
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import mounts as checks
from pytest_gpucluster.suites.os.checks.mounts import ScratchMount, ScratchMounts
from pytest_gpucluster.suites.os.facts import Mount, read_mounts
from pytest_gpucluster.suites.os.storage_facts import Disk

DISK, NOEXEC, HALF = ScratchMount(), ScratchMount(noexec=True), "half of the memory"
DATA = Disk(9 * GIB, GIB, source="nas:/data")


def mounted(text: str) -> dict[str, Mount]:
    """Return /proc/mounts of a node with an ext4 root and these lines."""
    return read_mounts(("" if " / " in text else "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n") + text)


def stated(line: str, disk: Disk | None = None, **wanted: Any) -> Verdict:
    """Judge a stated mount on /data."""
    wanted_mount = MountConfig(path="/data/", **wanted)
    return checks.mounts(mounted(line), [wanted_mount], {"/data": disk} if disk else {})


def writable(line: str, on_others: bool | None = None, path: str = "/") -> Verdict:
    usual = {} if on_others is None else {path: peers(on_others, on_others)}
    return checks.root_writable(mounted(line), usual)


def alone(line: str) -> Verdict:
    return checks.root_writable(mounted(line), {"/srv": NONE})


def written(problem: str, mount: Mount = ROOT) -> Verdict:
    """Judge why no file could be written in /tmp."""
    return checks.root_writable({"/": mount}, {}, {"/tmp": problem, "/dev/shm": ""})


def read_only(*fleet: str, fstype: str = "ext4") -> Verdict:
    """Judge /var of the first node of a fleet: 'ro' or 'rw' of each."""
    facts = {
        f"n{n}": {"/": ROOT, "/var": Mount("/dev/sda3", "/var", fstype, (way, "relatime"))}
        for n, way in enumerate(fleet, 1)
    }
    most = {path: each.of(GROUP) for path, each in checks.writable_of_all(facts).items()}
    return checks.root_writable(facts["n1"], most)


def scratch(mine: str, usual: str, memory: int = 1) -> Verdict:
    """Judge the size of /dev/shm; /tmp is on a disk."""
    most = peers(ScratchMount(size=mine), ScratchMount(size=usual))
    return checks.scratch(ScratchMounts(DISK, ScratchMount(size=mine)), peers(DISK, DISK), most, memory)


def noexec(mine: ScratchMount, usual: Any) -> Verdict:
    tmp = checks.scratch(ScratchMounts(mine, DISK), usual, peers(DISK, DISK), 1)
    shm = checks.scratch(ScratchMounts(DISK, mine), peers(DISK, DISK), usual, 1)
    assert (judged(tmp)[0], "/tmp" in judged(tmp)[1]) == (judged(shm)[0], "/dev/shm" in judged(shm)[1])
    return tmp


NFS = "nas:/data /data nfs4 rw,relatime,vers=4.2,hard 0 0\n"
NFS3 = "nas:/data/ /data nfs rw 0 0\n"
AUTOFS = "systemd-1 /data autofs rw,relatime,fd=58,pgrp=1,timeout=600,minproto=5,maxproto=5,direct 0 0\n"
SQUASHFS = "/dev/loop0 / squashfs ro,relatime 0 0\ntmpfs /tmp tmpfs rw,size=1048576k 0 0\n"
COMPOSEFS = "composefs / overlay ro,relatime,lowerdir+=/run/ostree/.private/cfsroot-lower 0 0\n"
REMOUNTED = "/dev/sdb1 /srv ext4 ro,relatime,errors=remount-ro 0 0\n"
EMERGENCY = "/dev/sda2 / ext4 rw,relatime,emergency_ro 0 0\n"
FAILED = "mktemp: failed to create file via template '/tmp/x': "
ROFS, HALTED = f"{FAILED}Read-only file system", replace(ROOT, options=("ro", "errors=remount-ro"))
NO_DEVICE = Disk(problem="df: /data: No such device")
SERVER: dict[str, Any] = {"source": "nas:/data"}


def root(fstype: str, *options: str) -> str:
    return f"/dev/sda2 / {fstype} {','.join(options or ('ro',))} 0 0\n"


MACHINES: Machines = {
    ("os.mounts", stated): [
        ("an idle systemd automount | systemd.automount(5)", PASSED, lambda: stated(AUTOFS, DATA, **SERVER)),
        ("NFS over an automount | /proc/mounts", PASSED, lambda: stated(AUTOFS + NFS, **SERVER)),
        ("nfs stated, mounted as nfs4 | nfs(5)", PASSED, lambda: stated(NFS, fstype="nfs", options=("rw",))),
        ("a slash at the end | fstab", PASSED, lambda: stated(NFS3, **SERVER)),
        ("a slash is stated | fstab", PASSED, lambda: stated(AUTOFS, DATA, source="nas:/data/")),
        ("idle: nobody asked df about it | autofs(5)", NOT_CHECKED, lambda: stated(AUTOFS, **SERVER)),
        ("none stated | cluster file", NOT_APPLICABLE, lambda: checks.mounts({"/": ROOT}, [])),
        ("sick: not mounted | server down at boot", CONFIGURE, ""),
        ("sick: nfs4 is stated | nfs(5)", CONFIGURE, lambda: stated(NFS3, fstype="nfs4")),
        ("sick: another server | wrong map", CONFIGURE, lambda: stated(NFS, source="old:/data")),
        ("sick: an option lacks | fstab", CONFIGURE, lambda: stated(NFS, options=("rw", "noatime"))),
        ("sick: an automount mounts nothing | server gone", CONFIGURE, lambda: stated(AUTOFS, NO_DEVICE)),
        ("sick: an automount of another server | map", CONFIGURE, lambda: stated(AUTOFS, DATA, source="b:/")),
    ],
    ("os.root_writable", writable): [
        ("a squashfs image, the only node | Warewulf, live image", NOT_CHECKED, SQUASHFS),
        ("ostree with composefs as all nodes | RHEL image mode", WARNING, COMPOSEFS, False),
        ("root on tmpfs | Warewulf diskless", PASSED, "none / tmpfs rw,size=50% 0 0\n"),
        ("a data disk read-only by an operator | mount -o remount,ro", CONFIGURE, REMOUNTED, True, "/srv"),
        ("root so on all nodes | errors=", CONFIGURE, REMOUNTED.replace("/srv", "/"), False),
        ("btrfs so on all nodes | image", WARNING, root("btrfs"), False),
        ("root of an image, others rw | overlay", CONFIGURE, root("nfs"), True),
        *((f"{it}, the only node | mount(8)", CONFIGURE, root(it)) for it in ["ext2", "ext3", "ext4", "xfs", "f2fs"]),
        ("/dev/shm is read-only | mount(8)", CONFIGURE, "tmpfs /dev/shm tmpfs ro,nosuid 0 0\n"),
        ("a disk, in halves | fstab", CONFIGURE, lambda: read_only("ro", "rw")),
        ("a disk, in halves, and it lacks nothing | fstab", PASSED, lambda: read_only("rw", "ro")),
        ("a disk so on most nodes | fstab", PASSED, lambda: read_only("ro", "ro", "rw")),
        ("a disk, the only node | fstab", PASSED, lambda: read_only("ro", fstype="xfs")),
        ("an image, others rw | fstab", PASSED, lambda: read_only("ro", "rw", "rw", fstype="squashfs")),
        ("/tmp is full | ENOSPC", PASSED, lambda: written("head: write error: No space left on device")),
        ("a quota | EDQUOT", PASSED, lambda: written("Disk quota exceeded")),
        ("no mktemp | busybox", NOT_CHECKED, lambda: written("sh: 1: mktemp: not found")),
        ("/tmp may not be written to | EACCES", CONFIGURE, lambda: written(f"{FAILED}Permission denied")),
        ("/tmp does not answer | NFS", CONFIGURE, lambda: written("timed out after 30 s")),
        ("sick: a disk, others rw | fstab", CONFIGURE, lambda: read_only("ro", "rw", "rw")),
        ("sick: remounted, the only node | errors=", CONFIGURE, lambda: alone(REMOUNTED)),
        ("sick: ext4 went read-only after an error | emergency_ro", DRAIN, EMERGENCY),
        ("sick: xfs was shut down | shutdown", DRAIN, root("xfs", "rw", "shutdown"), False),
        ("sick: root remounted read-only | errors=", DRAIN, REMOUNTED.replace("/srv", "/"), True),
        ("sick: root was remounted, and /tmp is on it | errors=", DRAIN, lambda: written(ROFS, HALTED)),
        ("sick: /tmp gives I/O errors | EIO", DRAIN, lambda: written(f"{FAILED}Input/output error")),
        ("sick: /tmp is damaged | EUCLEAN", DRAIN, lambda: written("mktemp: Structure needs cleaning")),
    ],
    ("os.scratch", scratch): [
        ("larger | tmpfs size=", PASSED, "110k", "100k"),
        ("it differs by some pages | half of the memory", PASSED, "90k", "100k"),
        ("here on a disk | fstab", PASSED, "", "100k"),
        ("on disks elsewhere | fstab", PASSED, "64k", ""),
        ("half of the memory, as large | tmpfs(5)", PASSED, HALF, "2048k", 4 << 20),
        ("noexec, others exec | CIS benchmark", WARNING, lambda: noexec(NOEXEC, peers(DISK, DISK))),
        ("noexec everywhere | CIS benchmark", PASSED, lambda: noexec(NOEXEC, peers(NOEXEC, NOEXEC))),
        ("one of two | CIS", PASSED, lambda: noexec(NOEXEC, norm({"n1": DISK, "n2": NOEXEC}))),
        ("the only node | one node", NOT_APPLICABLE, lambda: noexec(DISK, NONE)),
        ("sick: 64 MiB among 500 GiB | tmpfs size=", CONFIGURE, "65536k", "524288000k"),
        ("sick: more than a tenth less | tmpfs size=", CONFIGURE, "89k", "100k"),
        ("sick: half of the memory is less | tmpfs(5)", CONFIGURE, HALF, "2048k", 2 << 20),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_scratch_space_of_all_nodes_is_rounded_to_what_most_have() -> None:
    """The kernel writes a share of the memory in KiB: it differs by pages on nodes alike."""
    fleet = {"n1": ("1000k", "91k"), "n2": ("999k", "100k"), "n3": ("500k", "x")}
    lines = "t /tmp tmpfs rw,size={} 0 0\nt /dev/shm tmpfs rw,noexec,size={} 0 0\n"
    mounts = {node: mounted(lines.format(*sizes)) for node, sizes in fleet.items()}
    rooms = ScratchMounts.of_all({**mounts, "n4": {"/": ROOT}}).facts
    sizes = [*[("999k", "100k", True)] * 2, ("500k", HALF, True), ("", "", False)]
    assert [(it.tmp.size, it.shm.size, it.shm.noexec) for it in rooms.values()] == sizes
