r"""The lines of the kernel log that may decide on a node: classes 1, 2, 4 and 5 of docs/suites/os.md; kit/gpu/xid.py has class 3.

Patterns are extended regular expressions of awk and of Python alike, without {n}, \d and \b, for lines in lower case; < and > are
the ends of a word. The sources were read in Linux 5.4 to 6.12 and open-gpu-kernel-modules 535 to 595.
"""

from __future__ import annotations

import re
from functools import cache

UNCORRECTED = "uncorrected error of memory or a processor"
MEMORY = (UNCORRECTED, RECOVERABLE := "recoverable error of memory or a processor")
CRASH, GPU, CORRECTED = "crash of the kernel", "GPU that the driver gave up", "storm of corrected errors"
GIVEN_UP = DRIVE, ARRAY, DEVICE, FILE_SYSTEM = tuple(
    f"{it} that the kernel gave up" for it in ("drive", "array", "device", "file system")
)
INJECTED, AGAIN = "injected error", "used again"

_ADAPTER = "mlx[45]_core|bnxt_en|efa|hfi1|ice|ionic|irdma|mana|cxi[a-z0-9_]*"  # for the fabric
_PART = f"nvidia|nvme|{_ADAPTER}"
_PCI = "[0-9a-f:]+[.][0-7]"
_RECORD = "hardware error\\]:.*event severity:"  # lines of one record of the firmware, joined with "; "
# (class, pattern, source); the first row that matches a line decides
TABLE = (
    (INJECTED, "injecting memory failure|machine check injector|einj: error inject", "mm/madvise.c, mce/inject.c, apei/einj-core.c"),
    (UNCORRECTED, "edac mc.*<ue>", "drivers/edac/edac_mc.c"),
    (UNCORRECTED, "machine check.*bank [0-9]+: (0x)?[abef]|mc[0-9]+_status\\[.*[|]u[ec][|]", "MCi_STATUS.UC (Intel SDM 3, 15.3.2.2): mce/core.c, mce_amd.c"),
    (UNCORRECTED, "hardware error\\]: uncorrected|uncorrected hardware memory error|machine check: .*context corrupt|fatal (local )?machine check", "mce/core.c, severity.c"),
    (UNCORRECTED, f"{_RECORD} fatal.*section_type: (memory|[^;]*processor)", "drivers/firmware/efi/cper.c"),
    (UNCORRECTED, "(killing|sending sigbus to) .*due to hardware memory corruption", "mm/memory-failure.c, arch/x86/mm/fault.c"),
    (RECOVERABLE, f"{_RECORD} recoverable.*section_type: (memory|[^;]*processor)", "drivers/firmware/efi/cper.c"),
    (RECOVERABLE, "hardware error\\]: deferred|memory failure: .*recovery action for", "mce_amd.c, mm/memory-failure.c"),
    (CRASH, "kernel null pointer|unable to handle (kernel|page fault)|kernel bug at|kernel panic - not", "arch/*/mm/fault.c, panic.c"),
    (CRASH, "<oops>: [0-9a-f]+|: [0-9a-f]+ \\[#[0-9]+\\]", "the number of the crash: x86/kernel/dumpstack.c, arm64/kernel/traps.c"),
    (CRASH, "<lbug>$|<spl panic$|^panic at [a-z0-9_]+[.]c:", "lbug_with_loc of Lustre, spl_panic of OpenZFS"),
    (GPU, "nvrm: .*(fallen off the bus|gpu is lost|rm_?init_?adapter failed|reset_required|needs to be reset)", "osinit.c, nvstatuscodes.h"),
    (GPU, "nvrm: .*(kflcncoredump|heartbeat timed out|none of the nvidia .*initialized|probe routine failed)", "kernel_gsp.c, nv.c"),
    (GPU, f"nvidia(: probe of)? {_PCI}(: probe with driver nvidia)? failed", "drivers/base/dd.c"),
    (GPU, "nvidia-nvswitch[0-9]*: (unrecoverable error|interrupts disabled)", "linux_nvswitch.c"),
    (DEVICE, f"<({_ADAPTER})>.*(health compromised|health recovery (flow aborted|failed)|unrecoverable|(load|init)_one failed)", "mlx5/core/health.c"),
    (DEVICE, f"<({_ADAPTER}|nvme)(: probe of)? {_PCI}(: probe with driver [^ ]+)? failed", "drivers/base/dd.c"),
    (DEVICE, f"<({_PART}) {_PCI}: (.*severity=uncorrect(ed|able) \\(fatal\\)|aer: can't recover)", "drivers/pci/pcie/aer.c, err.c"),
    (DEVICE, f"{_RECORD} (recoverable|fatal).*type: fatal.*section_type: pcie", "drivers/firmware/efi/cper.c"),
    (DRIVE, "nvme nvme[0-9]+: (removing after probe|disabling device after|device not ready; aborting)", "nvme/host/pci.c, core.c"),
    (ARRAY, "raid[^ ]* disk failure on|pool .* has been suspended", "drivers/md/raid1.c, raid5.c, zio_suspend of OpenZFS"),
    (FILE_SYSTEM, "remounting filesystem read-only|aborting journal|detected aborted journal", "fs/ext4/super.c, jbd2/journal.c"),
    (FILE_SYSTEM, "xfs \\([^)]*\\): .*(shutting down|been shut down|please u[mn]+ount the)", "fs/xfs/xfs_fsops.c"),
    (FILE_SYSTEM, "btrfs.*forced readonly", "fs/btrfs/messages.c"),
    (CORRECTED, f"edac mc.*<ce>|machine check.*bank [0-9]+|mc[0-9]+_status\\[|{_RECORD} corrected", "edac_mc.c, mce/core.c, cper.c"),
    (CORRECTED, f"<({_PART}|pci|pcieport) {_PCI}: .*severity=correct(ed|able)", "drivers/pci/pcie/aer.c"),
    (AGAIN, "(recovery|resync) done|ending (clean mount|recovery)|<mounted filesystem|re-?mounted .*r/w", "md/md.c, xfs_log.c, ext4/super.c"),
    (AGAIN, "recovery (was )?succe|[0-9]+/[0-9]+/[0-9]+ default/read/poll queues", "mlx5/core/health.c, nvme/host/pci.c"),
)  # fmt: skip


def _expression(pattern: str) -> str:
    return pattern.replace("<", "(^|[^a-z0-9_])").replace(">", "([^a-z0-9_]|$)")


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(_expression(pattern))) for kind, pattern, _ in TABLE)


def in_awk(*kinds: str) -> str:
    """Return the expression of these classes, of all without any, for /.../ of awk."""
    return "|".join(_expression(row[1]) for row in TABLE if not kinds or row[0] in kinds).replace("/", "\\/")


def class_of(text: str) -> str:
    """Return the first class that a line belongs to, '' for none."""
    low = text.lower()
    return next((kind for kind, pattern in _compiled() if pattern.search(low)), "")
