"""What the kernel says: what of it condemns a node, and what is ordinary. Logs are folded as a node folds its own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from counter_examples import DRAIN, MONITOR, WARNING, CounterExample, assert_as_expected, name
from kernel_logs import answered, fold, fold_raw

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node import kernel_log as probes
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog, XidEvent, _stamp, parse
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
    "systemd[1]: Freezing execution.": "lockup",
    "Kernel panic - not syncing: VFS: Unable to mount root fs": "lockup",
    "Internal error: Oops: 96000004 [#1] SMP": "lockup",
    "general protection fault, probably for non-canonical address 0x78d29c0722bf7aa1: 0000 [#1] SMP NOPTI": "lockup",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "lockup",
    "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134": "mce",
    "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 1: be00000000800400": "mce",
    "mce: Uncorrected hardware memory error in user-access at 3f8e65c0": "mce",
    "[Hardware Error]: Deferred error, no action required.": "mce",
    "[Hardware Error]: CPU:0 (19:1:1) MC18_STATUS[-|UE|MiscV|AddrV|-|TCC|SyndV|UECC|-|-|-]: 0xbc2030000000011b": "mce",
    "Kernel panic - not syncing: Fatal machine check": "mce",
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
    "nfs: server fs1 not responding, still trying": "stall",
    "Lustre: a-OST1-osc-ff: Connection to a-OST1 (at 10.0.0.5@o2ib) was lost; in progress": "stall",
    "NFS: nfs4_reclaim_open_state: Lock reclaim failed!": "stall",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "lockup",
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:": "lockup",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12": "lockup",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]": "lockup",
    "INFO: task python:4711 blocked for more than 120 seconds.": "hung",
    "md/raid1:md0: active with 1 out of 2 mirrors": "raid",
    "mlx5_core 0000:1a:00.0: wait_func:1137:(pid 9): CREATE_CQ(0x400) timeout. Will cause a leak": "nic",
    "NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out": "nic",
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": "io",
    "nvme nvme0: I/O 778 QID 8 timeout, aborting": "io",
    "block nvme0n1: no available path - failing I/O": "io",
    "print_req_error: critical medium error, dev sdb, sector 8736552": "io",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10": "io",
    "blk_update_request: I/O error, dev sda, sector 5": "io",
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
    "igb 0000:03:00.0 enp3s0: PCIe link lost": "device",
    "hpsa 0000:43:00.0: controller lockup detected: 0x00150000 after 30": "device",
    "ice 0000:17:00.0: Rebuild failed, unload and reload driver": "device",
    "sfc 0000:17:00.0 ens3f0np0: has been disabled": "nic",
    "cxgb4 0000:81:00.4: encountered fatal error, adapter stopped": "nic",
    "gfs2: fsid=clu1:home.2: File system withdrawn": "filesystem",
    "nvidia-nvswitch: unrecoverable error in ISR": "nvswitch",
}
# never more than a warning
WARNINGS = {
    "pcieport 0000:80:01.0: DPC: containment event, status:0x1f01 source:0x0000": "pcie",
    "nvme 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)": "pcie",
    "iwlwifi 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": "pcie",
    "pci 0000:05:00.0: AER: can't recover (no error_detected callback)": "pcie",
    "{3}[Hardware Error]: event severity: recoverable": "mce",
    "soft offline: 0x3f8e65: page migrated": "mce",
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
    "bnxt_re: Couldn't start port": "driver",
    "efa 0000:00:06.0: Admin queue is closed": "driver",
}


def kind(part: str) -> str:
    """Return the kind of a part like `0000:3b:00.0 ens1 (kernel log: nic)`."""
    return part.partition("kernel log: ")[2].rstrip(")")


def judged(log: KernelLog, stalls: Stalls | None = None, known: tuple[KnownLine, ...] = ()) -> Verdict:
    return checks.kernel_log(log, stalls or Stalls(), known)


def warned(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.advisories]


def findings(tmp_path: Path, *lines: str) -> list[str]:
    """Return the kinds of lines for which a node without a readable state fails."""
    return [kind(found.part) for found in judged(fold(tmp_path, *lines)).findings]


@pytest.mark.parametrize("what", ORDINARY)
def test_what_is_ordinary_fails_no_node(tmp_path: Path, what: str) -> None:
    assert findings(tmp_path, *ORDINARY[what]) == []


def late(*lines: str) -> list[str]:
    """Return the lines as they are printed after the first minute of the boot."""
    return [*["usb 1-1: new device"] * 61, *lines]


@pytest.mark.parametrize("line", ALONE)
def test_what_a_repair_alone_ends_fails_among_ordinary_lines(tmp_path: Path, line: str) -> None:
    ordinary = [one for lines in ORDINARY.values() for one in lines]
    verdict = judged(fold(tmp_path, *late(*ordinary, line)))
    assert [kind(it.part) for it in verdict.findings] == [ALONE[line]]
    assert verdict.action.is_repair


@pytest.mark.parametrize("line", QUESTIONS)
def test_a_question_without_an_answer_is_a_warning(tmp_path: Path, line: str) -> None:
    verdict = judged(replace(fold(tmp_path, *late(line)), now=None))
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 1)
    assert kind(verdict.advisories[0].part) == QUESTIONS[line]
    assert verdict.advisories[0].measured.startswith(f"{line[:160]} (1 times, last 62 s after boot)")
    assert "the present state is not known" in warned(verdict)[0]


@pytest.mark.parametrize("line", GAVE_UP)
def test_what_the_kernel_gave_up_fails_without_a_repair(tmp_path: Path, line: str) -> None:
    verdict = judged(fold(tmp_path, *late(line)))
    assert [kind(it.part) for it in verdict.findings] == [GAVE_UP[line]]
    assert verdict.action is Action.MONITOR
    assert "the present state is not known" in verdict.findings[0].measured


@pytest.mark.parametrize(
    ("again", "bad"),
    [("md: md0: recovery done.", False), ("md: md1: recovery done.", True), ("usb 1-1: new device", True)],
)
def test_a_device_that_is_used_again_was_not_given_up(tmp_path: Path, again: str, *, bad: bool) -> None:
    lost = "md/raid1:md0: Disk failure on sda1, disabling device."
    assert bool(findings(tmp_path, lost, again)) is bad
    assert findings(tmp_path, again, lost) == ["raid"]


def test_an_interface_that_got_its_name_later_was_not_given_up(tmp_path: Path) -> None:
    failed = (
        "bnxt_en 0000:26:00.0 (unnamed net_device) (uninitialized): hwrm req_type 0x1d seq id 0xb error 0x2"
    )
    assert findings(tmp_path, failed, "bnxt_en 0000:26:00.0 ens1np0: renamed from eth2") == []
    assert findings(tmp_path, failed, "bnxt_en 0000:26:00.1 ens1np1: renamed from eth3") == ["nic"]


@pytest.mark.parametrize(
    ("before", "bad"),
    [
        ("Injecting memory failure for pfn 0x3f8e65 at process virtual address 0x7f", False),  # a test
        ("NVRM: Xid (PCI:0009:01:00): 94, pid=4711, name=python, Contained: SM (0x1)", False),  # gpu.xid
        ("usb 1-1: new device", True),
    ],
)
def test_a_page_that_a_test_or_a_gpu_gave_up_is_a_warning(tmp_path: Path, before: str, *, bad: bool) -> None:
    page = "Memory failure: 0x3f8e65: recovery action for dirty LRU page: Recovered"
    assert bool(findings(tmp_path, *late(before, page))) is bad


DETACHED = "igc 0000:2b:00.0 enp43s0: PCIe link lost, device now detached"
CARD_GONE = "pcieport 0000:00:07.0: pciehp: Slot(12): Card not present"
NO_LINK = "pcieport 0000:00:07.0: pciehp: Slot(12): Link Down"


@pytest.mark.parametrize(
    "left", [CARD_GONE, "usb 3-1.5: USB disconnect, device number 19", "thunderbolt 0-1: device disconnected"]
)
def test_a_device_that_left_with_its_dock_is_no_fault(tmp_path: Path, left: str) -> None:
    for lines in ((DETACHED, left), (left, DETACHED)):
        verdict = judged(fold(tmp_path, *late(*lines)))
        assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())


def test_a_device_that_left_at_another_time_or_is_of_jobs_is_a_fault(tmp_path: Path) -> None:
    assert findings(tmp_path, *late(CARD_GONE, *["usb 1-1: new device"] * 11, DETACHED)) == ["device"]
    assert findings(tmp_path, *late(NO_LINK, DETACHED)) == ["device"]  # the card may be there
    health = "mlx5_core 0000:2b:00.0: device's health compromised - reached miss count"
    assert findings(tmp_path, *late(CARD_GONE, health)) == ["nic"]


@pytest.mark.parametrize(
    ("state", "bad", "warns"),
    [
        (("pci\t0000:2b:00.0 class  ", "pci\t0000:2b:00.0 has "), False, False),  # gone with its slot
        (("pci\t0000:2b:00.0 class 0x020000 PCI_ID=8086:5502",), True, False),  # there, without a driver
        (("pci\t0000:2b:00.0 class 0x020000 DRIVER=igc",), False, True),  # back
        (("pci\t0000:2c:00.0 class  ",), True, False),  # another one is gone
    ],
)
def test_sysfs_says_whether_a_device_left(
    tmp_path: Path, state: tuple[str, ...], *, bad: bool, warns: bool
) -> None:
    log = replace(
        fold(tmp_path, *late(NO_LINK, DETACHED)), state=read_state(f"state\t{one}" for one in state)
    )
    verdict = judged(log)
    assert (bool(verdict.findings), bool(verdict.advisories)) == (bad, warns)


@pytest.mark.parametrize("line", WARNINGS)
def test_what_says_nothing_of_the_present_is_a_warning(tmp_path: Path, line: str) -> None:
    verdict = judged(fold(tmp_path, *late(line)))
    assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, ())
    assert [kind(it.part) for it in verdict.advisories] == [WARNINGS[line]]


def test_a_machine_check_of_the_first_minute_is_of_the_boot_before(tmp_path: Path) -> None:
    """mce/core.c prints what the registers hold after a reset."""
    line = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134"
    assert findings(tmp_path, line) == []
    assert len(warned(judged(fold(tmp_path, line)))) == 1
    assert findings(tmp_path, *late(line)) == ["mce"]


# --- errors, not lines


def test_the_number_that_a_line_prints_is_counted(tmp_path: Path) -> None:
    line = "EDAC MC1: {} CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1 (channel:1 slot:1 page:0x0 - OVERFLOW)"
    (event,) = fold(tmp_path, line.format(128), line.format(32767)).events
    assert event.count == 32895
    assert findings(tmp_path, line.format(32767)) == ["edac"]
    assert findings(tmp_path, line.format(99)) == []


def test_lines_of_one_moment_are_one_event(tmp_path: Path) -> None:
    text = (
        "[ 10.{:06}] mce: CPU{}: Package temperature above threshold, cpu clock throttled (total events = 1)"
    )
    (event,) = fold_raw(tmp_path, "".join(f"{text.format(cpu, cpu)}\n" for cpu in range(112))).events
    assert event.count == 1


AER = "{} 0000:{:02x}:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"


def test_devices_are_counted_apart_and_judged_by_their_class(tmp_path: Path) -> None:
    six = [AER.format("nvidia", 16 + n % 6) for n in range(120)]
    log = fold(tmp_path, *six)
    assert [event.count for event in log.events] == [20] * 6
    assert judged(log).findings == ()
    assert findings(tmp_path, *[AER.format("nvidia", 16)] * 100) == ["pcie"]
    assert findings(tmp_path, *[AER.format("nvidia", 16)] * 99) == []
    wifi = judged(fold(tmp_path, *[AER.format("iwlwifi", 16)] * 150))
    assert (wifi.outcome, len(wifi.advisories)) == (Outcome.PASSED, 1)


@pytest.mark.parametrize("kind", ["edac", "mce", "pcie"])
@pytest.mark.parametrize(
    ("count", "first", "last", "bad"),
    [
        (100, 0.0, 86400.0, True),
        (100, 0.0, 86401.0, False),
        (199, 86400.0, 3 * 86400.0, False),
        (200, 86400.0, 3 * 86400.0, True),
        (100, None, 1e9, True),
        (100, 0.0, None, True),
    ],
)
def test_corrected_errors_are_counted_for_each_day(
    kind: str, count: int, first: float | None, last: float | None, *, bad: bool
) -> None:
    text = {
        "edac": "EDAC MC0: 1 CE x",
        "mce": "mce: [Hardware Error]: Machine check events logged",
        "pcie": AER.format("nvme", 3),
    }
    verdict = judged(KernelLog("dmesg", 900, 0.0, None, (Event(kind, count, first, last, text[kind]),)))
    assert bool(verdict.findings) is bad
    assert verdict.action is Action.MONITOR


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0", "0000:03:00.0"),
        ("nvme 0000:c3:00.0: PCIe Bus Error", "0000:c3:00.0"),
        ("pcieport 0000:00:01.0: bridge above 0000:c3:00.0: x", "0000:00:01.0"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "sda1"),
        ("EXT4-fs error (device dm-0): ext4_find_entry", "dm-0"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 5", "nvme0n1"),
        ("md/raid1:md0: Disk failure on sda1, disabling device.", "sda1"),
        ("sd 0:0:9:0: [sdk] tag#915 Sense Key : Medium Error", "sdk"),
        ("nvme nvme4: I/O 5 QID 0 timeout, reset controller", "nvme4"),
        ("EDAC MC1: 1 CE error on CPU_SrcID#1_Chan#1_DIMM#1 (x)", "cpu_srcid#1_chan#1_dimm#1"),
        ("EDAC MC1: 1 CE error on any memory (csrow:3 channel:1 page:0x7)", "csrow:3 channel:1"),
        ("NVRM: GPU at PCI:0000:1b:00: x", "0000:1b:00"),
        ("NVRM: GPU 0000:1B:00: x", "0000:1b:00"),
        ("BTRFS error (device sda2: state EA): x", "sda2"),
        ("EXT4-fs (dm): x", "dm"),
        ("md/raid1:md0: Disk failure on , x", "md0"),
        ("nvme nvmex: I/O 5 QID 0 timeout", ""),
        ("EDAC MC1: 1 CE error on any memory (csrow:3 :1 page:0x7)", "edac mc1"),
        ("EDAC MC1: 1 CE error on any memory (csrow: channel:1 page:0x7)", "edac mc1"),
        ("mce: [Hardware Error]: CPU 3: Bank of memory", ""),
        ("something else", ""),
    ],
)  # fmt: skip
def test_the_device_of_an_event(text: str, device: str) -> None:
    assert Event("x", 1, None, None, text).device == device


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("nfs: server fs1 not responding, timed out", "fs1"),
        ("nfs: server  not responding", ""),
        ("CIFS: VFS: \\\\fs2 has not responded in 180 seconds", "fs2"),
        ("Lustre: lfs-OST0001: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost", "lfs-OST0001"),
        ("something else", ""),
    ],
)
def test_the_server_of_a_stall(text: str, server: str) -> None:
    assert Event("stall", 1, None, None, text).server == server


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("dmesg: read kernel buffer failed: Operation not permitted", True),
        ("journalctl -k: Permission denied", True),
        ("dmesg: empty; journalctl -k: empty", False),
    ],
)
def test_a_log_that_may_not_be_read_names_the_remedy(error: str, *, remedy: bool) -> None:
    with pytest.raises(NotAvailable) as found:
        parse(Answer("gpu01", 1, b"", error.encode()))
    assert ("set sudo: true in the cluster file, or add the user to group" in str(found.value)) is remedy


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("nfs: server fs1 not responding", "mounts tasks"),
        ("blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ)", "disks"),
        (
            "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
            "gpu pci",
        ),  # a complaint of a driver too
        ("nvme 0000:c3:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)", "pci"),
        ("INFO: task dd:31415 blocked for more than 120 seconds.", "tasks"),
        ("EDAC MC1: 1 CE error on CPU_SrcID#1_Chan#1_DIMM#1 (x)", "rate"),
        ("Linux version 6.8", ""),
    ],
)
def test_a_line_makes_the_node_read_the_state_that_answers_it(tmp_path: Path, line: str, part: str) -> None:
    needs = {
        one for one in answered(tmp_path, f"[ 5.000000] {line}\n").splitlines() if one.startswith("need\t")
    }
    assert needs == {f"need\t{one}" for one in part.split()}


# --- the state answers


def state(*lines: str) -> KernelState:
    return read_state(f"state\t{line}" for line in lines)


def logged(text: str, *lines: str, now: float | None = 1000.0) -> KernelLog:
    rule = rule_of(text)
    assert rule, text
    return KernelLog(
        "dmesg", 900, 0.0, None, (Event(rule.kind, 1, 700.0, 700.0, text, 7),), now=now, state=state(*lines)
    )


NFS = "nfs: server fs1 not responding, timed out"
HOME = "mountinfo\t36 22 0:52 / /home rw,relatime shared:9 - nfs4 fs1:/export rw,soft"
OTHER = "mountinfo\t37 22 0:53 / /data rw,relatime shared:9 - nfs4 fs2:/export rw,soft"
ROOT = "mountinfo\t22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/sda2 {}"
DISK = "blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ)"
REMOVED = "nvme nvme2: Removing after probe failure status: -19"
INIT = "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)"
FATAL = "nvme 0000:c3:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
POOL = "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended."
HUNG = "INFO: task dd:31415 blocked for more than 120 seconds."
THREAD = "INFO: task kcompactd0:58 blocked for more than {} seconds."
BTRFS = "mountinfo\t38 22 0:55 / /scratch rw,relatime shared:9 - btrfs /dev/vdb {}"
ABORTED = "BTRFS critical (device vdb state EA): unable to find ref byte nr 227177795584"
LEAF = "BTRFS critical (device vdb): corrupt leaf: block=12461820608512 slot=31"
XFS = "mountinfo\t38 22 0:55 / /scratch rw,relatime shared:9 - xfs /dev/vdb {}"
REPAIR = "XFS (vdb): Unmount and run xfs_repair"
CEPH = "ceph: [a1b2 4711]: mds0 rejected session: blocklisted"
CEPHFS = "mountinfo\t39 22 0:56 / /home rw,relatime shared:9 - ceph 10.0.0.1:6789:/ rw"
UNSUPPORTED = "nvidia: probe of 0000:01:00.0 failed with error -1"
RESET = "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"
MEGARAID = "megaraid_sas 0000:01:00.0: Failed from megasas_init_fw 6399"
COMPLAINT = "megaraid_sas 0000:01:00.0: Failed to get the list of targets"
MSIX = "ena 0000:00:03.0 (unnamed net_device) (uninitialized): Failed to enable MSI-X. irq_cnt -524"
ANSWERED = [  # line, state, action (None: a warning), words
    (NFS, (HOME, "df\t/home\t0\t"), None, "/home can be read now"),
    (NFS, (HOME, "df\t/home\thung\t"), Action.MONITOR, "/home (fs1:/export) cannot be read now: no answer of df"),
    (NFS, (HOME, "df\t/home\t1\tdf: /home: Permission denied"), None, ""),
    (NFS, (HOME, OTHER, "df\t/home\t0\t", "df\t/data\thung\t"), None, "/home can be read now"),  # another server
    (NFS.replace("fs1", "fs3"), (OTHER, "df\t/data\thung\t"), Action.MONITOR, "/data"),  # a name that no mount has
    (NFS, (ROOT.format("rw"),), None, "it is not mounted now"),
    ("EXT4-fs error (device sda2): x", (ROOT.format("ro"),), Action.DRAIN, "/ is read-only now"),
    ("EXT4-fs error (device sda2): x", (ROOT.format("rw"), "df\t/\t0\t"), None, "/ can be read now"),
    ("EXT4-fs error (device sda2): x", (ROOT.format("ro").replace("rw,relatime", "ro,relatime"), "df\t/\t0\t"), None, ""),
    ("EXT4-fs error (device sdb1): x", (ROOT.format("ro"),), None, "not mounted"),
    ("EXT4-fs error (device dm-3): x", (ROOT.format("ro"),), Action.DRAIN, "read-only"),  # mounted by another name
    ("EXT4-fs error (device dm-3): x", (ROOT.format("ro"), "block\t/sys/class/block/dm-3/dev:253:3"), None, "not mounted"),
    ("EXT4-fs error (device sda2): x", (ROOT.format("ro").replace("sda2", "root"), "block\t/sys/class/block/sda2/dev:259:2"), Action.DRAIN, "/ is read-only"),
    ("EXT4-fs (sda2): error x", ("mounts\t/dev/sda2 / ext4 ro 0 0", "fstab\t/dev/sda2 / ext4 defaults 0 1"), Action.DRAIN, "read-only"),
    ("EXT4-fs (sda2): error x", ("mounts\t/dev/sda2 / ext4 ro 0 0", "fstab\t/dev/sda2 / ext4 ro 0 1"), None, ""),
    (DISK, (ROOT.format("rw"), "dd\tsda\t0\t"), None, "the disk can be read now"),
    (DISK, (ROOT.format("rw"), "dd\tsda\thung\t"), Action.DRAIN, "the disk cannot be read now"),
    (DISK, (ROOT.format("rw"), "dd\tsda\t1\tdd: Input/output error"), Action.DRAIN, "the disk cannot be read now"),
    (DISK, (ROOT.format("rw"), "dd\tsda\t1\tdd: Permission denied"), None, ""),
    (DISK, ("dd\tsda\t1\tdd: Input/output error",), None, "whether it is in use is not known"),
    (DISK, (OTHER, "dd\tsda\t1\tdd: Input/output error"), None, "it is not in use"),
    (DISK, (OTHER, "swap\t/dev/sda3", "dd\tsda\t1\tdd: Input/output error"), Action.DRAIN, "cannot be read"),
    (DISK, (OTHER, "swap\t/dev/sdb3", "dd\tsda\t1\tdd: Input/output error"), None, "it is not in use"),
    (DISK, (ROOT.format("rw"), "dd\tsda\t1\tdd: failed to open '/dev/sda': No such device or address"), Action.DRAIN, "cannot be read"),
    (DISK, (ROOT.format("rw"), "df\t/\t0\t", "dd\tsda\t1\tdd: failed to open '/dev/sda': No medium found"), None, "/ can be read"),
    ("nvme nvme2: Device not ready; aborting reset", ("dd\tnvme2n1\t1\tdd: Input/output error",), Action.MONITOR, "removed the disk"),
    ("nvme nvme2: Device not ready; aborting reset", (OTHER, "dd\tnvme2n1\t1\tdd: Input/output error"), None, "not in use"),
    ("Read-error on swap-device (254:1:78162624)", (), Action.MONITOR, "memory of processes"),
    (DISK, ("disk\tsda /sys/x holders dm-0 removable 0 x", "dd\tsda\t1\tdd: Input/output error"), Action.DRAIN, "cannot be read"),
    (DISK, (ROOT.format("rw"), "smart\tsda\t0\tresult: FAILED!"), Action.DRAIN, "SMART"),
    (DISK, (ROOT.format("rw"), "dd\tsda\thung\t", "disk\tsda /sys/x holders removable 1 x"), None, "not a disk of the node"),
    (DISK, (ROOT.format("rw"), "dd\tsda\thung\t", "disk\tsda /sys/devices/platform/host9/session2/x holders removable 0 x"), None, "not a disk"),
    (DISK, (ROOT.format("rw"), "dd\tsda\thung\t", "disk\tsda /x holders removable 0 Amazon Elastic Block Store"), None, "not a disk"),
    (DISK.replace("sda", "sr0"), (ROOT.format("rw"),), None, "not a disk"),
    (DISK, ("md\tmd0 : active raid1 sda[1](F) sdb[0]",), Action.MONITOR, "(F)"),
    (REMOVED, ("dd\tnvme2n1\t1\tdd: failed to open '/dev/nvme2n1': No such file or directory",), Action.MONITOR, "absent now"),
    (REMOVED, ("dd\tnvme2n1\t0\t",), None, "the disk can be read now"),
    (DISK, ("dd\tsda\t1\tdd: failed to open '/dev/sda': No such file or directory",), None, "not mounted"),  # a volume may be detached
    ("md/raid1:md0: Disk failure on sda1, x", ("md\tmd0 : active raid1 sdb1[0]", "md\t      5 blocks [2/1] [U_]"), Action.MONITOR, "md0 [U_]"),
    ("md/raid1:md0: Disk failure on sda1, x", ("md\tmd0 : active raid1 sdb1[0]", "md\t      5 blocks [2/1] [_U]"), Action.MONITOR, "md0 [_U]"),
    ("md/raid1:md0: active with 1 out of 2 mirrors", ("md\tmd0 : active raid1 sdb1[0]", "md\t      5 blocks [2/1] [U_]"), Action.MONITOR, "md0 [U_]"),
    ("md/raid1:md0: Disk failure on sda1, x", ("md\tmd0 : active raid1 sdb1[0]", "md\t      5 blocks [2/2] [UU]"), None, "no array lacks a disk"),
    (INIT, ("gpu\t\t0\tGPU 00000000:1B:00.0", "gpu\t\t0\t    GPU Recovery Action : None"), None, "nvidia-smi lists this GPU now"),
    (INIT, ("gpu\t\t0\tGPU 00000000:1C:00.0",), Action.REBOOT, "nvidia-smi does not list this GPU now"),
    (INIT, ("gpu\t\t0\tGPU 00000000:1C:00.0", "pci\t0000:1b:00.0 class 0x030200 DRIVER=vfio-pci"), None, "driver vfio-pci uses it"),
    (INIT, ("pci\t0000:1b:00.0 class 0x030200 PCI_ID=10DE:2331",), Action.REBOOT, "no driver uses this GPU now"),
    (INIT, ("pci\t0000:1b:00.0 class 0x030000 PCI_ID=10DE:1C03", "gpu\t\t0\tGPU 00000000:1B:00.0"), None, "lists this GPU"),
    (INIT, ("pci\t0000:1b:00.0 class 0x030200 PCI_ID=1002:74A1",), Action.MONITOR, "not known"),
    (NFS, (HOME, "df\t/home\t126\t"), None, ""),
    (NFS, (HOME, "df\t/home\t127\tdf: not found"), None, ""),
    ("EXT4-fs error (device dm-3): x", (HOME.replace("rw,soft", "ro,soft"),), None, "not mounted"),
    (FATAL.replace("nvme ", "pcieport 0000:00:01.0: device "), (), None, "neither a GPU"),
    (INIT, ("gpu\t\thung\t",), Action.MONITOR, "not known"),
    (INIT, ("gpu\t\t127\tnvidia-smi: not found",), Action.MONITOR, "not known"),
    (POOL, ("pool\ttank ONLINE",), None, "the pool is ONLINE now"),
    (POOL, ("pool\ttank SUSPENDED",), Action.MONITOR, "the pool is SUSPENDED now"),
    (POOL, ("pool\tdata ONLINE",), Action.MONITOR, "not known"),
    ("NVRM: The NVIDIA probe routine failed for 1 device(s).", ("gpu\t\t9\tNo devices were found",), Action.MONITOR, "no GPU"),
    ("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", ("gpu\t\t0\tGPU 00000000:1B:00.0",), None, "lists this GPU"),
    (FATAL, (), Action.DRAIN, "broke in this boot"),
    (FATAL, ("pci\t0000:c3:00.0 class 0x010802 DRIVER=nvme PCI_ID=144D:A80A",), Action.DRAIN, "broke in this boot"),
    (FATAL, ("pci\t0000:c3:00.0 class  ", "pci\t0000:c3:00.0 has "), Action.DRAIN, "broke in this boot"),  # it is gone
    (FATAL, ("pci\t0000:c3:00.0 class 0x010802 PCI_ID=144D:A80A",), None, "no driver uses it now"),
    (FATAL, ("pci\t0000:c3:00.0 class 0x028000 DRIVER=iwlwifi",), None, "neither a GPU"),
    (FATAL, ("pci\t0000:c3:00.0 class 0x030000 DRIVER=ast PCI_ID=1A03:2000",), None, "neither a GPU"),
    (FATAL, ("pci\t0000:c3:00.0 class 0x020000 DRIVER=bnxt_en", "pci\t0000:c3:00.0 has infiniband net"), Action.DRAIN, "broke"),
    (FATAL, ("pci\t0000:c3:00.0 class 0x060400 DRIVER=pcieport", "pci\t0000:c3:00.0 has 0000:c4:00.0", "pci\t0000:c4:00.0 class 0x010802 DRIVER=nvme"), Action.DRAIN, "broke"),
    (HUNG, ("task\ttasks 1",), None, "no process waits now"),
    (HUNG, ("task\ttasks 1", "task\t31415 dd voluntary_ctxt_switches: 7"), Action.MONITOR, "waiting now: 31415 dd"),
    (HUNG, ("task\ttasks 0",), None, "not known"),
    # threads of the kernel that resync an array or trim a disk are in D state too; those that work are not in the same wait twice
    (THREAD.format(241), ("task\ttasks 1", "task\t58 kcompactd0 kernel voluntary_ctxt_switches: 7"), Action.MONITOR, "58 kcompactd0 of the kernel"),
    (THREAD.format(4435), ("task\ttasks 1", "task\t58 kcompactd0 kernel voluntary_ctxt_switches: 7"), Action.MONITOR, "58 kcompactd0 of the kernel"),
    (THREAD.format(4435), ("task\ttasks 1", "task\t59 md0_resync kernel voluntary_ctxt_switches: 7"), None, "no process waits now"),
    (ABORTED, (), Action.MONITOR, "stopped writing"),
    (ABORTED, (BTRFS.format("rw"), "df\t/scratch\t0\t"), None, "/scratch can be read now"),
    (ABORTED, (BTRFS.format("ro"),), Action.DRAIN, "/scratch is read-only now"),
    ("BTRFS warning (device vdb: state MCS): x error", (), None, "not known"),  # remounted, without checksums
    (LEAF, (), Action.MONITOR, "damaged on the disk"),
    (LEAF, (ROOT.format("rw"),), Action.MONITOR, "no btrfs of this disk is mounted now"),
    (LEAF, (BTRFS.format("rw"), "df\t/scratch\t0\t"), None, "/scratch can be read now"),  # another copy was right
    (LEAF.replace("vdb", "loop1"), (ROOT.format("rw"),), None, "not a disk of the node"),
    (LEAF.replace("vdb", "sdc"), (ROOT.format("rw"), "disk\tsdc /sys/x/usb2/x holders removable 1 Stick"), None, "not a disk of the node"),
    (REPAIR, (), Action.MONITOR, "damaged on the disk"),
    (REPAIR, (XFS.format("rw"), "df\t/scratch\t0\t"), Action.MONITOR, "until a person repairs it"),
    (REPAIR, (XFS.format("rw").replace("vdb", "root"), "block\t/sys/class/block/vdb/dev:0:55", "df\t/scratch\t0\t"), Action.MONITOR, "until a person"),
    (REPAIR, (XFS.format("rw"), "df\t/scratch\t1\tdf: Input/output error"), Action.MONITOR, "cannot be read now"),
    (REPAIR.replace("vdb", "loop1"), (ROOT.format("rw"),), None, "not a disk of the node"),
    (CEPH, (CEPHFS, "df\t/home\t1\tdf: Permission denied."), None, ""),
    (CEPH, (CEPHFS, "df\t/home\t1\tdf: Cannot send after transport endpoint shutdown"), Action.MONITOR, "cannot be read now"),
    (CEPH, (CEPHFS, "df\t/home\t0\t"), None, "can be read now"),
    # a mount that was taken away while processes wait for it
    (NFS, (ROOT.format("rw"), "task\ttasks 1", "task\t20711 kubelet voluntary_ctxt_switches: 7"), Action.MONITOR, "20711 kubelet"),
    (NFS, (HOME, "df\t/home\t0\t", "task\ttasks 1", "task\t20711 dd voluntary_ctxt_switches: 7"), None, "can be read now"),
    (UNSUPPORTED, ("pci\t0000:01:00.0 class 0x030200 PCI_ID=10DE:2330",), Action.MONITOR, "no driver uses this device now"),
    (UNSUPPORTED, ("pci\t0000:01:00.0 class 0x030200 DRIVER=nvidia PCI_ID=10DE:2330",), None, ""),
    (RESET, (), Action.MONITOR, "does not use the device"),
    (RESET, ("pci\t0000:e3:00.0 class 0x030000 DRIVER=amdgpu",), None, ""),
    ("Aborting journal on device sda2-8.", (ROOT.format("ro"),), Action.DRAIN, "/ is read-only now"),
    (MEGARAID, (), Action.MONITOR, "does not use the device"),
    (MEGARAID, ("pci\t0000:01:00.0 class 0x010400 PCI_ID=1000:005F",), Action.MONITOR, "no driver uses this device now"),
    (MEGARAID, ("pci\t0000:01:00.0 class 0x010400 DRIVER=megaraid_sas",), None, ""),  # loaded again
    (MEGARAID, ("pci\t0000:01:00.0 class 0x010400 DRIVER=vfio-pci",), None, ""),  # given to a guest
    (COMPLAINT, (), None, ""),
    (COMPLAINT, ("pci\t0000:01:00.0 class 0x010400 PCI_ID=1000:005F",), Action.MONITOR, "no driver uses this device now"),
    (COMPLAINT, ("pci\t0000:01:00.0 class 0x010400 DRIVER=megaraid_sas",), None, ""),
    (MSIX, (), Action.MONITOR, "does not use the adapter"),
    (MSIX, ("pci\t0000:00:03.0 class 0x020000 DRIVER=ena",), None, ""),  # it went on without them
    ("nvidia 0000:01:00.0: Direct firmware load failed", ("pci\t0000:01:00.0 class 0x030000 PCI_ID=10DE:1C03",), None, ""),
    ("ixgbe 0000:3b:00.0: initialization failed, link is down", ("pci\t0000:3b:00.0 class 0x020000 DRIVER=ixgbe",), None, ""),
    (HUNG, ("task\ttasks 1", "task\t31415 dd", HOME.replace("nfs4", "wekafs"), "df\t/home\thung\t"), None, "waits for a file server"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "lines", "action", "words"), ANSWERED)
def test_the_present_state_is_the_verdict(
    line: str, lines: tuple[str, ...], action: Action | None, words: str
) -> None:
    verdict = judged(logged(line, *lines))
    shown = [it.measured for it in verdict.findings] or [it.measured for it in verdict.advisories]
    assert len(shown) == 1
    assert words in shown[0]
    assert (verdict.action if verdict.findings else None) is action


def test_a_complaint_about_a_device_that_is_gone_is_no_open_question() -> None:
    (found,) = judged(logged(COMPLAINT)).advisories
    assert "not known" not in found.measured


def test_the_first_three_processes_that_wait_are_named() -> None:
    waiting = [f"task\t{number} sh voluntary_ctxt_switches: 7" for number in range(1, 5)]
    (found,) = judged(logged(HUNG, "task\ttasks 1", *waiting)).findings
    assert "waiting now: 1 sh, 2 sh, 3 sh" in found.measured
    assert "4 sh" not in found.measured


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("[   12.500000]", 12.5),
        ("[12.5]", 12.5),
        ("[.5]", None),
        ("[5.]", None),
        ("[a1.5]", None),
        ("[1.b]", None),
    ],
)
def test_the_time_of_a_line_is_in_brackets(text: str, seconds: float | None) -> None:
    assert _stamp(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds", "count", "bad"),
    [
        ("watchdog: BUG: soft lockup - CPU#23 stuck for 226906s! [ksoftirqd/23:150]", 0.0, 1, True),
        (
            "watchdog: BUG: soft lockup - CPU#49 stuck for 485s! [guest:52368]",
            0.0,
            1,
            False,
        ),  # a guest of 2 TB ended
        (
            "rcu: INFO: rcu_sched detected stalls on CPUs/tasks: (detected by 85, t=81782272 jiffies)",
            0.0,
            1,
            True,
        ),
        (
            "rcu: INFO: rcu_sched detected stalls on CPUs/tasks: (detected by 85, t=21002 jiffies)",
            0.0,
            1,
            False,
        ),
        ("BUG: soft lockup - CPU#0 stuck for 22s! [runc:358270]", 4000.0, 143, True),
        ("BUG: soft lockup - CPU#0 stuck for 22s! [runc:358270]", 4000.0, 20, False),  # some, hours apart
        ("BUG: soft lockup - CPU#0 stuck for 22s! [runc:358270]", 4031.0, 64, True),
        ("BUG: soft lockup - CPU#0 stuck for 22s! [runc:358270]", 4032.0, 64, False),  # 63 s apart
    ],
)
def test_a_processor_that_did_not_answer_for_an_hour_fails(
    text: str, seconds: float, count: int, *, bad: bool
) -> None:
    found = Event("lockup", count, 700.0, 700.0 + seconds, text, 7)
    verdict = judged(KernelLog("dmesg", 900, 0.0, None, (found,), now=9000.0))
    assert bool(verdict.findings) is bad
    assert bool(verdict.advisories) is not bad


def test_records_of_quota_that_xfs_makes_again_warn() -> None:
    quota = Event(
        "filesystem", 1, 699.0, 699.0, 'XFS (vdb): metadata I/O error in "xfs_dquot_disk_read" error 74', 6
    )
    log = logged(REPAIR, XFS.format("rw"), "df\t/scratch\t0\t")
    assert not judged(replace(log, events=(quota, *log.events))).findings


def test_xfs_that_was_repaired_and_mounted_again_warns() -> None:
    again = Event("recovered", 1, 800.0, 800.0, "XFS (vdb): Ending clean mount", 9)
    log = logged(REPAIR, XFS.format("rw"), "df\t/scratch\t0\t")
    assert judged(log).findings
    assert not judged(replace(log, events=(*log.events, again))).findings


@pytest.mark.parametrize(
    ("now", "bad"), [(701.0, True), (879.0, True), (880.0, False), (None, False), (600.0, False)]
)
def test_a_lockup_fails_while_the_kernel_prints_it(now: float | None, *, bad: bool) -> None:
    verdict = judged(logged("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", now=now))
    assert bool(verdict.findings) is bad
    assert verdict.action is Action.MONITOR


UP, DOWN = "mlx5_core 0000:3b:00.0 ens1: Link up", "mlx5_core 0000:3b:00.0 ens1: Link down"
PORT = "port\tens1 PCI_SLOT_NAME=0000:3b:00.0 state {}"


SDA2 = "mountinfo\t22 1 259:2 / /scratch ro,relatime shared:1 - ext4 /dev/sda2 ro"


@pytest.mark.parametrize(
    ("line", "lines", "part"),
    [
        (FATAL, ("pci\t0000:c3:00.0 class 0x010802 DRIVER=nvme",), "0000:c3:00.0 (kernel log: pcie)"),
        ("mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): device's health compromised", (PORT.format("up"),),
         "0000:3b:00.0 ens1 (kernel log: nic)"),
        (DISK, (), "sda (kernel log: io)"),
        (REMOVED, (), "nvme2n1 (kernel log: io)"),
        ("EXT4-fs (sda2): Remounting filesystem read-only", (SDA2,), "/scratch sda2 (kernel log: filesystem)"),
        ("EXT4-fs (sda2): Remounting filesystem read-only", (), "sda2 (kernel log: filesystem)"),
        (NFS, (HOME, OTHER, "df\t/home\thung\t", "df\t/data\t0\t"), "/home (kernel log: stall)"),
        (NFS, (HOME, "df\t/home\t0\t"), "fs1 (kernel log: stall)"),
        (NFS, tuple(line for at in ("/a", "/b", "/c", "/d") for line in (HOME.replace("/home", at), f"df\t{at}\thung\t")),
         "/a /b /c (kernel log: stall)"),
        ("INFO: task xfsaild/nvme0n1:812 blocked for more than 120 seconds.", (), "kernel log: hung"),
        ("Out of memory: Killed process 31415 (md0): x", (), "kernel log: oom"),
        ("VFS: file-max limit 1024 reached by nvme0", (), "kernel log: limits"),
        ("neighbour (eth0): neighbor table overflow!", (), "kernel log: network"),
        ("BERT: Error records from previous boot: 0000:c3:00.0", (), "kernel log: boot record"),
        (INIT, ("gpu\t\t0\tGPU 00000000:1C:00.0",), "0000:1b:00.0 (kernel log: nvrm)"),
        ("md/raid1:md0: Disk failure on sda1, disabling device.", (), "sda (kernel log: raid)"),
        ("EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", (),
         "cpu_srcid#0_mc#0_chan#1_dimm#0 (kernel log: edac)"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", (), "kernel log: lockup"),
        (HUNG, (), "kernel log: hung"),
        ("NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out", (), "ens1 (kernel log: nic)"),
    ],
)  # fmt: skip
def test_a_finding_names_the_mount_the_disk_the_function_or_the_module(
    line: str, lines: tuple[str, ...], part: str
) -> None:
    verdict = judged(logged(line, *lines))
    named = [one.part for one in verdict.findings] + [one.part for one in verdict.advisories]
    assert named == [part]


@pytest.mark.parametrize(
    ("lines", "now", "outcome", "warnings"),
    [
        ((DOWN,), "down", Outcome.PASSED, 0),  # never used
        ((UP,), "up", Outcome.PASSED, 0),
        ((DOWN, UP), "up", Outcome.PASSED, 0),  # a boot
        ((UP, DOWN, UP, DOWN, UP), "up", Outcome.PASSED, 1),
        ((UP, DOWN), "down", Outcome.FAILED, 0),
        ((UP, DOWN, UP), "down", Outcome.PASSED, 0),
    ],
)
def test_a_port_that_was_up_fails_while_it_is_down(
    tmp_path: Path, lines: tuple[str, ...], now: str, outcome: Outcome, warnings: int
) -> None:
    verdict = judged(replace(fold(tmp_path, *lines), state=state(PORT.format(now))))
    assert (verdict.outcome, len(verdict.advisories)) == (outcome, warnings)
    assert verdict.action is Action.MONITOR


STALE = "1\tdf: /home: Stale file handle"


@pytest.mark.parametrize(
    ("nodes", "away", "df", "action"),
    [
        (1, 1, STALE, Action.MONITOR), (2, 1, STALE, Action.REBOOT), (2, 2, STALE, Action.CONFIGURE),
        (4, 2, STALE, Action.MONITOR), (4, 3, STALE, Action.CONFIGURE),
        (2, 1, "hung\t", Action.MONITOR), (2, 2, "hung\t", Action.CONFIGURE),  # it may answer later
    ],
)  # fmt: skip
def test_a_server_drains_the_only_node_that_lost_it(nodes: int, away: int, df: str, action: Action) -> None:
    sick = logged(NFS, HOME, f"df\t/home\t{df}")
    sound = logged(NFS, HOME, "df\t/home\t0\t")
    stalls = Stalls.of_all({f"gpu{n}": sick if n < away else sound for n in range(nodes)})
    verdict = judged(sick, stalls)
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    at_fault = f"file server fs1 does not answer on {away} of {nodes} nodes, so the server is at fault: "
    assert verdict.findings[0].measured.startswith(at_fault) is (action is Action.CONFIGURE)
    assert judged(sound, stalls).outcome is Outcome.PASSED
    assert [(it.name, it.value) for it in verdict.metrics] == [
        ("kernel_log_lines", 900),
        ("file_server_stalls", 1),
    ]


SOFT = "https://man7.org/linux/man-pages/man5/nfs.5.html: soft"
PCI_CLASS = "pci\t0000:c3:00.0 class {} DRIVER={}"
COUNTER_EXAMPLES = [
    CounterExample(check, machine, source, expected, partial(judged, logged(line, *lines)), sick)
    for check, machine, source, expected, line, lines, sick in (
        ("os.kernel_log", "a soft NFS mount whose server is back", SOFT, WARNING, NFS, (HOME, "df\t/home\t0\t"), False),
        ("os.kernel_log", "a soft NFS mount whose server is away", SOFT, MONITOR, NFS, (HOME, "df\t/home\thung\t"), True),
        ("os.kernel_log", "an unsupported display card beside good GPUs", "open-gpu-kernel-modules nv-pci.c", WARNING,
         "NVRM: The NVIDIA probe routine failed for 1 device(s).", ("gpu\t\t0\tGPU 00000000:1B:00.0",), False),
        ("os.kernel_log", "a Wi-Fi card with PCIe errors", "drivers/pci/pcie/aer.c", WARNING, FATAL,
         (PCI_CLASS.format("0x028000", "iwlwifi"),), False),
        ("os.kernel_log", "a network volume that failed once", "https://longhorn.io/docs", WARNING, DISK,
         (ROOT.format("rw"), "disk\tsda /sys/devices/platform/host9/session2/x holders removable 0 VIRTUAL-DISK"), False),
        ("os.kernel_log", "md resync at work", "kernel/hung_task.c", WARNING, HUNG, ("task\ttasks 1",), False),
        ("os.kernel_log", "an NVMe disk in use after a fatal PCIe error", "drivers/pci/pcie/aer.c", DRAIN, FATAL,
         (PCI_CLASS.format("0x010802", "nvme"),), True),
    )
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_a_machine_that_was_considered(machine: CounterExample) -> None:
    assert_as_expected(machine)


# --- what the site knows


def entry(**values: str) -> KnownLine:
    return KnownLine.model_validate({"meaning": "cable of rack 7", "reason": "T-1", **values})


def test_what_the_cluster_file_knows_decides_first() -> None:
    log = logged(FATAL)
    assert judged(log).action is Action.DRAIN
    ignored = judged(log, known=(entry(pattern="0000:c3:00[.]0"),))
    assert (ignored.outcome, ignored.advisories) == (Outcome.PASSED, ())
    warning = judged(log, known=(entry(pattern="Fatal", action="warn"),))
    assert (warning.outcome, len(warning.advisories)) == (Outcome.PASSED, 1)
    assert "cable of rack 7 (known: T-1)" in warned(warning)[0]
    failing = judged(log, known=(entry(pattern="Fatal", action="reboot"),))
    assert (failing.action, failing.findings[0].setting) == (Action.REBOOT, "known")


def test_a_node_sends_the_lines_that_only_the_site_knows(tmp_path: Path) -> None:
    known = (entry(pattern="it's [0-9]+/[0-9]+ of rack", action="drain"),)
    (tmp_path / "dmesg").write_text(
        "#!/bin/sh\necho '[ 1.0] Linux'; echo \"[ 2.0] foo: it's 3/4 of rack 7\"\n"
    )
    (tmp_path / "dmesg").chmod(0o755)
    probe = probes.kernel_log_of(known)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, env=env, timeout=60, check=True)
    log = probe.parse(Answer("gpu01", 0, done.stdout, done.stderr))
    assert [(event.kind, event.text) for event in log.events] == [("known", "foo: it's 3/4 of rack 7")]
    assert judged(log, known=known).action is Action.DRAIN
    assert judged(log).outcome is Outcome.PASSED


# --- the driver


OFF = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=a, GPU has fallen off the bus."
PAGE_FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, Ch 00000008"
GONE = "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"


def test_the_words_around_an_xid_of_the_hardware_belong_to_gpu_xid(tmp_path: Path) -> None:
    assert findings(tmp_path, OFF, GONE) == []
    assert findings(tmp_path, GONE, OFF) == []
    assert findings(tmp_path, OFF, *["usb 1-1: hello"] * 59, GONE) == []
    assert findings(tmp_path, OFF, *["usb 1-1: hello"] * 60, GONE) == ["nvrm"]


def test_without_times_what_follows_an_xid_is_not_known_to_belong_to_it(tmp_path: Path) -> None:
    assert judged(fold_raw(tmp_path, f"{GONE}\n{OFF}\n")).outcome is Outcome.PASSED
    assert judged(fold_raw(tmp_path, f"{OFF}\n{GONE}\n")).action is Action.REBOOT
    assert judged(fold_raw(tmp_path, f"[ 5.0] {OFF}\n{GONE}\n")).action is Action.REBOOT


def test_an_xid_of_an_application_hides_no_error_of_the_driver(tmp_path: Path) -> None:
    assert findings(tmp_path, PAGE_FAULT, GONE) == ["nvrm"]
    assert findings(tmp_path, GONE, PAGE_FAULT) == ["nvrm"]


def test_an_error_before_the_driver_was_loaded_again_warns(tmp_path: Path) -> None:
    quiet = ["usb 1-1: hello"] * 60
    verdict = judged(fold(tmp_path, LOADED, GONE, *quiet, LOADED))
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 1)
    assert findings(tmp_path, LOADED, GONE) == ["nvrm"]
    assert findings(tmp_path, GONE, *quiet[1:], LOADED) == [
        "nvrm"
    ]  # it is printed after the GPUs were probed


# --- the fold


def test_a_record_of_an_earlier_boot_warns(tmp_path: Path) -> None:
    record = [
        "BERT: Error records from previous boot:",
        "[Hardware Error]: event severity: fatal",
        "[Hardware Error]:  Error 0, type: fatal",
    ]
    verdict = judged(fold(tmp_path, *record, "usb 1-1: hello"))
    assert verdict.outcome is Outcome.PASSED
    assert warned(verdict) == [
        "kernel log: boot record: BERT: Error records from previous boot: (1 times, last 1 s after boot)"
    ]
    assert len(warned(judged(fold(tmp_path, *record, "usb 1-1: hello", record[1])))) == 2


def test_an_uncorrected_machine_check_is_not_hidden_by_corrected_ones(tmp_path: Path) -> None:
    line = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: "
    assert findings(tmp_path, *late(f"{line}bd80000000100134", *[f"{line}9c00004000010090"] * 9)) == ["mce"]


def test_a_finding_quotes_the_message_and_what_is_expected(tmp_path: Path) -> None:
    line = "EDAC MC0: 1 UE memory read error" + "x" * 200
    (found,) = judged(fold(tmp_path, line)).findings
    assert found.measured == f"{line[:160]} (1 times, last 1 s after boot); the memory lost data in this boot"
    assert found.expected == "no uncorrected memory error"


@pytest.mark.parametrize(
    "row", ["seen\t3\t4\t\t", "seen\tx\t4\t\t\tmce", "seen\t3\tx\t\t\tmce", "seen\t\t4\t\t\tmce"]
)
def test_a_row_that_is_cut_is_not_understood(row: str) -> None:
    with pytest.raises(ProbeError, match="kernel log: not understood: 'seen"):
        parse(Answer("gpu01", 0, f"source dmesg\nfrom\t[ 1.0] Linux\n{row}\nend\t9\t0\t0\t0\t\n".encode()))


@pytest.mark.parametrize("end", ["end\t9\t0\t0\t0", "end\t9\t0\t0\t0\t\t", "", "source x"])
def test_a_log_without_its_end_is_cut(end: str) -> None:
    with pytest.raises(ProbeError, match="the end of the kernel log is missing"):
        parse(Answer("gpu01", 0, f"source dmesg\nfrom\t[ 1.0] Linux\n{end}\n".encode()))


@pytest.mark.parametrize(
    ("clock", "booted", "now"),
    [
        ("clock 1700000100 100.5 7", "2023-11-14T22:13:19Z", 100.5),
        ("clock 1700000100", "0 s after boot", None),
        ("clock x y", "0 s after boot", None),
        ("clock 1e30 5", "0 s after boot", 5.0),
        ("", "0 s after boot", None),
    ],
)
def test_the_clock_of_the_node(clock: str, booted: str, now: float | None) -> None:
    text = f"source dmesg\n{clock}\nfrom\t[ 1.0] Linux\nend\t9\t2\t3\t4\t[ 12.5]\n"
    log = parse(Answer("gpu01", 0, text.encode()))
    assert (log.when(0.0), log.now) == (booted, now)
    assert log.when(None) == "at an unknown time"
    assert (log.lines, log.since, log.unsent, log.unsent_xids, log.complaints, log.loaded) == (
        9,
        1.0,
        2,
        3,
        4,
        12.5,
    )


def test_a_short_log_of_known_messages_is_a_log_without_times_too(tmp_path: Path) -> None:
    assert len(fold_raw(tmp_path, f"{OFF}\n").xids) == 1
    with pytest.raises(NotAvailable, match="not a kernel log"):
        fold_raw(tmp_path, "No journal files were found.\n")


def test_a_flood_of_other_messages_hides_no_xid(tmp_path: Path) -> None:
    flood = [
        f"EDAC MC0: 1 UE memory read error on {chr(97 + n // 26)}{chr(97 + n % 26)}z" for n in range(300)
    ]
    log = fold(tmp_path, *flood, PAGE_FAULT, OFF)
    assert [found.number for found in log.xids] == [31, 79]
    verdict = judged(log)
    assert len(verdict.findings) == 200
    assert verdict.reason == "100 lines of the kernel log were not read: more than 200 different messages"


def test_a_log_whose_rest_was_not_read_is_not_checked(tmp_path: Path) -> None:
    flood = [f"XFS (dm{chr(103 + n // 20)}{chr(103 + n % 20)}): log I/O error" for n in range(201)]
    assert judged(fold(tmp_path, *flood)).outcome is Outcome.NOT_CHECKED
    assert judged(fold(tmp_path, *flood[:200])).outcome is Outcome.PASSED


def test_complaints_of_drivers_take_no_place_of_other_lines(tmp_path: Path) -> None:
    flood = [f"mlx5_core {chr(103 + n // 20)}{chr(103 + n % 20)}: failed" for n in range(50)]
    log = fold(tmp_path, *flood, *late(next(iter(ALONE))))
    assert (log.complaints, log.unsent, len(log.events)) == (10, 0, 41)
    assert "10 further lines of drivers" in warned(judged(log))[0]


def test_numbers_and_addresses_make_no_new_event(tmp_path: Path) -> None:
    lines = [
        f"NVRM: RmInitAdapter failed at 0x{n:x} of {n:08x} (ffff{n:04x}) (pid {n}): a:{n + 100} t={n}"
        for n in range(999)
    ]
    assert [event.count for event in fold(tmp_path, *lines).events] == [999]


@pytest.mark.parametrize(
    "device",
    [
        "nvme0n{}",
        "sda{}",
        "md{}",
        "0000:1b:0{}.0",
        "GPU{}",
        "DIMM#{}",
        "CPU_SrcID#{}_MC#2",
        "ens{}f0",
        "any (csrow:{} channel:1 page:0x7",
    ],
)
def test_the_name_of_a_device_makes_a_new_event(tmp_path: Path, device: str) -> None:
    lines = [f"Buffer I/O error on dev {device.format(n)}, logical block 0" for n in range(5)]
    assert len(fold(tmp_path, *lines).events) == 5


def test_a_level_of_the_log_silences_a_word_of_a_driver(tmp_path: Path) -> None:
    line = "mlx5_core 0000:3b:00.0: something failed"
    assert [len(fold_raw(tmp_path, f"<{n}>[ 5.000000] {line}\n[ 6.0] x\n").events) for n in (3, 4, 6)] == [
        1,
        1,
        0,
    ]


@pytest.mark.parametrize("awk", ["mawk", "gawk", "busybox awk", "original-awk"])
def test_the_program_runs_in_every_awk(tmp_path: Path, awk: str) -> None:
    if not shutil.which(awk.split(maxsplit=1)[0]):
        pytest.skip(f"{awk} is not installed")
    (tmp_path / "awk").write_text(f'#!/bin/sh\nexec {awk} "$@"\n')
    (tmp_path / "awk").chmod(0o755)
    lines = [one for lines in ORDINARY.values() for one in lines] + [*ALONE, *QUESTIONS, *WARNINGS]
    events = fold(tmp_path, *late(*lines)).events
    (tmp_path / "awk").unlink()
    assert [event.text for event in fold(tmp_path, *late(*lines)).events] == [event.text for event in events]
    assert {event.kind for event in events} >= {*ALONE.values(), *QUESTIONS.values(), *WARNINGS.values()}


XIDS = {
    "plain": "[ 1234.114906] {}",
    "with its level": "<3>[ 1234.114906] {}",
    "decoded": "kern  :err   : [ 1234.114906] {}",
    "with a thread": "[ 1234.114906][ T123] {}",
    "with a CPU": "[ 1234.114906][    C7] {}",
    "journal": "[ 1234.114906] gpu17 kernel: {}",
    "dated": "[Sun Feb 23 16:24:18 2025] {}",
    "journal without its host": "kernel: {}",
    "time before the name of the kernel": "[ 1234.114906] kernel: {}",
    "relative": "[  +0.000844] {}",
    "ISO": "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {}",
    "syslog": "Feb 23 16:24:18 gpu17 kernel: [ 1234.114906] {}",
}


@pytest.mark.parametrize("form", XIDS)
@pytest.mark.parametrize(
    ("line", "number", "bus", "text"),
    [
        ("NVRM: Xid (PCI:0000:1B:00): 79, GPU has fallen", 79, "0000:1b:00", "GPU has fallen"),
        ("NVRM: Xid (0000:03:00): 45, Ch 00000010", 45, "0000:03:00", "Ch 00000010"),
        ("NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 31, pid=1", 31, "0000:1b:00", "pid=1"),
        ("NVRM: Xid (PCI:0000:3f:00): 46", 46, "0000:3f:00", ""),
    ],
)
def test_an_xid_is_read_in_every_form_of_the_log(  # a table
    tmp_path: Path, form: str, line: str, number: int, bus: str, text: str
) -> None:
    log = fold_raw(tmp_path, f"{XIDS[form].format(line)}\n" * 2)
    (found,) = log.xids
    assert (found.number, found.bus, found.text, found.event.count) == (number, bus, text, 2)
    assert found.event.text == line
    times = 1234.114906 if "1234" in XIDS[form] else None
    assert (found.event.first, found.event.last, found.event.line) == (times, times, 2)


def test_a_subsystem_is_not_taken_for_the_level_of_a_line(tmp_path: Path) -> None:
    (event,) = fold_raw(tmp_path, "kernel: nfs: server fs1 not responding, still trying\n").events
    assert (event.server, event.text) == ("fs1", "nfs: server fs1 not responding, still trying")


@pytest.mark.parametrize("level", ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"])
def test_the_level_of_a_line_is_not_of_its_text(tmp_path: Path, level: str) -> None:
    (event,) = fold_raw(tmp_path, f"kern  :{level:6}: [    5.000000] {PAGE_FAULT}\n").events
    assert event.text == PAGE_FAULT


def test_a_line_without_a_time_has_that_of_the_line_before_it(tmp_path: Path) -> None:
    """github.com/NVIDIA/NVSentinel/issues/155: one message of three lines."""
    gone = "               NVRM: fallen off the bus and is not responding to commands.\n"
    log = fold_raw(tmp_path, f"[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n{gone}NVRM: failed\n")
    assert [(event.text, event.last) for event in log.events] == [
        (gone.strip(), 1843.308145),
        ("NVRM: failed", None),
    ]


def test_the_name_of_a_process_is_no_severity(tmp_path: Path) -> None:
    words = "NVRM: Xid (PCI:0000:1b:00): 145, pid=1, name={}, RLW_RXPIPE {} XC0 i0 Link 13 (0x0)"
    log = fold(tmp_path, words.format("nonfatal", "Fatal"), words.format("fatal", "Nonfatal"))
    assert len(log.xids) == 2


def test_the_parts_of_a_gpu_are_one(tmp_path: Path) -> None:
    lines = [PAGE_FAULT.replace("1b:00", f"1b:00 GPU-I:0{part}") for part in (1, 5)]
    assert [found.event.count for found in fold(tmp_path, *lines).xids] == [2]


# --- the answer, value by value

ROW = "seen\t3\t4\t[    1.5]\t[ 2.25]\t{}"


def folded(*rows: str, first: str = "[ 0.5] Linux", end: str = "end\t900\t1\t2\t3\t[ 12.5]") -> KernelLog:
    text = "\n".join(("source dmesg", "clock 1700000100 100.5 7", f"from\t{first}", *rows, end))
    return parse(Answer("gpu01", 0, f"{text}\n".encode()))


def test_every_value_of_an_answer() -> None:
    log = folded(ROW.format("EDAC MC0: 1 CE memory\terror "))
    assert log == KernelLog(
        "dmesg",
        900,
        0.5,
        log.booted,
        (Event("edac", 3, 1.5, 2.25, "EDAC MC0: 1 CE memory\terror", 4),),
        1,
        2,
        100.5,
        12.5,
        3,
    )
    assert log.booted is not None
    assert log.booted.isoformat() == "2023-11-14T22:13:19.500000+00:00"
    xid = folded(ROW.format("NVRM: Xid (PCI:0000:1B:00): 79,text"), ROW.format("NVRM: Xid (): 79"))
    assert xid.xids == (XidEvent(79, "0000:1b:00", xid.events[0], "text"),)
    switch = folded(
        ROW.format("nvidia-nvswitch3: SXid (PCI:1): 7, Fatal, x"), ROW.format("nvidia-nvswitch4: SXid (): 8")
    )
    assert [(it.number, it.bus, it.text) for it in switch.sxids] == [
        (7, "nvidia-nvswitch3", "Fatal, x"), (8, "nvidia-nvswitch4", "")
    ]  # fmt: skip
    odd = folded(ROW.format("nvidia-nvswitch3: SXid (PCI:1): 7x, Fatal")).sxids
    assert [(it.number, it.text) for it in odd] == [(7, "")]
    assert folded(ROW.format("NVRM: Xid (PCI:0000:1b:00): x")).xids == ()
    lustre = folded(ROW.format("Lustre: a: Connection to fs-OST0 (at x) was lost"))
    assert [(it.kind, it.server) for it in lustre.events] == [("stall", "fs-OST0")]
    assert Event("io", 1, None, None, "x").server == ""
    probe = probes.kernel_log_of(())
    assert (probe.name, probe.root, probe.timeout, probe.by_hand) == (
        "kernel log", True, 60, "dmesg || journalctl -k -b"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "lines", "good"),
    [
        ("[    0.000000] Linux", 1, True), ("[Sat Nov 21 10:00:00 2026] Linux", 1, True), ("<6>[ 0.0] Linux", 1, True),
        ("kern  :info  : [ 0.0] Linux", 1, True), ("kern:info:[ 0.0] Linux", 1, True), ("kern :info : 2026-11-21T10:00 x", 1, True),
        ("Nov  1 10:00:00 gpu01 kernel", 1, True), ("2026-11-21T10:00:00 x", 1, True), ("<>[ 0.0] x", 1, False),
        ("[x] Linux", 1, False), ("abcd-11-21T10:00:00 x", 1, False), ("words", 19, False), ("words", 20, True),
        ("\a words", 20, False), ("\ufffd words", 20, False), ("Nov  x 10:00", 1, False), ("[] x", 1, False),
        ("[5] Linux", 1, True), ("kern : : [ 0.0] x", 1, False),
    ],
)  # fmt: skip
def test_what_begins_a_log(first: str, lines: int, *, good: bool) -> None:
    end = f"end\t{lines}\t0\t0\t0\t"
    if good:
        assert folded(first=first, end=end).lines == lines
        return
    with pytest.raises(NotAvailable) as error:
        folded(first=first + "y" * 90, end=end)
    shown = (first.replace("\a", "?") + "y" * 90)[:80]
    assert str(error.value) == f"not a kernel log: {shown!r}"
    with pytest.raises(NotAvailable, match=r"^the kernel log is empty: nothing shows that it was read$"):
        folded(first=first, end="end\t0\t0\t0\t0\t")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("EXT4-fs (sda1): error", "filesystem"), ("XFSx error", ""), ("md/raid1:md0: active with 1 out of 2", "raid"),
        ("raid5: Disk failure on sda", "raid"), ("nvme nvmex: device not ready", ""), ("nvme nvme1: device not ready", "io"),
        ("nfs: server  not responding", ""), ("Connection to  (x) was lost", ""), ("EDAC MC0: xCE", ""), ("EDAC MC0: 2 UE", "edac"),
        ("pci 0000:05:00.0: AER: broadcast error_detected message", "quiet"), ("QUEUE", ""), ("mlx5_core 1: terror", ""),
        ("BTRFS info (device sda2): bdev /dev/sda2 errs: wr 0, rd 4", "quiet"), ("usb 1-1: device failed", ""), ("smpboot: #startup loops: 2", ""),
        ("CPU 0: Machine Check: 0 Bank 7: 8c00004000010090", "mce"), ("traps: python[7] general protection fault ip:7f0", ""),
    ],
)  # fmt: skip
def test_lines_that_almost_are_of_a_kind(text: str, kind: str) -> None:
    found = rule_of(text)
    assert (found.kind if found else "") == kind


@pytest.mark.parametrize(
    ("kind", "text", "loaded", "words"),
    [
        (
            "nvrm",
            "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed!",
            900.0,
            "before the driver was loaded again",
        ),
        (
            "mce",
            "mce: [Hardware Error]: Machine check: Processor context corrupt",
            None,
            "of the boot before",
        ),
    ],
)
def test_a_line_that_a_repair_has_ended_says_so(
    kind: str, text: str, loaded: float | None, words: str
) -> None:
    event = Event(kind, 1, 30.0, 30.0, text, 7)
    verdict = judged(KernelLog("dmesg", 900, 0.0, None, (event,), now=9000.0, loaded=loaded))
    (shown,) = [it.measured for it in verdict.findings] or [it.measured for it in verdict.advisories]
    assert words in shown
