"""The payload itself, as several tasks on one machine and real file systems: this one, a small tmpfs, and what breaks a step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
from sandbox_helpers import free_port
from suite_helpers import cluster_of

from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.kit.payloads.prelude import SECRET, Failure, knock
from pytest_gpucluster.suites.storage import payload
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import PathMount, mounts, quotas
from pytest_gpucluster.suites.storage.payload_rates import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD = Path(payload.__file__)
T = TypeVar("T")
NAME = "gpucluster-storage-0123abcd-1-2-ff"
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)


def start(rank: int, size: int, word: str = "run", path: str = "", **options: Any) -> subprocess.Popen[str]:
    of_run = {"budget": 64 << 20, "files": 30, "max_use": 0.99, "seconds": 0.05, "phase": 100.0}
    given = {**of_run, "address": "127.0.0.1", "cluster": "lab", "jobs": [7], "imports": []} | options
    environment = {"PATH": path, SECRET: "right", payload.FOLDER: NAME, "SLURM_PROCID": str(rank)}
    environment |= {"SLURM_STEP_NUM_TASKS": str(size), "SLURM_JOB_ID": str(os.getpid())}
    environment["SLURMD_NODENAME"] = f"gpu{rank}"
    argv = command(sys.executable, PAYLOAD, word, json.dumps(given))
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(*tasks: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the facts of tasks that end well."""
    found = []
    for task in tasks:
        out, err = task.communicate(timeout=600)
        assert task.returncode == 0, err
        found += [json.loads(line) for line in out.splitlines()]
    return found


def run(size: int, **options: Any) -> list[dict[str, Any]]:
    return told(*[start(rank, size, **options) for rank in range(size)])


def kinds(facts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [fact for fact in facts if fact["storage"] == kind]


def shared(path: Path) -> list[dict[str, str]]:
    return [{"path": str(path), "kind": "shared"}]


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid():
        pytest.skip("only root mounts a file system")
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "small", str(tmp_path)), check=True)
    yield tmp_path
    subprocess.run(("umount", str(tmp_path)), check=True)


@pytest.mark.thorough
def test_three_tasks_measure_and_prove_a_file_system_and_remove_their_folder(tmp_path: Path) -> None:
    facts = run(3, filesystems=shared(tmp_path))
    assert kinds(facts, "problem") == []
    assert len(kinds(facts, "done")) == 3
    assert all(fact["rate"] > 0 for what in ("write", "read") for fact in kinds(facts, what))
    for what in ("write", "read"):  # all three are the fastest one and the two slowest
        measured = {(fact["how"], fact["rank"]) for fact in kinds(facts, what)}
        assert measured == {(how, rank) for how in ("together", "alone") for rank in range(3)}
    assert {fact["writer"] for fact in kinds(facts, "verified") if fact["rank"] == 0} == {1, 2}
    assert all(fact["wrong"] == [] for fact in kinds(facts, "verified"))
    assert all(fact["seconds"] is not None for fact in kinds(facts, "seen"))
    locks = {(fact["state"], fact["problem"]) for fact in kinds(facts, "lock")}
    assert locks == {("held", "held"), ("released", "")}
    assert kinds(facts, "appended")[0]["lost"] == 0
    assert sum(fact["count"] for fact in kinds(facts, "metadata") if fact["what"] == "create") == 30
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_node_without_the_path_has_the_only_problem_and_the_others_continue(tmp_path: Path) -> None:
    """The first task has no access; another one makes the folder."""
    paths = ["absent", "", ""]
    facts = told(*[start(rank, 3, filesystems=shared(tmp_path / it)) for rank, it in enumerate(paths)])
    found = {(fact["rank"], fact["step"], fact["code"]) for fact in kinds(facts, "problem")}
    assert found == {(0, "check the path", "ENOENT")}
    assert {fact["writer"] for fact in kinds(facts, "verified") if fact["rank"] == 1} == {2}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_small_file_system_is_not_filled_and_one_that_runs_full_has_the_error(tmpfs: Path) -> None:
    facts = run(1, filesystems=shared(tmpfs), max_use=0.1)
    assert kinds(facts, "write") == []
    assert kinds(facts, "space")[0]["room"] < 4 << 20
    (tmpfs / "other").write_bytes(bytes(20 << 20))
    facts = run(1, filesystems=shared(tmpfs))
    found = [(fact["step"], fact["code"]) for fact in kinds(facts, "problem")]
    assert found == [("write files with checksums", "ENOSPC")]
    assert [path.name for path in tmpfs.iterdir()] == ["other"]


def test_folders_of_ended_jobs_of_this_user_are_removed_and_no_others(tmp_path: Path) -> None:
    stem = f"{tmp_path}/gpucluster-storage-0123abcd-1-2-"
    ended = {"cluster": "lab", "job": 6}
    markers = dict.fromkeys(("aa", "ad"), ended) | {"bb": {**ended, "job": 7}, "dd": None}
    markers["cc"] = {**ended, "cluster": "other"}
    for word, marker in markers.items():
        Path(stem + word).mkdir()
        if marker:
            Path(stem + word, payload.MARKER).write_text(json.dumps(marker))
    if os.geteuid() == 0:  # only root gives a folder to another user
        os.chown(stem + "ad", 65534, 65534)
    Path(stem + "ee").symlink_to(stem + "aa")
    facts = run(1, filesystems=shared(tmp_path), budget=0, imports=["no_such_module"])
    (found,) = kinds(facts, "imported")
    assert ("no_such_module" in found["problem"], found["code"]) == (True, "failed")
    left = [*(["ad"] if os.geteuid() == 0 else []), "bb", "cc", "dd", "ee"]
    assert kinds(facts, "stale")[0]["removed"] == 6 - len(left)
    assert sorted(path.name[-2:] for path in tmp_path.iterdir()) == left


def test_a_run_that_died_is_cleaned_up_by_the_step_remove(tmp_path: Path) -> None:
    for path in (tmp_path / NAME, tmp_path / f"{NAME}-0"):
        path.mkdir()
    (tmp_path / NAME / "rate-0.0").write_text("data")
    task = start(0, 1, "remove", filesystems=[*shared(tmp_path), {"path": str(tmp_path), "kind": "local"}])
    assert told(task) == []
    assert list(tmp_path.iterdir()) == []


def test_the_fastest_and_the_two_slowest_are_measured_alone() -> None:
    assert payload.fastest_and_slowest([5, 1, 4, None, 2], [5, 4, 4, 4, 2]) == [0, 1, 4]
    assert payload.fastest_and_slowest([1, 2], [1, 2]) == [1, 0]
    assert payload.fastest_and_slowest([None], [None]) == []


def test_a_node_that_is_slow_alone_is_measured_again() -> None:
    def slow(*rates: float | None) -> bool:
        return payload.is_slow(rates, [[5.0, 6.0], rates])

    assert [slow(5.0, 6.0), slow(3.6, 6.0), slow(5.0, None)] == [False] * 3
    assert slow(3.4, 6.0)
    assert slow(None, 4.0)


BLOCKS = [os.urandom(MIB) for _ in range(3)]
SUMS = [hashlib.sha256(block).hexdigest() for block in BLOCKS]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (BLOCKS[1], {}),
        (BLOCKS[0], {1: True}),
        (bytes(MIB), {1: False}),
        (BLOCKS[1][:4096] + bytes(4096) + BLOCKS[1][8192:], {1: False}),
        (BLOCKS[1][:-512] + bytes(512), {1: False}),
        (BLOCKS[1][:-1] + bytes([BLOCKS[1][-1] ^ 1]), {1: True}),
    ],
    ids=["right", "other", "zeros", "zeros within", "zeros at its end", "one bit"],
)
def test_a_wrong_block_is_found_by_its_number_and_zeros_are_bytes_that_have_not_arrived(
    second: bytes, found: dict[int, bool], tmp_path: Path
) -> None:
    path = tmp_path / "sum-0"
    path.write_bytes(BLOCKS[0] + second + BLOCKS[2])
    assert payload.wrong_blocks(str(path), SUMS) == found
    path.write_bytes(b"".join(BLOCKS)[:-1])
    assert payload.wrong_blocks(str(path), SUMS) == {2: False}, "it is too short"
    path.write_bytes(BLOCKS[0])
    assert payload.wrong_blocks(str(path), SUMS) == {1: False, 2: False}


System = tuple[Any, list[dict[str, Any]], pytest.MonkeyPatch]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    """The shared file system of one task among two, with its folder, and what it reports."""
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(payload, "report", lambda kind, **facts: reported.append({"storage": kind, **facts}))
    monkeypatch.setenv(payload.FOLDER, NAME)
    group = payload.Communicator(0, 1, "", 0, 1.0)
    group.size = 2
    options = {"seconds": 0.05, "engine": "python", "budget": 1 << 40, "max_use": 0.9, "files": 4}
    watch: Any = None
    made = payload.FileSystemSteps({"path": str(tmp_path), "kind": "shared"}, options, group, watch)
    made.ring = [0, 1]
    Path(made.folder).mkdir()
    return made, reported, monkeypatch


def test_a_node_may_write_its_share_of_half_of_what_is_free_below_the_limit(system: System) -> None:
    made, reported, patch = system
    free = [300]
    patch.setattr(os, "statvfs", lambda _: os.statvfs_result((0, MIB, 1000, 0, free[0], 50, 0, 40, 0, 0)))
    assert made.space() == 48 * MIB  # of 200 MiB, in whole blocks of four threads
    (fact,) = reported
    assert abs(fact["room"] - 200 * MIB) < 2
    assert (fact["free"], fact["size"]) == (300 * MIB, 1000 * MIB)
    assert (fact["inodes"], fact["inodes_free"]) == (50, 40)
    made.options = {**made.options, "budget": 20 * MIB}
    assert made.space() == 8 * MIB
    free[0] = 90
    assert (made.space(), reported[-1]["room"]) == (0, 0)


def test_a_folder_that_is_not_seen_in_time_is_an_error(system: System) -> None:
    made, _, patch = system
    patch.setattr(payload, "SEEN", 0.02)
    assert made.see_folder([True, True])
    Path(made.folder).rmdir()
    with pytest.raises(Failure, match=r"is not seen here within 0.02 s"):
        made.see_folder([True, True])
    with pytest.raises(Failure, match="2 nodes in turn could not create a folder there"):
        made.see_folder([None, True])
    made.shared = False
    with pytest.raises(payload.Skipped):
        made.see_folder([None, True])


def test_a_disk_that_takes_less_than_a_block_in_time_has_no_rate(system: System) -> None:
    made, _, patch = system
    made.volume = 4 * MIB
    assert made.write("together") > 0
    patch.setattr(payload, "sequential_rate", lambda *_: {"rate": 1.0})
    assert made.write("together") == 1.0
    os.truncate(made.name("rate") + ".3", MIB - 1)
    with pytest.raises(Failure, match="less than 1 MiB"):
        made.write("together")


def test_a_lock_that_its_holder_could_not_take_is_not_tried_and_others_have_reasons(system: System) -> None:
    made, reported, patch = system

    def no_locks(_file: Any, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    patch.setitem(payload.LOCKS, "fcntl", no_locks)
    problems = made.hold()
    assert problems["flock"] == ""
    assert "No locks available" in problems["fcntl"]
    made.ring = [0]
    assert made.try_locks("held", [problems])
    assert [(fact["lock"], fact["problem"]) for fact in reported[1:]] == [("flock", "held")]
    threading.Timer(0.1, made.release).start()  # as the server of a FUSE client: after the close
    assert made.try_locks("released", [problems])
    assert reported[-1]["problem"] == ""


def test_a_change_is_seen_when_its_content_is_that_of_the_writer(system: System) -> None:
    made, reported, patch = system
    patch.setattr(payload, "SEEN", 0.02)
    Path(made.name("seen", 1)).write_text("old")
    assert made.see("overwrite", [None, "new"])
    Path(made.name("seen", 1)).write_text("new")
    assert made.see("overwrite", [None, "new"])
    assert made.see("rename", [None, "new"])
    Path(made.name("seen", 1)).rename(made.name("renamed", 1))
    assert made.see("rename", [None, "new"])
    seen = [(fact["change"], fact["seconds"] is not None) for fact in reported]
    assert seen == [("overwrite", False), ("overwrite", True), ("rename", False), ("rename", True)]
    first, second = made.change("create"), made.change("overwrite")
    assert len(second) > len(first)  # NFS 3 sees no change of one size within a tick of the server's clock
    assert second == made.change("rename") == Path(made.name("renamed")).read_text()


def test_random_reads_are_of_another_file_than_random_writes(system: System) -> None:
    """A file lies on few targets of a server: a slow one must not look like a slow node."""
    made, _, patch = system
    stems: list[str] = []

    def rate(_engine: str, _what: str, stem: str, _seconds: float) -> dict[str, Any]:
        stems.append(stem)
        return {}

    patch.setattr(payload, "random_rate", rate)
    assert made.random("read", [9.0, 9.0])
    assert made.random("write", [9.0, 9.0])
    assert stems == [made.name("rate", 1 - made.rank), made.name("rate")]


def test_the_small_files_of_a_slow_node_are_read_by_no_other_if_there_are_more(system: System) -> None:
    made, _, _ = system
    for writes, source in (
        ([9.0, 9.0, 9.0, 9.0], 1),
        ([9.0, 1.0, 9.0, 9.0], 2),
        ([9.0, None, 1.0, 8.0], 3),
        ([9.0, 1.0, None, None], 1),
    ):
        made.ring = [rank for rank, rate in enumerate(writes) if rate is not None]
        assert made.source(writes) == source


@pytest.mark.parametrize(
    ("made", "seen", "tries", "ring"),
    [
        ([True, None], [None, True], 1, [1]),
        ([None, True], [True, True], 2, [0, 1]),
        ([None, None], [None, None], 2, []),
    ],
)
def test_nodes_in_turn_make_the_folder_and_who_does_not_see_it_takes_part_in_its_removal_alone(
    system: System, made: list[Any], seen: list[Any], tries: int, ring: list[int]
) -> None:
    one, _, patch = system
    rings, answers = list[tuple[str, list[int]]](), {"make the folder": made, "see the folder": seen}

    def step(name: str, *_: Any) -> list[Any]:
        rings.append((name, list(one.ring)))
        return answers.get(name, [True, True])

    patch.setattr(one, "step", step)
    patch.setattr(one, "rates", lambda: None)
    one.run()
    assert [name for name, _ in rings].count("make the folder") == tries
    assert dict(rings)["make the folder"] == [0, 1]
    assert dict(rings)["space"] == dict(rings)["verify checksums"] == ring
    assert rings[-1] == ("remove the folder", [0])


def test_a_task_that_is_stopped_removes_its_folder(tmp_path: Path) -> None:
    task = start(0, 1, filesystems=shared(tmp_path), seconds=600.0, budget=0, files=10**9)
    assert payload.wait_until((tmp_path / NAME / payload.MARKER).is_file, 600.0) is not None
    task.terminate()
    task.communicate(timeout=600)
    assert task.returncode > 0
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_stopped_while_it_makes_its_folder_removes_it_too(system: System) -> None:
    made, _, patch = system
    steps = []

    def step(name: str, *_: Any) -> list[Any]:
        steps.append(name)
        if name == "make the folder":
            raise SystemExit(143)
        return [True, True]

    patch.setattr(made, "step", step)
    with pytest.raises(SystemExit):
        made.run()
    assert steps[-1] == "remove the folder"


class Entered:
    """A watch that notes the phases."""

    def __init__(self) -> None:
        self.phases: list[tuple[Any, ...]] = []

    def enter(self, *words: Any) -> None:
        self.phases.append(words)


def test_a_step_names_its_path_to_the_watch_and_what_failed_is_reported(system: System) -> None:
    made, reported, _ = system
    watch = Entered()
    made.watch = watch
    made.group.exchange = lambda value: [value, "other"]

    def fails() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert made.step("read", lambda value: value + 1, 4) == [5, "other"]
    assert made.step("write", fails) == [None, "other"]
    assert watch.phases[:2] == [(f"{made.path}: read",), (f"{made.path}: wait for the others after: read", 3.0)]
    (fact,) = reported
    assert (fact["step"], fact["reason"], fact["code"]) == ("write", "Input/output error", "EIO")
    made.ring = [1]
    assert made.step("read", fails) == [None, "other"]
    assert len(reported) == 1


def test_tasks_that_send_nothing_cost_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "right")
    port = free_port()
    ends: list[socket.socket] = []

    def connect() -> None:
        for rank in (1, 2):
            while len(ends) < rank:
                with contextlib.suppress(OSError):
                    ends.append(socket.create_connection(("127.0.0.1", port)))
            knock(ends[-1], rank)

    thread = threading.Thread(target=connect)
    thread.start()
    group = payload.Communicator(0, 3, "", port, 600.0)
    thread.join()
    assert sorted(group.links) == [1, 2]
    assert group.exchange("mine", 0.4) == ["mine", None, None]
    assert group.links == {}, "the next exchange waits for neither"
    for end in ends:
        end.close()


@pytest.mark.thorough
def test_a_node_that_is_left_alone_has_no_one_to_lock_against_or_to_see(tmp_path: Path) -> None:
    """Its own lock would be refused by no server, and its own file is always seen."""
    paths = ["", "absent"]
    facts = told(*[start(rank, 2, filesystems=shared(tmp_path / it)) for rank, it in enumerate(paths)])
    assert not kinds(facts, "lock") + kinds(facts, "locked") + kinds(facts, "seen")
    assert kinds(facts, "verified")


@pytest.mark.thorough
def test_fio_measures_only_where_every_node_has_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fio").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "fio").chmod(0o755)
    paths = (str(tmp_path / "bin"), "")
    facts = told(*[start(rank, 2, path=it, filesystems=shared(tmp_path)) for rank, it in enumerate(paths)])
    assert kinds(facts, "problem") == []
    assert {fact["engine"] for fact in kinds(facts, "write")} == {"python"}


def test_records_that_are_missing_are_counted(system: System) -> None:
    made, reported, _ = system
    made.append_records()
    assert made.count_records([True, None])
    assert made.count_records([True, True])  # the other node's are not there
    made.append_records()  # as of a node that writes at its own end of the file
    assert [(fact["records"], fact["lost"]) for fact in reported] == [(100, 0), (200, 100)]
    assert len((Path(made.folder) / "appended").read_bytes()) == 2 * 100 * 64


def test_a_stale_handle_is_a_file_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert payload.text_in(str(tmp_path / "absent")) == ""
    (tmp_path / "file").write_text("text")
    assert payload.text_in(str(tmp_path / "file")) == "text"

    def raise_(number: int) -> Any:
        def opened(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        return opened

    monkeypatch.setattr(payload, "open", raise_(errno.ESTALE), raising=False)
    assert payload.text_in("file") == ""
    monkeypatch.setattr(payload, "open", raise_(errno.EIO), raising=False)
    with pytest.raises(OSError, match="Input/output error"):
        payload.text_in("file")


@pytest.mark.parametrize(
    ("readings", "other"),
    [
        ([{1: True, 2: True}, {2: True}], [2]),
        ([{1: True}, {}], []),
        ([{1: False}, {1: True}], []),
        ([{1: True}, {1: False}], []),
        ([{1: True}, {2: True}], []),
        ([{}], []),
    ],
)
def test_only_whole_blocks_of_other_bytes_in_both_readings_count_and_the_second_is_not_from_the_cache(
    readings: list[dict[int, bool]], other: list[int], system: System
) -> None:
    made, reported, patch = system
    asked: list[Any] = []

    def read(path: str, _sums: list[str], **given: Any) -> dict[int, bool]:
        asked.append((path, given))
        return readings[len(asked) - 1]

    patch.setattr(payload, "wrong_blocks", read)
    assert made.verify(1, [None, SUMS])
    again = list(readings[1]) if len(readings) > 1 else []
    assert [reported[0][it] for it in ("wrong", "again", "other")] == [list(readings[0]), again, other]
    path = made.name("sum", 1)
    assert asked == [(path, {}), (path, {"cached": False})][: len(readings)]


class Disk(NamedTuple):
    """An ext4 in a file."""

    path: Path
    image: Path


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Disk]:
    """An ext4 of 256 MiB on a loop device."""
    disk = Disk(tmp_path / "mounted", tmp_path / "image")
    disk.path.mkdir()
    disk.image.touch()
    os.truncate(disk.image, 256 * MIB)
    mount = ("mount", "-o", "loop", str(disk.image), str(disk.path))
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root mounts a file system, which mkfs.ext4 makes")
    subprocess.run(("mkfs.ext4", "-q", "-F", str(disk.image)), check=True)
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no loop device can be mounted here")
    disk.path.chmod(0o700)
    yield disk
    subprocess.run(("umount", str(disk.path)), check=True)


def mount_of(path: Path) -> PathMount:
    """Return the mount that mounts.sh shows of a path of this machine; its user has no quota there."""
    section = StorageConfig.model_validate({"filesystems": [{"path": str(path)}]})
    cluster = cluster_of(storage=section)

    def asked(probe: Probe[dict[str, T]]) -> dict[str, T]:
        done = subprocess.run(("sh", "-c", probe.command), capture_output=True, check=False)
        return probe.parse(Answer("gpu01", done.returncode, done.stdout, done.stderr))

    assert asked(quotas(cluster)) == {}
    return asked(mounts(cluster))[str(path)]


@pytest.mark.thorough
def test_the_second_reading_is_that_of_the_disk_and_not_of_the_page_cache(ext4: Disk) -> None:
    path = ext4.path / "sum-0"
    with path.open("wb") as file:
        file.write(b"".join(BLOCKS))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    at = ext4.image.read_bytes().index(BLOCKS[1][:4096])
    with ext4.image.open("r+b", 0) as disk:
        os.pwrite(disk.fileno(), bytes([BLOCKS[1][0] ^ 1]), at)
        assert payload.wrong_blocks(str(path), SUMS) == {1: True}
        os.pwrite(disk.fileno(), BLOCKS[1][:1], at)
    assert payload.wrong_blocks(str(path), SUMS) == {1: True}  # still in the cache
    assert payload.wrong_blocks(str(path), SUMS, cached=False) == {}


def test_the_mount_of_a_link_is_that_of_the_place_to_which_it_leads(ext4: Disk, tmp_path: Path) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(ext4.path)
    assert mount_of(link) == mount_of(ext4.path)
    link.unlink()
    assert mount_of(link).point != str(ext4.path)


def test_an_ext4_that_was_shut_down_has_its_error(ext4: Disk) -> None:
    with (ext4.path / "file").open("w") as file:
        fcntl.ioctl(file, _SHUTDOWN, struct.pack("I", 2))  # without writing what is in memory
    facts = run(1, filesystems=[{"path": str(ext4.path), "kind": "local"}])
    assert {fact["code"] for fact in kinds(facts, "problem")} == {"EIO"}
    assert len(kinds(facts, "done")) == 1
    assert kinds(facts, "write") == kinds(facts, "verified") == []
