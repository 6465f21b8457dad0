"""Names of jobs and folders of a run, with the run's mark, and whether the process of a mark still runs.

A mark is MACHINE-PID-START: the PID of pytest and its start (clock ticks since boot, proc(5)); MACHINE stands for the
boot and the PID namespace in which both are valid. No two processes share a mark. Only a process of the same boot and
namespace can decide whether the process has ended; anywhere else the answer is "unknown", and files and jobs with the
mark stay.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from pathlib import Path

PREFIX = "gpucluster"
NO_NODE = f"{PREFIX}-asks-for-its-rights"  # no node: only whether this user may update nodes
PROC = Path("/proc")
_NAME = re.compile(rf"{PREFIX}-(?:[a-z]+-)?([0-9a-f]{{8}}-[0-9]+-[0-9]+)(?:-[0-9a-f]+)?")


def name_of_run(purpose: str = "", suffix: str = "") -> str:
    """Return `gpucluster-PURPOSE-MARK-SUFFIX` for this process; without a mark if /proc is not usable."""
    return "-".join(filter(None, (PREFIX, purpose, _mark(), suffix)))


def user() -> str:
    """Return the name of whoever runs this, '' where the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def mark_in(name: str) -> str:
    """Return the mark in a name; '' for a name that name_of_run() does not make."""
    match = _NAME.fullmatch(name)
    return match[1] if match else ""


def process_of(mark: str) -> int:
    """Return the PID of the process that made a mark."""
    return int(mark.split("-")[1])


def is_running(mark: str) -> bool | None:
    """Return whether the process runs; None if that cannot be decided here."""
    machine, pid, start = mark.split("-")
    if machine != _machine():
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
    """Return the name of a container of one job; the job id in it shows later whether the job has ended."""
    return f"{PREFIX}-{job}-{digest(*words)}"


def digest(*words: str) -> str:
    """Return eight hexadecimal digits: a hash of these words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def mark_of(pid: int) -> str:
    """Return the mark of a process of this machine; '' without a usable /proc. ProcessLookupError: it has ended."""
    machine = _machine()
    return f"{machine}-{pid}-{_stat(pid)[1]}" if machine else ""


def _mark() -> str:
    return mark_of(os.getpid())


def _machine() -> str:
    """Return eight hexadecimal digits for this boot and PID namespace; '' without a usable /proc."""
    try:
        if str((PROC / "self").readlink()) != str(os.getpid()):  # the /proc of another namespace
            return ""
        words = (PROC / "sys/kernel/random/boot_id").read_text() + str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
    return digest(words)


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state and start, fields 3 and 22 of its stat; its name, field 2, may hold anything."""
    fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]
