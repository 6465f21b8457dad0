"""The memory in use on a node. Formats: proc_meminfo(5), df(1), ps(1), kstat of OpenZFS (arcstats)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class MemoryUser:
    """A file in /dev/shm or a process that uses memory, in bytes; `name` is a path, or a command with its pid."""

    name: str
    user: str
    size: int

    def __str__(self) -> str:
        """The name with its owner."""
        return f"{self.name} of {self.user}"


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes. `used`: what no program can get, without reserved huge pages, the cache of ZFS and other tmpfs than /dev/shm.

    shm: the files in /dev/shm. files, processes: those that use more than a hundredth of the memory, the largest first;
    both are known where more than a twentieth of the memory is in use.
    """

    total: int
    used: int
    shm: int = 0
    files: tuple[MemoryUser, ...] = ()
    processes: tuple[MemoryUser, ...] = ()


def read_memory_use(answer: Answer) -> MemoryUse:
    """Read the lines of memory_use.sh; NotAvailable if /proc/meminfo was not readable, or is of a kernel before 3.14."""
    lines = answer.out.splitlines()
    if "end" not in lines:
        raise ProbeError("the use of memory: the answer ended early")
    total, available, reserved, cache = _numbers(lines, "memory", 4)
    if not total or not available:
        raise NotAvailable(f"/proc/meminfo: no MemTotal or MemAvailable: {last_line(answer.err) or 'no message'}")
    other, shm = (_numbers(lines, word, 1)[0] for word in ("tmpfs", "shm"))
    used = max(0, total - available - reserved - cache - other)
    files = re.findall(r"^file (\d+) (\S+) (.+)$", answer.out, re.MULTILINE)
    processes = re.findall(r"^process +(\d+) +(\d+) +(\S+) +(.+)$", answer.out, re.MULTILINE)
    return MemoryUse(
        total << 10,
        used << 10,
        shm << 10,
        _largest(MemoryUser(path, user, int(size) << 10) for size, user, path in files),
        _largest(MemoryUser(f"{name} (pid {pid})", user, int(size) << 10) for size, pid, user, name in processes),
    )


def _largest(users: Iterable[MemoryUser]) -> tuple[MemoryUser, ...]:
    return tuple(sorted(users, key=lambda one: -one.size))


def _numbers(lines: list[str], word: str, count: int) -> tuple[int, ...]:
    """Return the numbers of the line that begins with a word; zeros if there is none."""
    found = next((line.split()[1:] for line in lines if line.startswith(f"{word} ")), ["0"] * count)
    if len(found) != count or not all(re.fullmatch(r"\d{1,15}", text) for text in found):
        raise ProbeError(f"the use of memory: not understood: {word} {' '.join(found)[:60]!r}")
    return tuple(map(int, found))


MEMORY_USE: Probe[MemoryUse] = Probe(
    "use of memory",
    script(__package__, "memory_use.sh", FOLD=shlex.quote(script(__package__, "memory_use.awk"))),
    read_memory_use,
    by_hand="cat /proc/meminfo; ls -lR /dev/shm; ps -eo rss,pid,user,comm --sort=-rss | head",
)
