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
from pytest_gpucluster.report.run_model import FindingRow, Run, part_of, read_run
from pytest_gpucluster.report.run_snapshot import ItemMetric, RecordedItem, check_of, plain, recorded

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
    nodes = ("gpu01", "gpu02", "gpu03", "gpu04", "gpu05", "gpu06")
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


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (["passed", "not applicable"], "passed"),
        (["passed", "skipped"], "passed"),
        (["not tested", "error"], "error"),
        (["error", "failed"], "failed"),
        (["odd"], ""),
    ],
)
def test_the_worst_state_counts(outcomes: list[str], state: str) -> None:
    for order in (outcomes, outcomes[::-1]):
        run = read_run(a_run([result("gpu01", outcome) for outcome in order]))
        assert run.state("gpu01") == run.state("gpu01", "gpu") == state


def test_a_lost_node_that_failed_stays_failed() -> None:
    run = read_run([*a_run([failing("gpu01")]), event("lost", node="gpu01", why="gone")])
    assert run.state("gpu01") == "failed"


def test_results_are_counted() -> None:
    results = [
        passing("gpu01"),
        passing("gpu01"),
        failing("gpu01"),
        failing("", outcome="error"),
        unjudged("gpu01", "skipped"),
    ]
    run = read_run(a_run([*results, result("gpu02", "passed", check="own", suite="")]))
    assert run.totals == Counter({"passed": 3, "failed": 1, "error": 1, "skipped": 1})
    assert run.executed == 5
    assert run.counts == {
        "gpu01": {"gpu": Counter({"passed": 2, "failed": 1, "skipped": 1})},
        CLUSTER: {"gpu": Counter({"error": 1})},
        "gpu02": {"own": Counter({"passed": 1})},
    }
    assert run.suites == ["gpu", "own"]
    assert read_run(a_run([{"event": "result", "outcome": "passed"}])).counts == {
        CLUSTER: {"other": Counter({"passed": 1})}
    }


def test_why_something_was_not_judged_is_kept_without_its_kind() -> None:
    ends = {
        "gpu.a": ("not checked", "not checked: no right"),
        "gpu.b": ("not checked", "Skipped: not checked: no right"),
        "gpu.c": ("not applicable", "not applicable: no MIG"),
        "gpu.d": ("skipped", "not checked: not checked: twice"),
        "gpu.e": ("skipped", "Skipped: own"),
        "gpu.f": ("not tested", "not tested: down"),
    }
    run = read_run(
        a_run([result("gpu01", end, check=check, message=why) for check, (end, why) in ends.items()])
    )
    assert run.unjudged == {
        "not checked": {"no right": {"gpu.a": {"gpu01"}, "gpu.b": {"gpu01"}}},
        "not applicable": {"no MIG": {"gpu.c": {"gpu01"}}},
        "skipped": {"not checked: twice": {"gpu.d": {"gpu01"}}, "Skipped: own": {"gpu.e": {"gpu01"}}},
    }


def test_what_was_tried_again_keeps_its_first_failure() -> None:
    again = [failing("gpu01", message=message) | {"event": "rerun"} for message in ("first", "second")]
    ended = read_run(a_run([*again, passing("gpu01")])).retried
    assert list(ended.values()) == [
        {"check": "gpu.nvlink_state", "node": "gpu01", "message": "first", "outcome": "passed"}
    ]
    (open_still,) = read_run(a_run(again)).retried.values()
    assert open_still["outcome"] == "not ended"


def test_errors_and_complaints_are_gathered() -> None:
    run = read_run(
        [
            event("error", message="a\nb"),
            event("finish", complaints=["c", 4]),
            event("finish", complaints="d"),
        ]
    )
    assert run.errors == ["a b", "c", "4"]


def test_acts_are_those_of_drain_resume_trial_and_node() -> None:
    kinds = ("drain_x", "drain.x", "resume_x", "trial_x", "node_x", "nodes", "drain", "draining", "x_drain_x")
    assert [act["event"] for act in read_run(map(event, kinds)).acts] == [
        *("drain_x", "drain.x", "resume_x", "trial_x", "node_x"),
    ]


def test_versions_are_gathered_by_what_and_version() -> None:
    start = {"slurmd": {"23.02": ["gpu01", 2], "odd": "x"}}
    results = [
        passing("gpu01", versions={"driver": "580"}),
        passing("gpu02", versions={"driver": "580", "cuda": 13}),
    ]
    run = read_run(a_run([*results, passing("gpu03", versions=["odd"])], start=start))
    assert run.versions == {
        "slurmd": {"23.02": ["gpu01", "2"], "odd": []},
        "driver": {"580": ["gpu01", "gpu02"]},
        "cuda": {"13": ["gpu02"]},
    }
    assert read_run(a_run([], start={"slurmd": ["odd"]})).versions == {}


@pytest.mark.parametrize(
    ("log", "linked"),
    [
        ("steps/gw0-0001-gpu.x_y.log", True),
        ("steps/x.log", True),
        ("steps/.log", False),
        ("steps/a/b.log", False),
        ("steps/../x.log", False),
        ("steps/x.log.txt", False),
        ("steps/xlog", False),
        ("http://x/steps/x.log", False),
        (7, False),
    ],
)
def test_only_step_logs_are_linked_to(log: Any, linked: bool) -> None:  # a table
    run = read_run(a_run([failing("gpu01", logs=[log])]))
    (group,) = run.groups.values()
    assert list(group.logs) == ([log] if linked else [])
    assert run.logs == ({"gpu": {log: "gpu.nvlink_state"}} if linked else {})


def test_the_annotation_of_a_failure_is_sorted_by_its_labels() -> None:
    lines = ["why", "Slurm state: IDLE", "reproduce:  a: b", "by hand: c", "rerun: d", "again: e", "note: f"]
    red = failing("gpu01", annotation=[*lines, "reason: g"], text="x" * 8001, output="o")
    (group,) = read_run(a_run([red])).groups.values()
    assert group.example == {
        "node": "gpu01",
        "output": "o",
        "by_hand": ["a: b", "c"],
        "again": "e",
        "slurm": "IDLE; why; reason: g",
        "text": "x" * 4000 + " [... 1 characters left out ...] " + "x" * 4000,
    }
    assert group.slurm == {"IDLE; why; reason: g": ["gpu01"]}
    (plain_group,) = read_run(a_run([failing("gpu01")])).groups.values()
    assert plain_group.slurm == {}


def test_failures_are_grouped_by_what_differs() -> None:
    def groups(*failures: dict[str, Any]) -> int:
        return len(read_run(a_run(failures)).groups)

    base = failing("gpu01", cause="port 3 of gpu01 is down")
    alike: dict[str, Any] = {"cause": "port 14 of gpu02 is down"}
    assert groups(base, failing("gpu02", **alike)) == 1
    for other in (
        {"cause": "port of gpu02 is down"},
        {"hint": "other"},
        {"action": "reboot"},
        {"check": "gpu.other"},
        {"outcome": "error"},
    ):
        assert groups(base, failing("gpu02", **(alike | other))) == 2
    # with a verdict its message is no matter; without one it is what tells them apart
    assert groups(failing("gpu01", cause="", message="a"), failing("gpu02", cause="", message="b")) == 1
    assert groups(failing("gpu01", findings=[], message="a"), failing("gpu02", findings=[], message="b")) == 2


def test_another_gpu_in_a_cause_is_another_group() -> None:
    results = [
        failing(f"gpu{node:02}", cause=f"GPU {gpu} (0000:{gpu}3:00.0) missing")
        for node, gpu in enumerate((5, 5, 15, 3))
    ]
    groups = read_run(a_run(results)).groups.values()
    assert [list(group.nodes) for group in groups] == [["gpu00", "gpu01"], ["gpu02"], ["gpu03"]]


def test_rows_differ_in_part_measured_expected_and_action() -> None:
    finding = {"part": "a", "measured": "b", "expected": "c", "action": "drain"}
    found = [finding, *(finding | {key: "x"} for key in ("part", "measured", "expected"))]
    found += [finding | {"action": "reboot"}, finding]
    (group,) = read_run(a_run([failing("gpu01", findings=found)])).groups.values()
    rows = [(it.found.part, it.found.measured, it.found.expected, it.action) for it in group.rows.values()]
    assert rows == [
        ("a", "b", "c", "drain"),
        ("x", "b", "c", "drain"),
        ("a", "x", "c", "drain"),
        ("a", "b", "x", "drain"),
        ("a", "b", "c", "reboot"),
    ]
    assert {tuple(it.nodes) for it in group.rows.values()} == {("gpu01",)}


def test_warnings_are_rows_of_their_check_and_ask_for_nothing() -> None:
    finding = {"part": "GPU 3 (GPU-d, 0:4)", "measured": "1 replay", "expected": "0"}
    verdicts = [{"findings": [], "advisories": [finding], "action": "drain"}]
    run = read_run(a_run([passing(node, check="gpu.pcie", verdicts=verdicts) for node in ("gpu01", "gpu02")]))
    assert run.warnings == {
        ("gpu.pcie", "GPU 3", "1 replay", "0", ""): FindingRow(
            Advisory("GPU 3", "1 replay", "0"), ["gpu01", "gpu02"]
        )
    }


def test_the_first_verdict_with_findings_names_the_cause() -> None:
    verdicts = [
        {"findings": [], "cause": "none", "hint": "none", "action": "monitor"},
        {"findings": [{"part": "a"}], "cause": "one", "hint": "h1", "action": "drain"},
        {"findings": [{"part": "b"}], "cause": "two", "hint": "h2", "action": "reboot"},
    ]
    (group,) = read_run(a_run([result("gpu01", "failed", verdicts=verdicts)])).groups.values()
    assert (group.cause, group.hint, group.action, group.suite) == ("one", "h1", "drain", "gpu")
    assert [(row.found.part, row.action) for row in group.rows.values()] == [("a", "drain"), ("b", "reboot")]


def test_an_error_has_no_verdict_of_its_check() -> None:
    (group,) = read_run(a_run([failing("gpu01", outcome="error", message="gpu01 broke")])).groups.values()
    assert (group.action, group.cause, group.hint) == ("", "", "")
    assert [
        (row.found.part, row.found.measured, row.found.expected, row.nodes) for row in group.rows.values()
    ] == [("", "NODE broke", "", ["gpu01"])]


def test_rows_of_a_group_lose_what_is_one_nodes_own() -> None:
    def rows(*failures: dict[str, Any]) -> list[tuple[str, list[str]]]:
        (group,) = read_run(a_run(failures)).groups.values()
        return [(row.found.part, row.nodes) for row in group.rows.values()]

    one, two = (failing(node, part=f"GPU 4 (GPU-{node}, 0:1)") for node in ("gpu01", "gpu02"))
    assert rows(one) == rows(one, one) == [("GPU 4 (GPU-gpu01, 0:1)", ["gpu01"])]
    assert rows(one, two) == rows(one, two, two) == [("GPU 4", ["gpu01", "gpu02"])]


def metric(name: str, value: Any, unit: str = "W", device: Any = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "device": device, **more}


@pytest.mark.parametrize(
    ("device", "label", "part"),
    [
        ("", "power", ""),
        ("GPU 4 (GPU-x, 0:1)", "power", "GPU 4"),
        ("GPU4", "power", "GPU4"),
        ("nic 1", "power", "nic 1"),
        ("HCA 2", "power", "HCA 2"),
        ("port 1", "power", "port 1"),
        ("link 1", "power", "link 1"),
        ("NVLink 3", "power", "NVLink 3"),
        ("device 3", "power", "device 3"),
        ("rank 3", "power", "rank 3"),
        ("mlx5_0", "power", "mlx5_0"),
        ("with gpu02", "power", "with gpu02"),
        ("/scratch (nvme)", "power /scratch", ""),
        ("4 GiB", "power 4 GiB", ""),
        ("a GPU 4", "power a GPU 4", ""),
        ("GPU clock", "power GPU clock", ""),
        ("mlxfw", "power mlxfw", ""),
        ("without gpu02", "power without gpu02", ""),
    ],
)
def test_a_device_is_a_part_or_what_was_measured(device: str, label: str, part: str) -> None:
    run = read_run(a_run([passing("gpu01", metrics=[metric("power", 5, device=device)])]))
    spread = run.spreads[label, "W"]
    assert (len(run.spreads), spread.nodes, [part_of(one) for one in spread.metrics]) == (
        1,
        ["gpu01"],
        [part],
    )
    assert (spread.name, spread.unit, spread.metrics[0].value) == (label, "W", 5.0)


@pytest.mark.parametrize("value", ["NaN", None, float("nan"), float("inf"), float("-inf"), [1]])
def test_what_is_no_number_is_not_drawn(value: Any) -> None:
    run = read_run(a_run([passing("gpu01", metrics=[metric("power", value), metric("busbw", value)])]))
    assert (run.spreads, run.node_curves) == ({}, {})


def test_details_are_not_drawn() -> None:
    assert read_run(a_run([passing("gpu01", metrics=[metric("x", 1, detail=True)])])).spreads == {}


def test_bandwidths_make_curves_and_bounds() -> None:
    bounds = [
        ("all_reduce 4 KiB 2 nodes", 3),
        ("all_reduce 4 KiB 2 nodes", 3),
        ("all_reduce 4 KiB 2 nodes", 2),
        ("odd", 9),
        ("all_reduce 512 B", 1),
        ("all_reduce 1.5GiB 2 nodes x 8", 8),
        ("all_reduce x B", 9),
        ("all_reduce 1 GiBs", 9),
        ("2all_reduce 1 GiB", 9),
        (" 1 GiB", 9),
        ("all_reduce GiB", 9),
        ("all_reduce 1", 9),
    ]
    measured = {"all_reduce 1 MiB": 5, "all_gather 2 GiB alone": 6, "odd": 7, "all_reduce 1.2.3 MiB": 7}
    metrics = [
        *(metric("busbw", value, "GB/s", what) for what, value in measured.items()),
        metric("busbw_bound", 4, "GB/s", "all_reduce 1 MiB"),
        *(metric(f"bound {what}", value) for what, value in bounds),
    ]
    whole = passing("", metrics=metrics[:1] + metrics[4:5])
    run = read_run(a_run([passing("gpu01", metrics=metrics), whole]))
    assert run.node_curves == {
        "all_reduce": {"gpu01": {1 << 20: 5.0}},
        "all_gather": {"gpu01": {2 << 30: 6.0}},
    }
    assert run.bounds == {
        ("all_reduce", "alone"): {1 << 20: 4},
        ("all_reduce", "2 nodes"): {4096: 2},
        ("all_reduce", "2 nodes x 8"): {3 << 29: 8},
        ("all_reduce", ""): {1 << 20: 4, 512: 1},
    }
    assert [(one.name, one.unit, one.metrics, one.bounds) for one in run.spreads.values()] == [
        ("busbw all_reduce 4 KiB 2 nodes", "GB/s", [], [3, 2]),
        ("busbw all_reduce 512 B", "GB/s", [], [1]),
        ("busbw all_reduce 1.5GiB 2 nodes x 8", "GB/s", [], [8]),
    ]


def test_curves_and_cells_are_kept_with_their_node() -> None:
    points = [[1024, 5], [2048, 6.5], [4096, "x"], ["x", 1], [1], 7, [1.5, 2]]
    results = [
        passing(
            "gpu01", curves=[{"title": "t", "points": points}], cells=[{"title": "a b", "row": 1}, "odd"]
        ),
        passing("", curves=[{"title": "u"}, "odd"]),
    ]
    run = read_run(a_run(results))
    assert run.curves == [
        {"title": "t", "node": "gpu01", "points": [(1024, 5.0), (2048, 6.5)]},
        {"title": "u", "node": CLUSTER, "points": []},
    ]
    assert run.cells == {"a b": [{"title": "a b", "row": 1}]}


@pytest.mark.parametrize(("length", "cut"), [(600, ""), (601, " [... 1 characters left out ...] ")])
def test_fields_are_cut(length: int, cut: str) -> None:
    assert read_run([event("error", message="x" * length)]).errors == ["x" * 300 + cut + "x" * 300]


@pytest.mark.parametrize("words", [3, 150])
def test_a_field_is_one_line(words: int) -> None:
    assert read_run([event("error", message=" a\n\t" * words)]).errors == [" ".join(["a"] * words)]
    assert read_run([event("error", message=None)]).errors == [""]


# --- what a page says in words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (7.0, "7"),
        (0.0, "0"),
        (-3.0, "-3"),
        (1e14, "100000000000000"),
        (1e15, "1e+15"),
        (0.12345, "0.1235"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert words.number(value) == text


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
    assert words.folded(nodes) == text
    assert words.counted(nodes) == count


@pytest.mark.parametrize("time", [None, "now", 1e30, -1e30, float("nan")])
def test_a_time_that_is_none_is_not_known(time: Any) -> None:
    assert words.clock(time) == "not known"


# --- what the history keeps


def start(**more: Any) -> dict[str, Any]:
    return {"event": "start", "time": 5.0, "run": "r1", "cluster": "prod", "simulated": False} | more


def test_the_head_of_a_recorded_run() -> None:
    logged = [start(arguments=["-m", "gpu or os", 3]), start(run="second"), {"time": 9.5}]
    found = recorded(
        read_run([*logged, {"event": "finish", "exit": 0}, {"event": "finish", "exit": 1, "time": 8}])
    )
    assert (found.run, found.cluster, found.simulated) == ("r1", "prod", False)
    assert (found.started, found.finished, found.exit) == (5.0, 9.5, 1)
    assert found.arguments == "-m gpu or os 3"
    assert (found.items, found.metrics) == ((), ())


@pytest.mark.parametrize(
    ("stated", "simulated"), [(False, False), (True, True), (None, True), ("no", True), (0, True)]
)
def test_a_run_counts_as_simulated_unless_it_is_stated_real(stated: Any, simulated: bool) -> None:  # a table
    assert recorded(read_run([start(simulated=stated)])).simulated is simulated


@pytest.mark.parametrize(
    ("code", "kept", "complete"),
    [
        (0, 0, True),
        (1, 1, True),
        (2, 2, False),
        (5, 5, False),
        (True, None, False),
        ("0", None, False),
        (None, None, False),
    ],
)
def test_only_a_run_that_came_to_its_end_is_complete(
    code: Any, kept: int | None, complete: bool
) -> None:  # a table
    found = recorded(read_run([start(), {"event": "finish", "exit": code}]))
    assert (found.exit, found.complete) == (kept, complete)
    assert not recorded(read_run([start()])).complete


@pytest.mark.parametrize(
    ("outcomes", "code", "good"),
    [
        (["passed"], 0, True),
        (["passed", "not checked"], 0, True),
        (["not checked"], 0, False),
        ([], 0, False),
        (["passed"], 1, False),
        (["passed", "failed"], 0, False),
        (["passed", "error"], 0, False),
        (["passed"], None, False),
    ],
)
def test_a_good_run(outcomes: list[str], code: int | None, good: bool) -> None:  # a table
    results = [result("gpu01", outcome, check=f"gpu.c{n}") for n, outcome in enumerate(outcomes)]
    found = recorded(read_run([start(), *results, {"event": "finish", "exit": code}]))
    assert found.good is good
    assert len(found.red) == sum(outcome in ("failed", "error") for outcome in outcomes)


@pytest.mark.parametrize(
    "wrong",
    [{"run": ""}, {"cluster": None}, {"time": "5"}, {"time": True}, {"time": float("inf")}, {"event": "x"}],
)
def test_what_is_no_log_of_a_run_is_refused(wrong: dict[str, Any]) -> None:
    message = "^here: not the event log of a run: it has no start event with run and cluster$"
    with pytest.raises(GpuClusterError, match=message):
        recorded(read_run([start(**wrong)]), "here")
    with pytest.raises(GpuClusterError, match=r"^the event log: not the event log of a run"):
        recorded(read_run([]))


def test_items_have_their_findings() -> None:
    odd: Any = "odd"
    red = failing("gpu01", message="m", findings=[{"part": "a", "measured": 1, "expected": "b"}, odd, {}])
    (item,) = recorded(read_run([start(), red])).items
    findings = (Finding("a", "1", "b"), Finding("", "", ""))
    assert item == RecordedItem("gpu01", "gpu.nvlink_state", "failed", "m", "drain", findings)
    two: list[dict[str, Any]] = [
        {"findings": [], "action": "monitor"},
        {"findings": [{"part": "a"}], "action": "reboot"},
        {"findings": [{}], "action": "drain"},
    ]
    (item,) = recorded(read_run([start(), result("gpu01", "failed", verdicts=two)])).items
    assert (item.action, len(item.findings)) == ("reboot", 2)


def test_of_several_results_of_an_item_a_red_one_stands() -> None:
    ends = ["passed", "error", "passed", "failed"]
    (item,) = recorded(read_run([start(), *(result("gpu01", end) for end in ends)])).items
    assert (item.outcome, item.action, item.findings) == ("error", "", ())
    (item,) = recorded(read_run([start(), result("gpu01", "not checked"), result("gpu01", "passed")])).items
    assert item.outcome == "passed"


@pytest.mark.parametrize(
    ("nodeid", "node", "check"),
    [
        ("suites/gpu/test_gpu.py::test_x[gpu01]", "gpu01", "gpu.x"),
        ("suites/gpu/test_gpu.py::test_x[gpu01-4G]", "gpu01", "gpu.x[4G]"),
        ("suites/gpu/test_gpu.py::test_x[a-b]", "", "gpu.x[a-b]"),
        ("suites/gpu/test_gpu.py::test_x[x]", "", "gpu.x[x]"),
        ("", "", "gpu.x"),
    ],
)
def test_a_check_has_its_parameters(nodeid: str, node: str, check: str) -> None:
    assert check_of(read_result({"nodeid": nodeid, "node": node, "check": "gpu.x"})) == (node, check)


def measures(*metrics: dict[str, Any], **fields: Any) -> list[tuple[str, str, float | None]]:
    found = recorded(read_run([start(), passing("gpu01", metrics=list(metrics), **fields)])).metrics
    return [(one.metric.name, one.metric.device, one.metric.number) for one in found]


def test_a_metric_is_kept_with_all_that_names_it() -> None:
    finding = metric("p", 5, "W", "GPU 4 (x)", better="lower", detail=1)
    assert recorded(read_run([start(), passing("gpu01", metrics=[finding])])).metrics == (
        ItemMetric("gpu01", "gpu.nvlink_state", Metric("p", 5.0, "W", "GPU 4", detail=True, better="lower")),
    )


def test_what_was_measured_several_times_is_its_median() -> None:
    assert measures(metric("p", 1), metric("p", 9), metric("p", 2)) == [("p", "", 2.0)]
    assert measures(metric("p", 1), metric("p", "NaN")) == [("p", "", None)]
    assert measures(metric("p", 1), metric("p", 2, device="GPU 1")) == [("p", "", 1.0), ("p", "GPU 1", 2.0)]


@pytest.mark.parametrize("value", ["NaN", None, True, float("nan"), float("inf"), 10**400, [1]])
def test_a_value_that_is_no_number_is_none(value: Any) -> None:
    assert measures(metric("p", value)) == [("p", "", None)]


def test_the_best_pair_is_a_metric_of_its_own() -> None:
    pairs = [metric("bw", value, "GB/s", f"with gpu0{n}") for n, value in ((2, 5), (3, 9), (4, 7))]
    assert measures(*pairs)[3:] == [("bw", "best partner", 9.0)]
    assert (
        len(measures(metric("bw", 5, "W", "with gpu02"))) == 1
    )  # no direction: which is best cannot be finding
    assert len(measures(metric("bw", 5, "us", "with gpu02"))) == 1
    assert measures(metric("bw", "NaN", "GB/s", "with gpu02")) == [("bw", "with gpu02", None)]
    assert len(measures(metric("bw", 5, "GB/s", "beside gpu02"))) == 1


def test_plain_is_one_short_line() -> None:
    assert plain(" a\n\tb\x1b[1m ") == "a b"
    assert plain("x" * 1001) == "x" * 1000
    assert plain(None) == ""
