"""Counts, tables and names of results."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpucluster.plugin import outputs
from pytest_gpucluster.plugin.reporting import classify
from pytest_gpucluster.report.proof import NOT_PROVED
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.words import folded, number, remark_lines


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


def _put(row: str, column: str, text: str, place: tuple[int, int], note: str = "") -> dict[str, Any]:
    return {"title": "Bandwidth", "row": row, "column": column, "text": text, "note": note, "place": place}


def test_tables_of_suites_are_in_the_order_of_their_places_with_each_note_once() -> None:
    run = Run()
    late, early = _put("b", "y", "3", (1, 1), "late"), _put("a", "y", "2", (0, 1), "early")
    first = [late, _put("a", "x", "1", (0, 0)), early]
    add(run, _record("gpu01", cells=first), "passed", "")
    add(run, _record("gpu02", cells=[_put("b", "z", "4", (1, 2), "late")]), "passed", "")
    add(run, _record("gpu02", cells=[_put("c", "x", "6", (2, 0))]), "passed", "")
    add(run, _record("gpu02", cells=[{**_put("r", "c", "5", (0, 0)), "title": "Latency"}]), "passed", "")
    assert outputs.suite_tables(run, 80) == [
        [
            "Bandwidth",
            "    x    y      z",
            "--  ---  -----  -----",
            "a   1    2 [1]",
            "b        3 [2]  4 [2]",
            "c   6",
            "[1] early",
            "[2] late",
        ],
        ["Latency", "    c", "--  ---", "r   5"],
    ]


def _metric(name: str, value: float, device: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "C", "device": device, **fields}


def test_the_table_of_metrics() -> None:
    run = Run()
    metrics = [_metric("temp", 30.5, "GPU 0 (GPU-1f)"), _metric("temp", 32.0, "GPU 1"), _metric("one", 2.0)]
    metrics += [_metric("flat", 1, "a"), _metric("flat", 1, "b"), _metric("deep", 1, detail=True)]
    metrics.append(_metric("whole", 4, detail=False))
    add(run, _record("gpu01", metrics=metrics), "passed", "")
    add(run, _record("", metrics=[_metric("temp", 41.25)]), "passed", "")
    assert outputs.metric_table(run, 80) == [
        "metric    unit    n    min    at           median    max    at",
        "--------  ------  ---  -----  -----------  --------  -----  ---------",
        "flat      C       2    1      gpu01 a      1         1      gpu01 b",
        "one       C       1    2      gpu01",
        "temp      C       3    30.5   gpu01 GPU 0  32        41.25  (cluster)",
        "whole     C       1    4      gpu01",
    ]
    assert outputs.metric_table(Run(), 80) == []


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


def test_checks_without_an_expectation_are_named_once() -> None:
    run = Run()
    assert outputs.without_expectation(run) == []
    for check, why in (
        ("os.mounts", "the cluster file states no os.mounts"),
        ("os.services", "the cluster file states no os.services"),
        ("os.mig", "the GPU has no MIG"),
    ):
        for node in ("gpu01", "gpu02"):
            add(run, {**_record(node, "os"), "check": check}, "not applicable", f"not applicable: {why}")
    told = "no expectation in the cluster file: os.mounts, os.services"
    assert outputs.without_expectation(run, {"os"}) == [told]
    (line,) = outputs.without_expectation(run)
    assert line.startswith(f"{told} (gpucluster init --from-nodes")


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


def test_nodes_by_suites_without_room_for_columns() -> None:
    run = Run()
    for node in ("gpu01", "gpu02", "gpu03"):
        for suite in ("gpu", "os", "fabric"):
            add(run, _record(node, suite), "failed" if (node, suite) == ("gpu02", "os") else "passed", "")
    add(run, _record("", "nccl"), "passed", "")
    assert outputs.node_table(run, 34) == [
        "suite    nodes",
        "-------  -----------------------",
        "fabric   3 nodes: 1 ok",
        "gpu      3 nodes: 1 ok",
        "nccl     (cluster): 1 ok",
        "os       2 nodes: 1 ok; gpu02: 1",
        "         FAILED",
    ]
    assert outputs.node_table(run, 40)[2] == "fabric   gpu[01-03]: 1 ok"


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


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (outputs.MAX_NAMES, "gpu.c0, gpu.c1, gpu.c2, gpu.c3"),
        (outputs.MAX_NAMES + 1, "gpu.c0, gpu.c1, gpu.c2, gpu.c3 and 1 more"),
    ],
)
def test_a_reason_names_four_checks(count: int, shown: str) -> None:
    run = Run()
    for place in reversed(range(count)):
        record = {**_record(f"gpu{place:02}"), "check": f"gpu.c{place}"}
        add(run, record, "not applicable", "not applicable: no NVSwitch")
    add(run, _record(""), "not checked", "not checked: no right")
    nodes = f"gpu[00-{count - 1:02}]"
    assert outputs.unjudged_lines(run, "not applicable") == [
        f"not applicable: {shown} on {nodes}: no NVSwitch"
    ]
    assert outputs.unjudged_lines(run, "not checked") == ["not checked: gpu.count on (cluster): no right"]
    assert outputs.unjudged_lines(run, "not tested") == []


def test_numbers_have_four_digits_and_whole_ones_all_and_the_cluster_keeps_its_name() -> None:
    assert folded(["gpu02", "(cluster)", "gpu01"]) == "gpu[01-02] (cluster)"
    assert [folded(names) for names in (["gpu02"], ["(cluster)"], [])] == ["gpu02", "(cluster)", ""]
    shown = [number(value) for value in (3, -3.0, 123456, 0.12345, 12345.6, 1e15 - 1, 1e15, -1e15)]
    assert shown == ["3", "-3", "123456", "0.1235", "1.235e+04", "999999999999999", "1e+15", "-1e+15"]
    assert [number(value) for value in (math.nan, math.inf)] == ["nan", "inf"]


def test_remarks_are_one_line_per_check() -> None:
    run = Run()
    for node, text, times in (("gpu01", "odd a", 2), ("gpu02", "odd b", 3), ("gpu02", "odd a", 2)):
        found = [{"outcome": "passed", "remarks": [{"text": text, "count": times}]}]
        add(run, _record(node, verdicts=found), "passed", "")
    assert remark_lines(run) == [
        "note: gpu.count on gpu[01-02]: 7 lines of 2 kinds without a known meaning, like: odd a"
    ]
    assert outputs.advisory_lines(run) == []
