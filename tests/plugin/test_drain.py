"""The end of a run with --resume-passing: what people are told is what Slurm shows, and what failed is no success."""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from drain.test_executor import Client, Log, World, drained
from drain_helpers import summed
from plugin_helpers import FakeConfig, FakeItem, PytestRun, a_cluster, a_session
from report_helpers import a_run as events_of
from report_helpers import failing, passing, result

from pytest_gpucluster.cluster.plan import Problem, ProblemKind
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo
from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, Verdict, conclude
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.drain import Budget, policy
from pytest_gpucluster.plugin.drain import (
    CONFIRMED,
    DrainOptions,
    DrainPlugin,
    edited_reasons,
    little_patience,
    retest_reasons,
)
from pytest_gpucluster.report.history.run_snapshot import Recorded
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import logs_below, read_run
from pytest_gpucluster.run.facts import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpucluster.report.run_model import Run

ALL = tuple(f"gpu{number:02}" for number in range(1, 11))
TRIALS = (passing("gpu02", check="gpu.count"), result("gpu03", "failed", check="gpu.count"))


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


class Memory(Client):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.partitions = {"batch": PartitionInfo("batch", "UP", default=True)}.copy
        self.config = dict


class EventsOfARun(Log):
    run, failed, path = "new", "", Path("reports/events.jsonl")

    def __init__(self, model: Run) -> None:
        super().__init__()
        self.model = model


class Ended:
    """A run of ten nodes after its last test, of which gpu02 and gpu03 are on trial: gpu02 has passed, gpu03 has not."""

    def __init__(self, results: Iterable[dict[str, Any]] = (), *, problems: Any = None, **options: Any) -> None:
        self.world = World({name: NodeInfo(name, "ALLOCATED", partitions=("batch",)) for name in ALL})
        cluster = a_cluster(slurm=SlurmConfig(reservation="fix"))
        self.session = a_session(cluster, problems=problems, slurm=Memory(self.world))
        self.session.own_drains = {node: reason_of(node) for node in ("gpu02", "gpu03")}
        self.retest = Retest(self.world, "gpu02", "gpu03")
        made: Any = self
        self.session.retest = made.retest
        results = [*TRIALS, *results]
        events = events_of(results, nodes=ALL, finish=None)
        events[1]["places"] = [{"group": "gpu[01-10]", "nodes": list(ALL)}]
        log: Any = EventsOfARun(read_run(events))
        self.log: EventsOfARun = log
        usual = {"mode": "apply", "retries": 1, "budget": Budget(5), "least": Action.DRAIN, "resume": True}
        config: Any = FakeConfig(Namespace(cluster="prod", profile=None, set=[]))
        self.plugin = DrainPlugin(config, self.session, log, DrainOptions(**{**usual, **options}))
        confirmed = json.dumps({one["nodeid"]: "" for one in results})
        node: Any = SimpleNamespace(workeroutput={CONFIRMED: confirmed})
        self.plugin.pytest_testnodedown(node, None)

    def act(self, error: BaseException | None = None, items: Iterable[Any] = ()) -> None:
        run: Any = PytestRun(items=[*items])
        loop = self.plugin.pytest_runtestloop(run)
        next(loop)
        if error is not None:
            with pytest.raises(type(error)):
                loop.throw(error)
            return
        with pytest.raises(StopIteration):
            loop.send(True)

    def finish(self, status: int = 0) -> int:
        run: Any = PytestRun(exitstatus=pytest.ExitCode(status))
        self.plugin.pytest_sessionfinish(run)
        return int(run.exitstatus)

    @property
    def lines(self) -> list[str]:
        return self.plugin.lines

    @property
    def drained(self) -> list[str]:
        return drained(self.world)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Ended]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("pytest_gpucluster.cluster.signals.ignore", lambda: None)
    monkeypatch.setattr("pytest_gpucluster.plugin.drain.little_patience", lambda slurm: slurm)
    return Ended


def test_what_is_printed_of_a_trial_is_how_it_has_ended(ended: type[Ended]) -> None:
    run = ended()
    run.act()
    assert run.lines == [
        "gpu02 is resumed: it passed all checks that drained it",
        "gpu03 is drained again: gpu.count ended as failed",
    ]
    assert run.drained == ["gpu03"]
    assert [(event["node"], event["decision"], event["why"]) for event in run.log] == [
        ("gpu02", "resume", "passed every check that drained it"),
        ("gpu03", "keep drained", "gpu.count ended as failed"),
    ]
    assert (run.session.messages, run.finish()) == ([], 0)
    assert len(run.lines) == 2


@pytest.mark.parametrize(("sick", "gone"), [(ALL, []), (ALL[:1], ["gpu01"])], ids=["alike", "one"])
def test_what_all_fail_alike_drains_none(ended: type[Ended], sick: tuple[str, ...], gone: list[str]) -> None:
    results = [failing(node) if node in sick else passing(node) for node in ALL]
    run = ended(results, resume=False, least=Action.RESET_GPU, budget=Budget.parse("10%"))
    run.act()
    assert run.drained == gone
    kinds = [kind for kind in run.log.kinds if kind in ("drain_confirm", "drain_over_budget")]
    assert kinds == ["drain_confirm"] * len(gone)


def test_a_node_that_could_not_be_drained_again_is_an_error_and_no_success(ended: type[Ended]) -> None:
    run = ended()
    run.retest.stuck = ("gpu03",)
    run.act()
    assert run.lines == ["gpu02 is resumed: it passed all checks that drained it"]
    assert run.session.messages == ["drain: gpu03: could not be drained again"]
    assert (run.finish(), run.finish(2)) == (1, 2)


def test_a_node_whose_state_cannot_be_read_is_not_kept(ended: type[Ended]) -> None:
    run = ended()
    run.world.nodes.pop("gpu02")
    run.retest.open.remove("gpu03")
    run.session.own_drains.pop("gpu03")
    run.retest.stuck = ("gpu02",)
    run.act()
    assert run.log[0]["why"] == "its state cannot be read"
    assert run.retest.kept == []


def test_a_run_that_was_stopped_early_ends_its_trials_before_its_reports(ended: type[Ended]) -> None:
    run = ended([failing("gpu05")])
    run.act(KeyboardInterrupt())
    run.retest.stuck = ("gpu02",)
    assert run.finish(2) == 2
    assert run.lines == [
        "the run was stopped early: nothing is drained or resumed",
        "gpu03 is drained again: the run came to no decision about it",
    ]
    assert run.session.messages == ["drain: gpu02: could not be drained again"]
    assert run.log.kinds == ["drain_skipped"]


def test_without_a_lock_no_node_is_drained_or_resumed_and_a_dry_run_reports_it(
    ended: type[Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = ended([failing("gpu05")])
    run.act()
    assert run.drained == []
    (message,) = run.session.messages
    assert message.startswith(f"drain: {tmp_path / 'file'}")
    assert "cannot be locked" in message
    assert run.log[-1] == {"event": "drain_unlocked", "why": message.removeprefix("drain: ")}
    assert (run.world.ran, run.finish()) == ([], 1)
    assert run.drained == ["gpu02", "gpu03"]  # the end of their trial needs no lock
    dry = ended([failing("gpu05")], mode="dry-run")
    dry.session.retest = None  # a dry run undrains nothing
    dry.act()
    assert "cannot be locked" in dry.lines[0]
    assert "would be drained: gpu05" in dry.lines
    assert (dry.session.messages, dry.finish(), dry.world.ran) == ([], 0, [])


def drained_by_itself(run: Ended) -> None:
    run.retest.gone = True
    run.world.put("gpu02", "DRAIN", reason_of("gpu02"))


def without_a_trial(run: Ended) -> None:
    run.session.retest = None
    for node in ("gpu02", "gpu03"):
        run.world.put(node, "DRAIN", reason_of(node))


RESUMED, STAYS = "gpu02 is resumed: it passed gpu.count", "gpu03 stays drained: gpu.count ended as failed"
EDITED = "its reason is not as gpucluster wrote it"


@pytest.mark.parametrize(
    ("prepare", "lines"),
    [
        (lambda run: run.retest.end(), [RESUMED, STAYS]),  # the trial was killed
        (drained_by_itself, [RESUMED]),
        (lambda run: run.retest.refused.update(gpu03="it could not be undrained"), [STAYS]),
        (without_a_trial, [RESUMED]),
        (lambda run: run.session.edited.update(gpu07=EDITED), [f"gpu07 stays drained: {EDITED}"]),
    ],
)
def test_nodes_state_decides(ended: type[Ended], prepare: Callable[[Ended], None], lines: list[str]) -> None:
    run = ended()
    prepare(run)
    run.act()
    assert [line for line in lines if line not in run.lines] == []
    assert run.drained == ["gpu03"]
    assert run.finish() == 0


@pytest.mark.parametrize(
    ("state", "flags", "reason"),
    [("DOWN", (), "keep out"), ("IDLE", ("FAIL",), "keep out"), ("ALLOCATED", ("DRAIN",), "bad cable")],
)
def test_a_node_that_another_user_took_out_of_service_during_its_test_is_left_so(
    ended: type[Ended], state: str, flags: tuple[str, ...], reason: str
) -> None:
    run = ended()
    run.world.nodes["gpu02"] = theirs = NodeInfo("gpu02", state, frozenset(flags), reason=reason)
    run.act()
    assert run.retest.kept == []
    assert run.world.nodes["gpu02"] == theirs
    assert run.lines[0].startswith("gpu02 is left as another user set it during its trial: ")
    assert reason in run.lines[0]
    assert run.finish() == 0


def test_the_budget_counts_what_goes_back_to_drained(ended: type[Ended]) -> None:
    """One of ten nodes may be drained, and gpu03 is, once its trial is over: it is first to go back."""
    run = ended([failing("gpu05")], budget=Budget.parse("10%"))
    run.act()
    assert run.drained == ["gpu03"]
    assert any("1 more node failed than drain.max=10% allows" in message for message in run.session.messages)
    assert [event["nodes"] for event in run.log if event["event"] == "drain_over_budget"] == [["gpu05"]]


def test_a_node_on_trial_that_fails_again_keeps_the_reason_that_it_had(ended: type[Ended]) -> None:
    sick = ("gpu03", "gpu05", "gpu06")
    results = [failing(node) if node in sick else passing(node) for node in ALL]
    run = ended(results, problems={"gpu06": Problem(ProblemKind.LOST, "it was lost")})
    run.act()
    assert run.world.nodes["gpu03"].reason == reason_of("gpu03")
    assert run.drained == ["gpu03", "gpu05"]
    assert run.lines[2:-1] == [
        "drained: gpu05",
        "repaired? test and resume: pytest --cluster=prod -m gpu --nodes=gpu05 --resume-passing",
        "not drained: gpu03 (gpu.nvlink_state): drained by gpucluster already, in run old",
        "not drained: gpu06 (gpu.nvlink_state): it could not be tested to the end: it was lost",
    ]
    by_hand = "if the node is at fault: scontrol update NodeName=gpu06 State=DRAIN 'Reason=gpucluster:gpu.nvlink_state "
    assert run.lines[-1].startswith(by_hand)


def test_nodes_left_drained_by_a_reservation_test_are_reported_last() -> None:
    """Where the run ends before its session does, as when Slurm gives no nodes."""
    session = a_session()
    retest: Any = Retest(World({"gpu02": NodeInfo("gpu02", "IDLE")}), "gpu02")
    retest.stuck, session.retest, session.left_behind = ("gpu02",), retest, ["job 7"]
    session.release_nodes()
    assert session.left_behind == ["job 7", "gpu02: could not be drained again"]


# --- whose a reason is


def inventory(**reasons: str) -> dict[str, NodeInfo]:
    return {
        node: NodeInfo(node, "IDLE", frozenset({"DRAIN"} if reason else ()), reason=reason)
        for node, reason in reasons.items()
    }


def test_edited_reasons_are_found(tmp_path: Path) -> None:
    edited = reason_of("gpu02").replace("7<8", "7<8 bob: keep out")
    nodes = inventory(gpu01=reason_of("gpu01"), gpu02=edited, gpu03="bad cable", gpu04="")
    found = edited_reasons(nodes, "prod", None, tmp_path)
    assert list(found) == ["gpu02"]
    assert edited in found["gpu02"]


def test_a_run_in_neither_history_nor_event_log_has_drained_no_node(tmp_path: Path) -> None:
    path, run = tmp_path / "history.sqlite", "20261121T020000"
    with contextlib.closing(History(path, create=True)) as history:
        kept = {"started": 1.0, "finished": 2.0, "exit": 0, "arguments": "", "items": (), "metrics": ()}
        history.add(Recorded(f"{run}-1", "prod", simulated=False, **kept))  # type: ignore[arg-type] # of several types
    folder = tmp_path / "reports" / "monday"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(f'{{"event": "start", "run": "{run}-3"}}\n')
    nodes = inventory(
        **{f"gpu0{n}": reason_of(f"gpu0{n}", f"{run}-{n}") for n in (1, 2, 3)},
        gpu04=reason_of("gpu04", run),  # the beginning of one that is there
    )

    def unknown(cluster: str, history: Path | None) -> dict[str, str]:
        return edited_reasons(nodes, cluster, history, tmp_path / "reports")

    assert set(found := unknown("prod", path)) == {"gpu02", "gpu04"}
    assert f"names run {run}-2, which" in found["gpu02"]
    assert set(unknown("other", path)) == {"gpu01", "gpu02", "gpu04"}
    assert unknown("prod", None) == unknown("prod", tmp_path / "not.yet") == {}
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
        (True, "apply", {"gpu02", "gpu03"}, ["gpu03"]),
        (True, "off", None, []),
        (True, "dry-run", {"gpu01"}, []),
        (False, "apply", {"gpu01"}, []),
    ],
)
def test_only_what_is_ours_and_reserved_goes_on_trial(
    mode: str, reserved: set[str] | None, chosen: list[str], *, resume: bool
) -> None:
    nodes = inventory(**{node: reason_of(node) for node in ("gpu01", "gpu02", "gpu03")}, gpu04="bad cable")
    options = DrainOptions(mode=mode, retries=1, budget=Budget(1), least=Action.DRAIN, resume=resume)
    found = retest_reasons(options, nodes, frozenset(reserved) if reserved else None, {"gpu02": "edited"})
    assert found == {node: reason_of(node) for node in chosen}


# --- repetitions


def fail(run: Ended, item: Any, event: dict[str, Any], when: str = "call", error: type = CheckFailed) -> None:
    call: Any = pytest.CallInfo.from_call(lambda: (_ for _ in ()).throw(error("bad")), "call")
    report: Any = pytest.TestReport(item.nodeid, ("", 0, ""), {}, "failed", "bad", "call", gpucluster=event)
    report.when = when
    hook = run.plugin.pytest_runtest_makereport(item, call)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        (("failed", "failed", "failed"), ""),
        (("passed",), "fresh attempt 1 ended as passed"),
        (("failed", "passed"), "fresh attempt 2 ended as passed"),
        (("failed", "failed", "error"), "fresh attempt 3 ended as error"),
        ((), ""),  # the check itself has measured many times
    ],
)
def test_a_node_is_drained_only_if_every_repetition_fails(
    ended: type[Ended], monkeypatch: pytest.MonkeyPatch, ends: tuple[str, ...], why: str
) -> None:
    event, asked = failing("gpu05"), list[int]()
    event["verdicts"][0]["repeated"] = not ends
    run, item = ended([event], retries=3), FakeItem("gpu05")
    item.nodeid = event["nodeid"]

    def again(items: list[Any], _session: object, attempt: int) -> dict[str, tuple[str, dict[str, Any]]]:
        asked.append(attempt)
        return {one.nodeid: (ends[attempt - 1], event) for one in items}

    monkeypatch.setattr("pytest_gpucluster.plugin.drain.run_again", again)
    fail(run, item, event)
    run.act(items=[item])
    (confirmed,) = (it for it in run.log if it["event"] == "drain_confirm")
    assert (confirmed["why"], confirmed["confirmed"]) == (why, not why)
    assert confirmed["attempts"] == (3 if ends else 0)
    assert ("gpu05" in run.drained) is (not why)
    assert asked == list(range(1, len(ends) + 1))


def test_only_grounds_to_drain_are_repeated(ended: type[Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    run, repeated = ended(), list[str]()

    def again(items: list[Any], *_: object) -> dict[str, tuple[str, dict[str, Any]]]:
        repeated.extend(item.node for item in items)
        return {one.nodeid: ("passed", {}) for one in items}

    monkeypatch.setattr("pytest_gpucluster.plugin.drain.run_again", again)
    for node, event, how in (
        ("sick", failing("sick"), {}),
        ("setup", failing("setup"), {"when": "setup"}),
        ("assert", failing("assert"), {"error": AssertionError}),
        ("mild", failing("mild", action="monitor"), {}),
        ("all nodes", failing(""), {}),
        ("no record", {}, {}),
    ):
        fail(run, FakeItem(node), event, **how)
    for name in ("jobs", "submitted"):  # before the allocation: they could not start beside it
        last = FakeItem(name, fixturenames=["gpucluster_node", f"gpucluster_{name}"])
        fail(run, last, failing(name))
    run.act(items=[last])
    assert repeated == ["sick"]


def test_one_command_may_take_20_seconds() -> None:
    transport: Any = None
    patient = little_patience(Slurm(transport, timeout=300.0))
    assert (patient.timeout, patient.retry_for) == (20.0, 5.0)


# --- what may drain


# --- which checks may take a node out of service


REPAIRS = {
    "rdma": "bandwidth",
    "burnin": """copies corruption gpu_memory counters cpu dcgm matmul memory memory_bandwidth nccl peer storage
        survived temperature xid""",
    "fabric": "counters hca_count port_state rate",
    "gpu": """count driver ecc_aggregate ecc_volatile fabric_manager fabric_state inforom memory nvlink_errors nvlink_state p2p
        pcie_gen pcie_width recovery_action remapped_pending remapped_rows retired_pages temperature throttle
        topology xid""",
    "nccl": "bandwidth pairs",
    "os": "drift drive_health kernel_log memory mount_response pci_links responds root_writable systemd",
    "slurm": "responding",
    "storage": "integrity",
    "training": "replay",
    # they ask for a repair only where an entry of `known`, which a person wrote, does
}


def test_only_these_checks_may_take_a_node_out_of_service() -> None:
    """Each states why no healthy node fails it with a repair; without that sentence the repair is a TypeError."""
    import_checks()
    stated = {name: about.never_healthy for name, about in CHECKS.items() if about.never_healthy}
    assert stated.keys() == {f"{suite}.{name}" for suite, names in REPAIRS.items() for name in names.split()}
    assert [name for name, about in CHECKS.items() if about.action.is_repair and name not in stated] == []
    for name, sentence in stated.items():
        assert 40 < len(sentence) < 300, name
        assert not sentence.endswith("."), name  # the reference makes it a sentence


# --- what the plugin takes for grounds

BAD, WARNING = Finding("GPU 1", "1", "2"), Advisory("GPU 1", "1", "2")
MILD = Finding("GPU 2", "1", "2", Action.MONITOR)


def verdict(*found: Any, action: Action = Action.DRAIN) -> Verdict:
    return conclude("gpu.x", found, cause="", hint="", action=action, never_healthy="made")


def judged_at(node: str, *verdicts: Verdict, outcome: str = "failed") -> dict[str, Any]:
    return result(node, outcome, check="gpu.x", verdicts=[one.as_dict() for one in verdicts])


def is_drained(ended: type[Ended], least: Action, event: dict[str, Any]) -> bool:
    """Return whether a run takes gpu05 out of service for this, each repetition of which has failed too."""
    run = ended([event], least=least, resume=False)
    run.act()
    assert set(run.drained) <= {"gpu05"}
    return bool(run.drained)


@pytest.mark.parametrize(
    ("found", "action"),
    [
        ((WARNING,), Action.VENDOR),
        ((NotAvailable("no right"), WARNING), Action.VENDOR),
        ((NotApplicable("no MIG"),), Action.VENDOR),
        ((), Action.VENDOR),
        ((BAD,), Action.MONITOR),
        ((BAD, WARNING), Action.CONFIGURE),
        ((MILD,), Action.VENDOR),
        ((MILD, WARNING), Action.VENDOR),
    ],
)
def test_what_never_drains(ended: type[Ended], found: tuple[Any, ...], action: Action) -> None:
    event = judged_at("gpu05", verdict(*found, action=action))
    assert not is_drained(ended, Action.RESET_GPU, event)


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
def test_a_finding_drains_from_the_requested_class_on(ended: type[Ended], least: Action) -> None:
    for action in Action:
        hard = action.is_repair and list(Action).index(action) >= list(Action).index(least)
        alone = verdict(BAD, WARNING, action=action)
        beside = verdict(MILD, Finding("GPU 3", "1", "2", action), action=Action.MONITOR)
        for one in (alone, beside):
            assert is_drained(ended, least, judged_at("gpu05", one)) is hard


def test_a_failure_of_no_single_node_or_by_no_verdict_never_drains(ended: type[Ended]) -> None:
    assert is_drained(ended, Action.DRAIN, judged_at("gpu05", verdict(BAD)))
    assert not is_drained(ended, Action.RESET_GPU, judged_at("", verdict(BAD)))
    assert not is_drained(ended, Action.RESET_GPU, judged_at("gpu05"))


@pytest.mark.parametrize(
    ("outcome", "action", "stays"),
    [
        ("error", Action.DRAIN, True),
        ("failed", Action.DRAIN, True),
        ("failed", Action.MONITOR, False),
        ("not checked", Action.DRAIN, False),
    ],
)
def test_an_error_is_no_grounds(ended: type[Ended], outcome: str, action: Action, *, stays: bool) -> None:
    """A fixture that broke says nothing of the node: only a verdict in the call does."""
    found = verdict(BAD, action=action)
    on_trial = ended([judged_at("gpu02", found, outcome=outcome)])
    on_trial.act()
    assert ("gpu02" in on_trial.drained) is stays
    in_service = judged_at("gpu05", found, outcome=outcome)
    assert is_drained(ended, Action.DRAIN, in_service) is (stays and outcome == "failed")


@pytest.mark.parametrize(
    ("verdicts", "part"),
    [
        ([verdict(MILD, BAD, Finding("GPU 4", "1", "2"))], "GPU 1"),
        ([verdict(BAD, Finding("GPU 5", "3", "4", Action.VENDOR))], "GPU 5"),
        ([verdict(MILD, action=Action.MONITOR), verdict(BAD)], "GPU 1"),
    ],
)
def test_a_drain_names_its_finding(ended: type[Ended], verdicts: list[Verdict], part: str) -> None:
    run = ended([judged_at("gpu05", *verdicts)], resume=False)
    run.act()
    assert part in run.world.nodes["gpu05"].reason
    event = judged_at("gpu05", verdict(BAD))  # no finding has the action of its verdict: the first
    event["verdicts"][0]["findings"] = [{**BAD.as_dict(), "part": {"name": "GPU 7"}, "action": "reboot"}]
    run = ended([event], resume=False)
    run.act()
    assert "GPU 7" in run.world.nodes["gpu05"].reason
