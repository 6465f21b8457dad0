"""What the history answers, value by value: runs, baselines, fleets, what is gone, what turned."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from report.test_history import DAY, FIRST, add, log, metric, named, result

from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report.history import EVERY_NODE, WINDOW, History
from pytest_gpucluster.report.regression import FleetHistory, Turn
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.run_snapshot import ItemMetric, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.report.regression import Change, Comparison


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as opened:
        yield opened


def night(
    values: Mapping[str, Any], *, check: str = "nccl.x", unit: str = "GB/s", **more: Any
) -> list[dict[str, Any]]:
    """Return the results of one metric on nodes; None: the check passed and measured nothing."""
    return [
        result(node, check, metrics=[] if value is None else [metric("bw", value, unit, **more)])
        for node, value in values.items()
    ]


def of(comparison: Comparison, node: str, device: str = "") -> Change:
    (found,) = (it for it in comparison.changes if (it.item.node, it.metric.device) == (node, device))
    return found


# --- runs


def test_a_run_is_kept_with_its_counts(kept: History) -> None:
    ends = ("passed", "passed", "failed", "error", "not checked", "not applicable", "skipped")
    results = [result("gpu01", f"gpu.c{n}", end) for n, end in enumerate(ends)]
    kept.add(
        recorded(
            read_run(log(1, [*results, result("", "nccl.x"), result("gpu02", "gpu.c0", "not tested")], end=1))
        )
    )
    (past,) = kept.runs("prod")
    assert (past.run, past.cluster, past.simulated, past.started) == ("night001", "prod", False, FIRST + DAY)
    assert (past.complete, past.good, past.exit) == (True, False, 1)
    assert (past.passed, past.failed, past.error, past.unjudged, past.nodes) == (3, 1, 1, 4, 2)
    counts = {node: kept.node_runs("prod", node) for node in ("gpu01", "gpu02", "", "gpu03")}
    assert counts == {
        "gpu01": [(past, {"good": 0, "passed": 2, "failed": 1, "error": 1, "unjudged": 3})],
        "gpu02": [(past, {"good": 0, "passed": 0, "failed": 0, "error": 0, "unjudged": 1})],
        "": [(past, {"good": 1, "passed": 1, "failed": 0, "error": 0, "unjudged": 0})],
        "gpu03": [],
    }
    assert kept.clusters() == ("prod",)
    assert kept.nodes("prod") == ("", "gpu01", "gpu02")
    assert kept.nodes("other") == ()


def test_runs_come_newest_first_and_have_a_limit(kept: History) -> None:
    for number in (3, 1, 2):
        kept.add(recorded(read_run(log(number, night({"gpu01": 1.0})))))
    kept.add(recorded(read_run(log(9, night({"gpu01": 1.0}), cluster="other"))))
    assert [past.run for past in kept.runs("prod")] == ["night003", "night002", "night001"]
    assert [past.run for past in kept.runs("prod", 2)] == ["night003", "night002"]
    assert [past.run for past, _ in kept.node_runs("prod", "gpu01", 2)] == ["night003", "night002"]
    assert kept.clusters() == ("other", "prod")


def test_a_node_was_last_good_in_the_last_run_without_a_failure(kept: History) -> None:
    ends = {1: "passed", 2: "failed", 3: "error"}
    for number, end in ends.items():
        results = [
            result("gpu01", "gpu.a", end),
            result("gpu02", "gpu.a"),
            result("gpu03", "gpu.a", "not tested"),
        ]
        kept.add(recorded(read_run(log(number, results, end=int(number > 1)))))
    kept.add(recorded(read_run(log(4, [result("gpu01", "gpu.a")], real=False))))
    kept.add(recorded(read_run(log(5, [result("gpu01", "gpu.a")], cluster="other"))))
    assert kept.last_good("prod", simulated=False) == {"gpu01": FIRST + DAY, "gpu02": FIRST + 3 * DAY}


def test_values_of_the_cluster_are_those_of_the_last_good_run_that_has_them(kept: History) -> None:
    def of_cluster(switches: int, end: str = "passed") -> list[dict[str, Any]]:
        return [
            result("", "ibfabric.size", end, metrics=[metric("switches", switches, "switches")]),
            *night({"gpu01": 1.0}),
        ]

    kept.add(recorded(read_run(log(1, of_cluster(11)))))
    kept.add(recorded(read_run(log(2, of_cluster(12)))))
    kept.add(recorded(read_run(log(3, of_cluster(10, "failed"), end=1))))
    kept.add(recorded(read_run(log(4, night({"gpu01": 1.0})))))  # another suite
    kept.add(recorded(read_run(log(5, of_cluster(9), cluster="other"))))
    kept.add(recorded(read_run(log(6, of_cluster(8), real=False))))
    assert kept.accepted("prod", simulated=False) == {("ibfabric.size", "switches"): 12.0}
    assert kept.accepted("new", simulated=False) == {}


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(kept: History) -> None:
    for number in (1, 10, 11, 12, 13):
        events = [event | {"run": f"r{number}"} for event in log(number, night({"gpu01": 1.0}))]
        kept.add(recorded(read_run(events)))
    assert kept.find("prod", "r1").run == "r1"  # though it begins four newer ones
    assert kept.find("prod", "r13").run == "r13"
    assert kept.find("prod", "last").run == "r13"
    with pytest.raises(ConfigError) as caught:
        kept.find("prod", "r")
    assert "'r' begins several runs: r13 (" in str(caught.value)
    assert str(caught.value).count("good") == 3  # the newest three are named
    with pytest.raises(
        ConfigError, match=r"no run 'R1' of cluster prod; the last are r13 \(.*, good\), r12 "
    ):
        kept.find("prod", "R1")


def test_the_last_run_before_another_is_of_its_kind(kept: History) -> None:
    for number, real, end in ((1, True, 0), (2, True, 1), (3, False, 0), (4, True, 1), (5, True, None)):
        kept.add(recorded(read_run(log(number, night({"gpu01": 1.0}), real=real, end=end))))
    fourth = kept.find("prod", "night004")
    assert kept.find("prod", "last", before=fourth).run == "night002"
    assert kept.find("prod", "last-good", before=fourth).run == "night001"
    assert kept.find("prod", "last").run == "night005"
    assert kept.find("prod", "last-good").run == "night003"
    with pytest.raises(ConfigError, match=r"no run of cluster prod before night001; the last are night005"):
        kept.find("prod", "last", before=kept.find("prod", "night001"))


def test_what_was_red_on_a_node_is_listed(kept: History) -> None:
    for number in (1, 2):
        red = [
            result("gpu01", "gpu.b", "failed", message=f"b{number}"),
            result("gpu01", "gpu.a", "error", message="a"),
        ]
        kept.add(
            recorded(
                read_run(
                    log(number, [*red, result("gpu01", "gpu.c"), result("gpu02", "gpu.b", "failed")], end=1)
                )
            )
        )
    assert kept.node_red("prod", "gpu01", ["night001", "night002"]) == [
        ("night002", "gpu.a", "error", "a"),
        ("night002", "gpu.b", "failed", "b2"),
        ("night001", "gpu.a", "error", "a"),
        ("night001", "gpu.b", "failed", "b1"),
    ]
    assert len(kept.node_red("prod", "gpu01", iter(["night002"]))) == 2
    assert kept.node_red("prod", "gpu01", []) == []


def test_the_values_of_a_node_come_oldest_first(kept: History) -> None:
    for number, value in ((1, 478.0), (2, 300.0), (3, "NaN"), (4, 477.0)):
        found = [
            metric("bw", value, "GB/s"),
            metric("hidden", 1, "s", detail=True),
            metric("a", 1, "W", "GPU 1"),
        ]
        kept.add(recorded(read_run(log(number, [result("gpu01", "nccl.x", metrics=found)]))))
    values = kept.node_values("prod", "gpu01", simulated=False)
    assert [one.item for one in values] == [
        ItemMetric("gpu01", "nccl.x", Metric("a", 1.0, "W", "GPU 1")),
        ItemMetric("gpu01", "nccl.x", Metric("bw", 477.0, "GB/s")),
    ]
    assert values[1].values == (
        (478.0, True), (300.0, False), (None, False), (477.0, True),
    )  # fmt: skip
    short = kept.node_values("prod", "gpu01", simulated=False, count=2)
    assert short[1].values == ((None, False), (477.0, True))
    assert kept.node_values("prod", "gpu01", simulated=True) == []


# --- what a value is held against


def test_the_baseline_is_the_last_ten_good_values(kept: History) -> None:
    for number in range(WINDOW + 2):
        add(kept, log(number, night({"gpu01": 400.0 + number, "gpu02": 500.0})))
    comparison = add(kept, log(20, night({"gpu01": 405.0, "gpu02": 501.0, "gpu03": 7.0})))
    one = of(comparison, "gpu01")
    assert (one.judged.runs, one.judged.level, one.judged.trend) == (10, 406.5, "same")
    assert one.judged.mad == 2.5
    assert one.judged.distance == pytest.approx(-1.5 / 406.5)
    assert (one.previous, one.base) == (411.0, "")
    # medians of both nodes, then of the ten runs: 452 to 456.5 and so on; now of three nodes
    assert one.fleet == FleetHistory(405.0, (450 + 2 / 2 + (450 + 11 / 2)) / 2, 10)
    assert (of(comparison, "gpu03").trend, of(comparison, "gpu03").previous) == ("new", None)
    assert len(comparison.against) == WINDOW
    assert [past.run for past in comparison.against[:2]] == ["night011", "night010"]


def test_a_run_that_was_chosen_is_the_only_base(kept: History) -> None:
    for number, value in ((1, 400.0), (2, 500.0), (3, 450.0)):
        add(kept, log(number, night({"gpu01": value, "gpu02": 1.0})))
    runs = {past.run: past for past in kept.runs("prod")}
    comparison = kept.compare(runs["night003"], runs["night001"])
    one = of(comparison, "gpu01")
    assert (one.judged.level, one.judged.runs, one.previous, one.base) == (400.0, 1, 400.0, "night001")
    assert (comparison.against, comparison.last_good) == ((runs["night001"],), runs["night001"])
    assert one.fleet == FleetHistory(225.5, 200.5, 1)
    back = kept.compare(runs["night001"], runs["night002"])
    assert (of(back, "gpu01").trend, named(back)) == ("worse", {("gpu01", "bw")})
    assert kept.compare(runs["night003"]).last_good == runs["night002"]
    with (
        contextlib.closing(History(kept.path.with_name("other"), create=True)) as other,
        pytest.raises(ConfigError, match=r"other: no run 'night003' of cluster prod$"),
    ):
        other.compare(comparison.run)


def test_a_bad_run_that_was_chosen_is_no_last_good_one(kept: History) -> None:
    add(kept, log(1, [*night({"gpu01": 5.0}), result("gpu02", "gpu.x", "failed")], end=1))
    comparison = add(kept, log(2, night({"gpu01": 5.0})))
    first = kept.find("prod", "night001")
    assert kept.compare(comparison.run, first).last_good is None
    assert comparison.last_good is None
    assert comparison.against == (first,)
    assert comparison.file == str(kept.path)


def test_the_fleet_is_of_nodes_alone_and_of_what_is_no_detail(kept: History) -> None:
    first = [*night({"gpu01": 2.0, "gpu02": 4.0}), result("", "nccl.x", metrics=[metric("bw", 99.0, "GB/s")])]
    first += [result("gpu01", "nccl.y", metrics=[metric("hidden", 1, "s", detail=True)])]
    add(kept, log(1, first))
    comparison = add(kept, log(2, first))
    assert of(comparison, "gpu01").fleet == FleetHistory(3.0, 3.0, 1)
    assert of(comparison, "").fleet == FleetHistory(3.0, 3.0, 1)
    assert [it.metric.name for it in comparison.changes] == ["bw"] * 3


def test_a_series_takes_its_new_direction(kept: History) -> None:
    add(kept, log(1, night({"gpu01": 5.0}, unit="W")))
    comparison = add(kept, log(2, night({"gpu01": 50.0}, unit="W", better="lower", detail=False)))
    assert of(comparison, "gpu01").metric.better == "lower"
    assert add(kept, log(3, night({"gpu01": 50.0}, unit="W", detail=True))).changes == ()


# --- what is accepted


def test_a_baseline_that_was_accepted_begins_with_that_run(kept: History) -> None:
    for number in range(3):
        add(kept, log(number, night({"gpu01": 400.0, "gpu02": 400.0})))
    third = add(kept, log(3, night({"gpu01": 300.0, "gpu02": 300.0})))
    assert len(third.worse) == 2
    kept.accept(third.run, "gpu01")
    comparison = add(kept, log(4, night({"gpu01": 301.0, "gpu02": 301.0})))
    assert named(comparison) == {("gpu02", "bw")}
    assert (of(comparison, "gpu01").judged.runs, of(comparison, "gpu02").judged.runs) == (1, 3)
    kept.accept(comparison.run)
    comparison = add(kept, log(5, night({"gpu01": 302.0, "gpu02": 302.0})))
    assert named(comparison) == set()
    assert [of(comparison, node).judged.runs for node in ("gpu01", "gpu02")] == [1, 1]
    rows = kept._db.execute("SELECT cluster, simulated, node, started FROM accepted ORDER BY node").fetchall()
    assert rows == [("prod", 0, EVERY_NODE, FIRST + 4 * DAY), ("prod", 0, "gpu01", FIRST + 3 * DAY)]
    # a run before the accepted one is held against what was then
    assert of(kept.compare(kept.find("prod", "night002")), "gpu01").judged.runs == 2


def test_what_a_bad_node_measured_is_not_accepted(kept: History) -> None:
    add(kept, log(1, night({"gpu01": 400.0})))
    bad = add(kept, log(2, [*night({"gpu01": 300.0}), result("gpu01", "gpu.x", "failed")], end=1))
    kept.accept(bad.run)
    assert of(add(kept, log(3, night({"gpu01": 300.0}))), "gpu01").trend == "new"


# --- what was 0, what is gone, what turned


@pytest.mark.parametrize(
    ("unit", "outcome", "trend"),
    [
        ("errors", "passed", "worse"),
        ("errors", "failed", "new"),
        ("errors", "not checked", "new"),
        ("links", "passed", "new"),
        ("us", "passed", "new"),
    ],
)
def test_errors_were_none_where_the_check_passed_without_any(
    kept: History, unit: str, outcome: str, trend: str
) -> None:
    others = [result("gpu01", "os.x")]  # the node is good
    add(kept, log(1, [*others, result("gpu01", "nccl.x", outcome)], end=1 if outcome == "failed" else 0))
    comparison = add(kept, log(2, [*others, *night({"gpu01": 3.0}, unit=unit)]))
    found = of(comparison, "gpu01")
    assert found.trend == trend
    if trend == "worse":
        assert (found.judged.level, found.judged.runs, found.judged.distance) == (0.0, 1, None)
        chosen = kept.compare(comparison.run, comparison.against[0])
        assert [it.text for it in chosen.worse] == ["gpu01: bw: 3 errors, 0 in run night001"]


@pytest.mark.parametrize(
    ("unit", "more", "gone"),
    [
        ("GB/s", {}, True),
        ("links", {}, True),
        ("us", {}, True),
        ("errors", {}, False),  # no errors, nothing to record
        ("W", {}, False),  # no direction
        ("W", {"better": "lower"}, True),
        ("GB/s", {"detail": True}, False),
        ("GB/s", {"device": "with gpu02"}, False),  # another partner, perhaps
    ],
)
def test_a_missing_measurement_is_named_where_it_matters(
    kept: History,
    unit: str,
    more: dict[str, Any],
    gone: bool,  # a table
) -> None:
    add(kept, log(1, night({"gpu01": 5.0}, unit=unit, **more)))
    comparison = add(kept, log(2, night({"gpu01": None})))
    found = [it for it in comparison.changes if it.trend == "gone" and it.metric.device != "best partner"]
    assert [(it.item.node, it.judged.level, it.judged.runs, it.base) for it in found] == (
        [("gpu01", 5.0, 1, "")] if gone else []
    )
    chosen = kept.compare(comparison.run, comparison.against[0])
    assert [it.base for it in chosen.changes if it.trend == "gone" and it in chosen.changes][:1] == (
        ["night001"] if gone or more.get("device") else []
    )


@pytest.mark.parametrize("outcome", ["failed", "error", "not checked", "not tested"])
def test_what_was_not_judged_now_is_not_gone(kept: History, outcome: str) -> None:
    add(kept, log(1, night({"gpu01": 5.0})))
    comparison = add(kept, log(2, [result("gpu01", "nccl.x", outcome), result("gpu01", "os.x")], end=1))
    assert [it.trend for it in comparison.changes] == []


def test_the_last_good_run_of_each_node_decides_what_is_missing(kept: History) -> None:
    add(kept, log(1, [*night({"gpu01": 5.0, "gpu02": 6.0})]))
    add(kept, log(2, [*night({"gpu01": 7.0, "gpu02": None}), result("gpu01", "gpu.x", "failed")], end=1))
    comparison = add(kept, log(3, night({"gpu01": None, "gpu02": None, "gpu03": None})))
    assert [(it.item.node, it.judged.level) for it in comparison.changes] == [("gpu01", 5.0)]
    nan = add(kept, log(4, night({"gpu01": "NaN"})))
    assert [it.trend for it in nan.changes] == ["worse"]  # it is there, and no number


@pytest.mark.parametrize(
    ("outcome", "turned"),
    [
        ("failed", Turn("gpu01", "gpu.x", "failed")),
        ("error", Turn("gpu01", "gpu.x", "error")),
        ("not checked", Turn("gpu01", "gpu.x", "not checked")),
        ("not tested", Turn("gpu01", "", "not tested")),
        ("not applicable", None),
        ("skipped", None),
        ("passed", None),
    ],
)
def test_what_passed_before_and_does_not_now_has_turned(
    kept: History, outcome: str, turned: Turn | None
) -> None:
    add(kept, log(1, [result("gpu01", "gpu.x")]))
    comparison = add(
        kept, log(2, [result("gpu01", "gpu.x", outcome), result("gpu01", "gpu.new", outcome)], end=1)
    )
    assert comparison.turned == ((turned,) if turned else ())
    chosen = kept.compare(comparison.run, comparison.against[0])
    assert [turn.base for turn in chosen.turned] == (["night001"] if turned else [])


@pytest.mark.parametrize("before", ["failed", "error", "not checked", "not applicable"])
def test_what_did_not_pass_before_has_not_turned(kept: History, before: str) -> None:
    add(kept, log(1, [result("gpu01", "gpu.x", before), result("gpu01", "gpu.y")], end=0))
    comparison = add(kept, log(2, [result("gpu01", "gpu.x", "failed"), result("gpu01", "gpu.y")], end=1))
    assert comparison.turned == kept.compare(comparison.run, comparison.against[0]).turned == ()


def test_the_last_good_run_that_has_the_check_counts(kept: History) -> None:
    add(kept, log(1, [result("gpu01", "gpu.x"), result("gpu01", "gpu.y")]))
    add(kept, log(2, [result("gpu01", "gpu.y")]))
    add(kept, log(3, [result("gpu01", "gpu.x", "failed"), result("gpu01", "gpu.y", "failed")], end=1))
    comparison = add(
        kept, log(4, [result("gpu01", "gpu.x", "failed"), result("gpu01", "gpu.y", "failed")], end=1)
    )
    assert {turn.check for turn in comparison.turned} == {"gpu.x", "gpu.y"}
    third = kept.find("prod", "night003")
    assert kept.compare(comparison.run, third).turned == ()


def test_a_node_that_was_not_tested_is_one_turn_beside_what_failed(kept: History) -> None:
    checks = ("gpu.a", "gpu.b", "gpu.c", "gpu.d")
    nodes = ("gpu01", "gpu02")
    add(kept, log(1, [result(node, check) for node in nodes for check in checks]))
    ends = ("not tested", "not tested", "failed", "not checked")
    comparison = add(
        kept, log(2, [result(n, c, end) for n in nodes for c, end in zip(checks, ends, strict=True)], end=1)
    )
    assert sorted((turn.node, turn.check, turn.now) for turn in comparison.turned) == [
        (node, check, end)
        for node in nodes
        for check, end in (("", "not tested"), ("gpu.c", "failed"), ("gpu.d", "not checked"))
    ]


# --- keeping few


def test_each_cluster_and_kind_keeps_its_own_newest_runs(kept: History) -> None:
    for number, real, cluster in (
        (1, True, "a"),
        (2, True, "a"),
        (3, False, "a"),
        (4, True, "b"),
        (5, True, "b"),
    ):
        kept.add(recorded(read_run(log(number, night({"gpu01": 1.0}), real=real, cluster=cluster))))
    assert kept.keep(5) == 0
    assert kept.keep(1) == 2
    assert [past.run for name in "ab" for past in kept.runs(name)] == ["night003", "night002", "night005"]


# --- what SQLite says


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (sqlite3.OperationalError("database is busy"), GpuClusterError, "another writer has held it for 0 s"),
        (sqlite3.OperationalError("a readonly database"), ConfigError, "this user cannot write it"),
        (sqlite3.OperationalError("disk I/O error"), GpuClusterError, "disk I/O error"),
        (OSError(28, "No space left on device"), ConfigError, "No space left on device; name another file"),
    ],
)
def test_an_error_of_the_file_is_one_line(
    kept: History, error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(GpuClusterError) as caught, kept._readable_errors():
        raise error
    assert str(caught.value).startswith(f"history {kept.path}: {message}")
    assert type(caught.value) is kind


def test_a_history_without_runs_names_its_clusters(kept: History) -> None:
    with pytest.raises(ConfigError) as caught:
        kept.find("prod", "last")
    assert str(caught.value) == f"history {kept.path}: no run of cluster prod; it has clusters: none"
    kept.add(recorded(read_run(log(1, night({"gpu01": 1.0}), cluster="other"))))
    with pytest.raises(ConfigError, match=r"no run 'x' of cluster prod; it has clusters: other$"):
        kept.find("prod", "x")


def count(kept: History, table: str) -> int:
    return int(kept._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_nothing_of_a_run_stays_that_was_deleted(kept: History) -> None:
    of_run = ("runs", "metrics", "verdicts", "findings", "fleet", "node_runs", "series", "items")
    found = [{"part": "p" * 500, "measured": str(n), "expected": "x"} for n in range(400)]
    red = result("gpu01", "gpu.x", "failed", verdicts=[{"findings": found, "action": "drain"}])
    add(kept, log(1, [red, *night({"gpu01": 1.0})], end=1))
    assert all(count(kept, table) for table in of_run)
    before = kept.path.stat().st_size
    assert kept.keep(1) == 0
    assert kept.keep(0) == 1
    assert [count(kept, table) for table in of_run] == [0] * len(of_run)
    assert kept.path.stat().st_size < before - 100_000  # the file gets smaller, too


def test_a_wait_for_another_writer_can_be_ended(kept: History) -> None:
    with contextlib.closing(sqlite3.connect(kept.path, isolation_level=None)) as other:
        for statement, steps in (("BEGIN IMMEDIATE", [0.05, 0.05]), ("BEGIN EXCLUSIVE", [0.05])):
            other.execute(statement)
            waits: list[float] = []

            def wait(seconds: float, waits: list[float] = waits, most: int = len(steps)) -> bool:
                waits.append(seconds)
                return len(waits) < most

            with pytest.raises(GpuClusterError, match="another writer has held it for 0 s"):
                History(kept.path, create=True, wait=wait)
            assert waits == steps
            other.execute("ROLLBACK")
        other.execute("BEGIN IMMEDIATE")

        def released(_seconds: float) -> None:
            other.execute("ROLLBACK")

        with contextlib.closing(History(kept.path, create=True, wait=released)) as late:
            assert late.add(recorded(read_run(log(1, night({"gpu01": 1.0})))))
            (timeout,) = late._db.execute("PRAGMA busy_timeout").fetchone()
            assert timeout == 60_000  # a reader waits in SQLite


def test_a_run_that_was_incomplete_is_replaced_by_more_of_it(kept: History) -> None:
    for end, added in ((None, True), (None, False), (0, True), (0, False), (None, False)):
        values = {"gpu01": 1.0} if end is None else {"gpu01": 1.0, "gpu02": 2.0}
        assert kept.add(recorded(read_run(log(1, night(values), end=end)))) is added
    (past,) = kept.runs("prod")
    assert (past.complete, past.nodes, count(kept, "metrics"), count(kept, "verdicts")) == (True, 2, 2, 2)
