"""Which lines of the kernel log may decide on a node, and which that look like them may not."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.node.log_classes import (
    AGAIN,
    ARRAY,
    CORRECTED,
    CRASH,
    DEVICE,
    DRIVE,
    FILE_SYSTEM,
    GPU,
    INJECTED,
    RECOVERABLE,
    UNCORRECTED,
    class_of,
)

RECORD = "[Hardware Error]: event severity: {}; Error 0, type: {}; section_type: {}"
# Words of the kernel's and of NVIDIA's sources: drivers/edac, arch/x86/kernel/cpu/mce, drivers/firmware/efi/cper.c, mm/memory-failure.c,
# kernel_gsp.c, mlx5/core/health.c, drivers/base/dd.c, drivers/nvme/host, drivers/md, fs/ext4, fs/xfs, fs/btrfs, drivers/pci/pcie
LINES = {
    UNCORRECTED: [
        "EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134",
        "EDAC skx MC3: CPU 0: Machine Check Event: 0x0 Bank 25: 0xac00000200a00090",
        "[Hardware Error]: CPU:0 (19:1:1) MC18_STATUS[-|UE|MiscV|AddrV|-|TCC|SyndV|UECC|-|-|-]: 0xbc2030000000011b",
        "mce: Uncorrected hardware memory error in user-access at 3f8e65c0",
        "[Hardware Error]: Uncorrected, software restartable error.",
        "mce: [Hardware Error]: Machine check: Processor context corrupt",
        RECORD.format("fatal", "fatal", "memory error"),
        RECORD.format("fatal", "fatal", "ARM processor error"),
        "Memory failure: 0x40fa6: Killing mca-recover:1296 due to hardware memory corruption",
        "Memory failure: 0x7e025e: Sending SIGBUS to python:12283 due to hardware memory corruption",
        "MCE: Killing python:4711 due to hardware memory corruption fault at 7f0",
    ],
    RECOVERABLE: [
        RECORD.format("recoverable", "recoverable", "memory error"),
        "[Hardware Error]: Deferred error, no action required.",
        "Memory failure: 0x3f8e65: recovery action for dirty LRU page: Recovered",
    ],
    CRASH: [
        "kernel BUG at mm/slub.c:4023!",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: unable to handle page fault for address: 0000000000002a04",
        "Oops: Oops: 0002 [#1] SMP NOPTI",
        "general protection fault, probably for non-canonical address 0x78d29c0722bf7aa1: 0000 [#1] SMP NOPTI",
        "Internal error: Oops - BUG: 0 [#1] SMP",
        "Kernel panic - not syncing: Fatal exception",
        "LustreError: 3341:0:(osc_cache.c:1014:osc_extent_truncate()) LBUG",
        "PANIC at zfs_quota.c:89:zpl_get_file_info()",
    ],
    GPU: [
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
        "NVRM: None of the NVIDIA devices were initialized.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
        "nvidia: probe of 0000:01:00.0 failed with error -1",
        "nvidia-nvswitch: unrecoverable error in ISR",
    ],
    DEVICE: [
        "mlx5_core 0000:1a:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        "mlx5_core 0000:41:00.0: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error",
        "mlx5_core: probe of 0000:03:00.0 failed with error -22",
        "bnxt_en 0000:41:00.0: probe with driver bnxt_en failed with error -5",
        "nvme 0000:41:00.0: probe with driver nvme failed with error -5",
        "nvidia 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        RECORD.format("recoverable", "fatal", "PCIe error"),
    ],
    DRIVE: [
        "nvme nvme4: Disabling device after reset failure: -19",
        "nvme nvme2: Removing after probe failure status: -19",
        "nvme nvme0: Device not ready; aborting reset, CSTS=0x1",
    ],
    ARRAY: [
        "md/raid1:md0: Disk failure on sda1, disabling device.",
        "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.",
    ],
    FILE_SYSTEM: [
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "Aborting journal on device sda2-8.",
        "EXT4-fs error (device sda2): ext4_journal_check_start:83: comm x: Detected aborted journal",
        "XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem",
        "XFS (dm-0): Filesystem has been shut down due to log error (0x2).",
        "BTRFS info (device vdb state EA): forced readonly",
    ],
    CORRECTED: [
        "EDAC MC1: 32767 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1 (channel:1 slot:1 page:0x0)",
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 0: 90000040000f0005",
        "[Hardware Error]: CPU:2 (19:1:1) MC17_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b",
        "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:03:04.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
        RECORD.format("corrected", "corrected", "memory error"),
    ],
    AGAIN: [
        "md: md0: recovery done.",
        "XFS (vdb): Ending clean mount",
        "mlx5_core 0000:9a:00.0: health recovery succeeded",
        "nvme nvme0: 63/0/0 default/read/poll queues",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: (null)",
        "pcieport 0015:00:00.0: AER: device recovery successful",
    ],
    INJECTED: ["Injecting memory failure for pfn 0x3f8e65 at process virtual address 0x7f", "mce: Machine check injector initialized"],
    "": [
        "NVRM: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
        "EXT4-fs (sda1): mounting with errors=remount-ro",
        "traps: python[4711] general protection fault ip:7f0 sp:7ffc error:0 in libcuda.so[7f0+1000]",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
        "BUG: Bad page state in process python3  pfn:3f1a2b",
        "ACPI: EINJ 0x000000007B7E5000 000150 (v01 DELL   PE_SC3)",
        "Memory failure: registered address space: start 0x400000000000",
        "iwlwifi 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        "nvme 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
        RECORD.format("recoverable", "recoverable", "PCIe error"),
        "nvme nvme3: I/O 12 QID 3 timeout, completion polled",
        "nvme nvme0: Removing ctrl: NQN nqn.2014-08.org.nvmexpress.discovery",
        "mlx5_core 0000:1a:00.0: cmd[0]: CREATE_CQ(0x400) Async, recovered after timeout",
        "i2c_hid: probe of 0000:00:15.0 failed with error -121",
        "ice 0000:4b:00.0: The FW LLDP agent has been disabled on this port",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("line", "kind"), [(line, kind) for kind, lines in LINES.items() for line in lines])
def test_the_class_of_a_line(line: str, kind: str) -> None:
    assert class_of(line) == kind
