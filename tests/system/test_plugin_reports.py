"""How an item ends, and what terminal, JUnit and event log say of it."""

from __future__ import annotations

import json
import shlex
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import ENDS, Run, cluster_file, names, on, run_pytest
from sandbox_helpers import environment

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = {"test_ends.py": ENDS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ends")


@pytest.fixture
def ends(sandbox: Sandbox, folder: Path) -> Run:
    """One run of a suite with every kind of end, made once."""
    if (folder / "reports").exists():
        return Run(1, (folder / "out").read_text(), "", folder)
    run = run_pytest(folder, on(sandbox), "--nodes=gpu[01-02]", "-v", files=SUITE)
    (folder / "out").write_text(run.out)
    assert run.rc == 1
    return run


@pytest.mark.essential
def test_a_verdict_fails_and_broken_infrastructure_is_an_error(ends: Run) -> None:
    outcomes = ends.outcomes
    per_node = {
        "passed": ["good"],
        "failed": ["assert", "count"],
        "error": ["broken", "in_setup"],  # an exception of the test proves nothing of a node
        "not checked": ["absent"],
        "not applicable": ["fabric"],
    }
    for outcome, tests in per_node.items():
        found = [name for name in names(outcomes, outcome) if "[" in name]
        assert found == [f"test_{test}[gpu0{n}]" for test in tests for n in (1, 2)], outcome
    assert names(outcomes, "error")[-1] == "test_no_answer"
    assert ends.event("finish")["failed"] == 4
    assert "coverage: 6 of 15 checks judged, 2 not applicable, 2 not checked, 5 error" in ends.out


@pytest.mark.essential
def test_junit_is_what_jenkins_reads(ends: Run) -> None:
    kinds = {
        key: [type(result).__name__ for result in case.result]
        for key, case in ends.cases.items()
        if ".gpu02" in key or ".cluster" in key
    }
    assert kinds == {
        "gpucluster.ends.gpu02 test_good": [],
        "gpucluster.ends.gpu02 test_count": ["Failure"],
        "gpucluster.ends.gpu02 test_assert": ["Failure"],
        "gpucluster.ends.gpu02 test_broken": ["Error"],
        "gpucluster.ends.gpu02 test_absent": ["Skipped"],
        "gpucluster.ends.gpu02 test_fabric": ["Skipped"],
        "gpucluster.ends.gpu02 test_in_setup": ["Error"],
        "gpucluster.ends.cluster test_no_answer": ["Error"],
    }
    root = ET.parse(ends.reports / "junit.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert count == {"tests": 15, "failures": 4, "errors": 5, "skipped": 4}


@pytest.mark.essential
def test_a_failed_check_says_everything_in_all_three_places(ends: Run) -> None:
    first = "ends.count on gpu02: GPUs: measured 8, expected 9"
    lines = [
        first,
        "of one node alone: a GPU fell off the bus",  # all nodes fail alike
        "; reseat it",
        "Slurm state: IDLE",
        "rerun:        pytest",
        "note:         SIMULATED",
    ]
    case = ends.cases["gpucluster.ends.gpu02 test_count"]
    (failure,) = case.result
    for line in lines:
        assert line in ends.out
        assert line in failure.text
    assert failure.message == first
    properties = {(prop.get("name"), prop.get("value")) for prop in case._elem.iter("property")}
    assert {
        ("suite", "ends"),
        ("check", "ends.count"),
        ("node", "gpu02"),
        ("simulated", "true"),
        ("action", "configure"),  # all nodes fail alike
        ("finding", "GPUs: measured 8, expected 9"),
        ("metric shown", "8 GPUs"),
    } <= properties
    (event,) = (e for e in ends.events if e.get("nodeid", "").endswith("test_count[gpu02]"))
    told = tuple(event[key] for key in ("outcome", "phase", "check", "node"))
    assert told == ("failed", "call", "ends.count", "gpu02")
    assert event["message"] == first
    data = {"code": "count", "part": {"kind": "gpu"}, "measured": {"number": 8}, "expected": {"number": 9}}
    assert event["verdicts"][0]["findings"] == [data]
    assert json.loads(dict(properties)["finding_data"]) == data | {"action": "configure"}
    (metric,) = event["metrics"]
    assert (metric["name"], metric["value"], metric["unit"], metric["part"]) == ("shown", 8.0, "GPUs", {})
    assert event["annotation"]["reproduce"]
    # a plain assert has the annotation too, and pytest's own explanation
    (failure,) = ends.cases["gpucluster.ends.gpu01 test_assert"].result
    for words in ("node gpu01", "Slurm state: IDLE", ".size == 1"):
        assert words in failure.text
    assert "Slurm state: IDLE" in ends.out.partition("test_assert[gpu01]")[2]


def test_the_command_by_hand_runs(ends: Run, sandbox: Sandbox) -> None:
    (event,) = (e for e in ends.events if e.get("nodeid", "").endswith("test_count[gpu02]"))
    (line,) = event["annotation"]["reproduce"]
    words = shlex.split(line)
    assert "-w gpu02" in line
    env = environment()
    env.pop("SLURM_CONF", None)  # a fresh prompt knows nothing of the sandbox
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=1200, check=True)
    assert done.stdout.strip() == "8"


@pytest.mark.essential
def test_the_summary_has_nodes_by_suites_and_metrics(ends: Run) -> None:
    after = ends.out.partition("cluster sandbox (SIMULATED)")[2].splitlines()
    assert after[1].split() == ["nodes", "ends"]
    (row,) = (line for line in after if line.startswith("gpu[01-02]"))
    assert row.split(None, 1)[1] == "1 ok, 1 FAILED, 2 ERROR, 1 failed alike, 1 not checked"
    assert any(line.split()[:3] == ["latency", "us", "2"] for line in after)
    assert "not checked: ends.absent on gpu[01-02]: absent: " in ends.out
    assert "no-such-tool" in ends.out


ERRORS = "from pytest_gpucluster.core.errors import NotApplicable, NotAvailable\n\n\n"


def test_a_verdict_not_checked_is_an_error_where_required(sandbox: Sandbox, tmp_path: Path) -> None:
    code = f"{ERRORS}def test_a(gpucluster_node):\n    raise NotAvailable('dmesg: no permission')\n"
    loose = cluster_file(sandbox, tmp_path, nodes="gpu01")
    run = run_pytest(tmp_path, f"--cluster={loose}", files={"test_r.py": code})
    assert list(run.outcomes.values()) == ["not checked", "error"]  # of a node without any result
    assert run.rc == 1
    strict = cluster_file(sandbox, tmp_path, nodes="gpu01", required=["r.a"])
    run = run_pytest(tmp_path, f"--cluster={strict}", files={"test_r.py": code})
    assert run.rc == 1
    (error,) = run.cases["gpucluster.r.gpu01 test_proved"].result
    assert (type(error).__name__, "dmesg: no permission" in error.text) == ("Error", True)


NONE = "def test_a(gpucluster_node):\n    raise NotApplicable('none')\n"
SKIPPED = "import pytest\n@pytest.mark.skip(reason='mine')\ndef test_a(gpucluster_node): pass\n"


@pytest.mark.parametrize(
    ("code", "options", "printed"),
    [
        ("", ("-n0",), "no check was executed"),
        ("def test_a(gpucluster_node): pass\n", ("-k", "nothing"), "no check was executed"),
        (f"{ERRORS}{NONE}", ("-n0",), "about the cluster: none"),
        (SKIPPED, ("-n2",), "no check was executed"),
    ],
)
def test_nothing_executed_is_never_a_success(tmp_path: Path, code: str, options: tuple[str, ...], printed: str) -> None:
    run = run_pytest(tmp_path, "--cluster=local", *options, files={"test_none.py": code})
    reported = "skip" in code or "raise" in code  # else the run leaves the reports as they were
    assert run.rc == (1 if reported else 4)
    assert [printed in line for line in run.errors] == [True], run.out
    assert (tmp_path / "reports" / "latest").exists() is reported
