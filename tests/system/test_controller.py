"""The controller suite on a real Slurm with a backup controller: healthy, with faults, and killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, command, names, run_pytest
from sandbox_helpers import environment, left_in_queue, queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = str(ROOT / "suites" / "controller" / "test_controller.py")
SMALL = {"submissions": 40, "burst_time": 60}

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a backup controller needs a hostname of its own: root"
)


@pytest.fixture(scope="module")
def world() -> Iterator[Sandbox]:
    """Four nodes, two controllers. The logs are those of this module only."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=4, backup=True)
        yield sandbox


def judge(
    world: Sandbox, folder: Path, *words: str, constants: dict[str, float] | None = None, **controller: Any
) -> Run:
    path = cluster_file(world, folder, controller=controller)
    options = ("-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    quick = {"controller": {**SMALL, **(constants or {})}}
    return run_pytest(folder, f"--cluster={path}", *options, *words, where=[SUITE], constants=quick)


def ended(run: Run, outcome: str) -> list[str]:
    return [name.removeprefix("test_") for name in names(run.outcomes, outcome)]


def message(run: Run, item: str) -> str:
    (found,) = (e for e in run.events if e["event"] == "result" and e["nodeid"].endswith(f"::test_{item}"))
    return str(found["message"])


def test_a_healthy_slurm_passes_everything(world: Sandbox, tmp_path: Path) -> None:
    run = judge(world, tmp_path, "--intrusive", "-m", "slurm", backup=True)
    assert run.rc == 0, run.out
    assert set(run.outcomes.values()) == {"passed"}
    assert len(run.outcomes) == 6 + 2 * 4
    assert "warning: controller." not in run.out
    metrics = {m["name"]: m["value"] for e in run.events for v in e.get("verdicts", ()) for m in v["metrics"]}
    assert metrics["controllers"] == 2
    assert metrics["submission_rate"] > 1
    assert left_in_queue(world) == []


def test_a_killed_run_leaves_no_job(world: Sandbox, tmp_path: Path) -> None:
    path = cluster_file(world, tmp_path, controller={})
    words = command(f"--cluster={path}", "-c", ROOT / "pyproject.toml", "--intrusive", "-k", "burst", SUITE)
    started = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: len(queue(world)) > 20, "the burst has begun")
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    wait_for(lambda: queue(world) == [], "the jobs of the killed run are cancelled")
    assert left_in_queue(world) == []


def test_every_fault_is_found_where_it_is(world: Sandbox, tmp_path: Path) -> None:
    for kind, node in (
        ("backup_dead", "gpu01"),
        ("foreign_key", "gpu01"),
        ("health_check_failing", "gpu02"),
        ("slurm_conf_differs", "gpu03"),
        ("prolog_failing", "gpu04"),
    ):
        world.fault(kind, node)
    world.fault("requests_slow", "gpu01", seconds=0.3)
    slurm(world, "sbatch", "--parsable", "-w", "gpu04", "-o", "/dev/null", "--wrap", "true")
    wait_for(
        lambda: "drained" in slurm(world, "sinfo", "-N", "-h", "-n", "gpu04", "-o", "%T"),
        "Slurm drains gpu04",
    )
    slurm(world, "scancel", "--user=root")
    run = judge(world, tmp_path, max_answer="2s")
    assert ended(run, "failed") == ["load", "node_errors[gpu02]", "ping", "reported[gpu04]"], run.out
    assert ended(run, "not tested") == ["node_errors[gpu04]"]
    assert message(run, "ping").endswith("backup controller sandbox-backup: measured DOWN, expected UP")
    assert "ERROR: health check of the sandbox" in message(run, "node_errors[gpu02]")
    assert "prolog failed: measured" in message(run, "reported[gpu04]")
    assert "warning: controller.reported on gpu03: other slurm.conf: measured" in run.out
    assert "warning: controller.errors on (cluster): authentication: measured" in run.out
    slow = re.search(
        r"request REQUEST_JOB_WILL_RUN: measured (\S+) s on average, expected <= 2 s", message(run, "load")
    )
    assert slow is not None, message(run, "load")
    assert 2 < float(slow[1]) < 30
    assert "drain" not in {v["action"] for e in run.events if e["event"] == "result" for v in e["verdicts"]}
    world.heal()
    # returned to service: the line is history; the others lie within `log_recent`, and are a failure without it
    run = judge(world, tmp_path, constants={"log_recent": 1}, max_answer="2s")
    assert ended(run, "failed") == [], run.out
    assert "prolog failed" in run.out
