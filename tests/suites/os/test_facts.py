from __future__ import annotations

import math
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.suites.os import facts as basics
from pytest_gpucluster.suites.os import software_facts as os_software
from pytest_gpucluster.suites.os import storage_facts as os_storage

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


def test_mounts_are_unescaped_and_the_last_one_counts() -> None:
    mounts = basics.MOUNTS.parse(DEBIAN)
    assert mounts["/"].fstype == "ext4"
    assert mounts["/data"].source == "fs1:/export/my data"
    over = basics.read_mounts("a / ext4 rw 0 0\nb /x ext4 rw 0 0\nc /x nfs ro 0 0\n")
    assert over["/x"].source == "c"


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


def test_files_that_do_not_come_apart_are_an_error() -> None:
    with pytest.raises(ProbeError, match="not understood"):
        basics.MOUNTS.parse(with_section("files", "1\nLinux\nLinux\n2"))


def test_ubuntu_recordings() -> None:
    assert basics.read_release(text("ubuntu2404-os-release.txt")) == "ubuntu 24.04"
    cpus = basics.read_cpus(text("ubuntu2404-lscpu.txt"))
    assert (cpus.online, cpus.offline, cpus.numa_nodes, cpus.architecture) == (128, "", 1, "x86_64")
    memory = basics.read_memory("1 1\n0 0 0 1/1 1\nquiet\n" + text("ubuntu2404-meminfo.txt"))
    assert memory.total == 577563364 * 1024
    assert (memory.hugepages, memory.swap_total) == (0, 0)


def test_a_failed_section_spoils_no_other() -> None:
    half = Answer("x", 0, b"\x1ekernel\ncat: permission denied\n\x1e=1\n\x1ehostname\nx\n\x1e=0\n")
    assert basics.HOSTNAME.parse(half) == "x"
    with pytest.raises(NotAvailable, match="permission denied"):
        basics.KERNEL.parse(half)
    with pytest.raises(ProbeError, match="missing"):
        basics.LOAD.parse(half)


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


def test_cmdline_keeps_what_is_common_only() -> None:
    one = basics.read_cmdline("1\n1\nBOOT_IMAGE=/a root=UUID=1 ro iommu=pt ip=10.0.0.1\nMemTotal: 1 kB\n")
    two = basics.read_cmdline("1\n1\niommu=pt BOOT_IMAGE=/b root=/dev/sda ro\nMemTotal: 1 kB\n")
    assert one == two == "iommu=pt ro"


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


@pytest.mark.parametrize("hangs", [False, True])
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
    deadline = time.monotonic() + 10
    while runs(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


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


def test_a_node_that_is_lost_says_nothing_of_shared_folders() -> None:
    files = os_storage.SharedFiles(("/a",), "tok")
    lost = {"x": Answer("x", None, problem="node lost: srun ended (exit -9)")}
    with pytest.raises(NotAvailable, match="did not answer"):
        os_storage.SharedResult(files, "w", {"/a": ""}, lost).on("x")


def looks(*each: str) -> Answer:
    return Answer("x", 0, "".join(f"{look}processes 90\n" for look in each).encode())


def test_only_what_stays_is_stuck() -> None:
    zombie, busy = "  7     1 Z+    200 root sh <defunct>\n", " 9 2 D 5 root kworker/u4:1\n"
    found = os_software.read_processes(looks(zombie + busy, zombie + busy, zombie))
    assert [process.pid for process in found.stuck] == [7]
    assert found.of_state("Z")[0].command == "sh <defunct>"
    assert os_software.read_processes(looks(busy, busy, busy)).of_state("D")[0].pid == 9
    assert os_software.read_processes(looks("", busy, busy)).stuck == ()
    assert os_software.read_processes(looks("")).stuck == ()


def test_processes_of_a_ps_that_did_not_run_are_not_available() -> None:
    with pytest.raises(NotAvailable):
        os_software.read_processes(Answer("x", 0, b"processes 0\n", b"sh: ps: not found"))
    with pytest.raises(ProbeError):
        os_software.read_processes(Answer("x", 0, b"what is this\nprocesses 3\n"))


def test_a_real_zombie_is_found() -> None:
    # The parent, sleep, never reaps the child that the shell left to it
    parent = subprocess.Popen(["sh", "-c", "sleep 0.2 & exec sleep 30"])
    try:
        found = os_software.PROCESSES.parse(run("sleep 0.5; " + os_software.PROCESSES.command))
        assert parent.pid in [process.ppid for process in found.of_state("Z")]
    finally:
        parent.kill()
        parent.wait()


CHRONY = (
    "A29FC87B,time.example.com,3,1699999999.1,0.000012,-0.00002,0.0001,-1.2,0.001,0.03,0.02,0.001,64.2,{}\n"
)


def test_time_services() -> None:
    def sync(name: str, said: str) -> os_software.TimeSync:
        return os_software.TIME_SYNC.parse(with_section(name, said))

    assert sync("chronyc", CHRONY.format("Normal")).synchronised
    assert sync("chronyc", CHRONY.format("Normal")).offset == 0.000012
    assert not sync("chronyc", CHRONY.format("Not synchronised")).synchronised
    assert sync("ntpq", "associd=0 status=0615 leap_none, sync_ntp\noffset=-1.5, x=1\n").offset == -0.0015
    assert not sync("ntpq", "associd=0 status=c016 leap_alarm, sync_unspec\n").synchronised
    assert sync("timedatectl", "Timezone=UTC\nNTP=yes\nNTPSynchronized=yes\n").synchronised
    assert not sync("timedatectl", "NTPSynchronized=no\n").synchronised


def test_no_time_service_is_not_available() -> None:
    with pytest.raises(NotAvailable, match="none of chronyc"):
        os_software.TIME_SYNC.parse(with_section("chronyc", "sh: chronyc: not found\n", 127))
    with pytest.raises(NotAvailable, match="bus"):
        os_software.TIME_SYNC.parse(with_section("timedatectl", "Failed to connect to bus\n", 1))


def test_packages_of_this_machine() -> None:
    probe = os_software.packages(["bash", "surely-not-a-package"])
    found = probe.parse(run(probe.command))
    assert found["bash"][0].isdigit()
    assert found["surely-not-a-package"] == ""
    rpm = Answer("x", 1, b"bash\t5.1.8-9.el9\tinstalled\npackage surely-not-a-package is not installed\n")
    assert probe.parse(rpm) == {"bash": "5.1.8-9.el9", "surely-not-a-package": ""}
    with pytest.raises(ProbeError):
        probe.parse(Answer("x", 2, b"dpkg-query: error: database is locked\n"))


def test_services() -> None:
    probe = os_software.services(["munge", "sssd"])
    assert probe.parse(Answer("x", 3, b"active\nfailed\ninactive\ninactive\n")) == {
        "munge": "active",
        "sssd": "failed",
    }
    with pytest.raises(NotAvailable, match="bus"):
        probe.parse(Answer("x", 1, b"", b"Failed to connect to bus: Host is down\n"))


def test_failed_units() -> None:
    said = "\u25cf munge.service loaded failed failed MUNGE\nx.mount loaded failed failed /x\n"
    assert os_software.FAILED_UNITS.parse(Answer("x", 0, said.encode())) == ("munge.service", "x.mount")
    assert os_software.FAILED_UNITS.parse(Answer("x", 0)) == ()
    with pytest.raises(ProbeError, match="hello"):
        os_software.FAILED_UNITS.parse(Answer("x", 0, b"hello from sh\n" + said.encode()))
    with pytest.raises(NotAvailable):
        os_software.FAILED_UNITS.parse(Answer("x", 1, b"", b"Failed to connect to bus"))


def test_sysctls_of_this_machine() -> None:
    names = ["kernel.pid_max", "net.ipv4.ip_local_port_range", "no.such_name"]
    probe = os_software.sysctls(names)
    found = probe.parse(run(probe.command))
    assert found["kernel.pid_max"] == Path("/proc/sys/kernel/pid_max").read_text().strip()
    assert len(found["net.ipv4.ip_local_port_range"].split(" ")) == 2
    assert found["no.such_name"] == ""


def test_a_list_without_names_asks_for_nothing() -> None:
    for probe in (os_software.sysctls([]), os_software.packages([]), os_software.services([])):
        assert probe.parse(run(probe.command)) == {}


@pytest.mark.parametrize("name", ["a;rm -rf x", "$(id)", "-W", "../../etc/shadow", ""])
def test_names_of_the_cluster_file_are_no_shell(name: str) -> None:
    with pytest.raises(ConfigError):
        os_software.packages([name])
    with pytest.raises(ConfigError):
        os_software.sysctls([name])


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


def test_command_output_needs_the_command() -> None:
    probe = os_software.command_output("surely-not-a-command")
    with pytest.raises(NotAvailable):
        probe.parse(run(probe.command))
    assert os_software.command_output("echo a").parse(run("echo a")) == os_software.CommandOutput("a", 0)


def test_a_file_is_written_in_each_scratch_folder_and_removed(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    command = os_storage.WRITES.command.replace("put /tmp", f"put {good}")
    assert command != os_storage.WRITES.command
    found = os_storage.WRITES.parse(run(command.replace("put /dev/shm", f"put {tmp_path}/missing")))
    assert (found["/tmp"], list(good.iterdir())) == ("", [])
    assert found["/dev/shm"].startswith("mktemp: ")
    assert found["/dev/shm"].endswith("No such file or directory")


def test_a_file_that_finds_no_room_is_told_and_removed(tmp_path: Path) -> None:
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
