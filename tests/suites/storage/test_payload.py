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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
from framework_helpers import imported

from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.kit.payloads.prelude import Failure
from pytest_gpucluster.suites.storage import payload
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import Mount, mounts, quotas
from pytest_gpucluster.suites.storage.payload_rates import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD = Path(payload.__file__)
T = TypeVar("T")
NAME = "gpucluster-storage-0123abcd-1-2-ff"
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)
SUITE = PAYLOAD.parent


def start(
    rank: int, size: int, word: str = "run", token: str = "right", path: str = "", **options: Any
) -> subprocess.Popen[str]:
    given = {
        "budget": 64 << 20, "files": 30, "max_use": 0.99, "imports": [], "seconds": 0.05, "phase": 10.0,
        "address": "127.0.0.1", "cluster": "lab", "jobs": [7], **options,
    }  # fmt: skip
    environment = {
        "PATH": path, payload.TOKEN: token, payload.FOLDER: NAME, "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_PROCID": str(rank), "SLURM_JOB_ID": str(os.getpid()), "SLURMD_NODENAME": f"gpu{rank}",
    }  # fmt: skip
    argv = command(sys.executable, PAYLOAD, word, json.dumps(given))
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(size: int, **options: Any) -> list[dict[str, Any]]:
    """Run all tasks; return their facts."""
    found = []
    for task in [start(rank, size, **options) for rank in range(size)]:
        out, err = task.communicate(timeout=60)
        assert task.returncode == 0, err
        found += [json.loads(line) for line in out.splitlines()]
    return found


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
    for what in (
        "write",
        "read",
    ):  # all three are the fastest one and the two slowest; a slow one is measured twice
        ranks = {
            how: sorted({fact["rank"] for fact in kinds(facts, what) if fact["how"] == how})
            for how in ("together", "alone")
        }
        assert ranks == {"together": [0, 1, 2], "alone": [0, 1, 2]}
    assert {fact["writer"] for fact in kinds(facts, "verified") if fact["rank"] == 0} == {1, 2}
    assert all(fact["wrong"] == [] for fact in kinds(facts, "verified"))
    assert all(fact["seconds"] is not None for fact in kinds(facts, "seen"))
    assert {(fact["state"], fact["problem"]) for fact in kinds(facts, "lock")} == {
        ("held", "held"),
        ("released", ""),
    }
    assert kinds(facts, "appended")[0]["lost"] == 0
    assert sum(fact["count"] for fact in kinds(facts, "metadata") if fact["what"] == "create") == 30
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_the_path_has_the_only_problem_and_the_others_continue(tmp_path: Path) -> None:
    """The first task has no access; another one makes the folder."""
    options: list[dict[str, Any]] = [
        {"filesystems": shared(tmp_path / ("" if rank else "absent"))} for rank in range(3)
    ]
    facts = []
    for task in [start(rank, 3, **options[rank]) for rank in range(3)]:
        facts += [json.loads(line) for line in task.communicate(timeout=60)[0].splitlines()]
    assert {(fact["rank"], fact["step"], fact["code"]) for fact in kinds(facts, "problem")} == {
        (0, "check the path", "ENOENT")
    }
    assert {fact["writer"] for fact in kinds(facts, "verified") if fact["rank"] == 1} == {2}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("read_only", "problems"),
    [
        ([0], [(0, "make the folder", "EROFS")]),
        (
            [0, 1, 2, 3],
            [(n, "make the folder", "EROFS") for n in range(3)]
            + [(n, "see the folder", "unmade") for n in range(4)],
        ),
    ],
)
def test_where_one_node_cannot_make_the_folder_another_does_and_where_none_can_all_nodes_have_the_problem(
    tmpfs: Path, read_only: list[int], problems: list[tuple[int, str, str]]
) -> None:
    usual, locked = tmpfs / "usual", tmpfs / "locked"
    usual.mkdir()
    locked.mkdir()
    subprocess.run(("mount", "-o", "bind,ro", str(usual), str(locked)), check=True)
    subprocess.run(("mount", "-o", "remount,bind,ro", str(locked)), check=True)
    try:
        tasks = [start(n, 4, filesystems=shared(locked if n in read_only else usual)) for n in range(4)]
        facts = [json.loads(line) for task in tasks for line in task.communicate(timeout=60)[0].splitlines()]
    finally:
        subprocess.run(("umount", str(locked)), check=True)
    found = [(fact["rank"], fact["step"], fact["code"]) for fact in kinds(facts, "problem")]
    first = [it for it in found if it[1] in ("make the folder", "see the folder")]
    assert sorted(first, key=lambda it: it[1]) == problems
    assert {fact["rank"] for fact in kinds(facts, "verified")} >= {1, 2, 3} - set(read_only)


def test_a_small_file_system_is_not_filled_and_one_that_runs_full_has_the_error(tmpfs: Path) -> None:
    facts = run(1, filesystems=shared(tmpfs), max_use=0.1)
    assert kinds(facts, "write") == []
    assert kinds(facts, "space")[0]["room"] < 4 << 20
    (tmpfs / "other").write_bytes(bytes(20 << 20))
    facts = run(1, filesystems=shared(tmpfs))
    assert [(fact["step"], fact["code"]) for fact in kinds(facts, "problem")] == [
        ("write files with checksums", "ENOSPC")
    ]
    assert [path.name for path in tmpfs.iterdir()] == ["other"]


def test_folders_of_ended_jobs_of_this_user_are_removed_and_no_others(tmp_path: Path) -> None:
    stem = "gpucluster-storage-0123abcd-1-2-"
    for word, marker in (
        ("aa", {"cluster": "lab", "job": 6}),
        ("bb", {"cluster": "lab", "job": 7}),
        ("cc", {"cluster": "other", "job": 6}),
        ("dd", None),
    ):
        (tmp_path / (stem + word)).mkdir()
        if marker:
            (tmp_path / (stem + word) / payload.MARKER).write_text(json.dumps(marker))
    (tmp_path / (stem + "ee")).symlink_to(tmp_path / (stem + "aa"))
    facts = run(1, filesystems=shared(tmp_path), budget=0)
    assert kinds(facts, "stale")[0]["removed"] == 1
    assert sorted(path.name[-2:] for path in tmp_path.iterdir()) == ["bb", "cc", "dd", "ee"]


def test_a_run_that_died_is_cleaned_up_by_the_step_remove(tmp_path: Path) -> None:
    for path in (tmp_path / NAME, tmp_path / f"{NAME}-0"):
        path.mkdir()
    (tmp_path / NAME / "rate-0.0").write_text("data")
    task = start(0, 1, "remove", filesystems=[*shared(tmp_path), {"path": str(tmp_path), "kind": "local"}])
    assert task.wait(30) == 0
    task.communicate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_task_without_the_token_takes_no_part(tmp_path: Path) -> None:
    first = start(0, 2, filesystems=shared(tmp_path), phase=2.0)
    other = start(1, 2, token="wrong", filesystems=shared(tmp_path), phase=2.0)
    out, _ = first.communicate(timeout=60)
    refused, _ = other.communicate(timeout=60)
    assert [fact["rank"] for fact in kinds([json.loads(line) for line in out.splitlines()], "done")] == [0]
    assert "unconnected" in refused


def test_a_module_that_is_missing_is_reported(tmp_path: Path) -> None:
    (fact,) = kinds(run(1, filesystems=shared(tmp_path), imports=["no_such_module"], budget=0), "imported")
    assert "no_such_module" in fact["problem"]


def test_the_fastest_and_the_two_slowest_are_measured_alone() -> None:
    assert payload.fastest_and_slowest([5, 1, 4, None, 2], [5, 4, 4, 4, 2]) == [0, 1, 4]
    assert payload.fastest_and_slowest([1, 2], [1, 2]) == [1, 0]
    assert payload.fastest_and_slowest([None], [None]) == []


@pytest.mark.parametrize(
    ("rates", "slow"),
    [([5.0, 6.0], False), ([3.6, 6.0], False), ([3.4, 6.0], True), ([5.0, None], False), ([None, 4.0], True)],
)
def test_a_node_that_is_slow_alone_is_measured_again(rates: list[float | None], *, slow: bool) -> None:
    assert payload.is_slow(rates, [[5.0, 6.0], rates]) is slow


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


def test_a_file_that_is_too_short_has_blocks_that_have_not_arrived(tmp_path: Path) -> None:
    path = tmp_path / "sum-0"
    path.write_bytes(b"".join(BLOCKS)[:-1])
    assert payload.wrong_blocks(str(path), SUMS) == {2: False}
    path.write_bytes(BLOCKS[0])
    assert payload.wrong_blocks(str(path), SUMS) == {1: False, 2: False}


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The shared file system of one task among two, with its folder, and what it reports."""
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(payload, "report", lambda kind, **facts: reported.append({"storage": kind, **facts}))
    monkeypatch.setenv(payload.FOLDER, NAME)
    group: Any = SimpleNamespace(rank=0, size=2, seconds=1.0)
    options = {"seconds": 0.05, "engine": "python", "budget": 1 << 40, "max_use": 0.9, "files": 4}
    watch: Any = None
    made = payload.FileSystem({"path": str(tmp_path), "kind": "shared"}, options, group, watch)
    made.ring = [0, 1]
    Path(made.folder).mkdir()
    return made, reported


def test_a_node_may_write_its_share_of_half_of_what_is_free_below_the_limit(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reported = system
    sizes = {"f_bavail": 300, "f_blocks": 1000, "f_frsize": MIB, "f_files": 50, "f_favail": 40}
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**sizes))
    assert made.space() == 48 * MIB  # of 200 MiB, in whole blocks of four threads
    (fact,) = reported
    assert abs(fact.pop("room") - 200 * MIB) < 2
    assert fact == {
        "storage": "space", "path": made.path, "free": 300 * MIB, "size": 1000 * MIB,
        "inodes": 50, "inodes_free": 40,
    }  # fmt: skip
    made.options = {**made.options, "budget": 20 * MIB}
    assert made.space() == 8 * MIB
    sizes["f_bavail"] = 90
    assert made.space() == 0
    assert reported[-1]["room"] == 0


def test_a_folder_that_is_not_seen_in_time_is_an_error(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = system
    monkeypatch.setattr(payload, "SEEN", 0.02)
    assert made.see_folder([True, True])
    Path(made.folder).rmdir()
    with pytest.raises(Failure, match=r"is not seen here within 0.02 s"):
        made.see_folder([True, True])
    with pytest.raises(Failure, match="2 nodes in turn could not create a folder there"):
        made.see_folder([None, True])
    made.shared = False
    with pytest.raises(payload.Skipped):
        made.see_folder([None, True])


def test_a_disk_that_takes_less_than_a_block_in_time_has_no_rate(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = system
    made.volume = 4 * MIB
    assert made.write("together") > 0
    monkeypatch.setattr(payload, "sequential_rate", lambda *_: {"rate": 1.0})
    assert made.write("together") == 1.0
    os.truncate(made.name("rate") + ".3", MIB - 1)
    with pytest.raises(Failure, match="less than 1 MiB"):
        made.write("together")


def test_files_of_the_next_node_are_read_and_listed(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reported = system
    stems = []

    def rate(_engine: str, what: str, stem: str, *_: Any) -> dict[str, Any]:
        stems.append((what, stem))
        return {"rate": 3.0}

    monkeypatch.setattr(payload, "sequential_rate", rate)
    assert made.read("together", [1.0, 2.0]) == 3.0
    assert stems == [("read", made.name("rate", 1))]
    Path(made.name("many", 1)).mkdir()
    for name in ("0", "1", "2"):
        Path(made.name("many", 1), name).touch()
    assert made.listed([9, 4])
    assert made.stat([9, 2])
    assert [(fact.get("what", fact["storage"]), fact.get("count"), fact.get("seen"), fact.get("made")) for fact in reported[1:]] == [
        ("list", 3, None, None), ("listed", None, 3, 4), ("stat", 2, None, None),
    ]  # fmt: skip


def test_files_are_created_as_the_share_of_each_node_and_as_long_as_there_is_time(
    system: tuple[Any, list[dict[str, Any]]],
) -> None:
    made, reported = system
    made.options = {**made.options, "files": 5}
    assert made.create() == 3
    made.unlink()
    made.options = {**made.options, "files": 10**9}
    count = made.create()
    assert 0 < count < 10**8
    made.seconds = 0.0
    assert made.stat([None, count]) is True  # of the next node: no time is left
    assert [(fact["what"], fact["count"]) for fact in reported] == [
        ("create", 3), ("remove", 3), ("create", count), ("stat", 0),
    ]  # fmt: skip


def test_the_next_node_is_one_that_took_the_step_before(system: tuple[Any, list[dict[str, Any]]]) -> None:
    made, _ = system
    made.ring = [0, 2, 3]
    assert (made.after([1, 1, 1, 1]), made.after([1, 1, 1, 1], 2)) == (2, 3)
    assert made.after([1, 1, None, 1]) == 3
    with pytest.raises(payload.Skipped):
        made.after([1, 1, None, 1], 2)
    made.ring = [0]
    assert made.after([1]) == 0
    with pytest.raises(payload.Skipped):
        made.after([None])


def test_a_lock_that_its_holder_could_not_take_is_not_tried_and_other_errors_have_their_reason(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reported = system

    def no_locks(_file: Any, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setitem(payload.LOCKS, "fcntl", no_locks)
    problems = made.hold()
    assert problems["flock"] == ""
    assert "No locks available" in problems["fcntl"]
    made.ring = [0]
    assert made.try_locks("held", [problems])
    assert [(fact["lock"], fact["problem"]) for fact in reported[1:]] == [("flock", "held")]
    made.release()
    assert made.try_locks("released", [problems])
    assert reported[-1]["problem"] == ""


def test_a_change_is_seen_when_its_content_is_that_of_the_writer(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reported = system
    monkeypatch.setattr(payload, "SEEN", 0.02)
    Path(made.name("seen", 1)).write_text("old")
    assert made.see("overwrite", [None, "new"])
    Path(made.name("seen", 1)).write_text("new")
    assert made.see("overwrite", [None, "new"])
    assert made.see("rename", [None, "new"])
    Path(made.name("seen", 1)).rename(made.name("renamed", 1))
    assert made.see("rename", [None, "new"])
    assert [(fact["change"], fact["seconds"] is not None) for fact in reported] == [
        ("overwrite", False), ("overwrite", True), ("rename", False), ("rename", True),
    ]  # fmt: skip
    first, second = made.change("create"), made.change("overwrite")
    assert len(second) > len(
        first
    )  # NFS 3 does not see a change of the same size within a tick of the server's clock
    assert second == made.change("rename") == Path(made.name("renamed")).read_text()


def test_random_reads_are_of_another_file_than_random_writes(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file lies on few targets of a server: a slow one must not look like a slow node."""
    made, _ = system
    stems: list[str] = []

    def rate(_engine: str, _what: str, stem: str, _seconds: float) -> dict[str, Any]:
        stems.append(stem)
        return {}

    monkeypatch.setattr(payload, "random_rate", rate)
    assert made.random("read", [9.0, 9.0])
    assert made.random("write", [9.0, 9.0])
    assert stems == [made.name("rate", 1 - made.rank), made.name("rate")]


@pytest.mark.parametrize(
    ("writes", "source"),
    [
        ([9.0, 9.0, 9.0, 9.0], 1),
        ([9.0, 1.0, 9.0, 9.0], 2),
        ([9.0, None, 1.0, 8.0], 3),
        ([9.0, 1.0, None, None], 1),
    ],
)
def test_the_small_files_of_a_slow_node_are_read_by_no_other_if_there_are_more(
    system: tuple[Any, list[dict[str, Any]]], writes: list[float | None], source: int
) -> None:
    made, _ = system
    made.ring = [rank for rank, rate in enumerate(writes) if rate is not None]
    assert made.source(writes) == source


def test_rates_are_measured_together_then_alone_and_leave_room_for_the_next_steps(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = system
    steps = []

    def step(name: str, _work: Any, *values: Any) -> list[float]:
        steps.append((name, values[0] if values else None))
        return [2.0, 1.0]

    monkeypatch.setattr(made, "step", step)
    made.rates()
    assert steps == [
        ("write", "together"), ("read", "together"), ("write alone", 0), ("read alone", 0), ("write alone", 1), ("read alone", 1),
        ("write alone", 1), ("read alone", 1),  # it was slow: again
        ("random read", "read"), ("random write", "write"), ("fsync", None), ("remove the files", None),
    ]  # fmt: skip
    for job in range(4):
        Path(f"{made.name('rate')}.{job}").touch()
    made.remove_files()
    assert list(Path(made.folder).iterdir()) == []


def test_a_task_that_does_not_see_its_folder_takes_part_in_nothing_but_the_removal(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = system
    rings = {}

    def step(name: str, *_: Any) -> list[Any]:
        rings[name] = list(made.ring)
        return [None, True] if name == "see the folder" else [True, True]

    monkeypatch.setattr(made, "step", step)
    monkeypatch.setattr(made, "rates", lambda: None)
    made.run()
    assert rings["make the folder"] == [0, 1]
    assert rings["space"] == rings["verify checksums"] == [1]
    assert rings["remove the folder"] == [0]


def test_a_task_that_is_stopped_removes_its_folder(tmp_path: Path) -> None:
    task = start(0, 1, filesystems=shared(tmp_path), seconds=20.0, budget=0, files=10**9)
    assert payload.wait_until((tmp_path / NAME / payload.MARKER).is_file, 20.0) is not None
    task.terminate()
    task.communicate(timeout=20)
    assert task.returncode > 0
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_stopped_while_it_makes_its_folder_removes_it_too(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = system
    steps = []

    def step(name: str, *_: Any) -> list[Any]:
        steps.append(name)
        if name == "make the folder":
            raise SystemExit(143)
        return [True, True]

    monkeypatch.setattr(made, "step", step)
    with pytest.raises(SystemExit):
        made.run()
    assert steps[-1] == "remove the folder"


def test_a_step_names_its_path_to_the_watch_and_what_failed_is_reported(
    system: tuple[Any, list[dict[str, Any]]],
) -> None:
    made, reported = system
    phases: list[tuple[Any, ...]] = []
    made.watch = SimpleNamespace(enter=lambda *words: phases.append(words))
    made.group.exchange = lambda value: [value, "other"]

    def fails() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert made.step("read", lambda value: value + 1, 4) == [5, "other"]
    assert made.step("write", fails) == [None, "other"]
    assert phases[:2] == [
        (f"{made.path}: read",),
        (f"{made.path}: wait for the others after: read", 3.0),
    ]
    (fact,) = reported
    assert (fact["step"], fact["reason"], fact["code"]) == ("write", "Input/output error", "EIO")
    made.ring = [1]
    assert made.step("read", fails) == [None, "other"]
    assert len(reported) == 1


def test_tasks_that_send_nothing_cost_the_time_of_one_and_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(payload.TOKEN, "right")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends: list[socket.socket] = []

    def connect() -> None:
        for rank in (1, 2):
            while len(ends) < rank:
                with contextlib.suppress(OSError):
                    ends.append(socket.create_connection(("127.0.0.1", port)))
            ends[-1].sendall(json.dumps({"token": "right", "rank": rank}).encode() + b"\n")

    thread = threading.Thread(target=connect)
    thread.start()
    group = payload.Group(0, 3, "", port, 5.0)
    thread.join()
    assert group.exchange("mine", 0.4) == ["mine", None, None]
    assert group.links == {}, "the next exchange waits for neither"
    for end in ends:
        end.close()


def test_fio_measures_only_where_every_node_has_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fio").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "fio").chmod(0o755)
    first = start(0, 2, path=str(tmp_path / "bin"), filesystems=shared(tmp_path))
    facts = []
    for task in (first, start(1, 2, filesystems=shared(tmp_path))):
        facts += [json.loads(line) for line in task.communicate(timeout=60)[0].splitlines()]
    assert kinds(facts, "problem") == []
    assert {fact["engine"] for fact in kinds(facts, "write")} == {"python"}


def test_records_that_are_missing_are_counted(system: tuple[Any, list[dict[str, Any]]]) -> None:
    made, reported = system
    made.append_records()
    assert made.count_records([True, None])
    assert made.count_records([True, True])  # the other node's are not there
    made.append_records()  # as of a node that writes at its own end of the file
    assert [(fact["records"], fact["lost"]) for fact in reported] == [(100, 0), (200, 100)]
    assert len((Path(made.folder) / "appended").read_bytes()) == 2 * 100 * 64


def test_a_stale_handle_of_a_replaced_file_is_a_file_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_only_folders_of_this_user_are_stale(tmp_path: Path) -> None:
    (tmp_path / payload.MARKER).write_text(json.dumps({"cluster": "lab", "job": 6}))
    assert payload.is_stale(str(tmp_path), "lab", [7])
    assert not payload.is_stale(str(tmp_path), "lab", [6])
    assert not payload.is_stale(str(tmp_path / payload.MARKER), "lab", [])
    if os.geteuid():
        pytest.skip("only root gives a folder to another user")
    os.chown(tmp_path, 65534, 65534)
    assert not payload.is_stale(str(tmp_path), "lab", [7])


def test_the_folder_of_a_task_is_its_own_on_a_local_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(payload.FOLDER, NAME)
    assert payload.folder_of({"path": "/s", "kind": "shared"}, 3) == f"/s/{NAME}"
    assert payload.folder_of({"path": "/s", "kind": "local"}, 3) == f"/s/{NAME}-3"


def verified(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, *readings: dict[int, bool]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what `verify` reports of these readings, and the options of each."""
    made, reported = system
    options: list[dict[str, Any]] = []
    left = list(readings)

    def read(path: str, _sums: list[str], **given: Any) -> dict[int, bool]:
        assert path == made.name("sum", 1)
        options.append(given)
        return left.pop(0)

    monkeypatch.setattr(payload, "wrong_blocks", read)
    assert made.verify(1, [None, SUMS])
    return reported[0], options


@pytest.mark.parametrize(
    ("first", "second", "other"),
    [
        ({1: True, 2: True}, {2: True}, [2]),
        ({1: True}, {}, []),
        ({1: False}, {1: True}, []),
        ({1: True}, {1: False}, []),
        ({1: True}, {2: True}, []),
    ],
)
def test_only_whole_blocks_of_other_bytes_in_both_readings_count_and_the_second_is_not_from_the_cache(
    first: dict[int, bool],
    second: dict[int, bool],
    other: list[int],
    system: tuple[Any, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fact, options = verified(system, monkeypatch, first, second)
    assert (fact["wrong"], fact["again"], fact["other"]) == (list(first), list(second), other)
    assert options == [{}, {"cached": False}]


def test_right_blocks_are_read_once(
    system: tuple[Any, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fact, options = verified(system, monkeypatch, {})
    assert (fact["wrong"], fact["again"], fact["other"]) == ([], [], [])
    assert len(options) == 1


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


def mount_of(path: Path) -> Mount:
    """Return the mount that mounts.sh shows of a path of this machine; its user has no quota there."""
    section = StorageConfig.model_validate({"filesystems": [{"path": str(path)}]})
    cluster: Any = SimpleNamespace(section=lambda _: section)

    def asked(probe: Probe[dict[str, T]]) -> dict[str, T]:
        done = subprocess.run(("sh", "-c", probe.command), capture_output=True, check=False)
        return probe.parse(Answer("gpu01", done.returncode, done.stdout, done.stderr))

    assert asked(quotas(cluster)) == {}
    return asked(mounts(cluster))[str(path)]


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


@pytest.mark.thorough
def test_two_nodes_with_a_local_ext4_are_alone_on_it_and_leave_nothing(ext4: Disk) -> None:
    mount = mount_of(ext4.path)
    assert (mount.point, mount.fstype, mount.source[:9]) == (str(ext4.path), "ext4", "/dev/loop")
    assert "rw" in mount.options
    local = [{"path": str(ext4.path), "kind": "local"}]
    facts = run(
        2, filesystems=local, seconds=0.3, jobs=[os.getpid()]
    )  # else each folder is that of an ended job
    assert [(fact["step"], fact["reason"]) for fact in kinds(facts, "problem")] == []
    assert {(fact["rank"], fact["writer"]) for fact in kinds(facts, "verified")} == {(0, 0), (1, 1)}
    assert all(fact["direct"] for what in ("write", "read", "random") for fact in kinds(facts, what))
    assert sum(fact["count"] for fact in kinds(facts, "metadata") if fact["what"] == "create") == 60
    assert kinds(facts, "seen") == kinds(facts, "lock") == kinds(facts, "appended") == []
    assert [path.name for path in ext4.path.iterdir()] == ["lost+found"]


def test_an_ext4_that_was_shut_down_has_its_error(ext4: Disk) -> None:
    with (ext4.path / "file").open("w") as file:
        fcntl.ioctl(file, _SHUTDOWN, struct.pack("I", 2))  # without writing what is in memory
    facts = run(1, filesystems=[{"path": str(ext4.path), "kind": "local"}])
    assert {fact["code"] for fact in kinds(facts, "problem")} == {"EIO"}
    assert len(kinds(facts, "done")) == 1
    assert kinds(facts, "write") == kinds(facts, "verified") == []


def test_payload_runs_under_python_3_6_with_the_standard_library() -> None:
    found = imported(PAYLOAD)
    assert found <= set(sys.stdlib_module_names)
