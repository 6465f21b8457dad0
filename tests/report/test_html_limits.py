"""The HTML report at its limits, and its sentences: what is left out is counted, what is said is exact."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2 import UndefinedError
from report.test_html import page_of
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report import html, html_figures, html_map, html_page
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.regression import Compared, ShownComparison
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.verdict import judge, ordered

FAILED = "1 of 2 nodes failed at least one check."
EVERY = "All that was selected is proved."


@pytest.mark.parametrize(
    ("results", "options", "kind", "sentences"),
    [
        ([passing("gpu01"), passing("gpu02")], {}, "accepted", [EVERY]),
        ([passing("gpu01")], {}, "unproved", ["Without any result: gpu02."]),
        ([failing("gpu01")], {}, "rejected", [FAILED]),
        ([failing("")], {}, "rejected", ["A check of the whole cluster failed."]),
        (
            [failing("gpu01"), failing("gpu02", outcome="error")],
            {},
            "rejected",
            [FAILED, "1 check could not be judged because something broke."],
        ),
        # a suite without a section in the cluster file, and a node out of service: nothing broke
        (
            [
                failing("gpu01"),
                failing("gpu02", outcome="error", suite="ddp", check="ddp.proved"),
                failing("gpu02", outcome="error", suite="run", check="run.available"),
            ],
            {},
            "rejected",
            [FAILED],
        ),
        ([failing("gpu01")], {"finish": None}, "rejected", [FAILED, "The run did not end"]),
        ([passing("gpu01")], {"finish": None}, "unproved", ["The run did not end"]),
        ([], {}, "unproved", ["No check was executed: this run says nothing about the cluster."]),
        ([unjudged("gpu01", "skipped")], {}, "unproved", ["No check was executed"]),
        ([failing("gpu01")], {"finish": 2}, "rejected", [FAILED, "The run was stopped before its end."]),
        ([passing("gpu01")], {"finish": 2}, "unproved", ["The run was stopped before its end."]),
        ([passing("gpu01"), failing("gpu02", outcome="error")], {}, "unproved", ["Nothing failed, but not"]),
        ([passing("gpu01")], {"finish": 3, "nodes": ["gpu01"]}, "unproved", ["The run ended with status 3"]),
        (
            [passing("gpu01"), passing("gpu02")],
            {"start": {"simulated": True}},
            "accepted",
            [EVERY, "SIMULATED hardware"],
        ),
    ],
)
def test_the_verdict_in_words(
    results: list[Any], options: dict[str, Any], kind: str, sentences: list[str]
) -> None:
    run = a_run(results, **options)
    found = judge(read_run(run))
    assert (found.outcome, len(found.sentences)) == (kind, len(sentences))
    for sentence, expected in zip(found.sentences, sentences, strict=True):
        assert sentence.startswith(expected)
    page = page_of(run)
    assert page.verdict == kind
    assert found.title in page.text
    assert ("SIMULATED" in page.text) is bool(options.get("start"))


def test_what_was_not_judged() -> None:
    again = [failing("gpu01", check=check) | {"event": "rerun"} for check in ("gpu.b", "gpu.a")]
    again.append(failing("gpu02", check="gpu.b") | {"event": "rerun"})
    ends = [passing("gpu01", check="gpu.b"), passing("gpu01", check="gpu.a"), failing("gpu02", check="gpu.b")]
    ends += [unjudged("gpu01", "not checked", check=f"os.c{n}") for n in range(8)]
    ends += [unjudged("gpu02", "not checked", check="os.c0"), unjudged("gpu01", "skipped", check="own.x")]
    assert judge(read_run(a_run([*again, *ends], finish=None))).unjudged == (
        "2 checks passed only when repeated: gpu.a, gpu.b",
        "9 checks not checked: os.c0, os.c1, os.c2, os.c3, os.c4, os.c5 and 2 more",
        "1 check skipped: own.x",
    )


def test_failures_are_ordered_by_action_then_nodes_then_name() -> None:
    results = [
        failing("gpu01", check="gpu.d", outcome="error"),
        failing("gpu01", check="gpu.c", action="odd"),
        failing("gpu01", check="gpu.b", action="reboot"),
        failing("gpu01", check="gpu.a", action="reboot"),
        *(failing(node, check="gpu.z", action="reboot") for node in ("gpu01", "gpu02")),
        failing("gpu01", check="gpu.e", action="drain"),
    ]
    assert [group.check for group in ordered(read_run(a_run(results)))] == [
        *("gpu.e", "gpu.z", "gpu.a", "gpu.b", "gpu.c", "gpu.d"),
    ]


@pytest.mark.parametrize(
    ("groups", "sections", "brief", "dropped"), [(2, 2, 0, 0), (3, 2, 1, 0), (4, 2, 2, 0), (5, 2, 2, 1)]
)
def test_sections_have_a_limit(
    monkeypatch: pytest.MonkeyPatch, groups: int, sections: int, brief: int, dropped: int
) -> None:
    monkeypatch.setattr(html, "MAX_GROUPS", 2)
    monkeypatch.setattr(html, "MAX_LINES", 2)
    page = page_of(a_run([failing("gpu01", check=f"gpu.c{n}") for n in range(groups)]))
    assert len(page.of("article", "fail")) == sections
    assert ("Further failures" in page.text) is bool(brief)
    assert page.text.partition("Further failures")[2].count("failed gpu01") == brief
    assert ("1 more kinds of failure are in the event log." in page.text) is bool(dropped)


def test_rows_of_sections_share_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_ROWS", 20)
    findings = [{"part": f"GPU {n}", "measured": "1", "expected": "2"} for n in range(18)]
    run = read_run(a_run([failing("gpu01", check=f"gpu.c{n}", findings=findings) for n in range(3)]))
    anchors = {id(group): "g" for group in run.groups.values()}
    shown = html._failures(run, anchors)["failures"]
    assert [(len(one["rows"]), len(one["more"]), one["left_out"]) for one in shown] == [
        (12, 6, 0),
        (12, 0, 6),
        (12, 0, 6),
    ]


def test_rows_of_many_nodes_come_first() -> None:
    one, two = ({"part": f"GPU {n}", "measured": "1", "expected": "2"} for n in (1, 2))
    run = read_run(a_run([failing("gpu01", findings=[one, two]), failing("gpu02", findings=[two])]))
    (section,) = html._failures(run, {id(group): "g" for group in run.groups.values()})["failures"]
    assert [row.found.part for row in section["rows"]] == ["GPU 2", "GPU 1"]


def test_slurms_words_have_a_limit_and_the_most_frequent_come_first() -> None:
    nodes = [f"gpu{n:02}" for n in range(14)]
    results = [failing(node, annotation=[f"Slurm state: S{max(n, 1)}"]) for n, node in enumerate(nodes)]
    text = page_of(a_run(results, nodes=nodes)).text
    assert "Slurm says S1 \N{EN DASH} 2 nodes: gpu[00-01] S2" in text
    assert "and 1 more states" in text
    assert "S12" in text
    assert "S13" not in text


def test_repeated_attempts_are_grouped_by_message() -> None:
    again = [failing(node, message=f"{node} flaked") | {"event": "rerun"} for node in ("gpu01", "gpu02", "")]
    run = read_run(a_run([*again, passing("gpu01"), passing("gpu02"), passing("")]))
    assert html._failures(run, {})["retried"] == [
        (("gpu.nvlink_state", "passed", "NODE flaked"), ["gpu01", "gpu02"]),
        (("gpu.nvlink_state", "passed", "flaked"), [CLUSTER]),
    ]


@pytest.mark.parametrize(("count", "small"), [(40, True), (41, False)])
def test_small_fleets_have_a_row_for_each_node(count: int, small: bool) -> None:  # a table
    nodes = [f"gpu{n:02}" for n in range(count)]
    run = read_run(a_run([passing(node) for node in nodes], nodes=nodes))
    found = html_map.fleet_map(run, {})
    assert found["small"] is small
    assert len(found["patterns"]) == (40 if small else 1)
    assert [title for title, *_ in found["tiles"]] == [""]
    with_cluster = read_run(a_run([*(passing(node) for node in nodes), passing("")], nodes=nodes))
    assert len(html_map.fleet_map(with_cluster, {})["patterns"]) == (41 if small else 1)


def test_a_row_of_nodes_merges_no_different_causes_and_links_to_its_own() -> None:
    nodes = [f"gpu{n:02}" for n in range(45)]
    bad = [failing(nodes[0], check="gpu.a"), failing(nodes[1], check="gpu.b")]
    run = read_run(a_run([*bad, *(passing(node) for node in nodes[2:])], nodes=nodes))
    anchors = {id(group): f"g{place}" for place, group in enumerate(ordered(run), 1)}
    rows = html_map.fleet_map(run, anchors)["patterns"]
    assert [(row["nodes"][:2], row["cells"][0]["text"], row["cells"][0]["link"]) for row in rows] == [
        (nodes[:1], ["1 failed"], "#g1"),
        (nodes[1:2], ["1 failed"], "#g2"),
        (nodes[2:4], ["43 passed"], ""),
    ]
    assert [row["state"] for row in rows] == ["failed", "failed", "passed"]


def test_too_many_patterns_are_drawn_by_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_map, "SMALL_FLEET", 2)
    monkeypatch.setattr(html_map, "MAX_PATTERNS", 4)
    nodes = [f"gpu{n:02}" for n in range(6)]
    results = [
        passing(node, nodeid=f"x[{node}-{n}]") for place, node in enumerate(nodes) for n in range(place + 1)
    ]
    patterns = html_map.fleet_map(read_run(a_run(results, nodes=nodes)), {})["patterns"]
    assert [(row["nodes"], row["cells"][0]["text"]) for row in patterns] == [(nodes, ["21 passed"])]
    four = html_map.fleet_map(read_run(a_run(results[:10], nodes=nodes[:4])), {})["patterns"]
    assert len(four) == 4


def test_what_does_not_apply_is_no_text_of_a_cell() -> None:
    run = read_run(a_run([result("gpu01", "not applicable"), passing("gpu02")]))
    cells = [row["cells"][0] for row in html_map.fleet_map(run, {})["patterns"]]
    assert [(cell["state"], cell["text"]) for cell in cells] == [
        ("not applicable", []),
        ("passed", ["1 passed"]),
    ]


def measured(values: list[float], name: str = "power", unit: str = "W") -> list[dict[str, Any]]:
    return [
        passing(f"gpu{n:02}", metrics=[{"name": name, "value": value, "unit": unit, "device": ""}])
        for n, value in enumerate(values)
    ]


def test_numbers_once_the_same_and_varying() -> None:
    bound = {"name": "bound all_reduce 1 GiB alone", "value": 5, "unit": "GB/s"}
    judged = {"name": "busbw all_reduce 1 GiB alone", "value": 6.0, "unit": "GB/s"}
    once = {"name": "once", "value": 1.5, "unit": ""}
    results = [
        *measured([1.0, 2.0], "varying"),
        *measured([3.0, 3.0], "same"),
        passing("gpu09", metrics=[bound, judged, once]),
    ]
    found = html_figures.numbers(read_run(a_run(results)))
    assert [(row["name"], row["n"]) for row in found["rows"]] == [
        ("busbw all_reduce 1 GiB alone", 1),
        ("varying", 2),
    ]
    assert found["same"] == [("same", "3 W", 2)]
    assert found["single"] == [("once", "1.5", "gpu09")]
    assert found["left_out"] == 0


def test_numbers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_figures, "MAX_SERIES", 2)
    results = [one for n in range(5) for one in measured([1.0, 2.0], f"m{n}")]
    found = html_figures.numbers(read_run(a_run(results)))
    assert ([row["name"] for row in found["rows"]], found["left_out"]) == (["m0", "m1"], 3)


def test_the_whole_cluster_is_kept_apart_from_nodes() -> None:
    whole = passing("", metrics=[{"name": "power", "value": 9.0, "unit": "W"}])
    found = html_figures.numbers(read_run(a_run([*measured([1.0, 2.0]), whole])))
    assert [(row["name"], row["n"], row["high"]) for row in found["rows"]] == [("power", 2, ("2", "gpu01"))]
    assert found["single"] == [("power, whole cluster", "9 W", CLUSTER)]
    alone = html_figures.numbers(read_run(a_run([whole])))
    assert alone["single"] == [("power", "9 W", CLUSTER)]


@pytest.mark.parametrize(("count", "drawn"), [(7, False), (8, True)])
def test_a_judged_figure_of_many_nodes_has_a_histogram(count: int, drawn: bool) -> None:  # a table
    bound = {"name": "bound all_reduce 1 GiB alone", "value": 5, "unit": "GB/s"}
    values = measured([6.0 + n for n in range(count)], "busbw all_reduce 1 GiB alone", "GB/s")
    (row,) = html_figures.numbers(read_run(a_run([*values, passing("gpu99", metrics=[bound])])))["rows"]
    assert bool(row["histogram"]) is drawn
    assert row["bounds"] == ["5"]
    assert (row["low"], row["high"]) == (("6", "gpu00"), (str(5 + count), f"gpu{count - 1:02}"))
    (unjudged_row,) = html_figures.numbers(read_run(a_run(measured([1.0 + n for n in range(8)]))))["rows"]
    assert unjudged_row["histogram"] == ""


def test_what_stands_apart_is_named_up_to_eight() -> None:
    values = [*(100.0 + n / 10 for n in range(40)), *(200.0 + n for n in range(9))]
    (row,) = html_figures.numbers(read_run(a_run(measured(values))))["rows"]
    assert row["apart"] == [f"gpu{40 + n} ({200 + n})" for n in range(8)]
    assert row["apart_more"] == 1
    assert row["median"] == "102.4"


def busbw(node: str, values: dict[str, float], **more: Any) -> dict[str, Any]:
    found = [
        {"name": "busbw", "value": value, "unit": "GB/s", "device": f"all_reduce {size}"}
        for size, value in values.items()
    ]
    return passing(node, metrics=found, **more)


@pytest.mark.parametrize(("count", "banded"), [(8, False), (9, True)])
def test_many_curves_are_a_band_and_a_median(count: int, banded: bool) -> None:  # a table
    results = [
        busbw(f"gpu{n:02}", {"0 B": 1.0, "1 MiB": 100.0 + n / 10, "1 GiB": 400.0}) for n in range(count)
    ]
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    assert chart["title"] == f"all_reduce, each of {count} nodes alone"
    assert ('class="band"' in chart["svg"]) is banded
    assert (">median of 9</text>" in chart["svg"]) is banded
    assert chart["svg"].count('class="line"') == (1 if banded else 8)
    assert (chart["note"], chart["apart"], chart["bounds"]) == ("", [], False)


def test_a_slow_node_is_apart_at_large_sizes_only() -> None:
    slow = {"1 KiB": 1.0, "1 MiB": 80.0, "1 GiB": 320.0}
    usual = {"1 KiB": 9.0, "1 MiB": 100.0, "1 GiB": 400.0}
    results = [busbw(f"gpu{n:02}", slow if n == 3 else usual) for n in range(12)]
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    assert chart["apart"] == [("gpu03", "80% of the median")]
    small = [busbw(f"gpu{n:02}", {"1 KiB": 1.0 if n == 3 else 9.0}) for n in range(12)]
    (chart,) = html_figures.bandwidth(read_run(a_run(small)))
    assert (chart["apart"], chart["note"]) == ([], "")
    few = [busbw(f"gpu{n:02}", slow if n == 1 else usual) for n in range(2)]
    (chart,) = html_figures.bandwidth(read_run(a_run(few)))
    assert (chart["apart"], chart["note"]) == (
        [],
        "Too few nodes to name one that stands apart from the others.",
    )


def test_curves_of_one_title_share_a_chart() -> None:
    points = [[1 << 20, 10.0], [1 << 30, 20.0]]
    bound = {"name": "bound all_reduce 1 GiB 2 nodes", "value": 25, "unit": "GB/s"}
    title = "all_reduce, 2 nodes x 8 GPUs"
    results = [
        passing(f"gpu0{n}", curves=[{"title": title, "points": points}], metrics=[bound]) for n in (1, 2)
    ]
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    assert re.findall(r'class="t">(gpu0\d)<', chart["svg"]) == ["gpu01", "gpu02"]
    assert (chart["note"], chart["bounds"], chart["title"]) == ("2 points below its bound.", True, title)
    (chart,) = html_figures.bandwidth(read_run(a_run(results[:1])))
    assert re.findall(r'class="t">(gpu0\d)<', chart["svg"]) == []
    assert chart["note"] == "1 point below its bound."
    assert (
        html_figures.bandwidth(read_run(a_run([passing("", curves=[{"title": "empty", "points": []}])])))
        == []
    )


@pytest.mark.parametrize(
    ("row", "change", "where"),
    [
        (Compared("gpu01", Metric("m", 110.0, "W"), last_good=100.0, previous=50.0), "+10.0%", "gpu01"),
        (Compared("gpu01", Metric("m", 110.0, "W", "GPU 1"), previous=100.0), "+10.0%", "gpu01 GPU 1"),
        (Compared("gpu01", Metric("m", 90.0, "W"), last_good=-100.0), "+190.0%", "gpu01"),
        (Compared("gpu01", Metric("m", 90.0, "W"), last_good=0.0, previous=50.0), "", "gpu01"),
        (Compared("gpu01", Metric("m", 90.0, "W")), "", "gpu01"),
    ],
)
def test_a_compared_metric(row: Compared, change: str, where: str) -> None:
    shown = {"metric": "m", "unit": "W", "note": "", "trend": ""}
    assert html._compared(row) == {"row": row, "change": change, "where": where, **shown}


def test_compared_metrics_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_COMPARED", 2)
    rows = tuple(Compared("gpu01", Metric(f"m{n}", 1.0, "W"), worse=n % 2 == 0) for n in range(9))
    found = html._comparison(ShownComparison("h.db", rows))
    assert found is not None
    assert (len(found["worse"]), len(found["others"]), found["left_out"]) == (2, 2, 5)
    assert html._comparison(None) is None


def test_acts_share_a_row_where_they_differ_in_the_node_alone() -> None:
    run = read_run(
        [
            event("node_result", node="gpu1", result="drained", problem="", reason="gpu1 and gpu10"),
            event("node_result", node="gpu2", result="drained", problem=None, reason="gpu2 and gpu10"),
            event("node_result", node="gpu10", result="drained", checks=[], reason="gpu10 and gpu10"),
            event("drain_over_budget", nodes=["gpu1", "gpu2"], n=0, checks=["a", "b"]),
            event("drain_skipped", why="stopped"),
        ]
    )
    told = [(row["act"], row["details"], row["nodes"]) for row in html._acts(run)]
    assert told == [
        ("node_result", "result: drained; reason: NODE and gpu10", ["gpu1", "gpu2"]),
        ("node_result", "result: drained; reason: gpu10 and gpu10", ["gpu10"]),
        ("drain_over_budget", "n: 0; checks: a, b", ["gpu1", "gpu2"]),
        ("drain_skipped", "why: stopped", []),
    ]


def test_gaps_are_ordered() -> None:
    ends = ("odd", "not applicable", "skipped", "not checked")
    results = [unjudged("gpu01", end, check=f"gpu.{n}") for n, end in enumerate(ends)]
    nodes = ("gpu01", "gpu02", "gpu03")
    found = html._gaps(read_run(a_run(results, nodes=nodes, not_tested={"gpu03": ["x", "busy"]})))
    assert list(found["checks"].items()) == [
        ("not checked", [("because", ["gpu.3"], ["gpu01"])]),
        ("skipped", [("skipped: because", ["gpu.2"], ["gpu01"])]),
        ("not applicable", [("because", ["gpu.1"], ["gpu01"])]),
        ("odd", [("odd: because", ["gpu.0"], ["gpu01"])]),
    ]
    assert found["nodes"] == [("busy", ["gpu03"]), ("the run ended before any check of them", ["gpu02"])]


def test_the_logs_of_a_failure_are_its_own_or_its_checks_or_its_suites() -> None:
    logs = {"gpu.a": "steps/1.log", "gpu.b": "steps/2.log"}
    ran = [passing("gpu01", check=check, logs=[log]) for check, log in logs.items()]
    for red, expected in (
        (failing("gpu02", check="gpu.a", logs=["steps/3.log"]), ["steps/3.log"]),
        (failing("gpu02", check="gpu.a"), ["steps/1.log"]),
        (failing("gpu02", check="gpu.c"), ["steps/1.log", "steps/2.log"]),
        (failing("gpu02", check="os.c"), []),
    ):
        run = read_run(a_run([*ran, red]))
        (group,) = run.groups.values()
        assert html._logs(run, group) == expected


@pytest.mark.parametrize("patterns", [80, 2])
def test_a_lost_node_is_not_drawn_as_one_that_passed(monkeypatch: pytest.MonkeyPatch, patterns: int) -> None:
    monkeypatch.setattr(html_map, "MAX_PATTERNS", patterns)  # by counts or by states
    nodes = [f"gpu{n:02}" for n in range(45)]
    run = read_run(
        [*a_run([passing(node) for node in nodes], nodes=nodes), event("lost", node="gpu07", why="gone")]
    )
    found = html_map.fleet_map(run, {})["patterns"]
    assert [(row["state"], len(row["nodes"])) for row in found] == [("not proved", 1), ("passed", 44)]


def test_rows_of_patterns_and_of_what_was_tried_again_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_map, "MAX_PATTERNS", 2)
    monkeypatch.setattr(html, "MAX_LINES", 1)
    nodes = [f"gpu{n:02}" for n in range(45)]
    ends = [failing(nodes[0]), unjudged(nodes[1], "skipped"), *(passing(node) for node in nodes[2:])]
    again = [failing(nodes[0], check=check) | {"event": "rerun"} for check in ("gpu.b", "gpu.a")]
    run = read_run(a_run([*again, *ends], nodes=nodes))
    anchors = {id(group): "g" for group in run.groups.values()}
    assert [row["state"] for row in html_map.fleet_map(run, anchors)["patterns"]] == ["failed", "not proved"]
    found = html._failures(run, anchors)["retried"]
    assert [key[0] for key, _ in found] == ["gpu.a"]


@pytest.mark.parametrize(
    ("findings", "plain"),
    [
        ([{"part": "", "measured": "m", "expected": ""}], True),
        ([{"part": "p", "measured": "m", "expected": ""}], False),
        ([{"part": "", "measured": "m", "expected": "e"}], False),
        (
            [{"part": "", "measured": "m", "expected": ""}, {"part": "p", "measured": "m", "expected": ""}],
            False,
        ),
    ],
)
def test_findings_without_part_and_expectation_need_no_table(
    findings: list[dict[str, str]], *, plain: bool
) -> None:
    logs = [f"steps/{n}.log" for n in range(13)]
    run = read_run(a_run([failing("gpu01", findings=findings, logs=logs)]))
    (section,) = html._failures(run, {id(group): "g" for group in run.groups.values()})["failures"]
    assert (section["plain"], section["actions"], section["anchor"]) == (plain, False, "g")
    assert section["logs"] == logs[:12]


# --- parts of a page, field by field


def test_a_spent_budget_is_reported() -> None:
    run = a_run([passing("gpu01"), passing("gpu02")])
    assert judge(read_run([*run, event("drain_decision", node="gpu01")])).sentences == (EVERY,)
    assert judge(read_run([*run, event("drain_decision"), event("drain_over_budget")])).sentences == (
        EVERY,
        "More nodes failed than the budget allows to drain.",
    )


def test_what_a_template_misses_is_an_error() -> None:
    html.prepare()
    with pytest.raises(UndefinedError):
        html_page.template("report.html.j2").environment.from_string("{{ missing }}").render()


def test_the_record_of_an_empty_run() -> None:
    found = html._record(read_run([]))
    assert {key for key, value in found.items() if value} == {"cluster", "date", "duration"}
    assert (found["cluster"], found["date"]) == ("unknown cluster", "not known")
    assert html._environment(read_run([])) == [("Slurm", "none"), ("exit status", "the run did not end")]
    for seconds, shown in ((0.9, "under 1 s"), (1.0, "1 s"), (61.0, "1 min 1 s")):
        run = read_run([{"time": 5.0}, {"time": 5.0 + seconds}])
        assert html._record(run)["duration"] == shown


def test_nodes_of_which_nothing_is_known_come_last() -> None:
    nodes = [f"gpu{n:02}" for n in range(45)]
    ends = [unjudged(node, "not applicable") for node in nodes[20:30]] + [
        passing(node) for node in nodes[30:]
    ]
    found = html_map.fleet_map(read_run(a_run(ends, nodes=nodes)), {})
    assert [(row["state"], len(row["nodes"])) for row in found["patterns"]] == [
        ("passed", 15), ("not applicable", 10), ("", 20),
    ]  # fmt: skip
    assert [(title, tally) for title, tally, _ in found["tiles"]] == [
        ("", [("passed", 15), ("not applicable", 10)]),
    ]


def test_a_map_has_a_picture_per_suite_where_a_line_cannot_hold_the_nodes() -> None:
    nodes = [f"gpu{n:03}" for n in range(101)]
    results = [*map(passing, nodes), failing(nodes[1], check="os.x")]
    for count, titles in ((100, [""]), (101, ["all suites", "gpu", "os"])):
        run = read_run(a_run(results[:count] + results[-1:], nodes=nodes[:count]))
        found = html_map.fleet_map(run, {id(group): "g1" for group in ordered(run)})
        assert [title for title, *_ in found["tiles"]] == titles
        assert found["tiles"][0][2].count("<title>") == (2 if count == 100 else 1)


def test_a_suite_without_a_result_is_no_column_but_named_with_its_reason() -> None:
    results = [
        passing("gpu01"),
        *(unjudged("gpu01", "not applicable", check=f"{suite}.x", message=f"not applicable: {why}")
          for suite, why in (("mpi", "no section mpi"), ("ray", "no section ray"), ("ddp", "no section ray"))),
    ]  # fmt: skip
    run = read_run(a_run(results, nodes=("gpu01",)))
    found = html_map.fleet_map(run, {})
    assert (found["suites"], found["idle"]) == (
        ["gpu"],
        [("ddp, ray", "no section ray"), ("mpi", "no section mpi")],
    )
    text = page_of(a_run(results, nodes=("gpu01",))).text
    assert "Without a result: ddp, ray (no section ray); mpi (no section mpi)." in text


def test_long_words_break_behind_their_separators() -> None:
    assert html_page.breakable("a short-word <b>") == "a short-word &lt;b&gt;"
    assert (
        html_page.breakable("gpu[0001-0009,0011],gpu0020 x") == "gpu[0001-<wbr>0009,<wbr>0011],<wbr>gpu0020 x"
    )
    assert html_page.breakable("x" * 60 + "\n& y") == f"{'x' * 40}<wbr>{'x' * 20}\n&amp; y"
    for text in ("a,b;c/d_e.f:g=h&i?j@k]l-m-n-o-p--q", "-" * 90, "", " " * 30, "é" * 41):
        assert html_page.breakable(text).replace("<wbr>", "").unescape() == text


def test_warnings_are_sorted_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(node: str, check: str, part: str) -> dict[str, Any]:
        told = {"part": part, "measured": "1", "expected": "0"}
        return passing(node, check=check, verdicts=[{"findings": [], "advisories": [told]}])

    results = [
        warned("gpu01", "gpu.b", "x"),
        warned("gpu01", "gpu.b", "y"),
        warned("gpu02", "gpu.b", "y"),
        warned("", "gpu.a", "z"),
    ]
    run = read_run(a_run(results))
    found = html._warnings(run)
    assert [(check, row.found.part, row.nodes) for check, row in found["rows"]] == [
        ("gpu.a", "z", [CLUSTER]),
        ("gpu.b", "y", ["gpu01", "gpu02"]),
        ("gpu.b", "x", ["gpu01"]),
    ]
    assert (found["on"], found["left_out"]) == ("2 nodes", 0)
    assert html._warnings(read_run(a_run(results[3:])))["on"] == "the cluster"
    monkeypatch.setattr(html, "MAX_ROWS", 2)
    found = html._warnings(run)
    assert ([check for check, _ in found["rows"]], found["left_out"]) == (["gpu.a", "gpu.b"], 1)


def test_remarks_stand_below_the_warnings() -> None:
    noted = [{"outcome": "passed", "remarks": [{"text": "odd <a>", "count": 2}]}]
    run = read_run(a_run([passing("gpu01", check="controller.errors", verdicts=noted)]))
    line = "note: controller.errors on gpu01: 2 lines of 1 kind without a known meaning, like: odd <a>"
    assert html._warnings(run)["notes"] == [line]
    assert line.replace("<", "&lt;").replace(">", "&gt;") in html.render(run)
    assert 'id="warnings"' not in html.render(read_run(a_run([passing("gpu01")])))


def test_a_curve_at_its_bound_is_not_below_it() -> None:
    bound = {"name": "bound all_reduce 1 GiB", "value": 20, "unit": "GB/s"}
    curve = {"title": "all_reduce, 2 nodes x 8 GPUs", "points": [[1 << 20, 1.0], [1 << 30, 20.0]]}
    (chart,) = html_figures.bandwidth(read_run(a_run([passing("", curves=[curve], metrics=[bound])])))
    assert (chart["note"], chart["bounds"], chart["apart"]) == ("", True, [])
    own = {
        "name": "bound all_reduce 1 GiB 2 nodes",
        "value": 21,
        "unit": "GB/s",
    }  # goes before the general one
    (chart,) = html_figures.bandwidth(read_run(a_run([passing("", curves=[curve], metrics=[bound, own])])))
    assert chart["note"] == "1 point below its bound."
    curve["title"] = "all_gather, 2 nodes x 8 GPUs"
    (chart,) = html_figures.bandwidth(read_run(a_run([passing("", curves=[curve], metrics=[bound, own])])))
    assert (chart["note"], chart["bounds"]) == ("", False)


def test_curves_of_one_title_have_a_limit() -> None:
    curves = [{"title": "t", "points": [[1 << 20, 1.0], [1 << 30, 2.0]]}] * 41
    (chart,) = html_figures.bandwidth(read_run(a_run([passing("gpu01", curves=curves)])))
    assert chart["svg"].count('class="line"') == 40


def test_the_share_of_a_node_is_that_of_its_large_sizes() -> None:
    mib = 1 << 20
    nodes = {
        "a": {mib - 1: 9.0, mib: 5.0, 2 * mib: 6.0, 3 * mib: 8.0, 4 * mib: 7.0},
        "b": {1: 1.0},
        "c": {4 * mib: 7.0},
    }
    middle = {1: 1.0, mib - 1: 1.0, mib: 10.0, 2 * mib: 10.0, 3 * mib: 10.0, 4 * mib: 0.0}
    assert html_figures._shares(nodes, middle) == {"a": 0.6}


def test_numbers_are_sorted_and_one_place_counts_once() -> None:
    bound = {"name": "bound all_reduce 1 GiB alone", "value": 5, "unit": "GB/s"}
    results = [*measured([1.0, 2.0], "b"), *measured([1.0, 2.0], "a"), passing("gpu01", metrics=[bound])]
    found = html_figures.numbers(read_run(a_run(results)))  # nothing was measured of what has a bound
    assert [row["name"] for row in found["rows"]] == ["a", "b"]
    twice = html_figures.numbers(read_run(a_run([*measured([1.0]), *measured([2.0])])))
    assert [(row["n"], row["strip"], row["low"], row["high"]) for row in twice["rows"]] == [
        (1, "", ("2", "gpu00"), ("2", "gpu00"))
    ]


def test_texts_have_a_limit() -> None:
    found = html._comparison(ShownComparison("h.db", note="x" * 4000, last_good="a\x1b[1mb"))
    assert found is not None
    assert (found["of"]["note"], found["of"]["last_good"], found["of"]["source"]) == (
        "x" * 4000,
        "ab",
        "h.db",
    )
    assert html._note("x" * 4001) == (f"{'x' * 2000} [... 1 characters left out ...] {'x' * 2000}")
    assert html._text("x" * 600) == "x" * 600
    assert html._text("x" * 601) == f"{'x' * 300} [... 1 characters left out ...] {'x' * 300}"


def test_at_most_eight_curves_are_marked_the_furthest_first() -> None:
    results = [busbw(f"gpu{n:02}", {"1 GiB": 400.0 if n < 40 else 100.0 + n}) for n in range(49)]
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    marks = re.findall(r'class="line mark" d="[^"]*"><title>([^<]*)<', chart["svg"])
    assert (marks, len(chart["apart"])) == ([f"gpu{n}" for n in range(40, 48)], 9)
    usual, slow, fast = ({"1 MiB": 100.0, "1 GiB": 100.0 * share} for share in (4, 3.2, 6))
    few = {f"gpu{n:02}": usual for n in range(6)} | {"gpu06": fast, "gpu07": slow}
    (chart,) = html_figures.bandwidth(read_run(a_run([busbw(node, values) for node, values in few.items()])))
    assert [node for node, _ in chart["apart"]] == ["gpu07", "gpu06"]
    lines = re.findall(r'class="(line[^"]*)" d="[^"]*"><title>([^<]*)<', chart["svg"])
    assert lines[5:] == [("line", "gpu05"), ("line mark", "gpu07"), ("line mark", "gpu06")]
