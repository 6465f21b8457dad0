"""The controller suite on a real Slurm with a backup controller: healthy, and with faults."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, names, run_pytest
from sandbox_helpers import left_in_queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = str(ROOT / "suites" / "controller" / "test_controller.py")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a backup controller needs a hostname of its own: root")


@pytest.fixture(scope="module")
def world() -> Iterator[Sandbox]:
    """Four nodes, two controllers. The logs are those of this module only."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=4, backup=True)
        yield sandbox


def judge(world: Sandbox, folder: Path, *words: str, **controller: Any) -> Run:
    path = cluster_file(world, folder, controller=controller)
    options = ("-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    return run_pytest(folder, f"--cluster={path}", *options, *words, where=[SUITE])


def advisories(run: Run) -> dict[str, str]:
    """Return {check: what its warnings show}."""
    verdicts = [it for event in run.events for it in event.get("verdicts", ())]
    return {it["check"]: " ".join(one["measured"]["quote"] for one in it["advisories"]) for it in verdicts}


def message(run: Run, item: str) -> str:
    (found,) = (e for e in run.events if e["event"] == "result" and e["nodeid"].endswith(f"::test_{item}"))
    return str(found["message"])


def test_a_healthy_slurm_passes_everything(world: Sandbox, tmp_path: Path) -> None:
    run = judge(world, tmp_path, "-m", "slurm", backup=True)
    assert run.rc == 0, run.out
    assert sorted(names(run.outcomes, "passed")) == [f"test_{it}" for it in ("errors", "load", "node_errors", "ping")]
    metrics = {m["name"]: m["value"] for event in run.events for m in event.get("metrics", ())}
    assert metrics["controllers"] == 2
    assert left_in_queue(world) == []


def test_the_state_fails_and_the_logs_warn(world: Sandbox, tmp_path: Path) -> None:
    for kind, node in (("backup_dead", "gpu01"), ("prolog_failing", "gpu04")):
        world.fault(kind, node)
    world.fault("requests_slow", "gpu01")
    slurm(world, "sbatch", "--parsable", "-w", "gpu04", "-o", "/dev/null", "--wrap", "true")
    wait_for(lambda: "drained" in slurm(world, "sinfo", "-N", "-h", "-n", "gpu04", "-o", "%T"), "Slurm drains gpu04")
    slurm(world, "scancel", "--user=root")
    run = judge(world, tmp_path)
    assert sorted(names(run.outcomes, "failed")) == ["test_load", "test_ping"], run.out
    assert message(run, "ping").endswith("backup controller sandbox-backup: measured DOWN, expected UP")
    shown = advisories(run)
    assert re.search(r"\d+ x 'error: [^']*Prolog[^']*' \(gpu04, last", shown["controller.errors"]), shown
    slow = re.search(
        r"request REQUEST_JOB_WILL_RUN: measured (\S+) s on average, expected <= 10 s", message(run, "load")
    )
    assert slow is not None, message(run, "load")
    assert 10 < float(slow[1]) < 30
    world.heal()
    run = judge(world, tmp_path)
    assert names(run.outcomes, "failed") == [], run.out
    shown = advisories(run)
    assert re.search(r"\d+ x 'error: [^']*prolog failed[^']*' \(gpu04, last", shown["controller.node_errors"]), shown
