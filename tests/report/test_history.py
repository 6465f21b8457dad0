"""The history: what it keeps, what it calls worse, and its commands. Pure, on event logs made here."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paths import ROOT
from plugin_helpers import run_pytest
from report_helpers import failing, part_of, passing

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.part import InstalledPart, gpu
from pytest_gpucluster.report.history.regression import FleetHistory, Turn
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.store import WINDOW, History
from pytest_gpucluster.report.machine.events import read_log, read_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.history.regression import Change, Comparison
    from pytest_gpucluster.sandbox import Sandbox

NODES = ("gpu01", "gpu02", "gpu03")
DAY = 86_400
FIRST = 1_763_600_000.0
ALONE = "busbw all_reduce 1 GiB alone"


def metric(name: str, value: Any, unit: str, device: str = "", **more: Any) -> dict[str, Any]:
    known = {"name": name, "value": value, "unit": unit, "part": part_of(device)}
    return {**known, "detail": False, "better": "", **more}


def result(
    node: str, check: str, outcome: str = "passed", metrics: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    suite, _, what = check.partition(".")
    nodeid = f"suites/test_{suite}.py::test_{what}{f'[{node}]' if node else ''}"
    known = {"suite": suite, "check": check, "node": node, "outcome": outcome, "message": "", "verdicts": []}
    return {"event": "result", "nodeid": nodeid, **known, "metrics": list(metrics), **more}


def log(
    night: int, results: Sequence[dict[str, Any]], *, end: int | None = 0, real: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Return the events of one night's run; `end` None: it was killed."""
    run, time = f"night{night:03}", FIRST + night * DAY
    about = {"cluster": "prod", "simulated": not real, "arguments": ["--cluster=prod"]}
    events: list[dict[str, Any]] = [{"event": "start", **about, **more}, *map(dict, results)]
    if end is not None:
        events.append({"event": "finish", "exit": end})
    return [{"time": time + place, "run": run, **event} for place, event in enumerate(events)]


def bandwidths(night: int, factors: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Return a night's results of the bandwidth of each node alone and in pairs, with the noise of real runs."""
    noise, speed = random.Random(night), dict.fromkeys(NODES, 1.0) | dict(factors or {})

    def measured(base: float, *nodes: str) -> float:
        return base * min(speed[node] for node in nodes) * noise.lognormvariate(0.0, 0.004)

    found = []
    for node in NODES:
        others = [other for other in NODES if other != node]
        alone = metric(ALONE, measured(478, node), "GB/s")
        pairs = [metric("pair_busbw", measured(365, node, it), "GB/s", f"with {it}") for it in others]
        found.append(result(node, "nccl.alone_bandwidth", metrics=[alone]))
        found.append(result(node, "nccl.pairs", metrics=pairs))
    return found


def night(values: Mapping[str, Any], *, check: str = "nccl.x", unit: str = "GB/s", **more: Any) -> list[dict[str, Any]]:
    """Return the results of one metric on nodes; None: the check passed and measured nothing."""
    return [
        result(node, check, metrics=[] if value is None else [metric("bw", value, unit, **more)])
        for node, value in values.items()
    ]


ONE = night({"gpu01": 1.0})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def kept(path: Path) -> Iterator[History]:
    with contextlib.closing(History(path, create=True)) as opened:
        yield opened


def store(kept: History, number: int, results: Sequence[dict[str, Any]], **options: Any) -> bool:
    return kept.add(recorded(read_run(log(number, results, **options))))


def add(kept: History, number: int, results: Sequence[dict[str, Any]], **options: Any) -> Comparison:
    """Store a run, and compare it with those before."""
    run = recorded(read_run(log(number, results, **options)))
    assert kept.add(run)
    return kept.compare(kept.find(run.cluster, run.run))


def named(comparison: Comparison) -> set[tuple[str, str]]:
    return {(it.where, it.change.label) for it in comparison.worse}


def of(comparison: Comparison, node: str, device: str = "") -> Change:
    (found,) = (it for it in comparison.changes if (it.item.node, it.metric.device) == (node, device))
    return found


# --- what got worse


def test_a_node_that_loses_8_percent_is_named_on_the_second_night_and_no_other(kept: History) -> None:
    first = add(kept, 1, bandwidths(1))
    assert (named(first), first.verdict()) == (set(), "")
    assert "nothing to compare with" in first.head
    assert (first.for_html().rows, first.for_html().left_out) == ((), 0)
    second = add(kept, 2, bandwidths(2, {"gpu02": 0.92}))
    # its partners are as fast as ever with each other, so no link and no partner is named
    assert named(second) == {("gpu02", ALONE), ("gpu02", "pair_busbw best partner")}
    assert second.run.good  # all within the threshold
    assert second.verdict() == "history: got worse: gpu02"
    html = second.for_html()
    assert {row.node for row in html.rows if row.worse and row.note} == {"gpu02"}
    assert html.last_good.startswith("night001")


def test_noise_alone_names_no_node_in_thirty_nights(kept: History) -> None:
    assert [number for number in range(30) if named(add(kept, number, bandwidths(number)))] == []


def test_what_got_worse_stays_named_until_it_is_accepted(kept: History) -> None:
    for number in range(6):
        add(kept, number, bandwidths(number))
    slower = {"gpu02": 0.92}
    for number in range(6, 26):  # longer than the window
        comparison = add(kept, number, bandwidths(number, slower))
        assert ("gpu02", ALONE) in named(comparison), number
    kept.accept(comparison.run, "gpu02")
    after = add(kept, 26, bandwidths(26, slower))
    assert not named(after)
    runs = {(it.item.node, it.metric.device): it.judged.runs for it in after.changes}
    assert (runs["gpu02", ""], runs["gpu01", "with gpu02"], runs["gpu01", "with gpu03"]) == (1, 1, 10)


def test_simulated_runs_are_no_baseline_of_real_ones(kept: History) -> None:
    add(kept, 1, bandwidths(1), real=False)
    comparison = add(kept, 2, bandwidths(2, {"gpu02": 0.5}))
    assert (comparison.against, named(comparison)) == ((), set())
    assert {change.trend for change in comparison.changes} == {"new"}
    first = kept.find("prod", "night001")
    for one, other in ((first, comparison.run), (comparison.run, first)):
        with pytest.raises(ConfigError, match="night001 is simulated and night002 is real"):
            kept.compare(one, other)


@pytest.mark.parametrize("end", [None, 2])
def test_a_run_that_was_killed_or_stopped_is_no_good_baseline(kept: History, end: int | None) -> None:
    add(kept, 1, bandwidths(1), end=end)
    (past,) = kept.runs("prod")
    assert (past.complete, past.good, past.outcome) == (False, False, "incomplete")
    comparison = add(kept, 2, bandwidths(2, {"gpu02": 0.5}))
    assert (comparison.against, named(comparison), comparison.last_good) == ((), set(), None)
    with pytest.raises(ConfigError, match="no good run of cluster prod before night002"):
        kept.find("prod", "last-good", before=comparison.run)
    with pytest.raises(ConfigError, match="night001 is incomplete"):
        kept.accept(past)


def test_a_node_that_failed_or_is_waived_is_no_baseline_and_the_others_are(kept: History) -> None:
    add(kept, 1, bandwidths(1))
    failed = [*bandwidths(2, {"gpu02": 0.6, "gpu03": 0.97}), result("gpu02", "gpu.count", "failed")]
    bad = add(kept, 2, failed, end=1)
    assert (bad.run.complete, bad.run.good) == (True, False)
    waived = [
        one | {"outcome": "waived"} if (one["node"], one["check"]) == ("gpu02", "nccl.alone_bandwidth") else one
        for one in bandwidths(3)
    ]
    add(kept, 3, waived)
    comparison = add(kept, 4, bandwidths(4))
    runs = {it.item.node: it.judged.runs for it in comparison.changes if "alone" in it.label}
    assert runs == {"gpu01": 3, "gpu02": 1, "gpu03": 3}
    assert comparison.last_good is not None
    assert comparison.last_good.run == "night003"


def test_a_number_that_is_none_is_worse_and_never_a_baseline(kept: History) -> None:
    for number, value in enumerate(("NaN", 478.0, "NaN", 10**400)):
        comparison = add(kept, number, night({"gpu01": value}))
        assert bool(named(comparison)) == (number > 1)
    assert "not a number; 478 GB/s in its last good run" in comparison.lines()[0]


def test_a_gpu_that_was_exchanged_goes_on_in_its_slot(kept: History) -> None:
    for number, serial in enumerate(("GPU 4 (GPU-aaaa, 9d:00)", "GPU 4 (GPU-bbbb, 9d:00)")):
        comparison = add(kept, number, night({"gpu01": 18 - number}, unit="links", device=serial))
    assert [it.text for it in comparison.worse] == ["gpu01: bw GPU 4: 17 links, 18 in its last good run"]


@pytest.mark.parametrize("kept_as", [None, ("GPU 1", "GPU 2"), ("GPU 0", "GPU 1", "GPU 2")])
def test_gpus_are_compared_by_address_though_their_numbers_shift(
    kept: History, kept_as: tuple[str, ...] | None
) -> None:
    """`kept_as`: an earlier version has stored these by number."""

    def of_gpus(*gpus: tuple[str, int]) -> list[dict[str, Any]]:
        parts = (f"GPU {at} (GPU-{bus}, {bus}:00)" for at, (bus, _) in enumerate(gpus))
        found = (metric("bw", it[1], "links", part) for it, part in zip(gpus, parts, strict=True))
        return [result("gpu01", "nccl.x", metrics=list(found))]

    add(kept, 0, of_gpus(("1b", 18), ("43", 12), ("9d", 6)))
    for device in kept_as or ():
        by_number = "UPDATE series SET device = ?, part = ? WHERE json_extract(part, '$.index') = ?"
        kept._db.execute(by_number, (device, json.dumps(part_of(device)), int(device[-1])))
    add(kept, 1, of_gpus(("1b", 18), ("43", 12), ("9d", 6)))
    comparison = add(kept, 2, of_gpus(("1b", 18), ("9d", 6)))
    gone = "gpu01: bw GPU 1: no longer measured, though its check passed; 12 links in its last good run"
    assert [it.text for it in comparison.worse] == [gone]
    assert {it.judged.runs for it in comparison.changes if it.trend != "gone"} == {2}


# --- what is kept


def test_a_run_that_was_incomplete_is_replaced_by_more_of_it(kept: History) -> None:
    for end, added in ((None, True), (None, False), (0, True), (0, False), (None, False)):
        values = {"gpu01": 1.0} if end is None else {"gpu01": 1.0, "gpu02": 2.0}
        assert store(kept, 1, night(values), end=end) is added
    (past,) = kept.runs("prod")
    assert (past.complete, past.nodes, past.passed) == (True, 2, 2)


def test_a_node_was_last_good_in_the_last_run_without_a_failure(kept: History) -> None:
    for number, end in enumerate(("passed", "failed", "error"), 1):
        results = [result("gpu01", "gpu.a", end), result("gpu02", "gpu.a")]
        store(kept, number, [*results, result("gpu03", "gpu.a", "not tested")], end=int(number > 1))
    store(kept, 4, [result("gpu01", "gpu.a")], real=False)
    store(kept, 5, [result("gpu01", "gpu.a")], cluster="other")
    assert kept.last_good("prod", simulated=False) == {"gpu01": FIRST + DAY, "gpu02": FIRST + 3 * DAY}


def test_values_of_the_cluster_are_those_of_the_last_good_run_that_has_them(kept: History) -> None:
    def of_cluster(switches: int, end: str = "passed") -> list[dict[str, Any]]:
        return [result("", "ibfabric.size", end, [metric("switches", switches, "switches")]), *ONE]

    store(kept, 1, of_cluster(11))
    store(kept, 2, of_cluster(12))
    store(kept, 3, of_cluster(10, "failed"), end=1)
    store(kept, 4, [result("", "ibfabric.size", "not checked"), *ONE])
    store(kept, 5, of_cluster(9), cluster="other")
    store(kept, 6, of_cluster(8), real=False)
    assert kept.accepted("prod", simulated=False) == {("ibfabric.size", "switches"): 12.0}
    assert kept.accepted("new", simulated=False) == {}
    assert kept.last_accepted("prod", "ibfabric.size", simulated=False) == FIRST + 2 * DAY
    assert kept.last_accepted("prod", "ibfabric.rail", simulated=False) is None


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(kept: History) -> None:
    for number in (1, 10, 11, 12, 13):
        kept.add(recorded(read_run(event | {"run": f"r{number}"} for event in log(number, ONE))))
    assert kept.find("prod", "r1").run == "r1"  # though it begins four newer ones
    assert kept.find("prod", "r13").run == kept.find("prod", "last").run == "r13"
    with pytest.raises(ConfigError, match="'r' begins several runs: r13 ") as caught:
        kept.find("prod", "r")
    assert str(caught.value).count("good") == 3  # the newest three are named
    with pytest.raises(ConfigError, match=r"no run 'R1' of cluster prod; the last are r13 \(.*, good\), r12"):
        kept.find("prod", "R1")


def test_the_last_run_before_another_is_of_its_kind(kept: History) -> None:
    for number, real, end in ((1, True, 0), (2, True, 1), (3, False, 0), (4, True, 1), (5, True, None)):
        store(kept, number, ONE, real=real, end=end)
    fourth = kept.find("prod", "night004")
    found = [kept.find("prod", at, before=it).run for it in (fourth, None) for at in ("last", "last-good")]
    assert found == ["night002", "night001", "night005", "night003"]
    with pytest.raises(ConfigError, match=r"no run of cluster prod before night001; the last are night005"):
        kept.find("prod", "last", before=kept.find("prod", "night001"))


# --- what a value is held against


def test_the_baseline_is_the_last_ten_good_values(kept: History) -> None:
    for number in range(WINDOW + 2):
        add(kept, number, night({"gpu01": 400.0 + number, "gpu02": 500.0}))
    comparison = add(kept, 20, night({"gpu01": 405.0, "gpu02": 501.0, "gpu03": 7.0}))
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
        add(kept, number, night({"gpu01": value, "gpu02": 1.0}))
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


def test_a_baseline_that_was_accepted_begins_with_that_run(kept: History) -> None:
    for number in range(3):
        add(kept, number, night({"gpu01": 400.0, "gpu02": 400.0}))
    third = add(kept, 3, night({"gpu01": 300.0, "gpu02": 300.0}))
    assert len(third.worse) == 2
    kept.accept(third.run, "gpu01")
    comparison = add(kept, 4, night({"gpu01": 301.0, "gpu02": 301.0}))
    assert named(comparison) == {("gpu02", "bw")}
    assert (of(comparison, "gpu01").judged.runs, of(comparison, "gpu02").judged.runs) == (1, 3)
    kept.accept(comparison.run)
    comparison = add(kept, 5, night({"gpu01": 302.0, "gpu02": 302.0}))
    assert named(comparison) == set()
    assert [of(comparison, node).judged.runs for node in ("gpu01", "gpu02")] == [1, 1]
    rows = kept.query("SELECT cluster, simulated, node, started FROM accepted ORDER BY node")
    assert rows == [("prod", 0, "*", FIRST + 4 * DAY), ("prod", 0, "gpu01", FIRST + 3 * DAY)]
    # a run before the accepted one is held against what was then
    assert of(kept.compare(kept.find("prod", "night002")), "gpu01").judged.runs == 2


def test_what_a_bad_node_measured_is_not_accepted(kept: History) -> None:
    add(kept, 1, night({"gpu01": 400.0}))
    bad = add(kept, 2, [*night({"gpu01": 300.0}), result("gpu01", "gpu.x", "failed")], end=1)
    kept.accept(bad.run)
    assert of(add(kept, 3, night({"gpu01": 300.0})), "gpu01").trend == "new"


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
def test_errors_were_none_where_the_check_passed(kept: History, unit: str, outcome: str, trend: str) -> None:
    other = result("gpu01", "os.x")  # the node is good
    add(kept, 1, [other, result("gpu01", "nccl.x", outcome)], end=1 if outcome == "failed" else 0)
    comparison = add(kept, 2, [other, *night({"gpu01": 3.0}, unit=unit)])
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
        ("us", {}, True),
        ("errors", {}, False),  # no errors, nothing to record
        ("W", {}, False),  # no direction
        ("W", {"better": "lower"}, True),
        ("GB/s", {"detail": True}, False),
        ("GB/s", {"device": "with gpu02"}, False),  # another partner, perhaps
    ],
)
def test_a_missing_metric_is_named(kept: History, unit: str, more: dict[str, Any], *, gone: bool) -> None:
    add(kept, 1, night({"gpu01": 5.0}, unit=unit, **more))
    comparison = add(kept, 2, night({"gpu01": None}))
    chosen = kept.compare(comparison.run, comparison.against[0])
    for found, base in ((comparison, ""), (chosen, "night001")):
        changes = [it for it in found.changes if it.metric.device != "best partner"]
        shown = [(it.item.node, it.trend, it.judged.level, it.judged.runs, it.base) for it in changes]
        assert shown == [("gpu01", "gone", 5.0, 1, base)][: int(gone)]


def test_what_was_not_judged_now_is_not_gone(kept: History) -> None:
    add(kept, 1, ONE)
    for number, outcome in enumerate(("failed", "error", "not checked", "not tested"), 2):
        now = [result("gpu01", "nccl.x", outcome), result("gpu01", "os.x")]
        assert add(kept, number, now, end=1).changes == ()


def test_the_last_good_run_of_each_node_decides_what_is_missing(kept: History) -> None:
    add(kept, 1, night({"gpu01": 5.0, "gpu02": 6.0}))
    add(kept, 2, [*night({"gpu01": 7.0, "gpu02": None}), result("gpu01", "gpu.x", "failed")], end=1)
    comparison = add(kept, 3, night({"gpu01": None, "gpu02": None, "gpu03": None}))
    assert [(it.item.node, it.judged.level) for it in comparison.changes] == [("gpu01", 5.0)]
    nan = add(kept, 4, night({"gpu01": "NaN"}))
    assert [it.trend for it in nan.changes] == ["worse"]  # it is there, and no number


@pytest.mark.parametrize(
    ("before", "outcome", "turned"),
    [
        ("passed", "failed", [("gpu.x", "failed")]),
        ("passed", "error", [("gpu.x", "error")]),
        ("passed", "not checked", [("gpu.x", "not checked")]),
        ("passed", "not tested", [("", "not tested")]),
        *(("passed", outcome, []) for outcome in ("not applicable", "skipped", "passed")),
        *((before, "failed", []) for before in ("failed", "error", "not checked", "not applicable")),
    ],
)
def test_what_has_turned(kept: History, before: str, outcome: str, turned: list[tuple[str, str]]) -> None:
    add(kept, 1, [result("gpu01", "gpu.x", before), result("gpu01", "gpu.y")])
    now = [result("gpu01", "gpu.x", outcome), result("gpu01", "gpu.new", outcome), result("gpu01", "gpu.y")]
    comparison = add(kept, 2, now, end=1)
    assert comparison.turned == tuple(Turn("gpu01", *turn) for turn in turned)
    chosen = kept.compare(comparison.run, comparison.against[0])
    assert chosen.turned == tuple(Turn("gpu01", *turn, "night001") for turn in turned)


# --- keeping few


def rows(kept: History) -> list[int]:
    """Return how many rows each table of a run has."""
    tables = ("runs", "metrics", "verdicts", "findings", "fleet", "node_runs", "series", "items")
    return [kept.query(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables]


def test_keeping_a_few_runs_deletes_all_of_the_others_but_the_last_good_one(kept: History) -> None:
    add(kept, 0, [result("gone01", "os.kernel"), *bandwidths(0)])
    for number in range(1, 7):
        bad = [result("gpu01", "gpu.count", "failed")] if number > 3 else []
        add(kept, number, [*bandwidths(number), *bad], end=len(bad))
    assert kept.keep(2) == 4
    assert [past.run for past in kept.runs("prod")] == ["night006", "night005", "night003"]
    assert rows(kept) == [3, 36, 20, 0, 15, 9, 12, 7]
    assert ("gpu02", ALONE) in named(add(kept, 7, bandwidths(7, {"gpu02": 0.92})))


def test_each_cluster_and_kind_keeps_its_own_newest_runs(kept: History) -> None:
    for number, real, cluster in ((1, 1, "a"), (2, 1, "a"), (3, 0, "a"), (4, 1, "b"), (5, 1, "b")):
        store(kept, number, ONE, real=bool(real), cluster=cluster)
    assert (kept.keep(5), kept.keep(1)) == (0, 2)
    assert [past.run for name in "ab" for past in kept.runs(name)] == ["night003", "night002", "night005"]


def test_nothing_of_a_run_stays_that_was_deleted(kept: History) -> None:
    found = [{"part": {"name": "p" * 500}, "measured": str(n), "expected": "x"} for n in range(400)]
    add(kept, 1, [result("gpu01", "gpu.x", "failed", verdicts=[{"findings": found}]), *ONE], end=1)
    assert all(rows(kept))
    before = kept.path.stat().st_size
    assert (kept.keep(1), kept.keep(0)) == (0, 1)
    assert not any(rows(kept))
    assert kept.path.stat().st_size < before - 100_000  # the file gets smaller, too


# --- the commands


@pytest.fixture
def three_nights(kept: History) -> Path:
    store(kept, 1, bandwidths(1))
    store(kept, 2, bandwidths(2), end=None)
    store(kept, 3, bandwidths(3, {"gpu02": 0.92}))
    return kept.path


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Called:
    """Call a command, and return its status, output and errors."""

    def call(*argv: object) -> tuple[int, str, str]:
        status = cli.main([str(word) for word in argv])
        return status, *capsys.readouterr()

    return call


def test_compare_names_what_got_worse_and_sets_the_exit_status(three_nights: Path, called: Called) -> None:
    worse = f"worse: gpu02: {ALONE}: 4"
    for argv, head, base in (
        ((), "history: against the last run, the last good one night001", "below its last good run (47"),
        (("last-good", "last"), "A  night001", "below run night001 (47"),
    ):
        status, out, _ = called("compare", *argv, "--history", three_nights)
        assert (status, out.startswith(head), base in out, worse in out) == (3, True, True, True)
    status, out, _ = called("compare", "night003", "night001", "--history", three_nights)
    assert (status, worse.replace("worse", "better") in out) == (0, True)


def test_no_run_must_be_good_as_a_whole_and_what_is_left_out_is_named(kept: History, called: Called) -> None:
    """A one-check rerun was the last good run; the loss of bandwidth was compared with nothing."""
    bad = result("gpu01", "os.governor", outcome="failed", message="powersave")
    store(kept, 1, [bad, *bandwidths(1)], end=1)
    store(kept, 2, [result("gpu01", "gpu.count")])
    store(kept, 3, [bad, *bandwidths(3, {"gpu02": 0.4})], end=1)
    status, out, _ = called("compare", "--history", kept.path)
    assert (status, f"worse: gpu02: {ALONE}: " in out) == (3, True)
    out = called("compare", "last-good", "last", "--history", kept.path)[1]
    assert "not compared, since only B has them: metrics of nccl.alone_bandwidth, nccl.pairs" in out


def test_missing_runs_are_reported_in_one_line(three_nights: Path, called: Called) -> None:
    for argv, error in (
        (("night003", "last"), "run night003 is compared with itself"),
        (("last-good", "last", "--cluster", "other"), "no run of cluster other; it has: prod"),
        (("last' OR 1=1 --", "last"), 'no run "last\' OR 1=1 --" of cluster prod'),
    ):
        status, out, err = called("compare", *argv, "--history", three_nights)
        assert (status, out, error in err, err.count("\n")) == (4, "", True, 1)


def test_history_lists_runs_and_the_past_of_a_node(three_nights: Path, called: Called) -> None:
    status, out, _ = called("history", "--history", three_nights)
    shown = [(line.split()[0], "incomplete" in line) for line in out.splitlines()]
    assert (status, shown[1:]) == (0, [("night001", False), ("night002", True), ("night003", False)])
    out = called("history", "gpu02", "--history", three_nights, "--metric", "busbw*")[1]
    (row,) = (line for line in out.splitlines() if ALONE in line)
    assert "-8." in row or "-7." in row
    assert "pair_busbw" not in out
    status, _, err = called("history", "gpu77", "--history", three_nights)
    assert status == 4
    assert "no node 'gpu77' of cluster prod; it has: gpu[01-03]" in err


def test_the_night_names_what_is_new_changed_healed_and_open(kept: History, called: Called) -> None:
    def verdict_of(text: str) -> list[dict[str, Any]]:
        code = "".join(filter(str.isalpha, text))
        return [{"outcome": "failed", "findings": [{"code": code, "measured": text}]}] if text else []

    def nights(number: int, **messages: str) -> list[dict[str, Any]]:
        checks = {"gpu.ecc": "", "gpu.count": "", "os.load": "", "os.user": ""} | {
            name.replace("_", "."): text for name, text in messages.items()
        }
        return [
            result("gpu01", it, "failed" if text else "passed", verdicts=verdict_of(text))
            for it, text in checks.items()
        ]

    store(kept, 1, nights(1, os_load="load 9"), end=1)
    store(kept, 2, nights(2, gpu_count="7 GPUs", os_load="load 8", os_user="no uid"), end=1)
    store(kept, 3, nights(3, gpu_ecc="2 errors", os_load="load 7", os_user="no group"), end=1)
    head, *lines = called("history", "--night", "--history", kept.path)[1].splitlines()
    assert head.endswith("1 new, 1 changed, 1 healed, 1 open")
    kinds = ["new", "changed", "healed", "open"]
    assert [line.partition(" for ")[0].split(":")[0] for line in lines] == kinds
    assert "open for 2 d: os.load on gpu01: : measured load 7, expected" in lines
    store(kept, 4, [result("gpu01", f"a.c{at}", "failed", message="x") for at in range(20)], end=1)
    many = called("history", "--night", "--history", kept.path)[1].splitlines()
    assert (len(many), many[-1].startswith("and 10 more lines")) == (15, True)


def test_why_a_node_was_drained_and_who_resumed_it_is_shown(kept: History, called: Called) -> None:
    """One chronic failure hides no new one."""
    chronic = result("gpu03", "os.governor", "failed", message="powersave")
    fresh = result("gpu03", "gpu.ecc", "failed", message="2 errors")
    reason = "gpucluster:gpu.ecc 2!=0 errors repair=reset-gpu"
    drained = {"event": "node_result", "node": "gpu03", "result": "drained", "problem": "", "reason": reason}
    for number in range(1, 31):
        store(kept, number, [chronic, *([fresh, drained] if number == 30 else [])], end=1, user="ops")
    store(kept, 31, [drained | {"result": "resumed", "reason": None}], user="anna")
    out = called("history", "gpu03", "--history", kept.path)[1]
    assert "night030  failed: gpu.ecc: 2 errors\n" in out
    assert "night030  failed (and in 18 of the runs before, since night012): os.governor: powersave" in out
    acts = [line.split() for line in out.splitlines() if " drained " in line or " resumed " in line]
    assert [act[2:5] for act in acts] == [["resumed", "anna", "night031"], ["drained", "ops", "night030"]]
    assert acts[1][5:] == reason.split()

    def listed() -> list[tuple[str, str]]:
        rows = json.loads(called("history", "gpu03", "--history", kept.path, "--json")[1])["acts"]
        return [(act["result"], act["user"]) for act in rows]

    assert listed() == [("resumed", "anna"), ("drained", "ops")]
    called("history", "--keep", "1", "--history", kept.path)
    assert listed() == [("resumed", "anna")]


def test_accept_and_keep_from_the_command_line(kept: History, three_nights: Path, called: Called) -> None:
    status, out, _ = called("history", "--accept", "last", "--history", three_nights)
    assert (status, out) == (0, "all nodes of cluster prod: baselines begin with run night003 from here on\n")
    status, out, _ = called("history", "--keep", "1", "--history", three_nights)
    assert (status, out) == (0, f"{three_nights}: 2 runs deleted\n")
    assert not named(add(kept, 4, bandwidths(4, {"gpu02": 0.92})))
    with pytest.raises(SystemExit):
        cli.main(["history", "--keep", "0", "--history", str(three_nights)])


def write(path: Path, events: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_a_page_that_is_written_again_with_a_history_has_its_rows(
    three_nights: Path, tmp_path: Path, called: Called
) -> None:
    page, lines = tmp_path / "report.html", log(3, bandwidths(3, {"gpu02": 0.9}))
    argv = ("report", write(tmp_path / "events.jsonl", lines), "--history", three_nights)
    assert called(*argv)[0] == 0
    assert "got worse since each node's last good run" in page.read_text()
    assert 'data-find=""><td class="where">gpu02' in page.read_text().partition('id="history"')[2]


def test_logs_are_imported_in_the_order_of_their_nights(path: Path, tmp_path: Path, called: Called) -> None:
    nights = [log(2, bandwidths(2, {"gpu02": 0.92})), log(1, bandwidths(1)), log(3, bandwidths(3), end=None)]
    logs = [write(tmp_path / f"{number}.jsonl", events) for number, events in enumerate(nights)]
    with logs[-1].open("a") as cut:
        cut.write('{"time": 1, "event": "res')
    status, out, _ = called("history", "--history", path, "--import", *logs)
    assert status == 0
    stored = re.findall(r"run (\w+) of cluster prod stored(, incomplete)?", out)
    assert stored == [("night001", ""), ("night002", ""), ("night003", ", incomplete")]
    assert "is stored already" in called("history", "--history", path, "--import", logs[0])[1]
    assert called("compare", "last-good", "night002", "--history", path)[0] == 3
    part = gpu(0, uuid="GPU-1")
    listed: dict[str, Any] = {"parts": [InstalledPart(part).as_dict()]}
    moves = [log(5, [passing("gpu02", **listed)]), log(4, [failing("gpu01", part=part, **listed)])]
    moved = [write(tmp_path / f"moved{number}.jsonl", events) for number, events in enumerate(moves)]
    assert "came to gpu02; on gpu01" in called("history", "--history", path, "--import", *moved)[1]
    assert recorded(read_log(logs[-1])).exit is None


def test_what_is_no_event_log_is_not_imported(path: Path, tmp_path: Path, called: Called) -> None:
    start = '{"event": "start", "run": "x", "time": "now", "cluster": "c"}\n'
    for text, error in (
        (None, "cannot be read (No such file or directory)"),
        ("not json\n[1]\n", "not the event log of a run"),
        (start, "not the event log of a run"),
    ):
        events = tmp_path / "events.jsonl"
        if text is not None:
            events.write_text(text)
        status, out, err = called("history", "--history", path, "--import", events)
        assert (status, out, error in err, err.count("\n")) == (1, "", True, 1)


def test_where_the_file_is_found(
    three_nights: Path, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUCLUSTER_HISTORY", raising=False)
    status, _, err = called("history")
    assert (status, "no history file: use --history FILE" in err) == (4, True)
    own = tmp_path / "prod.yaml"
    own.write_text(f"nodes: gpu[01-03]\nhistory: {three_nights}\n")
    assert "night003" in called("history", "--cluster", own)[1]
    monkeypatch.setenv("GPUCLUSTER_HISTORY", str(three_nights))
    assert "night003" in called("history")[1]
    status, _, err = called("history", "--history", tmp_path / "none.sqlite")
    assert (status, "no such file; a run with --history=" in err) == (4, True)
    assert not (tmp_path / "none.sqlite").exists()


def test_a_page_over_all_runs_is_written(three_nights: Path, tmp_path: Path, called: Called) -> None:
    page = tmp_path / "fleet.html"
    argv = ["history", "--history", three_nights, "--html", page]
    told = f"{page}: written: 3 runs of 3 nodes of cluster prod\n"
    assert called(*argv)[:2] == (0, told)
    assert page.stat().st_mode & 0o777 == 0o600
    assert "3 runs from " in page.read_text(encoding="utf-8")
    assert called(*argv, "--runs", "2")[0] == 0
    assert "1 older runs are in the history." in page.read_text(encoding="utf-8")
    status, _, err = called(*argv, "gpu01")
    assert (status, "--html shows all nodes" in err) == (4, True)


HOSTILE = (*("'; DROP TABLE runs; --", "\x1b[2J\x1b[31mgpu", "\ud800gpu", "(cluster)", "*", "x" * 5000), "gpu[01-99]")


def test_hostile_names_are_names(kept: History, called: Called) -> None:
    for number, factor in enumerate((1.0, 0.9)):
        found = [metric("busbw\x1b[2J", 400 * factor, "GB/s")]
        comparison = add(kept, number, [result(node, "nccl.alone", metrics=found) for node in HOSTILE])
    assert len(comparison.worse) == len(kept.nodes("prod")) == len(HOSTILE)
    kept.accept(comparison.run, "*")
    out = called("history", "--history", kept.path, HOSTILE[0])[1]
    status, more, _ = called("compare", "--history", kept.path, "night000", "night001")
    assert status == 3
    assert all(char.isprintable() or char == "\n" for char in out + more)
    assert "DROP TABLE" in out


def test_foreign_events_are_stored_as_far_as_they_go(kept: History) -> None:
    foreign: list[dict[str, Any]] = [
        {"event": "result", "node": 3, "check": None, "metrics": 7, "verdicts": "x", "outcome": []},
        {"event": "result", "metrics": [{"name": {}, "value": "1"}, 5], "verdicts": [{"findings": [1]}]},
        *({"event": "finish", "exit": True}, {"event": 5}),
    ]
    for number, event in enumerate(foreign):
        kept.add(recorded(read_run([*log(number, bandwidths(1), end=None), event])))
    assert [(past.complete, past.passed) for past in kept.runs("prod")] == [(False, 6)] * 4


# --- real runs on the sandbox: two nights, one node 8% slower

SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")
SLOWER = "gpu02"
THREE = "gpu[01-03]"  # too few for nccl.outlier, which would find it without a history


@pytest.mark.thorough
def test_the_second_green_night_names_the_node_that_lost_8_percent(sandbox: Sandbox, tmp_path: Path) -> None:
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    for row in plain["thresholds"]:
        row["tolerance"] = 0.15
    plain["profile"] |= {"nccl": []}  # whose bounds are nearer
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({**plain, "name": "prod", "history": str(tmp_path / "history.sqlite")}))
    options = (f"--cluster={cluster}", f"--nodes={THREE}", "-p", "no:cacheprovider")
    env = {**sandbox.env, "COLUMNS": "160"}
    first = run_pytest(tmp_path, *options, where=(SUITE,), env=env, timeout=600)
    sandbox.fault("slow_node", SLOWER, factor=0.92)
    second = run_pytest(tmp_path, *options, where=(SUITE,), env=env, timeout=600)
    assert (first.rc, second.rc) == (0, 0), second.out[-3000:]
    assert "nothing to compare with" in first.out
    assert "worse:" not in first.out
    worse = [line for line in second.out.splitlines() if line.startswith("worse: ")]
    # what all nodes do together is as fast as the slowest of them
    assert {line.split(": ")[1] for line in worse} == {SLOWER, "(cluster)"}
    (alone,) = (line for line in worse if "busbw all_reduce 1 GiB alone" in line)
    assert "below its last good run" in alone
    (row,) = (line for line in second.out.splitlines() if line.endswith("%") and "1 GiB alone" in line)
    assert SLOWER in row
