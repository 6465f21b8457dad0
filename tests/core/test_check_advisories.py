"""Warnings that fail no check, and findings of different actions: what every report makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from judged import figures
from report.test_html import page_of
from report.test_prom import samples
from report_helpers import a_run, failing, passing

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Verdict, conclude
from pytest_gpucluster.core.errors import NotJudged
from pytest_gpucluster.plugin.outputs import MAX_WARNINGS, advisory_lines
from pytest_gpucluster.report import prom
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.run.record import MAX_SHOWN, Record, describe

WARNING = {"part": "GPU 4 (GPU-c12b, 0000:9d:00.0)", "measured": "12 replays", "expected": "0"}


def concluded(*found: Finding | Advisory | Metric | NotJudged) -> Verdict:
    return conclude("gpu.x", found, cause="a cause", hint="a hint", action=Action.REBOOT, never_healthy="n")


def warned(node: str, *advisories: dict[str, str], **fields: Any) -> dict[str, Any]:
    found = list(advisories or [WARNING])
    verdict = {"outcome": "passed", "findings": [], "action": "drain", "advisories": found}
    return passing(node, **({"check": "gpu.pcie", "verdicts": [verdict]} | fields))


def test_a_failure_shows_action_of_each_finding_where_they_differ() -> None:
    found = (
        Finding("GPU 0", "1", "2"),
        Finding("GPU 1", "3", "4", Action.VENDOR),
        Advisory("GPU 2", "5", "0"),
    )
    lines = [" ".join(line.split()) for line in describe(concluded(*found), "gpu.x", "gpu01").splitlines()]
    assert lines[1] == "part measured expected action"
    assert lines[3:5] == ["GPU 0 1 2 reboot", "GPU 1 3 4 return to vendor"]
    assert lines[-1] == "warning: GPU 2: measured 5, expected 0"
    assert "action" not in describe(concluded(found[0]), "gpu.x", "").splitlines()[1]


@pytest.mark.parametrize("extra", [0, 1])
def test_what_is_not_shown_is_counted(extra: int) -> None:
    count = MAX_SHOWN + extra
    found = [kind(f"GPU {n}", "1", "2") for kind in (Finding, Advisory) for n in range(count)]
    lines = describe(concluded(*found), "gpu.x", "gpu01").splitlines()
    for start in ("GPU ", "warning: "):
        assert sum(line.startswith(start) for line in lines) == MAX_SHOWN
    assert sum(line.startswith("... and 1 more ") for line in lines) == 2 * extra
    many = warned("gpu01", *({**WARNING, "measured": f"{n} replays"} for n in range(MAX_WARNINGS + extra)))
    lines = advisory_lines(read_run([many]))
    assert len(lines) == MAX_WARNINGS + extra
    assert figures(lines[MAX_WARNINGS - 1])[-2:] == [MAX_WARNINGS - 1, 0]


def test_a_warning_is_sanitised_and_redacted_as_a_finding_is() -> None:
    hostile = "bad\x1b[31m\x00 API_TOKEN=hunter2hunter2 https://ops:pw@host/ \u202e"
    clean = "bad?[31m? API_TOKEN=<redacted> https://ops:<redacted>@host/ ?"
    record = Record("gpu", "gpu.x", "gpu01")
    record.add(concluded(Advisory(hostile, hostile, hostile), Finding(hostile, hostile, hostile)))
    (verdict,) = record.as_dict()["verdicts"]
    assert verdict["advisories"] == [{"part": clean, "measured": clean, "expected": clean}]
    assert verdict["findings"] == verdict["advisories"]


def test_findings_of_different_actions_are_rows_of_their_own() -> None:
    first = {"part": "GPU 0", "measured": "1", "expected": "2", "action": "reset gpu"}
    second = {"part": "GPU 1", "measured": "3", "expected": "4"}
    text = page_of(a_run([failing("gpu01", findings=[first, second])])).text
    assert "part measured expected action where GPU 0 1 2 reset gpu gpu01 GPU 1 3 4 drain gpu01" in text
    text = page_of(a_run([failing("gpu01", findings=[{**first, "action": "drain"}, second])])).text
    assert "part measured expected where GPU 0 1 2 gpu01 GPU 1 3 4 gpu01" in text
    results = [failing("a", findings=[second]), failing("b", findings=[{**second, "action": "monitor"}])]
    (group,) = read_run(a_run(results)).groups.values()
    assert [(row.action, row.nodes) for row in group.rows.values()] == [("drain", ["a"]), ("monitor", ["b"])]


def test_summary_and_prometheus_have_each_warning() -> None:
    nodeid = "suites/gpu/test_gpu.py::test_pcie[gpu02-4G]"
    two = warned("gpu02", WARNING, {**WARNING, "part": "GPU 5"}, nodeid=nodeid)
    page = prom.render(read_run(a_run([warned("gpu01"), two, passing("gpu03")])))
    found = {name: value for name, value in samples(page).items() if "warnings" in name}
    labels = 'check="gpu.pcie",cluster="prod",node="gpu0'
    assert found == {
        f'gpucluster_check_warnings{{{labels}1"}}': 1,
        f'gpucluster_check_warnings{{{labels}2",parameters="4G"}}': 2,
    }
    elsewhere, other = {**WARNING, "part": "GPU 4 (GPU-ffff, 0000:9d:00.0)"}, {**WARNING, "measured": "13"}
    lines = advisory_lines(read_run([warned("gpu01"), warned("gpu02", elsewhere, other), warned("")]))
    assert len(lines) == 2  # the summary has one for each warning
    assert "on gpu[01-02] (cluster): GPU 4: measured 12 replays" in lines[0]


@pytest.mark.parametrize("odd", [None, 7, "text", [None], [7], [["part"]], {"part": "x"}])
def test_a_damaged_warning_of_a_foreign_log_is_no_crash(odd: Any) -> None:
    verdict = {"findings": [], "advisories": odd}
    assert read_run(a_run([passing("gpu01", verdicts=[verdict])])).warnings == {}
