"""The HTML report at its limits: what is left out is counted, what stands apart is named, what differs is not merged."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2 import UndefinedError
from report.test_html import Page, page_of
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report import html, html_figures, html_map, html_page
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.regression import Compared, ShownComparison
from pytest_gpucluster.report.run_model import Run, read_run
from pytest_gpucluster.report.verdict import judge, ordered

FAILED = "1 of 2 nodes failed at least one check."
EVERY = "All that was selected is proved."
BOUND = {"name": "bound all_reduce 1 GiB alone", "value": 5, "unit": "GB/s"}
JUDGED = "busbw all_reduce 1 GiB alone"
GPU_1, GPU_2 = ({"part": f"GPU {n}", "measured": "1", "expected": "2"} for n in (1, 2))


def run_of(results: list[dict[str, Any]], count: int = 2, **options: Any) -> Run:
    """Return a run on this many nodes."""
    return read_run(a_run(results, nodes=names(count), **options))


def names(count: int) -> list[str]:
    return [f"gpu{n:0{len(str(count)) if count > 99 else 2}}" for n in range(count)]


def anchors(run: Run) -> dict[int, str]:
    return {id(group): f"g{place}" for place, group in enumerate(ordered(run), 1)}


def patterns(run: Run) -> list[dict[str, Any]]:
    """Return the rows of nodes that ended alike."""
    found: list[dict[str, Any]] = html_map.fleet_map(run, anchors(run))["patterns"]
    return found


def failures(run: Run) -> dict[str, Any]:
    return html._failures(run, anchors(run))


def ended(*outcomes: str) -> list[dict[str, Any]]:
    """Return how one check of the nodes gpu01, gpu02 ended, by letters: p(assed), f(ailed), e(rror)."""
    kinds = {"p": passing, "f": failing, "e": lambda node: failing(node, outcome="error")}
    return [kinds[letter](f"gpu0{n}") for n, letter in enumerate(outcomes, 1)]


ABSENT = [failing("gpu02", outcome="error", check=check) for check in ("ddp.proved", "run.x")]


@pytest.mark.parametrize(
    ("results", "options", "kind", "sentences"),
    [
        (ended(*"pp"), {}, "accepted", [EVERY]),
        (ended("p"), {}, "unproved", ["Without any result: gpu02."]),
        (ended("f"), {}, "rejected", [FAILED]),
        ([failing("")], {}, "rejected", ["A check of the whole cluster failed."]),
        (ended(*"fe"), {}, "rejected", [FAILED, "1 check could not be judged because something broke."]),
        # a suite without a section in the cluster file, and a node out of service: nothing broke
        ([*ended("f"), *ABSENT], {}, "rejected", [FAILED]),
        (ended("f"), {"finish": None}, "rejected", [FAILED, "The run did not end"]),
        (ended("p"), {"finish": None}, "unproved", ["The run did not end"]),
        ([], {}, "unproved", ["No check was executed: this run says nothing about the cluster."]),
        (ended("f"), {"finish": 2}, "rejected", [FAILED, "The run was stopped before its end."]),
        (ended("p"), {"finish": 2}, "unproved", ["The run was stopped before its end."]),
        (ended(*"pe"), {}, "unproved", ["Nothing failed, but not"]),
        (ended("p"), {"finish": 3, "nodes": ["gpu01"]}, "unproved", ["The run ended with status 3"]),
        (ended(*"pp"), {"start": {"simulated": True}}, "accepted", [EVERY, "SIMULATED hardware"]),
    ],
)
def test_the_verdict(results: list[Any], options: dict[str, Any], kind: str, sentences: list[str]) -> None:
    found = judge(read_run(a_run(results, **options)))
    assert (found.outcome, len(found.sentences)) == (kind, len(sentences))
    for sentence, expected in zip(found.sentences, sentences, strict=True):
        assert sentence.startswith(expected)


def test_a_spent_budget_is_reported() -> None:
    run = a_run([passing("gpu01"), passing("gpu02")])
    assert judge(read_run([*run, event("drain_decision", node="gpu01")])).sentences == (EVERY,)
    spent = judge(read_run([*run, event("drain_decision"), event("drain_over_budget")])).sentences
    assert spent == (EVERY, "More nodes failed than the budget allows to drain.")


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


# --- failures


def test_failures_are_ordered_by_action_then_nodes_then_name() -> None:
    checks = {"d": "", "c": "odd", "b": "reboot", "a": "reboot", "z": "reboot", "e": "drain"}
    results = [failing("gpu01", check=f"gpu.{name}", action=action) for name, action in checks.items()]
    results[0] = failing("gpu01", check="gpu.d", outcome="error")
    results.append(failing("gpu02", check="gpu.z", action="reboot"))
    found = [group.check.removeprefix("gpu.") for group in ordered(read_run(a_run(results)))]
    assert "".join(found) == "ezabcd"


def test_sections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_GROUPS", 2)
    monkeypatch.setattr(html, "MAX_LINES", 2)
    for groups, brief, dropped in ((2, 0, False), (3, 1, False), (5, 2, True)):
        page = page_of(a_run([failing("gpu01", check=f"gpu.c{n}") for n in range(groups)]))
        assert len(page.of("article", "fail")) == 2
        assert page.text.partition("Further failures")[2].count("failed gpu01") == brief
        assert ("1 more kinds of failure are in the event log." in page.text) is dropped


def test_sections_share_their_room_and_rows_of_many_nodes_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = run_of([failing("gpu01", findings=[GPU_1, GPU_2]), failing("gpu02", findings=[GPU_2])])
    (section,) = failures(two)["failures"]
    assert [row.found.part for row in section["rows"]] == ["GPU 2", "GPU 1"]
    monkeypatch.setattr(html, "MAX_ROWS", 20)
    findings = [GPU_1 | {"part": f"GPU {n}"} for n in range(18)]
    shown = failures(run_of([failing("gpu01", check=f"gpu.c{n}", findings=findings) for n in range(3)]))
    sizes = [(len(one["rows"]), len(one["more"]), one["left_out"]) for one in shown["failures"]]
    assert sizes == [(12, 6, 0), (12, 0, 6), (12, 0, 6)]


def test_slurms_words_have_a_limit_and_the_most_frequent_come_first() -> None:
    results = [failing(node, annotation=[f"Slurm state: S{max(n, 1)}"]) for n, node in enumerate(names(14))]
    text = page_of(a_run(results, nodes=names(14))).text
    assert "Slurm says S1 \N{EN DASH} 2 nodes: gpu[00-01] S2" in text
    assert "and 1 more states" in text
    assert ("S12" in text, "S13" in text) == (True, False)


def test_repeated_attempts_are_grouped_by_message_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    again = [failing(node, message=f"{node} flaked") | {"event": "rerun"} for node in ("gpu00", "gpu01", "")]
    run = run_of([*again, passing("gpu00"), passing("gpu01"), passing("")])
    rows = [
        (("gpu.nvlink_state", "passed", "NODE flaked"), ["gpu00", "gpu01"]),
        (("gpu.nvlink_state", "passed", "flaked"), [CLUSTER]),
    ]
    assert failures(run)["retried"] == rows
    monkeypatch.setattr(html, "MAX_LINES", 1)
    assert failures(run)["retried"] == rows[:1]


def test_findings_without_part_and_expectation_need_no_table() -> None:
    bare = {"part": "", "measured": "m", "expected": ""}
    part, limit = bare | {"part": "p"}, bare | {"expected": "e"}
    logs = [f"steps/{n}.log" for n in range(13)]
    for findings, plain in (([bare], True), ([part], False), ([limit], False), ([bare, part], False)):
        (section,) = failures(run_of([failing("gpu00", findings=findings, logs=logs)]))["failures"]
        assert (section["plain"], section["actions"], section["anchor"]) == (plain, False, "g1")
        assert section["logs"] == logs[:12]


def test_the_logs_of_a_failure_are_its_own_or_its_checks_or_its_suites() -> None:
    logs = {"gpu.a": "steps/1.log", "gpu.b": "steps/2.log"}
    ran = [passing("gpu01", check=check, logs=[log]) for check, log in logs.items()]
    for red, expected in (
        (failing("gpu02", check="gpu.a", logs=["steps/3.log"]), ["steps/3.log"]),
        (failing("gpu02", check="gpu.a"), ["steps/1.log"]),
        (failing("gpu02", check="gpu.c"), ["steps/1.log", "steps/2.log"]),
        (failing("gpu02", check="os.c"), []),
    ):
        page = page_of(a_run([*ran, red]))
        assert [it["href"] for it in page.of("a") if it["href"].startswith("steps/")] == expected


# --- the map


def test_small_fleets_have_a_row_for_each_node() -> None:
    for count, small in ((40, True), (41, False)):
        results = [passing(node) for node in names(count)]
        found = html_map.fleet_map(run_of(results, count), {})
        assert (found["small"], len(found["patterns"])) == (small, 40 if small else 1)
        assert [title for title, *_ in found["tiles"]] == [""]
        assert len(patterns(run_of([*results, passing("")], count))) == (41 if small else 1)


def test_a_row_of_nodes_merges_no_different_causes_and_links_to_its_own() -> None:
    nodes = names(45)
    bad = [failing(nodes[0], check="gpu.a"), failing(nodes[1], check="gpu.b")]
    rows = patterns(run_of([*bad, *map(passing, nodes[2:])], 45))
    cells = [(row["nodes"][:2], row["state"], *map(row["cells"][0].get, ("text", "link"))) for row in rows]
    assert cells == [
        (nodes[:1], "failed", ["1 failed"], "#g1"),
        (nodes[1:2], "failed", ["1 failed"], "#g2"),
        (nodes[2:4], "passed", ["43 passed"], ""),
    ]


def test_too_many_patterns_are_drawn_by_states_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_map, "SMALL_FLEET", 2)
    monkeypatch.setattr(html_map, "MAX_PATTERNS", 4)
    results = [
        passing(node, nodeid=f"x[{node}-{n}]")
        for place, node in enumerate(names(6))
        for n in range(place + 1)
    ]
    rough = patterns(run_of(results, 6))
    assert [(row["nodes"], row["cells"][0]["text"]) for row in rough] == [(names(6), ["21 passed"])]
    assert len(patterns(run_of(results[:10], 4))) == 4
    monkeypatch.setattr(html_map, "MAX_PATTERNS", 2)
    ends = [failing("gpu00"), unjudged("gpu01", "skipped"), *map(passing, names(45)[2:])]
    assert [row["state"] for row in patterns(run_of(ends, 45))] == ["failed", "not proved"]


def test_a_lost_node_is_not_drawn_as_one_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = a_run([*map(passing, names(45))], nodes=names(45))
    for most in (80, 2):  # by counts or by states
        monkeypatch.setattr(html_map, "MAX_PATTERNS", most)
        found = patterns(read_run([*events, event("lost", node="gpu07", why="gone")]))
        assert [(row["state"], len(row["nodes"])) for row in found] == [("not proved", 1), ("passed", 44)]


def test_nodes_of_which_nothing_is_known_come_last() -> None:
    nodes = names(45)
    ends = [*(unjudged(node, "not applicable") for node in nodes[20:30]), *map(passing, nodes[30:])]
    found = html_map.fleet_map(run_of(ends, 45), {})
    rows = [(row["state"], len(row["nodes"])) for row in found["patterns"]]
    assert rows == [("passed", 15), ("not applicable", 10), ("", 20)]
    assert [tally for _, tally, _ in found["tiles"]] == [rows[:2]]


def test_a_map_has_a_picture_per_suite_where_a_line_cannot_hold_the_nodes() -> None:
    for count, titles, bad in ((100, [""], 2), (101, ["all suites", "gpu", "os"], 1)):
        results = [*map(passing, names(count)), failing(names(count)[1], check="os.x")]
        run = run_of(results, count)
        found = html_map.fleet_map(run, anchors(run))
        assert [title for title, *_ in found["tiles"]] == titles
        assert found["tiles"][0][2].count("<title>") == bad


def test_a_suite_without_a_result_is_no_column_but_named_with_its_reason() -> None:
    whys = {"mpi": "no section mpi", "ray": "no section ray", "ddp": "no section ray"}
    results = [
        unjudged("gpu00", "not applicable", check=f"{suite}.x", message=f"not applicable: {why}")
        for suite, why in whys.items()
    ]
    found = html_map.fleet_map(run_of([passing("gpu00"), *results], 1), {})
    assert found["suites"] == ["gpu"]
    assert found["idle"] == [("ddp, ray", "no section ray"), ("mpi", "no section mpi")]
    (row,) = patterns(run_of([passing("gpu00"), result("gpu00", "not applicable")], 1))
    assert row["cells"][0]["text"] == ["1 passed"]  # what does not apply is no text of a cell


# --- numbers


def measured(values: list[float], name: str = "power", unit: str = "W") -> list[dict[str, Any]]:
    return [
        passing(f"gpu{n:02}", metrics=[{"name": name, "value": value, "unit": unit, "device": ""}])
        for n, value in enumerate(values)
    ]


def numbers(*results: dict[str, Any]) -> dict[str, Any]:
    return html_figures.numbers(read_run(a_run(results)))


def test_numbers_are_judged_varying_the_same_or_single(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [BOUND, {"name": JUDGED, "value": 6.0, "unit": "GB/s"}, {"name": "once", "value": 1.5}]
    others = [*measured([1.0, 2.0], "b"), *measured([1.0, 2.0], "a"), *measured([3.0, 3.0], "same")]
    results = [*others, passing("gpu09", metrics=metrics)]
    found = numbers(*results)
    assert [(row["name"], row["n"]) for row in found["rows"]] == [(JUDGED, 1), ("a", 2), ("b", 2)]
    assert (found["same"], found["left_out"]) == ([("same", "3 W", 2)], 0)
    assert found["single"] == [("once", "1.5", "gpu09")]
    assert (
        numbers(passing("gpu01", metrics=[BOUND]))["rows"] == []
    )  # nothing was measured of what has a bound
    (row,) = numbers(*measured([1.0]), *measured([2.0]))["rows"]  # one place counts once
    assert (row["n"], row["strip"], row["low"], row["high"]) == (1, "", ("2", "gpu00"), ("2", "gpu00"))
    monkeypatch.setattr(html_figures, "MAX_SERIES", 2)
    found = numbers(*results)
    assert ([row["name"] for row in found["rows"]], found["left_out"]) == ([JUDGED, "a"], 1)


def test_the_whole_cluster_is_kept_apart_from_nodes() -> None:
    whole = passing("", metrics=[{"name": "power", "value": 9.0, "unit": "W"}])
    found = numbers(*measured([1.0, 2.0]), whole)
    assert [(row["name"], row["n"], row["high"]) for row in found["rows"]] == [("power", 2, ("2", "gpu01"))]
    assert found["single"] == [("power, whole cluster", "9 W", CLUSTER)]
    assert numbers(whole)["single"] == [("power", "9 W", CLUSTER)]


def test_a_judged_figure_of_many_nodes_has_a_histogram() -> None:
    for count in (7, 8):
        values = measured([6.0 + n for n in range(count)], JUDGED, "GB/s")
        (row,) = numbers(*values, passing("gpu99", metrics=[BOUND]))["rows"]
        assert (bool(row["histogram"]), row["bounds"]) == (count == 8, ["5"])
        assert (row["low"], row["high"]) == (("6", "gpu00"), (str(5 + count), f"gpu{count - 1:02}"))
    (row,) = numbers(*measured([1.0 + n for n in range(8)]))["rows"]
    assert row["histogram"] == ""


def test_what_stands_apart_is_named_up_to_eight() -> None:
    values = [*(100.0 + n / 10 for n in range(40)), *(200.0 + n for n in range(9))]
    (row,) = numbers(*measured(values))["rows"]
    assert row["apart"] == [f"gpu{40 + n} ({200 + n})" for n in range(8)]
    assert (row["apart_more"], row["median"]) == (1, "102.4")


# --- curves


def curves(*results: dict[str, Any]) -> dict[str, Any]:
    """Return the only chart of a run."""
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    return chart


def busbw(nodes: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return the results of nodes, given the bandwidth of each by size."""
    return [
        passing(
            f"gpu{n:02}",
            metrics=[
                {"name": "busbw", "value": value, "unit": "GB/s", "device": f"all_reduce {size}"}
                for size, value in values.items()
            ],
        )
        for n, values in enumerate(nodes)
    ]


def test_many_curves_are_a_band_and_a_median() -> None:
    for count, banded in ((8, False), (9, True)):
        nodes = [{"0 B": 1.0, "1 MiB": 100.0 + n / 10, "1 GiB": 400.0} for n in range(count)]
        chart = curves(*busbw(nodes))
        assert chart["title"] == f"all_reduce, each of {count} nodes alone"
        assert ('class="band"' in chart["svg"]) is (">median of 9</text>" in chart["svg"]) is banded
        assert chart["svg"].count('class="line"') == (1 if banded else 8)
        assert (chart["note"], chart["apart"], chart["bounds"]) == ("", [], False)


def test_a_slow_node_is_apart_at_large_sizes_only() -> None:
    usual = {"1 KiB": 9.0, "1 MiB": 100.0, "1 GiB": 400.0}
    slow = {"1 KiB": 1.0, "1 MiB": 80.0, "1 GiB": 320.0}
    assert curves(*busbw([slow, *[usual] * 11]))["apart"] == [("gpu00", "80% of the median")]
    below = [{"1023 KiB": 9.0, "1 GiB": 1.0}, *[{"1023 KiB": 1.0, "1 GiB": 1.0}] * 11]
    assert curves(*busbw(below))["apart"] == []
    edge = [{"1 MiB": 80.0, "1 GiB": 0.0}, *[{"1 MiB": 100.0, "1 GiB": 0.0}] * 11]  # there is no share of 0
    assert curves(*busbw(edge))["apart"] == [("gpu00", "80% of the median")]
    small = curves(*busbw([{"1 KiB": 1.0}, *[{"1 KiB": 9.0}] * 11]))
    assert (small["apart"], small["note"]) == ([], "")
    few = curves(*busbw([slow, usual]))
    assert (few["apart"], few["note"]) == ([], "Too few nodes to name one that stands apart from the others.")


def test_at_most_eight_curves_are_marked_the_furthest_first() -> None:
    chart = curves(*busbw([{"1 GiB": 400.0 if n < 40 else 100.0 + n} for n in range(49)]))
    marks = re.findall(r'class="line mark" d="[^"]*"><title>([^<]*)<', chart["svg"])
    assert (marks, len(chart["apart"])) == ([f"gpu{n}" for n in range(40, 48)], 9)
    usual, slow, fast = ({"1 MiB": 100.0, "1 GiB": 100.0 * share} for share in (4, 3.2, 6))
    chart = curves(*busbw([*[usual] * 6, fast, slow]))
    assert [node for node, _ in chart["apart"]] == ["gpu07", "gpu06"]
    lines = re.findall(r'class="(line[^"]*)" d="[^"]*"><title>([^<]*)<', chart["svg"])
    assert lines[5:] == [("line", "gpu05"), ("line mark", "gpu07"), ("line mark", "gpu06")]


def test_curves_of_one_title_share_a_chart_up_to_a_limit() -> None:
    points = [[1 << 20, 10.0], [1 << 30, 20.0]]
    bound = {"name": "bound all_reduce 1 GiB 2 nodes", "value": 25, "unit": "GB/s"}
    drawn = [{"title": "all_reduce, 2 nodes x 8 GPUs", "points": points}]
    two = [passing(f"gpu0{n}", curves=drawn, metrics=[bound]) for n in (1, 2)]
    chart = curves(*two)
    assert re.findall(r'class="t">(gpu0\d)<', chart["svg"]) == ["gpu01", "gpu02"]
    assert (chart["note"], chart["bounds"]) == ("2 points below its bound.", True)
    chart = curves(two[0])
    assert re.findall(r'class="t">(gpu0\d)<', chart["svg"]) == []
    assert (chart["note"], chart["title"]) == ("1 point below its bound.", drawn[0]["title"])
    assert curves(passing("gpu01", curves=drawn * 41))["svg"].count('class="line"') == 40
    empty = a_run([passing("", curves=[{"title": "empty", "points": []}])])
    assert html_figures.bandwidth(read_run(empty)) == []


def test_a_curve_at_its_bound_is_not_below_it() -> None:
    def chart(collective: str, *bounds: dict[str, Any]) -> tuple[str, bool]:
        title = f"{collective}, 2 nodes x 8 GPUs"
        drawn = {"title": title, "points": [[1 << 20, 1.0], [1 << 30, 20.0]]}
        found = curves(passing("", curves=[drawn], metrics=[*bounds]))
        return found["note"], found["bounds"]

    bound = {"name": "bound all_reduce 1 GiB", "value": 20, "unit": "GB/s"}
    own = {"name": "bound all_reduce 1 GiB 2 nodes", "value": 21, "unit": "GB/s"}
    assert chart("all_reduce", bound) == ("", True)
    assert chart("all_reduce", bound, own) == (
        "1 point below its bound.",
        True,
    )  # goes before the general one
    assert chart("all_gather", bound, own) == ("", False)


# --- the history, acts, gaps, warnings


def compared(*rows: Compared, **fields: Any) -> Page:
    return page_of(a_run([passing("gpu01")]), comparison=ShownComparison("h.db", rows, **fields))


def test_a_compared_metric_has_its_change_against_the_last_good_run_or_the_last() -> None:
    metric, less = Metric("m", 110.0, "W"), Metric("m", 90.0, "W")
    page = compared(
        Compared("gpu01", metric, last_good=100.0, previous=50.0),
        Compared("gpu02", Metric("m", 110.0, "W", "GPU 1"), previous=88.0),
        *(Compared("gpu03", less, last_good=-100.0), Compared("gpu04", less, last_good=0.0, previous=50.0)),
        Compared("gpu05", less),
    )
    shown = page.text[page.text.index("5 others") :]
    assert re.findall(r"[+-]\d+\.\d%", shown) == ["+10.0%", "+25.0%", "+190.0%"]
    assert "gpu02 GPU 1 m W" in shown


def test_compared_metrics_and_texts_of_the_history_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    note = compared(note="x" * 4000, last_good="a\x1b[1mb").text
    assert ("x" * 4000 in note, " ab" in note) == (True, True)
    cut = f"{'x' * 2000} [... 1 characters left out ...] {'x' * 2000}"
    assert cut in compared(note="x" * 4001).text
    monkeypatch.setattr(html, "MAX_COMPARED", 2)
    rows = (Compared("gpu01", Metric(f"m{n}", 1.0, "W"), worse=n % 2 == 0) for n in range(9))
    text = compared(*rows).text
    assert re.findall(r"\bm\d\b", text[text.index("got worse") :]) == ["m0", "m2", "m1", "m3"]
    assert "5 more are in the history." in text


def test_acts_share_a_row_where_they_differ_in_the_node_alone() -> None:
    known = {"result": "drained", "problem": ""}
    results = [
        event("node_result", node=node, reason=f"{node} and gpu10", **known) for node in ("gpu1", "gpu2")
    ]
    results.append(event("node_result", node="gpu10", reason="gpu10 and gpu10", checks=[], **known))
    over = event("drain_over_budget", nodes=["gpu1", "gpu2"], n=0, checks=["a", "b"])
    run = read_run([*results, over, event("drain_skipped", why="stopped")])
    assert [(row["act"], row["details"], row["nodes"]) for row in html._acts(run)] == [
        ("node_result", "reason: NODE and gpu10; result: drained", ["gpu1", "gpu2"]),
        ("node_result", "reason: gpu10 and gpu10; result: drained", ["gpu10"]),
        ("drain_over_budget", "n: 0; checks: a, b", ["gpu1", "gpu2"]),
        ("drain_skipped", "why: stopped", []),
    ]


def test_warnings_are_sorted_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(node: str, check: str, part: str) -> dict[str, Any]:
        told = {"part": part, "measured": "1", "expected": "0"}
        return passing(node, check=check, verdicts=[{"findings": [], "advisories": [told]}])

    def warnings(results: list[dict[str, Any]]) -> str:
        return page_of(a_run(results)).text.partition("drain no node.")[2]

    whole = warned("", "gpu.a", "z")
    results = [warned("gpu01", "gpu.b", "x"), *(warned(node, "gpu.b", "y") for node in ("gpu01", "gpu02"))]
    shown = warnings([*results, whole])
    assert shown.startswith(" 3 on 2 nodes ")
    assert re.findall(r"gpu\.\w \w 1 0", shown) == ["gpu.a z 1 0", "gpu.b y 1 0", "gpu.b x 1 0"]
    assert "further warnings" not in shown
    assert warnings([whole]).startswith(" 1 on the cluster ")
    monkeypatch.setattr(html, "MAX_ROWS", 2)
    shown = warnings([*results, whole])
    assert re.findall(r"gpu\.\w \w 1 0", shown) == ["gpu.a z 1 0", "gpu.b y 1 0"]
    assert "1 further warnings are in the event log." in shown


def test_remarks_stand_below_the_warnings() -> None:
    noted = [{"outcome": "passed", "remarks": [{"text": "odd <a>", "count": 2}]}]
    text = page_of(a_run([passing("gpu01", check="controller.errors", verdicts=noted)])).text
    assert "controller.errors on gpu01: 2 lines of 1 kind without a known meaning, like: odd <a>" in text
    assert "gpu02 the run ended before any check of them" in text
    assert 'id="warnings"' not in html.render(read_run(a_run([passing("gpu01")])))


def test_the_page_of_an_empty_run() -> None:
    text = page_of([]).text
    assert all(words in text for words in ("unknown cluster", "not known", "exit status the run did not end"))
    for seconds, shown in ((0.9, "under 1 s"), (1.0, " 1 s"), (61.0, "1 min 1 s")):
        assert shown in page_of([{"time": 5.0}, {"time": 5.0 + seconds}]).text
    for length, left_out in ((600, ""), (601, " [... 1 characters left out ...] ")):
        host = "x" * 300 + left_out + "x" * 300
        assert f"started on {host} " in page_of([event("start", host="x" * length)]).text


def test_what_a_template_misses_is_an_error() -> None:
    html.prepare()
    with pytest.raises(UndefinedError):
        html_page.template("report.html.j2").environment.from_string("{{ missing }}").render()


def test_long_words_break_behind_their_separators() -> None:
    assert html_page.breakable("a short-word <b>") == "a short-word &lt;b&gt;"
    nodes = html_page.breakable("gpu[0001-0009,0011],gpu0020 x")
    assert nodes == "gpu[0001-<wbr>0009,<wbr>0011],<wbr>gpu0020 x"
    assert html_page.breakable("x" * 60 + "\n& y") == f"{'x' * 40}<wbr>{'x' * 20}\n&amp; y"
    for text in ("a,b;c/d_e.f:g=h&i?j@k]l-m-n-o-p--q", "-" * 90, "", " " * 30, "é" * 41):
        assert html_page.breakable(text).replace("<wbr>", "").unescape() == text
