"""The history of real runs on the sandbox: two nights, one node 8% slower, all within the threshold."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import yaml
from paths import ROOT
from plugin_helpers import FULL, TINY, jobs_so_far, on, run_pytest

from pytest_gpucluster.report.history import History

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.thorough
SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")
SLOWER = "gpu02"
THREE = "gpu[01-03]"  # too few for nccl.outlier, which would find it without a history


def test_the_second_green_night_names_the_node_that_lost_8_percent(sandbox: Sandbox, tmp_path: Path) -> None:
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    for row in plain["thresholds"]:
        row["tolerance"] = 0.15
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({**plain, "name": "prod", "history": str(tmp_path / "history.sqlite")}))
    options = (f"--cluster={cluster}", f"--nodes={THREE}", "-p", "no:cacheprovider")
    env = {**sandbox.env, "COLUMNS": "160"}
    first = run_pytest(tmp_path, *options, where=(SUITE,), env=env, timeout=600)
    sandbox.fault("slow_node", SLOWER, factor=0.92)
    second = run_pytest(tmp_path, *options, where=(SUITE,), env=env, timeout=600)
    assert (first.rc, second.rc) == (0, 0), second.out[-3000:]
    assert "nothing to compare with" in first.out
    assert "worse:" not in first.out
    worse = [line for line in second.out.splitlines() if line.startswith("worse: ")]
    # what all nodes do together is as fast as the slowest of them
    assert {line.split(": ")[1] for line in worse} == {SLOWER, "(cluster)"}
    (alone,) = (line for line in worse if "busbw all_reduce 1 GiB alone" in line)
    assert "below its last good run" in alone
    (row,) = (line for line in second.out.splitlines() if line.endswith("%") and "1 GiB alone" in line)
    assert SLOWER in row


def test_a_file_that_is_no_history_ends_the_run_before_it_begins(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and long enough to have a header " * 40)
    before = jobs_so_far(sandbox)
    run = run_pytest(tmp_path, on(sandbox), "--history=notes.txt", files={"test_tiny.py": TINY})
    assert run.rc == 4
    (error,) = run.errors
    assert error.startswith("ERROR: history notes.txt: damaged, or no SQLite file")
    assert jobs_so_far(sandbox) == before
    run = run_pytest(tmp_path, "--history=h.sqlite", files={"test_tiny.py": TINY})
    assert (run.rc, "--history: needs --cluster" in run.err) == (4, True)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("from pathlib import Path\ndef test_a(): Path('h.sqlite').write_text('gone ' * 4000)\n", "damaged"),
        (FULL, "the event log is not whole: "),
    ],
)
def test_a_run_that_cannot_be_kept_is_no_success(tmp_path: Path, test: str, why: str) -> None:
    run = run_pytest(tmp_path, "--cluster=local", "--history=h.sqlite", files={"test_a.py": test})
    assert run.rc == 1
    (error,) = (error for error in run.errors if "the run is not in the history: " in error)
    assert why in error
    if why != "damaged":
        with contextlib.closing(History(tmp_path / "h.sqlite")) as kept:
            assert kept.clusters() == ()
