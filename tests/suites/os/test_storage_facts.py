from __future__ import annotations

import os
from pathlib import Path

import pytest
from os_helpers import answer, of, run, with_tools
from sandbox_helpers import wait_for

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os import storage_facts as facts
from pytest_gpucluster.suites.os.facts import CommandSection, sections
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFiles, SharedFolder, SharedResult


def test_one_df_answers_about_all_paths_and_one_for_each_where_one_fails() -> None:
    probe = facts.disks(["/", "/proc", "/tmp"])
    found = run(probe.command)
    assert list(sections(found)) == ["all"]
    disks, whole = probe.parse(found), os.statvfs("/")
    assert (disks["/"].size, disks["/"].inodes) == (whole.f_blocks * whole.f_frsize, whole.f_files)
    assert disks["/proc"].size == 0
    probe = facts.disks(["/", "/no such 'path"])
    disks = probe.parse(run(probe.command))
    assert disks["/"].size > disks["/"].free > 0
    assert "No such file" in disks["/no such 'path"].problem
    assert not disks["/no such 'path"].hung


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
def test_networked_mounts_are_asked_too_and_a_hung_df_is_killed(tmp_path: Path, *, hangs: bool) -> None:
    """Once each, and not those that nobody could name."""
    path = with_tools(
        tmp_path,
        cat=f'[ $1 = /proc/mounts ] && exec /bin/cat {tmp_path}/mounts; exec /bin/cat "$@"',
        df='case "$2" in /hung) echo $$ >>"$0s"; exec sleep 600;; esac; exec /bin/df "$@"',
    )
    (tmp_path / "mounts").write_text(MOUNTS if hangs else MOUNTS.replace("/hung", "/sys"))
    probe = facts.disks(["/", "/dev"], seconds=3 if hangs else 60)
    disks = probe.parse(run(probe.command, PATH=path))
    assert list(disks) == ["/", "/dev", "/proc", "/hung" if hangs else "/sys"]
    assert [disk.hung for disk in disks.values()] == [False, False, False, hangs]
    for pid in (tmp_path / "dfs").read_text().split() if hangs else ():
        wait_for(lambda pid=pid: not runs(int(pid)), f"process {pid} has ended")  # type: ignore[misc]


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_df_is_asked_where_dev_shm_takes_no_folder(tmp_path: Path) -> None:
    path = with_tools(tmp_path, mktemp='case "$*" in *" /dev/shm/"*) exit 1;; esac\nexec /bin/mktemp "$@"')
    probe = facts.disks(["/"])
    assert probe.parse(run(probe.command, PATH=path, TMPDIR=str(tmp_path / "absent")))["/"].size > 0
    path = with_tools(tmp_path, mktemp="echo 'mktemp: Read-only file system' >&2; exit 1")
    with pytest.raises(NotAvailable, match="Read-only file system"):
        probe.parse(run(probe.command, PATH=path))


def test_df_of_one_path() -> None:
    for section, disk in (
        (CommandSection("x", CommandEnd(None)), Disk(problem="no answer within 8 s", hung=True)),
        (CommandSection("", CommandEnd(1)), Disk(problem="df: exit 1")),
        (CommandSection("a\nb\n", CommandEnd(1)), Disk(problem="b")),
        (CommandSection("d 10 4 6 60% /\nd 20 5 15 25% /\n", CommandEnd(0)), Disk(10240, 6144, 20, 15)),
        (
            CommandSection("Filesystem 1 a\nfs1:/a b 9 4 5 4% /d\nfs1:/a b - - - - /d\n", CommandEnd(0)),
            Disk(9216, 5120),
        ),
    ):
        assert facts.read_disk(section) == disk


def test_df_of_several_paths() -> None:
    text = "d 10 4 -6 60% /a\nd 20 5 15 25% /b\nd 30 1 29 3% /a\nd - - - - /b\n"
    expected = {"/a": Disk(10240, -6144, 30, 29), "/b": Disk(20480, 15360, 0, 0)}
    assert facts.read_disks(["/a", "/b"], text) == expected
    assert facts.read_disks(["/a", "/b"], text)["/a"].source == "d"
    probe = facts.disks(["/a"])
    found = answer(f"\x1ealso\n/b\n\x1e=0\n\x1eall\n{text}\x1e=0\n")
    assert probe.parse(found) == expected
    singly = answer("\x1e/a\nd 1 0 1 0% /\nd 2 0 2 0% /\n\x1e=0\n\x1ealso\n/b\n\x1e=0\n\x1e/b\ngone\n\x1e=1\n")
    assert probe.parse(singly) == {"/a": Disk(1024, 1024, 2, 2), "/b": Disk(problem="gone")}
    for text in ("x 1 2 3 4% /\n", "x 1  3 4% /\nx 1  3 4% /\n"):
        with pytest.raises(ProbeError):
            facts.read_disks(["/"], text)
    with pytest.raises(ProbeError):
        facts.disks(["/", "/x"]).parse(answer("\x1e/\n\x1e=1\n"))


def test_a_file_is_written_in_each_scratch_folder_and_removed(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    command = facts.WRITES.command.replace("put /tmp", f"put {good}")
    assert command != facts.WRITES.command
    found = facts.WRITES.parse(run(command.replace("put /dev/shm", f"put {tmp_path}/missing")))
    assert (found["/tmp"], list(good.iterdir())) == ("", [])
    assert found["/dev/shm"].startswith("mktemp: ")
    assert found["/dev/shm"].endswith("No such file or directory")
    # one that finds no room is reported and removed
    path = with_tools(tmp_path, mktemp="echo /dev/full", rm=f'echo "$@" >>{tmp_path}/removed')
    found = facts.WRITES.parse(run(facts.WRITES.command, PATH=path))
    assert ["No space left on device" in problem for problem in found.values()] == [True, True]
    assert (tmp_path / "removed").read_text() == "-f /dev/full\n" * 2


def test_a_try_to_write_that_does_not_end_says_so() -> None:
    hung = answer("\x1e/tmp\n\x1e=0\n\x1e/dev/shm\n", None, problem="timed out after 30 s")
    assert facts.read_writes(hung) == {"/tmp": "", "/dev/shm": "timed out after 30 s"}
    first = answer("\x1e/tmp\nmktemp: Read-only file system\n\x1e=1\n")
    assert facts.read_writes(first) == {"/tmp": "mktemp: Read-only file system", "/dev/shm": "no answer"}
    for given in (answer(rc=None, problem="gone", lost=True), answer()):
        with pytest.raises(ProbeError):
            facts.read_writes(given)


def test_shared_files_are_written_seen_and_removed(tmp_path: Path) -> None:
    path = with_tools(tmp_path, sleep="exit 0")  # the reader of a file tries for seconds
    good, bad = tmp_path / "it's shared", tmp_path / "absent"
    good.mkdir()
    files = SharedFiles((str(good), str(bad)), "0123abcd")
    written = facts.read_written(run(files.write_command()), files)
    assert written[str(good)] == ""
    assert written[str(bad)]
    seen = facts.read_seen(run(files.read_command(), PATH=path), files)
    assert seen[str(good)] == ""
    assert "No such file" in seen[str(bad)]
    again = facts.read_written(run(files.write_command()), files)
    assert again[str(good)]  # never overwrites
    Path(files.path(str(good))).write_text("old\n")
    assert "old" in facts.read_seen(run(files.read_command(), PATH=path), files)[str(good)]
    assert run(files.remove_command([str(good)])).rc == 0
    assert list(good.iterdir()) == []


def test_what_became_of_each_shared_file() -> None:
    given = "\x1e/a\nt\n\x1e=0\n\x1e/b\n" + "x" * 41 + "\n\x1e=0\n\x1e/c\ncat: gone\n\x1e=1\n\x1e/d\n\x1e=1\n"
    files = SharedFiles(("/a", "/b", "/c", "/d", "/e"), "t")
    seen = {"/a": "", "/b": f"other content: '{'x' * 40}'", "/c": "cat: gone", "/d": "exit 1"}
    assert facts.read_seen(answer(given), files) == {**seen, "/e": "no answer"}
    # a read that was cut off names the folder that hung
    cut = answer(f"{given}\x1e/e\n", None, problem="timed out after 20 s")
    assert facts.read_seen(cut, files) == {**seen, "/e": "timed out after 20 s"}
    two = SharedFiles(("/a", "/b"), "t")
    written = answer("\x1e/a\nfull\n\x1e=1\n\x1e/b\n\x1e=\n", None, problem="timed out")
    assert facts.read_written(written, two) == {"/a": "full", "/b": "timed out"}


def test_the_result_of_a_node_needs_its_answer() -> None:
    files = SharedFiles(("/a",), "t")
    result = SharedResult(files, "n9", {"/a": "full"}, {"n1": of(**{"/a": "t\n"})})
    assert result.on("n1") == {"/a": SharedFolder("n9", "full", "")}
    assert SharedResult(SharedFiles((), "t"), "", {}, {}).on("n1") == {}
    for answers in ({}, {"n1": answer(rc=None, lost=True)}):
        with pytest.raises(NotAvailable):
            SharedResult(files, "n9", {}, answers).on("n1")


class Fleet:
    """Two nodes; notes what they are asked."""

    nodes = ("n1", "n2")

    def __init__(self, *lost: str) -> None:
        self.lost = dict.fromkeys(lost, "gone")
        self.asked: list[tuple[object, ...]] = []

    def ask(self, command: str, *, timeout: float = 0.0) -> dict[str, Answer]:
        self.asked.append((command, timeout))
        return {"n1": of(**{"/a": "t\n"})}

    def ask_node(self, node: str, command: str, *, timeout: float = 0.0, fresh: bool = False) -> Answer:
        self.asked.append((node, command, timeout, fresh))
        return of(**{"/a": ""})


def test_the_first_node_that_is_there_writes_all_read_and_the_writer_removes() -> None:
    files, fleet = SharedFiles(("/a",), "t"), Fleet("n1")
    assert facts.write(Fleet(), files) == ("n1", {"/a": ""})
    assert facts.write(fleet, files) == ("n2", {"/a": ""})
    result = facts.read(fleet, files, "n2", {"/a": "", "/b": "full"})
    assert (list(result.answers), result.writer) == (["n1"], "n2")
    assert result.written == {"/a": "", "/b": "full"}
    facts.remove(fleet, files, "n2", {"/a": "", "/b": "full"})
    assert fleet.asked == [
        ("n2", files.write_command(), 20.0, True),
        (files.read_command(), 20.0),
        ("n2", files.remove_command(["/a"]), 20.0, True),
    ]
