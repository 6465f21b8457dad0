"""What the kernel says: what of it condemns a node, and what is ordinary. Logs are folded as a node folds its own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_CHECKED,
    PASSED,
    REBOOT,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
    result,
)
from judged import judged, parts
from kernel_logs import answered, fold, fold_raw

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node import kernel_log as probes
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog, XidEvent, parse
from pytest_gpucluster.kit.node.kernel_state import KernelState, read_state
from pytest_gpucluster.kit.node.log_rules import rule_of
from pytest_gpucluster.suites.os.checks import kernel_log as checks
from pytest_gpucluster.suites.os.checks.kernel_log import Stalls

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

# Words of the kernel's own sources (fs/ext4, drivers/pci/pcie, drivers/nvme, arch/x86/kernel/cpu/mce, drivers/edac,
# drivers/acpi/apei, fs/nfs), as in https://access.redhat.com/solutions/56302 and 7128107
ORDINARY = {
    "root of Debian and Ubuntu": [
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: (null). Quota mode: none.",
        "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: discard,errors=remount-ro",
    ],
    "corrected PCIe errors, old and new words": [
        "pcieport 0000:00:01.0: AER: Corrected error received: id=0008",
        "pcieport 0000:00:01.0: AER: Multiple Corrected error received: 0000:01:00.0",
        "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:00:1b.2: AER: Correctable error received from 0000:03:04.0",
        "nvidia 0000:1b:00.0: AER:   Error of this Agent is reported first",
        "pcieport 0000:03:04.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    ],
    "the services of PCIe ports": [
        "pcieport 0000:17:01.0: AER: enabled with IRQ 34",
        "pcieport 0000:17:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
    ],
    "a corrected memory error, Intel": [
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC skx MC2: HANDLING MCE MEMORY ERROR",
        "EDAC skx MC2: CPU 0: Machine Check Event: 0x0 Bank 13: 8c00004000010090",
        "EDAC skx MC2: TSC 0x0 ADDR 0x4a0d75900 MISC 0x21405cdc86",
        "EDAC MC2: 1 CE memory read error on CPU_SrcID#0_MC#2_Chan#0_DIMM#0 (channel:0 slot:0 page:0x4a0d75)",
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 0: 90000040000f0005",
        "CPU 0: Machine Check Exception: 0 Bank 5: 8c00004000010090",
    ],
    "a corrected memory error, AMD and firmware": [
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: CPU:2 (19:1:1) MC17_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b",
        "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0",
        "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
        "{1}[Hardware Error]: event severity: corrected",
        "{1}[Hardware Error]:  Error 0, type: corrected",
    ],
    "a processor that was warm": [
        "mce: CPU7: Package temperature above threshold, cpu clock throttled (total events = 1)"
    ],
    "a virtual drive without a disc": [
        "blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "Buffer I/O error on dev fd0, logical block 0, async page read",
        "Buffer I/O error on device sr1, logical block 5",
    ],
    "a file server that was rebooted": [
        "nfs: server fs1 not responding, still trying",
        "nfs: server fs1 not responding, still trying",
        "nfs: server fs1 OK",
    ],
    "a job that met the limit of its own memory": [
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_5",
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9900kB, anon-rss:900kB, UID:1000",
        "oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ],
    "a network adapter": [
        "mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:1a:00.0: mlx5_pcie_event:299:(pid 7): Detected insufficient power on the PCIe slot (27W).",
        "mlx5_core 0000:1a:00.0: mlx5_cmd_out_err:838:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, err(-22)",
        "mlx5_core 0000:1a:00.0: cmd[0]: CREATE_CQ(0x400) Async, recovered after timeout",
    ],
    "a virtual machine that counts no cycles": [
        "NMI watchdog: disabled (cpu0): hardware events not enabled",
        "NMI watchdog: Shutting down hard lockup detector on all cpus",
    ],
    "processes that write into the log of the kernel": [
        "systemd[1]: Starting Machine Check Exception Logging Daemon...",
        "gpu17 containerd[1629]: could not use snapshotter btrfs in metadata plugin: error path",
    ],
    "a program that crashed": [
        "traps: python[4711] general protection fault ip:7f0 sp:7ffc error:0 in libcuda.so[7f0+1000]",
        "python[4711]: segfault at 0 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c+d3]",
        "blk_update_request: critical target error, dev sdb, sector 0 op 0x9:(WRITE_ZEROES) flags 0x0",
    ],
    "arrays and RCU": [
        "md/raid1:md0: active with 2 out of 2 mirrors",
        "md: data-check of RAID array md0",
        "rcu: Hierarchical RCU implementation.",
        "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 2-.... } 21 jiffies s: 1137 root: 0x1/.",
        "rcu: RCU calculated value of scheduler-enlistment delay is 100 jiffies.",
    ],
    "NVMe": [
        "nvme nvme0: 63/0/0 default/read/poll queues",
        "nvme nvme0: Shutdown timeout set to 10 seconds",
        "nvme nvme3: I/O 12 QID 3 timeout, completion polled",
    ],
}
# what a line alone says: the kind, and the action where nothing but a repair ends it
ALONE = {
    "LustreError: 3341:0:(osc_cache.c:1014:osc_extent_truncate()) LBUG": "lockup",
    "PANIC at zfs_quota.c:89:zpl_get_file_info()": "lockup",
    "Kernel panic - not syncing: VFS: Unable to mount root fs": "lockup",
    "general protection fault, probably for non-canonical address 0x78d29c0722bf7aa1: 0000 [#1] SMP NOPTI": "lockup",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "lockup",
    "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134": "mce",
    "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 1: be00000000800400": "mce",
    "mce: Uncorrected hardware memory error in user-access at 3f8e65c0": "mce",
    "[Hardware Error]: Deferred error, no action required.": "mce",
    "[Hardware Error]: CPU:0 (19:1:1) MC18_STATUS[-|UE|MiscV|AddrV|-|TCC|SyndV|UECC|-|-|-]: 0xbc2030000000011b": "mce",
    "EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": "edac",
    "nvidia 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": "pcie",
    "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.": "nvrm",
}
# a question that the present state answers; without it a warning
QUESTIONS = {
    "tg3: probe of 0000:02:00.0 failed with error -22": "device",
    "nouveau 0000:02:00.0: probe with driver nouveau failed with error -12": "device",
    "EXT4-fs (sda1): warning: mounting fs with errors, running e2fsck is recommended": "filesystem",
    "BTRFS error (device sda2): bdev /dev/sda2 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0": "filesystem",
    "nfs: server fs1 not responding, timed out": "stall",
    "Lustre: a-OST1-osc-ff: Connection to a-OST1 (at 10.0.0.5@o2ib) was lost; in progress": "stall",
    "NFS: nfs4_reclaim_open_state: Lock reclaim failed!": "stall",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "lockup",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]": "lockup",
    "INFO: task python:4711 blocked for more than 120 seconds.": "hung",
    "md/raid1:md0: active with 1 out of 2 mirrors": "raid",
    "mlx5_core 0000:1a:00.0: wait_func:1137:(pid 9): CREATE_CQ(0x400) timeout. Will cause a leak": "nic",
    "NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out": "nic",
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": "io",
    "nvme nvme0: I/O 778 QID 8 timeout, aborting": "io",
    "block nvme0n1: no available path - failing I/O": "io",
    "print_req_error: critical medium error, dev sdb, sector 8736552": "io",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).": "nvrm",
}
# the kernel gave a device up: a failure without a repair where the state is not read
GAVE_UP = {
    "mpt3sas_cm0: failure at drivers/scsi/mpt3sas/mpt3sas_scsih.c:10597/_scsih_probe()!": "device",
    "ixgbe: probe of 0000:65:00.0 failed with error -5": "device",
    "nvme 0000:41:00.0: probe with driver nvme failed with error -5": "device",
    "bnxt_en 0000:26:00.0 (unnamed net_device) (uninitialized): hwrm req_type 0x1d seq id 0xb error 0x2": "nic",
    "igc 0000:2b:00.0 enp43s0: PCIe link lost, device now detached": "device",
    "Memory failure: 0x3f8e65: recovery action for dirty LRU page: Recovered": "mce",
    "EXT4-fs (sda1): Remounting filesystem read-only": "filesystem",
    "XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem": "filesystem",
    "md/raid1:md0: Disk failure on sda1, disabling device.": "raid",
    "mlx5_core 0000:1a:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count": "nic",
    "mlx5_core: probe of 0000:03:00.0 failed with error -22": "nic",
    "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)": "nvrm",
    "NVRM: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7": "nvrm",
    "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.": "filesystem",
    "nvme nvme4: Disabling device after reset failure: -19": "io",
    "nvme nvme4: Removing controller...": "io",
    "bcache: bch_cached_dev_error() stop bcache0: stopping bcache0: too many IO errors on backing device sdb": "io",
    "hpsa 0000:43:00.0: controller lockup detected: 0x00150000 after 30": "device",
    "nvidia-nvswitch: unrecoverable error in ISR": "nvswitch",
}
# never more than a warning
WARNINGS = {
    "pcieport 0000:80:01.0: DPC: containment event, status:0x1f01 source:0x0000": "pcie",
    "nvme 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)": "pcie",
    "iwlwifi 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": "pcie",
    "pci 0000:05:00.0: AER: can't recover (no error_detected callback)": "pcie",
    "{3}[Hardware Error]: event severity: recoverable": "mce",
    "Memory failure: registered address space: start 0x400000000000": "mce",
    "mce: CPU7: Package temperature above threshold, cpu clock throttled (total events = 1)": "mce",
    "Out of memory: Killed process 4711 (python) total-vm:9900kB, anon-rss:900kB, UID:1000": "oom",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python,pid=9": "oom",
    "mce: CPU12: Core temperature is above threshold, cpu clock is throttled (total events = 118203)": "mce",
    "BUG: Bad page state in process python3  pfn:3f1a2b": "lockup",
    "BUG kmalloc-64 (Tainted: G    B): Redzone overwritten": "lockup",
    "Out of range: blocklisted client": "driver",
    "ice 0000:4b:00.0: Firmware recovery mode detected. Limiting functionality.": "driver",
    "nf_conntrack: nf_conntrack: table full, dropping packet": "network",
    "neighbour: arp_cache: neighbor table overflow!": "network",
    "VFS: file-max limit 1000000 reached": "limits",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Invalid state [NV_ERR_INVALID_STATE] (0x00000040)": "driver",
    "NVRM: API mismatch: the client has the version 535.54.03, but": "driver",
    "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, High Temperature": "nic",
}


def verdict_of(log: KernelLog, stalls: Stalls | None = None, known: tuple[KnownLine, ...] = ()) -> Verdict:
    return checks.kernel_log(log, stalls or Stalls(), known)


def said(verdict: Verdict) -> list[str]:
    return [it.measured for it in verdict.findings or verdict.advisories]


def kinds(verdict: Verdict) -> list[str]:
    """Return the kinds of parts like `0000:3b:00.0 ens1 (kernel log: nic)`."""
    return [part.partition("kernel log: ")[2].rstrip(")") for part in parts(verdict)]


def failing(tmp_path: Path, *lines: str) -> list[str]:
    """Return the kinds of lines for which a node without a readable state fails."""
    verdict = verdict_of(fold(tmp_path, *lines))
    return kinds(verdict) if verdict.findings else []


def late(*lines: str) -> list[str]:
    """Return the lines as they are printed after the first minute of the boot."""
    return [*["usb 1-1: new device"] * 61, *lines]


EVERY_ORDINARY = [one for lines in ORDINARY.values() for one in lines]
SPEAKING = {**ALONE, **QUESTIONS, **GAVE_UP, **WARNINGS}


@pytest.mark.parametrize("what", ORDINARY)
def test_what_is_ordinary_fails_no_node(tmp_path: Path, what: str) -> None:
    assert failing(tmp_path, *ORDINARY[what]) == []


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelLog]:
    """The log of each line alone, from one fold of all of them among ordinary lines."""
    log = fold(tmp_path_factory.mktemp("log"), *late(*EVERY_ORDINARY, *SPEAKING))
    return {event.text: replace(log, events=(event,), now=None) for event in log.events}


@pytest.mark.parametrize("line", SPEAKING)
def test_what_a_line_alone_says_of_a_node(logs: dict[str, KernelLog], line: str) -> None:
    verdict = verdict_of(logs[line])
    assert kinds(verdict) == [SPEAKING[line]]
    if line in ALONE:
        assert verdict.findings
        assert verdict.action.is_repair
    else:
        assert result(verdict) == (MONITOR if line in GAVE_UP else WARNING)
    if line in QUESTIONS or line in GAVE_UP:
        assert "the present state is not known" in said(verdict)[0]


LOST = "md/raid1:md0: Disk failure on sda1, disabling device."
UNNAMED = "bnxt_en 0000:26:00.0 (unnamed net_device) (uninitialized): hwrm req_type 0x1d seq id 0xb error 0x2"
PAGE = "Memory failure: 0x3f8e65: recovery action for dirty LRU page: Recovered"
CONTAINED = "NVRM: Xid (PCI:0009:01:00): 94, pid=4711, name=python, Contained: SM (0x1)"
DETACHED = "igc 0000:2b:00.0 enp43s0: PCIe link lost, device now detached"
CARD_GONE = "pcieport 0000:00:07.0: pciehp: Slot(12): Card not present"
NO_LINK = "pcieport 0000:00:07.0: pciehp: Slot(12): Link Down"
HEALTH = "mlx5_core 0000:2b:00.0: device's health compromised - reached miss count"
CHECKED = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134"
CORRECTED = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 9c00004000010090"
CORRECTABLE = (
    "EDAC MC1: {} CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1 (channel:1 slot:1 page:0x0)"
)
AER = "{} 0000:{:02x}:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
OFF = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=a, GPU has fallen off the bus."
PAGE_FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, Ch 00000008"
GONE = "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"
USB = "usb 1-1: new device"
# lines of a log, and the kinds for which the node fails
TOGETHER: list[tuple[list[str], list[str]]] = [
    ([LOST, "md: md0: recovery done."], []),  # it is used again
    ([LOST, "md: md1: recovery done."], ["raid"]),
    (["md: md0: recovery done.", LOST], ["raid"]),
    ([UNNAMED, "bnxt_en 0000:26:00.0 ens1np0: renamed from eth2"], []),  # it got its name later
    ([UNNAMED, "bnxt_en 0000:26:00.1 ens1np1: renamed from eth3"], ["nic"]),
    (late("Injecting memory failure for pfn 0x3f8e65 at process virtual address 0x7f", PAGE), []),  # a test
    (late(CONTAINED, PAGE), []),  # of a GPU: gpu.xid judges it
    (late(USB, PAGE), ["mce"]),
    (late(CARD_GONE, *[USB] * 11, DETACHED), ["device"]),  # it left at another time
    (late(NO_LINK, DETACHED), ["device"]),  # the card may be there
    (late(CARD_GONE, HEALTH), ["nic"]),  # jobs use it
    ([CHECKED], []),  # mce/core.c prints what the registers hold after a reset
    (late(CHECKED), ["mce"]),
    (late(CHECKED, *[CORRECTED] * 9), ["mce"]),  # not hidden by corrected ones
    ([CORRECTABLE.format(32767)], ["edac"]),  # the number that a line prints is counted
    ([CORRECTABLE.format(99)], []),
    ([AER.format("nvidia", 16)] * 100, ["pcie"]),
    ([AER.format("nvidia", 16)] * 99, []),
    ([AER.format("nvidia", 16 + n % 6) for n in range(120)], []),  # devices are counted apart
    ([AER.format("iwlwifi", 16)] * 150, []),  # and judged by their class
    ([OFF, GONE], []),  # the words around an Xid of the hardware belong to gpu.xid
    ([GONE, OFF], []),
    ([OFF, *[USB] * 59, GONE], []),
    ([OFF, *[USB] * 60, GONE], ["nvrm"]),
    ([PAGE_FAULT, GONE], ["nvrm"]),  # an Xid of an application hides nothing
    ([GONE, PAGE_FAULT], ["nvrm"]),
    ([LOADED, GONE], ["nvrm"]),
    ([LOADED, GONE, *[USB] * 60, LOADED], []),  # before the driver was loaded again
    ([GONE, *[USB] * 59, LOADED], ["nvrm"]),  # it is printed after the GPUs were probed
]


@pytest.mark.parametrize(("lines", "kinds"), TOGETHER)
def test_the_lines_around_a_line_decide_on_it(tmp_path: Path, lines: list[str], kinds: list[str]) -> None:
    assert failing(tmp_path, *lines) == kinds


def test_a_device_that_left_with_its_dock_is_no_fault(tmp_path: Path) -> None:
    dock = ("usb 3-1.5: USB disconnect, device number 19", "thunderbolt 0-1: device disconnected")
    for left in (CARD_GONE, *dock):
        for lines in ((DETACHED, left), (left, DETACHED)):
            assert result(verdict_of(fold(tmp_path, *late(*lines)))) == PASSED, lines


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (("pci\t0000:2b:00.0 class  ", "pci\t0000:2b:00.0 has "), PASSED),  # gone with its slot
        (("pci\t0000:2b:00.0 class 0x020000 PCI_ID=8086:5502",), MONITOR),  # there, without a driver
        (("pci\t0000:2b:00.0 class 0x020000 DRIVER=igc",), WARNING),  # back
        (("pci\t0000:2c:00.0 class  ",), MONITOR),  # another one is gone
    ],
)
def test_sysfs_says_whether_a_device_left(tmp_path: Path, state: tuple[str, ...], expected: str) -> None:
    log = fold(tmp_path, *late(NO_LINK, DETACHED))
    assert result(verdict_of(replace(log, state=read_state(f"state\t{one}" for one in state)))) == expected


def test_lines_of_one_moment_are_one_event_and_printed_numbers_are_added(tmp_path: Path) -> None:
    text = "[ 10.{0:06}] mce: CPU{0}: Package temperature above threshold, cpu clock throttled\n"
    (event,) = fold_raw(tmp_path, "".join(text.format(cpu) for cpu in range(112))).events
    assert event.count == 1
    (event,) = fold(tmp_path, CORRECTABLE.format(128), CORRECTABLE.format(32767)).events
    assert event.count == 32895


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("edac", "EDAC MC0: 1 CE x"),
        ("mce", "mce: Machine check events logged"),
        ("pcie", AER.format("nvme", 3)),
    ],
)
def test_corrected_errors_are_counted_for_each_day(kind: str, text: str) -> None:
    for count, first, last, bad in (
        (100, 0.0, 86400.0, True),
        (100, 0.0, 86401.0, False),
        (199, 86400.0, 3 * 86400.0, False),
        (200, 86400.0, 3 * 86400.0, True),
        (100, None, 1e9, True),
        (100, 0.0, None, True),
    ):
        log = KernelLog("dmesg", 900, 0.0, None, (Event(kind, count, first, last, text),))
        assert (result(verdict_of(log)) == MONITOR) is bad, (count, first, last)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0", "0000:03:00.0"),
        ("pcieport 0000:00:01.0: bridge above 0000:c3:00.0: x", "0000:00:01.0"),
        ("EXT4-fs error (device dm-0): ext4_find_entry", "dm-0"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 5", "nvme0n1"),
        ("sd 0:0:9:0: [sdk] tag#915 Sense Key : Medium Error", "sdk"),
        ("EDAC MC1: 1 CE error on any memory (csrow:3 channel:1 page:0x7)", "csrow:3 channel:1"),
        ("NVRM: GPU at PCI:0000:1b:00: x", "0000:1b:00"),
        ("NVRM: GPU 0000:1B:00: x", "0000:1b:00"),
        ("md/raid1:md0: Disk failure on , x", "md0"),
        ("nvme nvmex: I/O 5 QID 0 timeout", ""),
        ("EDAC MC1: 1 CE error on any memory (csrow:3 :1 page:0x7)", "edac mc1"),
        ("mce: [Hardware Error]: CPU 3: Bank of memory", ""),
    ],
)
def test_the_device_of_an_event(text: str, device: str) -> None:
    assert Event("x", 1, None, None, text).device == device


def test_the_server_of_a_stall() -> None:
    servers = {
        "nfs: server fs1 not responding, timed out": "fs1",
        "nfs: server  not responding": "",
        "CIFS: VFS: \\\\fs2 has not responded in 180 seconds": "fs2",
        "Lustre: lfs-OST0001: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost": "lfs-OST0001",
    }
    assert {text: Event("stall", 1, None, None, text).server for text in servers} == servers


def test_a_log_that_may_not_be_read_names_the_remedy() -> None:
    for error in ("dmesg: read failed: Operation not permitted", "journalctl -k: Permission denied"):
        with pytest.raises(NotAvailable, match="sudo: true"):
            parse(Answer("gpu01", 1, b"", error.encode()))
    with pytest.raises(NotAvailable, match="journalctl -k: empty") as found:
        parse(Answer("gpu01", 1, b"", b"dmesg: empty; journalctl -k: empty"))
    assert "sudo: true" not in str(found.value)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("nfs: server fs1 not responding", "mounts tasks"),
        ("blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ)", "disks"),
        ("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "gpu pci"),  # of a driver too
        ("nvme 0000:c3:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)", "pci"),
        ("INFO: task dd:31415 blocked for more than 120 seconds.", "tasks"),
        ("EDAC MC1: 1 CE error on CPU_SrcID#1_Chan#1_DIMM#1 (x)", "rate"),
        ("Linux version 6.8", ""),
    ],
)
def test_a_line_makes_the_node_read_the_state_that_answers_it(tmp_path: Path, line: str, part: str) -> None:
    sent = answered(tmp_path, f"[ 5.000000] {line}\n").splitlines()
    assert {one for one in sent if one.startswith("need\t")} == {f"need\t{one}" for one in part.split()}


# --- the state answers

FIELDS = {"df": 4, "dd": 4, "smart": 4, "gpu": 4}  # of the other lines two


def state(text: str) -> KernelState:
    """Read lines such as 'df /home hung; swap /dev/sda3': what the node sends, without its tabs."""
    lines = []
    for one in filter(None, text.split("; ")):
        fields = FIELDS.get(one.split()[0], 2)
        words = one.split(" ", fields - 1)
        lines.append("\t".join(["state", *words, *[""] * (fields - len(words))]))
    return read_state(lines)


def logged(text: str, present: str = "", *, now: float | None = 1000.0) -> KernelLog:
    rule = rule_of(text)
    assert rule, text
    event = Event(rule.kind, 1, 700.0, 700.0, text, 7)
    return KernelLog("dmesg", 900, 0.0, None, (event,), now=now, state=state(present))


def mount(at: str, kind: str, device: str, options: str, flags: str = "rw,relatime") -> str:
    return f"mountinfo 22 1 0:55 / {at} {flags} shared:1 - {kind} {device} {options}"


NFS = "nfs: server fs1 not responding, timed out"
HOME = mount("/home", "nfs4", "fs1:/export", "rw,soft")
OTHER = mount("/data", "nfs4", "fs2:/export", "rw,soft")
HOME_RO = mount("/home", "nfs4", "fs1:/export", "ro,soft")
WEKA = mount("/home", "wekafs", "fs1:/export", "rw,soft")
ROOT_RW, ROOT_RO = mount("/", "ext4", "/dev/sda2", "rw"), mount("/", "ext4", "/dev/sda2", "ro")
ROOT_RO_BY_FLAG = mount("/", "ext4", "/dev/sda2", "ro", "ro,relatime")
ROOT_BY_NAME = mount("/", "ext4", "/dev/root", "ro") + "; block /sys/class/block/sda2/dev:0:55"
DISK = "blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ)"
IO_ERROR = "dd sda 1 dd: Input/output error"
EBS = "disk sda /x holders removable 0 Amazon Elastic Block Store"
NOT_OPENED = "dd sda 1 dd: failed to open '/dev/sda': "
REMOVED = "nvme nvme2: Removing after probe failure status: -19"
NVME_ERROR = "dd nvme2n1 1 dd: Input/output error"
ISCSI = "disk sda /sys/devices/platform/host9/session2/x holders removable 0 VIRTUAL-DISK"
INIT = "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)"
LISTED, ANOTHER = "gpu  0 GPU 00000000:1B:00.0", "gpu  0 GPU 00000000:1C:00.0"
FATAL = "nvme 0000:c3:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
FATAL_BEHIND_PORT = (
    "pcieport 0000:00:01.0: device 0000:c3:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)"
)
NIC = "pci 0000:c3:00.0 class 0x020000 DRIVER=bnxt_en; pci 0000:c3:00.0 has infiniband net"
PORT_OF_NVME = (
    "pci 0000:c3:00.0 class 0x060400 DRIVER=pcieport; pci 0000:c3:00.0 has 0000:c4:00.0; "
    "pci 0000:c4:00.0 class 0x010802 DRIVER=nvme"
)
POOL = "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended."
HUNG = "INFO: task dd:31415 blocked for more than 120 seconds."
THREAD, THREAD_LONG = (f"INFO: task kcompactd0:58 blocked for more than {n} seconds." for n in (241, 4435))
WAITS = "task tasks 1; task {} voluntary_ctxt_switches: 7".format
BTRFS_RW, BTRFS_RO = (mount("/scratch", "btrfs", "/dev/vdb", options) for options in ("rw", "ro"))
ABORTED = "BTRFS critical (device vdb state EA): unable to find ref byte nr 227177795584"
LEAF = "BTRFS critical (device vdb): corrupt leaf: block=12461820608512 slot=31"
XFS = mount("/scratch", "xfs", "/dev/vdb", "rw")
XFS_BY_NAME = mount("/scratch", "xfs", "/dev/root", "rw") + "; block /sys/class/block/vdb/dev:0:55"
REPAIR = "XFS (vdb): Unmount and run xfs_repair"
CEPH = "ceph: [a1b2 4711]: mds0 rejected session: blocklisted"
CEPHFS = mount("/home", "ceph", "10.0.0.1:6789:/", "rw")
UNSUPPORTED = "nvidia: probe of 0000:01:00.0 failed with error -1"
RESET = "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"
MEGARAID = "megaraid_sas 0000:01:00.0: Failed from megasas_init_fw 6399"
COMPLAINT = "megaraid_sas 0000:01:00.0: Failed to get the list of targets"
MSIX = "ena 0000:00:03.0 (unnamed net_device) (uninitialized): Failed to enable MSI-X. irq_cnt -524"
C3, AT_1B, AT_01 = "pci 0000:c3:00.0", "pci 0000:1b:00.0", "pci 0000:01:00.0"
NOT_READY = "nvme nvme2: Device not ready; aborting reset"
OLD_CARD = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
ONE_MIRROR = "md/raid1:md0: active with 1 out of 2 mirrors"
MOUNTS_RO = "mounts /dev/sda2 / ext4 ro 0 0"
EXT4, EXT4_DM = "EXT4-fs error (device sda2): x", "EXT4-fs error (device dm-3): x"
FIRMWARE = "nvidia 0000:01:00.0: Direct firmware load failed"
# line, present state, verdict, and what it says: other branches have the same verdict
ANSWERED: list[tuple[str, str, str, str]] = [
    (NFS, f"{HOME}; df /home 0", WARNING, "/home can be read"),
    (NFS, f"{HOME}; df /home hung", MONITOR, "/home (fs1:/export) cannot be read now: no answer of df"),
    (NFS, f"{HOME}; df /home 1 df: /home: Permission denied", WARNING, ""),
    (NFS, f"{HOME}; {OTHER}; df /home 0; df /data hung", WARNING, "/home can be read"),
    (NFS, ROOT_RW, WARNING, "it is not mounted"),
    (NFS, f"{HOME}; df /home 126", WARNING, ""),
    (NFS, f"{ROOT_RW}; {WAITS('20711 kubelet')}", MONITOR, "20711 kubelet"),
    (NFS, f"{HOME}; df /home 0; {WAITS('20711 dd')}", WARNING, "can be read"),
    ("nfs: server fs3 not responding, timed out", f"{OTHER}; df /data hung", MONITOR, "/data"),
    (EXT4, ROOT_RO, DRAIN, "/ is read-only"),
    (EXT4, f"{ROOT_RW}; df / 0", WARNING, "/ can be read"),
    (EXT4, f"{ROOT_RO_BY_FLAG}; df / 0", WARNING, ""),
    (EXT4, ROOT_BY_NAME, DRAIN, "/ is read-only"),
    ("EXT4-fs error (device sdb1): x", ROOT_RO, WARNING, "not mounted"),
    (EXT4_DM, ROOT_RO, DRAIN, "read-only"),
    (EXT4_DM, f"{ROOT_RO}; block /sys/class/block/dm-3/dev:253:3", WARNING, "not mounted"),
    (EXT4_DM, HOME_RO, WARNING, "not mounted"),
    ("EXT4-fs (sda2): error x", f"{MOUNTS_RO}; fstab /dev/sda2 / ext4 defaults 0 1", DRAIN, "read-only"),
    ("EXT4-fs (sda2): error x", f"{MOUNTS_RO}; fstab /dev/sda2 / ext4 ro 0 1", WARNING, ""),
    (DISK, f"{ROOT_RW}; dd sda 0", WARNING, "can be read"),
    (DISK, f"{ROOT_RW}; dd sda hung", DRAIN, "cannot be read"),
    (DISK, f"{ROOT_RW}; {IO_ERROR}", DRAIN, "cannot be read"),
    (DISK, f"{ROOT_RW}; dd sda 1 dd: Permission denied", WARNING, ""),
    (DISK, IO_ERROR, WARNING, "is not known"),
    (DISK, f"{OTHER}; {IO_ERROR}", WARNING, "it is not in use"),
    (DISK, f"{OTHER}; swap /dev/sda3; {IO_ERROR}", DRAIN, "cannot be read"),
    (DISK, f"{OTHER}; swap /dev/sdb3; {IO_ERROR}", WARNING, "it is not in use"),
    (DISK, f"{ROOT_RW}; {NOT_OPENED}No such device or address", DRAIN, "cannot be read"),
    (DISK, f"{ROOT_RW}; df / 0; {NOT_OPENED}No medium found", WARNING, "/ can be read"),
    (DISK, f"disk sda /sys/x holders dm-0 removable 0 x; {IO_ERROR}", DRAIN, "cannot be read"),
    (DISK, f"{ROOT_RW}; smart sda 0 result: FAILED!", DRAIN, "SMART"),
    (DISK, f"{ROOT_RW}; dd sda hung; disk sda /sys/x holders removable 1 x", WARNING, "not a disk"),
    (DISK, f"{ROOT_RW}; dd sda hung; {ISCSI}", WARNING, "not a disk"),
    (DISK, f"{ROOT_RW}; dd sda hung; {EBS}", WARNING, "not a disk"),
    (DISK, "md md0 : active raid1 sda[1](F) sdb[0]", MONITOR, "(F)"),
    (DISK, f"{NOT_OPENED}No such file or directory", WARNING, "not mounted"),
    (NOT_READY, NVME_ERROR, MONITOR, "removed the disk"),
    (NOT_READY, f"{OTHER}; {NVME_ERROR}", WARNING, "not in use"),
    ("Read-error on swap-device (254:1:78162624)", "", MONITOR, "memory of processes"),
    ("blk_update_request: I/O error, dev sr0, sector 5 op 0x0:(READ)", ROOT_RW, WARNING, "not a disk"),
    (REMOVED, "dd nvme2n1 1 dd: failed to open '/dev/nvme2n1': No such file or directory", MONITOR, "absent"),
    (REMOVED, "dd nvme2n1 0", WARNING, "can be read"),
    (LOST, "md md0 : active raid1 sdb1[0]; md       5 blocks [2/2] [UU]", WARNING, "no array lacks a disk"),
    (ONE_MIRROR, "md md0 : active raid1 sdb1[0]; md       5 blocks [2/1] [U_]", MONITOR, "md0 [U_]"),
    (INIT, f"{LISTED}; gpu  0     GPU Recovery Action : None", WARNING, "lists this GPU"),
    (INIT, ANOTHER, REBOOT, "does not list"),
    (INIT, f"{ANOTHER}; {AT_1B} class 0x030200 DRIVER=vfio-pci", WARNING, "driver vfio-pci uses it"),
    (INIT, f"{AT_1B} class 0x030200 PCI_ID=10DE:2331", REBOOT, "no driver uses this GPU"),
    (INIT, f"{AT_1B} class 0x030000 PCI_ID=10DE:1C03; {LISTED}", WARNING, "lists this GPU"),
    (INIT, f"{AT_1B} class 0x030200 PCI_ID=1002:74A1", MONITOR, "not known"),
    (INIT, "gpu  hung", MONITOR, "not known"),
    (INIT, "gpu  127 nvidia-smi: not found", MONITOR, "not known"),
    (FATAL_BEHIND_PORT, "", WARNING, "neither a GPU"),
    (POOL, "pool tank ONLINE", WARNING, "the pool is ONLINE"),
    (POOL, "pool tank SUSPENDED", MONITOR, "the pool is SUSPENDED"),
    (POOL, "pool data ONLINE", MONITOR, "not known"),
    (OLD_CARD, "gpu  9 No devices were found", MONITOR, "no GPU"),
    (GONE, LISTED, WARNING, "lists this GPU"),
    (FATAL, "", DRAIN, "broke in this boot"),
    (FATAL, f"{C3} class 0x010802 DRIVER=nvme PCI_ID=144D:A80A", DRAIN, "broke in this boot"),
    (FATAL, f"{C3} class; pci 0000:c3:00.0 has", DRAIN, "broke in this boot"),
    (FATAL, f"{C3} class 0x010802 PCI_ID=144D:A80A", WARNING, "no driver uses it"),
    (FATAL, f"{C3} class 0x030000 DRIVER=ast PCI_ID=1A03:2000", WARNING, "neither a GPU"),
    (FATAL, NIC, DRAIN, "broke"),
    (FATAL, PORT_OF_NVME, DRAIN, "broke"),
    (HUNG, WAITS("31415 dd"), MONITOR, "waiting now: 31415 dd"),
    (HUNG, "task tasks 0", WARNING, "not known"),
    (HUNG, f"task tasks 1; task 31415 dd; {WEKA}; df /home hung", WARNING, "waits for a file server"),
    (THREAD, WAITS("58 kcompactd0 kernel"), MONITOR, "58 kcompactd0 of"),
    (THREAD_LONG, WAITS("59 md0_resync kernel"), WARNING, "no process waits"),
    (ABORTED, "", MONITOR, "stopped writing"),
    (ABORTED, f"{BTRFS_RW}; df /scratch 0", WARNING, "/scratch can be read"),
    (ABORTED, BTRFS_RO, DRAIN, "/scratch is read-only"),
    ("BTRFS warning (device vdb: state MCS): x error", "", WARNING, "not known"),
    (LEAF, "", MONITOR, "damaged on the disk"),
    (LEAF, ROOT_RW, MONITOR, "no btrfs of this disk is mounted"),
    (LEAF, f"{BTRFS_RW}; df /scratch 0", WARNING, "/scratch can be read"),
    (LEAF.replace("vdb", "loop1"), ROOT_RW, WARNING, "not a disk"),
    (REPAIR, "", MONITOR, "damaged on the disk"),
    (REPAIR, f"{XFS}; df /scratch 0", MONITOR, "until a person"),
    (REPAIR, f"{XFS_BY_NAME}; df /scratch 0", MONITOR, "until a person"),
    (REPAIR, f"{XFS}; df /scratch 1 df: Input/output error", MONITOR, "cannot be read"),
    ("XFS (loop1): Unmount and run xfs_repair", ROOT_RW, WARNING, "not a disk"),
    (CEPH, f"{CEPHFS}; df /home 1 df: Permission denied.", WARNING, ""),
    (CEPH, f"{CEPHFS}; df /home 1 df: Cannot send after transport", MONITOR, "cannot be read"),
    (CEPH, f"{CEPHFS}; df /home 0", WARNING, "can be read"),
    (UNSUPPORTED, f"{AT_01} class 0x030200 PCI_ID=10DE:2330", MONITOR, "no driver uses"),
    (RESET, "", MONITOR, "does not use"),
    ("Aborting journal on device sda2-8.", ROOT_RO, DRAIN, "/ is read-only"),
    (MEGARAID, "", MONITOR, "does not use"),
    (MEGARAID, f"{AT_01} class 0x010400 PCI_ID=1000:005F", MONITOR, "no driver uses"),
    (MEGARAID, f"{AT_01} class 0x010400 DRIVER=megaraid_sas", WARNING, ""),
    (MEGARAID, f"{AT_01} class 0x010400 DRIVER=vfio-pci", WARNING, ""),
    (COMPLAINT, "", WARNING, ""),
    (COMPLAINT, f"{AT_01} class 0x010400 PCI_ID=1000:005F", MONITOR, "no driver uses"),
    (MSIX, "", MONITOR, "does not use"),
    (MSIX, "pci 0000:00:03.0 class 0x020000 DRIVER=ena", WARNING, ""),
    (FIRMWARE, f"{AT_01} class 0x030000 PCI_ID=10DE:1C03", WARNING, ""),
]


@pytest.mark.parametrize(("line", "present", "expected", "words"), ANSWERED)
def test_the_present_state_is_the_verdict(line: str, present: str, expected: str, words: str) -> None:
    verdict = verdict_of(logged(line, present))
    (shown,) = said(verdict)
    assert (result(verdict), words in shown) == (expected, True), shown


def test_a_complaint_about_a_device_that_is_gone_is_no_open_question() -> None:
    (shown,) = said(verdict_of(logged(COMPLAINT)))
    assert "not known" not in shown


def test_the_first_three_processes_that_wait_are_named() -> None:
    waiting = "; ".join(f"task {number} sh voluntary_ctxt_switches: 7" for number in range(1, 5))
    (shown,) = said(verdict_of(logged(HUNG, f"task tasks 1; {waiting}")))
    assert "waiting now: 1 sh, 2 sh, 3 sh" in shown
    assert "4 sh" not in shown


SOFT_LOCKUP = "watchdog: BUG: soft lockup - CPU#23 stuck for {}s! [ksoftirqd/23:150]"
RCU = "rcu: INFO: rcu_sched detected stalls on CPUs/tasks: (detected by 85, t={} jiffies)"


@pytest.mark.parametrize(
    ("text", "seconds", "count", "bad"),
    [
        (SOFT_LOCKUP.format(226906), 0.0, 1, True),
        (SOFT_LOCKUP.format(485), 0.0, 1, False),  # a guest of 2 TB ended
        (RCU.format(81782272), 0.0, 1, True),
        (RCU.format(21002), 0.0, 1, False),
        (SOFT_LOCKUP.format(22), 4000.0, 143, True),
        (SOFT_LOCKUP.format(22), 4000.0, 20, False),  # some, hours apart
        (SOFT_LOCKUP.format(22), 4031.0, 64, True),
        (SOFT_LOCKUP.format(22), 4032.0, 64, False),  # 63 s apart
    ],
)
def test_a_processor_silent_for_an_hour_fails(text: str, seconds: float, count: int, *, bad: bool) -> None:
    found = Event("lockup", count, 700.0, 700.0 + seconds, text, 7)
    log = KernelLog("dmesg", 900, 0.0, None, (found,), now=9000.0)
    assert result(verdict_of(log)) == (MONITOR if bad else WARNING)


def test_xfs_that_was_repaired_or_makes_its_quota_again_warns() -> None:
    log = logged(REPAIR, f"{XFS}; df /scratch 0")
    assert verdict_of(log).findings
    text = 'XFS (vdb): metadata I/O error in "xfs_dquot_disk_read" error 74'
    quota = Event("filesystem", 1, 699.0, 699.0, text, 6)
    assert not verdict_of(replace(log, events=(quota, *log.events))).findings
    again = Event("recovered", 1, 800.0, 800.0, "XFS (vdb): Ending clean mount", 9)
    assert not verdict_of(replace(log, events=(*log.events, again))).findings


@pytest.mark.parametrize(
    ("now", "bad"), [(701.0, True), (879.0, True), (880.0, False), (None, False), (600.0, False)]
)
def test_a_lockup_fails_while_the_kernel_prints_it(now: float | None, *, bad: bool) -> None:
    verdict = verdict_of(logged("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", now=now))
    assert result(verdict) == (MONITOR if bad else WARNING)


PORT = "port ens1 PCI_SLOT_NAME=0000:3b:00.0 state {}"
READ_ONLY = "EXT4-fs (sda2): Remounting filesystem read-only"
FOUR_MOUNTS = "; ".join(f"{HOME.replace('/home', at)}; df {at} hung" for at in ("/a", "/b", "/c", "/d"))


@pytest.mark.parametrize(
    ("line", "present", "part"),
    [
        (FATAL, "pci 0000:c3:00.0 class 0x010802 DRIVER=nvme", "0000:c3:00.0 (kernel log: pcie)"),
        (HEALTH.replace("2b", "3b"), PORT.format("up"), "0000:3b:00.0 ens1 (kernel log: nic)"),
        (DISK, "", "sda (kernel log: io)"),
        (REMOVED, "", "nvme2n1 (kernel log: io)"),
        (READ_ONLY, mount("/scratch", "ext4", "/dev/sda2", "ro"), "/scratch sda2 (kernel log: filesystem)"),
        (READ_ONLY, "", "sda2 (kernel log: filesystem)"),
        (NFS, f"{HOME}; {OTHER}; df /home hung; df /data 0", "/home (kernel log: stall)"),
        (NFS, f"{HOME}; df /home 0", "fs1 (kernel log: stall)"),
        (NFS, FOUR_MOUNTS, "/a /b /c (kernel log: stall)"),
        ("INFO: task xfsaild/nvme0n1:812 blocked for more than 120 seconds.", "", "kernel log: hung"),
        ("Out of memory: Killed process 31415 (md0): x", "", "kernel log: oom"),
        ("VFS: file-max limit 1024 reached by nvme0", "", "kernel log: limits"),
        ("neighbour (eth0): neighbor table overflow!", "", "kernel log: network"),
        ("BERT: Error records from previous boot: 0000:c3:00.0", "", "kernel log: boot record"),
        (INIT, ANOTHER, "0000:1b:00.0 (kernel log: nvrm)"),
        (LOST, "", "sda (kernel log: raid)"),
        ("EDAC MC0: 1 UE error on CPU_SrcID#0_DIMM#0", "", "cpu_srcid#0_dimm#0 (kernel log: edac)"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "", "kernel log: lockup"),
        ("NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out", "", "ens1 (kernel log: nic)"),
    ],
)
def test_a_finding_names_the_mount_disk_function_or_module(line: str, present: str, part: str) -> None:
    assert parts(verdict_of(logged(line, present))) == [part]


UP, DOWN = "mlx5_core 0000:3b:00.0 ens1: Link up", "mlx5_core 0000:3b:00.0 ens1: Link down"


@pytest.mark.parametrize(
    ("lines", "now", "expected"),
    [
        ((DOWN,), "down", PASSED),  # never used
        ((UP,), "up", PASSED),
        ((DOWN, UP), "up", PASSED),  # a boot
        ((UP, DOWN, UP, DOWN, UP), "up", WARNING),
        ((UP, DOWN), "down", MONITOR),
        ((UP, DOWN, UP), "down", PASSED),
    ],
)
def test_a_port_that_was_up_fails_while_it_is_down(
    tmp_path: Path, lines: tuple[str, ...], now: str, expected: str
) -> None:
    log = replace(fold(tmp_path, *lines), state=state(PORT.format(now)))
    assert result(verdict_of(log)) == expected


STALE = "1 df: /home: Stale file handle"


@pytest.mark.parametrize(
    ("nodes", "away", "df", "expected"),
    [
        (1, 1, STALE, MONITOR),
        (2, 1, STALE, REBOOT),
        (2, 2, STALE, CONFIGURE),
        (4, 2, STALE, MONITOR),
        (4, 3, STALE, CONFIGURE),
        (2, 1, "hung", MONITOR),  # it may answer later
        (2, 2, "hung", CONFIGURE),
    ],
)
def test_a_server_drains_the_only_node_that_lost_it(nodes: int, away: int, df: str, expected: str) -> None:
    sick = logged(NFS, f"{HOME}; df /home {df}")
    sound = logged(NFS, f"{HOME}; df /home 0")
    stalls = Stalls.of_all({f"gpu{n}": sick if n < away else sound for n in range(nodes)})
    verdict = verdict_of(sick, stalls)
    assert result(verdict) == expected
    of_all = f"file server fs1 does not answer on {away} of {nodes} nodes, so the server is at fault: "
    assert said(verdict)[0].startswith(of_all) is (expected == CONFIGURE)
    assert result(verdict_of(sound, stalls)) == WARNING
    counted = {it.name: it.value for it in verdict.metrics}
    assert counted == {"kernel_log_lines": 900, "file_server_stalls": 1}


AT_C3 = "pci 0000:c3:00.0 class {} DRIVER={}".format
HUNG_TASK, AER_C = "kernel/hung_task.c", "drivers/pci/pcie/aer.c"
SOFT = "https://man7.org/linux/man-pages/man5/nfs.5.html: soft"


def considered(machine: str, source: str, expected: str, line: str, present: str) -> CounterExample:
    verdict = partial(verdict_of, logged(line, present))
    return CounterExample("os.kernel_log", machine, source, expected, verdict, sick=expected != WARNING)


COUNTER_EXAMPLES = [
    considered("a soft NFS mount whose server is back", SOFT, WARNING, NFS, f"{HOME}; df /home 0"),
    considered("a soft NFS mount whose server is away", SOFT, MONITOR, NFS, f"{HOME}; df /home hung"),
    considered("an old display card beside good GPUs", "NVIDIA nv-pci.c", WARNING, OLD_CARD, LISTED),
    considered("a Wi-Fi card with PCIe errors", AER_C, WARNING, FATAL, AT_C3("0x028000", "iwlwifi")),
    considered("a network volume that failed once", "longhorn.io/docs", WARNING, DISK, f"{ROOT_RW}; {ISCSI}"),
    considered("md resync at work", HUNG_TASK, WARNING, HUNG, "task tasks 1"),
    considered("an NVMe disk in use after a fatal error", AER_C, DRAIN, FATAL, AT_C3("0x010802", "nvme")),
]


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_a_machine_that_was_considered(machine: CounterExample) -> None:
    assert_as_expected(machine)


# --- what the site knows


def entry(**values: str) -> KnownLine:
    return KnownLine.model_validate({"meaning": "cable of rack 7", "reason": "T-1", **values})


def test_what_the_cluster_file_knows_decides_first() -> None:
    log = logged(FATAL)
    assert result(verdict_of(log)) == DRAIN
    assert result(verdict_of(log, known=(entry(pattern="0000:c3:00[.]0"),))) == PASSED
    warning = verdict_of(log, known=(entry(pattern="Fatal", action="warn"),))
    assert result(warning) == WARNING
    assert "cable of rack 7 (known: T-1)" in said(warning)[0]
    rebooting = verdict_of(log, known=(entry(pattern="Fatal", action="reboot"),))
    assert (result(rebooting), rebooting.findings[0].setting) == (REBOOT, "known")


def test_a_node_sends_the_lines_that_only_the_site_knows(tmp_path: Path) -> None:
    known = (entry(pattern="it's [0-9]+/[0-9]+ of rack", action="drain"),)
    tool = tmp_path / "dmesg"
    tool.write_text("#!/bin/sh\necho '[ 1.0] Linux'; echo \"[ 2.0] foo: it's 3/4 of rack 7\"\n")
    tool.chmod(0o755)
    probe = probes.kernel_log_of(known)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, env=env, timeout=60, check=True)
    log = probe.parse(Answer("gpu01", 0, done.stdout, done.stderr))
    assert [(event.kind, event.text) for event in log.events] == [("known", "foo: it's 3/4 of rack 7")]
    assert result(verdict_of(log, known=known)) == DRAIN
    assert not verdict_of(log).findings


# --- the fold


def test_without_times_what_follows_an_xid_is_not_known_to_belong_to_it(tmp_path: Path) -> None:
    texts = (f"{GONE}\n{OFF}\n", f"{OFF}\n{GONE}\n", f"[ 5.0] {OFF}\n{GONE}\n")
    verdicts = [verdict_of(fold_raw(tmp_path, text)) for text in texts]
    assert [bool(verdict.findings) for verdict in verdicts] == [False, True, True]
    assert {result(verdict) for verdict in verdicts[1:]} == {REBOOT}


def test_a_record_of_an_earlier_boot_warns(tmp_path: Path) -> None:
    fatal = "[Hardware Error]: event severity: fatal"
    record = ["BERT: Error records from previous boot:", fatal, "[Hardware Error]:  Error 0, type: fatal"]
    verdict = verdict_of(fold(tmp_path, *record, USB))
    assert judged(verdict) == (WARNING, ["kernel log: boot record"])
    assert len(said(verdict_of(fold(tmp_path, *record, USB, fatal)))) == 2


def test_a_finding_quotes_the_message_and_what_is_expected(tmp_path: Path) -> None:
    line = "EDAC MC0: 1 UE memory read error" + "x" * 200
    (found,) = verdict_of(fold(tmp_path, line)).findings
    assert found.measured == f"{line[:160]} (1 times, last 1 s after boot); the memory lost data in this boot"
    assert found.expected == "no uncorrected memory error"


def test_a_short_log_of_known_messages_is_a_log_without_times_too(tmp_path: Path) -> None:
    assert len(fold_raw(tmp_path, f"{OFF}\n").xids) == 1
    with pytest.raises(NotAvailable, match="not a kernel log"):
        fold_raw(tmp_path, "No journal files were found.\n")


def letters(count: int) -> list[str]:
    """Return different names without a number, which would be folded."""
    return [f"{chr(97 + n // 26)}{chr(97 + n % 26)}z" for n in range(count)]


def test_a_flood_of_other_messages_hides_no_xid(tmp_path: Path) -> None:
    flood = [f"EDAC MC0: 1 UE memory read error on {name}" for name in letters(300)]
    log = fold(tmp_path, *flood, PAGE_FAULT, OFF)
    assert [found.number for found in log.xids] == [31, 79]
    verdict = verdict_of(log)
    assert len(verdict.findings) == 200
    assert "100 lines of the kernel log were not read" in verdict.reason


def test_a_log_whose_rest_was_not_read_is_not_checked(tmp_path: Path) -> None:
    flood = [f"XFS (dm{name}): log I/O error" for name in letters(201)]
    assert result(verdict_of(fold(tmp_path, *flood))) == NOT_CHECKED
    assert result(verdict_of(fold(tmp_path, *flood[:200]))) == WARNING


def test_complaints_of_drivers_take_no_place_of_other_lines(tmp_path: Path) -> None:
    flood = [f"mlx5_core {name}: failed" for name in letters(50)]
    log = fold(tmp_path, *flood, *late(next(iter(ALONE))))
    assert (log.complaints, log.unsent, len(log.events)) == (10, 0, 41)
    assert any("10 further lines of drivers" in it.measured for it in verdict_of(log).advisories)


def test_numbers_and_addresses_make_no_new_event(tmp_path: Path) -> None:
    text = "NVRM: RmInitAdapter failed at 0x{0:x} of {0:08x} (ffff{0:04x}) (pid {0}): a:{1} t={0}"
    events = fold(tmp_path, *(text.format(n, n + 100) for n in range(999))).events
    assert [event.count for event in events] == [999]


def test_the_name_of_a_device_makes_a_new_event(tmp_path: Path) -> None:
    buses = ["nvme0n{}", "sda{}", "md{}", "0000:1b:0{}.0", "GPU{}", "ens{}f0"]
    devices = (*buses, "DIMM#{}", "CPU_SrcID#{}_MC#2", "any (csrow:{} channel:1 page:0x7")
    lines = [f"Buffer I/O error on dev {it.format(n)}, logical block 0" for it in devices for n in range(5)]
    assert [event.text for event in fold(tmp_path, *lines).events] == lines


def test_a_level_of_the_log_silences_a_word_of_a_driver(tmp_path: Path) -> None:
    text = "<{}>[ 5.000000] mlx5_core 0000:3b:00.0: something failed\n[ 6.0] x\n"
    assert [len(fold_raw(tmp_path, text.format(n)).events) for n in (3, 4, 6)] == [1, 1, 0]


@pytest.mark.parametrize("awk", ["mawk", "gawk", "busybox awk", "original-awk"])
def test_the_program_runs_in_every_awk(tmp_path: Path, awk: str, logs: dict[str, KernelLog]) -> None:
    if not shutil.which(awk.split(maxsplit=1)[0]):
        pytest.skip(f"{awk} is not installed")
    (tmp_path / "awk").write_text(f'#!/bin/sh\nexec {awk} "$@"\n')
    (tmp_path / "awk").chmod(0o755)
    texts = [event.text for event in fold(tmp_path, *late(*EVERY_ORDINARY, *SPEAKING)).events]
    assert texts == [*logs]


STAMP = "[ 1234.114906]"
STAMPED = [f"{STAMP} {{}}", f"<3>{STAMP} {{}}", f"kern  :err   : {STAMP} {{}}", f"{STAMP}[ T123] {{}}"]
OF_JOURNAL = [f"{STAMP} g kernel: {{}}", f"{STAMP} kernel: {{}}", f"Feb 23 16:24:18 g kernel: {STAMP} {{}}"]
TIMELESS = ["[Sun Feb 23 16:24:18 2025] {}", "kernel: {}", "[  +0.000844] {}"]
FORMS = (*STAMPED, *OF_JOURNAL, *TIMELESS, "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {}")


XIDS = [
    ("NVRM: Xid (PCI:0000:1B:00): 79, GPU has fallen", 79, "0000:1b:00", "GPU has fallen"),
    ("NVRM: Xid (0000:03:00): 45, Ch 00000010", 45, "0000:03:00", "Ch 00000010"),
    ("NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 31, pid=1", 31, "0000:1b:00", "pid=1"),
    ("NVRM: Xid (PCI:0000:3f:00): 46", 46, "0000:3f:00", ""),
]


@pytest.mark.parametrize(
    ("form", "xid"), [*((form, XIDS[0]) for form in FORMS), *((FORMS[0], xid) for xid in XIDS[1:])]
)
def test_an_xid_is_read_in_every_form(tmp_path: Path, form: str, xid: tuple[str, int, str, str]) -> None:
    line, *values = xid
    (found,) = fold_raw(tmp_path, f"{form.format(line)}\n" * 2).xids
    event, times = found.event, 1234.114906 if "1234" in form else None
    assert [found.number, found.bus, found.text] == values
    assert event == Event("xid", 2, times, times, line, 2)


def test_the_level_of_a_line_is_not_of_its_text_but_a_subsystem_is(tmp_path: Path) -> None:
    for level in ("emerg", "warn", "debug"):
        (event,) = fold_raw(tmp_path, f"kern  :{level:6}: [    5.000000] {PAGE_FAULT}\n").events
        assert event.text == PAGE_FAULT
    (event,) = fold_raw(tmp_path, "kernel: nfs: server fs1 not responding, still trying\n").events
    assert (event.server, event.text) == ("fs1", "nfs: server fs1 not responding, still trying")


def test_a_line_without_a_time_has_that_of_the_line_before_it(tmp_path: Path) -> None:
    """github.com/NVIDIA/NVSentinel/issues/155: one message of three lines."""
    gone = "               NVRM: fallen off the bus and is not responding to commands.\n"
    log = fold_raw(tmp_path, f"[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n{gone}NVRM: failed\n")
    seen = [(event.text, event.last) for event in log.events]
    assert seen == [(gone.strip(), 1843.308145), ("NVRM: failed", None)]


def test_the_name_of_a_process_is_no_severity_and_the_parts_of_a_gpu_are_one(tmp_path: Path) -> None:
    words = "NVRM: Xid (PCI:0000:1b:00): 145, pid=1, name={}, RLW_RXPIPE {} XC0 i0 Link 13 (0x0)"
    assert len(fold(tmp_path, words.format("nonfatal", "Fatal"), words.format("fatal", "Nonfatal")).xids) == 2
    lines = [PAGE_FAULT.replace("1b:00", f"1b:00 GPU-I:0{part}") for part in (1, 5)]
    assert [found.event.count for found in fold(tmp_path, *lines).xids] == [2]


# --- the answer, value by value

ROW = "seen\t3\t4\t[    1.5]\t[ 2.25]\t{}"
END = "end\t900\t1\t2\t3\t[ 12.5]"


def folded(
    *rows: str, first: str = "[ 0.5] x", end: str = END, clock: str = "1700000100 100.5 7"
) -> KernelLog:
    text = "\n".join(("source dmesg", f"clock {clock}", f"from\t{first}", *rows, end))
    return parse(Answer("gpu01", 0, f"{text}\n".encode()))


@pytest.mark.parametrize(
    "row", ["seen\t3\t4\t\t", "seen\tx\t4\t\t\tmce", "seen\t3\tx\t\t\tmce", "seen\t\t4\t\t\tmce"]
)
def test_a_row_that_is_cut_is_not_understood(row: str) -> None:
    with pytest.raises(ProbeError, match="not understood"):
        folded(row)


@pytest.mark.parametrize("end", ["end\t9\t0\t0\t0", "end\t9\t0\t0\t0\t\t", "", "source x"])
def test_a_log_without_its_end_is_cut(end: str) -> None:
    with pytest.raises(ProbeError, match="the end of the kernel log is missing"):
        folded(end=end)


@pytest.mark.parametrize(
    ("clock", "booted", "now"),
    [
        ("1700000100 100.5 7", "2023-11-14T22:13:19Z", 100.5),
        ("1700000100", "0 s after boot", None),
        ("x y", "0 s after boot", None),
        ("1e30 5", "0 s after boot", 5.0),
    ],
)
def test_the_clock_of_the_node(clock: str, booted: str, now: float | None) -> None:
    log = folded(clock=clock)
    assert (log.when(0.0), log.now) == (booted, now)
    assert log.when(None) == "at an unknown time"


def test_every_value_of_an_answer() -> None:
    log = folded(ROW.format("EDAC MC0: 1 CE memory\terror "))
    event = Event("edac", 3, 1.5, 2.25, "EDAC MC0: 1 CE memory\terror", 4)
    assert log == KernelLog("dmesg", 900, 0.5, log.booted, (event,), 1, 2, 100.5, 12.5, 3)
    xid = folded(ROW.format("NVRM: Xid (PCI:0000:1B:00): 79,text"), ROW.format("NVRM: Xid (): 79"))
    assert xid.xids == (XidEvent(79, "0000:1b:00", xid.events[0], "text"),)
    switches = [
        ("nvidia-nvswitch3: SXid (PCI:1): 7, Fatal, x", [(7, "nvidia-nvswitch3", "Fatal, x")]),
        ("nvidia-nvswitch4: SXid (): 8", [(8, "nvidia-nvswitch4", "")]),
        ("nvidia-nvswitch3: SXid (PCI:1): 7x, Fatal", [(7, "nvidia-nvswitch3", "")]),
    ]
    for line, values in switches:
        assert [(it.number, it.bus, it.text) for it in folded(ROW.format(line)).sxids] == values
    assert folded(ROW.format("NVRM: Xid (PCI:0000:1b:00): x")).xids == ()
    lustre = folded(ROW.format("Lustre: a: Connection to fs-OST0 (at x) was lost"))
    assert [(it.kind, it.server) for it in lustre.events] == [("stall", "fs-OST0")]
    probe = probes.kernel_log_of(())
    assert (probe.root, probe.timeout) == (True, 60)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("[   12.500000]", 12.5), ("[12.5]", 12.5), ("[.5]", None), ("[a1.5]", None), ("[1.b]", None)],
)
def test_the_time_of_a_line_is_in_brackets(text: str, seconds: float | None) -> None:
    assert folded(end=f"end\t900\t1\t2\t3\t{text}").loaded == seconds


BEGINNINGS = ["[    0.000000] Linux", "[Sat Nov 21 10:00:00 2026] Linux", "<6>[ 0.0] Linux", "[5] Linux"]
LEVELS = ["kern  :info  : [ 0.0] Linux", "kern:info:[ 0.0] Linux", "kern :info : 2026-11-21T10:00 x"]
DATES = ["Nov  1 10:00:00 gpu01 kernel", "2026-11-21T10:00:00 x"]


@pytest.mark.parametrize("first", [*BEGINNINGS, *LEVELS, *DATES])
def test_a_time_begins_a_log(first: str) -> None:
    assert folded(first=first, end="end\t1\t0\t0\t0\t").lines == 1


NO_TIME = ["<>[ 0.0] x", "[x] Linux", "abcd-11-21T10:00:00 x", "nov 21 10:00", "2026-11-21", "[] x"]


@pytest.mark.parametrize(
    ("first", "lines"),
    [*((first, 1) for first in NO_TIME), ("words", 19), ("\a words", 20), ("\ufffd x", 20)],
)
def test_what_begins_otherwise_is_no_log_if_it_is_short_or_not_printable(first: str, lines: int) -> None:
    with pytest.raises(NotAvailable) as error:
        folded(first=first + "y" * 90, end=f"end\t{lines}\t0\t0\t0\t")
    shown = (first.replace("\a", "?") + "y" * 90)[:80]
    assert str(error.value) == f"not a kernel log: {shown!r}"
    assert folded(first="words", end="end\t20\t0\t0\t0\t").lines == 20
    with pytest.raises(NotAvailable, match="the kernel log is empty"):
        folded(first=first, end="end\t0\t0\t0\t0\t")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("EXT4-fs (sda1): error", "filesystem"),
        ("XFSx error", ""),
        ("raid5: Disk failure on sda", "raid"),
        ("nvme nvmex: device not ready", ""),
        ("nvme nvme1: device not ready", "io"),
        ("nfs: server  not responding", ""),
        ("EDAC MC0: xCE", ""),
        ("pci 0000:05:00.0: AER: broadcast error_detected message", "quiet"),
        ("mlx5_core 1: terror", ""),
        ("smpboot: #startup loops: 2", ""),
    ],
)
def test_lines_that_almost_are_of_a_kind(text: str, kind: str) -> None:
    found = rule_of(text)
    assert (found.kind if found else "") == kind
