from __future__ import annotations

import math
import os
import stat
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS
from sandbox_helpers import wait_for

from pytest_gpucluster.core import probe as base
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.kit.container import enroot
from pytest_gpucluster.kit.container.containers import ImageImport
from pytest_gpucluster.kit.mpi import mpi_facts as mpi
from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi, MpiRank, MpiWorld, RankPair, Version
from pytest_gpucluster.suites.os import facts as basics
from pytest_gpucluster.suites.os import facts as os_facts
from pytest_gpucluster.suites.os import network_facts as os_network
from pytest_gpucluster.suites.os import software_facts as os_software
from pytest_gpucluster.suites.os import storage_facts as os_storage
from pytest_gpucluster.suites.os.facts import CommandSection, Cpus, Load, MemoryInfo, Mount
from pytest_gpucluster.suites.os.network_facts import Naming, Network, NetworkInterface, ReachabilityResult
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFiles, SharedFolder, SharedResult

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = TESTS / "data" / "os"
DEBIAN = Answer("gpu01", 0, (DATA / "debian12-basics.txt").read_bytes(), sent=100.0, received=101.0)


def text(name: str) -> str:
    return (DATA / name).read_text()


def run(command: str, **env: str) -> Answer:
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, env=os.environ | env, timeout=60, check=False
    )
    return Answer("here", done.returncode, done.stdout, done.stderr)


def with_section(name: str, said: str, rc: int = 0) -> Answer:
    return Answer("gpu01", 0, f"\x1e{name}\n{said}\x1e={rc}\n".encode())


def test_debian_basics_are_read_section_by_section() -> None:
    assert basics.RELEASE.parse(DEBIAN) == "debian 12"
    assert basics.KERNEL.parse(DEBIAN) == "6.1.0-18-amd64"
    assert basics.HOSTNAME.parse(DEBIAN) == "gpu01"
    assert basics.CMDLINE.parse(DEBIAN) == "iommu=pt quiet ro"
    assert basics.CPUS.parse(DEBIAN).online == 2
    assert basics.UPTIME.parse(DEBIAN) > 60
    assert basics.LIMITS.parse(DEBIAN)["Max stack size"] == 8 * 2**20
    assert math.isinf(basics.LIMITS.parse(DEBIAN)["Max cpu time"])
    assert basics.THP.parse(DEBIAN) == "madvise"
    assert "vm.swappiness=60" in basics.KERNEL_SETTINGS.parse(DEBIAN)
    assert basics.GOVERNORS.parse(DEBIAN) == {}  # a virtual machine
    assert basics.LSM.parse(DEBIAN) == "none"
    clock = basics.CLOCK.parse(DEBIAN)
    assert (clock.sent, clock.received) == (100.0, 101.0)
    assert clock.time > 1_000_000_000


def test_the_command_reads_this_very_machine() -> None:
    answer = run(basics.BASICS)
    release = Path("/etc/os-release").read_text()
    assert f"ID={basics.RELEASE.parse(answer).split()[0]}" in release.replace('"', "")
    assert basics.CPUS.parse(answer).online == os.cpu_count()
    assert basics.MEMORY.parse(answer).total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert basics.KERNEL.parse(answer) == os.uname().release
    assert basics.HOSTNAME.parse(answer) == os.uname().nodename


def facts_of(answer: Answer) -> dict[str, Any]:
    probes = (
        basics.RELEASE,
        basics.MOUNTS,
        basics.LIMITS,
        basics.CMDLINE,
        basics.KERNEL_SETTINGS,
        basics.LSM,
    )
    return {probe.name: probe.parse(answer) for probe in (*probes, basics.THP, basics.GOVERNORS)}


CAT = """#!/bin/sh
[ $# = 1 ] || [ -z "$TOGETHER" ] || { for a; do case $a in %s) echo "cat: $a: $WHY" >&2; exit 1;; esac; done; }
for a; do
  case $a in
    */scaling_governor) echo performance ;;
    */lsm) printf lockdown,yama ;;
    */os-release) printf 'ID=nix\\nNAME=Linux' ;;
    */enabled) echo 'always [never]' ;;
    *) /bin/cat "$a" || exit 1 ;;
  esac
done
"""


@pytest.mark.parametrize("unreadable", ["/proc/mounts", "*/lsm", "*/scaling_governor"])
def test_files_read_together_say_what_each_says_by_itself(tmp_path: Path, unreadable: str) -> None:
    tool = tmp_path / "cat"
    tool.write_text(CAT % unreadable)
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    together = run(basics.BASICS, PATH=path)
    assert b"\x1emounts" not in together.stdout  # one process read them all, last newlines missing or not
    singly = run(basics.BASICS, PATH=path, TOGETHER="fails", WHY="denied")
    assert b"\x1emounts" in singly.stdout
    assert facts_of(together) == facts_of(singly)
    assert facts_of(together)["release"] == "nix"
    assert facts_of(together)["lsm"] == "lockdown,yama"


def test_a_file_that_ends_in_the_word_between_files_keeps_it() -> None:
    between = "Linux\nLinux\n"
    ones = "".join(f"{number}\n" for number in range(12))
    files = (ones, "ID=x\nLinux\n", "MemTotal: 1 kB\n", "limits\n", "mounts\n", "yama")
    found = basics.split_files(between.join(files))
    assert (found["release"], found["proc"]) == ("ID=x\nLinux\n", "0\n1\n2\nMemTotal: 1 kB\n")
    assert (found["taint"], found["thp"], found["governor"], found["lsm"]) == ("9\n", "10\n", "11\n", "yama")


def test_ubuntu_recordings() -> None:
    assert basics.read_release(text("ubuntu2404-os-release.txt")) == "ubuntu 24.04"
    cpus = basics.read_cpus(text("ubuntu2404-lscpu.txt"))
    assert (cpus.online, cpus.offline, cpus.numa_nodes, cpus.architecture) == (128, "", 1, "x86_64")
    memory = basics.read_memory("1 1\n0 0 0 1/1 1\nquiet\n" + text("ubuntu2404-meminfo.txt"))
    assert memory.total == 577563364 * 1024
    assert (memory.hugepages, memory.swap_total) == (0, 0)


PROBES: list[Probe[Any]] = [probe for probe in vars(basics).values() if isinstance(probe, Probe)]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=60))
def test_rubbish_is_an_error_and_never_a_crash(probe: Probe[Any], rubbish: bytes) -> None:
    with pytest.raises(ProbeError):
        probe.parse(Answer("x", 0, rubbish.replace(b"\x1e", b"")))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
@settings(max_examples=40, deadline=None)
@given(said=st.text(alphabet=st.characters(exclude_characters="\x1e"), max_size=80))
def test_a_rubbish_section_never_crashes(probe: Probe[Any], said: str) -> None:
    parts = ("date", "hostname", "kernel", "proc", "release", "lscpu", "governor", "mounts")
    rest = ("limits", "thp", "lsm", "tunables", "taint", "user", "names", "files")
    body = "".join(f"\x1e{part}\n{said}\x1e=0\n" for part in parts + rest)
    try:
        probe.parse(Answer("x", 0, body.encode(errors="replace")))
    except ProbeError as error:
        assert "\n" not in str(error)  # either way is right; a message has one line


def test_one_df_answers_about_all_paths_where_none_fails() -> None:
    probe = os_storage.disks(["/", "/proc", "/tmp"])
    answer = run(probe.command)
    assert list(basics.sections(answer)) == ["all"]
    disks = probe.parse(answer)
    whole = os.statvfs("/")
    assert disks["/"].size == whole.f_blocks * whole.f_frsize
    assert disks["/"].inodes == whole.f_files
    assert disks["/proc"].size == 0


def test_disks_answers_about_every_path() -> None:
    found = run(os_storage.disks(["/", "/no such 'path"]).command)
    disks = os_storage.disks(["/", "/no such 'path"]).parse(found)
    assert disks["/"].size > disks["/"].free > 0
    assert "No such file" in disks["/no such 'path"].problem
    assert not disks["/no such 'path"].hung


@pytest.mark.thorough  # it waits for the deadline of df
def test_a_hung_file_system_is_named_within_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "df"
    tool.write_text(
        '#!/bin/sh\ncase "$2" in /hung*) echo $$ >>"$0s"; exec sleep 30;; esac\nexec /bin/df "$@"\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(os_storage, "DISK_SECONDS", 5)
    probe = os_storage.disks(["/hung1", "/", "/hung2"])
    disks = probe.parse(run(probe.command, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert [disk.hung for disk in disks.values()] == [True, False, True]
    assert disks["/"].size > 0
    for pid in (tmp_path / "dfs").read_text().split():  # the hung ones were ended
        wait_for_end(int(pid))


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
fs1:/a /proc nfs4 rw 0 0
fs1:/a /proc nfs4 rw 0 0
fs1:/b /with\\040blank nfs rw 0 0
fs1:/c /dev nfs rw 0 0
fs1:/d /hung lustre rw 0 0
tmpfs /run tmpfs rw 0 0
"""


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_mounts_over_the_network_are_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """Once each, and not those that nobody could name."""
    for name, body in (
        ("cat", f'[ $1 = /proc/mounts ] && exec /bin/cat {tmp_path}/mounts; exec /bin/cat "$@"'),
        ("df", 'case "$2" in /hung) exec sleep 30;; esac; exec /bin/df "$@"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mounts").write_text(MOUNTS if hangs else MOUNTS.replace("/hung", "/sys"))
    monkeypatch.setattr(os_storage, "DISK_SECONDS", 5)
    probe = os_storage.disks(["/", "/dev"])
    disks = probe.parse(run(probe.command, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert list(disks) == ["/", "/dev", "/proc", "/hung" if hangs else "/sys"]
    assert [disk.hung for disk in disks.values()] == [False, False, False, hangs]


def wait_for_end(pid: int) -> None:
    wait_for(lambda: not runs(pid), f"process {pid} has ended")


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_df_without_inodes() -> None:
    rows = (
        "Filesystem 1024-blocks Used Available Capacity Mounted on\nfs1:/a b 100 40 60 40% /data\n"
        "Filesystem Inodes IUsed IFree IUse% Mounted on\nfs1:/a b - - - - /data\n"
    )
    assert os_storage.read_disk(basics.CommandSection(rows, 0)) == os_storage.Disk(102400, 61440, 0, 0)
    with pytest.raises(ProbeError):
        os_storage.read_disk(basics.CommandSection("nothing", 0))


@pytest.mark.parametrize("path", ["relative", "", "/with\nnewline"])
def test_paths_of_the_cluster_file_have_to_be_absolute(path: str) -> None:
    with pytest.raises(ConfigError):
        os_storage.disks([path])


@pytest.mark.thorough  # the reader of a file tries for seconds
def test_shared_files_are_written_seen_and_removed(tmp_path: Path) -> None:
    good, bad = tmp_path / "it's shared", tmp_path / "absent"
    good.mkdir()
    files = os_storage.SharedFiles((str(good), str(bad)), "0123abcd")
    written = os_storage.read_written(run(files.write_command()), files)
    assert written[str(good)] == ""
    assert written[str(bad)]
    seen = os_storage.read_seen(run(files.read_command()), files)
    assert seen[str(good)] == ""
    assert "No such file" in seen[str(bad)]
    again = os_storage.read_written(run(files.write_command()), files)
    assert again[str(good)]  # never overwrites
    Path(files.path(str(good))).write_text("old\n")
    assert "old" in os_storage.read_seen(run(files.read_command()), files)[str(good)]
    assert run(files.remove_command([str(good)])).rc == 0
    assert list(good.iterdir()) == []


def test_a_read_that_was_cut_off_names_the_folder_that_hung() -> None:
    files = os_storage.SharedFiles(("/a", "/b"), "tok")
    cut = Answer("x", None, b"\x1e/a\ntok\n\x1e=0\n\x1e/b\n", problem="timed out after 20 s")
    assert os_storage.read_seen(cut, files) == {"/a": "", "/b": "timed out after 20 s"}


@pytest.mark.thorough  # three looks, with pauses
def test_a_real_zombie_is_found() -> None:
    # The parent, sleep, never reaps the child that the shell left to it
    parent = subprocess.Popen(["sh", "-c", "sleep 0.2 & exec sleep 30"])
    try:
        found = os_software.PROCESSES.parse(run("sleep 0.5; " + os_software.PROCESSES.command))
        assert parent.pid in [process.ppid for process in found.of_state("Z")]
    finally:
        parent.kill()
        parent.wait()


def test_packages_of_this_machine() -> None:
    probe = os_software.packages(["bash", "surely-not-a-package"])
    found = probe.parse(run(probe.command))
    assert found["bash"][0].isdigit()
    assert found["surely-not-a-package"] == ""


def test_sysctls_of_this_machine() -> None:
    names = ["kernel.pid_max", "net.ipv4.ip_local_port_range", "no.such_name"]
    probe = os_software.sysctls(names)
    found = probe.parse(run(probe.command))
    assert found["kernel.pid_max"] == Path("/proc/sys/kernel/pid_max").read_text().strip()
    assert len(found["net.ipv4.ip_local_port_range"].split(" ")) == 2
    assert found["no.such_name"] == ""


def test_resolution() -> None:
    no_name = "x" * 64  # longer than a label may be: no name server is asked
    probe = os_software.resolution(["localhost", no_name])
    found = probe.parse(run(probe.command))
    assert found["localhost"] in ("127.0.0.1", "::1", "127.0.0.1 ::1")
    assert found[no_name] == ""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("10.0.0.1 a.site a\n10.0.0.2 b\n", {"a": "10.0.0.1", "b": "10.0.0.2"}),
        ("10.0.0.1 a\n10.0.0.3 a\n10.0.0.2 b.site\n", {"a": "10.0.0.1 10.0.0.3", "b": "10.0.0.2"}),
        ("10.0.0.1 a\n10.0.0.2 other\n", {"a": "1.1.1.1", "b": "1.1.1.1"}),  # which is b? each is asked alone
        ("", {"a": "1.1.1.1", "b": "1.1.1.1"}),
    ],
)
def test_names_are_asked_together_where_each_line_says_whose_it_is(
    tmp_path: Path, said: str, found: dict[str, str]
) -> None:
    tool = tmp_path / "getent"
    (tmp_path / "said").write_text(said)
    tool.write_text(f'#!/bin/sh\n[ $# = 3 ] || {{ echo "1.1.1.1 $2"; exit 0; }}\nexec cat {tmp_path}/said\n')
    tool.chmod(0o755)
    probe = os_software.resolution(["a", "b"])
    answer = run(probe.command, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert probe.parse(answer) == found


def test_a_file_is_written_in_each_scratch_folder_and_removed(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    command = os_storage.WRITES.command.replace("put /tmp", f"put {good}")
    assert command != os_storage.WRITES.command
    found = os_storage.WRITES.parse(run(command.replace("put /dev/shm", f"put {tmp_path}/missing")))
    assert (found["/tmp"], list(good.iterdir())) == ("", [])
    assert found["/dev/shm"].startswith("mktemp: ")
    assert found["/dev/shm"].endswith("No such file or directory")


def test_a_file_that_finds_no_room_is_reported_and_removed(tmp_path: Path) -> None:
    for name, body in (("mktemp", "echo /dev/full"), ("rm", f'echo "$@" >>{tmp_path}/removed')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    found = os_storage.WRITES.parse(run(os_storage.WRITES.command, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert ["No space left on device" in problem for problem in found.values()] == [True, True]
    assert (tmp_path / "removed").read_text() == "-f /dev/full\n" * 2


def test_a_try_to_write_that_does_not_end_says_so() -> None:
    said = b"\x1e/tmp\n\x1e=0\n\x1e/dev/shm\n"
    hung = Answer("gpu01", None, said, problem="timed out after 30 s")
    assert os_storage.read_writes(hung) == {"/tmp": "", "/dev/shm": "timed out after 30 s"}
    first = b"\x1e/tmp\nmktemp: Read-only file system\n\x1e=1\n"
    assert os_storage.read_writes(Answer("gpu01", 0, first)) == {
        "/tmp": "mktemp: Read-only file system",
        "/dev/shm": "no answer",
    }
    with pytest.raises(ProbeError, match=r"^node lost: gone$"):
        os_storage.read_writes(Answer("gpu01", None, problem="node lost: gone"))
    with pytest.raises(ProbeError):
        os_storage.read_writes(Answer("gpu01", 0, b""))


def test_df_is_asked_where_dev_shm_takes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "mktemp").write_text(
        '#!/bin/sh\ncase "$*" in *" /dev/shm/"*) exit 1;; esac\nexec /bin/mktemp "$@"\n'
    )
    (tmp_path / "mktemp").chmod(0o755)
    probe = os_storage.disks(["/"])
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert probe.parse(run(probe.command, PATH=path, TMPDIR=str(tmp_path / "absent")))["/"].size > 0
    (tmp_path / "mktemp").write_text("#!/bin/sh\necho 'mktemp: Read-only file system' >&2; exit 1\n")
    with pytest.raises(NotAvailable, match="Read-only file system"):
        probe.parse(run(probe.command, PATH=path))


# --- value by value ---


def test_probes_that_take_longer_than_others_and_those_of_one_node() -> None:
    modules = (base, os_facts, os_network, os_software, os_storage, enroot)
    found = {one for module in modules for one in vars(module).values() if isinstance(one, Probe)}
    found |= {os_network.naming(["a"]), os_software.services(["a"]), os_software.command_output("uptime")}
    found |= {os_storage.disks(["/", "/x"]), os_software.sysctls(["a.b"]), os_software.packages(["a"])}
    assert {one.name: one.timeout for one in found if one.timeout != 30} == {
        "naming": 55,
        "time service": 15,
        "failed units": 15,
        "services": 15,
        "disks": 28,
    }
    basics = {one.name for one in vars(os_facts).values() if isinstance(one, Probe)} - {"memory parts"}
    assert {one.name for one in found if one.alone} == basics | {"drift: uptime", "writes"}
    assert all(one.by_hand for one in found if one.name != "responds")
    assert not any(one.root for one in found)


def answer(out: str = "", rc: int | None = 0, err: str = "", **more: Any) -> Answer:
    return Answer("n1", rc, out.encode(), err.encode(), **more)


def of(**parts: str | tuple[str, int]) -> Answer:
    """Return an answer in sections; a pair is text and exit status."""
    told = {name: part if isinstance(part, tuple) else (part, 0) for name, part in parts.items()}
    return answer("".join(f"\x1e{name}\n{text}\x1e={rc}\n" for name, (text, rc) in told.items()))


CPU = "/sys/devices/system/cpu"


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
        for one in vars(os_facts).values()
        if isinstance(one, Probe) and one.command == os_facts.BASICS
    }
    assert found == {
        "clock": os_facts.Clock(12.5),
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
    assert os_facts.split_files(TOGETHER) == SINGLY
    words = f"/proc and /sys: {{}} files of 6, not understood: {TOGETHER[:40]!r}"
    for text, count in (
        (TOGETHER.replace("b\na\nb\n", ""), 6),
        (TOGETHER.rpartition("Linux\nLinux\n")[0], 5),
        (TOGETHER + "Linux\nLinux\n", 7),
    ):
        with pytest.raises(ProbeError) as caught:
            os_facts.split_files(text)
        assert str(caught.value) == words.format(count)


MPICH = Version("MPICH", "4.2")
RANK = MpiRank(0, 2, "h", "n", "single", 0, 8, "x")
PAIR = RankPair((0, 1), 1e-6, 1e9)
READ: list[tuple[Callable[[], object], object]] = [
    (lambda: os_facts.sections(of(a="x\n", b=("y", 3))), {"a": CommandSection("x\n", 0), "b": CommandSection("y", 3)}),
    (lambda: os_facts.section(of(names="alone\n"), "kernel"), "alone"),
    (lambda: os_facts.CLOCK.parse(of(date="12.%N")), os_facts.Clock(12.0)),
    (lambda: os_facts.read_release("ID=a\nVERSION_ID=1\nVERSION_ID=\n"), "a"),  # as a shell: the last one counts
    (lambda: os_facts.read_line(" a b \n"), "a b"),
    (lambda: os_facts.read_release("ID=arch\n"), "arch"),
    (
        lambda: os_facts.read_cpus(
            "On-line CPU(s) list: 0\nOff-line CPU(s) list: 1\nNUMA node(s): 4\nSocket(s): 2\n"
            "Thread(s) per core: 3\nModel name: EPYC\nArchitecture: x86_64\n"
        ),
        Cpus(1, "1", 4, "2", "3", "EPYC", "x86_64"),
    ),
    (
        lambda: os_facts.read_memory(
            "0\n0\n0\nMemTotal: 9 kB\nMemAvailable: 8 kB\nSwapTotal: 7 kB\nSwapFree: 6 kB\nHugePages_Total: 5\n"
            "Hugepagesize: 4 kB\n"
        ),
        MemoryInfo(9216, 8192, 7168, 6144, 5, 4096),
    ),
    (lambda: os_facts.read_governors(of(governor=("cat: x: No such file or directory\n", 1))), {}),
    (lambda: os_facts.read_lsm(of(lsm=("cat: x: No such file or directory\n", 1))), "none"),
    (lambda: os_facts.read_thp(of(thp=("cat: x: No such file or directory\n", 1))), "none"),
    (
        lambda: os_facts.read_mounts("a / ext4 rw,x 0 0\nb /m\\040n nfs4 ro\nc /m\\040n tmpfs rw 0 0\n"),
        {"/": Mount("a", "/", "ext4", ("rw", "x")), "/m n": Mount("c", "/m n", "tmpfs", ("rw",))},
    ),
    (
        lambda: os_facts.read_limits(
            "Limit  Soft  Hard\nMax open files            1024                 4096                 files\n"
            "Max nice priority         0  unlimited\nMax x  unlimited  9 bytes\nMax y  5x  9\n no Max z  1  2\n"
        ),
        {"Max open files": 1024.0, "Max nice priority": 0.0, "Max x": math.inf},
    ),
    (lambda: os_facts.read_taint("9" * 20), int("9" * 20)),
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
    (
        lambda: os_storage.read_seen(
            answer("\x1e/a\nt\n\x1e=0\n\x1e/b\nother\n\x1e=0\n\x1e/c\ncat: gone\n\x1e=1\n\x1e/d\n\x1e=1\n"),
            SharedFiles(("/a", "/b", "/c", "/d", "/e"), "t"),
        ),
        {"/a": "", "/b": "other content: 'other'", "/c": "cat: gone", "/d": "exit 1", "/e": "no answer"},
    ),
    (
        lambda: SharedResult(SharedFiles(("/a",), "t"), "n9", {"/a": "full"}, {"n1": answer("\x1e/a\nt\n\x1e=0\n")}).on("n1"),
        {"/a": SharedFolder("n9", "full", "")},
    ),
    (
        lambda: os_storage.read_writes(answer("\x1e/tmp\n\x1e=0\n\x1e/dev/shm\nno\n\x1e=1\n")),
        {"/tmp": "", "/dev/shm": "no"},
    ),
    (lambda: SharedResult(SharedFiles((), "t"), "", {}, {}).on("n1"), {}),
    # MPI
    (lambda: mpi._srun_types({MPICH}, {"mpich": "x --with-pmix=y"}), ("pmix",)),
    (lambda: mpi._srun_types({MPICH}, {"mpich": "--with-pmi=pmi2"}), ("pmi2",)),
    (lambda: mpi._srun_types({MPICH, Version("", "")}, {"mpich": ""}), ()),
    (lambda: mpi._srun_types({Version("Open MPI", "5.0.1")}, {"ompi-pmi": "s1"}), ("pmix",)),
    (lambda: mpi._srun_types({Version("Open MPI", "4.1")}, {"ompi-pmi": "s1 s2 ext3x s2 x"}), ("pmi1", "pmi2", "pmix")),
    (lambda: mpi._srun_types({Version("Open MPI", "x.1")}, {"ompi-pmi": "pmix3x"}), ("pmix",)),
    (lambda: mpi.hosts_of([InstalledMpi("a", "h"), InstalledMpi("b", "i"), InstalledMpi("c")]), {"h": "a", "i": "b"}),
    (lambda: mpi.with_nodes(MpiWorld((RANK,)), {"h": "a"}).nodes, {0: "a"}),
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
    (lambda: os_network.rings((["a", "b"], ["c"])), "b a b a"),
    (lambda: os_network.rings([["c"]]), ""),
    (
        lambda: os_network.read_naming(answer("10.0.0.2 gpu1.x y\n10.0.0.1 z gpu1\n10.0.0.3 gpu11\ntook 5.5 4.5 0 gpu1.lab\n")),
        Naming(0.0, ("10.0.0.1", "10.0.0.2")),
    ),
    (lambda: os_network.read_naming(answer("gpu1 z\ntook 5.5 25.5 124 gpu1\n")), Naming(20.0)),
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
    (lambda: ImageImport("i", "n", {"a": 2.0, "b": 0.0}, {"a": 4_000_000, "b": 1, "c": 1}).throughput("a"), 2.0),
    (lambda: ImageImport("i", "n", {"b": 0.0}, {"b": 1, "c": 1}).throughput("b"), None),
    (lambda: ImageImport("i", "n", {"b": 0.0}, {"b": 1, "c": 1}).throughput("c"), None),
    (lambda: ImageImport("i", "n", {"b": 0.0}, reused=("a",)).nodes, ("b", "a")),
    # answers
    (lambda: base.text_of(answer("x")), "x"),
    (lambda: base.last_line("a\n b \n\n"), "b"),
    (lambda: answer(rc=None, problem="node lost: x").lost, True),
    (lambda: answer(rc=None, problem="timed out").lost, False),
    (lambda: answer(rc=0, problem="node lost: x").lost, False),
    (lambda: Answer("n", 0, b"\xff", b"\xfe").out + Answer("n", 0, b"\xff", b"\xfe").err, "\ufffd\ufffd"),
    (lambda: base.with_root("a 'b'"), """if [ "$(id -u)" = 0 ]; then (a 'b'); else sudo -n sh -c 'a '"'"'b'"'"''; fi"""),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(READ)))
def test_what_is_read(at: int) -> None:
    read, expected = READ[at]
    assert read() == expected


GONE = answer(rc=None, problem="node lost: x")
NOT_UNDERSTOOD: list[Callable[[], object]] = [
    lambda: os_facts.sections(answer("nothing")),
    lambda: os_facts.sections(answer("\x1ea\nx\x1e=y\n")),
    lambda: os_facts.section(of(a="x"), "b"),
    lambda: os_facts.read_clock(of(date="x12")),
    lambda: os_facts.sections(answer("\x1ea\nx\x1e=\n")),
    lambda: os_facts.read_clock(of(date=".5")),
    lambda: os_facts.read_load("0\n1 x 3 1/2 3\n0\n0\n"),
    lambda: os_facts.read_cpus("On-line CPU(s) list: 0\nNUMA node(s): x\n"),
    lambda: os_facts.read_uptime("1\n2\n3\n"),
    lambda: os_facts.read_uptime("-1\n2\n3\n4\n"),
    lambda: os_facts.read_release("NAME=x\n"),
    lambda: os_facts.read_cpus("On-line CPU(s) list: 0-1,a\n"),
    lambda: os_facts.read_thp(of(thp="always never")),
    lambda: os_facts.read_mounts("a /x ext4 rw\n"),
    lambda: os_facts.read_limits("x\n"),
    lambda: os_facts.read_tunables("1\n"),
    lambda: os_facts.read_taint("x1"),
    lambda: os_facts.read_taint("1" * 21),
    lambda: os_storage.read_disks(["/"], "x 1 2 3 4% /\n"),
    lambda: os_storage.read_disks(["/"], "x 1  3 4% /\nx 1  3 4% /\n"),
    lambda: os_storage.disks(["/", "/x"]).parse(answer("\x1e/\n\x1e=1\n")),
    lambda: os_network.read_naming(answer("")),
    lambda: os_network.read_reachability(answer("")),
    lambda: os_network.read_reachability(answer("peer a\n")),
    lambda: base.GuardedParser("p", str)(answer(rc=None)),
    lambda: base.GuardedParser("p", str)(answer(rc=None, problem="hung")),
    lambda: base.GuardedParser("p", lambda _: dict[str, str]()["x"])(answer()),
    lambda: os_facts.read_line("a\nb"),
    lambda: os_facts.read_line(" \n"),
    lambda: os_facts.read_load("0\n1 2 3 4 5\n0\n0\n"),
    lambda: os_facts.read_load("0\n1 2 3 1/2\n0\n0\n"),
    lambda: os_facts.read_memory("0\n0\n0\nx\n"),
    lambda: os_facts.read_memory("0\n0\n0\nMemTotal: x kB\n"),
    lambda: os_facts.read_cpus("x: y\n"),
    lambda: os_facts.read_governors(of(governor="")),
    lambda: os_facts.read_mounts("a / ext4\n"),
    *(
        partial(os_network.read_reachability, answer(f"{line}\n"))
        for line in ("peer a 1.1.1.1 x", "peer  1.1.1.1 0", "peer a  0")
    ),
]
NOT_THERE: list[Callable[[], object]] = [
    lambda: os_facts.section(of(b=("", 2)), "b"),
    lambda: os_facts.read_governors(of(governor=("cat: x: Permission denied", 1))),
    lambda: os_network.NETWORK.parse(of(link="x", addr="")),
    lambda: os_network.NETWORK.parse(of(link=("a\nno ip\n", 127), addr="")),
    lambda: os_network.read_naming(answer("took 1 2 3 x\n", err="gone\n")),
    lambda: os_network.read_reachability(answer("", 1, "n1 has no neighbour\n")),
    lambda: base.text_of(answer("", 127)),
    lambda: base.text_of(answer("", 1)),
    lambda: base.text_of(answer("out\n", 1, "err\n")),
    lambda: base.text_of(answer("out\n", truncated=True)),
    lambda: os_network.NETWORK.parse(of(link="x")),
    lambda: SharedResult(SharedFiles(("/a",), "t"), "n9", {}, {}).on("n1"),
    lambda: SharedResult(SharedFiles(("/a",), "t"), "n9", {}, {"n1": GONE}).on("n1"),
]


@pytest.mark.parametrize(
    ("error", "read"), [(ProbeError, it) for it in NOT_UNDERSTOOD] + [(NotAvailable, it) for it in NOT_THERE]
)
def test_what_is_not_read(error: type[Exception], read: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        read()
    assert type(caught.value) is error
    assert str(caught.value)


@pytest.mark.parametrize(
    "word",
    [
        "BOOT_IMAGE=/x", "initrd=x", "root=x", "resume=x", "ip=dhcp", "BOOTIF=x", "hostname=x", "nodename=x",
        "systemd.hostname=x", "systemd.machine_id=x", "ostree=x", "cryptdevice=x", "rd.luks.uuid=x", "rd.uuid=x",
        "console=tty0", "wwid=x", "nfsroot=x", "x=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "0a1b2c3d-0a1b-0a1b-",
    ],
)  # fmt: skip
def test_words_of_one_node_are_left_out(word: str) -> None:
    assert os_facts.read_cmdline(f"0\n0\nquiet {word} crash\n0\n") == "crash quiet"


@pytest.mark.parametrize(
    "word",
    [
        "ro", "ipx=1", "myip=1", "roots=x", "systemdxhostname=x", "systemd.x=1", "rdxuuid=1", "rd.x=1", "rd.luks.uuid",
        "0a1b2c3-0a1b-0a1b-", "0a1b2c3d-0a1-0a1b-", "0a1b2c3d-0a1b-0a1-", "x1b2c3dg-0a1b-0a1b-",
    ],
)  # fmt: skip
def test_other_words_are_kept(word: str) -> None:
    assert os_facts.read_cmdline(f"0\n0\n{word}\n0\n") == word


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


def test_how_names_are_asked_for() -> None:
    assert "o=$(timeout 20 getent hosts \"$n\" 'a b')\n" in os_network.naming(["a b", "c"]).command
    assert 'o=$(timeout 20 getent hosts "$n" )\n' in os_network.naming([]).command
