"""The HTML report at its limits: what is left out is counted, what stands apart is named, what differs is not merged."""

from __future__ import annotations

from typing import Any

import pytest
from report.test_html import page_of
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.report import html, html_figures, html_map
from pytest_gpucluster.report.run_model import Run, read_run
from pytest_gpucluster.report.verdict import judge, ordered

FAILED = "1 of 2 nodes failed at least one check."
EVERY = "All that was selected is proved."


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


def test_a_lost_node_is_not_drawn_as_one_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = a_run([*map(passing, names(45))], nodes=names(45))
    for most in (80, 2):  # by counts or by states
        monkeypatch.setattr(html_map, "MAX_PATTERNS", most)
        found = patterns(read_run([*events, event("lost", node="gpu07", why="gone")]))
        assert [(row["state"], len(row["nodes"])) for row in found] == [("not proved", 1), ("passed", 44)]


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


def test_a_slow_node_is_apart_at_large_sizes_only() -> None:
    usual = {"1 KiB": 9.0, "1 MiB": 100.0, "1 GiB": 400.0}
    slow = {"1 KiB": 1.0, "1 MiB": 80.0, "1 GiB": 320.0}
    assert curves(*busbw([slow, *[usual] * 11]))["apart"] == [("gpu00", "80% of the median")]
    few = curves(*busbw([slow, usual]))
    assert (few["apart"], few["note"]) == ([], "Too few nodes to name one that stands apart from the others.")


# --- the history, acts, gaps, warnings


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
