"""Counts, tables and names of results."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.plugin.record import clean
from pytest_gpucluster.plugin.tally import Tally, classify
from pytest_gpucluster.report import junit


def _record(node: str, suite: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"suite": suite, "check": f"{suite}.count", "node": node, "verdicts": [], "metrics": [], **fields}


@pytest.mark.parametrize(
    ("when", "outcome", "message", "said"),
    [
        ("call", "passed", "", "passed"),
        ("setup", "passed", "", None),
        ("teardown", "passed", "", None),
        ("call", "failed", "7, expected 8", "failed"),
        ("setup", "failed", "no answer", "error"),
        ("teardown", "failed", "no answer", "error"),
        ("setup", "skipped", "not checked: dmesg: Operation not permitted", "not checked"),
        ("call", "skipped", "not applicable: no NVSwitch", "not applicable"),
        ("setup", "skipped", "not tested: gpu03: DRAINED", "not tested"),
        ("setup", "skipped", "somebody's own reason", "skipped"),
    ],
)
def test_an_outcome_tells_a_bad_node_from_broken_infrastructure(
    when: str, outcome: str, message: str, said: str | None
) -> None:
    assert classify(when, outcome, message) == said


def test_nodes_with_the_same_results_share_a_row_and_bad_ones_come_last() -> None:
    tally = Tally()
    for node in ("gpu01", "gpu02", "gpu03"):
        tally.add(_record(node), "passed", "")
    tally.add(_record("gpu02"), "failed", "7, expected 8")
    tally.add(_record(""), "passed", "")
    lines = tally.node_table()
    assert lines[-1].split() == ["gpu02", "1", "ok,", "1", "FAILED"]
    assert any(line.startswith("gpu[01,03] (cluster)") for line in lines)


def test_a_suite_that_does_not_apply_is_a_line_and_no_column() -> None:
    tally = Tally()
    tally.add(_record("gpu01"), "passed", "")
    tally.add({**_record("gpu01"), "suite": "ray"}, "not applicable", "not applicable: no ray")
    tally.add({**_record(""), "suite": "ray"}, "not applicable", "not applicable: no ray")
    assert [line.split() for line in tally.node_table()] == [
        ["nodes", "gpu"], ["-------", "-----"], ["gpu01", "1", "ok"],
        ["not", "applicable", "here:", "ray", "(-v", "says", "why)"],
    ]  # fmt: skip


def test_metrics_say_where_their_ends_were_measured() -> None:
    tally = Tally()
    for node, value in (("gpu01", 360.0), ("gpu02", 27.5), ("gpu03", 361.5)):
        tally.add(
            _record(node, metrics=[{"name": "busbw", "value": value, "unit": "GB/s", "device": ""}]),
            "passed",
            "",
        )
    row = tally.metric_table()[-1].split()
    assert row == ["busbw", "GB/s", "3", "27.5", "gpu02", "360", "361.5", "gpu03"]


def test_one_value_alone_is_said_once() -> None:
    tally = Tally()
    metric = {"name": "busbw", "value": 360.0, "unit": "GB/s", "device": ""}
    tally.add(_record("gpu01", metrics=[metric]), "passed", "")
    assert tally.metric_table()[-1].split() == ["busbw", "GB/s", "1", "360", "gpu01"]


def test_a_node_counts_as_tested_where_something_was_executed_there() -> None:
    tally = Tally()
    tally.add(_record("gpu01"), "error", "")
    tally.add(_record("gpu02"), "not applicable", "not applicable: no GPU")
    assert [tally.looked_at(node) for node in ("gpu01", "gpu02", "gpu03")] == [True, False, False]
    tally.add(_record(""), "passed", "")  # it is about all of them
    assert tally.looked_at("gpu03")


def test_coverage_counts_what_was_not_judged() -> None:
    tally = Tally()
    tally.add(_record("gpu01"), "passed", "")
    tally.add(_record("gpu01"), "not checked", "not checked: dmesg: Operation not permitted")
    tally.add(_record("gpu02"), "not tested", "not tested: gpu02: DOWN")
    assert tally.coverage(1, 2) == (
        "coverage: 1 of 3 checks judged, 1 not checked, 1 not tested; 1 of 2 nodes tested"
    )
    assert tally.unjudged_lines("not checked") == [
        "not checked: gpu.count on gpu01: dmesg: Operation not permitted"
    ]


@pytest.mark.parametrize(
    ("nodeid", "node", "name"),
    [
        ("suites/test_gpu.py::test_count[gpu03]", "gpu03", "test_count"),
        ("suites/test_nccl.py::test_busbw[gpu03-4GiB]", "gpu03", "test_busbw[4GiB]"),
        ("suites/test_nccl.py::test_busbw[4GiB-gpu03]", "gpu03", "test_busbw[4GiB]"),
        ("suites/test_slurm.py::test_array", "", "test_array"),
        ("suites/test_x.py::TestX::test_y[gpu1]", "gpu1", "TestX::test_y"),
        ("suites/test_x.py::test_y[gpu1-gpu10-a-]", "gpu10", "test_y[gpu1-a-]"),
        ("suites/test_x.py::test_path[a::b-gpu1]", "gpu1", "test_path[a::b]"),
    ],
)
def test_names_in_junit_are_stable(nodeid: str, node: str, name: str) -> None:
    assert junit.name(nodeid, node) == name


def test_control_characters_never_reach_a_report() -> None:
    assert clean("bad\x1b[31m \x00cable\x85") == "bad?[31m ?cable?"
