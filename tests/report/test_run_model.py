"""Events read into values: the model of the HTML report and the run that the history keeps, field by field."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.finding import Advisory, Finding, Metric
from pytest_gpucluster.report import words
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import FailureGroup, FindingRow, Run, part_of, read_run
from pytest_gpucluster.report.run_snapshot import (
    ItemMetric,
    Recorded,
    RecordedItem,
    check_of,
    plain,
    recorded,
)

# --- the model of a page


def test_an_empty_log_is_an_empty_run() -> None:
    run = read_run([])
    assert run == Run()
    assert [name for name, value in vars(run).items() if value] == []
    assert (run.suites, run.simulated, run.untested, run.silent, run.executed) == ([], False, {}, [], 0)


def test_times_are_those_of_the_first_and_last_event() -> None:
    run = read_run([{"event": "x"}, {"event": "y", "time": 5}, {"time": 7.5}, {"event": "z", "time": "8"}])
    assert (run.began, run.ended) == (5, 7.5)


def test_nodes_are_selected_untested_lost_or_silent() -> None:
    nodes = [f"gpu0{n}" for n in range(1, 7)]
    not_tested = {"gpu02": ["busy", "ALLOCATED"], "gpu03": ["down"], "gpu04": []}
    lost = {"gpu05": "gone", "gpu01": "gone at last"}
    events = a_run([passing("gpu01")], nodes=nodes, not_tested=not_tested)
    run = read_run([*events, *(event("lost", node=node, why=why) for node, why in lost.items())])
    assert run.problems == {"gpu02": ("busy", "ALLOCATED"), "gpu03": ("down", ""), "gpu04": ("", "")}
    assert run.lost == lost
    assert run.untested == {"gpu02": "ALLOCATED", "gpu03": "", "gpu04": "", **lost}
    assert run.silent == ["gpu06"]
    assert [run.state(node) for node in ("gpu01", "gpu02", "gpu06")] == ["not proved", "not tested", ""]
    assert (run.state("gpu01", "gpu"), run.state("gpu01", "os")) == ("passed", "")
    failed = read_run([*a_run([failing("gpu01")]), event("lost", node="gpu01", why="gone")])
    assert failed.state("gpu01") == "failed"


def test_the_worst_state_counts() -> None:
    for worst, other, state in (
        ("passed", "not applicable", "passed"),
        ("passed", "skipped", "passed"),
        ("error", "not tested", "error"),
        ("failed", "error", "failed"),
        ("odd", "odd", ""),
    ):
        for order in ((worst, other), (other, worst)):
            run = read_run(a_run([result("gpu01", outcome) for outcome in order]))
            assert run.state("gpu01") == run.state("gpu01", "gpu") == state


def test_results_are_counted() -> None:
    results = [passing("gpu01"), passing("gpu01"), failing("gpu01"), unjudged("gpu01", "skipped")]
    results += [failing("", outcome="error"), passing("gpu02", check="own", suite="")]
    run = read_run(a_run([*results, {"event": "result", "outcome": "passed"}]))
    assert run.totals == Counter({"passed": 4, "failed": 1, "error": 1, "skipped": 1})
    assert run.executed == 6
    assert run.counts == {
        "gpu01": {"gpu": Counter({"passed": 2, "failed": 1, "skipped": 1})},
        CLUSTER: {"gpu": Counter({"error": 1}), "other": Counter({"passed": 1})},
        "gpu02": {"own": Counter({"passed": 1})},
    }
    assert run.suites == ["gpu", "other", "own"]


def test_why_something_was_not_judged_is_kept_without_its_kind() -> None:
    ends = {
        "gpu.a": ("not checked", "not checked: no right"),
        "gpu.b": ("not checked", "Skipped: not checked: no right"),
        "gpu.c": ("not applicable", "not applicable: no MIG"),
        "gpu.d": ("skipped", "not checked: not checked: twice"),
        "gpu.e": ("skipped", "Skipped: own"),
        "gpu.f": ("not tested", "not tested: down"),
    }
    results = [result("gpu01", end, check=check, message=why) for check, (end, why) in ends.items()]
    one = {"gpu01"}
    assert read_run(a_run(results)).unjudged == {
        "not checked": {"no right": {"gpu.a": one, "gpu.b": one}},
        "not applicable": {"no MIG": {"gpu.c": one}},
        "skipped": {"not checked: twice": {"gpu.d": one}, "Skipped: own": {"gpu.e": one}},
    }


def test_what_was_tried_again_keeps_its_first_failure() -> None:
    again = [failing("gpu01", message=message) | {"event": "rerun"} for message in ("first", "second")]
    (ended,) = read_run(a_run([*again, passing("gpu01")])).retried.values()
    first = {"check": "gpu.nvlink_state", "node": "gpu01", "message": "first"}
    assert ended == {**first, "outcome": "passed"}
    (open_still,) = read_run(a_run(again)).retried.values()
    assert open_still == {**first, "outcome": "not ended"}


def test_errors_complaints_and_acts_are_gathered() -> None:
    kinds = ("drain_x", "drain.x", "resume_x", "trial_x", "node_x", "nodes", "drain", "draining", "x_drain_x")
    ends = [event("finish", complaints=["c", 4]), event("finish", complaints="d")]
    run = read_run([event("error", message="a\nb"), *map(event, kinds), *ends])
    assert run.errors == ["a b", "c", "4"]
    assert [act["event"] for act in run.acts] == [*kinds[:5]]


def test_versions_are_gathered_by_what_and_version() -> None:
    start = {"slurmd": {"23.02": ["gpu01", 2], "odd": "x"}}
    stated: list[Any] = [{"driver": "580"}, {"driver": "580", "cuda": 13}, ["odd"]]
    results = [passing(f"gpu0{n}", versions=versions) for n, versions in enumerate(stated)]
    assert read_run(a_run(results, start=start)).versions == {
        "slurmd": {"23.02": ["gpu01", "2"], "odd": []},
        "driver": {"580": ["gpu00", "gpu01"]},
        "cuda": {"13": ["gpu01"]},
    }
    assert read_run(a_run([], start={"slurmd": ["odd"]})).versions == {}


# --- failures


def groups(*failures: dict[str, Any]) -> list[FailureGroup]:
    return [*read_run(a_run(failures)).groups.values()]


NO_LOGS = "steps/.log steps/a/b.log steps/../x.log steps/x.log.txt steps/xlog http://x/steps/x.log"


def test_only_step_logs_are_linked_to() -> None:
    good = ["steps/gw0-0001-gpu.x_y.log", "steps/x.log"]
    run = read_run(a_run([failing("gpu01", logs=[*NO_LOGS.split(), 7, *good])]))
    assert [list(group.logs) for group in run.groups.values()] == [good]
    assert run.logs == {"gpu": dict.fromkeys(good, "gpu.nvlink_state")}


def test_the_annotation_of_a_failure_is_sorted_by_its_labels() -> None:
    lines = ["why", "Slurm state: IDLE", "reproduce:  a: b", "by hand: c", "rerun: d", "again: e", "note: f"]
    (group,) = groups(failing("gpu01", annotation=[*lines, "reason: g"], text="x" * 8001, output="o"))
    assert group.example == {
        "node": "gpu01",
        "output": "o",
        "by_hand": ["a: b", "c"],
        "again": "e",
        "slurm": "IDLE; why; reason: g",
        "text": "x" * 4000 + " [... 1 characters left out ...] " + "x" * 4000,
    }
    assert group.slurm == {"IDLE; why; reason: g": ["gpu01"]}
    assert groups(failing("gpu01"))[0].slurm == {}


def test_failures_are_grouped_by_what_differs() -> None:
    base = failing("gpu01", cause="port 3 of gpu01 is down")
    alike: dict[str, Any] = {"cause": "port 14 of gpu02 is down"}
    assert len(groups(base, failing("gpu02", **alike))) == 1
    for other in (
        *({"cause": "port of gpu02 is down"}, {"hint": "other"}, {"action": "reboot"}),
        *({"check": "gpu.other"}, {"outcome": "error"}),
    ):
        assert len(groups(base, failing("gpu02", **(alike | other)))) == 2
    # with a verdict its message is no matter; without one it is what tells them apart
    for more, count in (({"cause": ""}, 1), ({"findings": []}, 2)):
        assert len(groups(*(failing("gpu01", message=message, **more) for message in "ab"))) == count
    gpus = groups(
        *(failing(f"gpu{n}", cause=f"GPU {gpu} (0:{gpu}3) missing") for n, gpu in enumerate((5, 5, 15)))
    )
    assert [list(group.nodes) for group in gpus] == [["gpu0", "gpu1"], ["gpu2"]]


def test_rows_differ_in_part_measured_expected_and_action() -> None:
    finding = {"part": "a", "measured": "b", "expected": "c", "action": "drain"}
    found = [finding, *(finding | {key: "x"} for key in ("part", "measured", "expected"))]
    (group,) = groups(failing("gpu01", findings=[*found, finding | {"action": "reboot"}, finding]))
    rows = [(it.found.part, it.found.measured, it.found.expected, it.action) for it in group.rows.values()]
    assert rows == [*((*texts, "drain") for texts in ("abc", "xbc", "axc", "abx")), (*"abc", "reboot")]
    assert {tuple(it.nodes) for it in group.rows.values()} == {("gpu01",)}


def test_warnings_are_rows_of_their_check_and_ask_for_nothing() -> None:
    finding = {"part": "GPU 3 (GPU-d, 0:4)", "measured": "1 replay", "expected": "0"}
    verdicts = [{"findings": [], "advisories": [finding], "action": "drain"}]
    run = read_run(a_run([passing(node, check="gpu.pcie", verdicts=verdicts) for node in ("gpu01", "gpu02")]))
    row = FindingRow(Advisory("GPU 3", "1 replay", "0"), ["gpu01", "gpu02"])
    assert run.warnings == {("gpu.pcie", "GPU 3", "1 replay", "0", ""): row}


def test_the_first_verdict_with_findings_names_the_cause() -> None:
    verdicts = [
        {"findings": [], "cause": "none", "hint": "none", "action": "monitor"},
        {"findings": [{"part": "a"}], "cause": "one", "hint": "h1", "action": "drain"},
        {"findings": [{"part": "b"}], "cause": "two", "hint": "h2", "action": "reboot"},
    ]
    (group,) = groups(result("gpu01", "failed", verdicts=verdicts))
    assert (group.cause, group.hint, group.action, group.suite) == ("one", "h1", "drain", "gpu")
    assert [(row.found.part, row.action) for row in group.rows.values()] == [("a", "drain"), ("b", "reboot")]


def test_an_error_has_no_verdict_of_its_check() -> None:
    (group,) = groups(failing("gpu01", outcome="error", message="gpu01 broke"))
    (row,) = group.rows.values()
    assert (group.action, group.cause, group.hint) == ("", "", "")
    assert (row.found, row.nodes) == (Finding("", "NODE broke", ""), ["gpu01"])


def test_rows_of_a_group_lose_what_is_one_nodes_own() -> None:
    def rows(*failures: dict[str, Any]) -> list[tuple[str, list[str]]]:
        return [(row.found.part, row.nodes) for row in groups(*failures)[0].rows.values()]

    one, two = (failing(node, part=f"GPU 4 (GPU-{node}, 0:1)") for node in ("gpu01", "gpu02"))
    assert rows(one) == rows(one, one) == [("GPU 4 (GPU-gpu01, 0:1)", ["gpu01"])]
    assert rows(one, two) == rows(one, two, two) == [("GPU 4", ["gpu01", "gpu02"])]


# --- numbers


def metric(name: str, value: Any, unit: str = "W", device: Any = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "device": device, **more}


PARTS = ",GPU4,nic 1,HCA 2,port 1,link 1,NVLink 3,device 3,rank 3,mlx5_0,with gpu02"
OTHERS = "4 GiB,a GPU 4,GPU clock,mlxfw,without gpu02"


def test_a_device_is_a_part_or_what_was_measured() -> None:
    devices = {part: ("power", part) for part in PARTS.split(",")}
    devices |= {what: (f"power {what}", "") for what in OTHERS.split(",")}
    devices |= {"GPU 4 (GPU-x, 0:1)": ("power", "GPU 4"), "/scratch (nvme)": ("power /scratch", "")}
    for device, (label, part) in devices.items():
        run = read_run(a_run([passing("gpu01", metrics=[metric("power", 5, device=device)])]))
        (spread,) = run.spreads.values()
        (found,) = spread.metrics
        assert (spread.name, spread.unit, spread.nodes, found.value) == (label, "W", ["gpu01"], 5.0)
        assert (run.spreads[label, "W"], part_of(found)) == (spread, part)


@pytest.mark.parametrize("value", ["NaN", None, float("nan"), float("-inf"), [1]])
def test_what_is_no_number_or_a_detail_is_not_drawn(value: Any) -> None:
    metrics = [metric("power", value), metric("busbw", value), metric("x", 1, detail=True)]
    run = read_run(a_run([passing("gpu01", metrics=metrics)]))
    assert (run.spreads, run.node_curves) == ({}, {})


NO_BANDWIDTH = "odd,all_reduce x B,all_reduce 1 GiBs,2all_reduce 1 GiB, 1 GiB,all_reduce GiB,all_reduce 1"


def test_bandwidths_make_curves_and_bounds() -> None:
    two = "all_reduce 4 KiB 2 nodes"
    bounds = [(two, 3), (two, 3), (two, 2), ("all_reduce 512 B", 1), ("all_reduce 1.5GiB 2 nodes x 8", 8)]
    bounds += [(what, 9) for what in NO_BANDWIDTH.split(",")]
    measured = {"all_reduce 1 MiB": 5, "all_gather 2 GiB alone": 6, "odd": 7, "all_reduce 1.2.3 MiB": 7}
    limit = metric("busbw_bound", 4, "GB/s", "all_reduce 1 MiB")
    metrics = [metric("busbw", value, "GB/s", what) for what, value in measured.items()]
    metrics += [limit, *(metric(f"bound {what}", value) for what, value in bounds)]
    run = read_run(a_run([passing("gpu01", metrics=metrics), passing("", metrics=[metrics[0], limit])]))
    alone, gathered = {"gpu01": {1 << 20: 5.0}}, {"gpu01": {2 << 30: 6.0}}
    assert run.node_curves == {"all_reduce": alone, "all_gather": gathered}
    assert run.bounds == {
        ("all_reduce", "alone"): {1 << 20: 4},
        ("all_reduce", "2 nodes"): {4096: 2},
        ("all_reduce", "2 nodes x 8"): {3 << 29: 8},
        ("all_reduce", ""): {1 << 20: 4, 512: 1},
    }
    assert [(one.name, one.unit, one.metrics, one.bounds) for one in run.spreads.values()] == [
        (f"busbw {two}", "GB/s", [], [3, 2]),
        ("busbw all_reduce 512 B", "GB/s", [], [1]),
        ("busbw all_reduce 1.5GiB 2 nodes x 8", "GB/s", [], [8]),
    ]


def test_curves_and_cells_are_kept_with_their_node() -> None:
    points = [[1024, 5], [2048, 6.5], [4096, "x"], ["x", 1], [1], 7, [1.5, 2]]
    cell = {"title": "a b", "row": 1}
    whole = passing("", curves=[{"title": "u"}, "odd"])
    run = read_run(
        a_run([passing("gpu01", curves=[{"title": "t", "points": points}], cells=[cell, "odd"]), whole])
    )
    assert run.curves == [
        {"title": "t", "node": "gpu01", "points": [(1024, 5.0), (2048, 6.5)]},
        {"title": "u", "node": CLUSTER, "points": []},
    ]
    assert run.cells == {"a b": [cell]}


# --- words


def test_a_field_is_one_line_of_limited_length() -> None:
    fields = {
        "x" * 600: "x" * 600,
        "x" * 601: "x" * 300 + " [... 1 characters left out ...] " + "x" * 300,
        " a\n\t" * 3: "a a a",
        " a\n\t" * 150: " ".join(["a"] * 150),
        None: "",
    }
    run = read_run(event("error", message=message) for message in fields)
    assert run.errors == [*fields.values()]
    assert (plain(" a\n\tb\x1b[1m "), plain("x" * 1001), plain(None)) == ("a b", "x" * 1000, "")


def test_numbers_and_times_for_people() -> None:
    shown = {None: "-", 7.0: "7", 0.0: "0", 1e14: "100000000000000", 1e15: "1e+15", 0.12345: "0.1235"}
    assert {value: words.number(value) for value in shown} == shown
    assert {words.clock(time) for time in (None, "now", 1e30, -1e30, float("nan"))} == {"not known"}


@pytest.mark.parametrize(
    ("nodes", "text", "count"),
    [
        ([], "", "0 nodes"),
        (["gpu01"], "gpu01", "1 node"),
        (["gpu02", "gpu01", "gpu02"], "gpu[01-02]", "2 nodes"),
        (["gpu01", CLUSTER], "gpu01 (cluster)", "1 node"),
        ([CLUSTER, CLUSTER], "(cluster)", "0 nodes"),
        (["a b", "c["], "a b, c[", "2 nodes"),
        ([f"n{n}" for n in range(1000)], "n[0-999]", "1,000 nodes"),
    ],
)
def test_node_lists(nodes: list[str], text: str, count: str) -> None:
    assert (words.folded(nodes), words.counted(nodes)) == (text, count)


# --- what the history keeps


def start(**more: Any) -> dict[str, Any]:
    return {"event": "start", "time": 5.0, "run": "r1", "cluster": "prod", "simulated": False} | more


def kept(*events: dict[str, Any], **more: Any) -> Recorded:
    return recorded(read_run([start(**more), *events]))


def test_the_head_of_a_recorded_run() -> None:
    ends = [{"event": "finish", "exit": 0}, {"event": "finish", "exit": 1, "time": 8}]
    found = kept(start(run="second"), {"time": 9.5}, *ends, arguments=["-m", "gpu or os", 3])
    assert (found.run, found.cluster, found.simulated) == ("r1", "prod", False)
    assert (found.started, found.finished, found.exit) == (5.0, 9.5, 1)
    assert (found.arguments, found.items, found.metrics) == ("-m gpu or os 3", (), ())
    stated: list[Any] = [False, True, None, "no", 0]  # simulated unless it is stated real
    assert [kept(simulated=one).simulated for one in stated] == [False, True, True, True, True]


def test_only_a_run_that_came_to_its_end_is_complete() -> None:
    for code, status, complete in (
        *((0, 0, True), (1, 1, True), (2, 2, False), (5, 5, False)),
        *((True, None, False), ("0", None, False), (None, None, False)),
    ):
        found = kept({"event": "finish", "exit": code})
        assert (found.exit, found.complete) == (status, complete)
    assert not kept().complete


def test_a_good_run() -> None:
    for outcomes, code, good in (
        ("passed", 0, True),
        ("passed, not checked", 0, True),
        ("not checked", 0, False),
        ("", 0, False),
        ("passed", 1, False),
        ("passed, failed", 0, False),
        ("passed, error", 0, False),
        ("passed", None, False),
    ):
        ends = [outcome for outcome in outcomes.split(", ") if outcome]
        results = [result("gpu01", outcome, check=f"gpu.c{n}") for n, outcome in enumerate(ends)]
        found = kept(*results, {"event": "finish", "exit": code})
        assert found.good is good
        assert len(found.red) == sum(outcome in ("failed", "error") for outcome in ends)


@pytest.mark.parametrize(
    "wrong",
    [{"run": ""}, {"cluster": None}, {"time": "5"}, {"time": True}, {"time": float("inf")}, {"event": "x"}],
)
def test_what_is_no_log_of_a_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GpuClusterError, match=r"^here: not the event log of a run: it has no start event"):
        recorded(read_run([start(**wrong)]), "here")
    with pytest.raises(GpuClusterError, match=r"^the event log: not the event log of a run"):
        recorded(read_run([]))


def test_items_have_their_findings() -> None:
    odd: Any = "odd"
    red = failing("gpu01", message="m", findings=[{"part": "a", "measured": 1, "expected": "b"}, odd, {}])
    findings = (Finding("a", "1", "b"), Finding("", "", ""))
    expected = RecordedItem("gpu01", "gpu.nvlink_state", "failed", "m", "drain", findings)
    assert kept(red).items == (expected,)
    verdicts: list[dict[str, Any]] = [
        {"findings": [], "action": "monitor"},
        {"findings": [{"part": "a"}], "action": "reboot"},
        {"findings": [{}], "action": "drain"},
    ]
    (item,) = kept(result("gpu01", "failed", verdicts=verdicts)).items
    assert (item.action, len(item.findings)) == ("reboot", 2)


def test_of_several_results_of_an_item_a_red_one_stands() -> None:
    (item,) = kept(*(result("gpu01", end) for end in ("passed", "error", "passed", "failed"))).items
    assert (item.outcome, item.action, item.findings) == ("error", "", ())
    (item,) = kept(result("gpu01", "not checked"), result("gpu01", "passed")).items
    assert item.outcome == "passed"


def test_a_check_has_its_parameters() -> None:
    for inside, node, check in (
        ("[gpu01]", "gpu01", "gpu.x"),
        ("[gpu01-4G]", "gpu01", "gpu.x[4G]"),
        ("[a-b]", "", "gpu.x[a-b]"),
        ("", "", "gpu.x"),
    ):
        told = {"nodeid": f"test_gpu.py::test_x{inside}", "node": node, "check": "gpu.x"}
        assert check_of(read_result(told)) == (node, check)


def measures(*metrics: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    found = kept(passing("gpu01", metrics=list(metrics))).metrics
    return [(one.metric.name, one.metric.device, one.metric.number) for one in found]


def test_a_metric_is_kept_with_all_that_names_it() -> None:
    power = metric("p", 5, "W", "GPU 4 (x)", better="lower", detail=1)
    expected = Metric("p", 5.0, "W", "GPU 4", detail=True, better="lower")
    assert kept(passing("gpu01", metrics=[power])).metrics == (
        ItemMetric("gpu01", "gpu.nvlink_state", expected),
    )


def test_what_was_measured_several_times_is_its_median() -> None:
    assert measures(metric("p", 1), metric("p", 9), metric("p", 2)) == [("p", "", 2.0)]
    assert measures(metric("p", 1), metric("p", "NaN")) == [("p", "", None)]
    assert measures(metric("p", 1), metric("p", 2, device="GPU 1")) == [("p", "", 1.0), ("p", "GPU 1", 2.0)]
    for value in (None, True, float("nan"), float("inf"), 10**400, [1]):
        assert measures(metric("p", value)) == [("p", "", None)]


def test_the_best_pair_is_a_metric_of_its_own() -> None:
    pairs = [metric("bw", value, "GB/s", f"with gpu0{n}") for n, value in ((2, 5), (3, 9), (4, 7))]
    assert measures(*pairs)[3:] == [("bw", "best partner", 9.0)]
    for unit in ("W", "us"):  # no direction: which is best cannot be found
        assert len(measures(metric("bw", 5, unit, "with gpu02"))) == 1
    assert measures(metric("bw", "NaN", "GB/s", "with gpu02")) == [("bw", "with gpu02", None)]
    assert len(measures(metric("bw", 5, "GB/s", "beside gpu02"))) == 1
