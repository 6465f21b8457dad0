"""A task that exceeds its memory limit, at which Slurm must end it.

usage: payload_memory.py LIMIT MOST (bytes)
"""

import re
import sys
from typing import Callable, List

from pytest_gpucluster.kit.payloads.prelude import error_text, exit_now, reporter

PIECE = 16 << 20  # bytes
SPARE = 4  # the node must have this multiple of the memory free: only this task may be ended


def number_in(path: str, pattern: str) -> int:
    """Return the first number that follows a pattern at the beginning of a line of a file; -1 without it."""
    with open(path) as file:
        found = re.search(r"^%s\s*(\d+)" % pattern, file.read(), re.MULTILINE)
    return int(found.group(1)) if found else -1


def why_refused(most: int) -> str:
    """Return why it would be dangerous on this node to exceed a limit, '' if it is not."""
    panic = number_in("/proc/sys/vm/panic_on_oom", "")
    if panic != 0:
        return "vm.panic_on_oom is %d: the kernel might panic" % panic
    free = number_in("/proc/meminfo", "MemAvailable:") << 10
    if free < SPARE * most:
        return "the node has only %d MiB of free memory" % (free >> 20)
    return ""


def main(report: Callable[..., None], limit: int, most: int) -> int:
    """Take memory in pieces; a report of `held` means that nothing ended this task."""
    refused = why_refused(most)
    if refused:
        report("refused", reason=refused)
        return 0
    pieces: List[bytes] = []
    try:
        while len(pieces) * PIECE < most:
            pieces.append(b"\1" * PIECE)  # written, not only reserved
            if len(pieces) * PIECE == max(PIECE, limit // 4 // PIECE * PIECE):
                report("below", bytes=len(pieces) * PIECE)
    except MemoryError as error:
        report("refused", reason="another limit than Slurm's is lower: %s" % error_text(error))
        return 0
    resident, swapped = (number_in("/proc/self/status", name) << 10 for name in ("VmRSS:", "VmSwap:"))
    report("held", resident=resident, swapped=swapped, taken=len(pieces) * PIECE)
    return 0


if __name__ == "__main__":
    exit_now(main(reporter("isolation"), int(sys.argv[1]), int(sys.argv[2])))
