"""Under pytest-xdist a run says the same, out of one allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import ENDS, TINY, Run, jobs_so_far, on, out_of_service, run_pytest
from sandbox_helpers import left_in_queue

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITES = ROOT / "suites"
SUITE = {"test_ends.py": ENDS, "test_tiny.py": TINY, "test_gpu.py": (SUITES / "gpu" / "test_gpu.py").read_text()}
ALIKE = ("suite", "check", "node", "outcome", "phase", "message", "verdicts", "metrics")


def judged(run: Run) -> dict[str, dict[str, Any]]:
    """Return what a run says of each item, without what differs from run to run."""
    results = (event for event in run.events if event["event"] == "result")
    return {event["nodeid"]: {key: event[key] for key in ALIKE} for event in results}


def drained(run: Run) -> list[tuple[Any, ...]]:
    """Return what would be drained, and why."""
    acts = [event for event in run.events if event["event"] in ("drain_confirm", "node_result")]
    return sorted((it["event"], it["node"], str(it.get("check")), str(it.get("confirmed"))) for it in acts)


@pytest.mark.essential
def test_workers_say_the_same_as_one_process(sandbox: Sandbox, tmp_path: Path) -> None:
    runs, before = [], jobs_so_far(sandbox)
    sandbox.fault("gpu_missing", "gpu02")
    with out_of_service(sandbox, "gpu04", "DRAIN", "bad cable"):
        for workers in ("-n0", "-n2"):
            folder = tmp_path / workers
            folder.mkdir()
            words = (workers, "--dist=load", "--drain=dry-run", "-m", "not nothing")
            runs.append(run_pytest(folder, on(sandbox), *words, files=SUITE))
    assert jobs_so_far(sandbox) == before + 2, "one allocation each"
    one, two = runs
    assert one.rc == two.rc == 1
    assert one.outcomes == two.outcomes  # and no item twice
    assert set(one.cases) == set(two.cases)
    assert judged(one) == judged(two)
    assert drained(one) == drained(two)
    assert any(it[1] == "gpu02" and it[3] == "True" for it in drained(one))
    for kind in ("start", "nodes", "allocation", "finish"):
        assert two.event(kind)
    first, second = (run.out.rpartition("coverage:")[2].splitlines()[0] for run in (one, two))
    assert first == second
    assert left_in_queue(sandbox) == []


def test_without_nodes_workers_and_controller_say_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "-n2", "--set=slurm.reservation=none-such", files=SUITE)
    assert run.rc == 4
    assert "no nodes: salloc of gpu[01-04]" in run.out
    assert "Traceback" not in run.out + run.err
    assert "INTERNALERROR" not in run.out + run.err
    assert left_in_queue(sandbox) == []
