"""The use of memory: its command on recorded files and tools, its reader, and os.memory_in_use on machines that were considered."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name
from judged import figures
from os_helpers import GIB

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks.state import memory_in_use
from pytest_gpucluster.suites.os.memory_facts import MEMORY_USE, MemoryUse, MemoryUser, read_memory_use

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

# https://github.com/htop-dev/htop/issues/1559
ZFS_HOST = """MemTotal:       65710420 kB
MemFree:        10564240 kB
MemAvailable:   26828796 kB
Shmem:            287252 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
Hugetlb:               0 kB
"""
BUSY = """MemTotal:       1056000000 kB
MemAvailable:    700000000 kB
HugePages_Total:   10240
Hugepagesize:       2048 kB
"""
TOOLS = {
    "df": "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
    "none 528000000 9000000 519000000 2% /\ntmpfs 528000000 200000000 328000000 38% /dev/shm\ntmpfs 105600 2000 103600 2% /run\n",
    "find": "shm 199999000 ada /dev/shm/torch_1 of a run\nshm 1000 bob /dev/shm/nccl-x\n",
    "ps": "101000000 31337 ada      python3\n    9000     1 root     systemd\n",
}


def on_machine(folder: Path, meminfo: str, arcstats: str = "") -> MemoryUse:
    """Return what the command prints on a machine with these files and TOOLS."""
    (folder / "meminfo").write_text(meminfo)
    if arcstats:
        (folder / "arcstats").write_text(arcstats)
    for tool, text in TOOLS.items():
        (folder / f"{tool}.out").write_text(text)
        (folder / tool).write_text(f"#!/bin/sh\ncat {folder}/{tool}.out\n")
        (folder / tool).chmod(0o755)
    command = MEMORY_USE.command.replace("/proc/meminfo", f"{folder}/meminfo")
    command = command.replace("/proc/spl/kstat/zfs/arcstats", f"{folder}/arcstats")
    done = subprocess.run(
        ["sh", "-c", f"PATH={folder}:$PATH; {command}"], capture_output=True, timeout=60, check=False
    )
    return read_memory_use(Answer("n1", done.returncode, done.stdout, done.stderr))


def test_reserved_huge_pages_and_other_tmpfs_are_not_in_use(tmp_path: Path) -> None:
    found = on_machine(tmp_path, BUSY)
    used = 1056000000 - 700000000 - 10240 * 2048 - 9002000
    assert (found.total, found.used) == (1056000000 << 10, used << 10)
    assert found.shm == 200000000 << 10
    assert found.files == (MemoryUser("/dev/shm/torch_1 of a run", "ada", 199999000 << 10),)
    assert found.processes == (MemoryUser("python3 (pid 31337)", "ada", 101000000 << 10),)


def test_little_memory_in_use_starts_no_further_process(tmp_path: Path) -> None:
    assert on_machine(tmp_path, "MemTotal: 1000000 kB\nMemAvailable: 960000 kB\n") == MemoryUse(
        1000000 << 10, 40000 << 10
    )


def test_the_cache_of_zfs_is_not_in_use(tmp_path: Path) -> None:
    rows = f"name                            type data\nsize                            4    {34 * GIB}\nc_max 4 9\n"
    without, with_cache = on_machine(tmp_path, ZFS_HOST), on_machine(tmp_path, ZFS_HOST, rows)
    assert without.used - with_cache.used == 34 * GIB - (9002000 << 10)  # little is left: no tmpfs is read


def test_an_answer_that_cannot_be_judged() -> None:
    with pytest.raises(ProbeError):
        read_memory_use(Answer("n1", 0, b"memory 1 2 3 4\n"))
    with pytest.raises(ProbeError):
        read_memory_use(Answer("n1", 0, b"memory 1 2 x 4\nend\n"))
    with pytest.raises(NotAvailable):  # a kernel before 3.14
        read_memory_use(Answer("n1", 0, b"memory 100 0 0 0\nend\n"))


# --- machines that were considered


def judge(
    used: float, total: float = 1008, others: tuple[float, ...] = (30, 31, 33), **more: object
) -> Verdict:
    """Judge a node beside others, in GiB."""
    mine = MemoryUse(int(total * GIB), int(used * GIB), **more)  # type: ignore[arg-type]
    fleet = (
        {f"n{n}": int(it * GIB) for n, it in enumerate((used, *others), 1)} if others else {"n1": mine.used}
    )
    return memory_in_use(mine, fleet)


def zfs(cache: float) -> Verdict:
    use = read_memory_use(
        Answer(
            "n1", 0, f"memory 65710420 26828796 0 {int(cache * (1 << 20))}\ntmpfs 0\nshm 0\nend\n".encode()
        )
    )
    return memory_in_use(use, {"n1": use.used, "n2": 3 * GIB, "n3": 4 * GIB})


HEALTHY = (
    ("os.memory_in_use", "idle", "meminfo of a DGX H100", PASSED, lambda: judge(31)),
    ("os.memory_in_use", "half of the memory is the cache of ZFS", "https://github.com/htop-dev/htop/issues/1559", PASSED, lambda: zfs(34)),
    ("os.memory_in_use", "the page pool of a parallel file system on all nodes", "GPFS pagepool=128G", PASSED, lambda: judge(160, others=(158, 161, 163))),
    ("os.memory_in_use", "idle for months: more slab than a node that has just booted", "slabtop of a Lustre client", PASSED, lambda: judge(70)),
    ("os.memory_in_use", "a small node with a daemon of 6 GiB", "node of 64 GiB", PASSED, lambda: judge(8, 64, (2, 2, 3))),
    ("os.memory_in_use", "the only node, a daemon with much memory", "storage node", WARNING, lambda: judge(400, others=())),
    ("os.memory_in_use", "one of two nodes", "no median", WARNING, lambda: judge(400, others=(30,))),
    ("os.memory_in_use", "less than the others", "a service is off", PASSED, lambda: judge(3, others=(160, 160, 160))),
)  # fmt: skip
SICK = (
    ("os.memory_in_use", "files of an ended job in /dev/shm", "https://github.com/llm-d/llm-d/issues/352", MONITOR, lambda: judge(290, shm=256 * GIB, files=(MemoryUser("/dev/shm/nccl-WU88OE", "ada", 256 * GIB),))),
    ("os.memory_in_use", "a process of an ended job", "ps", MONITOR, lambda: judge(200, processes=(MemoryUser("python3 (pid 7)", "bob", 160 * GIB),))),
    ("os.memory_in_use", "a leak on a small node", "slabtop", MONITOR, lambda: judge(30, 64, (2, 2, 3))),
    ("os.memory_in_use", "the cache of ZFS explains half of it", "arcstats", MONITOR, lambda: zfs(17)),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)


def test_a_finding_names_what_uses_the_memory() -> None:
    files = tuple(MemoryUser(f"/dev/shm/torch_{n}", "ada", 32 * GIB) for n in range(8))
    verdict = judge(290, shm=256 * GIB, files=files)
    (finding,) = verdict.findings
    assert [figures(finding.measured)[:5:2], finding.measured.count(" of ada")] == [[290, 256, 32], 3]
    assert figures(finding.expected) == [81.4, 31]
