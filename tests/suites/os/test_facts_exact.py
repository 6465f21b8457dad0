"""Commands and readers of the operating system's probes, word for word, and where their bounds are."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import probe as base
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.kit import enroot
from pytest_gpucluster.kit import mpi_facts as mpi
from pytest_gpucluster.kit.containers import ImageImport
from pytest_gpucluster.kit.mpi_facts import InstalledMpi, MpiRank, MpiWorld, RankPair, Version
from pytest_gpucluster.kit.own_folder import OWN_SH
from pytest_gpucluster.suites.container import facts as container
from pytest_gpucluster.suites.os import facts as os
from pytest_gpucluster.suites.os import network_facts as os_network
from pytest_gpucluster.suites.os import software_facts as os_software
from pytest_gpucluster.suites.os import storage_facts as os_storage
from pytest_gpucluster.suites.os.facts import CommandSection, Cpus, Load, MemoryInfo, Mount
from pytest_gpucluster.suites.os.network_facts import Naming, Network, NetworkInterface, ReachabilityResult
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFiles, SharedFolder, SharedResult

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(out: str = "", rc: int | None = 0, err: str = "", **more: Any) -> Answer:
    return Answer("n1", rc, out.encode(), err.encode(), **more)


def of(**parts: str | tuple[str, int]) -> Answer:
    """Return an answer in sections; a pair is text and exit status."""
    told = {name: part if isinstance(part, tuple) else (part, 0) for name, part in parts.items()}
    return answer("".join(f"\x1e{name}\n{text}\x1e={rc}\n" for name, (text, rc) in told.items()))


CPU = "/sys/devices/system/cpu"
BY_HAND = {
    "clock": ("date", 30.0, True),
    "hostname": ("uname -n", 30.0, True),
    "kernel": ("uname -r", 30.0, True),
    "uptime": ("cat /proc/uptime", 30.0, True),
    "load": ("cat /proc/loadavg", 30.0, True),
    "cmdline": ("cat /proc/cmdline", 30.0, True),
    "memory": ("cat /proc/meminfo", 30.0, True),
    "memory parts": (
        "grep MemTotal /sys/devices/system/node/node*/meminfo; grep -sH . "
        "/sys/devices/system/edac/mc/mc*/dimm*/dimm_label /sys/devices/system/edac/mc/mc*/dimm*/size "
        "/sys/devices/system/edac/mc/mc*/rank*/dimm_label /sys/devices/system/edac/mc/mc*/rank*/size",
        30.0,
        False,
    ),
    "release": ("cat /etc/os-release", 30.0, True),
    "cpus": ("lscpu", 30.0, True),
    "mounts": ("cat /proc/mounts", 30.0, True),
    "limits": ("cat /proc/self/limits", 30.0, True),
    "kernel settings": (
        "sysctl kernel.core_pattern kernel.pid_max kernel.randomize_va_space vm.max_map_count "
        "vm.overcommit_memory vm.swappiness",
        30.0,
        True,
    ),
    "taint": ("cat /proc/sys/kernel/tainted", 30.0, True),
    "user": ("id", 30.0, True),
    "governor": (f"cat {CPU}/cpu*/cpufreq/scaling_governor | sort | uniq -c", 30.0, True),
    "transparent huge pages": ("cat /sys/kernel/mm/transparent_hugepage/enabled", 30.0, True),
    "lsm": ("cat /sys/kernel/security/lsm", 30.0, True),
    "network": ("ip -br link; ip -br addr", 30.0, False),
    "naming": ("time getent hosts $(hostname)", 55.0, False),
    "neighbours": (
        'peer=a; getent ahosts $peer; timeout 5 bash -c ": >/dev/tcp/$peer/59999"  # refused: reachable',
        30.0,
        False,
    ),
    "processes": ("ps -eo pid,ppid,stat,etimes,user,comm | awk '$3 ~ /^[DZ]/'", 30.0, False),
    "time service": ("chronyc tracking || ntpq -p || timedatectl", 15.0, False),
    "failed units": ("systemctl --failed", 15.0, False),
    "systemd": ("systemctl is-system-running", 30.0, False),
    "services": ("systemctl status a b", 15.0, False),
    "packages": ("dpkg -l a b || rpm -q a b", 30.0, False),
    "sysctls": ("sysctl a.b c.d", 30.0, False),
    "drift: uptime": ("uptime", 30.0, True),
    "names": ("getent hosts a b", 30.0, False),
    "disks": ("df -h / /x; df -i / /x", 28.0, False),
    "writes": ("mktemp /tmp/XXXXXX; mktemp /dev/shm/XXXXXX", 30.0, True),
    "Pyxis": ("grep -i pyxis /etc/slurm/plugstack.conf*", 30.0, False),
    "room of Enroot": ("df -h $ENROOT_DATA_PATH $ENROOT_CACHE_PATH", 30.0, False),
    "containers": ("enroot list", 30.0, False),
    "responds": ("", 30.0, False),
}


def probes() -> list[Probe[Any]]:
    modules = (base, os, os_network, os_software, os_storage, enroot)
    found = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, Probe)}
    return [
        *found.values(),
        os_network.naming(["a"]),
        os_network.reach("a b a b"),
        os_software.services(["a", "b"]),
        os_software.packages(["a", "b"]),
        os_software.sysctls(["a.b", "c.d"]),
        os_software.command_output("uptime"),
        os_software.resolution(["a", "b"]),
        os_storage.disks(["/", "/x", "/"]),
    ]


def test_each_probe_has_its_name_its_limit_and_its_command_to_look_again() -> None:
    assert (enroot.jobs_of(()), os.read_line("x")) == (
        {},
        "x",
    )  # make mutation: this test reaches these modules
    assert (enroot.NAMES.command, base.RESPONDS.command) == (f"{enroot.SEARCH}; enroot list", "true")
    assert {one.name: (one.by_hand, one.timeout, one.alone) for one in probes()} == BY_HAND
    assert not any(one.root for one in probes())


def test_basics_asks_for_each_section() -> None:
    assert os.read_line("x") == "x"  # make mutation: this test reaches the module
    files = "/proc/uptime /proc/loadavg /proc/cmdline"
    sysctls = (
        "/proc/sys/kernel/core_pattern /proc/sys/kernel/pid_max /proc/sys/kernel/randomize_va_space "
        "/proc/sys/vm/max_map_count /proc/sys/vm/overcommit_memory /proc/sys/vm/swappiness"
    )
    twice = " $between $between "
    thp, lsm = "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/security/lsm"
    commands = os.BASICS.removeprefix(os.SECTIONS_SH).replace("\\\n", "").splitlines()
    assert commands == [
        "s date date +%s.%N",
        "s names uname -nr",
        "s lscpu lscpu",
        f"set -- {CPU}/cpu[0-9]*/cpufreq/scaling_governor",
        f"[ $# -gt 1 ] || set -- {CPU}/cpu0/cpufreq/scaling_governor",
        "between=/proc/sys/kernel/ostype",
        f's files cat {files} {sysctls} /proc/sys/kernel/tainted {thp} "$@"{twice}/etc/os-release{twice}/proc/meminfo'
        f"{twice}/proc/self/limits{twice}/proc/mounts{twice}{lsm}",
        '[ "$r" = 0 ] || {',
        f"s proc cat {files} /proc/meminfo",
        "s release cat /etc/os-release",
        's governor cat "$@"',
        "s mounts cat /proc/mounts",
        "s limits cat /proc/self/limits",
        f"s thp cat {thp}",
        f"s lsm cat {lsm}",
        f"s tunables cat {sysctls}",
        "s taint cat /proc/sys/kernel/tainted",
        "}",
        "s user id",
    ]


LSM = "lockdown,yama"  # the file has no last newline
FILES = {
    "proc": "5.5 9\n0.5 1.5 2.5 1/9 8\nquiet root=x\n",
    "tunables": "core\n1\n2\n3\n4\n5\n",
    "taint": "7\n",
    "thp": "always [madvise] never\n",
    "governor": "b\na\nb\n",
    "release": 'ID="ubuntu"\nVERSION_ID="24.04"\n',
    "meminfo": "MemTotal: 2 kB\n",
    "limits": "Max open files  7  8 files\n",
    "mounts": "a / ext4 rw 0 0\n",
    "lsm": LSM,
}
TOGETHER = "Linux\nLinux\n".join(
    ("".join(FILES[name] for name in ("proc", "tunables", "taint", "thp", "governor")),
     *(FILES[name] for name in ("release", "meminfo", "limits", "mounts", "lsm")))
)  # fmt: skip
SINGLY = {name: text for name, text in FILES.items() if name != "meminfo"} | {
    "proc": FILES["proc"] + FILES["meminfo"]
}


@pytest.mark.parametrize("together", [True, False])
def test_each_probe_reads_its_part_of_basics(*, together: bool) -> None:
    read: dict[str, str | tuple[str, int]] = {"files": (TOGETHER, 0)}
    if not together:
        read = {"files": ("cat: gone\n" + TOGETHER, 1), **SINGLY}
    given = of(date="12.5\n", names="gpu01 6.8\n", lscpu="On-line CPU(s) list: 0-1\n", user="uid=0\n", **read)
    found = {
        one.name: one.parse(given)
        for one in vars(os).values()
        if isinstance(one, Probe) and one.command == os.BASICS
    }
    assert found == {
        "clock": os.Clock(12.5),
        "hostname": "gpu01",
        "kernel": "6.8",
        "uptime": 5.5,
        "load": Load(0.5, 1.5, 2.5),
        "cmdline": "quiet",
        "memory": MemoryInfo(2048, 0, 0, 0, 0, 0),
        "release": "ubuntu 24.04",
        "cpus": Cpus(2, "", 1, *("unknown",) * 4),
        "mounts": {"/": Mount("a", "/", "ext4", ("rw",))},
        "limits": {"Max open files": 7.0},
        "kernel settings": (
            "kernel.core_pattern=core kernel.pid_max=1 kernel.randomize_va_space=2 vm.max_map_count=3 "
            "vm.overcommit_memory=4 vm.swappiness=5"
        ),
        "taint": 7,
        "user": "uid=0",
        "governor": {"a": 1, "b": 2},
        "transparent huge pages": "madvise",
        "lsm": LSM,
    }


def test_files_that_were_read_together_are_cut_where_they_end() -> None:
    assert os.split_files(TOGETHER) == SINGLY
    words = f"/proc and /sys: {{}} files of 6, not understood: {TOGETHER[:40]!r}"
    for text, count in (
        (TOGETHER.replace("b\na\nb\n", ""), 6),
        (TOGETHER.rpartition("Linux\nLinux\n")[0], 5),
        (TOGETHER + "Linux\nLinux\n", 7),
    ):
        with pytest.raises(ProbeError) as caught:
            os.split_files(text)
        assert str(caught.value) == words.format(count)


MPICH = Version("MPICH", "4.2")
RANK = MpiRank(0, 2, "h", "n", "single", 0, 8, "x")
PAIR = RankPair((0, 1), 1e-6, 1e9)
READ: list[tuple[Callable[[], object], object]] = [
    (lambda: os.sections(of(a="x\n", b=("y", 3))), {"a": CommandSection("x\n", 0), "b": CommandSection("y", 3)}),
    (lambda: os.section(of(names="gpu01 6.8.0\n"), "hostname"), "gpu01"),
    (lambda: os.section(of(names="gpu01 6.8.0\n"), "kernel"), "6.8.0"),
    (lambda: os.section(of(names="alone\n"), "kernel"), "alone"),
    (lambda: os.CLOCK.parse(of(date="12.5\n")), os.Clock(12.5)),
    (lambda: os.CLOCK.parse(of(date="12.%N")), os.Clock(12.0)),
    (lambda: os.CLOCK.parse(of(date="12.N")), os.Clock(12.0)),
    (lambda: os.CLOCK.parse(of(date="12")), os.Clock(12.0)),
    (lambda: os.sections(answer("\x1ea\nx\x1e=0")), {"a": CommandSection("x", 0)}),
    (lambda: os.read_uptime("0\n1\n2\n3\n"), 0.0),
    (lambda: os.read_memory("0\n0\nSwapTotal: 5 kB\nMemTotal: 2 kB\n"), MemoryInfo(2048, 0, 0, 0, 0, 0)),
    (lambda: os.read_release("ID=a\nVERSION_ID=1\nVERSION_ID=\n"), "a"),  # as a shell: the last one counts
    (lambda: os.read_limits("Max a  1  2\nMax b  3  4x\nMax c   19 bytes\n"), {"Max a": 1.0}),
    (lambda: os.read_line(" a b \n"), "a b"),
    (lambda: os.read_uptime("5.5 9.9\n1\n2\n3\n"), 5.5),
    (lambda: os.read_load("0\n0.5 1.5 2.5 1/9 8\n0\n0\n"), Load(0.5, 1.5, 2.5)),
    (lambda: os.read_release("ID=arch\n"), "arch"),
    (lambda: os.read_release('NAME="x"\nID="Ubuntu"\nVERSION_ID=\'24.04\'\nMY-ID=no\nID1=no\n'), "ubuntu 24.04"),
    (lambda: os.read_cpus("On-line CPU(s) list: 0-1\n"), Cpus(2, "", 1, *("unknown",) * 4)),
    (
        lambda: os.read_cpus(
            "On-line CPU(s) list: 0\nOff-line CPU(s) list: 1\nNUMA node(s): 4\nSocket(s): 2\n"
            "Thread(s) per core: 3\nModel name: EPYC\nArchitecture: x86_64\n"
        ),
        Cpus(1, "1", 4, "2", "3", "EPYC", "x86_64"),
    ),
    (lambda: os.read_memory("0\n0\n0\nMemTotal: 2 kB\n"), MemoryInfo(2048, 0, 0, 0, 0, 0)),
    (
        lambda: os.read_memory(
            "0\n0\n0\nMemTotal: 9 kB\nMemAvailable: 8 kB\nSwapTotal: 7 kB\nSwapFree: 6 kB\nHugePages_Total: 5\n"
            "Hugepagesize: 4 kB\n"
        ),
        MemoryInfo(9216, 8192, 7168, 6144, 5, 4096),
    ),
    (lambda: os.read_governors(of(governor="b\na\nb\n")), {"a": 1, "b": 2}),
    (lambda: os.read_governors(of(governor=("cat: x: No such file or directory\n", 1))), {}),
    (lambda: os.read_lsm(of(lsm=("cat: x: No such file or directory\n", 1))), "none"),
    (lambda: os.read_lsm(of(lsm="lockdown,yama")), "lockdown,yama"),
    (lambda: os.read_thp(of(thp=("cat: x: No such file or directory\n", 1))), "none"),
    (lambda: os.read_thp(of(thp="always [madvise] never\n")), "madvise"),
    (
        lambda: os.read_mounts("a / ext4 rw,x 0 0\nb /m\\040n nfs4 ro\nc /m\\040n tmpfs rw 0 0\n"),
        {"/": Mount("a", "/", "ext4", ("rw", "x")), "/m n": Mount("c", "/m n", "tmpfs", ("rw",))},
    ),
    (
        lambda: os.read_limits(
            "Limit  Soft  Hard\nMax open files            1024                 4096                 files\n"
            "Max nice priority         0  unlimited\nMax x  unlimited  9 bytes\nMax y  5x  9\n no Max z  1  2\n"
        ),
        {"Max open files": 1024.0, "Max nice priority": 0.0, "Max x": math.inf},
    ),
    (
        lambda: os.read_tunables("a \n1\n2\n3\n4\n5\n"),
        "kernel.core_pattern=a kernel.pid_max=1 kernel.randomize_va_space=2 vm.max_map_count=3 "
        "vm.overcommit_memory=4 vm.swappiness=5",
    ),
    (lambda: os.read_taint("12289\n"), 12289),
    (lambda: os.read_taint("9" * 20), int("9" * 20)),
    # df
    (lambda: os_storage.read_disk(CommandSection("x", 124)), Disk(problem="no answer within 8 s", hung=True)),
    (lambda: os_storage.read_disk(CommandSection("", 1)), Disk(problem="df: exit 1")),
    (lambda: os_storage.read_disk(CommandSection("a\nb\n", 1)), Disk(problem="b")),
    (
        lambda: os_storage.read_disks(
            ["/a", "/b"], "d 10 4 -6 60% /a\nd 20 5 15 25% /b\nd 30 1 29 3% /a\nd - - - - /b\n"
        ),
        {"/a": Disk(10240, -6144, 30, 29), "/b": Disk(20480, 15360, 0, 0)},
    ),
    (lambda: os_storage.read_disk(CommandSection("d 10 4 6 60% /\nd 20 5 15 25% /\n", 0)), Disk(10240, 6144, 20, 15)),
    (
        lambda: os_storage.disks(["/", "/x"]).parse(answer("\x1e/\nd 1 0 1 0% /\nd 2 0 2 0% /\n\x1e=0\n\x1e/x\ngone\n\x1e=1\n")),
        {"/": Disk(1024, 1024, 2, 2), "/x": Disk(problem="gone")},
    ),
    (lambda: vars(Disk()), {"size": 0, "free": 0, "inodes": 0, "inodes_free": 0, "problem": "", "hung": False, "source": ""}),
    (lambda: vars(SharedFolder("w")), {"writer": "w", "write_problem": "", "read_problem": ""}),
    # shared files and scratch space
    (
        lambda: os_storage.read_seen(answer(f"\x1e/a\n{'x' * 41}\n\x1e=0\n"), SharedFiles(("/a",), "t")),
        {"/a": f"other content: '{'x' * 40}'"},
    ),
    (
        lambda: os_storage.read_written(
            answer("\x1e/a\nfull\n\x1e=1\n\x1e/b\n\x1e=\n", None, problem="timed out"), SharedFiles(("/a", "/b"), "t")
        ),
        {"/a": "full", "/b": "timed out"},
    ),
    (lambda: SharedFiles(("/s/",), "t").path("/s/"), "/s/.gpucluster-t"),
    (lambda: SharedFiles(("/s", "/b c"), "t").remove_command(("/s", "/b c")), "rm -f /s/.gpucluster-t '/b c/.gpucluster-t'"),
    (
        lambda: SharedFiles(("/s", "/t"), "t").read_command(),
        os.SECTIONS_SH
        + 'get() { i=0; until cat "$1"; do i=$((i+1)); [ "$i" -lt 4 ] || return 1; sleep 1; done; }; '
        + "s /s get /s/.gpucluster-t ; s /t get /t/.gpucluster-t ",
    ),
    (
        lambda: SharedFiles(("/s",), "t").write_command(),
        os.SECTIONS_SH + 'set -C; umask 022; put() { printf "%s\\n" "$2" >"$1"; }; s /s put /s/.gpucluster-t t',
    ),
    (
        lambda: os_storage.read_seen(
            answer("\x1e/a\nt\n\x1e=0\n\x1e/b\nother\n\x1e=0\n\x1e/c\ncat: gone\n\x1e=1\n\x1e/d\n\x1e=1\n"),
            SharedFiles(("/a", "/b", "/c", "/d", "/e"), "t"),
        ),
        {"/a": "", "/b": "other content: 'other'", "/c": "cat: gone", "/d": "exit 1", "/e": "no answer"},
    ),
    (
        lambda: os_storage.read_written(
            answer("\x1e/a\n\x1e=0\n\x1e/b\nhalf", None, problem="timed out"), SharedFiles(("/a", "/b"), "t")
        ),
        {"/a": "", "/b": "timed out"},
    ),
    (
        lambda: SharedResult(SharedFiles(("/a",), "t"), "n9", {"/a": "full"}, {"n1": answer("\x1e/a\nt\n\x1e=0\n")}).on("n1"),
        {"/a": SharedFolder("n9", "full", "")},
    ),
    (lambda: SharedResult(SharedFiles((), "t"), "", {}, {}).on("n1"), {}),
    (
        lambda: os_storage.read_writes(answer("\x1e/tmp\n\x1e=0\n\x1e/dev/shm\nno\n\x1e=1\n")),
        {"/tmp": "", "/dev/shm": "no"},
    ),
    (lambda: os_storage.read_writes(answer("\x1e/tmp\n\x1e=0\n")), {"/tmp": "", "/dev/shm": "no answer"}),
    (
        lambda: os_storage.read_writes(answer("\x1e/tmp\n\x1e=0\n", None, problem="timed out")),
        {"/tmp": "", "/dev/shm": "timed out"},
    ),
    (lambda: os_software._process("70 11 Zs - u c d"), os_software.ProcessRow(70, 11, "Zs", None, "u", "c d")),
    (lambda: os_software._process("7 1 D 90 u c"), os_software.ProcessRow(7, 1, "D", 90, "u", "c")),
    # MPI
    (lambda: mpi._srun_types({MPICH}, {"mpich": "x --with-pmix=y"}), ("pmix",)),
    (lambda: mpi._srun_types({MPICH}, {"mpich": "x --with-pmi=pmix"}), ("pmix",)),
    (lambda: mpi._srun_types({MPICH}, {"mpich": "--with-pmi=pmi2"}), ("pmi2",)),
    (lambda: mpi._srun_types({MPICH}, {}), ()),
    (lambda: mpi._srun_types({MPICH, Version("", "")}, {"mpich": ""}), ()),
    (lambda: mpi._srun_types({Version("", "")}, {"mpich": ""}), ()),
    (lambda: mpi._srun_types({Version("Open MPI", "5.0.1")}, {"ompi-pmi": "s1"}), ("pmix",)),
    (lambda: mpi._srun_types({Version("Open MPI", "4.1")}, {"ompi-pmi": "s1 s2 ext3x s2 x"}), ("pmi1", "pmi2", "pmix")),
    (lambda: mpi._srun_types({Version("Open MPI", "4.1")}, {"ompi-pmi": "isolated s2"}), ("pmi2",)),
    (lambda: mpi._srun_types({Version("Open MPI", "x.1")}, {"ompi-pmi": "pmix3x"}), ("pmix",)),
    (lambda: mpi._srun_types({Version("Open MPI", "4.1")}, {}), ()),
    (lambda: str(Version("", "")), "unknown"),
    (lambda: mpi.hosts_of([InstalledMpi("a", "h"), InstalledMpi("b", "h")]), {}),
    (lambda: mpi.hosts_of([InstalledMpi("a", "h"), InstalledMpi("b", "i"), InstalledMpi("c")]), {"h": "a", "i": "b"}),
    (lambda: mpi.with_nodes(MpiWorld((RANK,)), {"h": "a"}).nodes, {0: "a"}),
    (lambda: mpi.with_nodes(MpiWorld((RANK,)), {"i": "a"}).nodes, {0: "h"}),
    (lambda: mpi.with_nodes(MpiWorld((RANK,)), {}).nodes, {0: "n"}),
    (lambda: mpi.with_nodes(MpiWorld((replace(RANK, node=""),)), {}).nodes, {0: "h"}),
    (
        lambda: mpi.join_worlds([MpiWorld((replace(RANK, rank=1),), (PAIR,)), MpiWorld((RANK,))]),
        MpiWorld((RANK, replace(RANK, rank=1)), (PAIR,)),
    ),
    # the network
    (
        lambda: os_network.NETWORK.parse(
            of(
                link="1: a@if2: <X,UP> mtu 9 x\\ link/ether 0:0\n2: b: <UP> mtu 8\n3: c: <UPPER,DOWN> mtu 7\n: d: <UP> mtu 6\nx\n",
                addr="1: a    inet 10.0.0.1/8\n1: a    inet 10.0.0.2/8\n2: b inet6 fe80::1/64\n: b inet 10.0.0.3\n2: b inet 10.0.0.\n2: b inet .0.0.1\n",
            )
        ),
        Network({"a": NetworkInterface("ether", 9), "b": NetworkInterface("", 8)}, {"a": ("10.0.0.1", "10.0.0.2")}),
    ),
    (
        lambda: os_network.NETWORK.parse(
            of(
                link="1: a: <UP> mtu 9\nx1: c: <UP> mtu 5\n2: d: <UP> mtu x\n3: e: <UP> mtu 1234567890\n"
                "4: b: <UP> mtu 9 uplink/x\n5: : <UP> mtu 5\n6: f@: <UP> mtu 5\n",
                addr="1: a inet 10.0.0.1/8\nx1: a inet 10.0.0.2\n1: a inet x1.0.0.1\n1: a inet 1.x.0.1\n1: a inet 1.0.x.1\n"
                "1: a inet 1.0.0.x\n1:  inet 10.0.0.3\n1: binet 10.0.0.4\n1: a inet 1..0.1\n1: a inet 1.0..1\n",
            )
        ),
        Network({"a": NetworkInterface("", 9), "b": NetworkInterface("", 9)}, {"a": ("10.0.0.1",)}),
    ),
    (lambda: os_network.rings((["a", "b", "c"], ["n"], ["x", "y"])), "c a b c a y x y x"),
    (lambda: os_network.rings((["a", "b"], ["c"])), "b a b a"),
    (lambda: os_network.rings([["c"]]), ""),
    (
        lambda: os_network.read_naming(answer("10.0.0.2 gpu1.x y\n10.0.0.1 z gpu1\n10.0.0.3 gpu11\ntook 5.5 4.5 0 gpu1.lab\n")),
        Naming(0.0, ("10.0.0.1", "10.0.0.2")),
    ),
    (lambda: os_network.read_naming(answer("took 5 7.5 2 gpu1\n")), Naming(2.5)),
    (lambda: os_network.read_naming(answer("gpu1 z\ntook 5.5 25.5 124 gpu1\n")), Naming(20.0)),
    (
        lambda: os_network.read_reachability(answer("peer a - 2 -\npeer b 1.1.1.1 1 No route to host\n")),
        (
            ReachabilityResult("a", "", "the name does not resolve"),
            ReachabilityResult("b", "1.1.1.1", "No route to host"),
        ),
    ),
    (
        lambda: os_network.read_reachability(answer("peer b 1.1.1.1 0\npeer a 1.1.1.2 1 Connection refused\npeer c 1.1.1.3 124 x\n")),
        (
            ReachabilityResult("a", "1.1.1.2", "reached"),
            ReachabilityResult("b", "1.1.1.1", "reached"),
            ReachabilityResult("c", "1.1.1.3", "no answer within 5 s"),
        ),
    ),
    # containers
    (lambda: enroot.jobs_of(("pyxis_7.0", "pyxis_8_8.12", "pyxis_9_x", "pyxis_x", "pyxis_7.", "pyxis_9_", "pyxis_.7", "pyxis__7.7", "a", "pyxis_x_7.0", "pyxis_7.x", "pyxis_a_b")),
     {"pyxis_7.0": 7, "pyxis_8_8.12": 8, "pyxis_9_x": 9}),
    (lambda: enroot.enroot_names(("pyxis_a.b", "pyxis_7_a.b", "pyxis_a_b", "pyxis__a.b", "a.b"), "a.b"), ("pyxis_a.b", "pyxis_7_a.b")),
    (lambda: enroot.suite_containers(("pyxis_gpucluster-7-ab", "pyxis_8_gpucluster-8-cd", "pyxis_gpucluster-kept-a-b")),
     {"pyxis_gpucluster-7-ab": 7, "pyxis_8_gpucluster-8-cd": 8}),
    (lambda: enroot.suite_containers(("pyxis_gpucluster-7-", "gpucluster-7-x", "pyxis_mine", "pyxis_x_gpucluster-7-a")), {}),
    (lambda: enroot.jobs_of(("pyxis_gpucluster-7-ab", "pyxis_9_gpucluster-8-cd")),
     {"pyxis_gpucluster-7-ab": 7, "pyxis_9_gpucluster-8-cd": 8}),
    (lambda: enroot.remove_command(("a", "b c")), f"{enroot.SEARCH}; enroot remove -f a 'b c' </dev/null"),
    (lambda: ImageImport("i", "n", {"a": 2.0, "b": 0.0}, {"a": 4_000_000, "b": 1, "c": 1}).throughput("a"), 2.0),
    (lambda: ImageImport("i", "n", {"b": 0.0}, {"b": 1, "c": 1}).throughput("b"), None),
    (lambda: ImageImport("i", "n", {"b": 0.0}, {"b": 1, "c": 1}).throughput("c"), None),
    (lambda: ImageImport("i", "n", {"b": 0.0}, reused=("a",)).nodes, ("b", "a")),
    (lambda: container.StepFacts(), (container.StepFacts(tasks=(), problem="", seconds=0.0))),
    (lambda: container.StepFacts().facts, {}),
    (lambda: container.StepFacts(({"a": "1"}, {"a": "2"}, {"a": "3"})).facts, {"a": "1"}),
    (lambda: ImageImport("i", "n").command, ""),
    (lambda: container.read_facts("c|a|b|c\nx|a|b\nc|d\n"), {"a": "b|c"}),
    (
        lambda: enroot.read_space(answer("data 2 4 512 5 9 rw /d e\n tmp 1 1 1 0 0 ro /t\n")),
        (enroot.EnrootSpace("data", "/d e", 1024, 2048, writable=True, inodes=5), enroot.EnrootSpace("tmp", "/t", 1, 1, writable=False)),
    ),
    (lambda: enroot.read_pyxis(answer("so /p.so\npyxis: version v0.20\n")), enroot.Pyxis("/p.so", "0.20")),
    (lambda: enroot.read_pyxis(answer("so /p.so\n")), enroot.Pyxis("/p.so", "")),
    (
        lambda: enroot.read_pyxis(answer("so /p.so\nversion v\nversion v0.20\nversion v0.21\n")),
        enroot.Pyxis("/p.so", "0.20"),
    ),
    (lambda: vars(enroot.Pyxis()), {"library": "", "version": "", "absent": ""}),
    (lambda: enroot.read_pyxis(answer("x\ny\n no conf \n")), enroot.Pyxis(absent="no conf")),
    (lambda: enroot.read_pyxis(answer("x\n no conf \n")), enroot.Pyxis(absent="no conf")),
    (lambda: enroot.read_pyxis(answer("")), enroot.Pyxis(absent="no answer")),
    (lambda: enroot.read_names(answer("a\n\n b\n")), ("a", "b")),
    # answers
    (lambda: base.text_of(answer("x")), "x"),
    (lambda: base.last_line("a\n b \n\n"), "b"),
    (lambda: base.last_line(" \n"), ""),
    (lambda: answer(rc=None, problem="node lost: x").lost, True),
    (lambda: answer(rc=None, problem="timed out").lost, False),
    (lambda: answer(rc=0, problem="node lost: x").lost, False),
    (lambda: Answer("n", 0, b"\xff", b"\xfe").out + Answer("n", 0, b"\xff", b"\xfe").err, "\ufffd\ufffd"),
    (lambda: base.with_root("a 'b'"), """if [ "$(id -u)" = 0 ]; then (a 'b'); else sudo -n sh -c 'a '"'"'b'"'"''; fi"""),
    (lambda: Answer("n", 0), Answer("n", 0, b"", b"", "", False, None, None)),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(READ)))
def test_what_is_read(at: int) -> None:
    read, expected = READ[at]
    assert read() == expected


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: os.sections(answer("nothing")), ProbeError, "no section in the answer: 'nothing'"),
    (lambda: os.sections(answer("\x1ea\nx\x1e=y\n")), ProbeError, "section 'a' does not end with its exit status: '=y"),
    (lambda: os.section(of(a="x"), "b"), ProbeError, "section 'b' is missing in the answer"),
    (lambda: os.section(of(b=("", 2)), "b"), NotAvailable, "no message (exit 2)"),
    (lambda: os.section(of(b=("x\ny\n", 2)), "b"), NotAvailable, "y (exit 2)"),
    (lambda: os.read_clock(of(date="x12")), ProbeError, "date: not a number of seconds: 'x12'"),
    (lambda: os.read_clock(of(date="1.5.5")), ProbeError, "date: not a number"),
    (lambda: os.sections(answer("\x1ea\nx\x1e=\n")), ProbeError, "section 'a' does not end with its exit status: '="),
    (lambda: os.read_clock(of(date=".5")), ProbeError, "date: not a number of seconds: '.5'"),
    (lambda: os.read_clock(of(date="12.")), ProbeError, "date: not a number of seconds: '12.'"),
    (lambda: os.read_load("0\n1 x 3 1/2 3\n0\n0\n"), ProbeError, "/proc/loadavg: not a number: 'x'"),
    (
        lambda: os.read_cpus("On-line CPU(s) list: 0\nNUMA node(s): x\n"),
        ProbeError,
        "lscpu: NUMA node(s): not a number: 'x'",
    ),
    (lambda: os.read_governors(of(date="1")), ProbeError, "section 'governor' is missing in the answer"),
    (lambda: os.read_lsm(of(date="1")), ProbeError, "section 'lsm' is missing in the answer"),
    (lambda: os.read_thp(of(date="1")), ProbeError, "section 'thp' is missing in the answer"),
    (lambda: os.read_thp(of(thp="always [] never")), ProbeError, "transparent_hugepage/enabled: not understood"),
    (lambda: os.read_line("a\nb"), ProbeError, "expected one line"),
    (lambda: os.read_line(" \n"), ProbeError, "expected one line"),
    (lambda: os.read_uptime("1\n2\n3\n"), ProbeError, "/proc: uptime, loadavg, cmdline and meminfo expected"),
    (lambda: os.read_uptime("-1\n2\n3\n4\n"), ProbeError, "/proc/uptime: not a number: '-1'"),
    (lambda: os.read_uptime("inf\n2\n3\n4\n"), ProbeError, "/proc/uptime: not a number: 'inf'"),
    (lambda: os.read_uptime("x\n2\n3\n4\n"), ProbeError, "/proc/uptime: not a number: 'x'"),
    (lambda: os.read_load("0\n1 2 3 4 5\n0\n0\n"), ProbeError, "/proc/loadavg: not understood"),
    (lambda: os.read_load("0\n1 2 3 1/2\n0\n0\n"), ProbeError, "/proc/loadavg: not understood"),
    (lambda: os.read_memory("0\n0\n0\nx\n"), ProbeError, "/proc/meminfo: MemTotal is missing or no number"),
    (lambda: os.read_memory("0\n0\n0\nMemTotal: x kB\n"), ProbeError, "/proc/meminfo: MemTotal is missing"),
    (lambda: os.read_release("NAME=x\n"), ProbeError, "/etc/os-release: no ID"),
    (lambda: os.read_cpus("On-line CPU(s) list: 0-1,a\n"), ProbeError, "lscpu: not a CPU list: '0-1,a'"),
    (lambda: os.read_cpus("x: y\n"), ProbeError, "lscpu: no 'On-line CPU(s) list'"),
    (lambda: os.read_governors(of(governor="")), ProbeError, "scaling_governor: empty"),
    (lambda: os.read_governors(of(governor=("cat: x: Permission denied", 1))), NotAvailable, "Permission denied (exit 1)"),
    (lambda: os.read_thp(of(thp="always never")), ProbeError, "transparent_hugepage/enabled: not understood"),
    (lambda: os.read_mounts("a / ext4\n"), ProbeError, "/proc/mounts: not understood"),
    (lambda: os.read_mounts("a /x ext4 rw\n"), ProbeError, "/proc/mounts: no root file system"),
    (lambda: os.read_limits("x\n"), ProbeError, "/proc/self/limits: not understood"),
    (lambda: os.read_tunables("1\n"), ProbeError, "sysctls: 6 lines expected, got 1"),
    (lambda: os.read_taint("x1"), ProbeError, "/proc/sys/kernel/tainted: not a number"),
    (lambda: os.read_taint("1" * 21), ProbeError, "/proc/sys/kernel/tainted: not a number"),
    (lambda: os_storage.read_disks(["/"], "x 1 2 3 4% /\n"), ProbeError, "df: 1 rows for 1 paths"),
    (lambda: os_storage.read_disks(["/"], "x 1  3 4% /\nx 1  3 4% /\n"), ProbeError, "df: 0 rows for 1 paths"),
    (lambda: os_storage.read_disks(["/"], "x 1 3  4% /\nx 1 3  4% /\n"), ProbeError, "df: 0 rows for 1 paths"),
    (lambda: os_storage.read_disks(["/"], "x  1 3 4% /\nx  1 3 4% /\n"), ProbeError, "df: 0 rows for 1 paths"),
    (lambda: os_storage.read_disks(["/"], "x 1 2 3 % /\nx 1 2 3 % /\n"), ProbeError, "df: 0 rows for 1 paths"),
    (lambda: os_storage.read_disks(["/"], "x 1 2 a 4% /\nx 1 b 3 4% /\n"), ProbeError, "df: 0 rows for 1 paths"),
    (lambda: os.read_load("0\n1 2 3 4 1/5\n0\n0\n"), ProbeError, "/proc/loadavg: not understood"),
    (lambda: os_storage.disks(["/", "/x"]).parse(answer("\x1e/\n\x1e=1\n")), ProbeError, "df: no answer about /x"),
    (lambda: os_storage.read_writes(answer(rc=None, problem="node lost: x")), ProbeError, "node lost: x"),
    (lambda: SharedResult(SharedFiles(("/a",), "t"), "n9", {}, {}).on("n1"), NotAvailable, "the node did not answer"),
    (
        lambda: SharedResult(
            SharedFiles(("/a",), "t"), "n9", {}, {"n1": answer(rc=None, problem="node lost: x")}
        ).on("n1"),
        NotAvailable,
        "the node did not answer",
    ),
    (lambda: os_network.NETWORK.parse(of(link="x", addr="")), NotAvailable, "ip -o link: no interface is up"),
    (lambda: os_network.NETWORK.parse(of(link="x")), NotAvailable, "ip: no answer"),
    (lambda: os_network.NETWORK.parse(of(link=("a\nno ip\n", 127), addr="")), NotAvailable, "ip: no ip"),
    (lambda: os_network.read_naming(answer("")), ProbeError, "getent: not understood: ''"),
    (lambda: os_network.read_naming(answer("took 1 2 3 x\n")), NotAvailable, "getent: exit 3"),
    (lambda: os_network.read_naming(answer("took 1 2 3 x\n", err="gone\n")), NotAvailable, "getent: gone"),
    (lambda: os_network.read_reachability(answer("", 1)), NotAvailable, "exit 1"),
    (lambda: os_network.read_reachability(answer("", 1, "n1 has no neighbour\n")), NotAvailable, "n1 has no neighbour"),
    (lambda: os_network.read_reachability(answer("")), ProbeError, "neighbours: no answer"),
    (lambda: os_network.read_reachability(answer("peer a\n")), ProbeError, "neighbours: not understood: 'peer a'"),
    *(
        (partial(os_network.read_reachability, answer(f"{line}\n")), ProbeError, f"neighbours: not understood: {line!r}")
        for line in ("peer a 1.1.1.1 x", "peer  1.1.1.1 0", "peer a  0")
    ),
    *(
        (partial(os_network.read_naming, answer(f"{line}\n")), ProbeError, f"getent: not understood: {line!r}")
        for line in (
            "took x 7 0 g", "took 5.x 7 0 g", "took 5 x 0 g", "took 5 7.x 0 g", "took 5 7 x g", "took 5. 7 0 g",
            "took 5 7. 0 g", "took 5 7  g", "took 5 7 0 ",
        )
    ),
    (
        lambda: os_network.read_reachability(answer("peer a 1.1.1.1 1 No such file or directory\n")),
        NotAvailable,
        "bash: No such file or directory",
    ),
    *(
        (partial(os_storage.read_disks, ["/"], f"{row}\n{row}\n"), ProbeError, "df: 0 rows for 1 paths")
        for row in ("x 1 2 3 a% /", "x 12 3 4% /", "x 1 23 4% /", "x 1 2 34% /", "x 1 2 3 4%/")
    ),
    *(
        (partial(os_storage.absolute, path), ConfigError, f"os: path {path!r} must be absolute, like /scratch")
        for path in ("x", "", "/a\nb")
    ),
    (lambda: enroot.read_space(answer("data 1 x rw /d\n")), ProbeError, "space of enroot: not understood"),
    (lambda: enroot.read_space(answer("data  1 rw /d\n")), ProbeError, "space of enroot: not understood"),
    (lambda: enroot.read_space(answer("data 1  rw /d\n")), ProbeError, "space of enroot: not understood"),
    (lambda: os_network.read_reachability(answer("peer a - 124 -\n")), NotAvailable, "getent ahosts a: timed out"),
    (lambda: os_network.read_reachability(answer("peer a - 127 -\n")), NotAvailable, "getent ahosts a: exit 127"),
    (lambda: os_network.read_reachability(answer("peer a 1.1.1.1 126 \n")), NotAvailable, "bash: exit 126"),
    (lambda: os_software._process("7 x1 Z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z 9x u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process(" 1 Z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7  Z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z  u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z 9  c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z 9 u "), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1Z 9 u c"), ProbeError, "ps: not understood: '7 1Z 9 u c'"),
    (lambda: os_software._process("7 1 Z9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z 9u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 Z 9 uc"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("71 Z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("7 1 z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: os_software._process("a 1 Z 9 u c"), ProbeError, "ps: not understood"),
    (lambda: enroot.read_space(answer("")), ProbeError, "space of enroot: no path in the answer"),
    (lambda: enroot.read_space(answer("data x 1 rw /d\n")), ProbeError, "space of enroot: not understood"),
    (lambda: enroot.read_space(answer("data 1 1 rx /d\n")), ProbeError, "space of enroot: not understood"),
    (lambda: enroot.read_names(answer("", 127)), NotAvailable, "enroot is not found on PATH"),
    (lambda: base.text_of(answer("", 127)), NotAvailable, "command not found"),
    (lambda: base.text_of(answer("", 126, "x: refused\n")), NotAvailable, "x: refused"),
    (lambda: base.text_of(answer("", 1)), NotAvailable, "no message (exit 1)"),
    (lambda: base.text_of(answer("out\n", 1)), NotAvailable, "out (exit 1)"),
    (lambda: base.text_of(answer("out\n", 1, "err\n")), NotAvailable, "err (exit 1)"),
    (lambda: base.text_of(answer("out\n", truncated=True)), NotAvailable, "output was cut at the cap"),
    (lambda: base.GuardedParser("p", str)(answer(rc=None)), ProbeError, "the command did not end"),
    (lambda: base.GuardedParser("p", str)(answer(rc=None, problem="hung")), ProbeError, "hung"),
    (lambda: base.GuardedParser("p", str)(answer(truncated=True)), NotAvailable, "p: output was cut at the cap"),
    (lambda: base.GuardedParser("p", lambda _: dict[str, str]()["x"])(answer()), ProbeError, "p: not understood: KeyError('x')"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_is_not_read(at: int) -> None:
    read, error, words = REFUSED[at]
    with pytest.raises(error) as caught:
        read()
    assert str(caught.value).startswith(words) or str(caught.value).endswith(words)


@pytest.mark.parametrize(
    "word",
    [
        "BOOT_IMAGE=/x", "initrd=x", "root=x", "resume=x", "ip=dhcp", "BOOTIF=x", "hostname=x", "nodename=x",
        "systemd.hostname=x", "systemd.machine_id=x", "ostree=x", "cryptdevice=x", "rd.luks.uuid=x", "rd.uuid=x",
        "console=tty0", "wwid=x", "nfsroot=x", "x=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "0a1b2c3d-0a1b-0a1b-",
    ],
)  # fmt: skip
def test_words_of_one_node_are_left_out(word: str) -> None:
    assert os.read_cmdline(f"0\n0\nquiet {word} crash\n0\n") == "crash quiet"


@pytest.mark.parametrize(
    "word",
    [
        "ro", "ipx=1", "myip=1", "roots=x", "systemdxhostname=x", "systemd.x=1", "rdxuuid=1", "rd.x=1", "rd.luks.uuid",
        "0a1b2c3-0a1b-0a1b-", "0a1b2c3d-0a1-0a1b-", "0a1b2c3d-0a1b-0a1-", "x1b2c3dg-0a1b-0a1b-",
    ],
)  # fmt: skip
def test_other_words_are_kept(word: str) -> None:
    assert os.read_cmdline(f"0\n0\n{word}\n0\n") == word


def test_the_deadlines_of_df_and_the_mounts_that_it_is_asked_about() -> None:
    command = os_storage.disks(["/", "/x y"]).command
    assert "await 0 20\n" in command
    assert "await 1 80\n" in command
    assert "set -- / '/x y'\n" in command
    assert "most=32\n" in command
    assert (
        "case $f in (nfs|nfs4|lustre|gpfs|beegfs|beegfs_nodev|cifs|smb3|ceph|wekafs|panfs|fuse.ceph|fuse.ceph-fuse|"
        "fuse.glusterfs|fuse.juicefs) ;;"
    ) in command
    assert os_storage.disks(["/"]).parse(
        answer(
            "\x1ealso\n/n\n\x1e=0\n\x1eall\nd 1 1 1 1% /\nd 2 2 2 2% /n\nd 3 3 3 3% /\nd 4 4 4 4% /n\n\x1e=0\n"
        )
    ) == {"/": Disk(1024, 1024, 3, 3), "/n": Disk(2048, 2048, 4, 4)}
    assert Disk(problem="df: /x: Permission denied").forbidden
    assert not Disk(problem="df: /x: gone").forbidden


def test_a_file_is_tried_in_each_scratch_folder() -> None:
    command = os_storage.WRITES.command
    assert command.startswith(os.SECTIONS_SH + OWN_SH)
    assert command.endswith("\n}\ns /tmp put /tmp; s /dev/shm put /dev/shm")


class Fleet:
    """Two nodes; notes what they are asked."""

    nodes = ("n1", "n2")

    def __init__(self, *lost: str) -> None:
        self.lost = dict.fromkeys(lost, "gone")
        self.asked: list[tuple[object, ...]] = []

    def ask(self, command: str, *, timeout: float = 0.0) -> dict[str, Answer]:
        self.asked.append((command, timeout))
        return {"n1": answer("\x1e/a\nt\n\x1e=0\n")}

    def ask_node(self, node: str, command: str, *, timeout: float = 0.0, fresh: bool = False) -> Answer:
        self.asked.append((node, command, timeout, fresh))
        return answer("\x1e/a\n\x1e=0\n")


def test_the_first_node_that_is_there_writes_all_read_and_the_writer_removes() -> None:
    files, fleet = SharedFiles(("/a",), "t"), Fleet("n1")
    whole = Fleet()
    assert os_storage.write(whole, files) == ("n1", {"/a": ""})
    assert whole.asked[0][0] == "n1"
    assert os_storage.write(fleet, files) == ("n2", {"/a": ""})
    partly = os_storage.read(Fleet(), files, "n2", {"/a": "", "/b": "full"})
    assert list(partly.answers) == ["n1"]
    result = os_storage.read(fleet, files, "n2", {"/a": ""})
    assert (list(result.answers), result.writer, result.written) == (["n1"], "n2", {"/a": ""})
    os_storage.remove(fleet, files, "n2", {"/a": "", "/b": "full"})
    assert fleet.asked == [
        ("n2", files.write_command(), 20.0, True),
        (files.read_command(), 20.0),
        ("n2", files.remove_command(["/a"]), 20.0, True),
    ]


def test_what_nobody_could_write_is_neither_read_nor_removed() -> None:
    files, fleet = SharedFiles(("/a",), "t"), Fleet("n1", "n2")
    assert os_storage.write(fleet, files) == ("", {"/a": "no node to write it"})
    assert os_storage.write(Fleet(), SharedFiles((), "t")) == ("", {})
    result = os_storage.read(fleet, files, "", {"/a": "no node to write it"})
    assert result.answers == {node: Answer(node, None, problem="nothing was written") for node in fleet.nodes}
    os_storage.remove(fleet, files, "", {"/a": "no node to write it"})
    assert fleet.asked == []


def test_df_of_a_path_that_is_not_there_leaves_the_others() -> None:
    probe = os_storage.disks(["/", "/not/there"])
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, check=True, timeout=30)
    found = probe.parse(Answer("n1", 0, done.stdout))
    assert found["/"].size > 0
    assert found["/not/there"].problem == "df: /not/there: No such file or directory"
    assert not found["/not/there"].hung


def test_how_names_are_asked_for() -> None:
    assert "o=$(timeout 20 getent hosts \"$n\" 'a b')\n" in os_network.naming(["a b", "c"]).command
    assert 'o=$(timeout 20 getent hosts "$n" )\n' in os_network.naming([]).command


def test_what_was_found_of_a_node_and_its_containers() -> None:
    image, other = ImageImport("i", "n"), ImageImport("j", "m")
    config: Any = object()
    found = container.ContainerFacts("n1", config, (image, other))
    assert vars(found) == {
        "node": "n1", "config": config, "imports": (image, other), "seen": {}, "gpus": 0, "override": "",
        "token": "", "token_back": False, "saved_removed": "", "nodes_of_job": (), "entrypoint_elsewhere": False,
    }  # fmt: skip
    assert found.main is image
    assert found.step("plain") == container.StepFacts(problem="the step was not run on this node")
    assert replace(found, seen={"plain": container.StepFacts(problem="x")}).step("plain").problem == "x"


@pytest.mark.parametrize(
    ("inside", "outside", "contained"),
    [
        ({"root": "1", "release": "a"}, {"root": "1", "release": "a"}, False),
        ({"root": "2", "release": "a"}, {"root": "1", "release": "a"}, True),
        ({"root": "1", "release": "b"}, {"root": "1", "release": "a"}, True),
        ({}, {"root": "1", "release": "a"}, None),
        ({"root": "1", "release": "a"}, {}, None),
    ],
)
def test_a_container_is_told_by_its_root_or_its_release(
    inside: dict[str, str], outside: dict[str, str], *, contained: bool | None
) -> None:
    seen = {"plain": container.StepFacts((inside,)), "outside": container.StepFacts((outside,))}
    config: Any = object()
    assert container.ContainerFacts("n1", config, (), seen).contained is contained
