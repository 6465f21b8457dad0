"""The history of real runs on the sandbox: two nights, one node 8% slower, all within the threshold."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from paths import ROOT
from plugin_helpers import (
    FULL,
    TINY,
    Run,
    jobs_so_far,
    on,
    run_pytest,
)

from pytest_gpucluster.report.history import History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.thorough
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
