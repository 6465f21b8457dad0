"""The rounds of a burn-in on simulated agents, which nodes leave it or are lost, how it ends, and its options."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from burnin_helpers import CONFIG, hello
from constants import with_constants

from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, Group, Profile
from pytest_gpucluster.core.errors import ConfigError, StepError, StepMisplaced
from pytest_gpucluster.core.part import port
from pytest_gpucluster.kit.fabric.rails import RailPort
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.suites.burnin import options as burnin_options
from pytest_gpucluster.suites.burnin import steps
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.steps import Burnin, ResumeState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.step import StepRequest


class Agents:
    """A step whose agents answer when their loads would have ended, on a clock of its own; also what asks Slurm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stopped, self.left = 1000.0, 0.0, "UNLIMITED"
        self.env, self.argv, self.stderr, self.step_id = {"SLURM_CONF": ""}, ["srun"], list[str](), ""
        self.nodes, self.requests = list[str](), list["StepRequest"]()
        self.sent, self.due = list[dict[str, Any]](), list[tuple[float, dict[str, Any]]]()
        self.silent: dict[str, float] = {}  # node -> from when on
        self.lame: set[str] = set()  # nodes whose loads do not end
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.dead: list[tuple[str, int, int, int | None]] = []
        self.ended, self.until, self.interrupted = False, 0.0, False
        self.lacking: dict[str, int] = {}  # node -> GPUs
        self.broken: dict[str, list[str]] = {}  # node -> why it has no worker
        self.gpus = 4
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(steps, "StreamingStep", self.start)

    returncode = 7

    @property
    def process(self) -> Agents:
        return self

    def run(self, *argv: str) -> str:
        assert argv == ("squeue", "-h", "-j", "7", "-o", "%L")
        return self.left + "\n"

    def start(self, _slurm: object, _allocation: object, request: StepRequest) -> Agents:
        self.requests.append(request)
        self.due = []
        for node in request.nodes:
            known = hello(node, self.lacking.get(node, self.gpus))
            self.say(1.0, node, "hello", **{**known, "broken": self.broken.get(node, [])})
        self.nodes = [*request.nodes]
        return self

    def say(self, after: float, node: str, kind: str, **fields: Any) -> None:
        self.due.append((self.now + after, {"burnin": kind, "node": node, **fields}))

    def send(self, line: str) -> None:
        told = json.loads(line)
        self.sent.append(told)
        seconds = sum(load["seconds"] for load in told.get("loads", ()))
        for node in self.nodes if told["do"] == "round" else ():
            for result in self.results.pop(node, []):
                self.say(seconds, node, "load", **result)
            if node not in self.lame:
                self.say(seconds, node, "done", id=told["id"])

    def lines(self, seconds: float) -> Iterator[tuple[int, str]]:
        if self.interrupted and self.sent:
            self.interrupted = False
            raise KeyboardInterrupt
        due = min((at for at, _ in self.due), default=self.now + 5.0)
        self.now = max(self.now + seconds, min(due, self.now + 5.0))
        beats = [{"burnin": "beat", "node": node} for node in self.nodes]
        ready = [line for at, line in self.due if at <= self.now]
        self.due = [it for it in self.due if it[0] > self.now]
        for line in (*ready, *beats):
            if self.now <= self.silent.get(line["node"], self.now):
                yield self.nodes.index(line["node"]), json.dumps(line)

    def endings(self) -> list[tuple[str, int, int, int | None]]:
        return self.dead

    def stop(self) -> None:
        self.stopped = self.now

    def rounds(self) -> list[list[dict[str, Any]]]:
        """Return the loads of each round, with its collectives."""
        found: dict[int, list[dict[str, Any]]] = {}
        for told in self.sent:
            if told["do"] == "round":
                found.setdefault(told["round"], []).extend(told["loads"])
        return list(found.values())


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(monkeypatch)


def burnin_of(
    agents: Any,
    nodes: int,
    gpus: int = 4,
    seconds: float = 600.0,
    constants: dict[str, Any] | None = None,
    environment: EnvironmentConfig | None = None,
    **config: Any,
) -> Burnin:
    named = {"environment": "torch"} if environment else {}  # one of its own beside the default
    section = with_constants(BurninConfig, constants or {}, **config, **named)
    environments = {"torch": environment} if environment else {}
    group = Group(nodes=f"n[0-{nodes - 1}]", profile=Profile(name="x", description="", source=""))
    cluster = Cluster(name="lab", groups=(group,), environments=environments).model_copy(update={"burnin": section})
    agents.gpus, names = gpus, [f"n{i}" for i in range(nodes)]
    held = Allocation(agents, 7, names)
    return Burnin(agents, held, cluster, {}, nodes=names, gpus=gpus, seconds=seconds)


def run(burnin: Burnin) -> list[dict[str, Any]]:
    """Run it; return its events."""
    events: list[dict[str, Any]] = []
    burnin.run(lambda **event: events.append(event), lambda _: None)
    return events


def names(loads: list[dict[str, Any]]) -> list[str]:
    return [one["load"] for one in loads]


def met(rounds: list[list[dict[str, Any]]]) -> list[list[str]]:
    found = [one for loads in rounds for one in loads if one["load"] == "nccl"]
    return [group["members"] for one in found for group in one["groups"]]


def test_quiet_rounds_have_every_load_and_hot_ones_never_pause_the_products(agents: Agents) -> None:
    burnin = burnin_of(agents, 4, seconds=7200)
    run(burnin)
    first, *between, last = agents.rounds()
    hot = [loads for loads in between if loads[-1].get("hot")]
    quiet = ["matmul", "gpu_memory", "hbm", "copies", *3 * ["peer"], *4 * ["nccl"]]
    assert names(first) == ["dcgm", *quiet]
    assert names(last) == quiet[: len(last)], "rates are taken before the heat and after it"
    assert "hbm" in names(last)
    matmul = first[1]
    assert names(matmul["beside"]) == ["cpu", "memory", "storage"]
    assert sum(one["seconds"] for one in matmul["beside"]) == pytest.approx(matmul["seconds"])
    assert (matmul["seconds"], matmul["copies"], first[2]["seconds"]) == (40, True, 10)
    assert [loads[0]["seed"] for loads in hot[:5]] == [1, 2, 3, 0, 1], "inputs come again, to be compared"
    alone, *pairs = (one for one in first if one["load"] == "nccl")
    assert [group["members"] for group in alone["groups"]] == [["n0"], ["n1"], ["n2"], ["n3"]]
    assert all(group["ranks"] == [4, 4] for one in pairs for group in one["groups"])
    assert len({group["port"] for one in pairs for group in one["groups"]}) == 6
    assert len({frozenset(pair) for pair in met([pairs])}) == 6, "each of four has met every other"
    assert names(hot[0]) == ["matmul", "gpu_memory", "peer", "nccl"]
    assert names(hot[-1]) == ["matmul", "peer", "nccl"], "the memory is tested for an hour"
    assert all(one["hot"] for one in hot[0] if one["load"] in ("peer", "nccl"))
    assert len({frozenset(pair) for pair in met(hot[:3])}) == 6
    assert burnin.result.rounds >= len(hot) + 1
    state = f"round {burnin.result.rounds + 1}: 4 healthy, 0 suspect, 0 lost, 0 s left"
    assert str(burnin.progress()) == f"burn-in 2 h of 2 h, {state}"
    assert agents.now - 1000 <= 7200 + 10


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_peers_change_until_every_pair_has_met(agents: Agents, gpus: int) -> None:
    run(burnin_of(agents, 1, gpus, seconds=3600, loads=("peer",)))
    turns = [one["pairs"] for loads in agents.rounds() for one in loads]
    ways = {tuple(way) for turn in turns for way in turn}
    assert ways == {(a, b) for a in range(gpus) for b in range(gpus) if a != b}
    assert all(len({way[0] for way in turn}) == len(turn) for turn in turns)


def test_loads_follow_the_gpus_and_the_cluster_file(agents: Agents) -> None:
    run(burnin_of(agents, 2, gpus=0))
    assert {*names(agents.rounds()[0])} == {"dcgm", "cpu", "memory", "storage"}
    assert burnin_of(agents, 2, loads=("memory", "storage")).result.gpus == 0
    assert burnin_of(agents, 2, gpus=8).result.gpus == 8
    agents.sent.clear()
    run(burnin_of(agents, 1, constants={"burst_period": 0.5}, profile="bursts"))
    assert {one["period"] for loads in agents.rounds() for one in loads if one["load"] == "bursts"} == {0.5}
    assert met(agents.rounds()[1:2]) == [["n0"]]
    assert BurninConfig().load_seconds(14400) == 10
    assert BurninConfig().load_seconds(300) == 6, "three rounds fit into a short time"


def test_cycles_let_the_gpus_cool_after_the_stated_heat(agents: Agents) -> None:
    constants = {"cycle_heat": 150, "cycle_idle": 50}
    run(burnin_of(agents, 1, seconds=1000, constants=constants, profile="cycles"))
    loads = [one for told in agents.sent for one in told.get("loads", ())]
    kinds = [name for name in names(loads) if name in ("matmul", "idle")]
    assert kinds[:6] == ["matmul", "matmul", "idle", "matmul", "matmul", "matmul"]
    assert next(one["seconds"] for one in loads if one["load"] == "idle") == 50


def test_a_node_that_lacks_a_gpu_is_in_no_collective(agents: Agents) -> None:
    agents.lacking["n1"] = 3
    run(burnin_of(agents, 3))
    assert {*map(tuple, met(agents.rounds()))} == {("n0",), ("n2",), ("n0", "n2")}


def test_rdma_pairs_change_each_round_and_share_the_rails_that_both_nodes_have(agents: Agents) -> None:
    gid = EnvironmentConfig(exports={"NCCL_IB_GID_INDEX": "3"})
    burnin = burnin_of(agents, 4, loads=("cpu", "rdma"), environment=gid)
    for i in range(3):
        rails = "abc"[: 3 - (i == 1)]
        burnin.rails = {
            **burnin.rails,
            f"n{i}": {it: RailPort(f"mlx5_{it}", 1, port(f"mlx5_{it}", 1), 0) for it in rails},
        }
    run(burnin)
    cpu, rdma = agents.rounds()[0]
    assert (cpu["load"], rdma["load"], rdma["seconds"], rdma["gid"]) == ("cpu", "rdma", cpu["seconds"], 3)
    groups = [group for loads in agents.rounds()[:3] for group in loads[1]["groups"]]
    pairs = [["n0", "n1"], ["n0", "n2"], ["n1", "n2"]]
    assert sorted(sorted(one["members"]) for one in groups) == pairs
    for one in groups:
        common = [*"ab"] if "n1" in one["members"] else [*"abc"]
        assert [sorted(node["rails"]) for node in one["nodes"].values()] == [common] * 2
    assert {node["place"] for one in groups for node in one["nodes"].values()} == {0, 1, 2}


def test_the_step_has_the_nodes_and_the_environment(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    image = EnvironmentConfig(container_image="nvcr.io#nvidia/pytorch:25.10-py3", python="python3.12")
    asked: list[StepRequest] = []

    def misplaced(_slurm: object, _allocation: object, request: StepRequest) -> None:
        asked.append(request)
        error = StepMisplaced("n1 and others")
        error.nodes = {"n1": "the task ran on the host"}
        raise error

    monkeypatch.setattr(steps, "run_step", misplaced)
    burnin = burnin_of(agents, 2, environment=image)
    run(burnin)
    (request,) = agents.requests
    assert (request.nodes, request.ntasks_per_node, request.gpus_per_node) == (("n0",), 1, 4)
    assert (request.environment, request.argv[0]) == (burnin.environment, "python3.12")
    assert max(len(word) for word in request.argv) < 1 << 17, "Linux: MAX_ARG_STRLEN"
    assert sum(len(word) for word in request.argv) < 1 << 16, "the whole command has to fit into one over SSH"
    # a node whose task runs outside of the container leaves before the first load
    assert (burnin.live, burnin.result.nodes["n1"].out) == (["n0"], "the task ran on the host")
    assert [(one.nodes, one.environment) for one in asked] == [(("n0", "n1"), burnin.environment)]
    run(burnin_of(agents, 2))
    assert len(asked) == 1, "no container is stated"


def test_it_ends_before_slurm_takes_the_nodes_back(agents: Agents) -> None:
    for agents.left, words, seconds in (
        ("10:00", "it ended early: the time limit", 540),
        ("2:00:00", "the time is up", 3600),
    ):
        burnin, began = burnin_of(agents, 1, seconds=3600), agents.now
        run(burnin)
        assert burnin.result.ended.startswith(words)
        assert seconds - 5 <= agents.now - began <= seconds + 10


def test_nodes_that_are_silent_dead_or_late_are_lost_and_the_others_go_on(agents: Agents) -> None:
    agents.silent["n1"], agents.dead, agents.lame = 1200.0, [("n2", 2, 137, 9), ("", 3, 5, None)], {"n4"}
    agents.silent["n5"] = 0.0  # never starts
    burnin = burnin_of(agents, 6, seconds=3600, loads=("hbm",))
    events = run(burnin)
    lost = {node: told.lost for node, told in burnin.result.nodes.items() if told.lost}
    assert lost["n2"] == "its agent ended by signal 9"
    assert lost["n3"] == "its agent ended with 5"
    codes = [burnin.result.nodes[f"n{at}"].lost_code for at in (1, 2, 3, 4)]
    assert codes == ["silent", "killed", "exited", "late"]
    assert lost["n1"].startswith("silent for 1 min")
    assert "took longer than" in lost["n4"]
    assert lost["n5"]
    assert burnin.live == ["n0"]
    end = {"what": "end", "why": "the time is up", "out": {}, "lost": lost}
    assert events[-1] == {**end, "rounds": burnin.result.rounds, "seconds": round(burnin.result.seconds, 1)}
    assert {"do": "leave", "nodes": ["n4"]} in agents.sent


def test_nodes_with_errors_are_suspect_and_stay(agents: Agents) -> None:
    wrong = {"results": [{"load": "hbm", "uuid": "GPU-n1-0", "wrong": 3}]}
    hot = {"sensors": {"GPU-n2-0": {"samples": 9, "celsius": 99, "slow": {"hw_power_brake": 1.0}}}}
    fallen, healthy = ({"deltas": {"GPU-n3-0": {it: 1}}} for it in ("xid_79", "xid_31"))
    risen, smi = {"deltas": {"GPU-n4-0": {"ecc_uncorrected_volatile": 1}}}, {"unread": {"gpu": "Failed"}}
    sent: Any = {"n0": healthy, "n1": wrong, "n2": hot, "n3": fallen, "n4": risen, "n5": smi}
    agents.results = {node: [{"load": "hbm", **fields}] for node, fields in sent.items()}
    burnin = burnin_of(agents, 7)
    run(burnin)
    assert len(burnin.live) == 7
    assert (burnin.progress().suspect, burnin.progress().healthy, burnin.progress().lost) == (5, 2, 0)


def test_a_step_that_ends_by_itself_accuses_no_node(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    agents.stderr = ["srun: error: x", ""]
    agents.ended, agents.silent = True, dict.fromkeys(("n0", "n1"), 0.0)
    with pytest.raises(StepError, match="no agent started: srun: error: x"):
        run(burnin_of(agents, 2))
    agents.silent, agents.stderr = {}, []
    burnin = burnin_of(agents, 2)
    run(burnin)
    assert burnin.result.ended == "it ended early: the step ended: srun exited 7"
    assert burnin.live == ["n0", "n1"]
    agents.dead = [("n0", 0, 1, None)]
    burnin = burnin_of(agents, 1)
    run(burnin)
    assert burnin.result.ended == "no node is left in the burn-in"
    agents.dead = []
    agents.ended, agents.interrupted, agents.sent = False, True, []
    burnin = burnin_of(agents, 2)
    run(burnin)
    assert burnin.result.ended == "it ended early: stopped by Ctrl-C"


def test_a_node_that_died_in_the_last_minute_is_no_pass(agents: Agents) -> None:
    """A slurmstepd killed then ended a burn-in of two H200 well: silence is minded after a minute only."""
    agents.silent = {"n0": 1570.0, "n1": 1590.0}
    burnin = burnin_of(agents, 3)
    run(burnin)
    assert [node for node, told in burnin.result.nodes.items() if told.lost] == ["n0"]
    assert burnin.result.nodes["n0"].lost.endswith("at the end")
    assert agents.stopped > 1630


class Options:
    """What pytest's command line has of a burn-in."""

    def __init__(self, **given: Any) -> None:
        self.burnin_time: str | None = None
        self.burnin_resume: str | None = None
        self.markexpr = ""
        vars(self).update(given)


def test_a_burn_in_is_resumed_from_its_log_for_the_time_that_was_left(agents: Agents, tmp_path: Path) -> None:
    a, b = {"node": "n0", "rounds": 1}, {"node": "n1", "out": "wrong data"}
    events: list[dict[str, Any]] = [{"what": "begin", "requested": 600.0, "seconds": 0.0, "rounds": 0}]
    for node, seconds, rounds in ((a, 100.0, 1), (b, 120.0, 1), (a, 200.0, 2)):
        events.append({"what": "totals", "totals": node, "seconds": seconds, "rounds": rounds})
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps({"event": "burnin", **it}) + "\n" for it in events) + '{"event": "cut')
    option = Options(burnin_resume=str(log))
    burnin_options.prepare(option, read_log)
    before: ResumeState = option.burnin_before  # type: ignore[attr-defined]
    assert (before.requested, before.seconds, before.rounds) == (600.0, 200.0, 2)
    assert (before.nodes["n0"].rounds, before.nodes["n1"].out) == (2, "wrong data")
    assert burnin_options.seconds(option, CONFIG) == 600
    option.burnin_time = "30s"
    with pytest.raises(ConfigError, match="complete: 200 s of 30 s"):
        burnin_options.seconds(option, CONFIG)


def test_hours_of_load_never_come_unasked_and_options_say_how_many() -> None:
    given: Any = ({"markexpr": "gpu or nccl"}, {"markexpr": "burnin"}, {"burnin_time": "4h"})
    assert [burnin_options.requested(Options(**it)) for it in given] == [False, True, True]
    assert [burnin_options.seconds(Options(**it), CONFIG) for it in given[1:]] == [CONFIG.time, 14400]
    for wrong in ("soon", "0s"):
        with pytest.raises(ConfigError, match="--burnin-time"):
            burnin_options.seconds(Options(burnin_time=wrong), CONFIG)


def test_wrong_options_are_reported_in_a_line(tmp_path: Path) -> None:
    for name, text in (("empty", '{"event": "start"}\n'), ("broken", '{"event": "burnin"}\n')):
        (tmp_path / name).write_text(text)
    for wrong, what in (
        ({"burnin_resume": str(tmp_path / "absent")}, "No such file"),
        ({"burnin_resume": str(tmp_path / "empty")}, "this event log holds no burn-in"),
        ({"burnin_resume": str(tmp_path / "broken")}, "not an event log of this release"),
        ({"burnin_time": "1h", "numprocesses": 2}, "run pytest without -n"),
    ):
        with pytest.raises(ConfigError, match=what):
            burnin_options.prepare(Options(**wrong), read_log)


def test_what_no_node_can_run_ends_a_burn_in_at_once_and_what_one_can_does_not(agents: Agents) -> None:
    agents.lacking = {"n0": 0, "n1": 0}
    without_torch = burnin_of(agents, 2)
    for node in ("n0", "n1"):
        agents.broken[node] = ["No module named 'torch'"]
    run(without_torch)
    assert "No module named 'torch'" in without_torch.result.impossible
    assert (agents.rounds(), without_torch.result.seconds < 30) == ([], True)

    def lacks(*nodes: str) -> Burnin:
        agents.lacking, agents.broken, agents.sent = {}, {}, []
        one = {"load": "cpu", "lacks": "no compiler", "gpu": None}
        agents.results = {it: [{"load": "cpu", "round": 0, "seconds": 1, "results": [one]}] for it in nodes}
        burnin = burnin_of(agents, 2, loads=("cpu", "matmul"))
        run(burnin)
        return burnin

    assert lacks("n0").result.impossible == ""
    assert len(agents.rounds()) > 1
    assert "cpu: no compiler" in lacks("n0", "n1").result.impossible
    assert len(agents.rounds()) == 1
