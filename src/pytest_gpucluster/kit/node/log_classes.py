r"""The lines of the kernel log that may decide on a node: classes 1, 2, 4 and 5 of docs/suites/os.md; kit/gpu/xid.py has class 3.

Patterns are extended regular expressions of awk and of Python alike, without {n}, \d and \b, for lines in lower case; < and > are
the ends of a word. The sources were read in Linux 5.4 to 6.12 and open-gpu-kernel-modules 535 to 595.
"""

from __future__ import annotations

import re
from functools import cache

MEMORY = UNCORRECTED, RECOVERABLE = tuple(
    f"{it} error of memory or a processor" for it in ("uncorrected", "recoverable")
)
CRASH, GPU, GAVE_UP = "crash of the kernel", "GPU that the driver gave up", "part that the kernel gave up"
CORRECTED, AGAIN, INJECTED = "storm of corrected errors", "used again", "injected error"

ADAPTERS = "mlx[45]_core|bnxt_(en|re)|cxgb4|efa|erdma|hfi1|hns3|ice|irdma|ionic|mana|qed[er]?|sfc|be2net|cxi[a-z0-9_]*"
DRIVERS = f"nvidia|nvme|pcieport|pci|amdgpu|{ADAPTERS}"  # of GPUs, fabric adapters, local drives, and ports above them
_HEX = "[0-9a-f]"
_PCI = f"{_HEX}+:{_HEX}{_HEX}:{_HEX}{_HEX}[.][0-7]"
_OF_PARTS = "section_type: (memory|[^;]*processor)|error_type: [0-9]+, "

_PATTERNS = {
    # mm/madvise.c, arch/x86/kernel/cpu/mce/inject.c, mm/hwpoison-inject.c, drivers/acpi/apei/einj-core.c after a use
    INJECTED: "injecting memory failure|mce: machine check injector|hwpoison-inject|einj: error inject",
    # drivers/edac/edac_mc.c; MCi_STATUS.UC is the third bit (Intel SDM 3, 15.3.2.2): mce/core.c and drivers/edac/mce_amd.c
    # print it; efi/cper.c; mm/memory-failure.c: kill_proc; arch/x86/mm/fault.c: do_sigbus
    UNCORRECTED: f"edac mc.*<ue>|bank [0-9]+: (0x)?[abef]{_HEX * 7}|mc[0-9]+_status\\[[^]]*[|](ue|uc)[|]"
    "|hardware error\\]: uncorrected|uncorrected hardware memory error|machine check: .*(context corrupt|fatal)"
    f"|fatal (local )?machine check|hardware error\\]:.*event severity: fatal.*({_OF_PARTS})"
    "|(killing|sending sigbus to) .*due to hardware memory corruption",
    RECOVERABLE: f"hardware error\\]:.*event severity: recoverable.*({_OF_PARTS})|hardware error\\]: deferred"
    "|memory failure: .*recovery action for",
    # arch/x86/kernel/dumpstack.c, arch/arm64/kernel/traps.c: [#N] counts the crashes; kernel/panic.c; lib/bug.c; Lustre's
    # lbug_with_loc; spl_panic of OpenZFS
    CRASH: "bug: kernel null pointer|unable to handle (kernel|page fault)|kernel bug at|<oops>: [0-9a-f]+"
    "|(general protection fault|internal error:).*\\[#[0-9]+\\]|: [0-9a-f]+ \\[#[0-9]+\\]|kernel panic - not"
    "|<lbug>$|<spl panic$|^panic at [a-z0-9_]+[.]c:[0-9]+:",
    # osinit.c, nv.c, kernel_gsp.c, nvstatuscodes.h, linux_nvswitch.c of NVIDIA's driver
    GPU: "nvrm: .*(fallen off the bus|gpu is lost|lost from the bus|gpu_is_lost|rm_?init_?adapter failed|probably locked"
    "|reset_required|kflcncoredump|likely needs to be reset|heartbeat timed out|none of the nvidia .*were initialized|probe routine failed)"
    f"|nvidia: probe of {_PCI} failed|nvidia {_PCI}: probe with driver nvidia failed"
    "|nvidia-nvswitch[0-9]*: (unrecoverable error|interrupts disabled)",
    # mlx5/core/health.c and main.c, drivers/base/dd.c, nvme/host/pci.c and core.c, md/raid1.c, fs/ext4/super.c, jbd2/journal.c,
    # xfs_fsops.c, btrfs/messages.c, gfs2/util.c, zio_suspend of OpenZFS, pci/pcie/aer.c, amdgpu_device.c
    GAVE_UP: f"<({ADAPTERS})>.*(health compromised|health recovery (flow aborted|failed)|unrecoverable|(load|init)_one failed"
    "|adapter stopped|: has been disabled$|reboot (the )?(server|system|host))"
    f"|({ADAPTERS}|nvme): probe of {_PCI} failed|({ADAPTERS}|nvme) {_PCI}: probe with driver [^ ]+ failed"
    "|nvme nvme[0-9]+: (removing after probe|disabling device after|device not ready; aborting)"
    "|raid[^ ]* disk failure on|remounting filesystem read-only|aborting journal|detected aborted journal"
    "|xfs \\([^)]*\\): .*(shutdown|shutting down|been shut down|xfs_log_force: error|please u[mn]+ount the)"
    "|btrfs.*(forced readonly|commit of aborted transaction)|gfs2: .*file system withdrawn|pool .* has been suspended"
    f"|<(nvidia|nvme|{ADAPTERS}) {_PCI}: (.*severity=uncorrect(ed|able) \\(fatal\\)|aer: can't recover)"
    "|hardware error\\]:.*event severity: (recoverable|fatal).*type: fatal.*section_type: pcie"
    "|gpu reset end with ret = -|fatal error during gpu init",
    # drivers/edac/edac_mc.c, mce/core.c, mce_amd.c, pci/pcie/aer.c, efi/cper.c
    CORRECTED: "edac mc.*<ce>|machine check.*bank [0-9]+|mc[0-9]+_status\\[|hardware error\\]:.*event severity: corrected"
    f"|<({DRIVERS}) {_PCI}: .*severity=correct(ed|able)",
    # md/md.c, xfs_log.c, mlx5/core/health.c, nvme/host/pci.c, ext4/super.c, pci/pcie/err.c
    AGAIN: "(recovery|resync) done|ending (clean mount|recovery)|recovery (was )?succe|gpu reset.* succeeded"
    "|[0-9]+/[0-9]+/[0-9]+ default/read/poll queues|<mounted filesystem|re-?mounted .*(r/w|rw)",
}


def _expression(pattern: str) -> str:
    return pattern.replace("<", "(^|[^a-z0-9_])").replace(">", "([^a-z0-9_]|$)")


@cache
def _compiled() -> dict[str, re.Pattern[str]]:
    return {name: re.compile(_expression(pattern)) for name, pattern in _PATTERNS.items()}


def in_awk(*names: str) -> str:
    """Return the expression of these classes, of all without any, for /.../ of awk."""
    return "|".join(_expression(_PATTERNS[name]) for name in names or _PATTERNS).replace("/", "\\/")


def class_of(text: str) -> str:
    """Return the first class that a line belongs to, '' for none."""
    low = text.lower()
    return next((name for name, pattern in _compiled().items() if pattern.search(low)), "")
