"""The payload itself, as several tasks on one machine and real file systems: this one, a small tmpfs, and what breaks a step."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import imported

from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.suites.storage import payload
from pytest_gpucluster.suites.storage.payload_rates import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD = Path(payload.__file__)
NAME = "gpucluster-storage-0123abcd-1-2-ff"
SUITE = PAYLOAD.parent


def start(
    rank: int, size: int, word: str = "run", token: str = "right", **options: Any
) -> subprocess.Popen[str]:
    given = {
        "budget": 64 << 20, "files": 30, "max_use": 0.99, "imports": [], "seconds": 0.05, "phase": 10.0,
        "address": "127.0.0.1", "cluster": "lab", "jobs": [7], **options,
    }  # fmt: skip
    environment = {
        "PATH": "", payload.TOKEN: token, payload.FOLDER: NAME, "SLURM_STEP_NUM_TASKS": str(size),
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


def test_three_tasks_measure_and_prove_a_file_system_and_remove_their_folder(tmp_path: Path) -> None:
    facts = run(3, filesystems=shared(tmp_path))
    assert kinds(facts, "problem") == []
    assert len(kinds(facts, "done")) == 3
    assert all(fact["rate"] > 0 for what in ("write", "read") for fact in kinds(facts, what))
    assert len([fact for fact in kinds(facts, "read") if fact["how"] == "together"]) == 3
    assert {fact["writer"] for fact in kinds(facts, "verified") if fact["rank"] == 0} == {1, 2}
    assert all(fact["wrong"] == [] for fact in kinds(facts, "verified"))
    assert all(fact["seconds"] < 1 for fact in kinds(facts, "seen"))
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


def test_a_wrong_block_is_found_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "sum-0"
    blocks = [bytes([number]) * MIB for number in range(3)]
    path.write_bytes(b"".join(blocks))
    sums = [hashlib.sha256(block).hexdigest() for block in blocks]
    assert payload.wrong_blocks(str(path), sums) == []
    path.write_bytes(blocks[0] + blocks[0] + blocks[2])
    assert payload.wrong_blocks(str(path), sums) == [1]


def test_payload_runs_under_python_3_6_with_the_standard_library() -> None:
    found = imported(PAYLOAD)
    assert found <= set(sys.stdlib_module_names)
