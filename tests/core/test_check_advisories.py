"""Warnings that fail no check, and findings of different actions: what every report makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from report_helpers import a_run, passing

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Verdict, conclude
from pytest_gpucluster.core.errors import NotJudged
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.run.record import Record


def concluded(*found: Finding | Advisory | Metric | NotJudged) -> Verdict:
    return conclude("gpu.x", found, cause="a cause", hint="a hint", action=Action.REBOOT, never_healthy="n")


def test_a_warning_is_sanitised_and_redacted_as_a_finding_is() -> None:
    hostile = "bad\x1b[31m\x00 API_TOKEN=hunter2hunter2 https://ops:pw@host/ \u202e"
    clean = "bad?[31m? API_TOKEN=<redacted> https://ops:<redacted>@host/ ?"
    record = Record("gpu", "gpu.x", "gpu01")
    record.add(concluded(Advisory(hostile, hostile, hostile), Finding(hostile, hostile, hostile)))
    (verdict,) = record.as_dict()["verdicts"]
    assert verdict["advisories"] == [{"part": clean, "measured": clean, "expected": clean}]
    assert verdict["findings"] == verdict["advisories"]


@pytest.mark.parametrize("odd", [None, 7, "text", [None], [7], [["part"]], {"part": "x"}])
def test_a_damaged_warning_of_a_foreign_log_is_no_crash(odd: Any) -> None:
    verdict = {"findings": [], "advisories": odd}
    assert read_run(a_run([passing("gpu01", verdicts=[verdict])])).warnings == {}
