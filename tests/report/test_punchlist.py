"""The punch list: what opens, follows, re-opens and proves an item; what a run of the list tests; when a unit is handed over."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.core.part import InstalledPart, Part, gpu, named, nvlink, port
from pytest_gpucluster.report.history.punchlist import entries, natural, proofs_of, scope_of
from pytest_gpucluster.report.history.run_snapshot import Recorded, RecordedItem
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.history.work import WorkItem

DAY = 86_400.0
CHECKS = ("gpu.count", "gpu.ecc_volatile", "fabric.ports")  # the first is a proof


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as opened:
        yield opened


def card(serial: str, slot: int = 0) -> InstalledPart:
    return InstalledPart(gpu(slot, uuid=f"GPU-{serial}", address=f"0000:{slot:02x}:00.0", serial=serial))


def failure(node: str, check: str, part: Part, action: Action = Action.DRAIN, **more: Any) -> RecordedItem:
    found = Finding(part, "1", "0", action, code="errors")
    return RecordedItem(node, check, "failed", "m", action.value, (found,), hint="look", **more)


def run_of(
    at: float,
    parts: Mapping[str, Sequence[InstalledPart]],
    *bad: RecordedItem,
    checks: Collection[str] = CHECKS,
    exit_status: int | None = None,
    passed: str = "passed",
) -> Recorded:
    """Return a run in which the checks pass on all nodes, but for those that are bad."""
    red = {(it.node, it.check) for it in bad}
    items = [RecordedItem(node, it, passed) for node in parts for it in checks if (node, it) not in red]
    status = int(bool(bad)) if exit_status is None else exit_status
    begin = at * DAY
    return Recorded(f"run{at:06.2f}", "prod", False, begin, begin + 60, status, "", (*items, *bad), (), parts=parts)


def items(history: History) -> list[WorkItem]:
    return history.work.items("prod", simulated=False, proved=True)


def states(history: History) -> dict[int, str]:
    return {it.id: it.state for it in items(history)}


def change(history: History, number: int, state: str, at: float, who: str = "anna") -> None:
    history.change_work([number], state, who=who, note="", at=at * DAY)


USUAL = {"a": [card("S1")], "b": [card("S2")]}


def test_an_item_is_closed_by_a_passing_check_alone_and_opens_again_when_it_fails(history: History) -> None:
    bad = failure("a", "gpu.ecc_volatile", nvlink(7, card("S1").part))
    history.add(run_of(1, USUAL))
    history.add(run_of(2, USUAL, bad))
    (it,) = items(history)
    assert (it.node, it.kind, it.serials, it.state) == ("a", "gpu", "gpu S1", "open")
    change(history, 1, "claimed", 2.1)
    change(history, 1, "done", 2.2)
    for at, other in enumerate(("not checked", "not applicable", "waived", "error"), 3):
        history.add(run_of(at, USUAL, passed=other))
        assert states(history) == {1: "done"}, other
    (why,) = history.work.undecided(run_of(6, USUAL, passed="error"), [1, 2])
    assert why == "punch list: item 1 is not proved: gpu.ecc_volatile did not pass on a"
    history.add(run_of(7, USUAL, exit_status=2))  # stopped
    history.add(run_of(8, USUAL, checks=("gpu.count",)))
    assert states(history) == {1: "done"}
    history.add(run_of(9, USUAL, bad))
    assert [(it.state, it.reopened, it.seen) for it in items(history)] == [("open", 1, 9 * DAY)]
    history.add(run_of(10, USUAL))
    assert [(it.state, it.proof) for it in items(history)] == [("proved", "run010.00")]
    assert [*history.work.news(run_of(10, USUAL))] == ["punch list: proved: item 1"]
    with pytest.raises(ConfigError, match=r"item 1: is proved by run run010\.00; a new failure"):
        change(history, 1, "open", 11)
    history.add(run_of(11, USUAL, bad))
    assert states(history) == {1: "proved", 2: "open"}
    history.keep(1)
    assert states(history) == {1: "proved", 2: "open"}
    change(history, 2, "done", 11.5)
    history.add(run_of(12, USUAL, bad, exit_status=None))
    for status in (2, 1):  # the log of a run that was killed, and of all of it
        history.add(run_of(13, USUAL, bad, exit_status=status))
    assert [(it.state, it.reopened) for it in items(history)] == [("proved", 1), ("open", 1)]


def test_a_run_that_began_before_the_work_was_done_reopens_nothing_and_an_old_log_says_nothing(
    history: History,
) -> None:
    bad = failure("a", "gpu.ecc_volatile", card("S1").part)
    history.add(run_of(1, USUAL, bad))
    change(history, 1, "done", 3)
    history.add(run_of(2, USUAL, bad))  # stored after day 3, begun before
    assert states(history) == {1: "done"}
    history.add(run_of(4, USUAL))
    history.add(run_of(3.5, USUAL, bad))
    history.add(run_of(0.5, USUAL))
    assert states(history) == {1: "proved"}


def test_an_item_follows_its_part_and_its_successor_in_the_slot_proves_it(history: History) -> None:
    history.add(run_of(1, USUAL, failure("a", "gpu.ecc_volatile", card("S1").part)))
    change(history, 1, "done", 1.5)
    empty = run_of(2, {"a": [card("S3", 1)]})
    history.add(empty)
    assert states(history) == {1: "done"}, "its slot is empty"
    (why,) = history.work.undecided(empty, [1])
    assert "item 1 is not proved: the run lists no part in gpu 0000:00:00.0 of a" in why
    assert not [*history.work.news(empty)]
    swapped = {"a": [card("S2")], "b": [card("S1")]}
    history.add(run_of(3, swapped, failure("b", "gpu.ecc_volatile", card("S1").part)))
    (it,) = items(history)
    assert (it.node, it.state, it.reopened) == ("b", "open", 1)
    assert it.note == "moved from a (gpu 0000:00:00.0), seen in run run003.00"
    history.add(run_of(4, {"a": [card("S2")], "b": []}))
    assert states(history) == {1: "open"}, "no GPU of b was listed"
    history.add(run_of(5, {"a": [card("S2")], "b": [card("S9")]}))
    assert states(history) == {1: "proved"}


def test_a_finding_that_nodes_share_is_one_item_which_each_of_them_must_pass(history: History) -> None:
    found = Finding(named("setting", "governor"), "powersave", "performance", Action.CONFIGURE, code="differs")
    bad = [RecordedItem(node, "os.drift", "failed", "", "configure", (found,), common=(found,)) for node in "ab"]
    checks = (*CHECKS, "os.drift")
    history.add(run_of(1, USUAL, *bad, checks=checks))
    (it,) = items(history)
    assert (it.node, it.nodes, it.place) == ("", ("a", "b"), "governor")
    history.add(run_of(2, {"a": []}, checks=checks))
    assert [(it.state, it.nodes) for it in items(history)] == [("open", ("b",))]
    history.add(run_of(3, {"b": []}, checks=checks))
    assert states(history) == {1: "proved"}


def test_a_check_of_the_whole_cluster_is_proved_by_a_run_with_all_its_nodes(history: History) -> None:
    whole = failure("", "nccl.whole_bandwidth", named("size", "1"))
    history.add(run_of(1, USUAL, whole))
    good = RecordedItem("", "nccl.whole_bandwidth", "passed")
    few, every = run_of(2, {"a": []}), run_of(3, USUAL)
    history.add(replace(few, items=(*few.items, good)))
    assert states(history) == {1: "open"}
    history.add(replace(every, items=(*every.items, good)))
    assert states(history) == {1: "proved"}


def test_a_check_of_the_cluster_without_nodes_is_tested_without_nodes(history: History, tmp_path: Path) -> None:
    history.add(run_of(1, {}, failure("", "controller.errors", named("service", "slurmctld"))))
    change(history, 1, "done", 1.5)
    history.add(run_of(2, USUAL))
    assert states(history) == {1: "done"}, "the check did not run"
    scope = scope_of(items(history), load_cluster(cluster_file(tmp_path)), ["n01"])
    assert (scope.items, scope.nodes, scope.asked) == ((1,), (), {"controller.errors": [""]})
    assert scope.has("controller.errors", "")
    (row,) = entries(items(history), None, tmp_path)
    assert row.nodes == "(cluster)"
    again = run_of(3, {})
    history.add(replace(again, items=(RecordedItem("", "controller.errors", "passed"),)))
    assert states(history) == {1: "proved"}


def test_a_person_changes_all_items_or_none(history: History) -> None:
    bad = [failure(node, "gpu.ecc_volatile", USUAL[node][0].part) for node in "ab"]
    history.add(run_of(1, USUAL, *bad))
    with pytest.raises(ConfigError, match="item 7: there is none"):
        history.change_work([1, 7], "done", who="anna", note="", at=2 * DAY)
    assert states(history) == {1: "open", 2: "open"}
    change(history, 1, "claimed", 2)
    with pytest.raises(ConfigError, match="item 1: anna has claimed it"):
        change(history, 1, "claimed", 2, who="bob")
    change(history, 1, "done", 2, who="bob")
    with pytest.raises(ConfigError, match="item 1: is done"):
        change(history, 1, "claimed", 2)
    change(history, 1, "open", 2)
    assert states(history) == {1: "open", 2: "open"}


class _Dies:
    """A connection whose process dies at the nth statement."""

    def __init__(self, db: sqlite3.Connection, left: int) -> None:
        self._db, self._left = db, left

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(9)

    def execute(self, *words: Any) -> Any:
        self._count()
        return self._db.execute(*words)

    def executemany(self, *words: Any) -> Any:
        self._count()
        return self._db.executemany(*words)


def test_a_process_that_dies_between_two_statements_leaves_the_run_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    second = run_of(2, USUAL, failure("b", "gpu.ecc_volatile", card("S2").part))
    with contextlib.closing(History(path, create=True)) as history:
        history.add(run_of(1, USUAL, failure("a", "gpu.ecc_volatile", card("S1").part)))
        change(history, 1, "done", 1.5)
    for statement in range(200):
        child = os.fork()
        if not child:
            dying: Any = History(path)
            dying._db = _Dies(dying._db, statement)
            dying.add(second)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with contextlib.closing(History(path)) as history:
            if not status:
                assert states(history) == {1: "proved", 2: "open"}
                assert statement > 20, "it died at many points before"
                return
            assert (states(history), history.has("prod", second.run)) == ({1: "done"}, False)
    raise AssertionError("the run was never stored")


def cluster_file(folder: Path, more: str = "", nodes: str = "n[01-04]") -> Path:
    path = folder / "prod.yaml"
    path.write_text(f"name: prod\nprofile: generic\nnodes: {nodes}\n{more}")
    return path


PLACES = """location: {'n[01-02]': 'rack A10 unit {n}', 'n[03-04]': 'rack A9 unit {n}'}
units: {SU1: 'n[01-02]', SU2: 'n[03-04]'}
punchlist: {trades: {os.mounts: night crew}}
"""


def test_items_are_sorted_by_trade_and_place(history: History, tmp_path: Path) -> None:
    bad = [
        failure("n01", "gpu.ecc_volatile", gpu(0)),
        failure("n03", "fabric.ports", port("mlx5_0", 1), Action.CONFIGURE),
        failure("n02", "fabric.ports", port("mlx5_0", 1)),
        failure("n02", "os.mounts", named("mount", "/x")),
        failure("n01", "storage.locks", Part(), Action.MONITOR),
        failure("n01", "gpu.xid", gpu(0), Action.MONITOR),
        failure("n04", "ibfabric.ports", Part("switch", name="leaf01")),
        failure("n04", "os.drift", named("setting", "x"), Action.CONFIGURE),
    ]
    history.add(run_of(1, {f"n0{it}": [] for it in range(1, 5)}, *bad))
    (tmp_path / "plan.csv").write_text("A-Node,A-Port,Z-Node,Z-Port\nn03,mlx5_0/P1,leaf01,7\n")
    more = f"{PLACES}ibfabric: {{plan: [plan.csv]}}\n"
    case = tmp_path / "run001.00" / "evidence" / "n01"
    case.mkdir(parents=True)
    (case / "GPU-0.tar.gz").touch()
    found = entries(items(history), load_cluster(cluster_file(tmp_path, more)), tmp_path)
    assert [(it.trade, it.place, it.nodes) for it in found] == [
        ("cabling", "rack A9 unit 1, n03 mlx5_0/P1 - leaf01 7", "n03"),
        ("cabling", "rack A10 unit 2", "n02"),
        ("server vendor", "rack A10 unit 1", "n01"),
        ("switch", "rack A9 unit 2", "n04"),
        ("storage", "rack A10 unit 1", "n01"),
        ("software", "rack A9 unit 2", "n04"),
        ("us", "rack A10 unit 1", "n01"),
        ("night crew", "rack A10 unit 2", "n02"),
    ]
    assert found[2].evidence == str(case)
    assert sorted(["b", "", "a10", "a9"], key=natural) == ["a9", "a10", "b", ""]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("location: {'n[01-09]': rack}", "prod.yaml:4: location.n[01-09]: the cluster has no node n[05-09]"),
        ("units:\n  SU1: n09", "prod.yaml:5: units.SU1: the cluster has no node n09"),
        ("location: {'n01': 'rack {rack}'}", "prod.yaml:4: location.n01: only {n} can be replaced"),
    ],
)
def test_a_wrong_place_or_unit_is_refused_with_its_line(tmp_path: Path, more: str, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_cluster(cluster_file(tmp_path, more))
    assert where in str(error.value)


def test_a_run_of_the_list_tests_what_is_done_with_two_healthy_neighbours(history: History, tmp_path: Path) -> None:
    names = [f"n{it:02}" for it in range(1, 9)]
    bad = [failure(node, "gpu.ecc_volatile", gpu(0)) for node in ("n03", "n04", "n07")]
    history.add(run_of(1, dict.fromkeys(names, ()), *bad))
    cluster = load_cluster(cluster_file(tmp_path, nodes="n[01-08]"))
    assert scope_of(items(history), cluster, names).items == ()
    change(history, 1, "done", 2)
    scope = scope_of(items(history), cluster, set(names) - {"n02"})
    assert (scope.items, scope.nodes, scope.neighbours) == ((1,), ("n03", "n01", "n05"), ("n01", "n05"))
    for node in ("n03", "n01", ""):
        assert [scope.has(it, node) for it in ("gpu.ecc_volatile", "gpu.count", "parts.inventory", "os.drift")] == [
            True, True, True, False,
        ]  # fmt: skip
    assert not scope.has("gpu.count", "n04")
    gone = scope_of(items(history), load_cluster(cluster_file(tmp_path, nodes="n[05-08]")), names)
    assert (gone.items, gone.gone, gone.checks) == ((), (1,), {})
    whole = failure("", "nccl.whole_bandwidth", named("size", "1"))
    history.add(run_of(3, dict.fromkeys(names, ()), whole, checks=("os.drift",)))
    change(history, 4, "done", 4)
    every = scope_of(items(history), cluster, names)
    assert (every.items, set(every.nodes), every.neighbours) == ((1, 4), set(names), ())
    change(history, 4, "open", 4)
    few = scope_of(items(history), cluster, names, exclude=("n02", "n05"))
    assert (few.items, few.neighbours) == ((1,), ("n01", "n06"))
    assert scope_of(items(history), cluster, names, exclude=("n03",)).gone == (1,)


def gpucluster(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["punchlist", *words]) == 0
    return capsys.readouterr().out


def test_the_command_lists_claims_and_hands_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCLUSTER_HISTORY", str(tmp_path / "h.sqlite"))
    cluster = f"--cluster={cluster_file(tmp_path, PLACES)}"
    nodes = {f"n0{it}": [card(f"S{it}1")] for it in range(1, 5)}
    hostile = '=HYPERLINK("x")<b>\x1b[31m'
    plain_failure = RecordedItem("n01", "site.fit", "failed", hostile)
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as history:
        history.add(run_of(1, nodes, failure("n01", "gpu.ecc_volatile", nodes["n01"][0].part), plain_failure))
    assert "item 1: claimed by anna" in gpucluster(capsys, "claim", "1", "--by", "anna", cluster)
    told = gpucluster(capsys, "done", "1", "2", "--by=@anna", "--note", "password=hunter2 \x1b[0m+1")
    assert "hunter2" not in told
    listed = gpucluster(capsys, cluster, "--unit", "SU1")
    assert "rack A10 unit 1; n01; GPU 0000:00:00.0; gpu S11" in listed
    assert "hunter2" not in listed
    assert "\x1b" not in listed
    assert listed.splitlines()[-1].startswith("unit SU1 (n[01-02]): not handed over: 2 items not proved; ")
    page = gpucluster(capsys, cluster, "--format=html")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "\x1b" not in page
    sheet = gpucluster(capsys, cluster, "--format=csv")
    assert all(not cell.startswith(tuple("=+-@")) for row in csv.reader(io.StringIO(sheet)) for cell in row)
    proofs = {*CHECKS, *proofs_of("gpu.count"), *proofs_of("fabric.ports"), "site.fit"}
    with contextlib.closing(History(tmp_path / "h.sqlite")) as history:
        history.add(run_of(2, {"n01": nodes["n01"]}, checks=proofs))
    last = gpucluster(capsys, cluster, "--unit", "SU1").splitlines()[-1]
    lacking = "; ".join(f"{it} has not proved n02" for it in ("fabric", "gpu", "parts", "site"))
    assert last == f"unit SU1 (n[01-02]): not handed over: {lacking}"
    with contextlib.closing(History(tmp_path / "h.sqlite")) as history:
        history.add(run_of(3, nodes, checks=proofs))
    last = gpucluster(capsys, cluster, "--unit", "SU1").splitlines()[-1]
    assert last == (
        "unit SU1 (n[01-02]): handed over: the list is empty, and each node is proved by fabric, gpu, parts, site"
    )


def test_a_technician_who_is_wrong_in_a_tenth_ends_with_a_fleet_that_fits(history: History, tmp_path: Path) -> None:
    """64 nodes of 8 GPUs arrive in 4 waves, with 30 faults. A run finds the faults that are there; a pass is the truth."""
    seed = random.Random(50)
    names = [f"n{it:02}" for it in range(1, 65)]
    cluster = load_cluster(cluster_file(tmp_path, nodes="n[01-64]"))
    fleet = {node: [card(f"S{node}{slot}7", slot) for slot in range(8)] for node in names}
    faults = {(node, "gpu.ecc_volatile"): seed.randrange(8) for node in seed.sample(names, 22)}
    faults |= {(node, "fabric.ports"): 0 for node in seed.sample(names, 8)}
    found, spent, again, day, spares = set[tuple[str, str]](), 0, 0, 1.0, 0

    def test(nodes: Collection[str], checks: Mapping[str, Collection[str]]) -> int:
        """Store a run of these nodes; return how many items it has."""
        bad = []
        for (node, check), slot in faults.items():
            if node in nodes and check in checks[node]:
                found.add((node, check))
                part = fleet[node][slot].part if check.startswith("gpu") else port("mlx5_0", 1)
                bad.append(failure(node, check, part))
        run = run_of(day, {node: fleet[node] for node in nodes}, *bad, checks=())
        good = [
            RecordedItem(node, check, "passed")
            for node in nodes
            for check in checks[node]
            if (node, check) not in faults
        ]
        history.add(replace(run, items=(*run.items, *good)))
        return len(run.items) + len(good)

    for wave in range(4):
        arrived = names[: 16 * (wave + 1)]
        test(arrived[16 * wave :], dict.fromkeys(arrived, CHECKS))
        while waiting := [it for it in history.work.items("prod", simulated=False) if it.state == "open"]:
            day += 1
            for it in waiting:
                change(history, it.id, "claimed", day)
                if seed.random() >= 0.1:  # else the wrong part is exchanged, or none
                    slot = faults.pop((it.node, it.check))
                    if it.kind == "gpu" and seed.random() < 0.5:  # the others are cured by a reset
                        spares += 1
                        fleet[it.node][slot] = card(f"SPARE{spares}7", slot)
                change(history, it.id, "done", day)
            day += 1
            known = history.work.items("prod", simulated=False)
            scope = scope_of(known, cluster, arrived)
            of_node = {node: [it for it in CHECKS if scope.has(it, node)] for node in scope.nodes}
            spent += test(scope.nodes, of_node)
            again += len(arrived) * len(CHECKS)
            for it in items(history):
                assert (it.state == "proved") <= ((it.node, it.check) not in faults), "closed without a pass"
        day += 1
    assert not faults
    assert {(it.node, it.check) for it in items(history)} == found
    assert len(found) == 30
    assert set(states(history).values()) == {"proved"}
    assert sum(it.reopened for it in items(history)) > 0, "the technician was wrong"
    assert spent <= again / 3
