"""The names of what a run makes: its mark in those of jobs and folders, and whether the run of a mark still lives.

A mark is PLACE-PID-START: the process of pytest by its number and its start (clock ticks since boot, proc(5)), and
where both count: one boot of one kernel, one namespace of processes. No two processes share a mark. Whether the process
is gone can be decided at that place only; from anywhere else the answer is "unknown", and what bears the mark stays.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

PREFIX = "gpucluster"
_PROC = Path("/proc")
_NAME = re.compile(rf"{PREFIX}-(?:[a-z]+-)?([0-9a-f]{{8}}-[0-9]+-[0-9]+)(?:-[0-9a-f]+)?")


def name_of_run(kind: str = "", suffix: str = "") -> str:
    """Return `gpucluster-KIND-MARK-SUFFIX` for something of this process; without a mark where /proc does not tell."""
    return "-".join(filter(None, (PREFIX, kind, _mark(), suffix)))


def mark_in(name: str) -> str:
    """Return the mark that a name holds; '' for a name that name_of_run() does not make."""
    match = _NAME.fullmatch(name)
    return match[1] if match else ""


def process_of(mark: str) -> int:
    """Return the number of the process that made a mark."""
    return int(mark.split("-")[1])


def lives(mark: str) -> bool | None:
    """Return True or False for a process of this place, None where it cannot be decided."""
    place, pid, start = mark.split("-")
    if place != _place():
        return None
    try:
        os.kill(int(pid), 0)
        state, began = _stat(int(pid))
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):  # another user's, or hidden (hidepid)
        return None
    return began == start and state not in {"Z", "X"}


def container_name(job: int, *words: str) -> str:
    """Return the name of a container that belongs to one job of ours: whoever finds it later can ask for the job."""
    return f"{PREFIX}-{job}-{digest(*words)}"


def digest(*words: str) -> str:
    """Return eight digits that stand for these words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def _mark() -> str:
    place, pid = _place(), os.getpid()
    return f"{place}-{pid}-{_stat(pid)[1]}" if place else ""


def _place() -> str:
    """Return eight digits for this boot and this namespace of processes; '' where there is no such /proc."""
    try:
        if str((_PROC / "self").readlink()) != str(os.getpid()):  # the /proc of another namespace
            return ""
        words = (_PROC / "sys/kernel/random/boot_id").read_text() + str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
    return digest(words)


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state and start, fields 3 and 22 of its stat; its name, field 2, may hold anything."""
    fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]
