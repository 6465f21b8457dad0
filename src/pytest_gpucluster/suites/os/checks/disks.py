"""File systems: shared folders, response, free space and inodes."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import Situation, floor, unless_unsettled
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.node.file_systems import GONE, NO_SPACE, error_code
from pytest_gpucluster.suites.os.checks.mounts import ALWAYS, is_image, without_slash
from pytest_gpucluster.suites.os.storage_facts import SCRATCH, Disk, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.kit.node.os_config import OsConfig
    from pytest_gpucluster.suites.os.facts import Mount

SHM = SCRATCH[1]
# bytes, or a share of the file system if that is less: a small one is no fault
LEAST_FREE, LEAST_SHARE = 2**30, 0.1
MIN_INODES_FREE = 0.05


@check(
    "os.shared_storage",
    cause="the folder is not mounted here, is mounted from elsewhere, or is served from a stale cache",
    hint="findmnt on this node and on the writer; mount -a; compare the servers and export options",
    action=Action.CONFIGURE,
    setting="os.shared_storage",
)
def shared_storage(shared_folders: Mapping[str, SharedFolder], node_name: str) -> Judgement:
    """The node reads the file that one node wrote to each shared folder."""
    if not shared_folders:
        raise NotApplicable("the cluster file states no os.shared_storage", NOT_STATED)
    for path, folder in shared_folders.items():
        if folder.write_problem:
            error = error_code(folder.write_problem)
            if node_name == folder.writer and error == "no_permission":
                # the same on every node: the cluster file must name another folder
                yield NotAvailable(f"{path}: the user of the run may not write there: {folder.write_problem}")
            elif node_name == folder.writer:
                measured = Quote(f"not writable: {folder.write_problem}")
                yield Finding(named("mount", path), measured, "writable", code=error)
            else:
                yield NotAvailable(f"{path}: {folder.writer} could not write there: {folder.write_problem}")
        elif folder.read_problem:
            measured, expected = Quote(folder.read_problem), f"the file that {folder.writer} wrote there"
            code = error_code(folder.read_problem)
            yield Finding(named("mount", path), measured, expected, code=code)


@dataclass(frozen=True)
class Responses:
    """{path: number of nodes} where df answers, and where it does not end or has lost the file system."""

    answering: Mapping[str, int] = field(default_factory=dict)
    stuck: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, fleet: Mapping[str, Mapping[str, Disk]]) -> Responses:
        """Count from the df of all nodes."""
        found = [(path, disk) for disks in fleet.values() for path, disk in disks.items()]
        return cls(
            Counter(path for path, disk in found if not disk.problem),
            Counter(path for path, disk in found if _stuck(disk)),
        )

    def only_one(self, path: str) -> bool:
        """Whether a single node gets no answer, and others do; otherwise the server may be at fault."""
        return self.answering.get(path, 0) > 0 and self.stuck.get(path, 0) <= 1


def _stuck(disk: Disk) -> bool:
    return disk.hung or disk.error in GONE


@check(
    "os.mount_response",
    cause="the file server is down or unreachable: every process that accesses the mount hangs",
    hint="ping the server; dmesg | grep 'not responding'; umount -f -l; reboot where processes hang in it",
    action=Action.CONFIGURE,
    never_healthy="two readings in a row, the second of 30 s, get no answer from a disk of the node, or from a file system over the network "
    "that answers other nodes while no other node hangs; or this node alone has lost its handle of the file system",
)
def mount_response(
    disks: Mapping[str, Disk],
    mounts: Mapping[str, Mount],
    stated_paths: Sequence[str] | None = None,
    responses: Responses = Responses(),
    uptime_if_known: float | None = None,
    later_disks: Mapping[str, Disk] = MappingProxyType({}),
) -> Judgement:
    """Df of every stated path, and of other networked mounts, ends within the deadline; a server that is only slow is a warning.

    later_disks: a second reading with a longer deadline, where df hung on a node. If the user has no permission on all nodes,
    no node is at fault.
    """
    starts = Situation(uptime_if_known).why_not_yet()
    for path, first in disks.items():
        disk = later_disks.get(path, first) if first.hung else first
        mount = mounts.get(without_slash(path))
        of = f" ({mount.fstype} from {mount.source})" if mount else ""
        part = named("mount", path)
        stated = stated_paths is None or path in stated_paths
        # a later mount or missing permission may hide another networked mount
        problem = disk.problem if stated else disk.error in GONE
        if stated and disk.error == "no_permission" and path not in responses.answering:
            yield NotAvailable(f"{disk.problem}: the user of the run has no permission there")
        elif disk.hung or (problem and mount):
            lasts = not disk.hung or path in later_disks
            at_fault = (disk.hung and mount and is_local(mount)) or responses.only_one(path)
            action = Action.REBOOT if _stuck(disk) and lasts and at_fault else None
            code = "no_answer" if disk.hung else disk.error
            found = Finding(part, Quote(f"{disk.problem}{of}"), "df answers", action, code=code)
            yield from unless_unsettled(starts, iter((found,)))
        elif first.hung:
            measured = Quote(f"{first.problem}, and an answer later{of}")
            yield Advisory(part, measured, "df answers", code="late_answer")


def is_local(mount: Mount) -> bool:
    """Return whether a file system is on a disk of the node or in its memory; what is unknown may be on a server."""
    return mount.fstype in ("tmpfs", "zfs") or bool(re.match(r"/dev/(?!nbd|rbd|drbd)", mount.source))


def disk_paths(config: OsConfig) -> tuple[str, ...]:
    """Return the paths for df: /, /tmp, /dev/shm and the mounts of the cluster file."""
    return tuple(dict.fromkeys((*ALWAYS, *(without_slash(mount.path) for mount in config.mounts))))


@check(
    "os.free_space",
    show="df -h PART",
    cause="job leftovers, container images or logs fill the file system",
    hint="df -h; du -xhd1 in the file system; enroot list; clean up, or extend the file system",
    action=Action.CONFIGURE,
    of_job=True,
)
def free_space(
    disks: Mapping[str, Disk],
    mounts: Mapping[str, Mount],
    os_config: OsConfig,
    writes: Mapping[str, str] = MappingProxyType({}),
) -> Judgement:
    """/, /tmp, /dev/shm and the stated mounts have as much free space as required.

    writes: {path of SCRATCH: why no file could be written there, or ''}.
    """
    bounds, low = _space_bounds(os_config), set()
    for path, disk in disks.items():
        if path not in bounds:
            continue  # only os.mount_response judges it
        if disk.error == "no_permission":
            yield NotAvailable(f"{disk.problem}: the user of the run has no permission there")
        if disk.problem or (path not in mounts and path not in ALWAYS):
            continue  # os.mounts and os.mount_response judge it
        if path in ALWAYS and is_image(mounts, path):
            continue  # os.root_writable judges it
        yield Metric("free_space", disk.free / 2**30, "GiB", path)
        stated = bounds[path]
        least = math.ceil(floor(LEAST_FREE, disk.size, LEAST_SHARE)) if stated is None else stated
        if disk.free < least:
            low.add(path)
            text = f"{format_size(disk.free)} free of {format_size(disk.size)}"
            bound = Quantity(least, "B", f"at least {format_size(least)} free")
            yield Finding(named("mount", path), Quantity(disk.free, "B", text), bound, code="too_full")
    for path, problem in writes.items():
        error = error_code(problem)
        if path not in low and error in NO_SPACE:  # a quota, or no inodes: df shows room
            yield Finding(named("mount", path), Quote(problem), "a file can be written", code=error)
    failed = [path for path in ALWAYS if disks[path].problem]
    if failed:
        raise NotAvailable(f"df has no result for {', '.join(failed)}: {disks[failed[0]].problem}")


def _space_bounds(config: OsConfig) -> dict[str, int | None]:
    """Return {path: bytes that must be free}; None: no person states the bound of this path of ALWAYS."""
    bounds: dict[str, int | None] = dict.fromkeys(ALWAYS)
    for mount in config.mounts:
        path = without_slash(mount.path)
        bounds[path] = mount.min_free or bounds.get(path, 0)
    return bounds


@check(
    "os.inodes",
    cause="very many small files: unpacked containers, caches, core dumps",
    hint="df -i; du --inodes -xd1 in the file system",
    action=Action.CONFIGURE,
    of_job=True,
)
def inodes(disks: Mapping[str, Disk]) -> Judgement:
    """At least 5% of the inodes of /, /tmp and /dev/shm are free, if the file system counts them."""
    counted = False
    for path in ALWAYS:
        disk = disks[path]
        image = path == "/" and not (disk.inodes_free or disk.free)
        if disk.problem or not disk.inodes or image:
            continue
        counted = True
        share = disk.inodes_free / disk.inodes
        yield Metric("free_inodes", 100 * share, "%", path)
        if share < MIN_INODES_FREE:
            found = Quantity(100 * share, "%", f"{disk.inodes_free} of {disk.inodes} inodes free")
            least = Quantity(100 * MIN_INODES_FREE, "%", "at least 5% free")
            yield Finding(named("mount", path), found, least, code="few_inodes")
    if not counted:
        raise NotApplicable("the file systems of /, /tmp and /dev/shm count no inodes")
