"""The isolation suite on a sandbox that isolates jobs by real cgroups: healthy, and with one fault per node."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT
from plugin_helpers import Run, names, on, run_pytest
from sandbox_helpers import sandbox_folder, wait_for

from pytest_gpucluster import suites_path
from pytest_gpucluster.report.history.run_snapshot import check_of
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from slurm_sandbox.isolation import CONTROLLERS, Isolation, why_not
from slurm_sandbox.isolation_faults import KINDS

OUTSIDE_TMP = Path("/var/tmp")  # the jobs have another /tmp
CLUSTER = ""  # the node of an item about all nodes


def run_suite(box: Sandbox, folder: Path, *words: object) -> Run:
    folder.mkdir(exist_ok=True)
    words = ("-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", *words)
    return run_pytest(folder, on(box), *words, where=[str(ROOT / "suites/isolation")], env=box.env)


def not_passed(run: Run) -> dict[str, set[str]]:
    """Return {end: items}."""
    found: dict[str, set[str]] = {}
    for nodeid, end in run.outcomes.items():
        if end != "passed":
            found.setdefault(end, set()).add(nodeid.rpartition("::")[2])
    return found


def failed(run: Run) -> dict[str, set[str]]:
    """Return {node: checks that failed}."""
    found: dict[str, set[str]] = {}
    for result in read_log(run.reports / "events.jsonl").results:
        node, check = check_of(result)
        if result.outcome == "failed":
            found.setdefault(node, set()).add(check)
    return found


@pytest.mark.usefixtures("mounts_of_machine")
def test_each_fault_is_found_by_its_check_on_its_node_alone_and_healthy_nodes_pass_everything(tmp_path: Path) -> None:
    if why := why_not(OUTSIDE_TMP, "plain"):
        pytest.skip(why)
    with sandbox_folder(OUTSIDE_TMP) as folder:
        box = Sandbox(folder / "s")
        # a node for every fault; the first one is where srun --pty runs
        box.up(nodes=len(KINDS) + 1, isolation=True)
        kinds = sorted(KINDS, key=lambda kind: kind != "pty_missing")
        node_of = dict(zip(kinds, box.nodes, strict=False))
        for kind, node in node_of.items():
            box.fault(kind, node)
        run = run_suite(box, tmp_path / "faulty", "--intrusive")
        expected = {node_of[kind]: {*FOUND_BY[kind]} for kind in KINDS}
        # srun --pty is judged once for all nodes
        expected[CLUSTER] = expected.pop(node_of["pty_missing"])
        assert failed(run) == expected, run.out
        assert f"isolation.pty: {node_of['pty_missing']}" in run.out
        assert names(run.outcomes, "error") == []
        box.heal()
        healed = run_suite(box, tmp_path / "healed", "--intrusive")
        assert healed.rc == 0, healed.out
        logins = {f"test_login[{node}]" for node in box.nodes}  # root needs no job to log in
        assert not_passed(healed) == {"not applicable": logins}
        assert len(healed.outcomes) == 6 * len(box.nodes) + 1
        # a node shows `comp` until its epilog has ended
        wait_for(lambda: set(box.status()["nodes"].values()) == {"idle"}, "all nodes are idle")
        own = Isolation(box.layout).cgroup
        folders = [Path("/sys/fs/cgroup", controller, own) for controller in CONTROLLERS]
        assert all(folder.exists() for folder in folders)
        box.down()
        assert not any(folder.exists() for folder in folders)
        assert str(box.layout.root) not in Path("/proc/self/mountinfo").read_text()


def test_the_usual_sandbox_isolates_nothing_and_opens_a_terminal(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_suite(sandbox, tmp_path, "--intrusive")
    assert run.rc == 1, run.out
    outcomes = {nodeid.rpartition("::")[2]: end for nodeid, end in run.outcomes.items()}
    assert outcomes.pop("test_pty") == "passed"
    assert outcomes["test_cpus[gpu01]"] == outcomes["test_tmp[gpu01]"] == "not checked"
    assert {end for name, end in outcomes.items() if "proved" in name} == {"error"}
    assert "passed" not in outcomes.values(), outcomes


def test_isolation_is_left_out_by_one_line_where_slurm_isolates_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--collect-only", where=(suites_path(),))
    assert "nothing to test: isolation: Slurm isolates no job from another" in run.out
    assert "test_isolation.py" not in run.out
