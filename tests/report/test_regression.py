"""A run against earlier ones in words: lines, tables, what the HTML report gets."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from report.test_html_whole import in_utc

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.metric_direction import MetricTrend
from pytest_gpucluster.report import regression as trend
from pytest_gpucluster.report.regression import (
    Change,
    Compared,
    Comparison,
    FleetHistory,
    Past,
    Turn,
    changed,
    describe,
    fold,
    when,
    worse_of,
)
from pytest_gpucluster.report.run_snapshot import ItemMetric

FLEET, NO_FLEET = FleetHistory(470.0, 476.0, 5), FleetHistory(None, None, 0)
WORDS = "440 GB/s, 8.0% below the median of its last 5 good runs (478, MAD 1.5; fleet 476 before, 470 now)"
ALONE = "440 GB/s, 8.0% below the median of its last 5 good runs (478, MAD 1.5)"
GONE = "no longer measured, though its check passed; 478 GB/s"


def change(node: str = "gpu01", kind: str = "worse", device: str = "", **more: Any) -> Change:
    """Return a change of bandwidth; `more`: fields of ItemMetric, Metric, MetricTrend and Change."""
    own: dict[str, Any] = {"name": "busbw", "unit": "GB/s", "value": 440.0, "better": ""}
    judged: dict[str, Any] = {"level": 478.0, "mad": 1.5, "distance": -0.08, "runs": 5}
    own |= {key: more.pop(key) for key in own.keys() & more.keys()}
    judged |= {key: more.pop(key) for key in judged.keys() & more.keys()}
    item = ItemMetric(node, more.pop("check", "nccl.x"), Metric(device=device, **own))
    return Change(item, MetricTrend(kind, **judged), more.pop("fleet", FLEET), **more)


def past(run: str = "r9", **more: Any) -> Past:
    return Past(run, "prod", simulated=False, started=86400.0, **({"complete": True, "good": True} | more))


SAME = change("gpu03", "same", value=478.0, distance=0.0)
POWER = change("gpu02", "no direction", name="power", unit="W", value=90.0, level=80.0, distance=0.125)
ALERTS: dict[str, Any] = {"name": "alerts", "unit": "alerts", "value": 3.0, "level": 1.0, "distance": 2.0}
CHANGES = (
    *(change(), POWER, SAME, change("", fleet=NO_FLEET, **ALERTS)),
    change("gpu01", device="GPU 1", distance=-0.05, value=454.0),
    change("gpu04", "gone", value=math.nan, distance=None, runs=1),
    change("gpu05", "better", distance=0.2, value=573.0, previous=500.0),
    change("gpu06", device="with gpu07", distance=-0.2),
    change("gpu07", device="with gpu06", distance=-0.3),
    change("gpu01", device="with gpu06", distance=-0.3),
    change("gpu08", "too few"),
)
TURNS = (
    *(Turn("gpu01", "gpu.x", "failed"), Turn("gpu02", "gpu.x", "failed"), Turn("", "a.b", "not checked")),
    *(Turn("gpu03", "", "not tested", "r5"), Turn("gpu04", "z.z", "error")),
)
COMPARISON = Comparison(past(), (past("r8", good=False), past("r7")), past("r7"), CHANGES, TURNS, "h.db")
LINK = WORDS.replace("8.0%", "30.0%")


def test_what_got_worse_has_a_line_each() -> None:
    assert COMPARISON.lines() == [
        f"worse: gpu04: busbw: {GONE} in its last good run",
        f"worse: link gpu06 - gpu07: busbw with gpu06: {LINK}",
        f"worse: gpu01: busbw: {WORDS} (and 1 more parts)",
        "worse: (cluster): alerts: 3 alerts, 1 in its last good run",
        "worse: gpu[01-02]: gpu.x: failed; it passed in the last good run",
        "worse: gpu04: z.z: error; it passed in the last good run",
        "worse: gpu03: the node: not tested; it passed in run r5",
        "worse: (cluster): a.b: not checked; it passed in the last good run",
    ]
    assert COMPARISON.verdict() == "history: got worse: gpu[01-04], (cluster), link gpu06 - gpu07"
    better = "gpu05: busbw: " + WORDS.replace("440", "573").replace("8.0% below", "20.0% above")
    assert [it.text for it in COMPARISON.better] == [better]


def test_the_table_has_a_row_for_each_metric_and_counts_what_is_as_it_was() -> None:
    assert COMPARISON.table(120) == [
        "metric    unit    n    fleet now    fleet before    runs    furthest          now    own before    change",
        "--------  ------  ---  -----------  --------------  ------  ----------------  -----  ------------  --------",
        "alerts    alerts  1    3            -               0       (cluster)         3      1             +200.0%",
        "busbw     GB/s    8    440          476             5       gpu07 with gpu06  440    478           -30.0%",
        "power     W       1    90           476             5       gpu02             90     80            +12.5%",
    ]
    still = replace(COMPARISON, changes=(SAME, POWER))
    assert len(still.table(120)) == 4
    short = still.table(120, constant=False, more="--all")
    assert [line.split()[0] for line in short] == ["metric", "--------", "power", "1"]
    assert short[-1] == "1 more metrics are as they were (--all shows them)"
    only = replace(still, changes=(SAME,)).table(120, constant=False)
    assert only == ["1 more metrics are as they were (-v shows them)"]
    new, gone = change(kind="new", level=None, distance=None), change(kind="gone", value=math.nan)
    assert replace(still, changes=()).table(120) == replace(still, changes=(new, gone)).table(120) == []


def test_the_page_gets_every_metric_the_worst_first() -> None:
    with in_utc():
        comparison = COMPARISON.for_html()
    assert [(row.node, row.metric.device, row.worse, row.note) for row in comparison.rows] == [
        ("(cluster)", "", True, "3 alerts, 1 in its last good run"),
        ("gpu07", "with gpu06", True, LINK),
        *(("gpu01", "with gpu06", False, ""), ("gpu06", "with gpu07", False, ""), ("gpu02", "", False, "")),
        *(("gpu01", "", True, WORDS), ("gpu08", "", False, ""), ("gpu01", "GPU 1", True, "")),
        *(("gpu03", "", False, ""), ("gpu05", "", False, "")),
    ]
    last = Compared("gpu05", Metric("busbw", 573.0, "GB/s"), last_good=478.0, previous=500.0, fleet=476.0)
    assert comparison.rows[-1] == last
    assert (comparison.source, comparison.runs) == ("h.db", 2)
    assert comparison.fleet_is == "median of the fleet over those runs"
    assert comparison.last_good == "r7 of 1970-01-02 00:00"
    assert comparison.previous == "r8 of 1970-01-02 00:00, bad"
    turned = [line.removeprefix("worse: ") for line in COMPARISON.lines()]
    assert comparison.note == "; ".join([*turned[4:], turned[0]])
    alone = replace(COMPARISON, against=(), last_good=None, changes=(), turned=()).for_html()
    assert (alone.last_good, alone.previous, alone.runs, alone.note, alone.rows) == ("", "", 0, "", ())


def test_the_head() -> None:
    heads: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "against the last 2 complete runs, the last good one r7 of 1970-01-02 00:00"),
        ({"against": (past("r8"),), "last_good": None}, "against the last run, none of them good as a whole"),
        ({"against": ()}, "no earlier complete run of cluster prod: nothing to compare with"),
    )
    for fields, head in heads:
        with in_utc():
            assert replace(COMPARISON, **fields).head == f"history: {head}"
            simulated = replace(COMPARISON, run=replace(past(), simulated=True), **fields).head
        assert simulated == "history: " + re.sub("(runs?) of|(runs?),", r"simulated \g<0>", head)


def test_the_verdict() -> None:
    few = "2 vary too much to be judged by so few runs"
    for kinds, verdict in (
        ((), ""),
        (("new", "no direction"), ""),
        (("same",), "history: 1 metrics could be compared, none got worse"),
        (
            ("same", "better", *["too few"] * 2),
            f"history: 2 metrics could be compared, none got worse; {few}",
        ),
        (("too few",), ""),
        (("worse",), "history: got worse: gpu01"),
    ):
        changes = tuple(change(kind=kind) for kind in kinds)
        assert replace(COMPARISON, changes=changes, turned=()).verdict() == verdict


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, WORDS),
        ({"runs": 1}, "440 GB/s, 8.0% below its last good run (478; fleet 476 before, 470 now)"),
        ({"runs": 1, "base": "r7"}, "440 GB/s, 8.0% below run r7 (478; fleet 476 before, 470 now)"),
        ({"fleet": FleetHistory(470.0, None, 0)}, ALONE),
        ({"fleet": FleetHistory(None, 476.0, 1)}, WORDS.replace(", 470 now", "")),
        ({"node": ""}, ALONE),
        (
            {"value": 500.0, "distance": 0.046},
            WORDS.replace("440", "500").replace("8.0% below", "4.6% above"),
        ),
        ({"distance": None, "level": 440.0}, WORDS.replace("8.0% below", "above").replace("478", "440")),
        ({"distance": None, "level": 441.0}, WORDS.replace("8.0% ", "").replace("478", "441")),
        ({"kind": "gone", "value": None, "base": "r7"}, f"{GONE} in run r7"),
        ({"value": None, "distance": None}, "not a number; 478 GB/s in its last 5 good runs"),
        ({"unit": "links", "value": 17.0, "level": 18.0}, "17 links, 18 in its last good run"),
        ({"unit": "links", "value": 17.0, "level": 18.0, "base": "r7", "runs": 1}, "17 links, 18 in run r7"),
        ({"unit": "", "better": "higher"}, WORDS.replace("440 GB/s", "440")),
    ],
)
def test_a_change_in_words(fields: dict[str, Any], words: str) -> None:
    assert describe(change(**fields)) == words


def test_a_pair_is_a_link_unless_an_end_got_worse_itself() -> None:
    one = change("gpu02", device="with gpu01")
    pair, other = (one, change("gpu01", device="with gpu02")), change("gpu02", name="other")
    assert [(it.where, it.parts) for it in worse_of(pair)] == [("link gpu01 - gpu02", 1)]
    assert [it.where for it in worse_of([*pair, other])] == ["gpu02"]
    assert len(worse_of([*pair, change("gpu03")])) == 2
    assert worse_of([*pair, change(kind="gone", value=math.nan)], trend="better") == ()
    # it is named once for each check and metric
    several = (one, *(change("gpu02", device="with gpu01", **it) for it in ({"check": "y"}, {"name": "z"})))
    found = [(it.where, it.change.item.check, it.change.metric.name) for it in worse_of(several)]
    assert found == [
        ("link gpu01 - gpu02", *of) for of in (("nccl.x", "busbw"), ("y", "busbw"), ("nccl.x", "z"))
    ]


def test_parts_of_a_node_are_one_with_the_furthest() -> None:
    parts = [change(device=f"GPU {n}", distance=-0.1 * n) for n in (1, 3, 2)]
    (found,) = worse_of(parts)
    assert (found.change.label, found.parts) == ("busbw GPU 3", 3)
    assert found.text.endswith(" (and 2 more parts)")
    other = worse_of([*parts, change(device="GPU 1", check="nccl.y")])
    assert [it.parts for it in other] == [3, 1]
    assert [it.where for it in worse_of([change("gpu02"), change("gpu01")])] == ["gpu01", "gpu02"]
    # of microseconds less is better
    slow = [
        change(f"gpu0{n}", unit="us", distance=distance) for n, distance in ((1, 0.5), (2, 0.9), (3, None))
    ]
    assert [it.where for it in worse_of(slow)] == ["gpu03", "gpu02", "gpu01"]


def test_many_nodes_share_a_line_and_lines_have_a_limit() -> None:
    changes = tuple(change(f"gpu{n:02}", distance=-0.01 * (n + 1)) for n in range(7))
    assert trend.MAX_NAMED == len(replace(COMPARISON, changes=changes[:6], turned=()).lines()) == 6
    furthest = f"gpu06: busbw: {WORDS}".replace("8.0%", "7.0%")
    assert replace(COMPARISON, changes=changes, turned=()).lines() == [
        f"worse: gpu[00-06]: busbw on 7 nodes; furthest {furthest}"
    ]
    for count in (40, 41):
        turned = tuple(Turn("gpu01", f"gpu.c{n:03}", "failed") for n in range(count))
        lines = replace(COMPARISON, changes=(), turned=turned).lines()
        assert lines[39].startswith("worse: gpu01: gpu.c039")
        assert lines[40:] == ["worse: and 1 more lines"][: count - 40]


def test_a_metric_is_put_beside_that_of_the_fleet() -> None:
    item, judged = change().item, change().judged
    beside = changed(item, judged, {("nccl.x", "busbw", "GB/s", ""): FLEET}, previous=1.0, base="r")
    assert beside == Change(item, judged, FLEET, 1.0, "r")
    assert changed(item, judged, {}) == Change(item, judged, NO_FLEET, None, "")


def test_names_of_nodes_are_folded_and_others_are_not() -> None:
    names = ["gpu01", "link a - b", "gpu03", "(cluster)", "x y", "a[", "gpu[01-02]"]
    assert fold(names) == "gpu[01,03], link a - b, (cluster), x y, a[, gpu[01-02]"
    assert fold([]) == ""


def test_times() -> None:
    with in_utc():
        assert when(1763600000.0) == "2025-11-20 00:53"
        assert when(1e18) == "1000000000000000000"
        assert when(float("1e30")).startswith("1000000000000000")


def test_nought_is_a_value() -> None:
    nought: dict[str, Any] = {"name": "alerts", "unit": "", "value": 0.0, "level": 0.0, "distance": None}
    none = change("gpu01", "same", fleet=FleetHistory(0.0, 0.0, 3), **nought)
    changes = (none, replace(none, fleet=FleetHistory(0.0, 2.0, 4)))
    comparison = replace(COMPARISON, changes=changes, turned=())
    assert comparison.table(120)[2].split() == ["alerts", "2", "0", "1", "4", "gpu01", "0", "0", "-"]
    assert [row.metric.value for row in comparison.for_html().rows] == [0.0, 0.0]


def test_how_far_a_metric_went_the_wrong_way() -> None:
    for kind, badness in (("worse", math.inf), ("gone", math.inf), ("new", 0.0)):
        assert trend.badness(change(kind=kind, distance=None)) == badness
    for unit, distance, badness in (
        *(("GB/s", -0.25, 0.25), ("GB/s", 0.25, -0.25)),
        *(("us", 0.25, 0.25), ("W", -0.25, 0.25)),
    ):
        assert trend.badness(change(unit=unit, distance=distance)) == badness
