"""Mounted file systems and their options."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, NotApplicable, NotChecked, check
from pytest_gpucluster.core.majority import Norm, near
from pytest_gpucluster.core.units import format_size, parse_size
from pytest_gpucluster.suites.os.peers import Peers
from pytest_gpucluster.suites.os.storage_facts import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.os_config import MountConfig
    from pytest_gpucluster.suites.os.facts import Mount

ALWAYS = ("/", *SCRATCH)
HALF = "half of the memory"
SMALLER = 0.9  # of what most nodes have: memory, and with it a share of it, differs by some pages


@check(
    "os.mounts",
    cause="the file server was not reachable at boot, the automounter is off, or fstab differs",
    hint="findmnt; mount -a; systemctl --failed; showmount -e SERVER",
)
def mounts(mounts: Mapping[str, Mount], stated_mounts: Sequence[MountConfig]) -> Judgement:
    """Every file system of the cluster file is mounted: type, source and options as stated."""
    if not stated_mounts:
        yield NotApplicable("the cluster file states no os.mounts")
    for wanted in stated_mounts:
        mount = mounts.get(without_slash(wanted.path))
        if mount is None:
            yield Finding(wanted.path, "not mounted", "mounted")
            continue
        if wanted.fstype is not None and not _same_fstype(mount.fstype, wanted.fstype):
            yield Finding(wanted.path, f"type {mount.fstype}", f"type {wanted.fstype}")
        if wanted.source is not None and mount.source.rstrip("/") != wanted.source.rstrip("/"):
            yield Finding(wanted.path, f"source {mount.source}", f"source {wanted.source}")
        missing = [option for option in wanted.options if option not in mount.options]
        if missing:
            yield Finding(wanted.path, f"options {','.join(mount.options)}", f"with {','.join(missing)}")


def without_slash(path: str) -> str:
    """Return a path as /proc/mounts has it."""
    return path.rstrip("/") or "/"


def _same_fstype(found: str, stated: str) -> bool:
    """'nfs' in a cluster file also stands for what the kernel calls nfs4."""
    return found == stated or (stated == "nfs" and found == "nfs4")


@check(
    "os.root_writable",
    cause="the kernel remounted the file system read-only after an error of its disk",
    hint="dmesg | grep -iE 'ext4|xfs|I/O error'; smartctl -a DISK; fsck, or replace the disk; ls -ld /tmp /dev/shm",
)
def root_writable(
    mounts: Mapping[str, Mount],
    usual_writable: Mapping[str, Norm[Any]] = MappingProxyType({}),
    writes: Mapping[str, str] = MappingProxyType({}),
) -> Judgement:
    """The root file system, /tmp and /dev/shm can be written to, and so can what most nodes write to.

    `writes`: {path: why no file could be written there, or ''} of SCRATCH.
    """
    for path in dict.fromkeys((*ALWAYS, *usual_writable)):
        if path in mounts and _READ_ONLY.intersection(mounts[path].options):
            yield from _read_only(mounts[path], usual_writable.get(path, Norm()))
    for path, problem in writes.items():
        if path in mounts and _READ_ONLY.intersection(mounts[path].options):
            continue
        if "not found" in problem:
            yield NotChecked(f"{path}: {problem}")
        elif problem and not re.search(NO_ROOM, problem):
            # the folder's rights are the site's; all else is the file system's
            rights = re.search("Permission denied|No such file", problem)
            yield Finding(path, problem, "a file can be written", Action.MONITOR if rights else None)


# ext4 shows the last two after an error, and goes on to show rw (fs/ext4/super.c, _ext4_show_options, Linux 6.15)
_READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})
NO_ROOM = "No space left|quota exceeded"  # libc's words: ENOSPC, EDQUOT; os.free_space judges it
# On disks of the node: the kernel turns them read-only after an error, where they are mounted to stay
_ON_DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")


def _read_only(mount: Mount, peers: Norm[Any]) -> Iterator[Finding | Advisory | NotChecked]:
    """Judge a read-only file system. An image may be so on purpose: then most nodes have it so."""
    mounted = f"mounted {','.join(mount.options)}"
    if mount.path in SCRATCH or "ro" not in mount.options or "errors=remount-ro" in mount.options:
        yield Finding(mount.path, mounted, "rw")
    elif not peers.absent and peers.value is not False:
        yield from peers.judge(mount.path, False, measured=mounted, shown=_rw)  # a value
    elif mount.path != "/":
        return
    elif not peers.absent:
        yield Advisory("/", f"{mounted}, {peers.most}", "rw, or read-only on purpose")
    elif mount.fstype in _ON_DISKS:
        yield Finding("/", mounted, "rw")
    else:
        yield NotChecked(f"/ is a read-only {mount.fstype}, which may be on purpose: {peers.absent}")


def _rw(writable: bool) -> str:  # a value
    return "rw" if writable else "ro"


def writable_of_all(fleet: Mapping[str, Mapping[str, Mount]]) -> dict[str, Peers[bool]]:
    """Return {path: {node: whether it may be written to}} of / and what is on disks, of the nodes that have it."""
    paths = {path for found in fleet.values() for path, mount in found.items() if mount.fstype in _ON_DISKS}
    return {
        path: Peers(
            {
                node: _READ_ONLY.isdisjoint(found[path].options)
                for node, found in fleet.items()
                if path in found
            }
        )
        for path in sorted({"/", *paths})
    }


@dataclass(frozen=True)
class Room:
    """What /tmp or /dev/shm gives to programs. `size`: a limit like 65536k, HALF by default; '' on a disk."""

    noexec: bool = False
    size: str = ""


@dataclass(frozen=True)
class Scratch:
    """What both give to programs."""

    tmp: Room
    shm: Room

    @classmethod
    def of(cls, found: Mapping[str, Mount]) -> Scratch:
        """Take it from the mounts of a node."""
        return cls(*(_room(found.get(path) or found["/"]) for path in SCRATCH))

    @classmethod
    def of_all(cls, fleet: Mapping[str, Mapping[str, Mount]]) -> Peers[Scratch]:
        """Take it from the mounts of all nodes."""
        rooms = {node: cls.of(found) for node, found in fleet.items()}
        for path in ("tmp", "shm"):
            sizes = {node: getattr(one, path).size for node, one in rooms.items()}
            # a share of the memory: some pages more or less on each node
            alike = near(
                {node: float(size[:-1]) for node, size in sizes.items() if size[-1:] == "k"}, 1 - SMALLER
            )
            for node, size in alike.items():
                room = replace(getattr(rooms[node], path), size=f"{size:.0f}k")
                rooms[node] = replace(rooms[node], **{path: room})
        return Peers(rooms)


def _room(mount: Mount) -> Room:
    limits = [option.removeprefix("size=") for option in mount.options if re.fullmatch(r"size=\d+k", option)]
    size = (limits or [HALF])[0] if mount.fstype == "tmpfs" else ""
    return Room("noexec" in mount.options, size)


def _bytes(size: str, memory: int) -> float:
    """Return the limit in bytes; the kernel writes it in KiB, and leaves the default of half the memory out."""
    return parse_size(f"{size}iB") if size != HALF else memory / 2


@check(
    "os.scratch",
    cause="the mount of scratch space has other options here than on other nodes",
    hint="findmnt /tmp /dev/shm; compare /etc/fstab and tmp.mount with a good node (NCCL needs /dev/shm)",
)
def scratch(scratch: Scratch, usual_tmp: Norm[Any], usual_shm: Norm[Any], total_memory: int) -> Judgement:
    """Scratch space, /tmp and /dev/shm, is not much smaller than on most nodes; noexec is a warning."""
    for path, room, peers in ((SCRATCH[0], scratch.tmp, usual_tmp), (SCRATCH[1], scratch.shm, usual_shm)):
        if peers.absent:
            yield NotApplicable(f"{path}: {peers.absent}")
            continue
        if room.noexec and peers.clear and not peers.votes[0][0].noexec:
            yield Advisory(path, "mounted noexec", f"programs may run there, {peers.most}")
        yield from peers.judge(
            path,
            room,
            shown=lambda one: (
                f"limit of {format_size(_bytes(one.size, total_memory))}" if one.size else "no limit"
            ),
            worse=lambda scratch, theirs: (
                bool(scratch.size and theirs.size)
                and _bytes(scratch.size, total_memory) < SMALLER * _bytes(theirs.size, total_memory)
            ),
        )
