"""The cost that must not grow with checks or nodes: Slurm's client processes. They are counted by wrappers on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from plugin_helpers import run_pytest

from pytest_gpucluster.cluster.channel.batch import Batch, batched
from pytest_gpucluster.core.probe import Answer, last_line

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox

MOST = 15  # processes of Slurm's clients; one of them looks for what killed runs have left


def clients(folder: Path, sandbox: Sandbox, nodes: str) -> Counter[str]:
    """Run three suites on some nodes; return how often each Slurm command was started, jobs included."""
    folder.mkdir()
    options = (f"--cluster={sandbox.cluster_file}", f"--nodes={nodes}", "-m", "os or slurm or gpu")
    run = run_pytest(folder, *options, where=[str(ROOT / "suites")])
    assert " passed" in run.out, run.out[-2000:] + run.err[-1000:]
    found = Counter[str](run.event("finish")["processes"])
    del found["sh"]
    # a look is repeated until the job of a check, or the epilog, is over
    found["squeue"], found["scontrol"] = min(found["squeue"], 2), min(found["scontrol"], 4)
    return found


@pytest.mark.thorough
def test_three_suites_start_as_few_clients_for_four_nodes(sandbox: Sandbox, tmp_path: Path) -> None:
    two = clients(tmp_path / "two", sandbox, "gpu[01-02]")
    four = clients(tmp_path / "four", sandbox, "gpu[01-04]")
    for command in ("srun", "salloc", "sbatch", "scancel", "sinfo"):
        assert two[command] == four[command], (two, four)
    assert two["srun"] > 0
    assert two.total() <= MOST, two


def run(batch: Batch, **env: str) -> dict[str, Answer]:
    argv = ["sh", "-c", batch.command]
    done = subprocess.run(argv, capture_output=True, check=False, env={**os.environ, **env})
    return batch.split(Answer("n1", done.returncode, done.stdout, done.stderr))


def test_a_batch_gives_each_command_its_own_streams_and_status() -> None:
    expected = {
        "printf 'a\\0b'; echo 'it'\"'\"'s' >&2": (0, b"a\0b", b"it's\n"),
        "exit 7": (7, b"", b""),
        "cat": (0, b"", b""),
        "m=other; b() { :; }; cd /; set -e; false; echo not reached": (1, b"", b""),
        "pwd": (0, f"{Path.cwd()}\n".encode(), b""),
    }
    killed, broken = "echo out; echo err >&2; sh -c 'kill -9 $$'", "if then"
    answers = run(Batch(tuple((command, 5) for command in (killed, broken, *expected))))
    assert {one: (answers[one].rc, answers[one].stdout, answers[one].stderr) for one in expected} == expected
    one = answers[killed]
    assert (one.rc, one.stdout, one.stderr[:4]) == (137, b"out\n", b"err\n")
    assert answers[broken].rc == 2


PLAIN = ("env -u A=b", "nosuch-program x", "umask 022", "command -v sh", "sh -c exit\\ 3", "./a b=c", "[ x")
ABSENT = ("systemctl-x is-active a", "systemctl-x is-active a 2>&1")


@pytest.mark.parametrize("shell", [name for name in ("dash", "bash", "busybox") if shutil.which(name)])
def test_a_plain_command_answers_in_a_batch_as_it_does_alone(shell: str) -> None:
    argv = [shell, "sh", "-c"] if shell == "busybox" else [shell, "-c"]

    def answer(command: str) -> Answer:
        done = subprocess.run([*argv, command], capture_output=True, check=False)
        return Answer("n1", done.returncode, done.stdout, done.stderr)

    batch = Batch(tuple((command, 5) for command in (*PLAIN, *ABSENT, "times")))
    answers = batch.split(answer(batch.command))
    for command in PLAIN:
        alone = answer(command)
        assert (answers[command].rc, answers[command].stdout) == (alone.rc, alone.stdout), command
    assert answers["times"].rc == 0
    for command in ABSENT:  # it reads alike in all shells
        for one in (answers[command], answer(command)):
            assert last_line(one.err or one.out) == "systemctl-x: command not found"


def test_a_program_in_a_batch_is_a_child_of_its_shell_and_of_no_subshell(tmp_path: Path) -> None:
    (tmp_path / "parent").write_text("echo $PPID\n")
    plain, listed = f"sh {tmp_path}/parent", f"sh {tmp_path}/parent; :"
    answers = run(Batch((("echo $$", 5), (plain, 5), (listed, 5))))
    assert answers[plain].stdout == answers["echo $$"].stdout != answers[listed].stdout


def test_what_a_cut_batch_does_not_hold_is_left_out() -> None:
    batch = Batch((("a", 5), ("b", 7), ("c", 6)))
    assert batch.timeout == 7
    mark = batch.mark.encode()
    out, err = b"A" + mark + b" 0\nB" + mark, mark + b"\n" + mark + b"\n"
    cut = batch.split(Answer("n1", None, out, err, "timed out"))
    assert {command: answer.stdout for command, answer in cut.items()} == {"a": b"A"}


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 123)), min_size=2, max_size=5))
def test_streams_come_apart_as_they_were(reported: list[tuple[bytes, bytes, int]]) -> None:
    batch = Batch(tuple((f"command {number}", 5.0) for number in range(len(reported))))
    mark = batch.mark.encode()
    out = b"".join(piece + mark + b" %d\n" % status for piece, _, status in reported)
    err = b"".join(piece + mark + b"\n" for _, piece, _ in reported)
    answers = batch.split(Answer("n1", 0, out, err)).values()
    assert [(answer.stdout, answer.stderr, answer.rc) for answer in answers] == reported


@pytest.mark.parametrize("commands", [[], [("true", 5.0)]])
def test_one_command_is_no_batch(commands: list[tuple[str, float]]) -> None:
    assert batched(commands) is None
