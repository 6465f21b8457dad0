"""Mounted file systems and their options."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, check
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import Norm, differs, near
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.units import format_size, parse_size
from pytest_gpucluster.kit.node.file_systems import BROKEN, NO_SPACE, READ_ONLY, error_code
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
    mounts: Mapping[str, Mount], stated_mounts: Sequence[MountConfig], disks: Mapping[str, Disk] = MappingProxyType({})
) -> Judgement:
    """Every file system of the cluster file is mounted, with type, source and options as stated.

    disks: results of df, whose access mounts an idle automount; of that, only the source is known.
    """
    if not stated_mounts:
        raise NotApplicable("the cluster file states no os.mounts", NOT_STATED)
    for wanted in stated_mounts:
        part, mount = named("mount", wanted.path), mounts.get(without_slash(wanted.path))
        if mount is None:
            yield Finding(part, "not mounted", "mounted", code="not_mounted")
            continue
        if mount.fstype == "autofs":
            yield from _automount(wanted, disks.get(without_slash(wanted.path)))
            continue
        nfs = "nfs" if mount.fstype == "nfs4" else None  # of a cluster file, it includes nfs4
        if wanted.fstype not in (None, mount.fstype, nfs):
            yield Finding(part, f"type {mount.fstype}", f"type {wanted.fstype}", code="wrong_fstype")
        yield from _source(wanted, mount)
        if missing := [option for option in wanted.options if option not in mount.options]:
            measured, expected = f"options {','.join(mount.options)}", f"with {','.join(missing)}"
            yield Finding(part, measured, expected, code="missing_options")


def _automount(wanted: MountConfig, disk: Disk | None) -> Iterator[Finding | NotAvailable]:
    if disk is None:
        yield NotAvailable(f"{wanted.path} is an idle automount: list the folder, and repeat the check")
    elif disk.problem:
        measured = Quote(f"an automount that mounts nothing: {disk.problem}")
        yield Finding(named("mount", wanted.path), measured, "mounted", code="automount_failed")
    else:
        yield from _source(wanted, disk)


def _source(wanted: MountConfig, found: Mount | Disk) -> Iterator[Finding]:
    if wanted.source and found.source.rstrip("/") != wanted.source.rstrip("/"):
        part = named("mount", wanted.path)
        yield Finding(part, f"source {found.source}", f"source {wanted.source}", code="wrong_source")


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
        error = error_code(problem)
        if error == "not_installed":
            yield NotAvailable(f"{path}: {problem}")
        elif problem and error not in NO_SPACE:  # os.free_space judges these
            remounted = "/" in read_only and REMOUNTS in mounts["/"].options and error == "read_only"
            action = Action.DRAIN if remounted or error in BROKEN else None
            code = "read_only_by_kernel" if remounted else error
            yield Finding(named("mount", path), Quote(problem), "a file can be written", action, code=code)


REMOUNTS = "errors=remount-ro"  # an image with it has a /tmp that can be written to
# on disks of the node; the kernel makes them read-only after an error
_ON_DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")


def is_image(mounts: Mapping[str, Mount], path: str) -> bool:
    """Return whether the file system of /, /tmp or /dev/shm is read-only: an image has no free space or inodes."""
    return "ro" in (mounts.get(path) or mounts["/"]).options


def _read_only(mount: Mount, peers: Norm[Any]) -> Iterator[Finding | Advisory | NotAvailable]:
    """Judge a read-only file system; if it is so on purpose, as an image, most nodes have it read-only."""
    part, mounted = named("mount", mount.path), f"mounted {','.join(mount.options)}"
    remounted = REMOUNTS in mount.options
    if mount.path in SCRATCH or "ro" not in mount.options or remounted:
        root = mount.path == "/" and not peers.absent and peers.value is True  # others may be so on purpose
        by_kernel = "ro" not in mount.options or (remounted and root)
        code, action = ("read_only_by_kernel", Action.DRAIN) if by_kernel else ("read_only", None)
        yield Finding(part, mounted, "rw", action, code=code)
    elif not peers.absent and peers.value is not False:
        yield from peers.judge(
            part, False, worse=differs, measured=mounted, shown=lambda writable: "rw" if writable else "ro"
        )
    elif mount.path != "/":
        return
    elif not peers.absent:
        yield Advisory(part, f"{mounted}, {peers.most}", "rw, or read-only on purpose", code="read_only")
    elif mount.fstype in _ON_DISKS:
        yield Finding(part, mounted, "rw", code="read_only")
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
def scratch(scratch: ScratchMounts, usual_tmp: Norm[Any], usual_shm: Norm[Any], total_memory: int) -> Judgement:
    """Scratch space (/tmp, /dev/shm) is not much smaller than on most nodes; noexec is a warning."""
    limit = functools.partial(_bytes, memory=total_memory)
    for path, mount, peers in ((SCRATCH[0], scratch.tmp, usual_tmp), (SCRATCH[1], scratch.shm, usual_shm)):
        if peers.absent:
            yield NotApplicable(f"{path}: {peers.absent}")
            continue
        if mount.noexec and peers.clear and not peers.votes[0][0].noexec:
            expected = f"programs may run there, {peers.most}"
            yield Advisory(named("mount", path), "mounted noexec", expected, code="noexec")
        yield from peers.judge(
            named("mount", path),
            mount,
            shown=lambda one: f"limit of {format_size(limit(one.size))}" if one.size else "no limit",
            worse=lambda own, usual: bool(own.size and usual.size) and limit(own.size) < SMALLER * limit(usual.size),
        )
