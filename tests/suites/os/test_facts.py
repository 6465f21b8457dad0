from __future__ import annotations

import contextlib
import math
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from os_helpers import answer, of, run, with_tools
from paths import TESTS

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.container import enroot
from pytest_gpucluster.kit.mpi import mpi_facts as mpi
from pytest_gpucluster.run.session import ClusterSession
from pytest_gpucluster.suites.container.containers import ImageImport
from pytest_gpucluster.suites.os import facts, test_os
from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo, MemoryParts, Mount

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = TESTS / "data" / "os"
NO_FILE = ("cat: x: No such file or directory\n", 1)
# an answer of BASICS, file by file; the last one has no last newline
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
    "lsm": "lockdown,yama",
}
LINES = ("proc", "tunables", "taint", "thp", "governor")
BETWEEN = "Linux\nLinux\n"
TOGETHER = BETWEEN.join(
    ["".join(FILES[name] for name in LINES), *(text for name, text in FILES.items() if name not in LINES)]
)
SINGLY = {name: text for name, text in FILES.items() if name != "meminfo"}
SINGLY["proc"] += FILES["meminfo"]


def test_a_recording_of_debian() -> None:
    debian = Answer("gpu01", 0, (DATA / "debian12-basics.txt").read_bytes(), sent=100.0, received=101.0)
    assert facts.RELEASE.parse(debian) == "debian 12"
    assert facts.KERNEL.parse(debian) == "6.1.0-18-amd64"
    assert facts.HOSTNAME.parse(debian) == "gpu01"
    assert facts.CMDLINE.parse(debian) == "iommu=pt quiet ro"
    assert facts.CPUS.parse(debian).online == 2
    assert facts.LIMITS.parse(debian)["Max stack size"] == 8 * 2**20
    assert facts.KERNEL_SETTINGS.parse(debian)["vm.swappiness"] == "60"
    assert facts.GOVERNORS.parse(debian) == {}  # a virtual machine
    clock = facts.CLOCK.parse(debian)
    assert (clock.sent, clock.received, clock.time > 1_000_000_000) == (100.0, 101.0, True)


def test_recordings_of_ubuntu() -> None:
    assert facts.read_release((DATA / "ubuntu2404-os-release.txt").read_text()) == "ubuntu 24.04"
    cpus = facts.read_cpus((DATA / "ubuntu2404-lscpu.txt").read_text())
    assert (cpus.online, cpus.offline, cpus.numa_nodes, cpus.architecture) == (128, "", 1, "x86_64")
    memory = facts.read_memory(f"1 1\n0 0 0 1/1 1\nquiet\n{(DATA / 'ubuntu2404-meminfo.txt').read_text()}")
    assert (memory.total, memory.hugepages, memory.swap_total) == (577563364 * 1024, 0, 0)


def test_the_command_reads_this_very_machine() -> None:
    found = run(facts.BASICS)
    release = Path("/etc/os-release").read_text()
    assert f"ID={facts.RELEASE.parse(found).split()[0]}" in release.replace('"', "")
    assert facts.CPUS.parse(found).online == os.cpu_count()
    assert facts.MEMORY.parse(found).total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.KERNEL.parse(found) == os.uname().release
    assert facts.HOSTNAME.parse(found) == os.uname().nodename


CAT = """\
[ $# = 1 ] || [ -z "$TOGETHER" ] || { for a; do case $a in %s) echo "cat: $a: $WHY" >&2; exit 1;; esac; done; }
for a; do
  case $a in
    */scaling_governor) echo performance ;;
    */lsm) printf lockdown,yama ;;
    */os-release) printf 'ID=nix\\nNAME=Linux' ;;
    /proc/mounts) echo '/dev/sda1 / ext4 rw 0 0' ;;
    */enabled) echo 'always [never]' ;;
    *) /bin/cat "$a" || exit 1 ;;
  esac
done"""


@pytest.mark.parametrize("unreadable", ["/proc/mounts", "*/lsm", "*/scaling_governor"])
def test_files_read_together_say_what_each_says_by_itself(tmp_path: Path, unreadable: str) -> None:
    probes = (facts.RELEASE, facts.MOUNTS, facts.LIMITS, facts.CMDLINE, facts.KERNEL_SETTINGS, facts.LSM)
    path = with_tools(tmp_path, cat=CAT % unreadable)
    together, singly = run(facts.BASICS, PATH=path), run(facts.BASICS, PATH=path, TOGETHER="no", WHY="denied")
    # one process read them all, last newlines missing or not
    assert [b"\x1emounts" in one.stdout for one in (together, singly)] == [False, True]
    found = {probe.name: probe.parse(together) for probe in (*probes, facts.THP, facts.GOVERNORS)}
    assert found == {probe.name: probe.parse(singly) for probe in (*probes, facts.THP, facts.GOVERNORS)}
    assert (found["release"], found["lsm"]) == ("nix", "lockdown,yama")


def test_files_that_were_read_together_are_cut_where_they_end() -> None:
    assert facts.split_files(TOGETHER) == SINGLY
    for text in (TOGETHER.replace("b\na\nb\n", ""), TOGETHER.rpartition(BETWEEN)[0], TOGETHER + BETWEEN):
        with pytest.raises(ProbeError):
            facts.split_files(text)
    # a file that ends in the word between files keeps it
    ones = "".join(f"{number}\n" for number in range(12))
    texts = (ones, "ID=x\nLinux\n", "MemTotal: 1 kB\n", "limits\n", "mounts\n", "yama")
    assert facts.split_files(BETWEEN.join(texts))["release"] == "ID=x\nLinux\n"


LSCPU = (
    "On-line CPU(s) list: 0\nOff-line CPU(s) list: 1\nNUMA node(s): 4\nSocket(s): 2\nThread(s) per core: 3\n"
    "Model name: EPYC\nArchitecture: x86_64\nHypervisor vendor: KVM\nNUMA node0 CPU(s): 0\nNUMA node1 CPU(s):\n"
)
MEMINFO = (
    "0\n0\n0\nMemTotal: 9 kB\nMemAvailable: 8 kB\nSwapTotal: 7 kB\nSwapFree: 6 kB\nHugePages_Total: 5\n"
    "Hugepagesize: 4 kB\n"
)
LIMITS = (
    "Limit  Soft  Hard\nMax open files            1024                 4096                 files\n"
    "Max nice priority         0  unlimited\nMax x  unlimited  9 bytes\nMax y  5x  9\n no Max z  1  2\n"
)
MOUNTS = "a / ext4 rw,x 0 0\nb /m\\040n nfs4 ro\nc /m\\040n tmpfs rw 0 0\n"
NODES = "/n/node0/meminfo:Node 0 MemTotal: 8 kB\n/n/node1/meminfo:Node 1 MemTotal: 4 kB\n"
EDAC = "/e/mc0/dimm0/dimm_label:CPU_A1\n/e/mc0/dimm0/size:2\n/e/mc0/rank1/size:1\n/e/mc0/dimm2/size:0\n"
READ: list[tuple[Callable[[], object], object]] = [
    (lambda: facts.sections(of(a="x\n", b=("y", 3)))["b"], facts.CommandSection("y", CommandEnd(3))),
    (lambda: facts.read_release("ID=a\nVERSION_ID=1\nVERSION_ID=\n"), "a"),  # as a shell: the last one counts
    (lambda: facts.read_cpus(LSCPU), Cpus(1, "1", 4, "2", "3", "EPYC", "x86_64", 1, "KVM")),
    (lambda: facts.read_memory(MEMINFO), MemoryInfo(9216, 8192, 7168, 6144, 5, 4096)),
    (lambda: facts.read_governors(of(governor=NO_FILE)), {}),
    (lambda: facts.read_lsm(of(lsm=NO_FILE)), "none"),
    (lambda: facts.read_thp(of(thp=NO_FILE)), "none"),
    (
        lambda: facts.read_mounts(MOUNTS),
        {"/": Mount("a", "/", "ext4", ("rw", "x")), "/m n": Mount("c", "/m n", "tmpfs", ("rw",))},
    ),
    (lambda: facts.read_limits(LIMITS), {"Max open files": 1024, "Max nice priority": 0, "Max x": math.inf}),
    (
        lambda: facts.read_memory_parts(of(files=f"{NODES}/n/has_cpu:0\n/k/kexec_crash_size:7\n{EDAC}")),
        MemoryParts(4096, 7, {"mc0/dimm0 CPU_A1": 2 << 20, "mc0/rank1": 1 << 20}),
    ),
    (lambda: facts.read_memory_parts(of(files=NODES)), MemoryParts()),
]


@pytest.mark.parametrize("at", range(len(READ)))
def test_what_is_read(at: int) -> None:
    read, expected = READ[at]
    assert read() == expected


CUT: list[Callable[[], object]] = [
    lambda: facts.sections(answer("\x1ea\nx\x1e=\n")),
    lambda: facts.section(of(a="x"), "b"),
    lambda: facts.read_uptime("1\n2\n3\n"),
    lambda: facts.read_load("0\n1 2 3 1/2\n0\n0\n"),
    lambda: facts.read_memory("0\n0\n0\nMemTotal: x kB\n"),
    lambda: facts.read_cpus("On-line CPU(s) list: 0-1,a\n"),
    lambda: facts.read_mounts("a /x ext4 rw\n"),
    lambda: facts.read_tunables("1\n"),
    lambda: facts.read_taint("x1"),
]


def test_answers_that_are_cut_and_files_that_may_not_be_read_are_no_facts() -> None:
    for read in CUT:
        with pytest.raises(ProbeError):
            read()
    with pytest.raises(NotAvailable):
        facts.read_governors(of(governor=("cat: x: Permission denied", 1)))


OF_ONE_NODE = (
    "BOOT_IMAGE=/x initrd=x root=x resume=x ip=dhcp BOOTIF=x hostname=x nodename=x systemd.hostname=x "
    "systemd.machine_id=x ostree=x cryptdevice=x rd.luks.uuid=x rd.uuid=x console=tty0 wwid=x nfsroot=x "
    "x=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f 0a1b2c3d-0a1b-0a1b-"
)
OF_ALL_NODES = (
    "ro ipx=1 myip=1 roots=x systemdxhostname=x systemd.x=1 rdxuuid=1 rd.x=1 rd.luks.uuid 0a1b2c3-0a1b-0a1b- "
    "0a1b2c3d-0a1-0a1b- 0a1b2c3d-0a1b-0a1- x1b2c3dg-0a1b-0a1b-"
)


@pytest.mark.parametrize(("words", "kept"), [(OF_ONE_NODE, False), (OF_ALL_NODES, True)])
def test_words_of_one_node_are_left_out_of_the_command_line(words: str, kept: bool) -> None:
    for word in words.split():
        expected = sorted(["quiet", "crash", *([word] if kept else [])])
        assert facts.read_cmdline(f"0\n0\nquiet {word} crash\n0\n").split() == expected


def test_how_srun_starts_an_mpi() -> None:
    for library, fact, types in (
        ("MPICH Version: 4.2", "mpich\tx --with-pmix=y", ("pmix",)),
        ("MPICH Version: 4.2", "mpich\t--with-pmi=pmi2", ("pmi2",)),
        ("Open MPI v5.0.1", "ompi-pmi\ts1", ("pmix",)),
        ("Open MPI v4.1", "ompi-pmi\ts1 s2 ext3x s2 x", ("pmi1", "pmi2", "pmix")),
        ("unknown", "mpich\t", ()),
    ):
        text = f'gpucluster-mpi-c {{"library": "{library}"}}\ngpucluster-mpi-fact\t{fact}\n'
        assert mpi.read_installed("n", text).srun_types == types
        two = f'{text}gpucluster-mpi-python {{"library": "Intel(R) MPI Library 2021.1"}}\n'
        assert mpi.read_installed("n", two).srun_types == ()  # it is unknown to which the fact belongs


def test_names_of_containers_that_belong_to_a_job_or_to_the_suites() -> None:
    odd = ("pyxis_x", "pyxis_7.", "pyxis_9_", "pyxis_.7", "pyxis__7.7", "a", "pyxis_x_7.0", "pyxis_7.x")
    jobs = {"pyxis_7.0": 7, "pyxis_8_8.12": 8, "pyxis_9_x": 9}
    assert enroot.jobs_of((*jobs, *odd)) == jobs
    names = ("pyxis_a.b", "pyxis_7_a.b", "pyxis_a_b", "pyxis__a.b", "a.b")
    assert enroot.enroot_names(names, "a.b") == ("pyxis_a.b", "pyxis_7_a.b")
    ours = {"pyxis_gpucluster-7-ab": 7, "pyxis_8_gpucluster-8-cd": 8}
    others = ("pyxis_gpucluster-kept-a-b", "pyxis_gpucluster-7-", "gpucluster-7-x", "pyxis_x_gpucluster-7-a")
    assert enroot.suite_containers((*ours, *others)) == ours
    image = ImageImport("i", "n", {"b": 0.0}, {"b": 1, "c": 1}, reused=("a",))
    assert (image.nodes, image.throughput("b"), image.throughput("c")) == (("b", "a"), None, None)


@pytest.mark.parametrize("away", [True, False])
def test_a_node_that_went_with_the_whole_channel_is_not_judged(*, away: bool) -> None:
    why = {"n": Explanation("task_ended", "srun ended")}
    fleet = SimpleNamespace(disconnected={"n"} if away else set(), lost=why)
    assert test_os.lost("n", fleet) == (None if away else why["n"])
    none = answer(rc=None, problem="node lost: srun ended")
    session: Any = SimpleNamespace(
        answer=lambda *_: none, is_disconnected=lambda _: away, lost=lambda: pickle.loads(pickle.dumps(why))
    )
    session.problem = lambda node: ClusterSession.problem(session, node)
    assert test_os.loss("n", session) == "task_ended"
    with pytest.raises(ProbeError, match="srun ended") if away else contextlib.nullcontext():
        assert test_os.answer(SimpleNamespace(name="n"), session) == none
