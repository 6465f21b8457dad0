"""The kernel log raises questions; the present state of the node answers them.

A line fails the check if the state confirms it. Only a line that no healthy and no recovered machine prints counts as long as
nothing contradicts it (`never_healthy` of kit/node/data/kernel-lines.yaml). All other lines are warnings, with count and time.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.known_lines import known
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.kit.gpu.xid_check import explains
from pytest_gpucluster.kit.node.log_rules import INJECTED, LEFT, RECOVERED, STALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog
    from pytest_gpucluster.kit.node.kernel_state import JobResult, MountState

SHOWN = 160  # characters of a message that a finding quotes
# Corrected errors of one device per day; fewer are ordinary. mcelog.conf(5) gives up a page after 10 in 24 hours.
MAX_CORRECTED = 100
_DAY = 86400.0  # seconds
FIRST_MINUTE = 60.0  # the kernel prints machine checks that the boot left in the registers (mce/core.c)
LASTING = 180.0  # seconds; soft lockups and RCU stalls are printed again within this time while they last


@dataclass(frozen=True)
class StateAnswer:
    """What the present state says of a line. `confirmed`: None if the state does not say."""

    confirmed: bool | None
    words: str = ""
    action: Action | None = None


_UNKNOWN = StateAnswer(None)


@dataclass(frozen=True)
class Stalls:
    """The number of nodes whose log was read, and {file server: the number of them that cannot read its mounts}."""

    nodes: int = 1
    servers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, logs: Mapping[str, KernelLog]) -> Stalls:
        """Count from the logs and states of all nodes."""
        away: Counter[str] = Counter()
        for log in logs.values():
            away.update({event.server for event in log.of(STALL) if _mounts(event, log).confirmed})
        return cls(len(logs), away)

    def of_server(self, server: str) -> str:
        """Return 'N of M nodes' if most nodes cannot read a server's mounts, so that the server is at fault, else ''."""
        away = self.servers.get(server, 0)
        return f"{away} of {self.nodes} nodes" if away > 1 and 2 * away > self.nodes else ""

    def only_one(self, server: str) -> bool:
        """Whether other nodes' logs were read, and none of them cannot read the server's mounts."""
        return self.nodes > 1 and self.servers.get(server, 0) <= 1


@check(
    "os.kernel_log",
    cause="the kernel log reports an error since boot, and the present state of the node confirms it",
    hint="dmesg -T (or journalctl -k -b); ipmitool sel list; a reboot clears the log, not the cause",
    action=Action.MONITOR,
    never_healthy="the present state confirms the line, as of a local disk in use that cannot be read or a GPU that nvidia-smi does "
    "not list; or only a repair ends it: uncorrected memory errors of this boot, a fatal PCIe error of a GPU, fabric adapter or "
    "NVMe disk in use; or the site requires it (`known`)",
)
def kernel_log(
    kernel_log: KernelLog, stalls: Stalls = Stalls(), known_lines: tuple[KnownLine, ...] = ()
) -> Judgement:
    """No line of the kernel log since boot is confirmed by the present state of the node; gpu.xid judges Xids."""
    yield Metric("kernel_log_lines", kernel_log.lines, "lines")
    if stalled := sum(event.count for event in kernel_log.of(STALL)):
        yield Metric("file_server_stalls", stalled, "")
    if kernel_log.unsent:
        unread = f"{kernel_log.unsent} lines of the kernel log were not read"
        yield NotAvailable(f"{unread}: more than 200 different messages")
    if kernel_log.complaints:
        yield Advisory(
            "kernel log: driver", f"{kernel_log.complaints} further lines of drivers", "no complaint"
        )
    for event in _of_devices(kernel_log):
        measured = f"{event.text[:SHOWN]} ({event.count} times, last {kernel_log.when(event.last)})"
        if entry := known(known_lines, event.text):
            yield from _known(_part(event, kernel_log), measured, entry)
        else:
            yield from _judged(event, measured, kernel_log, stalls)


@check(
    "os.kernel_log_start",
    cause="the ring buffer of the kernel is full and has lost its first lines, or a person cleared it (dmesg -C)",
    hint="journalctl -k -b has earlier lines where the journal is persistent; log_buf_len=16M on the kernel command line; search for what "
    "floods the log",
    action=Action.MONITOR,
)
def kernel_log_start(kernel_log: KernelLog) -> Judgement:
    """The kernel log begins with the boot; otherwise the lines that it has lost are not checked, which fails no node."""
    since = kernel_log.since
    if since is None:
        raise NotAvailable(
            "the lines of the kernel log have no times: whether it begins with the boot is not known"
        )
    if since > FIRST_MINUTE:
        lost = format_duration(since)
        raise NotAvailable(
            f"the kernel log ({kernel_log.source}) begins {lost} after boot ({kernel_log.when(since)}); earlier lines are lost to "
            "os.kernel_log and gpu.xid"
        )
    yield Metric("kernel_log_since", since, "s after boot", detail=True)


def _known(part: str, measured: str, entry: KnownLine) -> Iterator[Finding | Advisory]:
    expected = "no such line"
    if entry.failure:
        yield Finding(part, f"{measured}; {entry.words}", expected, entry.failure, setting="known")
    elif entry.action == "warn":
        yield Advisory(part, f"{measured}; {entry.words}", expected)


def _of_devices(log: KernelLog) -> Iterator[Event]:
    """Yield the events; of lines about the same corrected errors of a device the one with the highest count."""
    best: dict[tuple[str, str], Event] = {}
    for event in log.events:
        if event.rule and event.rule.answered_by == "rate":
            key = (event.kind, event.device)
            best[key] = max(best.get(key, event), event, key=lambda one: one.count)
    for event in log.events:
        if event.rule is None or event.rule.answered_by != "rate" or event in best.values():
            yield event


def _judged(event: Event, measured: str, log: KernelLog, stalls: Stalls) -> Iterator[Finding | Advisory]:
    rule = event.rule
    if (
        rule is None
        or rule.kind in (RECOVERED, LEFT, INJECTED)
        or _has_left(event, log)
        or (event.kind in ("nvrm", "driver") and explains(log, event.line, event.last))
    ):
        return  # gpu.xid judges Xids, and the messages around them
    answer = _ANSWERS[rule.answered_by](event, log) if rule.answered_by else _UNKNOWN
    part = _part(event, log)
    if answer.confirmed is None and rule.never_healthy:
        earlier = _of_earlier(event, log)
        answer = StateAnswer(None, earlier) if earlier else StateAnswer(True, rule.never_healthy)
    if answer.confirmed is None and rule.gave_up:
        again = _is_used_again(event, log)
        lasting = f"{rule.gave_up}; the present state is not known"
        answer = StateAnswer(None, again) if again else StateAnswer(True, lasting, Action.MONITOR)
    if answer.confirmed:
        where = stalls.of_server(event.server) if event.kind == STALL else ""
        fault = (
            f"file server {event.server} does not answer on {where}, so the server is at fault: "
            if where
            else ""
        )
        action = Action.CONFIGURE if where else answer.action or rule.action
        if event.kind == STALL and answer.action is None and stalls.only_one(event.server):
            action = Action.REBOOT  # other nodes can read the mount, as os.mount_response
        clause = re.match(r"(an?|the) ", rule.meaning)
        none = f"no such line: {rule.meaning}" if clause else f"no {rule.meaning}"
        expected = "every file server answers" if event.kind == STALL else none
        yield Finding(part, f"{fault}{measured}; {answer.words}", expected, action)
    elif answer is not _ORDINARY:
        open_question = (
            "the present state is not known" if rule.answered_by and answer.confirmed is None else ""
        )
        words = answer.words or open_question
        yield Advisory(part, f"{measured}; {words}" if words else measured, rule.meaning)


_OF_NO_DEVICE = ("lockup", "hung", "oom", "limits", "network", "boot record")


def _part(event: Event, log: KernelLog) -> str:
    """Name the mount, the disk, the PCI function with its ports, or the memory module of a line, and the kind of the line."""
    if event.kind == STALL:
        lost = [mount.path for mount in log.state.of_server(event.server) if _unreadable(mount, log)]
        names = lost[:3] or [event.server]
    elif event.kind in _OF_NO_DEVICE:
        names = []
    elif re.fullmatch(_PCI_FUNCTION, event.device):
        names = [event.device, *(port.split()[0] for port in log.state.ports(event.device))]
    elif event.kind == "filesystem":
        names = [*(mount.path for mount in log.state.of_device(event.device) if event.device), event.device]
    else:
        names = [_disk(event.device)]
    named = " ".join(filter(None, dict.fromkeys(names)))
    return f"{named} (kernel log: {event.kind})" if named else f"kernel log: {event.kind}"


_PCI_FUNCTION = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?"


_RELOADED = "before the driver was loaded again"


def _of_earlier(event: Event, log: KernelLog) -> str:
    """Say what a line was before: the last boot, or the driver's last start; '' for a line of now."""
    if event.kind == "mce":
        return "of the boot before" if event.last is not None and event.last < FIRST_MINUTE else ""
    return _RELOADED if event.kind == "nvrm" and log.reloaded_after(event) else ""


def _is_used_again(event: Event, log: KernelLog) -> str:
    """Say which later line shows that the driver of GPUs, or a device that the event names, works again; '' for none."""
    if event.kind == "mce":  # pages of memory
        given_up = any(_together(event, one.event) for one in log.xids)
        why = "by the driver of GPUs, whose Xid gpu.xid judges" if given_up else "by a test"
        return f"given up {why}" if given_up or log.of(INJECTED) else ""
    if log.reloaded_after(event):
        return _RELOADED
    for later in log.of(RECOVERED):
        named = later.device and re.search(rf"\b{re.escape(later.device)}\b", event.text.lower())
        if later.line > event.line and named:
            return f"a later line, {later.text[:SHOWN]!r}, shows that it works"
    return ""


TOGETHER = 10.0  # seconds between lines of one event, as of a device that a person takes away and of its slot or dock
_NEAR = 30  # lines, in a log without times
_OF_DOCKS = re.compile(r"card not present|thunderbolt|usb disconnect", re.IGNORECASE)


def _has_left(event: Event, log: KernelLog) -> bool:
    """Return whether the device of a line left with its slot, dock or socket, and is not back: no fault.

    A GPU, fabric adapter or NVMe disk does not leave by itself; a slot whose link alone went down counts once sysfs lacks the device.
    """
    if event.rule is None or event.rule.answered_by != "pci" or _OF_JOBS.search(event.text):
        return False
    if not re.fullmatch(_PCI_FUNCTION, event.device) or log.state.pci(event.device):
        return False
    absent = any(line.split()[0] == event.device for line in log.state.lines.get("pci", ()))
    return any((absent or _OF_DOCKS.search(one.text)) and _together(event, one) for one in log.of(LEFT))


def _together(event: Event, other: Event) -> bool:
    """Return whether two lines were printed within TOGETHER, or near each other in a log without times."""
    if event.last is None or other.last is None:
        return abs(other.line - event.line) <= _NEAR
    return abs(other.last - event.last) <= TOGETHER


# --- what the state answers

_ORDINARY = StateAnswer(False, "ordinary")  # no warning either


# damage that a mount does not end; BTRFS may have another copy of a block, XFS has none
_ON_DISK = re.compile(
    r"BTRFS(?= critical .*corrupt (leaf|node))|XFS(?= .*u[mn]+ount and run xfs_repair)", re.IGNORECASE
)
_POOL = re.compile(r"[Pp]ool '(\S+)' has .* suspended")


def _mounts(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether a mount of the file server, or of the disk, cannot be read now or was made read-only."""
    state = log.state
    if pool := _POOL.search(event.text):
        now = state.pools.get(pool[1], "")
        return StateAnswer(now == "SUSPENDED", f"the pool is {now} now") if now else _UNKNOWN
    if on_disk := _ON_DISK.match(event.text):
        return _damaged(event, on_disk[0].lower(), log)
    if event.kind == STALL:
        return _stalled(state.of_server(event.server), event, log)
    return _unusable(_mounts_of(event.device, log), event, log) if state.mounts else _UNKNOWN


def _stalled(mounts: tuple[MountState, ...], event: Event, log: KernelLog) -> StateAnswer:
    """Return whether a mount of the server cannot be read now; without a mount that was read, whether processes wait."""
    if log.state.waiting and not any((job := log.state.reads(mount)) and job.rc == 0 for mount in mounts):
        return StateAnswer(True, f"waiting now: {', '.join(log.state.waiting[:3])}")
    return _unusable(mounts, event, log) if log.state.mounts else _UNKNOWN


def _unusable(mounts: tuple[MountState, ...], event: Event, log: KernelLog) -> StateAnswer:
    """Return whether one of the mounts cannot be read now, or was made read-only."""
    for mount in mounts:
        if mount.read_only and event.kind == "filesystem" and _made_read_only(mount, event):
            return StateAnswer(True, f"{mount.path} is read-only now")
        if problem := _unreadable(mount, log):
            read = log.state.reads(mount)
            # a server may be slow for some seconds: os.mount_response reads a second time
            slow = event.kind == STALL and read is not None and read.rc is None
            return StateAnswer(True, problem, Action.MONITOR if slow else None)
    return StateAnswer(False, _all_read(mounts, log))


def _damaged(event: Event, fstype: str, log: KernelLog) -> StateAnswer:
    """Return whether a file system whose tables are damaged on a disk of the node is not mounted, or is not usable."""
    if _is_elsewhere(_disk(event.device), log):
        return StateAnswer(False, "not a disk of the node itself")
    if not log.state.mounts:
        return _UNKNOWN
    mounts = tuple(mount for mount in _mounts_of(event.device, log) if mount.fstype == fstype)
    if not mounts:
        return StateAnswer(True, f"it stays so, and no {fstype} of this disk is mounted now")
    now = _unusable(mounts, event, log)
    if now.confirmed or fstype == "btrfs" or _of_quota(event, log) or _is_used_again(event, log):
        return now
    return StateAnswer(True, "it stays so until a person repairs it", Action.MONITOR)


def _of_quota(event: Event, log: KernelLog) -> bool:
    """Return whether records of quota of the same device were damaged: XFS makes them again itself (xfs_qm.c: quotacheck)."""
    return any("dquot" in one.text and one.device == event.device for one in log.of("filesystem"))


def _mounts_of(name: str, log: KernelLog) -> tuple[MountState, ...]:
    """Return the mounts of a disk; of an array or a volume, whose name mount(8) may not use, all of disks."""
    own = tuple(log.state.of_device(name)) if name else ()
    stacked = re.match(r"md|dm-|$", name) and name not in log.state.numbers
    return own or tuple(mount for mount in log.state.mounts if stacked and mount.source.startswith("/dev/"))


def _made_read_only(mount: MountState, event: Event) -> bool:
    return mount.wanted_rw or bool(re.search(r"read-?only", event.text, re.IGNORECASE))


def _unreadable(mount: MountState, log: KernelLog) -> str:
    """Return why a mount cannot be read now, '' if it can or the user may not."""
    job = log.state.reads(mount)
    if job is None or job.rc == 0 or job.rc in (126, 127) or "ermission denied" in job.text:
        return ""
    why = job.text or "no answer of df within the time limit"
    return f"{mount.path} ({mount.source}) cannot be read now: {why}"


def _all_read(mounts: tuple[MountState, ...], log: KernelLog) -> str:
    read = [mount.path for mount in mounts if (job := log.state.reads(mount)) and job.rc == 0]
    return f"{', '.join(read[:3])} can be read now" if read else "it is not mounted now" if not mounts else ""


# devices whose medium is a file, a server or removable; they may fail without a fault of the node
_NO_DISK = re.compile(r"^(loop|nbd|rbd|drbd|zram|ram|sr|fd|mmcblk)\d")
_ELSEWHERE = re.compile(r"/usb\d|/session\d|/rport-|/virtual/(?!nvme-subsystem|block/)")
_VOLUME = re.compile(r"elastic block store|virtual.disk|persistentdisk|nvme_card-pd", re.IGNORECASE)


def _disks(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether a disk of the node that is in use fails now: its array, SMART, a read of the block that failed, or of its mounts."""
    state, name = log.state, _disk(event.device)
    for array, how in state.degraded.items():
        if event.kind == "raid" or (name and (name == array or name in how)):
            return StateAnswer(True, f"/proc/mdstat: {how}", Action.MONITOR)
    if event.kind == "raid":
        return StateAnswer(False, "no array lacks a disk now") if state.lines.get("md") else _UNKNOWN
    if _is_elsewhere(name, log):
        return StateAnswer(False, "not a disk of the node itself")
    mounts = _mounts_of(name, log)
    if failing := _failing(name, log) or next(filter(None, (_unreadable(one, log) for one in mounts)), ""):
        used = _in_use(name, log)
        unused = (
            "" if used else "; it is not in use" if used is False else "; whether it is in use is not known"
        )
        return StateAnswer(used, f"{failing}{unused}")
    read = _read_of(name, log)
    if event.rule and event.rule.gave_up and read and "No such file" in read.text:
        return StateAnswer(True, "the disk is absent now", Action.MONITOR)
    readable = "the disk can be read now" if read and read.rc == 0 else _all_read(mounts, log)
    return StateAnswer(False, readable) if read or mounts else _UNKNOWN


def _read_of(name: str, log: KernelLog) -> JobResult | None:
    """Return how a read of a disk ended, None if the node could not try."""
    read = log.state.jobs.get(("dd", name))
    return None if read is None or read.rc in (126, 127) else read


def _row(name: str, log: KernelLog) -> str:
    return next((line for line in log.state.lines.get("disk", ()) if line.startswith(f"{name} ")), "")


def _is_elsewhere(name: str, log: KernelLog) -> bool:
    row = _row(name, log)
    removable, _, model = row.partition(" removable ")[2].partition(" ")
    return bool(_NO_DISK.match(name) or removable == "1" or _ELSEWHERE.search(row) or _VOLUME.search(model))


def _in_use(name: str, log: KernelLog) -> bool | None:
    """Return whether a disk is mounted, swap, or a part of an array or a volume; None if no mount was read."""
    arrays = " ".join(log.state.lines.get("md", ()))
    part = re.search(rf"\b{re.escape(name)}(p?\d+)?\[", arrays) or re.search(
        r"holders (?!removable)\w", _row(name, log)
    )
    swap = any(_disk(path) == name for path in log.state.lines.get("swap", ()))
    return bool(_mounts_of(name, log) or part or swap) or (False if log.state.mounts else None)


# errno(3) of a disk that does not answer, or that is gone while its file is left
_NO_READ = re.compile(r"Input/output error|No such device")


def _failing(name: str, log: KernelLog) -> str:
    """Return how a disk fails now, by SMART or by a read of the block that failed; '' if it does not, or that is not known."""
    smart, read = log.state.jobs.get(("smart", name)), _read_of(name, log)
    if smart and re.search(r"FAILED|FAILING|Health Status: (?!OK)", smart.text):
        return "SMART reports that the disk fails"
    if read and (read.rc is None or (read.rc and _NO_READ.search(read.text))):
        return "the disk cannot be read now"
    return ""


def _disk(device: str) -> str:
    name = device.removeprefix("/dev/")
    name = f"{name}n1" if re.fullmatch(r"nvme\d+", name) else name
    return re.sub(r"^(nvme\d+n\d+)p\d+$|^((?:sd|vd|xvd)[a-z]+)\d+$", r"\1\2", name)


def _of_nvidia(function: Mapping[str, str]) -> bool:
    return function.get("PCI_ID", "").startswith("10DE")


def _other_driver(function: Mapping[str, str]) -> StateAnswer | None:
    """Return the answer for a GPU that NVIDIA's driver does not use; a display card (class 0x0300) may go without one."""
    driver = function.get("DRIVER", "")
    if driver not in ("", "nvidia"):
        return StateAnswer(False, f"driver {driver} uses it")
    unused = _is_accelerator(function) and not driver
    return StateAnswer(True, "no driver uses this GPU now") if unused else None


def _is_accelerator(function: Mapping[str, str]) -> bool:
    return function.get("class", "").startswith("0x0302") and _of_nvidia(function)


def _gpu(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether nvidia-smi does not list the GPU of a line now, or recommends an action for it."""
    gpus = log.state.gpus
    address = event.device.partition(".")[0][-10:]
    address = address if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", address) else ""
    other = _other_driver(log.state.pci(f"{address}.0"))
    if other or gpus is None:
        return other or _UNKNOWN
    if address and address not in gpus:
        return StateAnswer(True, "nvidia-smi does not list this GPU now")
    if not gpus:
        return StateAnswer(True, "nvidia-smi lists no GPU now")
    recommended = {bus: what for bus, what in gpus.items() if what and address in ("", bus)}
    if recommended:
        return StateAnswer(
            True, "nvidia-smi: " + ", ".join(f"{bus} {what}" for bus, what in recommended.items())
        )
    return StateAnswer(False, f"nvidia-smi lists {'this GPU' if address else f'{len(gpus)} GPUs'} now")


# drivers of GPUs, adapters with RDMA and NVMe disks, and their vendors, where sysfs was not read
_OF_JOBS = re.compile(
    r"\[(?:10de|15b3):[0-9a-f]{4}\]|\b(?:nvidia|mlx5_core|bnxt_en|efa|ice|hfi1|cxi_ss1|nvme) [0-9a-f]{4}:",
    re.IGNORECASE,
)
_CLASSES = re.compile(r"0x(03|0207|0108|12)")  # displays and accelerators, InfiniBand, NVMe


def _of_jobs(event: Event, log: KernelLog) -> bool:
    """Return whether a PCI function is a GPU, a fabric adapter or an NVMe disk, or the port above one."""
    function = log.state.pci(event.device)
    if not function.get("class"):
        return bool(_OF_JOBS.search(event.text))
    if function["class"].startswith("0x0604"):
        below = [log.state.pci(word) for word in function.get("has", "").split()]
        return any(_CLASSES.match(one.get("class", "")) for one in below)
    nvidia = not function["class"].startswith("0x03") or _of_nvidia(function)
    return (
        bool(_CLASSES.match(function["class"]) and nvidia) or "infiniband" in function.get("has", "").split()
    )


# classes of network adapters, and of RAID controllers, SAS controllers and NVMe disks
_ADAPTERS = ("0x02", "0x0104", "0x0107", "0x0108")


def _pci(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether a broken function is one that jobs need and that a driver uses, or lost its driver or its link."""
    function = log.state.pci(event.device)
    driver = function.get("DRIVER", "")
    if event.kind == "driver" and not function:
        return StateAnswer(False)
    if event.kind == "pcie":
        if not _of_jobs(event, log):
            return StateAnswer(False, "neither a GPU nor a fabric adapter nor an NVMe disk")
        return _UNKNOWN if driver or not function else StateAnswer(False, "no driver uses it now")
    ports = log.state.ports(event.device)
    if event.kind == "nic" and re.search(r"link (is )?(up|down)", event.text, re.IGNORECASE):
        return _link(event, log, ports)
    if not driver and (function.get("class", "").startswith(_ADAPTERS) or _is_accelerator(function)):
        return StateAnswer(True, "no driver uses this device now")
    return StateAnswer(False, ", ".join(ports)) if function else _UNKNOWN


def _link(event: Event, log: KernelLog, ports: tuple[str, ...]) -> StateAnswer:
    """Return whether a port that was up in this boot is down now; one change of an unused port is ordinary."""
    changes = [
        other for other in log.of("nic") if other.device == event.device and "link" in other.text.lower()
    ]
    last = max(changes, key=lambda one: one.line)
    went_down = re.search(r"down", last.text, re.IGNORECASE)
    flaps = min(sum(one.count for one in changes if word in one.text.lower()) for word in ("up", "down"))
    if event is not last or not flaps:
        return _ORDINARY
    down = next((port for port in ports if re.search(r"\bdown\b|DOWN", port)), "")
    if went_down and down:
        return StateAnswer(True, f"down now: {down}")
    return StateAnswer(False, ", ".join(ports)) if flaps > 1 else _ORDINARY


_BLOCKED = re.compile(r"task .*:(\d+) blocked for more than \d+ seconds")


def _tasks(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether processes wait in the kernel now and not for a file server, or the thread of the line does not run still."""
    waiting = log.state.waiting
    if waiting is None:
        return _UNKNOWN
    blocked = _BLOCKED.search(event.text)
    still = [one for one in log.state.waiting_threads if blocked and one.split()[0] == blocked[1]]
    if still:
        return StateAnswer(True, f"waiting now: thread {still[0]} of the kernel")
    if not waiting:
        return StateAnswer(False, "no process waits now")
    servers = [
        problem
        for mount in log.state.mounts
        if not mount.source.startswith("/dev/") and (problem := _unreadable(mount, log))
    ]
    if servers:
        return StateAnswer(False, f"{waiting[0]} waits for a file server: {servers[0]}")
    return StateAnswer(True, f"waiting now: {', '.join(waiting[:3])}")


# of soft lockups, and of RCU stalls in ticks, of which a second has at most 1000 (Kconfig.hz)
_STUCK = re.compile(r"stuck for (\d+)s|\bt=(\d+)\d{3} jiffies")
_HOUR = 3600.0  # seconds; the end of a guest of some TB takes minutes
_REPORTED = 63.0  # seconds; a stall is printed again after 3 times RCU_CPU_STALL_TIMEOUT of 21 s, a soft lockup sooner


def _lasting(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether a processor does not answer now, or did not for an hour, as the line or its repetition says."""
    stated = _STUCK.search(event.text)
    seconds = float(stated[1] or stated[2]) if stated else 0.0
    if (
        event.first is not None
        and event.last is not None
        and event.last - event.first < _REPORTED * event.count
    ):
        seconds = max(seconds, event.last - event.first)
    if seconds >= _HOUR:
        return StateAnswer(True, f"it did not answer for {seconds:.0f} s")
    if event.last is None or log.now is None:
        return _UNKNOWN
    ago = log.now - event.last
    return StateAnswer(0 <= ago < LASTING, f"{ago:.0f} s ago" if ago >= 0 else "")


def _rate(event: Event, log: KernelLog) -> StateAnswer:
    """Return whether the corrected errors of a device exceed MAX_CORRECTED a day; without times they are of one day."""
    lasted = 0.0 if event.first is None or event.last is None else event.last - event.first
    if event.count < MAX_CORRECTED * max(1.0, lasted / _DAY):
        return _ORDINARY
    if event.kind == "pcie" and not _of_jobs(event, log):
        return StateAnswer(False, "neither a GPU nor a fabric adapter nor an NVMe disk")
    return StateAnswer(True, f"fewer than {MAX_CORRECTED} a day and device are ordinary")


_ANSWERS: Mapping[str, Callable[[Event, KernelLog], StateAnswer]] = {
    "mounts": _mounts,
    "disks": _disks,
    "gpu": _gpu,
    "pci": _pci,
    "tasks": _tasks,
    "lasting": _lasting,
    "rate": _rate,
}
