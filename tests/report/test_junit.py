"""JUnit: the live file and the one from the event log are alike, valid, and named alike night after night; merging."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import tracemalloc
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
import xmlschema
from junitparser import xunit2
from paths import DATA
from plugin_helpers import ENDS, Run, cases, command, on, out_of_service, run_pytest
from report_helpers import junit_tree
from sandbox_helpers import environment, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli import run_command
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report import junit
from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.junit_merge import Merged, merge
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SCHEMAS = {name: xmlschema.XMLSchema(str(DATA / "junit" / f"{name}.xsd")) for name in ("xunit2", "jenkins")}
MORE = """
import pytest


@pytest.mark.parametrize("size", ["1MiB", "4GiB"])
def test_sizes(gpucluster_node, size, record_property):
    record_property("site", "east <1>")


class TestDisk:
    def test_sizes(self, gpucluster_node):
        pass


def test_teardown(gpucluster_node, breaks):
    pass


def test_both(gpucluster_node, breaks):
    assert gpucluster_node.name == "no"


@pytest.fixture
def breaks():
    yield
    raise OSError("teardown <breaks> & \\x00")
"""


def assert_valid(path: Path) -> None:
    """Check a file as Jenkins' junit step reads it, and without testcases' properties as xunit2."""
    assert [error.reason for error in SCHEMAS["jenkins"].iter_errors(str(path))] == []
    tree = ET.parse(path)
    for case in tree.iter("testcase"):
        for properties in case.findall("properties"):
            case.remove(properties)
    assert [error.reason for error in SCHEMAS["xunit2"].iter_errors(tree)] == []


def cases_of(path: Path) -> list[tuple[Any, ...]]:
    """Return all that two files of one run are to agree on, of every testcase."""
    found = []
    for case in ET.parse(path).iter("testcase"):
        results = [
            (child.tag, child.get("message", "").partition("\n")[0], child.get("type"))
            for child in case
            if child.tag in ("failure", "error", "skipped")
        ]
        pairs = sorted((p.get("name"), p.get("value")) for p in case.iter("property"))
        found.append((case.get("classname"), case.get("name"), results, pairs, case.findtext("system-out")))
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("junit")


@pytest.fixture
def night(sandbox: Sandbox, folder: Path) -> Run:
    """One run with every kind of end, a drained node among them, made once."""
    if not (folder / "reports").exists():
        with out_of_service(sandbox, "gpu03", "DRAIN", 'bad "cable" <4711>'):
            run = run_pytest(
                folder, on(sandbox), "--nodes=gpu[01-03]", files={"test_ends.py": ENDS, "test_more.py": MORE}
            )
        assert run.rc == 1
    return Run(1, "", "", folder)


def test_the_live_file_is_valid(night: Run) -> None:
    assert_valid(folder_of(night) / "junit.xml")


def folder_of(run: Run) -> Path:
    return run.folder / "reports" / "latest"


def test_the_schemas_refuse_what_is_wrong(night: Run) -> None:
    tree = ET.parse(folder_of(night) / "junit.xml")
    assert not SCHEMAS["xunit2"].is_valid(tree)  # a testcase has properties
    for case in tree.iter("testcase"):
        case.set("file", "test_x.py")  # xunit1
    assert not SCHEMAS["jenkins"].is_valid(tree)


def test_a_file_from_the_log_equals_the_live_one(night: Run, tmp_path: Path) -> None:
    again = tmp_path / "again.xml"
    junit.write(read_log(folder_of(night) / "events.jsonl"), again)
    assert_valid(again)
    assert cases_of(again) == cases_of(folder_of(night) / "junit.xml")
    counts = [
        {
            key: next(ET.parse(path).iter("testsuite")).get(key)
            for key in ("tests", "failures", "errors", "skipped")
        }
        for path in (again, folder_of(night) / "junit.xml")
    ]
    assert counts[0] == counts[1]


def test_names_have_no_node_and_classes_have_it(night: Run) -> None:
    names = {(row[0], row[1]) for row in cases_of(folder_of(night) / "junit.xml")}
    assert {
        ("gpucluster.more.gpu01", "test_sizes[1MiB]"),
        ("gpucluster.more.gpu02", "test_sizes[4GiB]"),
        ("gpucluster.more.gpu02", "TestDisk::test_sizes"),
        ("gpucluster.ends.cluster", "test_no_answer"),
    } <= names
    twice = [
        row for row in cases_of(folder_of(night) / "junit.xml") if row[1] == "test_both" and "gpu01" in row[0]
    ]
    assert [row[2][0][0] for row in twice] == [
        "error",
        "failure",
    ]  # pytest writes two where teardown breaks too


def test_system_out_has_the_annotation(night: Run) -> None:
    found = {(row[0], row[1]): row[4] for row in cases_of(folder_of(night) / "junit.xml")}
    assert "Slurm state: IDLE" in found["gpucluster.ends.gpu01", "test_count"]
    assert "reproduce:" in found["gpucluster.ends.gpu01", "test_count"]
    assert found["gpucluster.ends.gpu01", "test_good"] is None
    (drained,) = {told for (name, _), told in found.items() if "gpu03" in name and told}
    assert 'reason: "bad "cable" <4711>" by root' in drained


def test_the_second_night_has_the_same_names(night: Run, sandbox: Sandbox, folder: Path) -> None:
    with out_of_service(sandbox, "gpu03", "DRAIN", "another reason"):
        run_pytest(folder, on(sandbox), "--nodes=gpu[01-03]", "--report-dir=second", "-n", "2")
    first, second = (
        {row[:2] for row in cases_of(folder / name / "latest" / "junit.xml")}
        for name in ("reports", "second")
    )
    assert first == second


def test_a_run_that_was_killed_is_red(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import time\n\ndef test_a(gpucluster_node):\n    pass\n\ndef test_b(gpucluster_node):\n    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        command(on(sandbox), "--nodes=gpu01", "."),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "reports" / "latest" / "events.jsonl"
    try:
        wait_for(lambda: log.exists() and '"result"' in log.read_text(), "the first result")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "reports" / "latest" / "junit.xml").exists()
    junit.write(read_log(log), tmp_path / "junit.xml")
    assert_valid(tmp_path / "junit.xml")
    found = cases(tmp_path / "junit.xml")
    assert found["gpucluster.long.gpu01 test_a"].is_passed
    (error,) = found["gpucluster.run.cluster test_finished"].result
    assert "killed" in error.message


def test_a_run_that_executed_nothing_is_red(sandbox: Sandbox, tmp_path: Path) -> None:
    files = {
        "test_none.py": "import pytest\n\n@pytest.mark.skip(reason='no')\ndef test_a(gpucluster_node):\n    pass\n"
    }
    run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu01", files=files)
    assert run.rc == 1
    (error,) = run.cases["gpucluster.run.cluster test_finished"].result
    assert error.message == "no check was executed: this run says nothing about the cluster"
    junit.write(read_run(run.events), tmp_path / "again.xml")
    assert cases_of(tmp_path / "again.xml") == cases_of(tmp_path / "reports" / "latest" / "junit.xml")


def result(
    test: str, outcome: str = "passed", *, node: str = "gpu01", message: str = "", **fields: Any
) -> dict[str, Any]:
    nodeid = f"suites/gpu/test_gpu.py::{test}" + (f"[{node}]" if node else "")
    known = {"suite": "gpu", "check": f"gpu.{test.removeprefix('test_')}", "node": node, "phase": "call"}
    return {
        "event": "result",
        "time": 1.5,
        "nodeid": nodeid,
        "outcome": outcome,
        "seconds": 0.5,
        "message": message,
        **known,
        **fields,
    }


def shard(
    path: Path, results: list[dict[str, Any]], *, began: float, nodes: tuple[str, ...] = ("gpu01",)
) -> Path:
    """Write the JUnit file of a finished run."""
    start = {"event": "start", "time": began, "run": f"run{began:g}", "cluster": "prod", "simulated": False}
    about = {"event": "nodes", "time": began, "selected": list(nodes)}
    finish = {"event": "finish", "time": began + 1, "complaints": []}
    junit.write(read_run([start, about, *({**told, "time": began} for told in results), finish]), path)
    return path


def test_hostile_text_makes_a_valid_file(tmp_path: Path) -> None:
    bad = "\x00\x1b[31m ]]> <a b='&\"'> \ud800 \ufffe \x85"
    hostile = result("test_x", "failed", message=bad, annotation=[bad], properties=[[bad, bad]], text=bad)
    path = shard(tmp_path / "a.xml", [hostile], began=1)
    assert_valid(path)
    (case,) = cases(path).values()
    assert case.result[0].text.startswith("??[31m ]]> <a b='&\"'> ?")


def test_metrics_and_findings_are_properties() -> None:
    verdict = {"findings": [{"part": "GPU 4", "measured": "17", "expected": "18"}], "action": "drain"}
    metrics = [
        {"name": "busbw", "value": 361.25, "unit": "GB/s", "device": ""},
        {"name": "temperature", "value": "NaN", "unit": "C", "device": "GPU 4"},
    ]
    told = result("test_x", "failed", verdicts=[verdict], metrics=metrics)
    assert junit.properties(read_result(told), state="IDLE", reason="r", simulated=True) == [
        ("suite", "gpu"),
        ("check", "gpu.x"),
        ("node", "gpu01"),
        ("slurm_state", "IDLE"),
        ("slurm_reason", "r"),
        ("simulated", "true"),
        ("action", "drain"),
        ("finding", "GPU 4: measured 17, expected 18"),
        ("metric busbw", "361.25 GB/s"),
        ("metric temperature[GPU 4]", "NaN C"),
    ]


# The part of pytest-rerunfailures that other plugins see: a report of a failed attempt has the outcome `rerun`.
RERUNS = """
import pytest
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    for attempt in (1, 2, 3):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            if report.failed and attempt < 3:
                report.outcome = "rerun"
                item.ihook.pytest_runtest_logreport(report=report)
                break
            item.ihook.pytest_runtest_logreport(report=report)
        else:
            return True
"""
UNSTEADY = """
count = {}


def test_unsteady(gpucluster_node):
    count[gpucluster_node.name] = count.get(gpucluster_node.name, 0) + 1
    assert count[gpucluster_node.name] == 2, "the first <time>"


def test_bad(gpucluster_node):
    assert not gpucluster_node, "ever"


def test_good(gpucluster_node):
    pass
"""


def test_an_item_that_was_run_again_shows_its_earlier_attempts(sandbox: Sandbox, tmp_path: Path) -> None:
    files = {"conftest.py": RERUNS, "test_unsteady.py": UNSTEADY}
    run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu01", files=files)
    assert sorted(run.outcomes.values()) == ["failed", "passed", "passed"]  # each counts once
    assert_valid(tmp_path / "reports" / "latest" / "junit.xml")
    junit.write(read_run(run.events), tmp_path / "again.xml")
    for path in (tmp_path / "reports" / "latest" / "junit.xml", tmp_path / "again.xml"):
        read: Any = xunit2.JUnitXml.fromfile(str(path))
        found = {case.name: attempts(case)[:2] for suite in read for case in suite}
        assert found == {
            "test_unsteady": ([], ["FlakyFailure"]),
            "test_bad": (["Failure"], ["RerunFailure", "RerunFailure"]),
            "test_good": ([], []),
        }
        (flaky,) = (
            case.interim_result[0] for suite in read for case in suite if case.name == "test_unsteady"
        )
        assert "the first <time>" in flaky.stack_trace
    assert cases_of(tmp_path / "again.xml") == cases_of(tmp_path / "reports" / "latest" / "junit.xml")


# --- a file from events, exactly


def case_of(*events: dict[str, Any], finish: dict[str, Any] | None = None) -> list[str]:
    """Return the testcases of a run's events as text."""
    start = {"event": "start", "time": 1.0, "run": "r1", "cluster": "prod", "simulated": False}
    end = finish if finish is not None else {"event": "finish", "time": 9.0, "complaints": []}
    root = junit_tree([start, *events, end])
    return [ET.tostring(case, encoding="unicode") for case in root.iter("testcase")]


HEAD = '<testcase classname="gpucluster.gpu.gpu01" name="test_x" time="0.500"><properties>'
SAYS = (
    '<property name="suite" value="gpu" /><property name="check" value="gpu.x" />'
    '<property name="node" value="gpu01" /></properties>'
)


@pytest.mark.parametrize(
    ("outcome", "fields", "inside"),
    [
        ("passed", {}, ""),
        ("failed", {"message": "7", "text": "long"}, '<failure message="7">long</failure>'),
        ("failed", {"message": "7"}, '<failure message="7">7</failure>'),
        ("failed", {"message": "7", "text": ""}, '<failure message="7">7</failure>'),
        (
            "error",
            {"message": "no answer", "phase": "setup", "text": "long"},
            '<error message="failed on setup with &quot;no answer&quot;">long</error>',
        ),
        (
            "error",
            {"message": "broke", "phase": "teardown"},
            '<error message="failed on teardown with &quot;broke&quot;">broke</error>',
        ),
        (
            "not checked",
            {"message": "not checked: no right"},
            '<skipped type="pytest.skip" message="not checked: no right">not checked: no right</skipped>',
        ),
        ("skipped", {"message": "why"}, '<skipped type="pytest.skip" message="why">why</skipped>'),
        (
            "failed",
            {"message": "7", "annotation": ["Slurm state: IDLE", "again: x"]},
            '<system-out>Slurm state: IDLE\nagain: x</system-out><failure message="7">7</failure>',
        ),
        ("passed", {"annotation": ["a"]}, "<system-out>a</system-out>"),
        ("passed", {"annotation": []}, ""),
    ],
)
def test_how_a_testcase_ends(outcome: str, fields: dict[str, Any], inside: str) -> None:
    assert case_of(result("test_x", outcome, **fields)) == [f"{HEAD}{SAYS}{inside}</testcase>"]


def test_a_pass_whose_teardown_broke_is_one_red_testcase() -> None:
    broken = result("test_x", "error", message="broke", phase="teardown")
    (case,) = case_of(result("test_x"), broken)
    assert (
        case
        == f'{HEAD}{SAYS}<error message="failed on teardown with &quot;broke&quot;">broke</error></testcase>'
    )
    (case,) = case_of(broken, result("test_x", "skipped"))
    assert "<error" in case
    both = case_of(result("test_x", "failed", message="7"), broken)
    assert ["<failure" in case for case in both] == [True, False]  # as pytest writes it: two
    assert ["<error" in case for case in both] == [False, True]


def test_a_failure_on_another_node_hides_no_pass() -> None:
    cases = case_of(result("test_x", "failed"), result("test_x", node="gpu02"))
    assert len(cases) == 2


def rerun(phase: str = "call", **fields: Any) -> dict[str, Any]:
    return result("test_x", phase=phase, message="first <1>", **fields) | {"event": "rerun", "text": "long"}


@pytest.mark.parametrize(
    ("phase", "outcome", "tag"),
    [
        ("call", "passed", "flakyFailure"),
        ("setup", "passed", "flakyError"),
        ("teardown", "passed", "flakyError"),
        ("call", "failed", "rerunFailure"),
        ("call", "error", "rerunFailure"),
        ("setup", "failed", "rerunError"),
        ("call", "not checked", "flakyFailure"),
    ],
)
def test_an_earlier_attempt_with_its_annotation(phase: str, outcome: str, tag: str) -> None:
    again = rerun(phase, annotation=["Slurm state: IDLE", "again: x"])
    (case,) = case_of(again, result("test_x", outcome, message="m"))
    assert (
        f'</properties><{tag} message="first &lt;1&gt;" type="rerun"><stackTrace>long</stackTrace>'
        f"<system-out>Slurm state: IDLE\nagain: x</system-out></{tag}>"
    ) in case
    (case,) = case_of(rerun(phase), result("test_x", outcome, message="m"))
    assert f"<stackTrace>long</stackTrace></{tag}>" in case


def test_earlier_attempts_belong_to_one_testcase_in_their_order() -> None:
    first, second = rerun(), rerun("setup")
    cases = case_of(
        first, second, result("test_x"), result("test_x", "error", phase="teardown"), result("test_y")
    )
    assert [case.count("rerunFailure") + case.count("rerunError") for case in cases] == [4, 0]
    assert cases[0].index("rerunFailure") < cases[0].index("rerunError")
    both = case_of(first, result("test_x", "failed"), result("test_x", "error"))
    assert ["rerunFailure" in case for case in both] == [True, False]  # once


@pytest.mark.parametrize(
    ("finish", "message", "text"),
    [
        ({"event": "finish", "complaints": []}, None, None),
        ({"event": "finish"}, None, None),
        ({"event": "finish", "complaints": ["one", 2]}, "one", "one\n2"),
        (
            {"event": "other"},
            KILLED := "the run did not finish: it was killed, and the remaining items were not tested",
            KILLED,
        ),
    ],
)
def test_the_testcase_of_the_run(finish: dict[str, Any], message: str | None, text: str | None) -> None:
    cases = case_of(finish=finish)
    red = '<testcase classname="gpucluster.run.cluster" name="test_finished" time="0.000">'
    red += f'<error message="{message}">{text}</error></testcase>'
    assert cases == ([] if message is None else [red])


def test_of_two_finishes_the_last_counts() -> None:
    assert case_of({"event": "finish", "complaints": ["before the last one"]}) == []


def test_the_head_of_a_file() -> None:
    events = [
        {"event": "start", "time": 86400.0, "run": "r1", "cluster": "prod", "simulated": True},
        {
            "event": "nodes",
            "time": 86401.0,
            "selected": ["gpu02", "gpu01"],
            "slurm": {"gpu01": {"state": "IDLE", "reason": "why"}},
        },
        result("test_a", "failed") | {"time": 86402.25},
        result("test_b", "error") | {"time": "soon"},
        result("test_c", "skipped", node=""),
        result("test_d"),
        {"event": "finish", "time": 86410.5},
    ]
    root = junit_tree(iter(events))
    assert root.tag == "testsuites"
    assert root.attrib == {"name": "pytest tests"}
    (suite,) = root
    assert suite.attrib == {
        "name": "pytest",
        "errors": "1",
        "failures": "1",
        "skipped": "1",
        "tests": "4",
        "time": "86409.000",
        "timestamp": "1970-01-01T00:00:01.500000+00:00",
    }
    assert [(one.get("name"), one.get("value")) for one in suite[0]] == [
        ("run", "r1"),
        ("cluster", "prod"),
        ("nodes", "gpu[01-02]"),
        ("simulated", "true"),
        ("verdict", "Not accepted"),
        ("nodes fit", "0"),
        ("nodes failed", "1"),
        ("nodes not proved", "0"),
        ("nodes not tested", "1"),
    ]
    first = [(one.get("name"), one.get("value")) for one in suite[1][0]]
    assert first[2:] == [
        ("node", "gpu01"),
        ("slurm_state", "IDLE"),
        ("slurm_reason", "why"),
        ("simulated", "true"),
    ]
    assert [(one.get("name"), one.get("value")) for one in suite[3][0]] == [
        ("suite", "gpu"),
        ("check", "gpu.c"),
        ("simulated", "true"),
    ]


def test_a_log_without_a_start_has_no_head() -> None:
    root = junit_tree([result("test_a", properties=[["site", "east"], ["n", 5]])])
    assert [child.tag for child in root[0]] == ["testcase", "testcase"]
    assert [(one.get("name"), one.get("value")) for one in root[0][0][0]][:3] == [
        ("site", "east"),
        ("n", "5"),
        ("suite", "gpu"),
    ]
    assert junit_tree([])[0].get("timestamp") == "1970-01-01T00:00:00+00:00"
    assert junit_tree([])[0].get("time") == "0.000"


def test_the_file_of_a_run_is_written_whole(tmp_path: Path) -> None:
    junit.write(read_run([result("test_a")]), tmp_path / "deep" / "a.xml")
    text = (tmp_path / "deep" / "a.xml").read_text()
    assert text.startswith(
        "<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"pytest tests\">\n <testsuite name=\"pytest\""
    )
    assert text.endswith("\n</testsuites>\n")


def test_findings_have_a_limit_and_numbers_are_short() -> None:
    findings = [{"part": f"GPU {n}", "measured": "1", "expected": "2"} for n in range(21)]
    metrics = [
        {"name": "x", "value": value, "unit": "s", "device": ""}
        for value in (1.0, 0.125, 123456789, "Infinity")
    ]
    found = junit.properties(
        read_result(
            result("test_x", "failed", verdicts=[{"findings": findings, "action": "drain"}], metrics=metrics)
        )
    )
    assert [value for key, value in found if key == "finding"] == [
        f"GPU {n}: measured 1, expected 2" for n in range(20)
    ]
    assert [value for key, value in found if key == "metric x"] == [
        "1 s",
        "0.125 s",
        "1.23457e+08 s",
        "Infinity s",
    ]
    passed = junit.properties(read_result(result("test_x", verdicts=[{"findings": [], "action": "drain"}])))
    assert [key for key, _ in passed] == ["suite", "check", "node"]
    assert junit.run_properties("r", "c", ["gpu01"], simulated=False) == [
        ("run", "r"),
        ("cluster", "c"),
        ("nodes", "gpu01"),
    ]


@pytest.mark.parametrize(
    "char", ["\t", "\n", "\r", " ", "~", "\x80", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff"]
)
def test_what_xml_may_hold_stays(char: str) -> None:
    assert junit.xml_text(f"a{char}b") == f"a{char}b"


@pytest.mark.parametrize(
    "char", ["\x00", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\x7f", "\ud800", "\ufffe", "\uffff"]
)
def test_what_xml_may_not_hold_is_marked(char: str) -> None:
    assert junit.xml_text(f"a{char}b") == "a?b"


# --- merging


@pytest.mark.parametrize(
    ("stamps", "order"),
    [
        (("2026-11-21T02:00:00", "2026-11-21T01:00:00"), "passed, failed"),
        (("2026-11-21T02:00:00+00:00", "2026-11-21T02:30:00+01:00"), "passed, failed"),
        (("2026-11-21T02:00:00Z", "2026-11-21T02:30:00+01:00"), "passed, failed"),
        (("2026-11-21T02:00:00", "2026-11-21T02:30:00+01:00"), "passed, failed"),  # no zone: UTC
        (("2026-11-21T01:00:00", "2026-11-21T02:00:00"), "failed, passed"),
        (("2026-11-21T02:00:00", "yesterday"), "failed, passed"),  # the order of the files
        (("2026-11-21T02:00:00", ""), "failed, passed"),
        (("2026-11-21T02:00:00", "2026-11-21T02:00:00"), "failed, passed"),
    ],
)
def test_attempts_are_in_the_order_of_their_timestamps(
    tmp_path: Path, stamps: tuple[str, str], order: str
) -> None:
    paths = []
    for place, (end, stamp) in enumerate(zip(("failed", "passed"), stamps, strict=True)):
        path = shard(tmp_path / f"{place}.xml", [result("test_x", end, message="m")], began=1)
        path.write_text(re.sub(r'timestamp="[^"]*"', f'timestamp="{stamp}"', path.read_text()))
        paths.append(path)
    merge(paths, tmp_path / "out.xml")
    read: Any = xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    (case,) = (case for suite in read for case in suite)
    assert attempts(case)[2] == order
    (suite,) = read
    assert suite.timestamp == min(stamp for stamp in stamps if stamp)


def test_a_merged_case_keeps_the_message_of_every_attempt(tmp_path: Path) -> None:
    runs = [
        [
            rerun(annotation=["first note"]),
            result("test_x", "failed", message="7 <a>", text="", annotation=["note"]),
        ],
        [result("test_x", "error", message="8", text="long", phase="setup")],
        [result("test_x")],
    ]
    (case,) = merged(tmp_path, *runs).values()
    told = [
        (type(it).__name__, it.message, it.type, it.stack_trace, it.system_out) for it in case.interim_result
    ]
    assert told == [
        ("RerunFailure", "first <1>", "rerun", "long", "first note"),
        ("FlakyFailure", "7 <a>", "failed", "7 <a>", "note"),
        ("FlakyError", 'failed on setup with "8"', "error", "long", None),
    ]


def test_an_attempt_without_text_has_no_message(tmp_path: Path) -> None:
    for place, end in enumerate(("<failure/>", "<error/>", "")):
        (tmp_path / f"{place}.xml").write_text(
            f"<testsuites><testsuite name='x' timestamp='2026-11-2{place}T00:00:00'>"
            f"<testcase classname='c' name='t'>{end}</testcase></testsuite></testsuites>"
        )
    merge([tmp_path / f"{place}.xml" for place in range(3)], tmp_path / "out.xml")
    read: Any = xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    (case,) = (case for suite in read for case in suite)
    told = [(type(it).__name__, it.message, it.type, it.stack_trace) for it in case.interim_result]
    assert told == [("FlakyFailure", None, "failed", None), ("FlakyError", None, "error", None)]


def test_the_worst_of_several_scopes_decides(tmp_path: Path) -> None:
    runs = [
        [result("test_x", "passed", node="")],
        [result("test_x", "error", node="", message="e", text="broke")],
        [result("test_x", "skipped", node="", message="s")],
    ]
    (case,) = merged(tmp_path, *runs, nodes=(("gpu01",), ("gpu02",), ())).values()
    assert attempts(case) == (["Error"], [], "")
    assert {found.name: found.value for found in case.properties()}[
        "scopes"
    ] == "gpu02: error; gpu01: passed; ?: skipped"
    assert case.result[0].text == "broke"
    both = [
        [result("test_x", "error", node="", text="broke")],
        [result("test_x", "failed", node="", message="7", text="")],
    ]
    (case,) = merged(tmp_path, *both, nodes=(("gpu01",), ())).values()
    assert attempts(case)[0] == ["Failure"]
    assert case.result[0].text == "7\n--- nodes gpu01\nbroke"


def test_scopes_of_one_node_do_not_part_its_attempts(tmp_path: Path) -> None:
    runs = [[result("test_x", "failed")], [result("test_x", "passed")]]
    (case,) = merged(tmp_path, *runs, nodes=(("gpu01", "gpu02"), ("gpu01",))).values()
    assert attempts(case) == ([], ["FlakyFailure"], "failed, passed")


def test_a_foreign_testcase_of_a_class_cluster_has_no_scopes(tmp_path: Path) -> None:
    for place, end in enumerate(("<failure message='a'>b</failure>", "")):
        head = f"<testsuites><testsuite name='x' timestamp='2026-11-2{place}T00:00:00'><properties>"
        (tmp_path / f"{place}.xml").write_text(
            f"{head}<property name='nodes' value='n{place}'/></properties>"
            f"<testcase classname='own.cluster' name='t'>{end}</testcase></testsuite></testsuites>"
        )
    merge([tmp_path / "0.xml", tmp_path / "1.xml"], tmp_path / "out.xml")
    (case,) = (case for suite in xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml")) for case in suite)
    assert attempts(case) == ([], ["FlakyFailure"], "failed, passed")


def available(node: str, outcome: str, message: str = "gpu01 is not tested: DOWN") -> dict[str, Any]:
    known = {"suite": "run", "check": "run.available", "phase": "setup"}
    return (
        result("test_available", outcome, node=node, message=message)
        | known
        | {"nodeid": f"run::test_available[{node}]"}
    )


def test_a_node_is_back_where_a_later_file_judged_it(tmp_path: Path) -> None:
    out = available("gpu01", "error")
    for later, back in (
        ([result("test_x")], True),
        ([result("test_x", "failed")], True),
        ([result("test_x", "skipped")], False),
        ([result("test_x", node="gpu02")], False),
        ([available("gpu01", "error"), result("test_x")], False),
    ):
        found = merged(tmp_path, [out, result("test_other", node="gpu03")], later)
        case = found["gpucluster.run.gpu01 test_available"]
        assert (attempts(case)[0] == []) is back, later
    far = "gpu01.east.site.example"
    found = merged(tmp_path, [available(far, "error")], [result("test_x", node=far)])
    assert attempts(found[f"gpucluster.run.{far} test_available"])[0] == []
    # that it was there before says nothing of later
    found = merged(tmp_path, [result("test_x")], [out])
    assert attempts(found["gpucluster.run.gpu01 test_available"]) == (["Error"], [], "")


def test_the_numbers_of_a_merge() -> None:
    told = Merged(files=3, passed=4, failed=3, errors=2, skipped=1, flaky=2)
    assert str(told) == "10 testcases of 3 files: 4 passed (2 of them flaky), 3 failed, 2 errors, 1 skipped"


def test_properties_of_all_runs_are_kept_once(tmp_path: Path) -> None:
    paths = [shard(tmp_path / f"{n}.xml", [result(f"test_{n}")], began=n) for n in (1, 2)]
    merge(paths, tmp_path / "out.xml")
    read: Any = xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    (suite,) = read
    pairs = [(found.name, found.value) for found in suite.properties()]
    assert pairs == [("run", "run1"), ("cluster", "prod"), ("nodes", "gpu01"), ("run", "run2")]
    assert (suite.tests, suite.name) == (2, "pytest")


def attempts(case: Any) -> tuple[list[str], list[str], str]:
    """Return what decides a testcase, its other attempts, and how it says they ended."""
    told = {found.name: found.value for found in case.properties()}
    return (
        [type(end).__name__ for end in case.result],
        [type(interim).__name__ for interim in case.interim_result],
        told.get("attempts", ""),
    )


def merged(
    tmp_path: Path, *runs: list[dict[str, Any]], nodes: tuple[tuple[str, ...], ...] = ()
) -> dict[str, Any]:
    """Merge runs, given to the merge in reverse, and return 'classname name' -> testcase."""
    scopes = nodes or (("gpu01",),) * len(runs)
    paths = [shard(tmp_path / f"{n}.xml", run, began=n, nodes=scopes[n - 1]) for n, run in enumerate(runs, 1)]
    merge(paths[::-1], tmp_path / "out.xml")
    assert_valid(tmp_path / "out.xml")
    read = xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    return {f"{case.classname} {case.name}": case for suite in read for case in suite}


FAILED = ("failed", "7 GPUs, expected 8")
ERROR = ("error", "no answer")
SKIPPED = ("not tested", "not tested: gpu01: drained")
PASSED = ("passed", "")


@pytest.mark.parametrize(
    ("ends", "decided", "others", "listed"),
    [
        ([PASSED], [], [], ""),
        ([FAILED, PASSED], [], ["FlakyFailure"], "failed, passed"),
        ([ERROR, FAILED, PASSED], [], ["FlakyError", "FlakyFailure"], "error, failed, passed"),
        ([FAILED, FAILED], ["Failure"], ["RerunFailure"], "failed, failed"),
        ([PASSED, FAILED], ["Failure"], [], "passed, failed"),
        ([ERROR, FAILED], ["Failure"], ["RerunError"], "error, failed"),
        ([FAILED, SKIPPED], ["Failure"], [], "failed, skipped"),
        ([SKIPPED, PASSED], [], [], "skipped, passed"),
        ([SKIPPED, SKIPPED], ["Skipped"], [], "skipped, skipped"),
    ],
)
def test_what_was_once_red_stays_visible(
    tmp_path: Path, ends: list[tuple[str, str]], decided: list[str], others: list[str], listed: str
) -> None:
    runs = [[result("test_count", end, message=message, text="the text")] for end, message in ends]
    (case,) = merged(tmp_path, *runs).values()
    assert attempts(case) == (decided, others, listed)
    for interim in case.interim_result:
        assert interim.stack_trace == "the text"
        assert interim.message


def test_shards_on_other_nodes_are_no_second_attempts(tmp_path: Path) -> None:
    runs = [
        [result("test_pairs", "failed", node="", message="gpu02 is slow", text="gpu02 is slow")],
        [result("test_pairs", "passed", node="")],
        [result("test_pairs", "failed", node="", message="gpu05 is slow", text="gpu05 is slow")],
    ]
    nodes = (("gpu01", "gpu02"), ("gpu03",), ("gpu04", "gpu05"))
    (case,) = merged(tmp_path, *runs, nodes=nodes).values()
    assert attempts(case)[:2] == (["Failure"], [])
    (failure,) = case.result
    assert failure.text == "gpu02 is slow\n--- nodes gpu[04-05]\ngpu05 is slow"
    told = {found.name: found.value for found in case.properties()}
    assert told["scopes"] == "gpu[01-02]: failed; gpu03: passed; gpu[04-05]: failed"


def test_a_repeat_on_one_node_does_not_clear_the_whole_cluster(tmp_path: Path) -> None:
    runs = [
        [result("test_pairs", "failed", node="", message="gpu01 is slow"), result("test_count", *FAILED[:1])],
        [result("test_pairs", "passed", node=""), result("test_count", "passed")],
    ]
    found = merged(tmp_path, *runs, nodes=(("gpu01", "gpu02"), ("gpu01",)))
    assert found["gpucluster.gpu.cluster test_pairs"].is_failure
    assert found["gpucluster.gpu.gpu01 test_count"].is_flaky


def test_a_node_that_came_back_is_flaky_and_one_that_did_not_stays_red(tmp_path: Path) -> None:
    out = {
        "suite": "run",
        "check": "run.available",
        "phase": "setup",
        "message": "gpu01 is not tested: DRAINED",
    }
    runs = [
        [
            {**result("test_available", "error", node=node), **out, "nodeid": f"run::test_available[{node}]"}
            for node in ("gpu01", "gpu02")
        ],
        [
            result("test_count"),
            result("test_count", "not tested", node="gpu02", message="not tested: gpu02: down"),
        ],
    ]
    found = merged(tmp_path, *runs, nodes=(("gpu01", "gpu02"),) * 2)
    assert attempts(found["gpucluster.run.gpu01 test_available"]) == ([], ["FlakyError"], "error, passed")
    assert found["gpucluster.run.gpu02 test_available"].is_error


def test_shards_lie_side_by_side_and_a_merged_file_can_be_merged(tmp_path: Path) -> None:
    one = shard(tmp_path / "1.xml", [result("test_count", "failed", message="7")], began=1)
    two = shard(tmp_path / "2.xml", [result("test_count", node="gpu02")], began=2, nodes=("gpu02",))
    three = shard(tmp_path / "3.xml", [result("test_count")], began=3)
    assert merge([one, two], tmp_path / "out.xml") == Merged(2, 1, 1, 0, 0, 0)
    assert merge([tmp_path / "out.xml", three], tmp_path / "out.xml") == Merged(2, 2, 0, 0, 0, 1)
    assert_valid(tmp_path / "out.xml")
    suite: Any = next(iter(xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))))
    assert {found.value for found in suite.properties() if found.name == "run"} == {"run1", "run2", "run3"}
    assert (suite.tests, suite.failures, suite.name) == (2, 0, "pytest")


def test_a_live_run_merged_with_itself_hides_nothing(night: Run, tmp_path: Path) -> None:
    path = folder_of(night) / "junit.xml"
    done = merge([path, path], tmp_path / "out.xml")
    assert_valid(tmp_path / "out.xml")
    red = {row[:2] for row in cases_of(path) if any(end[0] in ("failure", "error") for end in row[2])}
    still = {
        row[:2]
        for row in cases_of(tmp_path / "out.xml")
        if any(end[0] in ("failure", "error") for end in row[2])
    }
    assert red == still
    assert (done.failed + done.errors, done.flaky) == (len(red), 0)
    both = cases(tmp_path / "out.xml")["gpucluster.more.gpu01 test_both"]
    assert "teardown <breaks>" in both.result[0].text  # beside the failure of the test itself


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "<testsuites><testsuite name='x' tests='0' failures='0' errors='0'/></testsuites>",
            "holds no testcase",
        ),
        ("<testsuites><testsuite><testcase name='a'", "is not JUnit"),
        ("<html/>", "is not JUnit"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_merged_is_reported_and_no_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, complaint: str
) -> None:
    good = shard(tmp_path / "good.xml", [result("test_count")], began=1)
    bad = tmp_path / "bad.xml"
    if text is not None:
        bad.write_text(text)
    with pytest.raises(GpuClusterError, match=complaint):
        merge([good, bad], tmp_path / "out.xml")
    assert cli.main(["junit", "merge", str(tmp_path / "out.xml"), str(good), str(bad)]) == run_command.FAILED
    told = capsys.readouterr().err
    assert told.startswith(f"gpucluster: error: {bad}: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "out.xml").exists()


def test_the_command_prints_what_it_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = shard(tmp_path / "1.xml", [result("test_count", "failed", message="7")], began=1)
    two = shard(tmp_path / "2.xml", [result("test_count")], began=2)
    out = tmp_path / "sub" / "out.xml"
    assert cli.main(["junit", "merge", str(out), str(one), str(two)]) == run_command.OK
    assert capsys.readouterr().out == (
        f"{out}: 1 testcases of 2 files: 1 passed (1 of them flaky), 0 failed, 0 errors, 0 skipped\n"
    )
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_large_run_is_written_and_read(tmp_path: Path) -> None:
    results = [
        result(f"test_{check}", "failed" if check == node else "passed", node=f"gpu{node:04}", message="m")
        for node in range(200)
        for check in range(50)
    ]
    path = shard(tmp_path / "large.xml", results, began=1)
    done = merge([path, path], tmp_path / "out.xml")
    assert (done.passed, done.failed) == (9950, 50)
    assert io.BytesIO((tmp_path / "out.xml").read_bytes()).read(5) == b"<?xml"


def test_one_testcase_at_a_time_is_in_memory(tmp_path: Path) -> None:
    results = [result("test_x", "failed", node=f"gpu{n:04}", text="x" * 20_000) for n in range(500)]
    run, path = read_run(results), tmp_path / "junit.xml"
    tracemalloc.start()
    junit.write(run, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert peak < 2_000_000


def test_the_file_of_a_run_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("junit.xml", "events.jsonl"):
        (tmp_path / name).write_text("kept")
    assert (
        cli.main(["junit", "merge", str(tmp_path / "junit.xml"), str(tmp_path / "other.xml")])
        == run_command.WRONG_CONFIG
    )
    assert "name the output file before" in capsys.readouterr().err
    assert (tmp_path / "junit.xml").read_text() == "kept"


@pytest.mark.parametrize(
    ("nodeid", "node", "name"),
    [
        ("suites/gpu/test_gpu.py::test_count[gpu03]", "gpu03", "test_count"),
        ("suites/gpu/test_gpu.py::test_count", "gpu03", "test_count"),
        ("suites/gpu/test_gpu.py::test_count[]", "gpu03", "test_count"),
        ("suites/gpu/test_gpu.py::test_count[gpu03-4GiB]", "gpu03", "test_count[4GiB]"),
        ("suites/gpu/test_gpu.py::test_count[4GiB-gpu03]", "gpu03", "test_count[4GiB]"),
        ("suites/gpu/test_gpu.py::test_count[a-gpu03-b]", "gpu03", "test_count[a-b]"),
        ("suites/gpu/test_gpu.py::test_count[gpu03-gpu03]", "gpu03", "test_count[gpu03]"),
        ("suites/gpu/test_gpu.py::test_count[gpu03-x-gpu03]", "gpu03", "test_count[x-gpu03]"),
        ("suites/gpu/test_gpu.py::test_count[gpu031-x]", "gpu03", "test_count[gpu031-x]"),
        ("suites/gpu/test_gpu.py::test_count[gpu03-[x]]", "gpu03", "test_count[[x]]"),
        ("suites/gpu/test_gpu.py::test_count[gpu03-4GiB]", "", "test_count[gpu03-4GiB]"),
        ("suites/gpu/test_gpu.py::TestA::test_count[sda-gpu03]", "gpu03", "TestA::test_count[sda]"),
        ("test_count", "gpu03", "test_count"),
    ],
)
def test_the_name_of_a_testcase_has_no_node(nodeid: str, node: str, name: str) -> None:
    assert junit.name(nodeid, node) == name


def test_the_class_of_a_testcase_has_its_suite_and_node() -> None:
    assert (junit.classname("gpu", "gpu03"), junit.classname("nccl", "")) == (
        "gpucluster.gpu.gpu03",
        "gpucluster.nccl.cluster",
    )
    assert (junit.RUN_CASE, junit.NODE_TEST) == (
        ("gpucluster.run.cluster", "test_finished"),
        "test_available",
    )


def test_the_properties_of_an_item_in_their_order() -> None:
    rows = [{"part": f"GPU {n}", "measured": "1", "expected": "0"} for n in range(21)]
    verdicts = [
        {"findings": rows[:1], "action": "drain", "advisories": rows[1:2]},
        {"findings": [], "action": "reboot", "advisories": rows},
        {"findings": rows[2:3], "action": "reboot"},
    ]
    metrics = [
        {"name": "bw", "value": 1.5, "unit": "GB/s", "device": "GPU 1"},
        {"name": "odd", "value": "NaN", "unit": "W", "device": ""},
    ]
    result = {"suite": "gpu", "check": "gpu.x", "node": "gpu01", "verdicts": verdicts, "metrics": metrics}
    head = [("suite", "gpu"), ("check", "gpu.x"), ("node", "gpu01")]
    said = [
        ("action", "drain"),
        ("finding", "GPU 0: measured 1, expected 0"),
        ("warning", "GPU 1: measured 1, expected 0"),
        *(("warning", f"GPU {n}: measured 1, expected 0") for n in range(20)),
        ("action", "reboot"),
        ("finding", "GPU 2: measured 1, expected 0"),
        ("metric bw[GPU 1]", "1.5 GB/s"),
        ("metric odd", "NaN W"),
    ]
    assert junit.properties(read_result(result)) == [*head, *said]
    slurm = [("slurm_state", "IDLE"), ("slurm_reason", "why"), ("simulated", "true")]
    assert junit.properties(read_result(result), state="IDLE", reason="why", simulated=True) == [
        *head,
        *slurm,
        *said,
    ]
    assert junit.properties(read_result({"suite": "s", "check": "c", "node": ""})) == [
        ("suite", "s"),
        ("check", "c"),
    ]


def test_the_first_start_and_the_last_end_of_a_log_count() -> None:
    def of(*events: dict[str, Any]) -> list[tuple[str, str]]:
        found = [(it.attrib["name"], it.attrib["value"]) for it in junit_tree(events)[0].iter("property")]
        return found[:-5]  # without verdict and counts

    two = [
        {"event": "start", "time": n, "run": f"r{n}", "cluster": f"c{n}", "simulated": n == 2} for n in (1, 2)
    ]
    nodes = [{"event": "nodes", "selected": [f"n{n}"]} for n in (1, 2)]
    assert of(*two, *nodes) == [("run", "r1"), ("cluster", "c1"), ("nodes", "n1")]
    assert of({"event": "start", "simulated": False}) == [("run", ""), ("cluster", ""), ("nodes", "")]
    ends = [{"event": "finish", "complaints": [word]} for word in ("one", "two")]
    assert [it.text for it in junit_tree(ends).iter("error")] == ["two"]
    assert [it.text for it in junit_tree([{"event": "finish", "complaints": []}]).iter("error")] == []


@pytest.mark.parametrize(
    ("rerun", "red", "tag", "text"),
    [
        ({"phase": "call", "message": "m"}, False, "flakyFailure", "m"),
        ({"phase": "call", "message": "m", "text": "long"}, True, "rerunFailure", "long"),
        ({"phase": "setup", "message": 5, "text": ""}, False, "flakyError", "5"),
        ({"phase": "teardown", "message": "m"}, True, "rerunError", "m"),
    ],
)
def test_an_attempt_that_does_not_decide(rerun: dict[str, Any], red: bool, tag: str, text: str) -> None:
    element = junit.interim(read_result(rerun), red=red)
    assert (element.tag, element.attrib) == (tag, {"message": str(rerun["message"]), "type": "rerun"})
    assert [(child.tag, child.text) for child in element] == [("stackTrace", text)]
    noted = junit.interim(read_result(rerun | {"annotation": ["a", "b"]}), red=red)
    assert [(child.tag, child.text) for child in noted][1:] == [("system-out", "a\nb")]
