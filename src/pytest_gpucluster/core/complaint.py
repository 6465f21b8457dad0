"""The first complaint in the output of a program that failed: what follows it is mostly its consequence. Pure."""

from __future__ import annotations

import re

MOST = 300  # characters
_LINES = 4
_WORDS = re.compile(
    r"NCCL WARN |\berror\b|fail|fatal|terminate called|\bsignal\b|\bcannot\b|can't|could not|\bunable\b|abort|denied|not found"
    r"|no such|undefined|traceback|\w(error|exception)\b",
    re.IGNORECASE,
)
# what srun, slurmstepd and nccl-tests report of a failed task, and NCCL's way back from the failure
_OF_OTHERS = re.compile(
    r"(srun|slurmstepd\S*): |.*: Test (NCCL|CUDA)? ?failure|\S*:\d+:\d+ \[-?\d+\] (\S+ )?NCCL INFO|Test failure"
)
# of srun, Open MPI and MPICH, and behind it torch's own
_LABEL = re.compile(r"^(?:\s*\d{1,18}: ?|\[[^\]]*\]<\w+>: ?|\[\d{1,18}\] (?=\S))?(?:\[rank\d{1,18}\]: ?)?")
_SENDER = re.compile(r"\[[\w.-]+:\d+\]")  # Open MPI's [host:pid] before each line of a block


def first_complaint(text: str) -> str:
    """Return the first line that complains, with the lines that belong to it, in one line; '' without one."""
    lines = [_LABEL.sub("", line[:MOST], count=1).rstrip() for line in text.splitlines()]
    at = next((n for n, line in enumerate(lines) if _WORDS.search(line) and not _OF_OTHERS.match(line.lstrip())), None)
    if at is None:
        return ""
    first, block = lines[at], [lines[at].strip()]
    sender, trace = _SENDER.match(first), first.startswith("Traceback")
    for line in lines[at + 1 :]:
        inner = line.startswith((" ", "\t")) or bool(sender and line.startswith(sender[0]))
        if trace and not inner:
            block = [line]  # the exception
        if not inner:
            break
        if not trace and len(block) < _LINES:
            block.append((line.removeprefix(sender[0]) if sender else line).strip())
    return " / ".join(filter(None, block))[:MOST]
