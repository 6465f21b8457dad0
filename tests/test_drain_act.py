"""The act against a Slurm that changes its mind: races, refusals, outages. The real one is in test_drain_sandbox.py."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.checks.verdict import Action
from pytest_gpucluster.drain import Actor, Budget, Grounds, Limits, locked
from pytest_gpucluster.errors import GpuClusterError, SlurmError
from pytest_gpucluster.slurm.inventory import NodeInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Event
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
    """What the actor asks of the Slurm client."""

    def __init__(self, world: World) -> None:
        self.run, self.nodes, self.refresh = world.run, world.show, world.refresh


def world(count: int = 10, **options: Any) -> World:
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    return World({name: NodeInfo(name, "ALLOCATED", partitions=("batch",)) for name in names}, **options)


def grounds(*names: str, unconfirmed: str = "") -> list[Grounds]:
    return [
        Grounds(name, "gpu.count", Action.DRAIN, "7", "8 GPUs", unconfirmed=unconfirmed) for name in names
    ]


def limits(budget: str = "100%") -> Limits:
    return Limits(Budget.parse(budget), {f"gpu{number:02}": "batch" for number in range(1, 100)})


class Log(list[dict[str, Any]]):
    def write(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})

    @property
    def kinds(self) -> list[str]:
        return [event["event"] for event in self]


def actor(a_world: World, log: Log, **options: Any) -> Actor:
    return Actor(Client(a_world), log.write, RUN, **options)  # type: ignore[arg-type] # what it needs of a client


def drained(a_world: World) -> list[str]:
    return [name for name, info in a_world.nodes.items() if "DRAIN" in info.flags]


def test_intent_before_the_act_and_result_after() -> None:
    log = Log()
    seen: list[list[str]] = []

    def note(_world: World, argv: tuple[str, ...]) -> None:
        if argv[1] == "update":
            seen.append(log.kinds)

    a_world = world(before=note)
    actor(a_world, log).drain(grounds("gpu02"), limits(), spared={})
    assert drained(a_world) == ["gpu02"]
    assert a_world.nodes["gpu02"].reason == f"gpucluster:gpu.count 7<8 GPUs run={RUN}"
    assert seen == [["drain_decision", "node_intent"]]
    assert log.kinds == ["drain_decision", "node_intent", "node_result"]
    assert log[-1]["result"] == "drained"
    assert log[-1]["state"] == "ALLOCATED+DRAIN"


def test_no_act_without_its_intent_in_the_log() -> None:
    def full(event: str, **_: Any) -> None:
        if event == "node_intent":
            raise GpuClusterError("no space left")

    a_world = world()
    with pytest.raises(GpuClusterError, match="no space"):
        Actor(Client(a_world), full, RUN).drain(grounds("gpu02"), limits(), spared={})  # type: ignore[arg-type] # as above
    assert a_world.ran == []


def test_forty_percent_failing_drains_ten_and_no_more() -> None:
    a_world, log = world(20), Log()
    act = actor(a_world, log)
    act.drain(grounds(*(f"gpu{n:02}" for n in range(1, 9))), limits("10%"), spared={})
    assert drained(a_world) == ["gpu01", "gpu02"]
    assert act.over_budget == [f"gpu{n:02}" for n in range(3, 9)]
    assert [event["decision"] for event in log if event["event"] == "drain_decision"] == [
        "drain",
        "drain",
        *["spare"] * 6,
    ]


def test_what_former_runs_drained_counts_and_what_others_drained_does_not() -> None:
    a_world, log = world(20), Log()
    a_world.put("gpu20", "DRAIN", "gpucluster:gpu.names off!=on run=older")
    a_world.put("gpu19", "DRAIN", "bad cable")
    act = actor(a_world, log)
    act.drain(grounds("gpu01", "gpu02"), limits("10%"), spared={})
    assert drained(a_world) == ["gpu01", "gpu19", "gpu20"]
    assert act.over_budget == ["gpu02"]


def test_the_budget_is_of_the_partition() -> None:
    a_world, log = world(20), Log()
    for name in list(a_world.nodes)[10:]:
        a_world.nodes[name] = NodeInfo(name, "IDLE", partitions=("other", "all"))
    act = actor(a_world, log)
    places = Limits(Budget.parse("10%"), dict.fromkeys(a_world.nodes, "batch") | {"gpu11": "other"})
    act.drain(grounds("gpu01", "gpu02", "gpu11"), places, spared={})
    assert drained(a_world) == ["gpu01", "gpu11"]


def test_a_node_of_no_known_partition_has_no_budget() -> None:
    a_world, log = world(), Log()
    actor(a_world, log).drain(grounds("gpu01"), Limits(Budget.parse("100%"), {}), spared={})
    assert drained(a_world) == []


def test_a_dry_run_keeps_to_the_budget_and_touches_nothing() -> None:
    a_world, log = world(20), Log()
    act = actor(a_world, log, dry=True)
    act.drain(grounds("gpu01", "gpu02", "gpu03"), limits("10%"), spared={})
    assert a_world.ran == []
    assert act.drained == ["gpu01", "gpu02"]
    assert len(act.commands) == 2
    assert "node_intent" not in log.kinds


def test_neither_unconfirmed_nor_spared_nodes_are_drained() -> None:
    a_world, log = world(), Log()
    act = actor(a_world, log)
    act.drain(
        [*grounds("gpu01", unconfirmed="fresh attempt 1 ended as passed"), *grounds("gpu02")],
        limits(),
        spared={"gpu02": "it was lost"},
    )
    assert a_world.ran == []
    assert [event["why"] for event in log] == [
        "not confirmed: fresh attempt 1 ended as passed",
        "it was lost",
    ]


def test_a_foreign_drain_in_between_survives() -> None:
    def bob(a_world: World, argv: tuple[str, ...]) -> None:
        if argv[1] == "show" and "DRAIN" not in a_world.nodes["gpu01"].flags:
            a_world.put("gpu01", "DRAIN", "bob: bad cable")

    a_world, log = world(before=bob), Log()
    actor(a_world, log).drain(grounds("gpu01"), limits(), spared={})
    assert a_world.ran == []
    assert a_world.nodes["gpu01"].reason == "bob: bad cable"
    assert 'somebody else: "bob: bad cable"' in log[-1]["why"]


def test_an_unreadable_controller_ends_all_acts() -> None:
    def down(_world: World, _argv: tuple[str, ...]) -> None:
        raise SlurmError("scontrol: Unable to contact slurm controller")

    a_world, log = world(before=down), Log()
    act = actor(a_world, log)
    act.drain(grounds("gpu01", "gpu02"), limits(), spared={})
    assert a_world.ran == []
    assert log.kinds == ["drain_decision"] * 2
    assert all("Unable to contact" in event["why"] for event in log)
    assert act.problems


def test_a_controller_that_goes_down_between_reading_and_act_leaves_unknown_and_no_more_acts() -> None:
    gone: list[tuple[str, ...]] = []

    def down(_world: World, argv: tuple[str, ...]) -> None:
        if argv[1] == "update" or gone:
            gone.append(argv)
            raise SlurmError("scontrol: Unable to contact slurm controller")

    a_world, log = world(before=down), Log()
    act = actor(a_world, log)
    act.drain(grounds("gpu01", "gpu02"), limits(), spared={})
    assert drained(a_world) == []
    assert [event["result"] for event in log if event["event"] == "node_result"] == ["unknown"]
    assert log[-1]["decision"] == "spare"
    assert act.drained == []


def test_a_refusal_is_said_and_ends_the_acts() -> None:
    def refuse(_world: World, argv: tuple[str, ...]) -> None:
        if argv[1] == "update":
            raise SlurmError("scontrol: slurm_update error: Access/permission denied")

    a_world, log = world(before=refuse), Log()
    act = actor(a_world, log)
    act.drain(grounds("gpu01", "gpu02"), limits(), spared={})
    assert [event["result"] for event in log if event["event"] == "node_result"] == ["failed"]
    assert any("permission denied" in problem for problem in act.problems)


def test_an_update_whose_answer_is_lost_but_that_worked_is_a_drain() -> None:
    a_world, log = world(), Log()

    def lose(*argv: str) -> str:
        World.run(a_world, *argv)
        raise SlurmError("scontrol: Socket timed out on send/recv operation")

    client = Client(a_world)
    client.run = lose
    act = Actor(client, log.write, RUN)  # type: ignore[arg-type] # as above
    act.drain(grounds("gpu01"), limits(), spared={})
    assert log[-1]["result"] == "drained"
    assert act.drained == ["gpu01"]


def test_a_resume_reads_again_and_leaves_what_has_changed() -> None:
    ours = "gpucluster:gpu.count 7<8 run=old"
    a_world, log = world(), Log()
    a_world.put("gpu01", "DRAIN", ours)
    a_world.put("gpu02", "DRAIN", "bob: bad cable")
    act = actor(a_world, log)
    assert act.resume("gpu01", ours)
    assert not act.resume("gpu02", ours)
    assert not act.resume("gpu02", "bob: bad cable")
    assert not act.resume("gpu03", ours)
    assert drained(a_world) == ["gpu02"]
    assert a_world.ran == [("scontrol", "update", "NodeName=gpu01", "State=UNDRAIN")]


def test_a_dry_run_resumes_nothing() -> None:
    ours = "gpucluster:gpu.count 7<8 run=old"
    a_world, log = world(), Log()
    a_world.put("gpu01", "DRAIN", ours)
    act = actor(a_world, log, dry=True)
    assert not act.resume("gpu01", ours)
    assert a_world.ran == []
    assert act.commands == ["scontrol update NodeName=gpu01 State=UNDRAIN"]


def _hold(path: Path, held: Event, leave: Event) -> None:
    with locked(path):
        held.set()
        leave.wait(60)


def test_one_run_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "drain-x.lock"
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(path, held, leave))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(GpuClusterError, match="another run has been draining"), locked(path, patience=0):
            pytest.fail("the lock is held by two")
    finally:
        leave.set()
        other.join(60)
    with locked(path, patience=10) as alone:
        assert alone


def test_where_no_file_can_be_there_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file" / "lock") as alone:
        assert not alone
