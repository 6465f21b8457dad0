"""The verdict and the record of an item, without a run: outcomes, words and plain types, exactly."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_helpers import FakeItem, a_session

from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.plugin.items import CheckItem, check_of, node_of, record_of, suite_of
from pytest_gpucluster.report.describe import describe
from pytest_gpucluster.run.facts import CheckFailed, ItemView, with_known_cause
from pytest_gpucluster.run.item_record import Record


def made() -> tuple[ItemView, Record]:
    record = Record("site", "site.disk", "gpu01")
    return ItemView(a_session(), record), record


def verdict(outcome: Outcome, *findings: Finding, **fields: Any) -> Verdict:
    return Verdict("gpu.count", outcome, findings, **fields)


def test_a_pass_goes_on_and_other_verdicts_end_the_item() -> None:
    item, record = made()
    count = Metric("count", 8, "")
    passed = verdict(Outcome.PASSED, metrics=(count,))
    item.expect(passed)
    assert (record.verdicts, record.metrics) == ([passed], [count])
    failed = verdict(Outcome.FAILED, Finding("GPU 3", "7", "8"), metrics=(count,))
    with pytest.raises(CheckFailed) as caught:
        item.expect(failed)
    assert str(caught.value) == "site.disk on gpu01: GPU 3: measured 7, expected 8\naction:       monitor"
    for outcome, end in ((Outcome.NOT_CHECKED, NotAvailable), (Outcome.NOT_APPLICABLE, NotApplicable)):
        with pytest.raises(end, match=r"^no right$"):
            item.expect(verdict(outcome, reason="no right"))
    assert (len(record.verdicts), record.metrics) == (4, [count, count])


@pytest.mark.parametrize("value", [499.5, 500.0, 500.5, math.nan])
@pytest.mark.parametrize("bound", ["at_least", "at_most"])
def test_a_number_against_a_bound(bound: str, value: float) -> None:
    lower = bound == "at_least"
    good = value in ((500.0, 500.5) if lower else (499.5, 500.0))
    for device, words in (("sda", {"cause": "full", "hint": "clean it"}), ("", {})):
        item, record = made()
        try:
            getattr(item, bound)("free", value, 500, "GiB", device=device, **words)
            passed = True
        except CheckFailed:
            passed = False
        assert passed is good
        (judged,) = record.verdicts
        stated = f"{device or 'free'}: measured {value:g} GiB, expected {'>' if lower else '<'}= 500 GiB"
        expected = [] if good else [(stated, "below_bound" if lower else "above_bound")]
        assert [(one.words, one.code) for one in judged.findings] == expected
        assert judged.metrics[0].better == ("higher" if lower else "lower")
        assert (judged.check, judged.action) == ("site.disk", Action.MONITOR)
        metric = judged.metrics[0]
        assert (metric.name, metric.unit, metric.device) == ("free", "GiB", device)
        assert (judged.cause, judged.hint) == (words.get("cause", ""), words.get("hint", ""))


def test_where_tasks_ran_elsewhere_the_configuration_is_the_cause_whatever_check_failed() -> None:
    where, tasks = {"gpu01": "the task ran on the host"}, (PayloadTask(1, "gpu02", 3, None, ()),)
    step = PayloadResult("k", ("gpu01", "gpu02"), 2, tasks, "the task ran on the host", misplaced=where)
    whys = {step.silent("gpu01"): task_place.CAUSE, step.stopped: task_place.CAUSE, step.silent("gpu02"): "own"}
    for found, cause in whys.items():
        assert found is not None
        failed = verdict(Outcome.FAILED, found.finding(Part("task"), "starts"), cause="own")
        assert with_known_cause(failed, made()[0]).cause == cause


def test_a_failed_verdict_as_text() -> None:
    found = (Finding("GPU 3", "7", "8"), Finding("GPU 4", "6", "8", Action.DRAIN))
    words = {"cause": "a fault", "hint": "scontrol show node NODE", "never_healthy": "it has all of its GPUs"}
    advisory = Advisory("GPU 5", "9", "8")
    two = verdict(Outcome.FAILED, *found, **words, action=Action.DRAIN, advisories=(advisory,))
    assert "what to do:   scontrol show node gpu01\n" in describe(two, "gpu.count", "gpu01")
    lines = [" ".join(line.split()) for line in describe(two, "gpu.count", "").splitlines()]
    assert lines[0] == "gpu.count: GPU 3: measured 7, expected 8 (and 1 more)"
    assert lines[1::2] == ["part measured expected", "GPU 3 7 8", "likely cause: a fault", "action: drain"]
    shown = ["GPU 4 6 8", "what to do: scontrol show node NODE", "warning: GPU 5: measured 9, expected 8"]
    assert lines[4::2] == shown


# --- the record


def test_a_record_as_plain_types() -> None:
    record = Record("site", "site.disk", "gpu01")
    lists = ("verdicts", "metrics", "curves", "cells", "logs")
    names = {"suite": "site", "check": "site.disk", "node": "gpu01"}
    assert record.as_dict() == names | {key: [] for key in lists}
    bad, good = "a\x1b[m PASSWORD=hunter2hunter2", "a?[m PASSWORD=<redacted>"
    dirty = Record(bad, bad, bad)
    metric = Metric(bad, 1.5, "s", bad, detail=True, better="higher")
    dirty.add(verdict(Outcome.FAILED, Finding("GPU 1", "1", "2"), metrics=(metric,), cause=bad, reason="plain"))
    for place in (dirty.curves, dirty.cells):
        place.append({"title": bad})
    dirty.logs.append(bad)
    dirty.versions["nccl"] = bad
    flat = {"name": good, "value": 1.5, "unit": "s", "part": {"name": good}, "detail": True, "better": "higher"}
    judged = dirty.as_dict().pop("verdicts")[0]
    finding = {"code": "", "part": {"name": "GPU 1"}, "measured": "1", "expected": "2"}
    assert list(judged.items()) == [
        *(("check", "gpu.count"), ("outcome", "failed"), ("findings", [finding])),
        *(("reason", "plain"), ("cause", good), ("hint", ""), ("action", "monitor"), ("advisories", [])),
    ]
    told = {"curves": [{"title": good}], "cells": [{"title": good}], "logs": [good], "versions": {"nccl": good}}
    head = dict.fromkeys(("suite", "check", "node"), good)
    assert dirty.as_dict() == {**head, "verdicts": [judged], "metrics": [flat], **told}


class Stashed(FakeItem):
    def __init__(self, node: str, name: str, file: str) -> None:
        super().__init__(node, name)
        self.path, self.stash = Path("suites", file), pytest.Stash()


def own_item() -> Any:
    found: Any = object.__new__(CheckItem)
    found.test, found.node_name, found.record = SimpleNamespace(suite="gpu", check="gpu.count"), "gpu01", None
    return found


def test_an_item_has_its_names_and_one_record() -> None:
    known: list[tuple[Any, tuple[str, str, str]]] = [
        (Stashed("gpu01", "test_count", "test_gpu.py"), ("gpu", "gpu.count", "gpu01")),
        (Stashed("", "test_all", "test_gpu.py"), ("gpu", "gpu.all", "")),
        (Stashed("", "check_test_x", "own.py"), ("own", "own.check_test_x", "")),
        (own_item(), ("gpu", "gpu.count", "gpu01")),
    ]
    for found, names in known:
        assert (suite_of(found), check_of(found), node_of(found)) == names
        record = record_of(found)
        assert record == Record(*names)
        assert record_of(found) is record
