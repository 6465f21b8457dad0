"""Counts, tables and names of results."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.plugin import outputs
from pytest_gpucluster.plugin.reporting import classify
from pytest_gpucluster.report.proof import NOT_PROVED
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.words import remark_lines


def add(run: Run, record: dict[str, Any], outcome: str, message: str) -> None:
    run.take({"event": "result", "outcome": outcome, "message": message, **record})


def _record(node: str, suite: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"suite": suite, "check": f"{suite}.count", "node": node, "verdicts": [], "metrics": [], **fields}


@pytest.mark.parametrize(
    ("when", "outcome", "record", "expected"),
    [
        ("call", "passed", {}, "passed"),
        ("setup", "passed", {}, None),
        ("call", "failed", {}, "failed"),
        ("setup", "failed", {}, "error"),
        ("setup", "skipped", {"ended": "not checked"}, "not checked"),
        ("call", "skipped", {"ended": "not applicable"}, "not applicable"),
        ("call", "skipped", {"waiver": {}}, "waived"),
        ("setup", "skipped", {}, "skipped"),
    ],
)
def test_the_outcome_distinguishes_a_bad_node_from_broken_infrastructure(
    when: Any, outcome: Any, record: dict[str, Any], expected: str | None
) -> None:
    report = pytest.TestReport("id", ("file", 1, "test"), {}, outcome, None, when, gpucluster=record)
    assert classify(report) == expected


# --- exactly


def _of_every_end() -> Run:
    run = Run()
    for node, outcome, why in (
        *[("gpu02", "passed", "")] * 2,
        ("gpu04", "failed", ""),
        ("gpu03", "error", ""),
        ("gpu05", "not checked", "not checked: x"),
        ("gpu06", "not tested", "not tested: DOWN"),
        ("gpu07", "not applicable", "not applicable: y"),
        ("gpu09", "skipped", "z"),
    ):
        add(run, _record(node), outcome, why)
    add(run, _record("gpu01", "os"), "passed", "")
    add(run, _record("gpu08", "ray"), "not applicable", "not applicable: y")
    add(run, _record("", "run"), "error", "")
    return run


def test_the_table_of_nodes_has_the_worst_at_its_end_and_a_bound() -> None:
    run = Run()
    for place in range(1, 41):
        for _ in range(place):
            add(run, _record(f"gpu{place:02}"), "failed" if place == 7 else "passed", "")
    lines = outputs.node_table(run, 80)
    assert len(lines) == 2 + outputs.MAX_ROWS + 1
    assert lines[-2].split() == ["gpu07", "7", "FAILED"]
    assert lines[-1] == "and 25 more kinds of nodes: see report.html"


def test_the_table_of_nodes() -> None:
    assert outputs.node_table(_of_every_end(), 80) == [
        "nodes       gpu            os    run",
        "----------  -------------  ----  -------",
        "gpu02       2 ok           -     -",
        "gpu05       1 not checked  -     -",
        "gpu06       1 not tested   -     -",
        "gpu[07,09]  -              -     -",
        "gpu01       -              1 ok  -",
        "gpu04       1 FAILED       -     -",
        "gpu03       1 ERROR        -     -",
        "(cluster)   -              -     1 ERROR",
        "not applicable here: ray (-v says why)",
    ]
    assert outputs.node_table(Run(), 80) == []
    run = Run()
    for outcome in ("passed", "failed", "error", "not checked", "not tested", "not applicable"):
        add(run, _record("gpu01"), outcome, "not applicable: y")
    assert outputs.node_table(run, 80)[2].endswith("1 ok, 1 FAILED, 1 ERROR, 1 not checked, 1 not tested")
    run = Run()
    add(run, _record("gpu01", "ray"), "not applicable", "not applicable: y")
    add(run, _record("gpu01", "mpi"), "not applicable", "not applicable: y")
    assert outputs.node_table(run, 80) == ["not applicable here: mpi, ray (-v says why)"]


def test_coverage_of_every_end() -> None:
    """An entry of a node that was not available is no check, nor is a suite without proof: the numbers add up."""
    run = _of_every_end()
    add(run, _record("gpu03", check="gpu.proved"), "error", "gpu has not proved gpu03")
    assert outputs.coverage(run) == (
        "coverage: 4 of 10 checks judged, 2 not applicable, 1 not checked, 1 not tested, 1 error, 1 skipped"
    )
    run.counts["gpu04"]["gpu"][NOT_PROVED] = run.counts["gpu04"]["gpu"].pop("failed")  # all nodes fail alike
    assert outputs.coverage(run).startswith("coverage: 4 of 10 checks judged")
    assert outputs.coverage(Run()) == "coverage: 0 of 0 checks judged"


def test_the_one_reason_of_all_that_was_not_judged() -> None:
    run = Run()
    assert outputs.only_reason(run) == ""
    add(run, _record("gpu01"), "not checked", "not checked: no right")
    add(run, _record("gpu02"), "not applicable", "not applicable: no right")
    add(run, _record("gpu02"), "not tested", "not tested: DOWN")
    add(run, _record("gpu02"), "failed", "7")
    assert outputs.only_reason(run) == "no right"
    add(run, _record("gpu02"), "not checked", "not checked: another")
    assert outputs.only_reason(run) == ""


def test_remarks_are_one_line_per_check() -> None:
    run = Run()
    for node, text, times in (("gpu01", "odd a", 2), ("gpu02", "odd b", 3), ("gpu02", "odd a", 2)):
        found = [{"outcome": "passed", "remarks": [{"text": text, "count": times}]}]
        add(run, _record(node, verdicts=found), "passed", "")
    assert remark_lines(run) == [
        "note: gpu.count on gpu[01-02]: 7 lines of 2 kinds without a known meaning, like: odd a"
    ]
    assert outputs.advisory_lines(run) == []
