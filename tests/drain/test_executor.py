"""The act against a Slurm that changes its mind: races, refusals, outages. The real one is in test_drain_sandbox.py."""

from __future__ import annotations

import errno
import fcntl
import re
import shlex
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.core.finding import Action, Finding, Quantity
from pytest_gpucluster.drain import Budget, DrainExecutor, Grounds, Limits, LockError, lock_path, locked, why_no_rights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RUN = "20261121T020000-4711"


@dataclass
class World:
    """A Slurm in memory: `before` is called before each command and may change it or raise."""

    nodes: dict[str, NodeInfo]
    before: Callable[[World, tuple[str, ...]], None] = lambda _world, _argv: None
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def refresh(self) -> None:
        pass

    def show(self) -> dict[str, NodeInfo]:
        self.before(self, ("scontrol", "show", "node"))
        return dict(self.nodes)

    def run(self, *argv: str) -> str:
        self.before(self, argv)
        self.ran.append(argv)
        words = dict(word.split("=", 1) for word in argv[2:])
        self.put(words["NodeName"], words["State"], words.get("Reason", ""))
        return ""

    def put(self, name: str, state: str, reason: str = "") -> None:
        old = self.nodes[name]
        flags = old.flags | {"DRAIN"} if state == "DRAIN" else old.flags - {"DRAIN"}
        self.nodes[name] = NodeInfo(name, old.state, flags, reason=reason, partitions=old.partitions)


class Client:
    def __init__(self, world: World) -> None:
        self.run, self.nodes, self.refresh = world.run, world.show, world.refresh


def world(count: int = 10, **options: Any) -> World:
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    return World({name: NodeInfo(name, "ALLOCATED", partitions=("batch",)) for name in names}, **options)


def grounds(*names: str, unconfirmed: str = "") -> list[Grounds]:
    return [
        Grounds(
            name,
            "gpu.count",
            Action.DRAIN,
            Finding("", Quantity(7, "GPUs"), Quantity(8, "GPUs")),
            unconfirmed=unconfirmed,
        )
        for name in names
    ]


def limits(budget: str = "100%") -> Limits:
    return Limits(Budget.parse(budget), {f"gpu{number:02}": "batch" for number in range(1, 100)})


class Log(list[dict[str, Any]]):
    def write(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})

    @property
    def kinds(self) -> list[str]:
        return [event["event"] for event in self]


def down(_world: World, _argv: tuple[str, ...]) -> None:
    raise SlurmError("no controller")


def actor(a_world: World, log: Log, **options: Any) -> DrainExecutor:
    client: Any = Client(a_world)  # what it needs of a Slurm client
    return DrainExecutor(client, log.write, RUN, **options)


def drain(a_world: World, *names: str, budget: str = "100%", log: Log | None = None, **options: Any) -> DrainExecutor:
    act = actor(a_world, Log() if log is None else log, **options)
    act.drain(grounds(*names), limits(budget), spared={})
    return act


def drained(a_world: World) -> list[str]:
    return [name for name, info in a_world.nodes.items() if "DRAIN" in info.flags]


def test_what_former_runs_drained_counts_and_what_others_drained_does_not() -> None:
    a_world = world(20)
    # edited, but a drain of ours
    a_world.put("gpu20", "DRAIN", "gpucluster:gpu.names off!=on run=older - bob: keep out")
    a_world.put("gpu19", "DRAIN", "bad cable")
    act = drain(a_world, "gpu01", "gpu02", budget="10%")
    assert drained(a_world) == ["gpu01", "gpu19", "gpu20"]
    assert act.over_budget == ["gpu02"]


def test_an_update_whose_answer_is_lost_but_that_worked_is_a_drain() -> None:
    a_world, log = world(), Log()

    def lose(*argv: str) -> str:
        World.run(a_world, *argv)
        raise SlurmError("scontrol: Socket timed out on send/recv operation")

    act = actor(a_world, log)
    act.slurm.run = lose  # type: ignore[assignment, method-assign]
    act.drain(grounds("gpu01"), limits(), spared={})
    assert (log[-1]["result"], act.drained) == ("drained", ["gpu01"])


# --- every branch, exactly

OURS = summed("gpucluster:gpu.count 7<8 run=old")
DRAIN = "scontrol update NodeName=gpu01 State=DRAIN Reason=" + summed(
    f"gpucluster:gpu.count 7<8 GPUs repair=drain run={RUN}"
)


def test_the_events_of_a_drain_say_everything() -> None:
    a_world, log = world(), Log()
    act = actor(a_world, log)
    mine = [
        *grounds("gpu01"),
        Grounds("gpu01", "gpu.memory", Action.VENDOR, Finding("errors", Quantity(3), Quantity(0))),
    ]
    act.drain(mine, limits(), spared={})
    reason = summed(f"gpucluster:gpu.memory 3>0 errors also=gpu.count repair=return-to-vendor run={RUN}")
    command = f"scontrol update NodeName=gpu01 State=DRAIN Reason={reason}"
    decided = {"decision": "drain", "checks": ["gpu.memory", "gpu.count"], "action": "return to vendor"}
    after = {"result": "drained", "problem": "", "state": "ALLOCATED+DRAIN", "reason": reason}
    assert log.kinds == ["drain_decision", "node_intent", "node_result"]
    assert log[0].items() >= {**decided, "node": "gpu01", "dry_run": False, "command": command}.items()
    assert log[1].items() >= {"command": command, "state": "ALLOCATED", "reason": ""}.items()
    assert log[2].items() >= after.items()
    assert (act.drained, act.problems, act.spared_lines, act.over_budget) == (["gpu01"], [], [], [])
    assert a_world.ran == [("scontrol", "update", "NodeName=gpu01", "State=DRAIN", f"Reason={reason}")]

    def full(event: str, **_: Any) -> None:
        if event == "node_intent":
            raise GpuClusterError("no space left")

    act.write = full
    with pytest.raises(GpuClusterError, match="no space"):
        act.drain(grounds("gpu02"), limits(), spared={})
    assert drained(a_world) == ["gpu01"]  # no act without its intent in the log


def test_a_dry_run_shows_the_command_that_it_would_run() -> None:
    a_world, log = world(20), Log()
    act = drain(a_world, "gpu01", "gpu02", "gpu03", budget="10%", log=log, dry=True)
    assert (a_world.ran, act.drained, act.over_budget) == ([], ["gpu01", "gpu02"], ["gpu03"])
    assert (act.commands[0], len(act.commands)) == (DRAIN, 2)
    assert (log[0]["command"], log[0]["dry_run"], log[0]["decision"]) == (DRAIN, True, "drain")
    assert log.kinds == ["drain_decision"] * 3
    quoted = drain(world(), "gpu01", dry=True, shown=shlex.join)
    assert quoted.commands == [DRAIN.replace("Reason=", "'Reason=") + "'"]


def test_limits_count_ours_of_every_partition_of_the_node() -> None:
    def shown(name: str, reason: str, *partitions: str) -> NodeInfo:
        flags = frozenset({"DRAIN"} if reason else ())
        return NodeInfo(name, "IDLE", flags, reason=reason, partitions=partitions)

    rows = [("gpu01", "", "a"), ("gpu02", OURS, "b", "all"), ("gpu03", OURS, "c"), ("gpu04", "bad cable", "a")]
    nodes = {row[0]: shown(*row) for row in rows}

    def reached(most: int, *new: str) -> str:
        return Limits(Budget(most), {"gpu01": "a,b"}).reached("gpu01", nodes, new)

    assert reached(1).startswith("the budget is spent: 1 of 3 nodes of partition a,b ")
    assert reached(2, "gpu03", "elsewhere") == ""
    assert reached(2, "gpu02") == ""  # ours already: counted once
    assert reached(2, "gpu04").startswith("the budget is spent: 2 of 3 ")
    for budget in (Budget(0), Budget.parse("100%")):  # a node of no known partition has no budget
        unknown = Limits(budget, {}).reached("gpu01", nodes, [])
        assert unknown.startswith("the budget is spent: 0 of 0 nodes of partition (unknown) ")


def test_the_first_problem_ends_the_acts_with_its_words() -> None:
    a_world, log = world(before=down), Log()
    act = drain(a_world, "gpu01", "gpu02", log=log)
    stopped = "no further node is changed: gpu01: its state cannot be read: no controller"
    assert [event["why"] for event in log] == [stopped, stopped]
    assert (a_world.ran, act.problems, act.current("gpu01")) == ([], [stopped], None)
    kept = {"event": "resume_decision", "decision": "keep drained"}
    assert not act.resume("gpu01", OURS)
    assert log[-1].items() >= {**kept, "why": stopped}.items()
    other = actor(a_world, log)
    assert not other.resume("gpu01", OURS)
    assert log[-1].items() >= {**kept, "why": "its state cannot be read: no controller"}.items()
    assert other.problems == [stopped]


OVERTAKEN = "another user changed the node at the same time"


@pytest.mark.parametrize(
    ("answer", "result", "problem"),
    [
        (SlurmError("permission denied"), "failed", "permission denied"),
        ("", "overtaken", OVERTAKEN),
        ("bob: bad cable", "overtaken", OVERTAKEN),  # the flag is no proof
    ],
)
def test_an_act_that_did_not_work_is_named(answer: str | SlurmError, result: str, problem: str) -> None:
    log, a_world = Log(), world()

    def run(*_argv: str) -> str:
        if isinstance(answer, SlurmError):
            raise answer
        if answer:
            a_world.put("gpu01", "DRAIN", answer)
        return ""

    act = actor(a_world, log)
    act.slurm.run = run  # type: ignore[assignment, method-assign]
    act.drain(grounds("gpu01", "gpu02"), limits(), spared={})
    assert (log[2]["event"], log[2]["result"], log[2]["problem"]) == ("node_result", result, problem)
    stopped = f"no further node is changed: a command failed (gpu01: {problem})"
    assert act.problems == [f"gpu01: {result}: {problem}", stopped]
    assert (log[3]["why"], act.drained) == (stopped, [])


@pytest.mark.parametrize("refused", [True, False])
def test_an_act_whose_end_cannot_be_read_is_unknown(refused: bool) -> None:  # a table
    log, a_world = Log(), world()

    def gone(_world: World, argv: tuple[str, ...]) -> None:
        if log and log[-1]["event"] == "node_intent" and (refused or argv[1] == "show"):
            raise SlurmError("no controller")

    a_world.before = gone
    act = drain(a_world, "gpu01", log=log)
    problem = "no controller" if refused else "its state could not be read after the command"
    ends = [log[-1][key] for key in ("result", "problem", "state", "reason")]
    assert ends == ["unknown", problem, None, None]
    assert (act.problems[0], act.drained) == (f"gpu01: unknown: {problem}", [])


def test_acts_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pytest_gpucluster.drain.executor.time.monotonic", lambda: now)
    act = actor(world(), Log())
    now = 1300.0
    assert act.current("gpu01") is not None
    act.drain(grounds("gpu01"), limits(), spared={})
    now = 1300.5
    act.drain(grounds("gpu02"), limits(), spared={})
    assert act.drained == ["gpu01"]
    assert act.problems == ["no further node is changed: 300 s have passed, and the nodes must be released"]
    assert act.current("gpu01") is None


@pytest.mark.parametrize("dry", [False, True])
def test_the_events_of_a_resume(dry: bool) -> None:  # a table
    a_world, log = world(), Log()
    a_world.put("gpu01", "DRAIN", OURS)
    act, command = actor(a_world, log, dry=dry), "scontrol update NodeName=gpu01 State=UNDRAIN"
    assert act.resume("gpu01", OURS) is not dry
    decided = {"event": "resume_decision", "node": "gpu01", "decision": "resume", "reason": OURS, "dry_run": dry}
    assert log[0].items() >= {**decided, "command": command}.items()
    assert act.commands == ([command] if dry else [])
    assert a_world.ran == ([] if dry else [tuple(command.split())])
    events = [[event.get(key) for key in ("event", "result", "state", "reason")] for event in log[1:]]
    assert (
        events
        == [["node_intent", None, "ALLOCATED+DRAIN", OURS], ["node_result", "resumed", "ALLOCATED", ""]][
            : 0 if dry else 2
        ]
    )


def test_a_node_that_is_not_ours_stays_drained() -> None:
    bob = "bob: bad cable"
    for reason, why in ((bob, "its reason is not from gpucluster"), (OURS, f'its reason has changed: "{bob}"')):
        a_world, log = world(), Log()
        a_world.put("gpu01", "DRAIN", bob)
        assert not actor(a_world, log).resume("gpu01", reason)
        (event,) = log
        assert (event["event"], event["decision"], event["why"]) == ("resume_decision", "keep drained", why)
        assert ("command" in event, a_world.ran) == (False, [])


def test_rights_are_checked_with_a_node_that_does_not_exist() -> None:
    ran, answers = list[tuple[str, ...]](), list[str]()

    def refuse(*argv: str) -> str:
        ran.append(argv)
        raise SlurmError("no rights", stderr=answers[-1])

    client: Any = Client(world())
    client.run = refuse
    for stderr, why in (
        ("slurm_update error: Invalid user id", "no rights"),
        ("slurm_update error: Access/permission DENIED", "no rights"),
        ("slurm_update error: Invalid node name specified", ""),
        ("", ""),
    ):
        answers.append(stderr)
        assert why_no_rights(client) == why
    assert {*ran} == {("scontrol", "update", "NodeName=gpucluster-asks-for-its-rights", "State=UNDRAIN")}
    client.run = lambda *_argv: ""
    assert why_no_rights(client) == ""


# --- the lock


def test_the_lock_lies_below_the_state_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    locks = tmp_path / "pytest-gpucluster" / "locks"
    assert lock_path("my cluster/1") == locks / "drain-my_cluster_1.lock"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert lock_path("a.B-9_") == tmp_path / ".local/state/pytest-gpucluster/locks/drain-a.B-9_.lock"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pytest_gpucluster.drain.executor.Path.home", homeless)
    assert lock_path("x") is None
    with pytest.raises(LockError, match="no node is changed; set XDG_STATE_HOME"), locked(None):
        pytest.fail("there is no lock")


def test_the_lock_is_free_again_after_it_was_held_and_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "locks" / "x.lock"
    with pytest.raises(ValueError, match="inside"), locked(path):
        raise ValueError("inside")
    with locked(path, patience=0), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.stat().st_mode & 0o777 == 0o600
    with locked(path, patience=0):
        pass


def test_a_file_system_without_locks_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pytest_gpucluster.drain.executor.fcntl.flock", no_locks)
    with pytest.raises(LockError, match="No locks available"), locked(tmp_path / "x.lock"):
        pytest.fail("there is no lock")


def test_a_lock_is_waited_for_until_the_stated_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, slept = tmp_path / "x.lock", list[float]()
    # the module's own `time`: other threads sleep too
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(slept), sleep=slept.append)
    monkeypatch.setattr("pytest_gpucluster.drain.executor.time", clock)
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        message = f"{path}: another run has been draining for 60 s: no node is changed"
        with pytest.raises(LockError, match=f"^{re.escape(message)}$"), locked(path):
            pytest.fail("the lock is held by two")
    assert slept == [0.1] * 7  # at 60 s it is tried once more


def test_neither_unconfirmed_nor_spared_nodes_are_drained() -> None:
    a_world, log = world(), Log()
    act = actor(a_world, log)
    mine = [*grounds("gpu03", unconfirmed="passed"), *grounds("gpu02")]
    act.drain(mine, limits(), spared={"gpu02": "it was lost"})
    spared = {"gpu03": "not confirmed: passed", "gpu02": "it was lost"}
    told = [(event["node"], event["decision"], event["why"], "command" in event) for event in log]
    assert told == [(node, "spare", why, False) for node, why in spared.items()]
    assert act.spared_lines == [f"not drained: {node} (gpu.count): {why}" for node, why in spared.items()]
    assert [command.split()[2] for command in act.by_hand] == ["NodeName=gpu02"]  # for a person
    assert a_world.ran == []
