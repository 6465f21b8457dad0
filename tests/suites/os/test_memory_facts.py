"""The use of memory: its command on recorded files and tools, its reader, and os.memory_in_use on machines that were considered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, PASSED, WARNING
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import GIB, answer, run, with_tools

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.suites.os.checks.state import memory_in_use
from pytest_gpucluster.suites.os.memory_facts import MEMORY_USE, MemoryUse, MemoryUser, read_memory_use

if TYPE_CHECKING:
    from pathlib import Path

# https://github.com/htop-dev/htop/issues/1559
ZFS_HOST = "MemTotal: 65710420 kB\nMemAvailable: 26828796 kB\nHugePages_Total: 0\nHugepagesize: 2048 kB\n"
BUSY = "MemTotal: 1056000000 kB\nMemAvailable: 700000000 kB\nHugePages_Total: 10240\nHugepagesize: 2048 kB\n"
TOOLS = {
    "df": "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
    "none 528000000 9000000 519000000 2% /\ntmpfs 528000000 200000000 328000000 38% /dev/shm\ntmpfs 105600 2000 103600 2% /run",
    "find": "shm 199999000 ada /dev/shm/torch_1 of a run\nshm 1000 bob /dev/shm/nccl-x",
    "ps": "101000000 31337 ada      python3\n    9000     1 root     systemd",
}


def on_machine(folder: Path, meminfo: str, arcstats: str = "") -> MemoryUse:
    """Return what the command prints on a machine with these files and TOOLS."""
    (folder / "meminfo").write_text(meminfo)
    if arcstats:
        (folder / "arcstats").write_text(arcstats)
    command = MEMORY_USE.command.replace("/proc/meminfo", f"{folder}/meminfo")
    command = command.replace("/proc/spl/kstat/zfs/arcstats", f"{folder}/arcstats")
    tools = {tool: f"cat <<'END'\n{text}\nEND" for tool, text in TOOLS.items()}
    return read_memory_use(run(command, PATH=with_tools(folder, **tools)))


def test_reserved_huge_pages_and_other_tmpfs_are_not_in_use(tmp_path: Path) -> None:
    assert on_machine(tmp_path, BUSY) == MemoryUse(
        1056000000 << 10,
        (1056000000 - 700000000 - 10240 * 2048 - 9002000) << 10,
        200000000 << 10,
        (MemoryUser("/dev/shm/torch_1 of a run", "ada", 199999000 << 10),),
        (MemoryUser("python3 (pid 31337)", "ada", 101000000 << 10),),
    )


def test_little_memory_starts_no_process_and_the_cache_of_zfs_is_not_in_use(tmp_path: Path) -> None:
    found = on_machine(tmp_path, "MemTotal: 1000000 kB\nMemAvailable: 960000 kB\n")
    assert found == MemoryUse(1000000 << 10, 40000 << 10)
    rows = f"name                            type data\nsize                            4    {34 * GIB}\nc_max 4 9\n"
    without, with_cache = on_machine(tmp_path, ZFS_HOST), on_machine(tmp_path, ZFS_HOST, rows)
    assert without.used - with_cache.used == 34 * GIB - (9002000 << 10)  # little is left: no tmpfs is read


def test_an_answer_that_cannot_be_judged() -> None:
    for text in ("memory 1 2 3 4\n", "memory 1 2 x 4\nend\n", "memory 1 2 3\nend\n"):
        with pytest.raises(ProbeError):
            read_memory_use(answer(text))
    with pytest.raises(NotAvailable):  # a kernel before 3.14
        read_memory_use(answer("memory 100 0 0 0\nend\n"))


def judge(used: float, others: tuple[float, ...] = (30, 31, 33), total: float = 1008, **more: object) -> Verdict:
    """Judge a node beside others, in GiB."""
    mine = MemoryUse(int(total * GIB), int(used * GIB), **more)  # type: ignore[arg-type]
    return memory_in_use(mine, {f"n{n}": int(it * GIB) for n, it in enumerate((used, *others), 1)})


def zfs(cache: float) -> Verdict:
    text = f"memory 65710420 26828796 0 {int(cache * (1 << 20))}\ntmpfs 0\nshm 0\nend\n"
    use = read_memory_use(answer(text))
    return memory_in_use(use, {"n1": use.used, "n2": 3 * GIB, "n3": 4 * GIB})


LEFT = MemoryUser("/dev/shm/nccl-WU88OE", "ada", 256 * GIB)
MACHINES: Machines = {
    ("os.memory_in_use", judge): [
        ("idle | meminfo of a DGX H100", PASSED, 31),
        ("half of the memory is the cache of ZFS | htop, issue 1559", PASSED, lambda: zfs(34)),
        ("the page pool of a file system on all nodes | GPFS pagepool=128G", PASSED, 160, (158, 161, 163)),
        ("idle for months: more slab | slabtop of a Lustre client", PASSED, 70),
        ("a small node with a daemon of 6 GiB | node of 64 GiB", PASSED, 10, (2, 2, 3), 64),
        ("the only node, a daemon with much memory | storage node", WARNING, 253, ()),
        ("the only node, a quarter in use | storage node", PASSED, 252, ()),
        ("one of two nodes | no median", WARNING, 400, (30,)),
        ("less than the others | a service is off", PASSED, 3, (160, 160, 160)),
        ("sick: files of an ended job | llm-d, issue 352", MONITOR, lambda: judge(290, files=(LEFT,))),
        ("sick: beyond a twentieth of the memory | 31 + 50.4 GiB", MONITOR, 82),
        ("sick: a leak on a small node | slabtop", MONITOR, 10.1, (2, 2, 3), 64),
        ("sick: the cache of ZFS explains half of it | arcstats", MONITOR, lambda: zfs(17)),
    ]
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
