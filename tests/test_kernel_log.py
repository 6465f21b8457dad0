"""What the kernel says: what of it condemns a node, and what is ordinary. Logs are folded as a node folds its own."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.checks import os as checks
from pytest_gpucluster.checks.verdict import Action
from pytest_gpucluster.probes import kernel_log
from pytest_gpucluster.probes.base import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.checks.verdict import Verdict

START = "Linux version 5.15.0-1061-nvidia (buildd@lcy02) #62-Ubuntu SMP"
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
    "nfs: server fs1 not responding, timed out": "filesystem",
    "nvme nvme0: I/O 128 QID 5 timeout, aborting": "io",
    "nvme nvme0: I/O tag 128 (1080) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting req_op:READ(0) size:131072": "io",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10": "io",
    "nvme nvme0: Removing after probe failure status: -19": "io",
    "blk_update_request: critical medium error, dev sda, I/O error": "io",
    "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer": "pcie",
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


def judged(tmp_path: Path, *lines: str) -> Verdict:
    """Return the verdict on a node whose kernel said this, a line a second."""
    stamped = (f"[{number:5}.000000] {line}\n" for number, line in enumerate((START, *lines)))
    (tmp_path / "log").write_text("".join(stamped))
    tool = tmp_path / "dmesg"
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path}/log\n")
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", kernel_log.COMMAND], capture_output=True, env=env, timeout=60, check=True
    )
    return checks.kernel_log(kernel_log.parse(Answer("gpu01", 0, done.stdout, done.stderr)))


def findings(tmp_path: Path, *lines: str) -> list[str]:
    """Return the sorts of lines for which that node fails."""
    return [found.part.removeprefix("kernel log: ") for found in judged(tmp_path, *lines).findings]


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


def test_a_file_server_that_is_away_again_is_a_fault(tmp_path: Path) -> None:
    away, back = "nfs: server fs1 not responding, still trying", "nfs: server fs1 OK"
    assert findings(tmp_path, away) == ["filesystem"]
    assert findings(tmp_path, away, "nfs: server fs2 OK") == ["filesystem"]
    assert findings(tmp_path, away, back, away) == ["filesystem"]


def test_a_full_table_of_the_network_drains_nobody_unless_there_is_more(tmp_path: Path) -> None:
    full = "neighbour: arp_cache: neighbor table overflow!"
    assert judged(tmp_path, full).action is Action.MONITOR
    assert judged(tmp_path, full, "EXT4-fs (sda1): Remounting filesystem read-only").action is Action.DRAIN
