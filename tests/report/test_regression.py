"""A run against earlier ones in words: lines, tables, what the HTML report gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from report_helpers import part_of

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.metric_direction import MetricTrend
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.report.history import regression as trend
from pytest_gpucluster.report.history.regression import Change, Comparison, FleetHistory, Past, Turn, worse_of
from pytest_gpucluster.report.history.run_snapshot import ItemMetric

FLEET, NO_FLEET = FleetHistory(470.0, 476.0, 5), FleetHistory(None, None, 0)
WORDS = "440 GB/s, 8.0% below the median of its last 5 good runs (478, MAD 1.5; fleet 476 before, 470 now)"
GONE = "no longer measured, though its check passed; 478 GB/s"


def change(node: str = "gpu01", kind: str = "worse", device: str = "", **more: Any) -> Change:
    """Return a change of bandwidth; `more`: fields of ItemMetric, Metric, MetricTrend and Change."""
    own: dict[str, Any] = {"name": "busbw", "unit": "GB/s", "value": 440.0, "better": ""}
    judged: dict[str, Any] = {"level": 478.0, "mad": 1.5, "distance": -0.08, "runs": 5}
    own |= {key: more.pop(key) for key in own.keys() & more.keys()}
    judged |= {key: more.pop(key) for key in judged.keys() & more.keys()}
    item = ItemMetric(node, more.pop("check", "nccl.x"), Metric(part=Part.read(part_of(device)), **own))
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
    rows = [it.node for it in COMPARISON.for_html().rows]
    assert rows.index("gpu02") > rows.index("gpu03")  # what has no direction leads nothing


def test_the_table_has_a_row_for_each_metric_and_counts_what_is_as_it_was() -> None:
    head, _, *rows = COMPARISON.table(120)
    assert head.split("  ")[0] == "metric"
    assert [" ".join(row.split()) for row in rows] == [
        "alerts alerts 1 3 - 0 (cluster) 3 1 +200.0%",
        "busbw GB/s 8 440 476 5 gpu07 with gpu06 440 478 -30.0%",
        "power W 1 90 476 5 gpu02 90 80 +12.5%",
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


def test_the_verdict_of_a_run_in_which_nothing_got_worse() -> None:
    compared = "history: {} metrics could be compared, none got worse"
    for kinds, verdict in (
        (("new", "no direction"), ""),
        (("same",), compared.format(1)),
        (("same", "better", "too few"), f"{compared.format(2)}; 1 vary too much to be judged by so few runs"),
    ):
        changes = tuple(change(kind=kind) for kind in kinds)
        assert replace(COMPARISON, changes=changes, turned=()).verdict() == verdict


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
    assert found == [("link gpu01 - gpu02", *of) for of in (("nccl.x", "busbw"), ("y", "busbw"), ("nccl.x", "z"))]


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
