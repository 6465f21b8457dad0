"""The benchmarks: what they read is read rightly, and the smallest size of each comparison runs."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "sides")]

import controller  # the folder is no package
import counted
import questions
import recorded_srun
import rivals

SDIAG = """\
Remote Procedure Call statistics by message type
\tREQUEST_RESOURCE_ALLOCATION             ( 4001) count:57     ave_time:443    total_time:25302
\tMESSAGE_NODE_REGISTRATION_STATUS        ( 1002) count:2      ave_time:451    total_time:903

Remote Procedure Call statistics by user
\troot            (       0) count:345    ave_time:429    total_time:148232
"""


def run(script: str, *options: str) -> str:
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    argv = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


STAMP = r"20\d\d-\d\d-\d\d,\s+commit ([0-9a-f]{8})\b"


def test_each_figure_of_cost_names_its_benchmark_its_date_and_its_commit() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    section = page.partition("## Cost compared with other tools")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| \d", line)]
    assert 1 <= len(rows) <= 3
    for row in rows:
        assert re.search(STAMP, row), row
        script = re.search(r"`(\w+\.py)", row)
        assert script, row
        assert (BENCHMARKS / script[1]).exists(), row


def test_make_bench_runs_every_benchmark_of_the_table() -> None:
    table = set(
        re.findall(
            r"^\| `(\w+\.py)` \|", (BENCHMARKS / "README.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    every = importlib.import_module("all")
    assert table == {script for script, *_ in every.QUICK} == {script for script, *_ in every.FULL}


def test_commits_of_figures_are_in_the_history() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("not a repository with its history")
    pages = [BENCHMARKS / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {commit for page in pages for commit in re.findall(STAMP, page.read_text(encoding="utf-8"))}
    assert len(found) > 1
    assert [commit for commit in found if git("merge-base", "--is-ancestor", commit, "HEAD").returncode] == []


def test_requests_are_counted_by_type_once() -> None:
    assert rivals.requests_in(SDIAG) == 59


@pytest.mark.parametrize(
    ("output", "verdicts"),
    [
        ("...F\n1 failed, 9 passed in 3.11s\n", (9, 1)),
        ("160 passed, 2 warnings in 0.5s\nreports: x\n", (160, 0)),
        ("1 failed, 9 passed, 3 failed alike in 3.1s\n4 nodes: 0 fit, 4 failed, 0 not tested\n", (9, 4)),
        ("3 errors in 0.1s\n", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_verdicts_of_pytest(output: str, verdicts: tuple[int, int]) -> None:
    assert rivals.pytest_verdicts(output) == verdicts


def test_what_reframe_skipped_or_aborted_is_no_verdict() -> None:
    printed = {"num_cases": 10, "num_failures": 2, "num_aborted": 1, "num_skipped": 3}
    assert rivals.reframe_verdicts({"session_info": printed}) == (4, 2)


def test_what_fewer_checks_took_is_extended_by_a_line_and_marked() -> None:
    full = rivals.Measured(2.0, 10, 20, 160, 0, 40)
    half, part = rivals.Measured(4.0, 100, 60, 20, 0, 5), rivals.Measured(6.0, 110, 120, 40, 0, 10)
    found = rivals.Found({rivals.OURS: [full], "ReFrame": [rivals.extrapolated(half, part, 40)]})
    ours, other = found.rows(4, 40)
    assert ours == ["4", rivals.OURS, "160", "2.0", "1.00", "10", "20"]
    assert other == ["4", "ReFrame", "40", "~18.0", "~9.00", "~170", "~480"]


def test_sides_that_do_not_agree_are_no_comparison() -> None:
    found = rivals.Found({"ReFrame": [rivals.Measured(1.0, 1, 1, 160, 0, 40)]})
    assert rivals.disagreeing(found, 0) == []
    assert rivals.disagreeing(found, 1) == ["ReFrame found 0 checks wrong, there are 1"]


def test_the_count_of_processes_survives_the_greatest_number() -> None:
    counter = counted.Counter(32768)
    for last in (10, 32000, 32700, 400):
        counter.see(last)
    assert counter.total == 32768 + 400 - counted.RESERVED


def test_there_are_forty_questions_each_with_its_name() -> None:
    assert len({question.name for question in questions.QUESTIONS}) == 40
    assert not any(question.right("no answer at all\n") for question in questions.QUESTIONS)


def test_a_recorded_answer_is_made_each_nodes_own() -> None:
    text = b"gpu01 GPU-3e45b2ec-9dfe-85d0, serial 1667457326242, gpu011\n"
    assert recorded_srun.Template(text).of(258, "gpu00259") == (
        b"gpu00259 GPU-3e45b2ec-0102-85d0, serial 1667457320258, gpu011\n"
    )


def test_a_request_is_read_in_both_forms() -> None:
    assert recorded_srun.plain("p", "echo one |\n") == "echo one "
    assert recorded_srun.plain("b", r"printf \0012a\0134n|" + "\n") == "printf \na\\n"


def test_the_controller_is_measured_with_recorded_answers() -> None:
    row = run("controller.py", "3", "--checks", "3").splitlines()[-2].split()
    assert row[:4] == ["3", "3", "9", "0"]
    assert len(controller.checks()) == 50


@pytest.mark.skipif(os.geteuid() != 0, reason="counts processes in a PID namespace, which needs root")
@pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="needs sshd: make nodes")
def test_every_side_finds_the_fault() -> None:
    sides = ["probes", "stock", "script", "loop", "testinfra"]
    table = run("rivals.py", "2", "--checks", "2", "--workers", "1", "--fault", "--sides", *sides)
    assert [line[9:].split("  ")[0] for line in table.splitlines()[2:7]] == [
        rivals.SHORT[name] for name in sides
    ]
