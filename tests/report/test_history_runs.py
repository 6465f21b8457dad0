"""The history of real runs on the sandbox: two nights, one node 8% slower, all within the threshold."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from paths import ROOT
from plugin_helpers import (
    FULL,
    TINY,
    Run,
    cases,
    cluster_file,
    command,
    jobs_so_far,
    on,
    run_pytest,
    write_suites,
)
from sandbox_helpers import environment, queue, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.report.history import History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")
SLOWER = "gpu02"
THREE = "gpu[01-03]"  # too few for nccl.outlier, which would find it without a history
DEADLINE = 200


@dataclasses.dataclass(frozen=True)
class Nights:
    """Two runs of the nccl suite, each in a folder of its own, and the history of both."""

    first: Run
    second: Run
    history: Path


@pytest.fixture(scope="module")
def nights(_session_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    sandbox, folder = _session_sandbox, tmp_path_factory.mktemp("nights")
    history = folder / "history.sqlite"
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    for row in plain["thresholds"]:
        row["tolerance"] = 0.15
    cluster = folder / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({**plain, "name": "prod", "history": str(history)}))
    runs: list[Run] = []
    sandbox.heal()
    try:
        for name in ("first", "second"):
            (folder / name).mkdir()
            options = (f"--cluster={cluster}", f"--nodes={THREE}", "-p", "no:cacheprovider")
            runs.append(
                run_pytest(
                    folder / name,
                    *options,
                    where=(SUITE,),
                    env={**sandbox.env, "COLUMNS": "160"},
                    timeout=DEADLINE,
                )
            )
            sandbox.fault("slow_node", SLOWER, factor=0.92)
        yield Nights(runs[0], runs[1], history)
    finally:
        sandbox.heal()


def test_both_nights_are_green_for_all_is_within_the_threshold(nights: Nights) -> None:
    assert (nights.first.rc, nights.second.rc) == (0, 0), nights.second.out[-3000:]
    assert "nothing to compare with" in nights.first.out
    assert "worse:" not in nights.first.out


def test_the_summary_of_the_second_night_names_the_node(nights: Nights) -> None:
    worse = [line for line in nights.second.out.splitlines() if line.startswith("worse: ")]
    named = {line.split(": ")[1] for line in worse}
    assert named == {SLOWER, "(cluster)"}  # what all nodes do together is as fast as the slowest of them
    (alone,) = (line for line in worse if "busbw all_reduce 1 GiB alone" in line)
    assert "below its last good run" in alone
    assert "; fleet 4" in alone
    (row,) = (line for line in nights.second.out.splitlines() if line.endswith("%") and "1 GiB alone" in line)
    assert SLOWER in row


def test_the_page_of_the_second_night_names_the_node(nights: Nights) -> None:
    page = (nights.second.folder / "reports" / "latest" / "report.html").read_text()
    section = page.partition('<section id="history">')[2].partition("</section>")[0]
    worse = section.partition("<details>")[0]
    assert SLOWER in worse
    assert "gpu01" not in worse
    assert "below its last good run" in worse
    first = (nights.first.folder / "reports" / "latest" / "report.html").read_text()
    assert "below its last good run" not in first


def test_compare_names_the_node(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "last-good", "last", "--history", str(nights.history)]) == 3
    out = capsys.readouterr().out
    assert f"worse: {SLOWER}: busbw all_reduce 1 GiB alone: " in out
    assert "worse: gpu01" not in out


def test_the_past_of_the_node_shows_it(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["history", SLOWER, "--history", str(nights.history), "--metric", "busbw*"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"cluster prod (SIMULATED), {SLOWER}: the last 2 runs")
    (row,) = (line for line in out.splitlines() if "busbw all_reduce 1 GiB alone" in line)
    (change,) = (float(word.rstrip("%")) for word in row.split() if word.endswith("%"))
    assert -11 < change < -5


def test_names_of_testcases_are_those_of_the_night_before(nights: Nights) -> None:
    first, second = (
        set(cases(run.folder / "reports" / "latest" / "junit.xml")) for run in (nights.first, nights.second)
    )
    assert first == second
    assert len(first) > 10


def test_a_file_that_is_no_history_ends_the_run_before_it_begins(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and long enough to have a header " * 40)
    before = jobs_so_far(sandbox)
    run = run_pytest(tmp_path, on(sandbox), "--history=notes.txt", files={"test_tiny.py": TINY})
    assert run.rc == 4
    (error,) = run.errors
    assert error.startswith("ERROR: history notes.txt: damaged, or no SQLite file (file is not a database); ")
    assert jobs_so_far(sandbox) == before
    run = run_pytest(tmp_path, "--history=h.sqlite", files={"test_tiny.py": TINY})
    assert run.rc == 4
    assert "--history: needs --cluster" in run.err


DESTROYS = """
from pathlib import Path


def test_named(gpucluster_node):
    Path("h.sqlite").write_text("gone " * 4000)
"""


def test_a_run_that_cannot_be_kept_is_no_success(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--history=h.sqlite", files={"test_tiny.py": DESTROYS})
    assert run.rc == 1
    (error,) = run.errors
    assert error.startswith(
        "ERROR: the run is not in the history: history h.sqlite: damaged, or no SQLite file"
    )


def test_a_run_whose_log_has_holes_is_not_kept(tmp_path: Path) -> None:
    options = ("--cluster=local", "--history=h.sqlite")
    run = run_pytest(tmp_path, *options, files={"test_a.py": FULL})
    assert run.rc == 1
    lines = "\n".join(run.errors)
    assert re.search(
        r"^ERROR: the run is not in the history: the event log is not whole: \S+: File too large$",
        lines,
        re.MULTILINE,
    )
    with contextlib.closing(History(tmp_path / "h.sqlite")) as kept:
        assert kept.clusters() == ()


def test_workers_are_one_run(sandbox: Sandbox, tmp_path: Path) -> None:
    path = cluster_file(sandbox, tmp_path, history=str(tmp_path / "h.sqlite"))
    run = run_pytest(tmp_path, f"--cluster={path}", "-n", "2", files={"test_tiny.py": TINY})
    assert run.rc == 0, run.out
    with contextlib.closing(History(tmp_path / "h.sqlite")) as kept:
        (past,) = kept.runs("tiny")
        assert (past.passed, past.nodes, past.good) == (9, 4, True)


def test_two_runs_at_once_are_both_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    history, runs = tmp_path / "h.sqlite", []
    for node in ("gpu01", "gpu02"):
        (tmp_path / node).mkdir()
        write_suites(tmp_path / node, {"test_tiny.py": TINY})
        argv = command(on(sandbox), f"--nodes={node}", f"--history={history}", ".")
        runs.append(
            subprocess.Popen(
                argv,
                cwd=tmp_path / node,
                env=environment(),
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        )
    for run in runs:
        out, _ = run.communicate(timeout=DEADLINE)
        assert run.returncode == 0, out
    with contextlib.closing(History(history)) as kept:
        assert [(past.passed, past.good) for past in kept.runs("sandbox")] == [(3, True)] * 2
        assert kept.nodes("sandbox") == ("", "gpu01", "gpu02")


HANGS = """
import time


def test_first(gpucluster_node):
    assert gpucluster_node.name


def test_hangs(gpucluster):
    time.sleep(600)
"""


def test_a_run_that_was_killed_is_imported_as_incomplete(
    sandbox: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_suites(tmp_path, {"test_hangs.py": HANGS})
    history, events = tmp_path / "h.sqlite", tmp_path / "reports" / "latest" / "events.jsonl"
    with subprocess.Popen(
        command(on(sandbox), f"--history={history}", "."),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as killed:
        try:
            wait_for(
                lambda: events.exists() and events.read_text().count('"event": "result"') == 4, "4 results"
            )
        finally:  # else a failure would wait for its end
            killed.kill()
    wait_for(lambda: not queue(sandbox), "Slurm has the nodes back")
    with contextlib.closing(History(history)) as kept:
        assert kept.runs("sandbox") == ()  # no half run
    assert cli.main(["history", "--history", str(history), "--import", str(events)]) == 0
    assert "stored, incomplete: it never serves as a baseline" in capsys.readouterr().out
    with contextlib.closing(History(history)) as kept:
        (past,) = kept.runs("sandbox")
        assert (past.outcome, past.passed, past.exit) == ("incomplete", 4, None)
