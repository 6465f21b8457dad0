"""Warnings that fail no check, and findings of different actions: what every report makes of them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import run_pytest
from report.test_html import HOSTILE, Page, page_of
from report.test_prom import promtool, samples
from report_helpers import a_run, failing, junit_tree, passing

from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Judgement,
    Metric,
    Outcome,
    Verdict,
    conclude,
    with_cause,
    with_contention,
)
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged
from pytest_gpucluster.kit.mpi.mpi_errors import with_software_cause
from pytest_gpucluster.plugin.drain import _hardest
from pytest_gpucluster.plugin.outputs import MAX_WARNINGS, advisory_lines
from pytest_gpucluster.report import html, junit, prom
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.run_snapshot import recorded
from pytest_gpucluster.run.record import MAX_SHOWN, Record, describe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WARNING = {"part": "GPU 4 (GPU-c12b, 0000:9d:00.0)", "measured": "12 replays", "expected": "0"}
SAID = "GPU 4 (GPU-c12b, 0000:9d:00.0): measured 12 replays, expected 0"


NEVER = "no healthy GPU prints it"


def concluded(*found: Finding | Advisory | Metric | NotJudged) -> Verdict:
    def judgement() -> Judgement:
        yield from found

    return conclude(
        "gpu.x", judgement(), cause="a cause", hint="a hint", action=Action.REBOOT, never_healthy=NEVER
    )


def warned(node: str, *advisories: dict[str, str], outcome: str = "passed", **fields: Any) -> dict[str, Any]:
    """Return the result of an item whose verdict has warnings."""
    verdict = {
        "outcome": outcome,
        "findings": [],
        "action": "drain",
        "advisories": list(advisories or [WARNING]),
    }
    return passing(node, **({"check": "gpu.pcie", "verdicts": [verdict]} | fields))


# --- the verdict


@pytest.mark.parametrize(
    ("beside", "outcome"),
    [
        ((), Outcome.PASSED),
        ((Metric("m", 1, "s"),), Outcome.PASSED),
        ((NotApplicable("no MIG"),), Outcome.NOT_APPLICABLE),
        ((NotAvailable("no right"),), Outcome.NOT_CHECKED),
        ((Finding("GPU 1", "1", "2"),), Outcome.FAILED),
    ],
)
def test_a_warning_changes_neither_outcome_nor_action(beside: tuple[Any, ...], outcome: Outcome) -> None:
    warning = Advisory("GPU 0", "1", "0")
    verdict, without = concluded(warning, *beside), concluded(*beside)
    assert verdict.outcome is without.outcome is outcome
    assert verdict.action is without.action is Action.REBOOT
    assert verdict.advisories == (warning,)
    assert verdict.as_dict()["advisories"] == [{"part": "GPU 0", "measured": "1", "expected": "0"}]
    assert without.as_dict() == {**verdict.as_dict(), "advisories": []}


@pytest.mark.parametrize(
    ("actions", "verdicts", "findings"),
    [
        ([None], Action.REBOOT, [None]),
        ([None, None], Action.REBOOT, [None, None]),
        ([None, Action.MONITOR], Action.REBOOT, [None, Action.MONITOR]),
        ([Action.MONITOR], Action.MONITOR, [Action.MONITOR]),
        ([None, Action.VENDOR], Action.VENDOR, [Action.REBOOT, Action.VENDOR]),
        ([Action.MONITOR, Action.RESET_GPU], Action.RESET_GPU, [Action.MONITOR, Action.RESET_GPU]),
        ([Action.DRAIN, None, Action.MONITOR], Action.DRAIN, [Action.DRAIN, Action.REBOOT, Action.MONITOR]),
    ],
)
def test_the_hardest_finding_decides_and_each_tells_its_own(
    actions: list[Action | None], verdicts: Action, findings: list[Action | None]
) -> None:
    found = concluded(*(Finding(f"GPU {n}", "1", "2", action) for n, action in enumerate(actions)))
    assert found.action is verdicts
    assert [finding.action for finding in found.findings] == findings
    assert [one.get("action") for one in found.as_dict()["findings"]] == [
        action.value if action else None for action in findings
    ]


def test_another_cause_of_the_whole_failure_has_one_action_for_all_findings() -> None:
    words = "out of memory"
    verdict = concluded(Finding("GPU 0", words, "2", Action.VENDOR), Finding("GPU 1", words, "2"))
    plain = (Finding("GPU 0", words, "2"), Finding("GPU 1", words, "2"))
    other = with_contention(verdict, "others are at work on GPU 1")
    assert (other.action, other.findings) == (Action.MONITOR, plain)
    assert other.cause == "others are at work on GPU 1; the hardware alone was not measured"
    assert other.hint.startswith("ps -eo pid,user,lstart,cmd on the node")
    other = with_cause(verdict, words, "why", "what", action=Action.DRAIN)
    assert (other.action, other.findings, other.cause, other.hint) == (Action.DRAIN, plain, "why", "what")
    assert with_cause(verdict, words, "why", "what").action is Action.MONITOR
    assert with_cause(verdict, "no such words", "why", "what") is verdict
    assert with_cause(concluded(), words, "why", "what").cause == "a cause"
    assert with_contention(verdict, "") is verdict
    assert with_contention(concluded(), "somebody").cause == "a cause"
    assert with_software_cause(verdict) is verdict


def test_a_drain_names_the_finding_that_asks_for_it() -> None:
    verdict = concluded(
        Finding("GPU 0", "1", "2", Action.MONITOR), Finding("GPU 1", "3", "4"), Finding("GPU 2", "5", "6")
    )
    own = concluded(Finding("GPU 5", "1", "2", Action.VENDOR))
    foreign = {"action": "drain", "findings": [{"part": "GPU 7", "action": "reboot"}]}
    logged = read_result({"verdicts": [verdict.as_dict(), own.as_dict(), foreign]}).verdicts
    assert [_hardest(it).part for it in logged] == ["GPU 1", "GPU 5", "GPU 7"]


# --- one failure in the terminal


def test_a_failure_of_different_actions_has_a_column_of_them() -> None:
    verdict = concluded(
        Finding("GPU 0", "1", "2"), Finding("GPU 1", "3", "4", Action.VENDOR), Advisory("GPU 2", "5", "0")
    )
    assert describe(verdict, "gpu.x", "gpu01").splitlines() == [
        "gpu.x on gpu01: GPU 0: measured 1, expected 2 (and 1 more)",
        "part    measured    expected    action",
        "------  ----------  ----------  ----------------",
        "GPU 0   1           2           reboot",
        "GPU 1   3           4           return to vendor",
        "likely cause: a cause",
        "what to do:   a hint",
        "action:       return to vendor",
        "warning:      GPU 2: measured 5, expected 0",
    ]


def test_a_failure_of_one_action_has_no_column_of_it() -> None:
    verdict = concluded(*(Finding(f"GPU {n}", "1", "2", Action.DRAIN) for n in range(2)))
    assert describe(verdict, "gpu.x", "").splitlines() == [
        "gpu.x: GPU 0: measured 1, expected 2 (and 1 more)",
        "part    measured    expected",
        "------  ----------  ----------",
        "GPU 0   1           2",
        "GPU 1   1           2",
        "likely cause: a cause",
        "what to do:   a hint",
        "action:       drain",
    ]


@pytest.mark.parametrize("extra", [0, 1])
def test_what_is_not_shown_is_counted(extra: int) -> None:
    count = MAX_SHOWN + extra
    found = [kind(f"GPU {n}", "1", "2") for kind in (Finding, Advisory) for n in range(count)]
    lines = describe(concluded(*found), "gpu.x", "gpu01").splitlines()
    assert sum(line.startswith("GPU ") for line in lines) == MAX_SHOWN
    assert sum(line.startswith("warning: ") for line in lines) == MAX_SHOWN
    assert [line for line in lines if line.startswith("...")] == (
        ["... and 1 more findings", "... and 1 more warnings"] if extra else []
    )


# --- the item's record: what leaves it is harmless


def test_a_warning_is_sanitised_and_redacted_as_a_finding_is() -> None:
    hostile = "bad\x1b[31m\x00 API_TOKEN=hunter2hunter2 https://ops:pw@host/ \u202e"
    clean = "bad?[31m? API_TOKEN=<redacted> https://ops:<redacted>@host/ ?"
    record = Record("gpu", "gpu.x", "gpu01")
    record.add(concluded(Advisory(hostile, hostile, hostile), Finding(hostile, hostile, hostile)))
    (verdict,) = record.as_dict()["verdicts"]
    assert verdict["advisories"] == [{"part": clean, "measured": clean, "expected": clean}]
    assert verdict["findings"] == verdict["advisories"]
    assert "hunter2" not in json.dumps(record.as_dict())


# --- the summary


def summary(results: Iterable[dict[str, Any]]) -> list[str]:
    return advisory_lines(read_run(results))


def test_the_summary_has_a_line_for_each_warning_with_its_nodes() -> None:
    other = {**WARNING, "measured": "13 replays"}
    results = [
        warned("gpu01"),
        warned("gpu02", {**WARNING, "part": "GPU 4 (GPU-ffff, 0000:9d:00.0)"}, other),
        warned(""),
    ]
    assert summary(results) == [
        "warning: gpu.pcie on gpu[01-02] (cluster): GPU 4: measured 12 replays, expected 0",
        "warning: gpu.pcie on gpu02: GPU 4: measured 13 replays, expected 0",
    ]
    assert summary([passing("gpu01"), failing("gpu02")]) == []


@pytest.mark.parametrize("extra", [0, 2])
def test_the_summary_counts_the_warnings_that_it_leaves_out(extra: int) -> None:
    lines = summary(
        [warned("gpu01", *({**WARNING, "measured": str(n)} for n in range(MAX_WARNINGS + extra)))]
    )
    assert len(lines) == MAX_WARNINGS + bool(extra)
    assert lines[MAX_WARNINGS - 1].endswith(f"measured {MAX_WARNINGS - 1}, expected 0")
    assert lines[MAX_WARNINGS:] == (["warning: 2 more kinds: see report.html"] if extra else [])


# --- JUnit


def test_junit_has_a_property_for_each_warning() -> None:
    found = dict(junit.properties(read_result(warned("gpu01"))))
    assert found == {"suite": "gpu", "check": "gpu.pcie", "node": "gpu01", "warning": SAID}
    many = junit.properties(read_result(warned("gpu01", *([WARNING] * (junit.MAX_FINDINGS + 1)))))
    assert [name for name, _ in many].count("warning") == junit.MAX_FINDINGS
    both = failing("gpu01")
    both["verdicts"][0]["advisories"] = [WARNING]
    assert [name for name, _ in junit.properties(read_result(both))][3:] == ["action", "finding", "warning"]


# --- HTML


def test_html_folds_warnings_by_check_and_text() -> None:
    nodes = ["gpu01", "gpu02", "gpu03"]
    results = [warned(node, {**WARNING, "part": f"GPU 4 (GPU-{node}, 0000:9d:00.0)"}) for node in nodes]
    results += [warned("gpu02", {**WARNING, "measured": "99 replays"}), warned("", check="fabric.counters")]
    text = page_of(a_run(results, nodes=nodes)).text
    section = text[text.index("Warnings These deviations") : text.index("What was not tested")]
    assert section.startswith(
        "Warnings These deviations prove no fault: they fail no check and drain no node. 3 on 3 nodes "
        "check part measured expected where "
        "fabric.counters GPU 4 (GPU-c12b, 0000:9d:00.0) 12 replays 0 (cluster) "
        "gpu.pcie GPU 4 12 replays 0 3 nodes: gpu[01-03] "
        "gpu.pcie GPU 4 (GPU-c12b, 0000:9d:00.0) 99 replays 0 gpu02"
    )
    assert page_of(a_run(results, nodes=nodes)).verdict == "accepted"


def test_html_names_the_cluster_where_no_node_is_warned_of() -> None:
    assert "drain no node. 1 on the cluster check" in page_of(a_run([warned("")])).text


def test_html_has_no_section_of_warnings_where_there_are_none() -> None:
    page = page_of(a_run([passing("gpu01"), failing("gpu02")]))
    assert "Warnings" not in page.text
    assert {"href": "#warnings"} not in page.of("a")
    assert {"href": "#warnings"} in page_of(a_run([warned("gpu01")])).of("a")


def test_a_hostile_warning_stays_text_in_html() -> None:
    text = html.render(
        read_run(a_run([warned(HOSTILE, dict.fromkeys(WARNING, HOSTILE), check=HOSTILE)], nodes=(HOSTILE,)))
    )
    page = Page(text)
    assert len(page.of("script")) == 1
    assert not page.of("img")
    assert not [char for char in text if not char.isprintable() and char not in "\n\t"]
    assert page.text.count("alert(1)") >= 5


@pytest.mark.parametrize("extra", [0, 1])
def test_html_limits_the_warnings(monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    monkeypatch.setattr(html, "MAX_ROWS", 3)
    found = [{**WARNING, "measured": f"{n} replays"} for n in range(3 + extra)]
    text = page_of(a_run([warned("gpu01", *found)])).text
    assert text.count("replays 0 gpu01") == 3
    assert f"drain no node. {3 + extra} on 1 node" in text
    assert ("1 further warnings are in the event log." in text) is bool(extra)


def test_warnings_of_a_thousand_nodes_are_fast_and_few_rows() -> None:
    nodes = [f"gpu{number:04}" for number in range(1, 1001)]
    found = [
        {**WARNING, "part": f"GPU {gpu} (GPU-{gpu:04}, 0:9d)", "measured": f"{gpu} replays"}
        for gpu in range(8)
    ]
    results = [warned(node, *found) for node in nodes]
    begun = time.monotonic()
    page = page_of(a_run(results, nodes=nodes))
    assert time.monotonic() - begun < 10
    assert page.text.count("1,000 nodes: gpu[0001-1000]") >= 8
    assert len(page.of("tr")) < 50


def test_html_has_a_column_of_actions_where_findings_differ_in_them() -> None:
    first = {"part": "GPU 0", "measured": "1", "expected": "2", "action": "reset gpu"}
    second = {"part": "GPU 1", "measured": "3", "expected": "4"}
    text = page_of(a_run([failing("gpu01", findings=[first, second])])).text
    assert "part measured expected action where GPU 0 1 2 reset gpu gpu01 GPU 1 3 4 drain gpu01" in text
    same = {**first, "action": "drain"}
    text = page_of(a_run([failing("gpu01", findings=[same, second])])).text
    assert "part measured expected where GPU 0 1 2 gpu01 GPU 1 3 4 gpu01" in text
    many = [{**second, "part": f"GPU {n}"} for n in range(html.OPEN_ROWS)]
    text = page_of(a_run([failing("gpu01", findings=[*many, first])])).text
    assert "1 more part measured expected action where GPU 0 1 2 reset gpu gpu01" in text


def test_the_same_finding_with_another_action_is_another_row() -> None:
    reported = {"part": "GPU 0", "measured": "1", "expected": "2"}
    results = [
        failing("gpu01", findings=[reported]),
        failing("gpu02", findings=[{**reported, "action": "monitor"}]),
    ]
    (group,) = read_run(a_run(results)).groups.values()
    assert [(row.action, row.nodes) for row in group.rows.values()] == [
        ("drain", ["gpu01"]),
        ("monitor", ["gpu02"]),
    ]


# --- Prometheus, history, older logs


def test_prometheus_counts_the_warnings_of_a_check() -> None:
    two = warned(
        "gpu02", WARNING, {**WARNING, "part": "GPU 5"}, nodeid="suites/gpu/test_gpu.py::test_pcie[gpu02-4G]"
    )
    page = prom.render(read_run(a_run([warned("gpu01"), two, passing("gpu03")])))
    assert promtool(page) == ""
    found = {name: value for name, value in samples(page).items() if "warnings" in name}
    assert found == {
        'gpucluster_check_warnings{check="gpu.pcie",cluster="prod",node="gpu01"}': 1,
        'gpucluster_check_warnings{check="gpu.pcie",cluster="prod",node="gpu02",parameters="4G"}': 2,
    }


def test_the_history_takes_no_warning_for_a_finding() -> None:
    events = a_run([warned("gpu01")])
    (item,) = recorded(read_run(events)).items
    assert (item.outcome, item.findings, item.action) == ("passed", (), "")
    assert recorded(read_run(events)).good


def test_a_log_of_before_warnings_is_read_by_everything() -> None:
    events = a_run([failing("gpu01"), passing("gpu02")])
    assert "advisories" not in json.dumps(events)
    assert page_of(events).verdict == "rejected"
    assert "warnings" not in prom.render(read_run(events))
    assert junit_tree(events).find(".//property[@name='warning']") is None
    assert recorded(read_run(events)).red


@pytest.mark.parametrize("odd", [None, 7, "text", [None], [7], [["part"]], {"part": "x"}])
def test_a_damaged_warning_of_a_foreign_log_is_no_crash(odd: Any) -> None:
    verdict = {"findings": [], "advisories": odd}
    assert read_run(a_run([passing("gpu01", verdicts=[verdict])])).warnings == {}


# --- a whole run

SUITE = """
import pytest
from pytest_gpucluster.core.check import Action, Advisory, Finding, conclude


def test_warned(host, gpucluster_item):
    found = [Advisory("GPU 4", "12 replays <&>", "0")]
    gpucluster_item.expect(conclude("own.warned", found, cause="c", hint="h", action=Action.DRAIN, never_healthy="why"))


def test_bad(host, gpucluster_item):
    found = [Advisory("GPU 4", "API_TOKEN=hunter2hunter2", "0"), Finding("GPU 1", "1", "2")]
    gpucluster_item.expect(conclude("own.bad", found, cause="c", hint="h", action=Action.DRAIN, never_healthy="why"))
"""


def test_a_run_shows_a_warning_in_every_report(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "--cluster=local", files={"test_own.py": SUITE})
    assert run.rc == 1
    assert "warning: own.warned on" in run.out
    assert "warning:      GPU 4: measured API_TOKEN=<redacted>, expected 0" in run.out
    verdicts = {event["check"]: event["verdicts"][0] for event in run.events if event["event"] == "result"}
    assert verdicts["own.warned"]["outcome"] == "passed"
    assert verdicts["own.warned"]["advisories"] == [
        {"part": "GPU 4", "measured": "12 replays <&>", "expected": "0"}
    ]
    junit.write(read_run(run.events), tmp_path / "again.xml")
    for path in (tmp_path / "reports" / "latest" / "junit.xml", tmp_path / "again.xml"):
        text = path.read_text()
        assert text.count('name="warning" value="GPU 4: measured 12 replays &lt;&amp;&gt;, expected 0"') == 1
        assert text.count('name="warning"') == 2
    assert (
        'check="own.warned",cluster="local",node='
        in (tmp_path / "reports" / "latest" / "metrics.prom").read_text()
    )
    assert "12 replays &lt;&amp;&gt;" in (tmp_path / "reports" / "latest" / "report.html").read_text()
    for path in (tmp_path / "reports").glob("*.*"):
        assert "hunter2" not in path.read_text(), path
    assert "hunter2" not in run.out
