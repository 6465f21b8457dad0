"""Checks of the operating system. What the cluster file does not state is held against the node's own group."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Metric,
    NotApplicable,
    NotChecked,
    Verdict,
    check,
    revised,
)
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.majority import Norm, decides, near
from pytest_gpucluster.core.majority import norm as fleet_norm
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.units import format_duration, format_size, parse_size
from pytest_gpucluster.kit.os_config import OsConfig
from pytest_gpucluster.suites.os import kernel_log as kernel_log_check

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster, Group, NodeProfile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.kit.os_config import MountConfig
    from pytest_gpucluster.suites.os.facts import Clock, Cpus, Load, MemoryInfo, Mount
    from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, SystemState, TimeSync
    from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

T = TypeVar("T")

MEMORY_TOLERANCE = 0.05  # firmware and kernel keep 1 to 3% of what is installed
PEER_MEMORY_TOLERANCE = 0.02  # one of 32 DIMMs is 3%; nodes alike differ by less than 1%
SCRATCH = ("/tmp", "/dev/shm")  # where every program writes
ALWAYS = ("/", *SCRATCH)
SHM = SCRATCH[1]
SHM_FREE = 0.1  # of /dev/shm, where that is less than os.min_free_root: it may be small as a whole
HALF = "half of the memory"
SMALLER = 0.9  # of what most nodes have: memory, and with it a share of it, differs by some pages
MIN_INODES_FREE = 0.05
MAX_CLOCK_OFFSET = 1.0  # seconds against the time source


@dataclass(frozen=True)
class Peers(Generic[T]):
    """The facts of all nodes that could tell; gives the norm of a group, worked out once."""

    facts: Mapping[str, T]
    _norms: dict[tuple[str, str, float], Norm[Any]] = field(default_factory=dict, compare=False)

    def of(self, group: Group, attribute: str = "", tolerance: float = 0.0) -> Norm[Any]:
        """Return the norm of one attribute of the facts or of the facts themselves, `tolerance` apart at most."""
        key = (group.nodes, attribute, tolerance)
        if key not in self._norms:
            values = {name: self.facts[name] for name in group.names if name in self.facts}
            picked: dict[str, Any] = {
                name: getattr(value, attribute) if attribute else value for name, value in values.items()
            }
            self._norms[key] = norm(near(picked, tolerance) if tolerance else picked)
        return self._norms[key]


def norm(values: Mapping[str, T]) -> Norm[T]:
    """Return what the nodes of a group have in common."""
    return fleet_norm(values.items(), "nodes of its group")


def _alike(part: str, value: object, peers: Norm[Any]) -> Judgement:
    if peers.absent:
        yield NotApplicable(peers.absent)
    yield from peers.judge(part, value)


def _stated_or_alike(part: str, value: object, stated: object | None, peers: Norm[Any]) -> Judgement:
    if stated is None:
        yield from _alike(part, value, peers)
    elif value != stated:
        yield Finding(part, str(value), str(stated))


def matches(value: str, stated: str) -> bool:
    """Compare with an exact text, or with a prefix that ends in *."""
    return value.startswith(stated[:-1]) if stated.endswith("*") else value == stated


@check(
    "os.hostname",
    cause="the node was installed or cloned under another name",
    hint="hostnamectl set-hostname NAME; correct NodeHostname in slurm.conf where the names differ on purpose",
)
def hostname(hostname: str, node_name: str) -> Judgement:
    """The short host name is Slurm's node name."""
    if hostname.partition(".")[0].lower() != node_name.partition(".")[0].lower():
        yield Finding("host name", hostname, node_name)


@check(
    "os.release",
    cause="the node was missed by, or is ahead of, an upgrade of the system image",
    hint="cat /etc/os-release; reinstall the node from the current image",
)
def release(release: str, stated_release: str | None, usual_release: Norm[Any]) -> Judgement:
    """Distribution and version, as stated or as on the other nodes."""
    yield from _stated_or_alike(
        "release", release, None if stated_release is None else stated_release.lower(), usual_release
    )


@check(
    "os.kernel",
    cause="the node has not been rebooted since a kernel update, or was updated alone",
    hint="uname -r; install the kernel of the image and reboot",
    action=Action.REBOOT,
)
def kernel(kernel: str, stated_kernel: str | None, usual_kernel: Norm[Any]) -> Judgement:
    """The running kernel, as stated (a prefix may end in *) or as on the other nodes."""
    if stated_kernel is None:
        yield from _alike("kernel", kernel, usual_kernel)
    elif not matches(kernel, stated_kernel):
        yield Finding("kernel", kernel, stated_kernel)


@check(
    "os.cmdline",
    cause="boot parameters were changed on this node only",
    hint="compare /proc/cmdline; mend the boot loader's configuration and reboot",
    action=Action.REBOOT,
)
def cmdline(cmdline: str, usual_cmdline: Norm[Any]) -> Judgement:
    """The kernel's command line, but for what belongs to one node (root=, UUIDs, ip=), is alike."""
    if not usual_cmdline.clear or cmdline == usual_cmdline.value:
        yield from _alike("kernel command line", cmdline, usual_cmdline)
        return
    mine, theirs = set(cmdline.split()), set(str(usual_cmdline.value).split())
    extra, missing = " ".join(sorted(mine - theirs)), " ".join(sorted(theirs - mine))
    measured = f"has {extra or 'nothing'} more and {missing or 'nothing'} less"
    yield Finding("kernel command line", measured, usual_cmdline.most)


@check(
    "os.architecture",
    cause="the node is of another kind than its group says",
    hint="lscpu; move the node to a group of its own in the cluster file",
)
def architecture(cpus: Cpus, usual_architecture: Norm[Any]) -> Judgement:
    """The machine architecture is alike."""
    yield from _alike("architecture", cpus.architecture, usual_architecture)


@check(
    "os.uptime",
    cause="the node rebooted lately (power, watchdog, panic), or misses the regular reboot",
    hint="last -x reboot; ipmitool sel list; journalctl -b -1 -p err",
    action=Action.MONITOR,
)
def uptime(uptime: float, min_uptime: float | None, max_uptime: float | None) -> Judgement:
    """Time since boot within the bounds of the cluster file."""
    yield Metric("uptime", uptime, "s", better=NEITHER)
    if min_uptime is None and max_uptime is None:
        yield NotApplicable("the cluster file states neither os.min_uptime nor os.max_uptime")
    if min_uptime is not None and uptime < min_uptime:
        yield Finding("uptime", format_duration(uptime), f"at least {format_duration(min_uptime)}")
    if max_uptime is not None and uptime > max_uptime:
        yield Finding("uptime", format_duration(uptime), f"at most {format_duration(max_uptime)}")


@dataclass(frozen=True)
class CommonTime:
    """The fleet's time against the controller's clock: between `least` and `greatest` seconds.

    `agreeing` of `nodes` clocks may show it (the controller's own, where it has a voice, is one more of both).
    """

    least: float
    greatest: float
    agreeing: int
    nodes: int

    @classmethod
    def of(cls, clocks: Mapping[str, Clock], max_skew: float) -> CommonTime:
        """Take the time that most clocks may show, as NTP selects its servers (Marzullo's algorithm).

        An answer that took long leaves its clock a wide window: it is no skew, and moves nobody else's. The
        controller's own clock has a voice where it is known: it decides between two nodes.
        """
        windows = [_offsets(clock) for clock in clocks.values()]
        if len(windows) > 1 and all(clock.sent is not None for clock in clocks.values()):
            windows.append((0.0, 0.0))
        least, greatest, agreeing = _shared(windows or [(0.0, 0.0)], max_skew / 2)
        return cls(least, greatest, agreeing, len(windows))


def _shared(windows: Sequence[tuple[float, float]], slack: float) -> tuple[float, float, int]:
    """Return from where to where most windows overlap, each wider by `slack` on both sides, and how many do.

    Two places that equally many share are both in what is returned: neither is the better one.
    """
    ends = sorted(
        (end, closing)
        for window in windows
        for closing, end in enumerate((window[0] - slack, window[1] + slack))
    )
    open_now = most = 0
    first = last = 0.0
    for end, closing in ends:
        if closing:
            last = end if open_now == most else last
            open_now -= 1
        else:
            open_now += 1
            if open_now > most:
                most, first = open_now, end
    least, greatest = first + slack, last - slack
    if least > greatest:  # no window of theirs has all of it: the middle is at most `slack` from each
        least = greatest = (least + greatest) / 2
    return least, greatest, most


def _offsets(clock: Clock) -> tuple[float, float]:
    """Return the least and the greatest offset that fit: the clock was read at some time between the two."""
    if clock.sent is None or clock.received is None:
        return clock.time, clock.time
    return clock.time - clock.received, clock.time - clock.sent


@check(
    "os.clock",
    cause="its time service is off or cannot reach its servers, or the clock was set by hand",
    hint="date; chronyc tracking; chronyc makestep; timedatectl set-ntp true (munge refuses a skew of minutes)",
)
def clock(clock: Clock, common_time: CommonTime, max_clock_skew: float) -> Judgement:
    """The clock agrees with most of the fleet, as far as the time of the answer tells."""
    if common_time.nodes < 2:  # a node can not differ from itself
        yield NotApplicable("no other node to compare the clock with")
        return
    least, greatest = _offsets(clock)
    skew = max(least - common_time.greatest, 0.0) + min(greatest - common_time.least, 0.0)
    yield Metric("clock_skew", skew, "s", better=NEITHER)  # has a sign
    if abs(skew) > max_clock_skew:
        way = "ahead of" if skew > 0 else "behind"
        measured = f"at least {abs(skew):.3f} s {way} the time that {common_time.agreeing} of {common_time.nodes} clocks share"
        action = None if decides(common_time.agreeing, common_time.nodes) else Action.MONITOR
        yield Finding("clock", measured, f"within {max_clock_skew:g} s", action)


@check(
    "os.memory",
    cause="a DIMM failed or was mapped out by the firmware, or the node is of another kind",
    hint="dmidecode -t memory; ipmitool sel list; reseat or replace the DIMM",
    action=Action.VENDOR,
)
def memory(memory: MemoryInfo, node_profile: NodeProfile, usual_memory: Norm[Any]) -> Judgement:
    """MemTotal within 5% of the profile, and within 2% of what most nodes of the group have."""
    yield Metric("memory_total", memory.total / 2**30, "GiB")
    total = memory.total
    if (
        node_profile.memory is not None
        and abs(total - node_profile.memory) > MEMORY_TOLERANCE * node_profile.memory
    ):
        yield Finding("memory", format_size(total), f"{format_size(node_profile.memory)} within 5%")
    else:
        if node_profile.memory is None and usual_memory.absent:
            yield NotApplicable("the profile states no memory, and there is no other node to compare with")
        yield from usual_memory.judge("memory", total, shown=format_size, worse=_other_memory)


def _other_memory(mine: int, theirs: int) -> bool:
    return abs(mine - theirs) > PEER_MEMORY_TOLERANCE * theirs


@check(
    "os.cpus",
    cause="CPUs were taken offline, hyper-threading differs, or a socket is missing",
    hint="lscpu; cat /sys/devices/system/cpu/offline; chcpu -e LIST; check SMT in the firmware",
)
def cpus(cpus: Cpus, stated_cpus: int | None, usual_cpus: Norm[Any]) -> Judgement:
    """Online CPUs as the profile states, or as on the other nodes; alone, none may be offline."""
    yield Metric("cpus_online", cpus.online, "CPUs")
    off = f" (offline: {cpus.offline})" if cpus.offline else ""
    measured = f"{cpus.online} online{off}"
    if stated_cpus is None and cpus.offline and not (usual_cpus.clear and not usual_cpus.absent):
        yield Finding("CPUs", measured, "no CPU offline")
    elif stated_cpus is None:
        yield from usual_cpus.judge("CPUs", cpus.online, measured=measured)
    elif cpus.online != stated_cpus:
        yield Finding("CPUs", measured, str(stated_cpus))


@check(
    "os.cpu_model",
    cause="the node has other processors than the rest of its group",
    hint="lscpu; move the node to a group of its own in the cluster file",
    action=Action.MONITOR,
)
def cpu_model(cpus: Cpus, usual_cpu_model: Norm[Any]) -> Judgement:
    """The processor model is alike."""
    yield from _alike("CPU model", cpus.model, usual_cpu_model)


@check(
    "os.numa",
    cause="the firmware's NUMA setting (NPS, SNC, node interleaving) differs, or a socket is missing",
    hint="numactl --hardware; compare the firmware settings",
)
def numa(cpus: Cpus, stated_numa: int | None, usual_numa: Norm[Any]) -> Judgement:
    """The number of NUMA nodes, as the profile states or as on the other nodes."""
    yield from _stated_or_alike("NUMA nodes", cpus.numa_nodes, stated_numa, usual_numa)


@check(
    "os.governor",
    cause="a CPU frequency governor that saves power slows down launches and collectives",
    hint="cpupower frequency-set -g performance; tuned-adm profile throughput-performance",
    action=Action.MONITOR,
)
def governor(
    governors: Mapping[str, int], stated_governor: str | None, usual_governors: Norm[Any]
) -> Judgement:
    """The frequency governor of every CPU, as stated or as on the other nodes."""
    measured = ", ".join(f"{name} on {count} CPUs" for name, count in sorted(governors.items()))
    if stated_governor is not None:
        if set(governors) != {stated_governor}:
            yield Finding("governor", measured or "no frequency scaling", f"{stated_governor} on all CPUs")
    elif not governors and not any(value for value, _ in usual_governors.votes):
        yield NotApplicable("the kernel offers no CPU frequency scaling here")
    else:
        yield from _alike("governor", dict(governors), usual_governors)


@check(
    "os.hugepages",
    cause="huge pages were reserved on some nodes only, or the memory was too fragmented to reserve them",
    hint="grep Huge /proc/meminfo; sysctl vm.nr_hugepages; reserve them at boot (hugepages=N)",
    action=Action.REBOOT,
)
def hugepages(memory: MemoryInfo, stated_hugepages: int | None, usual_hugepages: Norm[Any]) -> Judgement:
    """HugePages_Total, as stated or as on the other nodes."""
    yield from _stated_or_alike("HugePages_Total", memory.hugepages, stated_hugepages, usual_hugepages)


@check(
    "os.transparent_hugepages",
    cause="the setting was changed on this node only",
    hint="cat /sys/kernel/mm/transparent_hugepage/enabled; set it in the image or on the kernel command line",
    action=Action.MONITOR,
)
def transparent_hugepages(thp: str, usual_thp: Norm[Any]) -> Judgement:
    """The mode of transparent huge pages is alike."""
    yield from _alike("transparent huge pages", thp, usual_thp)


@check(
    "os.swap",
    cause="swap was switched on or off on this node only",
    hint="swapon --show; swapoff -a; look at /etc/fstab and systemctl list-units '*.swap'",
    action=Action.MONITOR,
)
def swap(memory: MemoryInfo, usual_swap: Norm[Any]) -> Judgement:
    """Whether and how much swap there is is alike."""
    yield Metric("swap_used", (memory.swap_total - memory.swap_free) / 2**20, "MiB")
    yield from _alike("swap", memory.swap_total, usual_swap)


@check(
    "os.security_modules",
    cause="SELinux or AppArmor was switched on or off on this node only",
    hint="cat /sys/kernel/security/lsm; getenforce; aa-status; set it on the kernel command line",
    action=Action.MONITOR,
)
def security_modules(lsm: str, usual_lsm: Norm[Any]) -> Judgement:
    """The active Linux security modules are alike."""
    yield from _alike("security modules", lsm, usual_lsm)


@check(
    "os.kernel_settings",
    cause="a sysctl was changed on this node only",
    hint="compare `sysctl -a` with a good node; put the value into /etc/sysctl.d of the image",
    action=Action.MONITOR,
)
def kernel_settings(settings: str, usual_settings: Norm[Any]) -> Judgement:
    """Common sysctls that the cluster file does not state are alike."""
    yield from _alike("sysctls", settings, usual_settings)


# name in limits.conf and ulimit: line of /proc/PID/limits, and the unit of a bare number, as ulimit(1) has it
LIMITS: dict[str, tuple[str, int]] = {
    "as": ("Max address space", 1024),
    "core": ("Max core file size", 1024),
    "cpu": ("Max cpu time", 1),
    "data": ("Max data size", 1024),
    "fsize": ("Max file size", 1024),
    "locks": ("Max file locks", 1),
    "memlock": ("Max locked memory", 1024),
    "msgqueue": ("Max msgqueue size", 1),
    "nofile": ("Max open files", 1),
    "nproc": ("Max processes", 1),
    "rss": ("Max resident set", 1024),
    "rtprio": ("Max realtime priority", 1),
    "sigpending": ("Max pending signals", 1),
    "stack": ("Max stack size", 1024),
}
# Others follow from a node's memory, or say little of what programs may do
COMPARED_LIMITS = ("memlock", "nofile", "stack", "as")


def refuse_limits(cluster: Cluster) -> None:
    """Raise ConfigError for a limit of os.limits that cannot be."""
    wanted_limits(cluster.section(OsConfig).limits)


def wanted_limits(stated: Mapping[str, str]) -> dict[str, float]:
    """Read os.limits: 'unlimited', a number in ulimit's unit (KiB for memory), or a size like 64G."""
    wanted: dict[str, float] = {}
    for name, text in stated.items():
        if name not in LIMITS:
            raise ConfigError(f"os.limits: no limit {name!r}; there are {', '.join(LIMITS)}")
        bare = text.strip().isdecimal()
        try:
            value = math.inf if text in ("unlimited", "infinity", "-1") else parse_size(text)
        except ValueError as error:
            raise ConfigError(f"os.limits: {name}: {error}, or unlimited") from error
        wanted[name] = value * LIMITS[name][1] if bare else value
    return wanted


@check(
    "os.limits",
    cause="Slurm passes on the limits of the submitting shell or of slurmd, not those of limits.conf",
    hint="LimitMEMLOCK=infinity in slurmd's unit; PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
)
def limits(
    soft_limits: Mapping[str, float],
    wanted_limits: Mapping[str, float],
    usual_limits: Mapping[str, Norm[Any]] = MappingProxyType({}),
) -> Judgement:
    """The soft limits of a step are at least what the cluster file states, or what most nodes have."""
    compared = {
        name: most for name, most in usual_limits.items() if name not in wanted_limits and not most.absent
    }
    if not wanted_limits and not compared:
        yield NotApplicable(
            "the cluster file states no os.limits, and no majority of the group to compare with"
        )
    for name, least in wanted_limits.items():
        line, unit = LIMITS[name]
        if _lower(soft_limits.get(line), least):
            yield Finding(name, _limit(soft_limits.get(line), unit), f"at least {_limit(least, unit)}")
    for name, most in compared.items():
        shown = functools.partial(_limit, unit=LIMITS[name][1])
        yield from most.judge(name, soft_limits.get(LIMITS[name][0]), shown=shown, worse=_lower)


def limits_of_group(fleet: Mapping[str, Mapping[str, float]]) -> dict[str, Peers[float | None]]:
    """Return {limit: that of all nodes} of those that do not follow from a node's memory."""
    return {
        name: Peers({node: soft.get(LIMITS[name][0]) for node, soft in fleet.items()})
        for name in COMPARED_LIMITS
    }


def _lower(mine: float | None, theirs: float | None) -> bool:
    return theirs is not None and (mine is None or mine < theirs)


def _limit(value: float | None, unit: int) -> str:
    if value is None:
        return "not listed by the kernel"
    if math.isinf(value):
        return "unlimited"
    return format_size(value) if unit == 1024 else f"{value:g}"  # KiB: a size


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
        mount = mounts.get(_path(wanted.path))
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


def _path(path: str) -> str:
    return path.rstrip("/") or "/"


def _same_fstype(found: str, stated: str) -> bool:
    """'nfs' in a cluster file also stands for what the kernel calls nfs4."""
    return found == stated or (stated == "nfs" and found == "nfs4")


def answering(fleet: Mapping[str, Mapping[str, Disk]]) -> frozenset[str]:
    """Return the paths of which df tells something on any node."""
    return frozenset(path for disks in fleet.values() for path, disk in disks.items() if not disk.problem)


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
        elif problem and not re.search(_FULL, problem):
            # the folder's rights are the site's; all else is the file system's
            rights = re.search("Permission denied|No such file", problem)
            yield Finding(path, problem, "a file can be written", Action.MONITOR if rights else None)


# ext4 shows the last two after an error, and goes on to show rw (fs/ext4/super.c, _ext4_show_options, Linux 6.15)
_READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})
_FULL = "No space left|quota exceeded"  # libc's words: ENOSPC, EDQUOT; os.free_space judges it
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


@check(
    "os.load",
    cause="something runs on a node that should be idle: a leftover of a job, a runaway daemon",
    hint="top; loginctl list-sessions; squeue -w NODE; end the leftovers",
    action=Action.MONITOR,
)
def load(load: Load, online_cpus: int, max_load: float) -> Judgement:
    """The 1-minute load per CPU of an idle node."""
    yield Metric("load_per_cpu", load.one / online_cpus, "")
    if load.one > max_load * online_cpus:
        yield Finding(
            "load", f"{load.one:g} over 1 minute on {online_cpus} CPUs", f"at most {max_load * online_cpus:g}"
        )


# Bits of /proc/sys/kernel/tainted that stand for a fault (Documentation/admin-guide/tainted-kernels.rst). NVIDIA's
# driver sets others: proprietary, out of tree, unsigned.
_TAINTS = {
    4: "M: the processor reported a machine check exception",
    5: "B: a page of memory was in a bad state",
    7: "D: the kernel has died before (oops or BUG)",
    14: "L: a soft lockup occurred",
}


@check(
    "os.taint",
    cause="since boot the kernel met a fault after which it is not to be trusted, also where its log is not to be read",
    hint="cat /proc/sys/kernel/tainted; dmesg -T; journalctl -k -b; ipmitool sel list; reboot, and watch the node",
    action=Action.REBOOT,
)
def taint(taint: int) -> Judgement:
    """The kernel has not marked itself as damaged."""
    for bit, meaning in _TAINTS.items():
        if taint & 1 << bit:
            yield Finding("kernel", f"tainted {meaning}", "not tainted so")


@check(
    "os.user",
    cause="the directory service (LDAP, SSSD) does not answer here, or local accounts differ",
    hint="id USER; getent passwd USER; sssctl domain-status; compare /etc/passwd and /etc/group",
)
def user(user: str, usual_user: Norm[Any]) -> Judgement:
    """The user of the run has the same name, uid and groups everywhere."""
    yield from _alike("id", user, usual_user)


@check(
    "os.shared_storage",
    cause="the folder is not mounted here, is mounted from elsewhere, or is served from a stale cache",
    hint="findmnt -T PATH on this node and on the writer; mount -a; compare the servers and export options",
)
def shared_storage(shared_folders: Mapping[str, SharedFolder], node_name: str) -> Judgement:
    """A file that one node wrote in each shared folder is seen here, as it was written."""
    if not shared_folders:
        yield NotApplicable("the cluster file states no os.shared_storage")
    for path, folder in shared_folders.items():
        if folder.write_problem:
            if node_name == folder.writer and "Permission denied" in folder.write_problem:
                # the same on every node: it is for the cluster file to name another folder
                yield NotChecked(f"{path}: the user of the run may not write there: {folder.write_problem}")
            elif node_name == folder.writer:
                yield Finding(path, f"not writable: {folder.write_problem}", "writable")
            else:
                yield NotApplicable(f"{path}: {folder.writer} could not write there: {folder.write_problem}")
        elif folder.read_problem:
            yield Finding(path, folder.read_problem, f"the file that {folder.writer} wrote there")


# by what the fleet channel and slurmstepd say: cause, hint, action
_LOSSES = (
    (
        "TaskProlog failed",
        "the TaskProlog of slurm.conf fails on this node: no task of any job starts there",
        "run the TaskProlog of `scontrol show config` there by hand, as the user of the run; slurmd's log",
        Action.DRAIN,
    ),
    (
        "its slurmd starts no task",
        "slurmd was killed, hangs or refuses the step (munge, a plugin), or its Prolog outlasts MessageTimeout",
        "systemctl status slurmd munge on the node; slurmd's log there; time the Prolog; systemctl restart slurmd",
        Action.DRAIN,
    ),
    (
        "its agent's task ended",
        "the task was killed on the node: memory ran out, a health check or a person ended it, or slurmstepd failed",
        "dmesg -T | grep -iE 'oom|killed process' and slurmd's log on the node; run again",
        Action.MONITOR,
    ),
)


def _loss(verdict: Verdict, answer: Answer, lost: str | None = None) -> Verdict:
    """Return the cause that the words of the loss name."""
    reason = lost or answer.problem  # of a node that was left out of the channel, the answer has it
    for words, cause, hint, action in _LOSSES:
        if words in reason:
            return replace(verdict, cause=cause, hint=hint, action=action)
    return verdict


@revised(_loss)
@check(
    "os.responds",
    cause="the node is down, hangs, or Slurm's step daemon on it was killed",
    hint="look at the node's console and slurmd's log; power-cycle it; scontrol update nodename=NODE state=resume",
    action=Action.REBOOT,
    marks=("judges_node",),
)
def responds(answer: Answer, lost: str | None = None) -> Judgement:
    """The node carries out a command.

    `lost`: why the channel gave the node up during the run; None where it did not.
    """
    if lost or answer.rc is None:
        yield Finding("node", lost or answer.problem or "no answer", "carries out the command 'true'")
    elif answer.rc != 0:
        yield Finding("node", f"'true' ended with exit status {answer.rc}", "exit status 0")


@check(
    "os.time_sync",
    cause="no time service runs, or it reaches none of its servers",
    hint="chronyc sources -v; systemctl enable --now chronyd (or systemd-timesyncd); check UDP port 123",
)
def time_sync(time_sync: TimeSync) -> Judgement:
    """The clock is synchronised, and its offset against the source is small."""
    if time_sync.offset is not None:
        yield Metric("time_offset", time_sync.offset, "s", better=NEITHER)  # has a sign
    if not time_sync.synchronised:
        yield Finding(
            "time service", f"not synchronised ({time_sync.source}: {time_sync.detail})", "synchronised"
        )
    elif time_sync.offset is not None and not abs(time_sync.offset) <= MAX_CLOCK_OFFSET:
        yield Finding(
            "time service",
            f"offset {time_sync.offset:g} s ({time_sync.source})",
            f"within {MAX_CLOCK_OFFSET:g} s",
        )


@check(
    "os.sysctls",
    cause="the setting is missing in /etc/sysctl.d, or something changed it after boot",
    hint="sysctl NAME; sysctl --system",
)
def sysctls(sysctls: Mapping[str, str], stated_sysctls: Mapping[str, str]) -> Judgement:
    """Every sysctl of the cluster file has its value."""
    if not stated_sysctls:
        yield NotApplicable("the cluster file states no os.sysctls")
    for name, expected in stated_sysctls.items():
        value = sysctls[name]
        if value != " ".join(expected.split()):
            yield Finding(name, value or "unknown to this kernel", expected)


_GONE = "Stale|not connected"  # libc's words: ESTALE, ENOTCONN


@check(
    "os.mount_response",
    cause="the file server is down or unreachable: whoever touches the mount hangs",
    hint="ping the server; dmesg | grep 'not responding'; umount -f -l PATH; reboot where processes hang in it",
    action=Action.REBOOT,
)
def mount_response(
    disks: Mapping[str, Disk],
    mounts: Mapping[str, Mount],
    asked_paths: Sequence[str] | None = None,
    answering: Collection[str] = (),
) -> Judgement:
    """Every file system tells its size within the deadline: the `asked_paths`, and others over the network.

    `answering`: the paths of which df tells something on any node; where our user may go on none, no node is to blame.
    """
    for path, disk in disks.items():
        mount = mounts.get(_path(path))
        source = f" ({mount.fstype} from {mount.source})" if mount else ""
        own = asked_paths is None or path in asked_paths
        # another networked mount may be hidden by a later one, or not be for our user to see
        told = disk.problem if own else re.search(_GONE, disk.problem)
        if own and disk.forbidden and path not in answering:
            yield NotChecked(f"{disk.problem}: the user of the run may not go there")
        elif disk.hung or (told and mount):
            yield Finding(f"{path}{source}", disk.problem, "df answers")


def disk_paths(config: OsConfig) -> tuple[str, ...]:
    """Return the paths that df is asked about: /, /tmp, /dev/shm and the mounts of the cluster file."""
    return tuple(dict.fromkeys((*ALWAYS, *(_path(mount.path) for mount in config.mounts))))


@check(
    "os.free_space",
    cause="job leftovers, container images or logs fill the file system",
    hint="df -h; du -xhd1 PATH | sort -h | tail; enroot list; clean up, or extend the file system",
)
def free_space(
    disks: Mapping[str, Disk],
    mounts: Mapping[str, Mount],
    os_config: OsConfig,
    writes: Mapping[str, str] = MappingProxyType({}),
) -> Judgement:
    """Free space on /, /tmp, /dev/shm and on the stated mounts that have a bound.

    `writes`: {path: why no file could be written there, or ''} of SCRATCH.
    """
    bounds, low = _space_bounds(os_config), set()
    for path, disk in disks.items():
        if path not in bounds:
            continue  # asked only whether it answers
        if disk.forbidden:
            yield NotChecked(f"{disk.problem}: the user of the run may not go there")
        if disk.problem or (path not in mounts and path not in ALWAYS):
            continue  # os.mounts and os.mount_response say so
        yield Metric("free_space", disk.free / 2**30, "GiB", path)
        least, percent = bounds[path]
        least = max(least, math.ceil(disk.size * percent / 100))
        if path == SHM and bounds[path] == (
            os_config.min_free_root,
            0.0,
        ):  # no mount of the cluster file says more
            least = min(least, math.ceil(disk.size * SHM_FREE))
        if disk.free < least:
            low.add(path)
            measured = f"{format_size(disk.free)} free of {format_size(disk.size)}"
            yield Finding(path, measured, f"at least {format_size(least)} free")
    for path, problem in writes.items():
        if path not in low and re.search(_FULL, problem):  # a quota, or no inodes: df shows room
            yield Finding(path, problem, "a file can be written")
    silent = [path for path in ALWAYS if disks[path].problem]
    if silent:
        yield NotApplicable(f"df says nothing of {', '.join(silent)}: {disks[silent[0]].problem}")


def _space_bounds(config: OsConfig) -> dict[str, tuple[int, float]]:
    """Return {path: (bytes, percent)} that have to be free."""
    bounds: dict[str, tuple[int, float]] = dict.fromkeys(ALWAYS, (config.min_free_root, 0.0))
    for mount in config.mounts:
        least, percent = bounds.get(_path(mount.path), (0, 0.0))
        bounds[_path(mount.path)] = (mount.min_free or least, mount.min_free_percent or percent)
    return bounds


@check(
    "os.inodes",
    cause="very many small files: unpacked containers, caches, core dumps",
    hint="df -i; du --inodes -xd1 PATH | sort -h | tail",
)
def inodes(disks: Mapping[str, Disk]) -> Judgement:
    """At least 5% of the inodes of /, /tmp and /dev/shm are free, where the file system counts them."""
    counted = False
    for path in ALWAYS:
        disk = disks[path]
        if disk.problem or not disk.inodes:
            continue
        counted = True
        share = disk.inodes_free / disk.inodes
        yield Metric("free_inodes", 100 * share, "%", path)
        if share < MIN_INODES_FREE:
            yield Finding(path, f"{disk.inodes_free} of {disk.inodes} inodes free", "at least 5% free")
    if not counted:
        yield NotApplicable("the file systems of /, /tmp and /dev/shm count no inodes")


@check(
    "os.zombies",
    cause="a daemon or a job's parent process does not reap its children",
    hint="ps -eo pid,ppid,stat,etimes,comm | awk '$3 ~ /^Z/'; restart the parent process",
    action=Action.MONITOR,
)
def zombies(processes: Processes, max_zombies: int) -> Judgement:
    """No more zombies than stated that stay."""
    found = processes.of_state("Z")
    yield Metric("zombies", len(found), "processes")
    if len(found) > max_zombies:
        named = ", ".join(f"{one.command} (pid {one.pid}, parent {one.ppid})" for one in found[:5])
        yield Finding("processes", f"{len(found)} zombies: {named}", f"at most {max_zombies}")


@check(
    "os.dstate",
    cause="processes wait for a device or a file server that does not answer",
    hint="cat /proc/PID/stack; dmesg | grep -i 'blocked for more'; check file servers and disks; reboot",
    action=Action.REBOOT,
)
def dstate(processes: Processes) -> Judgement:
    """No process stays in uninterruptible sleep over three looks, a second apart."""
    found = processes.of_state("D")
    yield Metric("dstate", len(found), "processes")
    for process in found[:5]:
        age = "" if process.age is None else f", {format_duration(process.age)} old"
        measured = f"{process.command} of {process.user} in D state{age}"
        yield Finding(f"pid {process.pid}", measured, "not in D state")


kernel_log = kernel_log_check.kernel_log  # its place in the order of items


@check(
    "os.packages",
    cause="the package was not installed, or this node missed or ran ahead of an update",
    hint="dpkg -l NAME or rpm -q NAME; apt install NAME=VERSION or dnf install NAME-VERSION",
)
def packages(packages: Mapping[str, str], stated_packages: Mapping[str, str]) -> Judgement:
    """Every package of the cluster file is installed, in a version that begins as stated."""
    if not stated_packages:
        yield NotApplicable("the cluster file states no os.packages")
    for name, prefix in stated_packages.items():
        version = packages[name]
        if not version:
            yield Finding(name, "not installed", prefix or "installed")
        elif not _version_matches(version, prefix):
            yield Finding(name, version, f"{prefix.removesuffix('*')}*")


def _version_matches(version: str, prefix: str) -> bool:
    """Compare whole numbers: 5.2 fits 5.2.15, not 5.20. An epoch counts only where the prefix has one."""
    wanted = prefix.removesuffix("*")
    told = version if ":" in wanted else version.rpartition(":")[2]
    rest = told.removeprefix(wanted)
    return told.startswith(wanted) and not (wanted[-1:].isdigit() and rest[:1].isdigit())


@check(
    "os.services",
    cause="the service crashed, was stopped, or is not enabled",
    hint="systemctl status UNIT; journalctl -u UNIT -b; systemctl enable --now UNIT",
)
def services(services: Mapping[str, str], stated_services: Sequence[str]) -> Judgement:
    """Every service of the cluster file is active."""
    if not stated_services:
        yield NotApplicable("the cluster file states no os.services")
    for unit in stated_services:
        if services[unit] != "active":
            yield Finding(unit, services[unit], "active")


@check(
    "os.failed_units",
    cause="a unit failed since boot",
    hint="systemctl status UNIT; journalctl -u UNIT -b; afterwards systemctl reset-failed UNIT",
    action=Action.MONITOR,
)
def failed_units(failed_units: Iterable[str], stated_services: Iterable[str]) -> Judgement:
    """No systemd unit has failed; those of the cluster file are left to os.services."""
    own = {unit if "." in unit else f"{unit}.service" for unit in stated_services}
    for unit in failed_units:
        if unit not in own:
            yield Finding(unit, "failed", "no failed unit")


@check(
    "os.systemd",
    cause="systemd or its D-Bus hangs or was killed: no service is watched or restarted, logins and jobs' cgroups hang",
    hint="systemctl is-system-running; ps -C dbus-daemon,dbus-broker; journalctl -b -n 50; systemctl daemon-reexec, or "
    "reboot",
    action=Action.REBOOT,
)
def systemd(system_state: SystemState, usual_answers: Norm[Any]) -> Judgement:
    """Systemd answers, where it does on most nodes of the group."""
    if system_state.word == "offline":
        yield NotApplicable("systemd does not run on the node")
    elif system_state.word in ("maintenance", "stopping"):
        yield Finding("systemd", system_state.word, "running")
    elif not system_state.answers and usual_answers.value:
        yield Finding("systemd", system_state.problem or "no answer", f"answers, {usual_answers.most}")
    elif not system_state.answers:
        yield NotChecked(f"systemctl is-system-running: {system_state.problem or 'no answer'}")


@check(
    "os.drift",
    cause="the node was changed by hand, or missed a change of the image",
    hint="run the command on this node and on a good one; reinstall, or repeat the configuration run",
)
def drift(said: Mapping[str, CommandOutput], usual_said: Mapping[str, Norm[Any]]) -> Judgement:
    """Further commands of the cluster file say the same on all nodes of the group."""
    if not said:
        yield NotApplicable("the cluster file states no os.drift")
    for command, mine in said.items():
        if usual_said[command].absent:
            yield NotApplicable(f"{command}: {usual_said[command].absent.partition(', and ')[2]}")
        yield from usual_said[command].judge(command, mine, shown=_said)


def _said(said: CommandOutput) -> str:
    return f"{said.text} (exit {said.rc})" if said.rc else said.text


def some_names(cluster: Cluster, most: int = 4) -> tuple[str, ...]:
    """Return a handful of node names, spread over the cluster, for the check of name resolution."""
    names = [name for group in cluster.groups for name in group.names]
    step = max(1, math.ceil(len(names) / most))
    return tuple(names[::step])


def resolved(fleet: Mapping[str, Mapping[str, str]]) -> dict[str, Norm[str]]:
    """Return {name: the addresses that nodes see}; its own is left out: it often resolves to 127.0.1.1 there."""
    names = {name for seen in fleet.values() for name in seen}
    return {
        name: fleet_norm((node, seen[name]) for node, seen in fleet.items() if node != name and name in seen)
        for name in names
    }


@check(
    "os.name_resolution",
    cause="/etc/hosts or the name server differs on this node",
    hint="getent hosts NAME; compare /etc/hosts, /etc/resolv.conf and /etc/nsswitch.conf with a good node",
)
def name_resolution(
    addresses: Mapping[str, str], node_name: str, all_addresses: Mapping[str, Norm[str]]
) -> Judgement:
    """The names of other nodes resolve to the addresses that most nodes see."""
    compared = False
    for name in (name for name in addresses if name != node_name):
        most = all_addresses[name]
        if most.absent or (most.clear and not most.value):
            continue
        compared = True
        yield from most.judge(name, addresses[name], shown=lambda address: address or "does not resolve")
    if not compared:
        yield NotApplicable("no name of another node resolves alike on most nodes (Slurm uses NodeAddr then)")
