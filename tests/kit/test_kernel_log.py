"""What the kernel says: what of it condemns a node, and what is ordinary. Logs are folded as a node folds its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold, fold_raw

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit import kernel_log as probes
from pytest_gpucluster.kit.kernel_log import Event, KernelLog, XidEvent, parse
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
SICK = {
    "EXT4-fs (sda1): Remounting filesystem read-only": "filesystem",
    "EXT4-fs (sda1): warning: mounting fs with errors, running e2fsck is recommended": "filesystem",
    "XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem": "filesystem",
    "nfs: server fs1 not responding, timed out": "stall",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "lockup",
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:": "lockup",
    "INFO: rcu_sched self-detected stall on CPU { 3}  (t=60000 jiffies g=1 c=2 q=3)": "lockup",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12": "lockup",
    "md/raid1:md0: Disk failure on sda1, disabling device.": "raid",
    "md/raid1:md0: active with 1 out of 2 mirrors": "raid",
    "mlx5_core 0000:1a:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count": "nic",
    "mlx5_core 0000:03:00.0: mlx5_load_one failed with error code -22": "nic",
    "mlx5_core: probe of 0000:03:00.0 failed with error -22": "nic",
    "mlx5_core: INFO: synd 0x8: unrecoverable hardware error.": "nic",
    "mlx5_core 0000:73:00.0: Health issue observed, firmware internal error, severity(3) ERROR": "nic",
    "mlx5_core 0000:1a:00.0: mlx5_health_try_recover:335:(pid 9): health recovery failed": "nic",
    "mlx5_core 0000:1a:00.0: print_health_info:431:(pid 0): assert_var[0] 0x00000000": "nic",
    "mlx5_core 0000:1a:00.0: wait_func:1137:(pid 9): CREATE_CQ(0x400) timeout. Will cause a leak": "nic",
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": "io",
    "block nvme0n1: no available path - failing I/O": "io",
    "print_req_error: critical medium error, dev sdb, sector 8736552": "io",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "lockup",
    "BUG: unable to handle page fault for address: ffffa7c13eaffff8": "lockup",
    "Oops: 0002 [#1] PREEMPT SMP NOPTI": "lockup",
    "general protection fault, probably for non-canonical address 0x78d29c0722bf7aa1: 0000 [#1] SMP NOPTI": "lockup",
    "Internal error: Oops: 96000004 [#1] SMP": "lockup",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10": "io",
    "nvme nvme0: Removing after probe failure status: -19": "io",
    "blk_update_request: critical medium error, dev sda, I/O error": "io",
    "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": "pcie",
    "pcieport 0000:00:1b.2: AER: Uncorrectable (Fatal) error message received from 0000:03:04.0": "pcie",
    "pcieport 0000:80:01.0: DPC: containment event, status:0x1f01 source:0x0000": "pcie",
    "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134": "mce",
    "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 1: be00000000800400": "mce",
    "mce: Uncorrected hardware memory error in user-access at 3f8e65c0": "mce",
    "[Hardware Error]: Deferred error, no action required.": "mce",
    "[Hardware Error]: CPU:0 (19:1:1) MC18_STATUS[-|UE|MiscV|AddrV|-|TCC|SyndV|UECC|-|-|-]: 0xbc2030000000011b": "mce",
    "{3}[Hardware Error]: event severity: recoverable": "mce",
    "EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": "edac",
    "Out of memory: Killed process 4711 (python) total-vm:9900kB, anon-rss:900kB, UID:1000": "oom",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python,pid=9": "oom",
    "nf_conntrack: nf_conntrack: table full, dropping packet": "network",
    "neighbour: arp_cache: neighbor table overflow!": "network",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]": "lockup",
}


def judged(tmp_path: Path, *lines: str, stalls: Stalls | None = None) -> Verdict:
    """Return the verdict on a node whose kernel said this, a line a second."""
    return checks.kernel_log(fold(tmp_path, *lines), stalls or Stalls())


def warned(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.advisories]


def findings(tmp_path: Path, *lines: str) -> list[str]:
    """Return the sorts of lines for which that node fails."""
    return [found.part.removeprefix("kernel log: ") for found in judged(tmp_path, *lines).findings]


NONFATAL = (  # drivers/pci/pcie/aer.c: the link still works after such an error
    "pcieport 0000:00:1c.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:03:00.0",
    "nvme 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
    "pcieport 0000:00:1c.0: AER: device recovery successful",
)


def test_a_non_fatal_pcie_error_warns_until_there_are_many(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *NONFATAL)
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 2)
    assert (
        verdict.advisories[0].expected
        == "no uncorrected PCIe error; after a non-fatal one the link still works"
    )
    assert findings(tmp_path, *[NONFATAL[1]] * 100) == ["pcie"]
    assert findings(tmp_path, *[NONFATAL[1]] * 99) == []


@pytest.mark.parametrize("what", ORDINARY)
def test_what_is_ordinary_condemns_no_node(tmp_path: Path, what: str) -> None:
    assert findings(tmp_path, *ORDINARY[what]) == []


@pytest.mark.parametrize("line", SICK)
def test_what_is_broken_is_found_in_the_midst_of_what_is_ordinary(tmp_path: Path, line: str) -> None:
    ordinary = [one for lines in ORDINARY.values() for one in lines]
    assert findings(tmp_path, *ordinary, line) == [SICK[line]]


@pytest.mark.parametrize(
    "line",
    ["AER: Corrected error received: 0000:01:00.0", "mce: [Hardware Error]: Machine check events logged"],
)
def test_a_flood_of_corrected_errors_is_a_fault(tmp_path: Path, line: str) -> None:
    assert findings(tmp_path, *[line] * 99) == []
    assert len(findings(tmp_path, *[line] * 100)) == 1


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
    event = Event(kind, count, first, last, "severity=Corrected")
    verdict = checks.kernel_log(KernelLog("dmesg", 900, 0.0, None, (event,)))
    assert bool(verdict.findings) is bad


@pytest.mark.parametrize(
    "line",
    [
        "nvme nvme0: I/O 778 QID 8 timeout, aborting",
        "nvme nvme0: I/O tag 128 (1080) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting req_op:READ(0) size:131072",
    ],
)
def test_a_command_of_a_disk_that_was_aborted_warns(tmp_path: Path, line: str) -> None:
    """github.com/scylladb/scylla-monitoring/issues/1838: nothing followed for 49 days."""
    verdict = judged(tmp_path, line, "nvme nvme0: Abort status: 0x0")
    assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, ())
    (warning,) = verdict.advisories
    assert (warning.part, warning.expected) == (
        "kernel log: io",
        "no disk command that times out; more lines follow if the abort failed",
    )
    assert findings(tmp_path, line, "nvme nvme0: I/O 778 QID 8 timeout, reset controller") == ["io"]


AWAY, BACK = "nfs: server fs1 not responding, still trying", "nfs: server fs1 OK"
HUNG = "INFO: task python:4711 blocked for more than 120 seconds."
LOST = (
    "Lustre: work-OST0012-osc-ffff9e3c4c7b1800: Connection to work-OST0012 (at 10.0.0.5@o2ib) was lost; "
    "in progress operations using this service will wait for recovery to complete"
)
FOUND = "Lustre: work-OST0012-osc-ffff9e3c4c7b1800: Connection restored to 10.0.0.5@o2ib (at 10.0.0.5@o2ib)"


def test_a_file_server_that_is_away_again_is_a_fault(tmp_path: Path) -> None:
    assert findings(tmp_path, AWAY) == ["stall"]
    assert findings(tmp_path, AWAY, "nfs: server fs2 OK") == ["stall"]
    assert findings(tmp_path, AWAY, BACK, AWAY) == ["stall"]
    assert findings(tmp_path, AWAY, AWAY.replace("fs1", "fs2"), BACK.replace("fs1", "fs2")) == ["stall"]
    assert findings(tmp_path, AWAY.replace("still trying", "timed out")) == ["stall"]


def test_a_stall_that_lasts_names_the_server_and_its_times(tmp_path: Path) -> None:
    verdict = judged(tmp_path, AWAY, BACK, AWAY, AWAY)
    (found,) = verdict.findings
    assert (found.measured, found.expected) == (
        f"{AWAY} (2 times, last 4 s after boot)",
        "every file server answers",
    )
    assert verdict.action is Action.MONITOR
    assert [(it.name, it.value) for it in verdict.metrics] == [
        ("kernel_log_lines", 5),
        ("file_server_stalls", 1),
    ]


def test_a_lustre_target_that_was_found_again_is_no_fault(tmp_path: Path) -> None:
    assert findings(tmp_path, LOST) == ["stall"]
    assert findings(tmp_path, LOST, FOUND) == []
    assert findings(tmp_path, LOST, FOUND, LOST) == ["stall"]
    assert findings(tmp_path, LOST, FOUND.replace("OST0012", "OST0013")) == ["stall"]
    assert findings(tmp_path, LOST, FOUND.replace("ffff9e3c4c7b1800", "ffff9e3c4c7b0000")) == []
    assert findings(tmp_path, LOST, "Lustre: Unmounted work-client") == []
    assert findings(tmp_path, LOST, "Lustre: Unmounted home-client") == ["stall"]


@pytest.mark.parametrize(
    "trace",
    [
        " ? __rpc_execute+0x1f0/0x1f0 [sunrpc]",
        " rpc_wait_bit_killable+0x11/0x70",
        " nfs4_file_open+0x1/0x2 [nfsv4]",
        " ptlrpc_set_wait+0x480/0x790 [ptlrpc]",
        " ? ll_file_io_generic+0x1/0x2",
        " cl_sync_io_wait+0x46/0x70 [obdclass]",
    ],
)
def test_a_task_that_waits_for_a_file_server_is_no_fault_of_the_node(tmp_path: Path, trace: str) -> None:
    verdict = judged(tmp_path, HUNG, "Call Trace:", " __schedule+0x2d1/0x830", trace, BACK)
    assert verdict.outcome is Outcome.PASSED
    assert warned(verdict) == [
        f"kernel log: waiting: {HUNG} (waits for a file server) (1 times, last 1 s after boot)"
    ]
    assert verdict.advisories[0].expected == "file servers that answer; the task waited for one"


def test_a_task_blocked_elsewhere_is_a_fault(tmp_path: Path) -> None:
    trace = [HUNG, "Call Trace:", " __schedule+0x2d1/0x830", " jbd2_log_wait_commit+0x1/0x2 [jbd2]"]
    assert findings(tmp_path, *trace) == ["lockup"]
    assert findings(tmp_path, AWAY, *trace, BACK) == ["lockup"]
    # the trace of a later task is not that of an earlier one
    assert findings(tmp_path, *trace, HUNG, "Call Trace:", " nfs_wait_bit_killable+0x1/0x2 [nfs]") == [
        "lockup"
    ]
    far = [HUNG, *["usb 1-1: hello"] * 61, " nfs_wait_bit_killable+0x1/0x2 [nfs]"]
    assert findings(tmp_path, *far) == ["lockup"]
    assert findings(tmp_path, *far[:60], far[-1]) == []


QUEUED = [HUNG, "Call Trace:", " rwsem_down_read_slowpath+0x2b4/0x570", " path_openat+0x2b4/0x570"]


def test_a_task_behind_another_that_waits_for_a_server_is_no_fault(tmp_path: Path) -> None:
    assert findings(tmp_path, *QUEUED) == ["lockup"]
    assert findings(tmp_path, AWAY, *QUEUED, BACK) == []
    # nor is it where an earlier task waited for a disk of the node
    assert len(warned(judged(tmp_path, AWAY, HUNG, " foo+0x1/0x2 [jbd2]", *QUEUED, BACK))) == 1


MODULES = "nvidia nvidia_uvm xfs ext4 jbd2 btrfs nvme_core scsi_mod dm_mod raid10 mlx5_core mlx4_ib"
FUNCTIONS = "xfs_log ext4_sync_file jbd2_log_wait btrfs_sync blk_mq_get_tag nvme_wait scsi_scan dm_wait md_write_start"


@pytest.mark.parametrize(
    "trace",
    [
        *(f" foo+0x1/0x2 [{module}]" for module in MODULES.split()),
        *(f" {function}+0x1/0x2" for function in FUNCTIONS.split()),
        *(" ? blk_mq_get_tag+0x1/0x2", "(blk_mq_get_tag+0x1/0x2)", "blk_mq_get_tag+0x1/0x2"),
    ],
)
def test_a_task_that_waits_for_a_device_of_its_node_is_a_fault_at_any_time(
    tmp_path: Path, trace: str
) -> None:
    assert findings(tmp_path, AWAY, *QUEUED, trace, BACK) == ["lockup"]


def test_a_task_without_a_trace_is_judged_by_whether_a_server_was_away(tmp_path: Path) -> None:
    assert findings(tmp_path, HUNG) == ["lockup"]
    assert findings(tmp_path, AWAY, HUNG, HUNG, BACK) == []


@pytest.mark.parametrize(("at", "kinds"), [(250, []), (370, []), (371, ["lockup"])])
def test_a_task_that_follows_a_stall_was_blocked_by_it(tmp_path: Path, at: int, kinds: list[str]) -> None:
    """The kernel says that it was blocked for 120 seconds: it began before the server answered, or not."""
    lines = [f"[  100.000000] {AWAY}", f"[  250.000000] {BACK}", f"[  {at}.000000] {HUNG}"]
    found = checks.kernel_log(fold_raw(tmp_path, "\n".join(lines) + "\n")).findings
    assert [it.part.removeprefix("kernel log: ") for it in found] == kinds
    alone = checks.kernel_log(fold_raw(tmp_path, f"{lines[1]}\n{lines[2]}\n")).findings
    assert [it.part for it in alone] == ["kernel log: lockup"]


@pytest.mark.parametrize(
    ("nodes", "away", "servers_fault"),
    [(1, 1, False), (2, 1, False), (2, 2, True), (4, 2, False), (4, 3, True)],
)
def test_a_server_that_is_away_for_most_nodes_drains_none(
    tmp_path: Path,
    nodes: int,
    away: int,
    servers_fault: bool,  # a table
) -> None:
    sick, sound = fold(tmp_path, AWAY, AWAY), fold(tmp_path, AWAY, BACK)
    stalls = Stalls.of_all({f"gpu{n}": sick if n < away else sound for n in range(nodes)})
    verdict = checks.kernel_log(sick, stalls)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.action is (Action.CONFIGURE if servers_fault else Action.MONITOR)
    (found,) = verdict.findings
    at_fault = f"file server fs1 does not answer on {away} of {nodes} nodes, so the server is at fault: "
    assert found.measured == f"{at_fault * servers_fault}{AWAY} (2 times, last 2 s after boot)"
    assert checks.kernel_log(sound, stalls).outcome is Outcome.PASSED


def test_another_server_of_most_nodes_excuses_nothing(tmp_path: Path) -> None:
    fs1, fs2 = fold(tmp_path, AWAY), fold(tmp_path, AWAY.replace("fs1", "fs2"))
    stalls = Stalls.of_all({"a": fs1, "b": fs2, "c": fs2})
    assert checks.kernel_log(fs1, stalls).action is Action.MONITOR
    assert checks.kernel_log(fs2, stalls).action is Action.CONFIGURE


def test_a_full_table_of_the_network_drains_nobody_unless_there_is_more(tmp_path: Path) -> None:
    full = "neighbour: arp_cache: neighbor table overflow!"
    verdict = judged(tmp_path, full)
    assert (verdict.action, verdict.cause) == (
        Action.CONFIGURE,
        "more connections or neighbours than the kernel's table holds: packets were dropped",
    )
    more = judged(tmp_path, full, "EXT4-fs (sda1): Remounting filesystem read-only")
    assert (more.action, more.cause) == (
        Action.MONITOR,
        "hardware, a driver or a file system reported an error since boot",
    )


def test_memory_that_a_job_used_up_drains_nobody(tmp_path: Path) -> None:
    assert judged(tmp_path, "Out of memory: Killed process 4711 (python)").action is Action.MONITOR


# --- the driver


OFF = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=a, GPU has fallen off the bus."
PAGE_FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, Ch 00000008"
GONE = "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"
INIT = "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)"


def test_the_words_around_an_xid_of_the_hardware_belong_to_gpu_xid(tmp_path: Path) -> None:
    assert findings(tmp_path, OFF, GONE) == []
    assert findings(tmp_path, GONE, OFF) == []
    assert findings(tmp_path, OFF, *["usb 1-1: hello"] * 59, GONE) == []
    assert findings(tmp_path, OFF, *["usb 1-1: hello"] * 60, GONE) == ["nvrm"]


def test_without_times_what_follows_an_xid_is_not_known_to_belong_to_it(tmp_path: Path) -> None:
    assert checks.kernel_log(fold_raw(tmp_path, f"{GONE}\n{OFF}\n")).outcome is Outcome.PASSED
    assert checks.kernel_log(fold_raw(tmp_path, f"{OFF}\n{GONE}\n")).action is Action.REBOOT
    assert checks.kernel_log(fold_raw(tmp_path, f"[ 5.0] {OFF}\n{GONE}\n")).action is Action.REBOOT
    assert checks.kernel_log(fold_raw(tmp_path, f"{OFF}\n[ 5.0] {GONE}\n")).action is Action.REBOOT


def test_an_xid_of_an_application_hides_no_error_of_the_driver(tmp_path: Path) -> None:
    assert findings(tmp_path, PAGE_FAULT, INIT) == ["nvrm"]
    assert findings(tmp_path, INIT, PAGE_FAULT) == ["nvrm"]


def test_an_error_before_the_driver_was_loaded_again_warns(tmp_path: Path) -> None:
    quiet = ["usb 1-1: hello"] * 60
    verdict = judged(tmp_path, LOADED, INIT, *quiet, LOADED)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.advisories[0].expected == "no error of the NVIDIA driver; it was loaded again since"
    assert findings(tmp_path, LOADED, INIT) == ["nvrm"]
    # the greeting comes after the GPUs were probed
    assert findings(tmp_path, INIT, *quiet[1:], LOADED) == ["nvrm"]


def test_an_assertion_of_the_driver_warns(tmp_path: Path) -> None:
    """github.com/NVIDIA/nccl/issues/2241 has the first line, of a B200; the second may be of a container."""
    assert (
        len(warned(judged(tmp_path, "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL"))) == 1
    )
    assert len(warned(judged(tmp_path, "NVRM: API mismatch: the client has the version 535.54.03, but"))) == 1
    line = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Invalid state [NV_ERR_INVALID_STATE] (0x00000040)"
    verdict = judged(tmp_path, line)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.advisories[0].expected == "no failed assertion or call of the NVIDIA driver"
    full = judged(tmp_path, line.replace("INVALID_STATE", "NO_MEMORY"))
    assert (full.outcome, full.advisories) == (Outcome.PASSED, ())


@pytest.mark.parametrize(
    ("line", "action"),
    [
        (GONE, Action.REBOOT),
        ("NVRM: GPU 0000:1b:00.0: GPU is lost, skipping nv_pci_probe", Action.REBOOT),
        (INIT, Action.REBOOT),
        ("NVRM: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7", Action.RESET_GPU),
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
            Action.RESET_GPU,
        ),
        (
            "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
            Action.REBOOT,
        ),
        ("NVRM: Rate limiting GSP RPC error prints. The GPU likely needs to be reset.", Action.RESET_GPU),
        ("NVRM: GPU 0000:b3:00.0: Failed to copy vbios to system memory.", Action.MONITOR),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", Action.MONITOR),
        ("NVRM: osInitNvMapping: *** Cannot attach gpu", Action.MONITOR),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", Action.MONITOR),
        ("NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0", Action.REBOOT),
        ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, timeout 5200", Action.RESET_GPU),
        ("NVRM: GPU6 _kgspLogRpcTimeout: ***** GSP Timeout ******", Action.RESET_GPU),
        ("NVRM: GPU6 kgmmuCheckMemSubsysError_IMPL: Memory Subsystem Error detected.", Action.RESET_GPU),
    ],
)
def test_what_an_error_of_the_driver_asks_for(tmp_path: Path, line: str, action: Action) -> None:
    verdict = judged(tmp_path, line)
    assert [(it.part, it.measured, it.expected) for it in verdict.findings] == [
        ("kernel log: nvrm", f"{line} (1 times, last 1 s after boot)", "no error of the NVIDIA driver")
    ]
    assert verdict.action is action


# --- the fold


def test_a_record_of_an_earlier_boot_warns(tmp_path: Path) -> None:
    record = [
        "BERT: Error records from previous boot:",
        "[Hardware Error]: event severity: fatal",
        "[Hardware Error]:  Error 0, type: fatal",
    ]
    verdict = judged(tmp_path, *record, "usb 1-1: hello")
    assert verdict.outcome is Outcome.PASSED
    assert warned(verdict) == [
        "kernel log: boot record: BERT: Error records from previous boot: (1 times, last 1 s after boot)"
    ]
    assert findings(tmp_path, *record, "usb 1-1: hello", record[2]) == ["mce"]


def test_an_uncorrected_machine_check_is_not_hidden_by_corrected_ones(tmp_path: Path) -> None:
    line = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: "
    assert findings(tmp_path, f"{line}bd80000000100134", *[f"{line}9c00004000010090"] * 9) == ["mce"]


def test_two_of_an_arrays_disks_work(tmp_path: Path) -> None:
    line = "md/raid1:md0: active with 2 out of 2 mirrors"
    assert findings(tmp_path, line.replace("2 out", "1 out"), line.replace("md0", "md1")) == ["raid"]


def test_a_sound_log_has_one_metric_and_the_checks_own_cause(tmp_path: Path) -> None:
    verdict = judged(tmp_path)
    assert [(it.name, it.value, it.unit) for it in verdict.metrics] == [("kernel_log_lines", 1, "lines")]
    assert verdict.cause == "hardware, a driver or a file system reported an error since boot"
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())


EXPECTED = {
    "mce: Uncorrected hardware memory error": (
        "no uncorrected machine check, fewer than 100 lines of corrected ones a day"
    ),
    "EDAC MC0: 1 UE memory read error": (
        "no uncorrected memory error, fewer than 100 lines of corrected ones a day"
    ),
    "XFS (nvme1n1): Corruption of in-memory data detected": "no file system error",
    "md/raid1:md0: Disk failure on sda1, disabling device.": "every disk of the array works",
    "mlx5_core 0000:1a:00.0: health recovery failed": "the firmware of the network adapter answers",
    "blk_update_request: I/O error, dev sda": "no I/O error",
    "Out of memory: Killed process 7 (python)": "memory never ran out",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!": "no lockup, hung task, RCU stall or kernel bug",
    "pcieport 0000:80:01.0: DPC: containment event": (
        "no uncorrected PCIe error, fewer than 100 lines of corrected ones a day"
    ),
    "neighbour: arp_cache: neighbor table overflow!": "no table of the network overflows",
}


@pytest.mark.parametrize("line", EXPECTED)
def test_a_finding_quotes_the_message_and_says_what_is_expected(tmp_path: Path, line: str) -> None:
    (found,) = judged(tmp_path, line + "x" * 200).findings
    assert found.measured == f"{(line + 'x' * 200)[:160]} (1 times, last 1 s after boot)"
    assert found.expected == EXPECTED[line]


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
    assert (log.lines, log.since, log.unsent, log.unsent_xids, log.stalls_over, log.loaded) == (
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
    flood = [f"XFS (dm-{chr(97 + n // 26)}{chr(97 + n % 26)}z): log I/O error" for n in range(300)]
    log = fold(tmp_path, *flood, PAGE_FAULT, OFF)
    assert [found.number for found in log.xids] == [31, 79]
    verdict = checks.kernel_log(log)
    assert len(verdict.findings) == 200
    assert verdict.reason == "100 lines of the kernel log were not read: more than 200 different messages"


def test_a_log_whose_rest_was_not_read_is_not_checked(tmp_path: Path) -> None:
    flood = [f"NVRM: hello {chr(103 + n // 20)}{chr(103 + n % 20)}" for n in range(201)]
    assert judged(tmp_path, *flood).outcome is Outcome.NOT_CHECKED
    assert judged(tmp_path, *flood[:200]).outcome is Outcome.PASSED


def test_numbers_and_addresses_make_no_new_sort(tmp_path: Path) -> None:
    lines = [f"NVRM: RmInitAdapter failed at 0x{n:x} of {n:08x} (ffff{n:04x}) GPU{n}" for n in range(999)]
    assert [event.count for event in fold(tmp_path, *lines).events] == [999]
    lines = [f"NVRM: RmInitAdapter failed -{n} of {n} at 1b:0{n}.{n} a{n}b{n}c" for n in range(10)]
    assert [event.count for event in fold(tmp_path, *lines).events] == [10]


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


# --- one event


def log(*events: tuple[str, str, int]) -> KernelLog:
    said = tuple(Event(kind, count, 1.0, 2.0, text) for kind, text, count in events)
    return KernelLog("dmesg", 900, 0.0, None, said)


@pytest.mark.parametrize(
    ("kind", "text", "count", "bad"),
    [
        ("edac", "EDAC MC0: 1 CE memory read error on CPU_SrcID", 3, False),
        ("edac", "EDAC MC0: 1 CE memory read error on CPU_SrcID", 500, True),
        ("edac", "EDAC MC0: 1 UE memory read error on CPU_SrcID", 1, True),
        ("oom", "Memory cgroup out of memory: Killed process 7 (python)", 1, False),
        ("oom", "Out of memory: Killed process 7 (python)", 1, True),
        ("filesystem", "EXT4-fs error (device sda1): ext4_find_entry", 1, True),
        ("lockup", "INFO: task dd:7 blocked for more than 120 seconds.", 1, True),
        (
            "nvrm",
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
            1,
            False,
        ),
        ("nvrm", "NVRM: RmInitAdapter failed! (0x22:0x56:894)", 1, True),
        ("nvrm", "NVRM: ctxBufPoolReserve: Failed to reserve memory. trimming all pools", 1, False),
        ("io", "blk_update_request: I/O error, dev sda", 1, True),
    ],
)
def test_kernel_log_kinds(kind: str, text: str, count: int, bad: bool) -> None:  # a table
    verdict = checks.kernel_log(log((kind, text, count)))
    assert verdict.outcome is (Outcome.FAILED if bad else Outcome.PASSED)


# --- the answer, value by value

ROW = "seen\t3\t4\t[    1.5]\t[ 2.25]\t{}"


def folded(*rows: str, first: str = "[ 0.5] Linux", end: str = "end\t900\t1\t2\t3\t[ 12.5]") -> KernelLog:
    text = "\n".join(("source dmesg", "clock 1700000100 100.5 7", f"from\t{first}", *rows, end))
    return parse(Answer("gpu01", 0, f"{text}\n".encode()))


def test_every_value_of_an_answer() -> None:
    log = folded(ROW.format("EDAC MC0: 1 CE memory\terror "), ROW.format("NVRM: loading"))
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
    assert folded(ROW.format("NVRM: Xid (PCI:0000:1b:00): x")).xids == ()
    lustre = folded(ROW.format("Lustre: a: Connection to fs-OST0 (at x) was lost"))
    assert [(it.kind, it.server) for it in lustre.events] == [("stall", "fs-OST0")]
    assert Event("io", 1, None, None, "x").server == ""
    probe = probes.KERNEL_LOG
    assert (probe.name, probe.root, probe.timeout, probe.by_hand) == (
        "kernel log", True, 30, "dmesg || journalctl -k -b"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "lines", "good"),
    [
        ("[    0.000000] Linux", 1, True), ("[Sat Nov 21 10:00:00 2026] Linux", 1, True), ("<6>[ 0.0] Linux", 1, True),
        ("kern  :info  : [ 0.0] Linux", 1, True), ("kern:info:[ 0.0] Linux", 1, True), ("kern :info : 2026-11-21T10:00 x", 1, True),
        ("Nov  1 10:00:00 gpu01 kernel", 1, True), ("2026-11-21T10:00:00 x", 1, True), ("<>[ 0.0] x", 1, False),
        ("[x] Linux", 1, False), ("abcd-11-21T10:00:00 x", 1, False), ("words", 19, False), ("words", 20, True),
        ("\a words", 20, False), ("\ufffd words", 20, False), ("Nov  x 10:00", 1, False), ("[] x", 1, False),
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
        ("EXT4-fs (sda1): error", "filesystem"), ("XFSx error", ""), ("EXT4-fs error", "filesystem"), ("md/raid: active with  out of 2", ""),
        ("raid1: Disk failure on sda", "raid"), ("raid1:Disk failure on sda", "raid"), ("md/raid:md0: active with 1 out of 2", "raid"),
        ("raid Disk failure on sda", "raid"), ("md/raid active with 1 out of 2", "raid"), ("nvme nvmex: device not ready", ""),
        ("nvme nvme1: device not ready", "io"), ("mce: error", "mce"), ("nfs: server  not responding", ""),
        ("Connection to  (x) was lost", ""), ("EDAC MC0: xCE", ""), ("EDAC MC0: 2 UE", "edac"),
    ],
)  # fmt: skip
def test_lines_that_almost_are_of_a_kind(text: str, kind: str) -> None:
    assert [event.kind for event in folded(ROW.format(text)).events] == ([kind] if kind else [])
