"""JUnit: the live file and the one from the event log are alike, valid, and named alike night after night."""

from __future__ import annotations

import re
import tracemalloc
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
import xmlschema
from junitparser import xunit2
from paths import DATA
from plugin_helpers import ENDS, cases, on, out_of_service, run_pytest
from report_helpers import FINDING, a_run, failing, junit_tree

from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.events import read_log, read_run
from pytest_gpucluster.report.machine.junit_merge import Merged, merge

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
        ends = [child for child in case if child.tag in ("failure", "error", "skipped")]
        results = [(it.tag, it.get("message", "").partition("\n")[0], it.get("type")) for it in ends]
        pairs = sorted((p.get("name"), p.get("value")) for p in case.iter("property"))
        found.append((case.get("classname"), case.get("name"), results, pairs, case.findtext("system-out")))
    return sorted(found, key=str)


def result(
    test: str, outcome: str = "passed", *, node: str = "gpu01", message: str = "", **fields: Any
) -> dict[str, Any]:
    nodeid = f"suites/gpu/test_gpu.py::{test}" + (f"[{node}]" if node else "")
    known = {"suite": "gpu", "check": f"gpu.{test.removeprefix('test_')}", "node": node, "phase": "call"}
    told = {"nodeid": nodeid, "outcome": outcome, "seconds": 0.5, "message": message}
    return {"event": "result", "time": 1.5, **told, **known, **fields}


def shard(path: Path, results: list[dict[str, Any]], *, began: float, nodes: tuple[str, ...] = ("gpu01",)) -> Path:
    """Write the JUnit file of a finished run."""
    start = {"event": "start", "time": began, "run": f"run{began:g}", "cluster": "prod", "simulated": False}
    about = {"event": "nodes", "time": began, "selected": list(nodes)}
    finish = {"event": "finish", "time": began + 1, "complaints": []}
    junit.write(read_run([start, about, *({**told, "time": began} for told in results), finish]), path)
    return path


def test_hostile_text_makes_a_valid_file(tmp_path: Path) -> None:
    bad = "\x00\x1b[31m ]]> <a b='&\"'> \ud800 \ufffe \x85"
    hostile = result("test_x", "failed", message=bad, annotation={"note": bad}, properties=[[bad, bad]], text=bad)
    path = shard(tmp_path / "a.xml", [hostile], began=1)
    assert_valid(path)
    (case,) = cases(path).values()
    assert case.result[0].text.startswith("??[31m ]]> <a b='&\"'> ?")
    for hidden in "\x00\x08\x0b\x0c\x0e\x1f\x7f\ud800\udfff\ufffe\uffff":
        assert junit.xml_text(f"a{hidden}b") == "a?b"
    shown = "\t\n\r ~\x80\ud7ff\ue000\ufffd\U00010000\U0010ffff"
    assert junit.xml_text(shown) == shown


RERUNS = """
import pytest
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for attempt in (1, 2, 3):
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            again = report.failed and attempt < 3
            report.outcome = "rerun" if again else report.outcome
            item.ihook.pytest_runtest_logreport(report=report)
            if again:
                break
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


# --- a file from events, exactly


def case_of(*events: dict[str, Any], finish: dict[str, Any] | None = None) -> list[str]:
    """Return the testcases of a run's events as text."""
    start = {"event": "start", "time": 1.0, "run": "r1", "cluster": "prod", "simulated": False}
    end = finish if finish is not None else {"event": "finish", "time": 9.0, "complaints": []}
    root = junit_tree([start, *events, end])
    return [ET.tostring(case, encoding="unicode") for case in root.iter("testcase")]


def test_a_pass_whose_teardown_broke_is_one_red_testcase() -> None:
    broken = result("test_x", "error", message="broke", phase="teardown")
    (case,) = case_of(result("test_x"), broken)
    assert '<error message="failed on teardown with &quot;broke&quot;">broke</error>' in case
    (case,) = case_of(broken, result("test_x", "skipped"))
    assert "<error" in case
    both = case_of(result("test_x", "failed", message="7"), broken)
    assert ["<failure" in case for case in both] == [True, False]  # as pytest writes it: two
    assert len(case_of(result("test_x", "failed"), result("test_x", node="gpu02"))) == 2


def rerun(phase: str = "call", **fields: Any) -> dict[str, Any]:
    return result("test_x", phase=phase, message="first <1>", **fields) | {"event": "rerun", "text": "long"}


def test_an_earlier_attempt_with_its_annotation() -> None:
    for phase, outcome, tag in (
        ("call", "passed", "flakyFailure"),
        ("setup", "passed", "flakyError"),
        ("call", "failed", "rerunFailure"),
        ("setup", "error", "rerunError"),
    ):
        again, end = rerun(phase, annotation={"rerun": "x", "state": "IDLE"}), result("test_x", outcome)
        (case,) = case_of(again, end)
        begin, told = (f'<{tag} message="first &lt;1&gt;" type="rerun">', "Slurm state: IDLE\nrerun:        x")
        assert f"{begin}<stackTrace>long</stackTrace><system-out>{told}</system-out></{tag}>" in case
        (case,) = case_of(rerun(phase) | {"text": ""}, end)
        assert f"<stackTrace>first &lt;1&gt;</stackTrace></{tag}>" in case


def test_earlier_attempts_belong_to_one_testcase_in_their_order() -> None:
    first, broken = rerun(), result("test_x", "error", phase="teardown")
    cases = case_of(first, rerun("setup"), result("test_x"), broken, result("test_y"))
    assert [re.findall(r"<(rerun\w+)", case) for case in cases] == [["rerunFailure", "rerunError"], []]
    both = case_of(first, result("test_x", "failed"), broken)
    assert ["rerunFailure" in case for case in both] == [True, False]  # once


def test_the_testcase_of_the_run() -> None:
    for finish, message, text in (
        ({"event": "finish", "complaints": []}, None, ""),
        ({"event": "finish", "complaints": ["one", 2]}, "one", "one\n2"),
        ({"event": "other"}, "the run did not finish", "killed"),
    ):
        cases = [ET.fromstring(case) for case in case_of(finish=finish)]
        assert len(cases) == bool(message)
        for case in cases:
            assert (case.get("classname"), case.get("name")) == ("gpucluster.run.cluster", "test_finished")
            assert str(message) in case[0].attrib["message"]
            assert text in str(case[0].text)
    ends = [{"event": "finish", "complaints": [word]} for word in ("one", "two")]
    assert [it.text for it in junit_tree(ends).iter("error")] == ["two"]


def test_a_warning_about_the_shell_stands_beside_a_finding_that_it_may_explain() -> None:
    start = {"shell": {"text": "low", "setting": "os.limits"}}
    for setting in ("os.limits", "os.kernel"):
        tree = junit_tree(a_run([failing("gpu01", findings=[FINDING | {"setting": setting}])], start=start))
        assert any(it.get("value") == "low" for it in tree.iter("property")) is (setting == "os.limits")


def test_files_of_runs_merge_into_a_valid_file_that_can_be_merged(tmp_path: Path) -> None:
    red = result("test_count", "failed", message="7 <a>", annotation={"note": "note"})
    one = shard(tmp_path / "1.xml", [rerun(annotation={"note": "first"}), red], began=1)
    two = shard(tmp_path / "2.xml", [result("test_count", node="gpu02")], began=2, nodes=("gpu02",))
    three = shard(tmp_path / "3.xml", [result("test_count")], began=3)
    assert merge([one, two], tmp_path / "out.xml") == Merged(2, 1, 1, 0, 0, 0)
    assert merge([tmp_path / "out.xml", three], tmp_path / "out.xml") == Merged(2, 2, 0, 0, 0, 1)
    assert_valid(tmp_path / "out.xml")
    suite: Any = next(iter(xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))))
    assert {found.value for found in suite.properties() if found.name == "run"} == {"run1", "run2", "run3"}
    assert (suite.tests, suite.failures, suite.name) == (2, 0, "pytest")


def test_one_testcase_at_a_time_is_in_memory(tmp_path: Path) -> None:
    run = read_run(result("test_x", "failed", node=f"gpu{n}", text="x" * 100_000) for n in range(50))
    tracemalloc.start()
    junit.write(run, tmp_path / "junit.xml")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "junit.xml").stat().st_size > 5_000_000 > 2 * peak


def test_the_name_of_a_testcase_has_no_node() -> None:
    for nodeid, node, name in (
        ("test_gpu.py::test_count[gpu03]", "gpu03", "test_count"),
        ("test_gpu.py::test_count", "gpu03", "test_count"),
        ("test_gpu.py::test_count[a-gpu03-b]", "gpu03", "test_count[a-b]"),
        ("test_gpu.py::test_count[gpu03-gpu03]", "gpu03", "test_count[gpu03]"),
        ("test_gpu.py::test_count[gpu031-x]", "gpu03", "test_count[gpu031-x]"),
        ("test_gpu.py::test_count[gpu03-4GiB]", "", "test_count[gpu03-4GiB]"),
        ("test_gpu.py::TestA::test_count[sda-gpu03]", "gpu03", "TestA::test_count[sda]"),
        ("test_count", "gpu03", "test_count"),
    ):
        assert junit.name(nodeid, node) == name


@pytest.mark.thorough
def test_the_live_file_is_valid_and_equals_the_one_from_the_log(sandbox: Sandbox, tmp_path: Path) -> None:
    """One run with every kind of end, repeated items and a drained node among them."""
    files = {"conftest.py": RERUNS, "test_ends.py": ENDS, "test_more.py": MORE, "test_unsteady.py": UNSTEADY}
    with out_of_service(sandbox, "gpu03", "DRAIN", 'bad "cable" <4711>'):
        run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu[01-03]", files=files)
    assert run.rc == 1
    live, again = tmp_path / "reports" / "latest" / "junit.xml", tmp_path / "again.xml"
    junit.write(read_log(live.with_name("events.jsonl")), again)
    found, counts = [], []
    for path in (live, again):
        assert_valid(path)
        found.append(cases_of(path))
        suite = next(ET.parse(path).iter("testsuite"))
        counts.append([suite.get(key) for key in ("tests", "failures", "errors", "skipped")])
    assert found[0] == found[1]
    assert counts[0] == counts[1]
    (drained,) = {row[4] for row in found[0] if "gpu03" in row[0] and row[4]}
    assert 'reason: "bad "cable" <4711>" by root' in drained
    first = [case for case in ET.parse(live).iter("testcase") if "gpu01" in str(case.get("classname"))]
    tags = {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in first}
    names = [["flakyFailure"], ["system-out", "rerunFailure", "rerunFailure", "failure"], []]
    assert [tags[name] for name in ("test_unsteady", "test_bad", "test_good")] == names
