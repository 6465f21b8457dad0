"""Messages of the kernel log that show a fault of the node."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, NotChecked, check, revised
from pytest_gpucluster.kit.xid import nonfatal
from pytest_gpucluster.kit.xid_check import explains

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.kernel_log import Event, KernelLog

SHOWN = 160  # characters of a message that a finding quotes
MAX_CORRECTED = 100  # lines of corrected errors of one kind per day; fewer are ordinary
_DAY = 86400.0  # seconds
_FEW = f"fewer than {MAX_CORRECTED} lines of corrected ones a day"
_EXPECTED = {
    "nvrm": "no error of the NVIDIA driver",
    "mce": f"no uncorrected machine check, {_FEW}",
    "edac": f"no uncorrected memory error, {_FEW}",
    "filesystem": "no file system error",
    "raid": "every disk of the array works",
    "nic": "the firmware of the network adapter answers",
    "io": "no I/O error",
    "oom": "memory never ran out",
    "lockup": "no lockup, hung task, RCU stall or kernel bug",
    "pcie": f"no uncorrected PCIe error, {_FEW}",
    "network": "no table of the network overflows",
    "stall": "every file server answers",
}
# as the kernel prints an oops; the code that crashed may hold locks until the node boots
_CRASHED = re.compile(
    r"general protection fault|unable to handle|NULL pointer dereference|kernel BUG at|Kernel panic|\bOops\b",
    re.IGNORECASE,
)
# devices without which no job runs: GPUs, fabric adapters of NVIDIA, NVMe disks; other cards may fail and be unused
_OF_JOBS = re.compile(
    r"\[(?:10de|15b3):[0-9a-f]{4}\]|\b(?:nvidia|mlx5_core|nvme) [0-9a-f]{4}:", re.IGNORECASE
)


@dataclass(frozen=True)
class Stalls:
    """The number of nodes whose log was read, and {file server: the number of them that it does not answer}."""

    nodes: int = 1
    servers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, logs: Mapping[str, KernelLog]) -> Stalls:
        """Count from the logs of all nodes."""
        away: Counter[str] = Counter()
        for log in logs.values():
            away.update({event.server for event in log.of("stall")})
        return cls(len(logs), away)

    def of_server(self, server: str) -> str:
        """Return 'N of M nodes' if the server does not answer most nodes, so that the server is at fault, else ''."""
        away = self.servers.get(server, 0)
        return f"{away} of {self.nodes} nodes" if away > 1 and 2 * away > self.nodes else ""


def _full_table(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the cause of a full network table, which is a setting and no fault of the hardware."""
    if not verdict.findings or any(not found.part.endswith(": network") for found in verdict.findings):
        return verdict
    return replace(
        verdict,
        cause="more connections or neighbours than the kernel's table holds: packets were dropped",
        hint="sysctl net.netfilter.nf_conntrack_max net.ipv4.neigh.default.gc_thresh3; raise it on all nodes (as many "
        "neighbours as the network has addresses), or do not track connections of the cluster's own network",
    )


@revised(_full_table)
@check(
    "os.kernel_log",
    cause="hardware, a driver or a file system reported an error since boot",
    hint="dmesg -T (or journalctl -k -b); ipmitool sel list; a reboot clears the log, not the cause",
    action=Action.MONITOR,
    never_healthy="only broken hardware or a crash causes uncorrected machine checks and memory errors, GPUs that the driver lost or "
    "cannot start, fatal PCIe errors of a GPU, a fabric adapter or an NVMe disk, and an oops; other lines drain no node",
)
def kernel_log(kernel_log: KernelLog, stalls: Stalls = Stalls()) -> Judgement:
    """The kernel log since boot has no error of hardware, drivers or file systems; gpu.xid judges Xids."""
    yield Metric("kernel_log_lines", kernel_log.lines, "lines")
    if kernel_log.stalls_over:
        yield Metric("file_server_stalls", kernel_log.stalls_over, "")
    if kernel_log.unsent:
        unread = f"{kernel_log.unsent} lines of the kernel log were not read"
        yield NotChecked(f"{unread}: more than 200 different messages")
    for event in kernel_log.events:
        times = f" ({event.count} times, last {kernel_log.when(event.last)})"
        part, measured = f"kernel log: {event.kind}", event.text[:SHOWN] + times
        if warning := _warning(event, kernel_log):
            yield Advisory(part, measured, warning)
        elif event.kind == "stall" and (where := stalls.of_server(event.server)):
            measured = f"file server {event.server} does not answer on {where}, so the server is at fault: {measured}"
            yield Finding(part, measured, _EXPECTED["stall"], Action.CONFIGURE)
        elif event.kind in _EXPECTED and not _harmless(event, kernel_log):
            yield Finding(part, measured, _EXPECTED[event.kind], _action(event))


# failures of a GPU that NVIDIA's driver prints without an Xid, and their action; it prints failed assertions, unreadable
# registers and other versions of libraries in containers on sound nodes too: all other messages are warnings
_DRIVER = {
    re.compile(
        r"fallen off the bus|GPU is lost|lost from the bus|RmInitAdapter|rm_init_adapter failed",
        re.IGNORECASE,
    ): Action.REBOOT,
    # also printed for a display adapter that this driver does not support, beside GPUs that it drives
    re.compile(
        r"probe routine failed|Cannot (attach gpu|initialize the device)|copy vbios"
        r"|assigned to your NVIDIA device is invalid",
        re.IGNORECASE,
    ): Action.MONITOR,
    re.compile(
        r"is probably locked|NV_ERR_(RESET_REQUIRED|MEMORY_ERROR)|likely needs to be reset|heartbeat timed out"
        r"|GSP timeout \*|Memory Subsystem Error detected",
        re.IGNORECASE,
    ): Action.RESET_GPU,
}


def _of_driver(text: str) -> Action | None:
    return next((action for pattern, action in _DRIVER.items() if pattern.search(text)), None)


def _action(event: Event) -> Action | None:
    """Return the action of a message, None for that of the check."""
    broken = {
        "mce": _uncorrected(event.text),
        "edac": _uncorrected(event.text),
        "pcie": "(Fatal)" in event.text and _OF_JOBS.search(event.text),
    }
    if event.kind == "network":
        return Action.CONFIGURE
    if broken.get(event.kind):
        return Action.DRAIN
    if event.kind == "lockup" and _CRASHED.search(event.text):
        return Action.REBOOT
    return _of_driver(event.text) if event.kind == "nvrm" else None


# the driver asserts if an application requests more memory than its GPU has free (580.159, seen on a sound H200)
_GPU_FULL = re.compile(r"NV_ERR_NO_MEMORY|ctxBufPoolReserve: Failed to reserve memory")

# words of the kernel and the firmware (APEI, EDAC, the decoder for AMD) for uncorrected errors
_UNCORRECTED = re.compile(
    r"uncorrect|fatal|deferred|recoverable|Exception(?!: \d)|[ |\[](UE|UC)[ |\]]", re.IGNORECASE
)
_MACHINE_CHECK = re.compile(
    r"Machine Check[^:]*: (?:(?:0x)?[0-9a-f]+ )?Bank \d+: (?:0x)?([0-9a-f]{16})", re.IGNORECASE
)
_UC = 1 << 61  # of MCi_STATUS: Intel SDM volume 3, 15.3.2.2
# "able" since RHEL 9; the other two lines accompany an error of either severity (drivers/pci/pcie/aer.c)
_PCIE_CORRECTED = re.compile(
    r"(?<!un)correct(ed|able)\b|is reported first|found no error details", re.IGNORECASE
)
# virtual drives of a BMC without a disc, and devices whose medium is a file or a server
_NO_MEDIUM = re.compile(r"\bdev(ice)? (sr|fd|loop|nbd)\d")
# the driver aborts the command, and resets the controller if that fails (drivers/nvme/host/pci.c); usual on volumes of
# virtual machines whose host is busy (docs.aws.amazon.com, "I/O operation timeout")
_ABORTED = re.compile(r"nvme nvme\d+: I/O .*timeout, aborting")


def _flood(event: Event) -> bool:
    """Whether corrected errors are too frequent; without times they count as those of one day."""
    lasted = 0.0 if event.first is None or event.last is None else event.last - event.first
    return event.count >= MAX_CORRECTED * max(1.0, lasted / _DAY)


def _uncorrected(text: str) -> bool:
    status = _MACHINE_CHECK.search(text)
    return bool(int(status[1], 16) & _UC) if status else bool(_UNCORRECTED.search(f" {text} "))


def _warning(event: Event, log: KernelLog) -> str:
    """Return the expected state for a message that proves no fault of the node but deserves a warning, else ''."""
    doubtful = event.kind == "nvrm" and not _harmless(event, log) and not _of_driver(event.text)
    known = {
        "file servers that answer; the task waited for one": event.kind == "waiting",
        "no disk command that times out; more lines follow if the abort failed": _ABORTED.search(event.text),
        "no uncorrected PCIe error; after a non-fatal one the link still works": (
            event.kind == "pcie" and not _flood(event) and nonfatal(event.text)
        ),
        "no crash before this boot; the lines below it in dmesg are its record": event.kind == "boot record",
        "no error of the NVIDIA driver; it was loaded again since": (
            event.kind == "nvrm" and log.reloaded_after(event)
        ),
        "no failed assertion or call of the NVIDIA driver": doubtful,
    }
    return next((expected for expected, holds in known.items() if holds), "")


def _harmless(event: Event, log: KernelLog) -> bool:
    if event.kind in ("edac", "mce"):
        return not _flood(event) and not _uncorrected(event.text)
    if event.kind == "pcie":
        return not _flood(event) and bool(_PCIE_CORRECTED.search(event.text))
    if event.kind == "io":
        return bool(_NO_MEDIUM.search(event.text))
    if event.kind == "nvrm":  # gpu.xid judges messages around an Xid
        return bool(_GPU_FULL.search(event.text)) or explains(log, event.line, event.last)
    # a job that reached the limit of its own cgroup is no fault of the node
    own = ("Memory cgroup out of memory", "CONSTRAINT_MEMCG")
    return event.kind == "oom" and any(word in event.text for word in own)
