"""Mounted file systems and their options."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.majority import Norm, differs, near
from pytest_gpucluster.core.units import format_size, parse_size
from pytest_gpucluster.kit.node.file_systems import READ_ONLY
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suites.os.storage_facts import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.node.os_config import MountConfig
    from pytest_gpucluster.suites.os.facts import Mount
    from pytest_gpucluster.suites.os.storage_facts import Disk

ALWAYS = ("/", *SCRATCH)
HALF = "half of the memory"
SMALLER = 0.9  # times the usual size: a share of the memory differs by some pages between nodes


@check(
    "os.mounts",
    show="findmnt PART; df -h PART",
    cause="the file server was not reachable at boot, the automounter is off, or fstab differs",
    hint="findmnt; mount -a; systemctl --failed; showmount -e of the server",
    action=Action.CONFIGURE,
    setting="os.mounts",
)
def mounts(
    mounts: Mapping[str, Mount],
    stated_mounts: Sequence[MountConfig],
    disks: Mapping[str, Disk] = MappingProxyType({}),
) -> Judgement:
    """Every file system of the cluster file is mounted, with type, source and options as stated.

    disks: results of df, whose access mounts an idle automount; of that, only the source is known.
    """
    if not stated_mounts:
        raise NotApplicable("the cluster file states no os.mounts")
    for wanted in stated_mounts:
        mount = mounts.get(without_slash(wanted.path))
        if mount is None:
            yield Finding(wanted.path, "not mounted", "mounted")
            continue
        if mount.fstype == "autofs":
            yield from _automount(wanted, disks.get(without_slash(wanted.path)))
            continue
        nfs = "nfs" if mount.fstype == "nfs4" else None  # of a cluster file, it includes nfs4
        if wanted.fstype not in (None, mount.fstype, nfs):
            yield Finding(wanted.path, f"type {mount.fstype}", f"type {wanted.fstype}")
        if wanted.source is not None and mount.source.rstrip("/") != wanted.source.rstrip("/"):
            yield Finding(wanted.path, f"source {mount.source}", f"source {wanted.source}")
        missing = [option for option in wanted.options if option not in mount.options]
        if missing:
            yield Finding(wanted.path, f"options {','.join(mount.options)}", f"with {','.join(missing)}")


def _automount(wanted: MountConfig, disk: Disk | None) -> Iterator[Finding | NotAvailable]:
    if disk is None:
        yield NotAvailable(f"{wanted.path} is an idle automount: list the folder, and repeat the check")
    elif disk.problem:
        yield Finding(wanted.path, f"an automount that mounts nothing: {disk.problem}", "mounted")
    elif wanted.source and disk.source.rstrip("/") != wanted.source.rstrip("/"):
        yield Finding(wanted.path, f"source {disk.source}", f"source {wanted.source}")


def without_slash(path: str) -> str:
    """Return a path as /proc/mounts has it."""
    return path.rstrip("/") or "/"


@check(
    "os.root_writable",
    cause="the kernel remounted the file system read-only after an error of its disk",
    hint="dmesg | grep -iE 'ext4|xfs|I/O error'; smartctl -a of the disk; fsck, or replace the disk; ls -ld /tmp /dev/shm",
    action=Action.CONFIGURE,
    never_healthy="the kernel itself made the file system read-only, or a write to it failed with an I/O error; a mount that may be "
    "read-only on purpose takes no node out of service",
)
def root_writable(
    mounts: Mapping[str, Mount],
    usual_writable: Mapping[str, Norm[Any]] = MappingProxyType({}),
    writes: Mapping[str, str] = MappingProxyType({}),
) -> Judgement:
    """The root file system, /tmp, /dev/shm and every file system that most nodes can write to are writable.

    writes: {path of SCRATCH: why no file could be written there, or ''}.
    """
    read_only = {path: mount for path, mount in mounts.items() if READ_ONLY.intersection(mount.options)}
    for path in dict.fromkeys((*ALWAYS, *usual_writable)):
        if path in read_only:
            yield from _read_only(read_only[path], usual_writable.get(path, Norm()))
    for path, problem in writes.items():
        if path in read_only:
            continue
        if "not found" in problem:
            yield NotAvailable(f"{path}: {problem}")
        elif problem and not re.search(NO_SPACE, problem):
            remounted = "/" in read_only and REMOUNTS in mounts["/"].options and "Read-only" in problem
            broken = remounted or re.search(_BROKEN, problem)
            yield Finding(path, problem, "a file can be written", Action.DRAIN if broken else None)


REMOUNTS = "errors=remount-ro"  # an image with it has a /tmp that can be written to
_BROKEN = "Input/output error|Structure needs cleaning"  # EIO and EUCLEAN, as libc prints them
NO_SPACE = "No space left|quota exceeded"  # ENOSPC and EDQUOT, as libc prints them; os.free_space judges them
# on disks of the node; the kernel makes them read-only after an error
_ON_DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")


def is_image(mounts: Mapping[str, Mount], path: str) -> bool:
    """Return whether the file system of /, /tmp or /dev/shm is read-only: an image has no free space or inodes."""
    return "ro" in (mounts.get(path) or mounts["/"]).options


def _read_only(mount: Mount, peers: Norm[Any]) -> Iterator[Finding | Advisory | NotAvailable]:
    """Judge a read-only file system; if it is so on purpose, as an image, most nodes have it read-only."""
    mounted = f"mounted {','.join(mount.options)}"
    remounted = REMOUNTS in mount.options
    if mount.path in SCRATCH or "ro" not in mount.options or remounted:
        root = mount.path == "/" and not peers.absent and peers.value is True  # others may be so on purpose
        by_kernel = "ro" not in mount.options or (remounted and root)
        yield Finding(mount.path, mounted, "rw", Action.DRAIN if by_kernel else None)
    elif not peers.absent and peers.value is not False:
        yield from peers.judge(
            mount.path,
            False,
            worse=differs,
            measured=mounted,
            shown=lambda writable: "rw" if writable else "ro",
        )
    elif mount.path != "/":
        return
    elif not peers.absent:
        yield Advisory("/", f"{mounted}, {peers.most}", "rw, or read-only on purpose")
    elif mount.fstype in _ON_DISKS:
        yield Finding("/", mounted, "rw")
    else:
        yield NotAvailable(f"/ is a read-only {mount.fstype}, which may be on purpose: {peers.absent}")


def writable_of_all(fleet: Mapping[str, Mapping[str, Mount]]) -> dict[str, Peers[bool]]:
    """Return {path: whether it is writable on each node that has it} of / and of file systems on disks."""
    paths = {path for found in fleet.values() for path, mount in found.items() if mount.fstype in _ON_DISKS}
    writable = {
        node: {path: READ_ONLY.isdisjoint(mount.options) for path, mount in found.items()}
        for node, found in fleet.items()
    }
    return {
        path: Peers({node: found[path] for node, found in writable.items() if path in found})
        for path in sorted({"/", *paths})
    }


@dataclass(frozen=True)
class ScratchMount:
    """Limits of /tmp or /dev/shm. size: like 65536k, HALF by default; '' on a disk."""

    noexec: bool = False
    size: str = ""


@dataclass(frozen=True)
class ScratchMounts:
    """Limits of both."""

    tmp: ScratchMount
    shm: ScratchMount

    @classmethod
    def of(cls, found: Mapping[str, Mount]) -> ScratchMounts:
        """Return those of one node from its mounts."""
        return cls(*(_scratch_mount(found.get(path) or found["/"]) for path in SCRATCH))

    @classmethod
    def of_all(cls, fleet: Mapping[str, Mapping[str, Mount]]) -> Peers[ScratchMounts]:
        """Return those of all nodes from their mounts."""
        found = {node: cls.of(mounts) for node, mounts in fleet.items()}
        for path in ("tmp", "shm"):
            sizes = {node: getattr(one, path).size for node, one in found.items()}
            stated = {node: float(size[:-1]) for node, size in sizes.items() if size[-1:] == "k"}
            # a share of the memory differs by some pages between nodes
            for node, size in near(stated, 1 - SMALLER).items():
                rounded = replace(getattr(found[node], path), size=f"{size:.0f}k")
                found[node] = replace(found[node], **{path: rounded})
        return Peers(found)


def _scratch_mount(mount: Mount) -> ScratchMount:
    limits = [option.removeprefix("size=") for option in mount.options if re.fullmatch(r"size=\d+k", option)]
    size = (limits or [HALF])[0] if mount.fstype == "tmpfs" else ""
    return ScratchMount("noexec" in mount.options, size)


def _bytes(size: str, memory: int) -> float:
    """Return the limit in bytes; the kernel prints it in KiB, and omits the default of half the memory."""
    return parse_size(f"{size}iB") if size != HALF else memory / 2


@check(
    "os.scratch",
    cause="the mount of scratch space has other options here than on other nodes",
    hint="findmnt /tmp /dev/shm; compare /etc/fstab and tmp.mount with a good node (NCCL needs /dev/shm)",
    action=Action.CONFIGURE,
)
def scratch(
    scratch: ScratchMounts, usual_tmp: Norm[Any], usual_shm: Norm[Any], total_memory: int
) -> Judgement:
    """Scratch space (/tmp, /dev/shm) is not much smaller than on most nodes; noexec is a warning."""
    limit = functools.partial(_bytes, memory=total_memory)
    for path, mount, peers in ((SCRATCH[0], scratch.tmp, usual_tmp), (SCRATCH[1], scratch.shm, usual_shm)):
        if peers.absent:
            yield NotApplicable(f"{path}: {peers.absent}")
            continue
        if mount.noexec and peers.clear and not peers.votes[0][0].noexec:
            yield Advisory(path, "mounted noexec", f"programs may run there, {peers.most}")
        yield from peers.judge(
            path,
            mount,
            shown=lambda one: f"limit of {format_size(limit(one.size))}" if one.size else "no limit",
            worse=lambda own, usual: (
                bool(own.size and usual.size) and limit(own.size) < SMALLER * limit(usual.size)
            ),
        )
