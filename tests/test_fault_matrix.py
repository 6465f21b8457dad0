"""Each fault makes exactly its own check fail, on exactly its node; healthy nodes pass everything.

Many nodes of one sandbox carry one fault each, so that a single run of the suites shows them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from plugin_helpers import sandbox_folder

from pytest_gpucluster.report.events import read_events
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SHOWN = sorted(
    name
    for name, fault in FAULTS.items()
    if fault.change and not fault.check.startswith(("nccl.", "burnin."))
)
ACTED = ("drained", "slurmd_dead", "wrong_gres")
HEALTHY = 8  # a majority of its own for what is compared across the fleet
MARKED = "os or gpu or slurm or fabric"


class Run(NamedTuple):
    """One run of the suites: {node: checks that failed}, which node has which fault, what pytest printed, its exit."""

    failed: dict[str, set[str]]
    node_of: dict[str, str]
    healthy: tuple[str, ...]
    passed: dict[str, int]
    text: str
    rc: int


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Put every fault into a node of its own and run the suites once."""
    kinds = [*SHOWN, *ACTED]
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(kinds) + HEALTHY)
        node_of = dict(zip(kinds, sandbox.nodes, strict=False))
        for kind, node in node_of.items():
            sandbox.fault(kind, node)
        yield suites(sandbox, folder / "reports", node_of)


def suites(sandbox: Sandbox, reports: Path, node_of: dict[str, str]) -> Run:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "suites", "-m", MARKED]
    argv += [f"--cluster={sandbox.cluster_file}", f"--report-dir={reports}"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)
    failed: dict[str, set[str]] = {}
    passed: dict[str, int] = {}
    for event in read_events(reports / "events.jsonl"):
        if event["event"] == "result" and event["outcome"] == "failed":
            failed.setdefault(event["node"], set()).add(event["check"])
        elif event["event"] == "result" and event["outcome"] == "passed":
            passed[event["node"]] = passed.get(event["node"], 0) + 1
    healthy = tuple(node for node in sandbox.nodes if node not in node_of.values())
    return Run(failed, node_of, healthy, passed, done.stdout + done.stderr, done.returncode)


def test_at_least_twenty_kinds() -> None:
    assert len(FAULTS) >= 20


@pytest.mark.parametrize("kind", [*SHOWN, *ACTED])
def test_fault_is_found_by_its_own_check_alone(run: Run, kind: str) -> None:
    node = run.node_of[kind]
    assert run.failed.get(node, set()) == {FAULTS[kind].check}, run.text[-2000:]


def test_healthy_nodes_pass_everything(run: Run) -> None:
    assert {node: run.failed.get(node) for node in run.healthy} == dict.fromkeys(run.healthy), run.text[
        -2000:
    ]
    assert all(run.passed.get(node, 0) >= 45 for node in run.healthy), run.passed


def test_no_failure_without_a_node(run: Run) -> None:
    assert run.failed.keys() <= set(run.node_of.values())


@pytest.mark.parametrize("kind", ["node_hanging", "prolog_failing", "epilog_hanging"])
def test_a_node_that_takes_part_in_nothing_takes_no_other_along(
    sandbox: Sandbox, tmp_path: Path, kind: str
) -> None:
    sandbox.fault(kind, "gpu03")
    run = suites(sandbox, tmp_path, {kind: "gpu03"})
    # a batch job may have been sent there: then a check of the whole cluster fails too
    assert {node: checks for node, checks in run.failed.items() if node} == {"gpu03": {FAULTS[kind].check}}
    assert all(run.passed.get(node, 0) >= 45 for node in run.healthy), run.text[-2000:]


def test_an_epilog_that_fails_as_the_nodes_go_back_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    # the batch jobs of the slurm suite end on the first nodes
    sandbox.fault("epilog_failing", "gpu04")
    run = suites(sandbox, tmp_path, {"epilog_failing": "gpu04"})
    assert run.failed == {}, "it had not run yet"
    assert "ERROR: slurm.epilog on gpu04: failed as the nodes were given back" in run.text
    assert "Epilog error" in run.text
    assert run.rc == 1
    told = [event["message"] for event in read_events(tmp_path / "events.jsonl") if event["event"] == "error"]
    assert [text.partition(": failed")[0] for text in told] == ["slurm.epilog on gpu04"]


def test_an_epilog_that_fails_after_a_batch_job_leaves_a_node_out(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("epilog_failing", "gpu01")
    run = suites(sandbox, tmp_path, {"epilog_failing": "gpu01"})
    assert run.failed == {"gpu01": {"slurm.schedulable"}}, run.text[-3000:]
    assert 'not tested: gpu01: DRAINED: "Epilog error"' in run.text
    assert run.rc == 1
