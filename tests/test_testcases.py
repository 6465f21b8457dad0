"""junit.xml, whose testcases are written out as they end, is the file that pytest writes of the same reports."""

from __future__ import annotations

import re
import tempfile
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.junitxml import LogXML

from pytest_gpucluster.plugin import junit_stream as testcases

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIZES = [1, 300, testcases.PIECE]  # characters until they are moved: each by itself, some, never


def report(name: str, when: str, outcome: Any = "passed", **fields: Any) -> pytest.TestReport:
    said: Any = "it fails" if outcome == "failed" else ("file", 1, "why") if outcome == "skipped" else None
    location = ("test_a.py", 1, name)
    phase: Any = when
    return pytest.TestReport(
        f"test_a.py::{name}",
        location,
        {},
        outcome,
        said,
        phase,
        duration=0.25,
        user_properties=[("a", "b<&>")],
        **fields,
    )


def told() -> list[pytest.TestReport]:
    """Return reports as they come under xdist: one item begins before the other has ended."""
    reports = [
        report(f"test_{number}", when) for number in range(5) for when in ("setup", "call", "teardown")
    ]
    return [
        *reports,
        report("test_late", "setup"),
        report("test_late", "call", "failed"),
        *(report("test_between", when) for when in ("setup", "call", "teardown")),
        report("test_late", "teardown", "failed"),
        report("test_skipped", "setup", "skipped"),
        report("test_skipped", "teardown"),
        report("test_open", "call"),
        *(report("test_last", when) for when in ("setup", "call", "teardown")),
    ]


def written(path: Path, *, streamed: bool) -> str:
    xml = LogXML(str(path), None, family="xunit2")
    xml.pytest_sessionstart()
    cases = testcases.Testcases(xml) if streamed else None
    for one in told():
        xml.pytest_runtest_logreport(one)
    file = testcases.JUnitFile(xml, cases)
    file.catch()
    xml.pytest_sessionfinish()
    assert not path.exists()
    assert file.write(None)
    assert not file.write(None)
    file.close()
    assert xml.logfile == str(path)
    text = path.read_text()
    return re.sub(r'(timestamp|time|hostname)="[^"]*"', "", text)


@pytest.mark.parametrize("size", SIZES)
def test_the_file_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(testcases, "PIECE", size)
    before = written(tmp_path / "before.xml", streamed=False)
    assert before.count("<testcase") == 11  # pytest opens another for a teardown that breaks too
    assert written(tmp_path / "after.xml", streamed=True) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after.xml", "before.xml"]


def test_a_full_disk_takes_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = written(tmp_path / "before.xml", streamed=False)
    monkeypatch.setattr(testcases, "PIECE", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert written(tmp_path / "after.xml", streamed=True) == before


@pytest.mark.parametrize(
    ("properties", "taken"),
    [([("a", "b")], True), ([], True), ([("a", "b<")], False), ([("ä", "b")], False), ([("a", 'b"')], False)],
)
def test_what_is_written_by_itself_is_what_pytest_writes(
    tmp_path: Path, properties: Sequence[tuple[str, str]], *, taken: bool
) -> None:
    xml = LogXML(str(tmp_path / "x.xml"), None, family="xunit2")
    cases = testcases.Testcases(xml)
    ordered: list[Any] = xml.node_reporters_ordered
    assert cases.passed("gpucluster.gpu.gpu01", "test_a", (0.5, 0.25), properties) is taken
    if taken:
        reporter = xml.node_reporter("test_a.py::test_a")
        reporter.attrs = {"classname": "gpucluster.gpu.gpu01", "name": "test_a"}
        reporter.duration = 0.5
        for name, value in properties:
            reporter.add_property(name, value)
        assert ordered[0] == ET.tostring(reporter.to_xml(), encoding="unicode")
        assert xml.stats["passed"] == 1
