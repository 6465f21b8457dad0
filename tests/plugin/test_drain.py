"""The end of a run with --resume-passing: what people are told is what Slurm shows, and what failed is no success."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from drain.test_executor import Client, Log, World, drained, grounds
from drain_helpers import summed
from report_helpers import a_run as events_of
from report_helpers import failing, passing

from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.drain import Budget, policy
from pytest_gpucluster.plugin.controller import Controller, SuiteJobs
from pytest_gpucluster.plugin.drain import (
    DrainOptions,
    DrainPlugin,
    edited_reasons,
    is_repeatable,
    little_patience,
    retest_reasons,
)
from pytest_gpucluster.report.events import logs_below
from pytest_gpucluster.report.history import History
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.run_snapshot import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = tuple(f"gpu{number:02}" for number in range(1, 11))


def reason_of(node: str, run: str = "old") -> str:
    return summed(f"gpucluster:gpu.count 7<8 GPUs run={run}", node)


class Retest:
    """A retest of nodes in a Slurm in memory: its end drains them again, but for those that are `stuck`."""

    def __init__(self, world: World, *nodes: str) -> None:
        self.world, self.open, self.kept = world, list(nodes), list[str]()
        self.ended: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.left: dict[str, str] = {}
        self.stuck: tuple[str, ...] = ()
        self.gone = False
        self.ends = 0

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(node for node in self.open if node not in self.kept)

    def keep(self, node: str) -> bool:
        if self.gone:
            self.end()
            return False
        self.kept.append(node)
        return True

    def end(self) -> list[str]:
        self.ends += 1
        problems = []
        for node in self.open:
            if node in self.kept:
                self.ended[node] = "resumed"
            elif node in self.stuck:
                self.ended[node] = "failed"
                problems.append(f"{node}: could not be drained again")
            elif policy.why_not_drain_again(self.world.nodes[node], reason_of(node)):
                self.ended[node] = "left"
                self.left[node] = self.world.nodes[node].why_unavailable()
            else:
                self.world.put(node, "DRAIN", reason_of(node))
                self.ended[node] = "drained"
        self.open = []
        return problems


class EventsOfARun(Log):
    run, failed, path, model = "new", "", Path("reports/events.jsonl"), Run()


@pytest.fixture
def a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., DrainPlugin]:
    """Return a maker of the plugin in a run of ten nodes, of which gpu02 and gpu03 are on trial."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("pytest_gpucluster.cluster.signals.ignore", lambda: None)

    def make(**options: Any) -> DrainPlugin:
        world = World({name: NodeInfo(name, "ALLOCATED", partitions=("batch",)) for name in ALL})
        monkeypatch.setattr("pytest_gpucluster.plugin.drain.little_patience", lambda slurm: slurm.client)
        session: Any = object.__new__(Controller)
        partitions = {"batch": SimpleNamespace(default=True)}
        session.slurm = SimpleNamespace(
            partitions=lambda: partitions, config=dict, world=world, client=Client(world)
        )
        session.cluster = SimpleNamespace(
            group_of=lambda _node: SimpleNamespace(partition=None),
            slurm=SimpleNamespace(partition=None, bin=None, conf=None, reservation="fix"),
        )
        session.plan = SimpleNamespace(selected=ALL)
        session.problems = {}
        session.problem = session.problems.get
        session.messages = []
        session.edited = {}
        session.own_drains = {node: reason_of(node) for node in ("gpu02", "gpu03")}
        session.retest = Retest(world, "gpu02", "gpu03")
        usual = {"mode": "apply", "retries": 1, "budget": Budget.parse("10%"), "least": Action.DRAIN}
        log: Any = EventsOfARun()
        config: Any = SimpleNamespace()  # what it needs of a config
        made = DrainPlugin(config, session, log, DrainOptions(**{**usual, "resume": True, **options}))
        made._ends["gpu02"]["gpu.count"] = ["passed"]
        made._ends["gpu03"]["gpu.count"] = ["failed"]
        return made

    return make


def world_of(run: DrainPlugin) -> World:
    slurm: Any = run.session.slurm
    found: World = slurm.world
    return found


def retest_of(run: DrainPlugin) -> Retest:
    session: Any = run.session
    found: Retest = session.retest
    return found


def act(run: DrainPlugin) -> Any:
    log: Any = run.log
    run._act(log)
    return log


def finish(run: DrainPlugin, status: int = 0) -> int:
    """End the session, and return the exit status."""
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode(status))
    run.pytest_sessionfinish(session)
    return int(session.exitstatus)


def test_what_is_printed_of_a_trial_is_how_it_has_ended(a_run: Any) -> None:
    run = a_run()
    log = act(run)
    assert run.lines == [
        "gpu02 is resumed: it passed all checks that drained it",
        "gpu03 is drained again: gpu.count ended as failed",
    ]
    assert drained(world_of(run)) == ["gpu03"]
    assert [(event["node"], event["decision"], event["why"]) for event in log] == [
        ("gpu02", "resume", "passed every check that drained it"),
        ("gpu03", "keep drained", "gpu.count ended as failed"),
    ]
    assert (run.session.messages, finish(run)) == ([], 0)
    assert len(run.lines) == 2


@pytest.mark.parametrize(("sick", "gone"), [(ALL, []), (ALL[:1], ["gpu01"])], ids=["alike", "one"])
def test_what_all_nodes_fail_alike_drains_none_and_spends_no_budget(
    a_run: Any, sick: tuple[str, ...], gone: list[str]
) -> None:
    run = a_run(resume=False, least=Action.RESET_GPU)
    ends = [failing(node) if node in sick else passing(node, check="gpu.nvlink_state") for node in ALL]
    events = events_of(ends, nodes=ALL, finish=None)
    events[1]["places"] = [{"group": "gpu[01-10]", "nodes": list(ALL)}]
    run.log.model = Run()
    for event in events:
        run.log.model.take(event)
    run._confirmed = {event["nodeid"]: "" for event in ends}
    loop = run.pytest_runtestloop(SimpleNamespace(items=[]))
    next(loop)
    with pytest.raises(StopIteration):
        loop.send(True)
    assert drained(world_of(run)) == gone
    assert [it["event"] for it in run.log if it["event"] in ("drain_confirm", "drain_over_budget")] == (
        ["drain_confirm"] if gone else []
    )


def test_a_node_that_could_not_be_drained_again_is_an_error_and_no_success(a_run: Any) -> None:
    run = a_run()
    retest_of(run).stuck = ("gpu03",)
    act(run)
    assert run.lines == ["gpu02 is resumed: it passed all checks that drained it"]
    assert run.session.messages == ["drain: gpu03: could not be drained again"]
    assert (finish(run), finish(run, 2)) == (1, 2)


def test_a_node_whose_state_cannot_be_read_is_not_kept(a_run: Any) -> None:
    run = a_run()
    world_of(run).nodes.pop("gpu02")
    retest_of(run).open.remove("gpu03")
    run.session.own_drains.pop("gpu03")
    retest_of(run).stuck = ("gpu02",)
    log = act(run)
    assert log[0]["why"] == "its state cannot be read"
    assert retest_of(run).kept == []


def test_a_run_that_was_stopped_early_ends_its_trials_before_its_reports(a_run: Any) -> None:
    run = a_run()
    run._stopped_early(KeyboardInterrupt())
    retest_of(run).stuck = ("gpu02",)
    assert finish(run, 2) == 2
    assert run.lines == [
        "the run was stopped early: nothing is drained or resumed",
        "gpu03 is drained again: the run came to no decision about it",
    ]
    assert run.session.messages == ["drain: gpu02: could not be drained again"]


def test_trials_end_also_where_the_acts_cannot_be_done(a_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(_path: object) -> contextlib.AbstractContextManager[None]:
        raise GpuClusterError("another run has been draining for 60 s")

    monkeypatch.setattr("pytest_gpucluster.drain.locked", held)
    run = a_run()
    act(run)
    assert drained(world_of(run)) == []
    assert finish(run) == 1
    assert drained(world_of(run)) == ["gpu02", "gpu03"]
    assert run.session.messages == ["drain: another run has been draining for 60 s"]


def test_without_a_lock_no_node_is_drained_or_resumed_and_the_terminal_reports_it(
    a_run: Any, tmp_path: Path
) -> None:
    run = a_run(budget=Budget(5))
    run._all_grounds = lambda _write: grounds("gpu05")
    (tmp_path / "file").touch()
    run._lock = path = tmp_path / "file" / "x.lock"
    log = act(run)
    (message,) = run.session.messages
    assert message.startswith(f"drain: {path}: cannot be locked (")
    assert "no node is changed" in message
    assert log[-1] == {"event": "drain_unlocked", "why": message.removeprefix("drain: ")}
    assert (world_of(run).ran, run.lines, finish(run)) == ([], ANY, 1)
    assert drained(world_of(run)) == ["gpu02", "gpu03"]  # the end of their trial needs no lock


def test_a_dry_run_needs_no_lock_and_reports_where_it_would_get_none(a_run: Any, tmp_path: Path) -> None:
    run = a_run(mode="dry-run", budget=Budget(5))
    run._all_grounds = lambda _write: grounds("gpu05")
    (tmp_path / "file").touch()
    run._lock = path = tmp_path / "file" / "x.lock"
    run.session.retest = None  # a dry run undrains nothing
    act(run)
    assert run.lines[0].startswith(f"drain: {path}: cannot be locked (")
    assert "would be drained: gpu05" in run.lines
    assert (run.session.messages, finish(run)) == ([], 0)
    assert world_of(run).ran == []


def killed(run: Any) -> None:
    retest_of(run).end()


def drained_by_itself(run: Any) -> None:
    retest_of(run).gone = True
    world_of(run).put("gpu02", "DRAIN", reason_of("gpu02"))


def not_undrained(run: Any) -> None:
    retest_of(run).refused["gpu03"] = "it could not be undrained"


def without_a_trial(run: Any) -> None:
    run.session.retest = None
    for node in ("gpu02", "gpu03"):
        world_of(run).put(node, "DRAIN", reason_of(node))


def edited(run: Any) -> None:
    run.session.edited = {"gpu07": "its reason is not as gpucluster wrote it"}


@pytest.mark.parametrize(
    ("prepare", "lines"),
    [
        (killed, ["gpu02 is resumed: it passed gpu.count", "gpu03 stays drained: gpu.count ended as failed"]),
        (drained_by_itself, ["gpu02 is resumed: it passed gpu.count"]),
        (not_undrained, ["gpu03 stays drained: gpu.count ended as failed"]),
        (without_a_trial, ["gpu02 is resumed: it passed gpu.count"]),
        (edited, ["gpu07 stays drained: its reason is not as gpucluster wrote it"]),
    ],
)
def test_a_node_is_judged_by_its_state_now(
    a_run: Any, prepare: Callable[[Any], None], lines: list[str]
) -> None:
    run = a_run()
    prepare(run)
    act(run)
    assert [line for line in lines if line not in run.lines] == []
    assert drained(world_of(run)) == ["gpu03"]
    assert finish(run) == 0


@pytest.mark.parametrize(
    ("state", "flags", "reason"),
    [("DOWN", (), "keep out"), ("IDLE", ("FAIL",), "keep out"), ("ALLOCATED", ("DRAIN",), "bad cable")],
)
def test_a_node_that_another_user_took_out_of_service_during_its_test_is_left_so(
    a_run: Any, state: str, flags: tuple[str, ...], reason: str
) -> None:
    run = a_run()
    world_of(run).nodes["gpu02"] = theirs = NodeInfo("gpu02", state, frozenset(flags), reason=reason)
    act(run)
    assert retest_of(run).kept == []
    assert world_of(run).nodes["gpu02"] == theirs
    assert run.lines[0].startswith("gpu02 is left as another user set it during its trial: ")
    assert reason in run.lines[0]
    assert finish(run) == 0


def test_the_budget_counts_what_goes_back_to_drained(a_run: Any) -> None:
    """One of ten nodes may be drained, and gpu03 is, once its trial is over: it is first to go back."""
    run = a_run()
    run._all_grounds = lambda _write: grounds("gpu05")
    act(run)
    assert drained(world_of(run)) == ["gpu03"]
    assert any("1 more node failed than drain.max=10% allows" in message for message in run.session.messages)


def test_a_node_on_trial_that_fails_again_keeps_the_reason_that_it_had(a_run: Any) -> None:
    run = a_run(budget=Budget(5))
    run._all_grounds = lambda _write: grounds("gpu03", "gpu05", "gpu06")
    run.session.problems["gpu06"] = SimpleNamespace(text="it was lost")
    act(run)
    assert world_of(run).nodes["gpu03"].reason == reason_of("gpu03")
    assert drained(world_of(run)) == ["gpu03", "gpu05"]
    assert run.lines[2:] == [
        "drained: gpu05",
        "not drained: gpu03 (gpu.count): drained by gpucluster already, in run old",
        "not drained: gpu06 (gpu.count): it could not be tested to the end: it was lost",
    ]


def test_nodes_left_drained_by_a_reservation_test_are_reported_last() -> None:
    """Where the run ends before its session does, as when Slurm gives no nodes."""
    world = World({"gpu02": NodeInfo("gpu02", "IDLE")})
    session: Any = object.__new__(Controller)
    session.__dict__.update(
        lost=dict, retest=Retest(world, "gpu02"), left_behind=["job 7"], allocations=(), channel=None,
        _releasing=None, _server=None, _leaving=None, _ended=None, jobs=SuiteJobs(None, None),  # type: ignore[arg-type] # no suite submits
    )  # fmt: skip
    session.retest.stuck = ("gpu02",)
    session.release_nodes()
    assert session.left_behind == ["job 7", "gpu02: could not be drained again"]


# --- whose a reason is


def inventory(**reasons: str) -> dict[str, NodeInfo]:
    return {
        node: NodeInfo(node, "IDLE", frozenset({"DRAIN"} if reason else ()), reason=reason)
        for node, reason in reasons.items()
    }


def kept_run(run: str) -> Recorded:
    return Recorded(
        run, "prod", simulated=False, started=1.0, finished=2.0, exit=0, arguments="", items=(), metrics=()
    )


def test_edited_reasons_are_found(tmp_path: Path) -> None:
    edited = reason_of("gpu02").replace("7<8", "7<8 bob: keep out")
    nodes = inventory(gpu01=reason_of("gpu01"), gpu02=edited, gpu03="bad cable", gpu04="")
    assert edited_reasons(nodes, "prod", None, tmp_path) == {
        "gpu02": f'its reason is not as gpucluster wrote it for this node: "{edited}"'
    }


def test_a_run_in_neither_history_nor_event_log_has_drained_no_node(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with contextlib.closing(History(path, create=True)) as history:
        history.add(kept_run("20261121T020000-1"))
    folder = tmp_path / "reports" / "monday"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text('{"event": "start", "run": "20261121T020000-3"}\n')
    nodes = inventory(
        **{f"gpu0{n}": reason_of(f"gpu0{n}", f"20261121T020000-{n}") for n in (1, 2, 3)},
        gpu04=reason_of("gpu04", "20261121T020000"),  # the beginning of one that is there
    )

    def unknown(n: str) -> str:
        return (
            f"its reason names run {n}, which is neither in the history {path} nor below {tmp_path / 'reports'}: "
            "gpucluster history --import takes that run's events.jsonl"
        )

    assert edited_reasons(nodes, "prod", path, tmp_path / "reports") == {
        "gpu02": unknown("20261121T020000-2"),
        "gpu04": unknown("20261121T020000"),
    }
    assert set(edited_reasons(nodes, "other", path, tmp_path / "reports")) == {"gpu01", "gpu02", "gpu04"}
    assert edited_reasons(nodes, "prod", None, tmp_path) == {}
    assert edited_reasons(nodes, "prod", tmp_path / "not.yet", tmp_path) == {}
    assert not (tmp_path / "not.yet").exists()


def test_logs_are_found_by_their_runs(tmp_path: Path) -> None:
    for name, text in (("a", '{"run": "one"}\n{"run": "other"}'), ("b", ""), ("c", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text(text)
    (tmp_path / "d" / "events.jsonl").mkdir(parents=True)
    assert logs_below([tmp_path])["one"] == str(tmp_path / "a" / "events.jsonl")
    assert set(logs_below([tmp_path])) == {"one", ""}
    assert logs_below([tmp_path / "none"]) == {}


@pytest.mark.parametrize(
    ("resume", "mode", "reserved", "chosen"),
    [
        (True, "off", {"gpu01", "gpu02"}, ["gpu01"]),
        (True, "apply", {"gpu01", "gpu02"}, ["gpu01"]),
        (True, "off", {"gpu02", "gpu03"}, ["gpu03"]),
        (True, "off", None, []),
        (True, "dry-run", {"gpu01"}, []),
        (False, "apply", {"gpu01"}, []),
    ],
)
def test_only_what_is_ours_and_reserved_goes_on_trial(
    resume: bool,  # a table
    mode: str,
    reserved: set[str] | None,
    chosen: list[str],
) -> None:
    nodes = inventory(**{node: reason_of(node) for node in ("gpu01", "gpu02", "gpu03")}, gpu04="bad cable")
    options = DrainOptions(mode=mode, retries=1, budget=Budget(1), least=Action.DRAIN, resume=resume)
    found = retest_reasons(options, nodes, frozenset(reserved) if reserved else None, {"gpu02": "edited"})
    assert found == {node: reason_of(node) for node in chosen}


@pytest.mark.parametrize(
    ("fixtures", "repeatable"),
    [(["node", "expect"], True), (["node", "jobs"], False), (["submitted"], False), ([], True)],
)
def test_items_on_jobs_before_the_allocation_are_not_repeated(
    fixtures: list[str], *, repeatable: bool
) -> None:
    item: Any = SimpleNamespace(fixturenames=[f"gpucluster_{name}" for name in fixtures])
    assert is_repeatable(item) is repeatable


# --- repetitions


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        (("failed", "failed", "failed"), ""),
        (("passed",), "fresh attempt 1 ended as passed"),
        (("failed", "passed"), "fresh attempt 2 ended as passed"),
        (("failed", "failed", "error"), "fresh attempt 3 ended as error"),
    ],
)
def test_a_node_is_drained_only_if_every_repetition_fails(
    a_run: Any, monkeypatch: pytest.MonkeyPatch, ends: tuple[str, ...], why: str
) -> None:
    run, asked = a_run(retries=3), list[int]()
    item: Any = SimpleNamespace(nodeid="x", fixturenames=[])
    run._items = {"x": item}
    run._deciding = lambda _result: True

    def again(items: list[Any], _session: object, attempt: int) -> dict[str, tuple[str, dict[str, Any]]]:
        asked.append(attempt)
        return {one.nodeid: (ends[attempt - 1], {}) for one in items}

    monkeypatch.setattr("pytest_gpucluster.plugin.drain.run_again", again)
    run._confirm()
    assert run._confirmed == {"x": why}
    assert asked == list(range(1, len(ends) + 1))


def test_one_command_may_take_20_seconds() -> None:
    transport: Any = None
    patient = little_patience(Slurm(transport, timeout=300.0))
    assert (patient.timeout, patient.retry_for) == (20.0, 5.0)
