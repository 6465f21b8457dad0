"""One item a node, and pytest's own ways to choose among them."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import TINY, cluster_file, jobs_so_far, names, on, run_pytest
from sandbox_helpers import left_in_queue

from pytest_gpucluster.plugin.options import strange_words
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = {"test_tiny.py": TINY}
ALL = {
    "test_tiny.py::test_whole",
    *(f"test_tiny.py::test_{test}[gpu0{n}]" for test in ("named", "release") for n in (1, 2, 3, 4)),
}


def test_collecting_starts_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    before = jobs_so_far(sandbox)
    run = run_pytest(tmp_path, on(sandbox), "--collect-only", "-q", files=SUITE)
    assert run.rc == 0, run.out
    assert {line for line in run.out.splitlines() if "::" in line} == ALL
    assert jobs_so_far(sandbox) == before
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("options", "where", "chosen"),
    [
        (("--nodes=gpu[01-02]", "--exclude-nodes=gpu01", "-m", "site", "-k", "marked"), ".", "marked[gpu02]"),
        ((), "test_tiny.py::test_named[gpu03]", "named[gpu03]"),
    ],
)
def test_pytests_own_choices_work_and_only_their_nodes_are_taken(
    sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...], where: str, chosen: str
) -> None:
    marked = "import pytest\n@pytest.mark.site\ndef test_marked(gpucluster_node): pass\n"
    files = {**SUITE, "test_marked.py": marked, "pytest.ini": "[pytest]\nmarkers =\n    site: of ours\n"}
    run = run_pytest(tmp_path, on(sandbox), *options, files=files, where=[where])
    assert run.rc == 0, run.out
    assert names(run.outcomes, "passed") == [f"test_{chosen}"]
    if options:
        assert run.event("allocation")["nodes"] == ["gpu02"]


def test_last_failed_runs_the_failed_nodes_again(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "def test_odd(gpucluster_node):\n    assert gpucluster_node.name not in ('gpu02', 'gpu03')\n"
    first = run_pytest(tmp_path, on(sandbox), files={"test_odd.py": code})
    assert first.rc == 1
    assert first.event("finish")["processes"]["srun"] == 1
    again = run_pytest(tmp_path, on(sandbox), "--lf")
    assert names(again.outcomes, "failed") == ["test_odd[gpu02]", "test_odd[gpu03]"]
    assert len(again.outcomes) == 2
    stopped = run_pytest(tmp_path, on(sandbox), "-x")
    assert names(stopped.outcomes, "failed") == ["test_odd[gpu02]"]
    assert len(stopped.outcomes) == 2
    assert stopped.event("finish")["failed"] == 1
    assert left_in_queue(sandbox) == []


def test_arguments_of_salloc(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import subprocess


def test_job(gpucluster_allocation, gpucluster, gpucluster_node):
    shown = gpucluster_allocation.slurm.run("scontrol", "show", "job", str(gpucluster_allocation.job_id))
    open("job.txt", "w").write(shown)
    assert gpucluster_node.profile.name == "generic"
"""
    options = (
        "--set=slurm.partition=debug",
        "--set=slurm.account=ops",
        "--time=7m",
        "--nodes=gpu02",
        "--profile=generic",
    )
    run = run_pytest(tmp_path, on(sandbox), *options, "--report-dir=a/b", files={"test_job.py": code})
    assert run.rc == 0, run.out
    shown = (tmp_path / "job.txt").read_text()
    for words in ("Partition=debug", "Account=ops", "TimeLimit=00:07:00", "NodeList=gpu02"):
        assert words in shown
    written = {path.stem for path in (tmp_path / "a" / "b" / "latest").iterdir()}
    assert written == {"events", "junit", "metrics", "record", "report"}
    assert not (tmp_path / "reports").exists()


def test_junitxml_is_a_file_of_pytest_with_the_properties_of_the_plugin(tmp_path: Path) -> None:
    code = """
import pytest

def test_fact(gpucluster_node):
    pass

def test_own(gpucluster_node, request, record_property):
    record_property("site_token", "hunter2")
    record_property("site", "east")
"""
    options = ("--cluster=local", "--junitxml=$HERE/mine.xml")
    run = run_pytest(tmp_path, *options, files={"test_site.py": code}, env={"HERE": str(tmp_path)})
    assert run.rc == 0, run.out
    (node,) = run.events[1]["selected"]
    own = {("site_token", "<redacted>"), ("site", "east")}  # what passed on one node has those of its own test alone
    (suite,) = ET.parse(tmp_path / "mine.xml").iter("testsuite")
    # pytest writes these at the start of the run: they cannot have the verdict
    of_run = {("run", run.events[0]["run"]), ("cluster", "local"), ("nodes", node)}
    assert pairs(suite.find("properties")) == of_run
    cases = {case.get("name"): pairs(case) for case in suite.iter("testcase")}
    assert cases == {f"test_fact[{node}]": set(), f"test_own[{node}]": own}
    assert (tmp_path / "mine.xml").stat().st_mode & 0o777 == 0o600


def pairs(element: Any) -> set[tuple[str, str]]:
    return {(it.get("name"), it.get("value")) for it in element.iter("property")}


def test_groups_in_two_partitions_have_an_allocation_each(sandbox: Sandbox, tmp_path: Path) -> None:
    groups = [{"nodes": "gpu[01-02]"}, {"nodes": "gpu03", "partition": "debug"}]
    slurm = {"conf": sandbox.env["SLURM_CONF"], "partition": "batch", "time": "10m"}
    path = cluster_file(sandbox, tmp_path, nodes=None, groups=groups, slurm=slurm)
    run = run_pytest(tmp_path, f"--cluster={path}", files=SUITE)
    assert run.rc == 0, run.out
    held = [event["nodes"] for event in run.events if event["event"] == "allocation"]
    assert held == [["gpu01", "gpu02"], ["gpu03"]]
    assert len(names(run.outcomes, "passed")) == 7


def test_a_slip_in_a_marker_ends_the_run_before_it_takes_nodes(tmp_path: Path) -> None:
    files = {"test_a.py": "import pytest\n@pytest.mark.gpu\ndef test_a(gpucluster_node): pass\n"}
    run = run_pytest(tmp_path, "--cluster=local", "-m", "os or gpuu", files=files)
    assert (run.rc, run.outcomes) == (4, {})
    assert "no marker is called 'gpuu'; did you mean 'gpu'?" in run.out + run.err
    assert strange_words("not (gpu or os) and mine(key='gpuu') or oss", ["gpu", "os"]) == ["mine", "oss"]


def test_a_rerun_and_the_log_have_the_changes_of_the_run(tmp_path: Path) -> None:
    code = "def test_odd(gpucluster_node):\n    assert not gpucluster_node.name\n"
    changes = ("--set", "reports.keep=5", "--set", "required=[os.*]")
    run = run_pytest(tmp_path, "--cluster=local", *changes, files={"test_x.py": code})
    again = "rerun:        pytest --cluster=local --set reports.keep=5 --set 'required=[os.*]' 'test_x.py::test_odd["
    assert again in run.out
    assert run.event("start")["scope"] == {"--set": ["reports.keep=5", "required=[os.*]"]}


def test_a_budget_tests_a_part_of_the_nodes_and_accepts_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        history = f"--history={tmp_path / 'h.sqlite'}"
        return run_pytest(tmp_path, on(sandbox), "-m", "os", history, *words, where=(str(ROOT / "suites"),))

    first = run()
    assert "cost: unknown without a history" in first.out
    with contextlib.closing(History(tmp_path / "h.sqlite")) as history:
        ((seconds,),) = history.query("SELECT finished - started FROM runs")
    budget = f"--budget={2.5 * seconds / 3600:.6f}nodeh"
    second = run(budget)
    assert second.event("nodes")["selected"] == ["gpu01", "gpu02"]
    assert {"--budget", "--exclude-nodes"} <= second.event("start")["scope"].keys()
    assert judge(read_run(second.events)).outcome == "passed"
    assert "left out: gpu[03-04]" in second.out
    whole = run("--budget=4000nodeh")
    assert "--budget" not in whole.event("start")["scope"]
    assert "does not pay for one node" in run("--budget=0.000001nodeh").err
    for words in (("--punchlist",), ("--campaign=x",), ("--resume-passing",)):
        assert "leave one of the two out" in run(budget, *words).err
