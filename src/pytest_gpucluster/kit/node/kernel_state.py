"""The present state of what the kernel log raised a question about: file systems, disks, GPUs, PCI functions, and waiting tasks.

The node reads it after the log, in the same command, and only the parts for which the log raised a question. What may
hang (df of a mount, a read of a disk, nvidia-smi) runs in the background and is left behind after a deadline. Formats:
proc_pid_mountinfo(5), Documentation/admin-guide/md.rst (/proc/mdstat), smartctl(8), `nvidia-smi -q`,
Documentation/ABI/testing/sysfs-bus-pci, stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.own_folder import OWN_SH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# answers of data/kernel-lines.yaml that the node reads
STATE_PARTS = ("mounts", "disks", "gpu", "pci", "tasks", "rate")
SECONDS = 8  # for df, reads of disks and smartctl
GPU_SECONDS = 25  # for nvidia-smi, which initializes all GPUs of a node without persistence mode
MOST = 48  # mounts, disks and PCI functions
# file systems without a device or a server: they answer as long as the kernel does
_OWN = "proc|sysfs|tmpfs|devtmpfs|devpts|cgroup2?|mqueue|debugfs|tracefs|securityfs|pstore|bpf|hugetlbfs|configfs|efivarfs"
_OWN += "|overlay|rpc_pipefs|nsfs|ramfs|binfmt_misc|selinuxfs|fusectl|squashfs|autofs|iso9660|fuse.(lxcfs|gvfsd-fuse|portal)"

STATE_SH = script(
    __package__,
    "kernel_state.sh",
    OWN_FOLDER=OWN_SH.strip(),
    OWN_TYPES=_OWN,
    MOST=MOST,
    SECONDS=SECONDS,
    GPU_SECONDS=GPU_SECONDS,
)


@dataclass(frozen=True)
class MountState:
    """A file system that is mounted now. `wanted_rw`: its own options, or fstab, require that it can be written to."""

    path: str
    source: str
    fstype: str
    read_only: bool
    wanted_rw: bool
    number: str = ""  # of its device: MAJOR:MINOR


@dataclass(frozen=True)
class JobResult:
    """How a command of the state ended: `rc` is None if it was left behind at its deadline."""

    rc: int | None
    text: str


# `nvidia-smi -q` of driver 570 and later, and of earlier ones
_RECOVERY = re.compile(
    r"(GPU Recovery Action|Reset Required|Drain and Reset Recommended)\s*: (?!None|No\b|N/A)\S.*"
)


@dataclass(frozen=True)
class KernelState:
    """What the node reported; a part is empty where the log raised no question about it or the node could not read it.

    jobs: {(command, argument): result}. lines: {part: its lines}.
    """

    jobs: Mapping[tuple[str, str], JobResult] = field(default_factory=dict)
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def mounts(self) -> tuple[MountState, ...]:
        """The file systems of disks and servers."""
        fstab = {
            words[1]: words[3].split(",")
            for line in self.lines.get("fstab", ())
            if len(words := line.split()) > 3
        }
        found: dict[str, MountState] = {}
        for line in self.lines.get("mounts", ()):
            if len(words := line.split()) < 4:
                continue
            source, path, fstype, options = words[:4]
            read_only = "ro" in options.split(",")
            wanted = "ro" not in fstab[path] if path in fstab else False
            found[path] = MountState(path, source, fstype, read_only, wanted)
        for line in self.lines.get("mountinfo", ()):
            head, _, tail = line.partition(" - ")
            own, of_device = head.split(), tail.split()
            if len(own) > 5 and len(of_device) > 2:
                mine, whole = "ro" in own[5].split(","), "ro" in of_device[2].split(",")
                # the kernel makes the file system read-only, an administrator the mount too
                found[own[4]] = MountState(
                    own[4], of_device[1], of_device[0], mine or whole, not mine, own[2]
                )
        return tuple(found.values())

    def of_device(self, name: str) -> Iterator[MountState]:
        """Yield the mounts of a disk, of its partitions, and of arrays and volumes that the log names."""
        parts = rf"{re.escape(name.removeprefix('/dev/'))}(p?\d+)?"
        numbers = {number for device, number in self.numbers.items() if re.fullmatch(parts, device)}
        return (
            mount
            for mount in self.mounts
            if mount.number in numbers or re.fullmatch(rf"/dev/(mapper/)?{parts}", mount.source)
        )

    @cached_property
    def numbers(self) -> dict[str, str]:
        """{block device: MAJOR:MINOR}; a mount may have another name of it, like /dev/root or a link."""
        rows = (
            line.removeprefix("/sys/class/block/").partition("/dev:") for line in self.lines.get("block", ())
        )
        return {name: number for name, _, number in rows if number}

    def of_server(self, name: str) -> tuple[MountState, ...]:
        """Return the mounts of a server, or of a Lustre target; all of servers if none has that name."""
        remote = tuple(mount for mount in self.mounts if not mount.source.startswith("/dev/"))
        short = re.sub(r"-(MDT|OST|MGS).*", "", name)
        mine = tuple(
            mount
            for mount in remote
            if short and re.search(rf"(^|[/\\@]){re.escape(short)}([:/@.]|$)", mount.source, re.IGNORECASE)
        )
        return mine or remote

    def reads(self, mount: MountState) -> JobResult | None:
        """Return how a read of a mount ended, None without an attempt."""
        return self.jobs.get(("df", mount.path))

    @property
    def degraded(self) -> dict[str, str]:
        """{array: its state} of those in /proc/mdstat that lack a disk."""
        found, name = {}, ""
        for line in self.lines.get("md", ()):
            if match := re.match(r"(md\S*) : ", line):
                name = match[1]
                if "(F)" in line:
                    found[name] = line
            elif name and (match := re.search(r"\[[U_]*_[U_]*\]", line)):
                found.setdefault(name, f"{name} {match[0]}")
        return found

    @property
    def pools(self) -> dict[str, str]:
        """{ZFS pool: ONLINE, SUSPENDED, ...} of the pools that are imported now."""
        return dict(words for line in self.lines.get("pool", ()) if len(words := line.split()) == 2)

    @property
    def gpus(self) -> dict[str, str] | None:
        """{PCI address like 0000:1b:00: the action that nvidia-smi recommends}; None if nvidia-smi did not run or end."""
        job = self.jobs.get(("gpu", ""))
        if job is None or job.rc is None or job.rc in (126, 127):
            return None
        found: dict[str, str] = {}
        bus = ""
        for line in job.text.splitlines():
            if match := re.match(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})", line):
                bus = match[1][-10:].lower()
                found[bus] = ""
            elif bus and (match := _RECOVERY.search(line)):
                found[bus] = match[0]
        return found

    def pci(self, address: str) -> dict[str, str]:
        """Return what sysfs has of a function: class, DRIVER, PCI_ID and `has`, its files; empty if it is absent."""
        found: dict[str, str] = {}
        for line in self.lines.get("pci", ()):
            at, what, *rest = (*line.split(), "", "")
            if at != address:
                continue
            if what == "has":
                found["has"] = " ".join(filter(None, rest))
            else:
                found["class"] = rest[0]
                found |= dict(word.split("=", 1) for word in rest[1:] if "=" in word)
        return found if any(found.values()) else {}

    def ports(self, address: str) -> tuple[str, ...]:
        """Return `NAME STATE` of the ports and interfaces of a PCI function."""
        own = (line for line in self.lines.get("port", ()) if f"PCI_SLOT_NAME={address} " in f"{line} ")
        return tuple(f"{line.split()[0]} {line.partition('state ')[2]}".strip() for line in own)

    @property
    def waiting(self) -> tuple[str, ...] | None:
        """`PID NAME` of the processes that wait in the kernel (D) and were in the same wait in two samples; None: unread."""
        lines = self.lines.get("task", ())
        if not any(line.startswith("tasks ") and not line.startswith("tasks 0") for line in lines):
            return None
        return tuple(" ".join(words[:2]) for words in self._waits() if words[2:3] != ["kernel"])

    @property
    def waiting_threads(self) -> tuple[str, ...]:
        """`PID NAME` of the threads of the kernel that were in the same wait (D) in two samples; some wait so for work."""
        return tuple(" ".join(words[:2]) for words in self._waits() if words[2:3] == ["kernel"])

    def _waits(self) -> Iterator[list[str]]:
        lines = self.lines.get("task", ())
        return (line.split() for line in lines if not line.startswith("tasks"))


def read_state(lines: Iterable[str]) -> KernelState:
    """Return the state from the lines `state<TAB>PART<TAB>...` of an answer."""
    jobs: dict[tuple[str, str], JobResult] = {}
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        if not line.startswith("state\t"):
            continue
        _, part, *rest = line.split("\t")
        if part in ("df", "dd", "smart", "gpu"):
            name, rc, text = (*rest, "", "", "")[:3]
            before = jobs.get((part, name))
            whole = "\n".join(filter(None, (before.text if before else "", text)))
            end = CommandEnd(int(rc) if re.fullmatch(r"[0-9]{1,3}", rc) else None)
            if not end.signal:  # a job that something else killed has no result
                jobs[part, name] = JobResult(end.status, whole)
        else:
            parts[part].append("\t".join(rest))
    return KernelState(jobs, {part: tuple(found) for part, found in parts.items()})
