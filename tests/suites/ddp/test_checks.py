"""Checks of ddp on plain facts: each wrong environment, rank and result has its own verdict."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask, read_facts
from pytest_gpucluster.suites.ddp import checks as ddp
from pytest_gpucluster.suites.ddp import payload
from pytest_gpucluster.suites.ddp import steps as runner
from pytest_gpucluster.suites.ddp.config import DdpConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.slurm.step import StepRequest
from framework_helpers import as_reported

from pytest_gpucluster.core.check import Metric

NODES = ("gpu01", "gpu02")


# -- verdicts on plain facts --------------------------------------------------------------------------------------


def placed(**changes: Any) -> PayloadResult:
    """Return four healthy tasks on two nodes; `task2={...}` changes the facts of one."""
    tasks = []
    for number in range(4):
        node, local = NODES[number // 2], number % 2
        fact = {
            "ddp": "place",
            "rank": number,
            "task": number,
            "node": node,
            "host": node,
            "slurm": {
                "WORLD_SIZE": "4",
                "RANK": str(number),
                "LOCAL_RANK": str(local),
                "MASTER_ADDR": "gpu01",
                "MASTER_PORT": "20100",
            },
            "given": {},
            "pytorch_version": "",
            "job": "7",
            "first": "gpu01",
            "master": {"addresses": ["10.0.0.1"], "error": ""},
            "port": "",
            "interfaces": ["lo", "eth0"],
            "interface_variables": {},
            "torch": {"version": "2.13.0", "error": ""},
            **changes.get(f"task{number}", {}),
        }
        tasks.append(PayloadTask(number, node, 0, None, (fact,)))
    return PayloadResult("ddp", NODES, 4, tuple(tasks))


def worked(**changes: list[dict[str, Any]]) -> PayloadResult:
    """Return four ranks that did all; `rank3=[...]` gives one rank other facts."""
    tasks = []
    for rank in range(4):
        node = NODES[rank // 2]
        common = {"rank": rank, "node": node}
        facts: list[dict[str, Any]] = [
            {"ddp": "loaded", "seconds": 1.0, "device": {"uuid": f"GPU-{rank}", "bus": ""}},
            {"ddp": "joined", "size": 4, "group_rank": rank, "seconds": 0.1},
            {"ddp": "reduced", "elements": 10, "wrong": 0, "seconds": 0.01},
            {
                "ddp": "trained",
                "own": str(rank),
                "synced": "a",
                "after": "b",
                "losses": [2.0, 1.0],
                "seconds": 1,
            },
            {"ddp": "done"},
        ]
        facts = changes.get(f"rank{rank}", facts)
        tasks.append(PayloadTask(rank, node, 0, None, tuple({**common, **fact} for fact in facts)))
    return PayloadResult("ddp", NODES, 4, tuple(tasks))


def found(verdict: Verdict) -> str:
    return " | ".join(f"{x.part}: {x.measured}" for x in verdict.findings)


def test_healthy_facts_pass() -> None:
    reported, done = placed(), worked()
    for node in NODES:
        assert ddp.framework(node, reported).outcome is Outcome.PASSED
        assert ddp.environment(node, reported, ddp.Setters()).outcome is Outcome.PASSED
        assert ddp.master_addr(node, reported).outcome is Outcome.PASSED
        assert ddp.interface(node, reported).outcome is Outcome.PASSED
        assert ddp.devices(node, done).outcome is Outcome.PASSED
    for verdict in (ddp.master_port(reported), ddp.group(done), ddp.all_reduce(done), ddp.training(done)):
        assert verdict.outcome is Outcome.PASSED


def test_a_rank_that_was_stopped_is_distinguished_from_those_that_waited_for_it() -> None:
    """Recorded on 2 H200: SIGSTOP to rank 1 in the training step; rank 0 ended by its own deadline."""
    done = worked()
    first, second, *others = done.tasks
    stuck = {"ddp": "stuck", "rank": 0, "phase": "training step", "seconds": 20.0}
    waited = replace(first, rc=4, facts=(*first.facts[:3], stuck))
    stopped = replace(second, rc=137, signal=9, facts=second.facts[:3])
    reported = replace(done, tasks=(waited, stopped, *others), problem="srun: cancelled after 1 min")
    assert found(ddp.training(reported)) == (
        f"rank 1 (gpu01): {ddp.STILL} | rank 0 (gpu01): training step: no end after 20 s"
    )


def test_a_wrong_rank_is_named_with_who_set_it() -> None:
    reported = placed(task3={"given": {"RANK": "2"}, "pytorch_version": "2.13.0"})
    verdict = ddp.environment("gpu02", reported, ddp.Setters(contained=True))
    assert found(verdict) == "RANK of task 3: 2 (set by Pyxis)"
    assert ddp.environment("gpu01", reported, ddp.Setters()).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("name", "fact", "setters", "who"),
    [
        ("RANK", {}, ddp.Setters(), "this suite, from Slurm's variables"),
        (
            "RANK",
            {"given": {"RANK": "1"}},
            ddp.Setters({"RANK": "1"}),
            "exports or pass_env of the environment",
        ),
        (
            "MASTER_ADDR",
            {"given": {"MASTER_ADDR": "gpu01", "MASTER_PORT": "61007"}, "pytorch_version": "2.13.0"},
            ddp.Setters(contained=True),
            "Enroot's hook 50-slurm-pytorch.sh",
        ),
        ("RANK", {"given": {"RANK": "1"}}, ddp.Setters(), "a task prolog"),
    ],
)
def test_who_set_a_variable(name: str, fact: dict[str, Any], setters: ddp.Setters, who: str) -> None:
    (first, *_rest) = placed(task0=fact).facts("place")
    assert ddp.who_set(name, first, setters).startswith(who)


def test_a_duplicate_local_rank_is_named() -> None:
    reported = placed(task2={"given": {"LOCAL_RANK": "0"}}, task3={"given": {"LOCAL_RANK": "0"}})
    printed = found(ddp.environment("gpu02", reported, ddp.Setters()))
    assert "LOCAL_RANK of task 3: 0" in printed
    assert "LOCAL_RANK 0: tasks 2, 3" in printed


def test_a_promised_variable_has_to_be_there() -> None:
    verdict = ddp.environment("gpu01", placed(), ddp.Setters(), ("RANK",))
    assert found(verdict) == "RANK of task 0: not set | RANK of task 1: not set"


def test_a_node_that_resolves_otherwise_is_named() -> None:
    other = {"master": {"addresses": ["10.9.9.9"], "error": ""}}
    reported = placed(task2=other, task3=other)
    wide = replace(
        reported,
        tasks=(
            *reported.tasks,
            *(
                replace(t, task=t.task + 4, node=n, facts=({**t.facts[0], "node": n, "task": t.task + 4},))
                for n in ("gpu03", "gpu04", "gpu05")
                for t in placed().tasks[:2]
            ),
        ),
    )
    assert "resolves to 10.9.9.9" in found(ddp.master_addr("gpu02", wide))
    assert ddp.master_addr("gpu03", wide).outcome is Outcome.PASSED


def test_an_address_that_is_the_node_itself_is_named() -> None:
    loop = {"master": {"addresses": ["127.0.1.1"], "error": ""}}
    reported = placed(task0=loop, task1=loop, task2=loop, task3=loop)
    assert ddp.master_addr("gpu01", reported).outcome is Outcome.PASSED  # its own name
    assert "this node itself" in found(ddp.master_addr("gpu02", reported))


def test_an_address_that_does_not_resolve_is_named() -> None:
    lost = {"master": {"addresses": [], "error": "Name or service not known"}}
    assert "does not resolve" in found(ddp.master_addr("gpu02", placed(task2=lost)))


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        ({"port": "taken", "given": {"MASTER_PORT": "23456"}}, "MASTER_PORT 23456 on gpu01: taken"),
        ({"port": "not local"}, "MASTER_ADDR gpu01: 10.0.0.1: not of gpu01"),
        ({"given": {"MASTER_PORT": "many"}}, "MASTER_PORT on gpu01: many"),
    ],
)
def test_a_port_that_rank_0_cannot_have(change: dict[str, Any], printed: str) -> None:
    assert printed in found(ddp.master_port(placed(task0=change)))


def test_different_ports_are_named() -> None:
    reported = placed(task3={"given": {"MASTER_PORT": "1234"}})
    assert "MASTER_PORT of task 3 on gpu02: 1234" in found(ddp.master_port(reported))


def test_only_a_port_of_our_own_is_drawn_again() -> None:
    assert ddp.own_port_taken(placed(task0={"port": "taken"}))
    assert not ddp.own_port_taken(placed(task0={"port": "taken", "given": {"MASTER_PORT": "23456"}}))
    assert ddp.own_port_taken(
        worked(rank0=[{"ddp": "failed", "phase": "x", "reason": "in use", "port": "20100"}])
    )
    assert not ddp.own_port_taken(worked())


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth0"}, False),
        ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, True),
        ({"NCCL_SOCKET_IFNAME": "eth"}, False),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, True),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, False),
        ({"NCCL_SOCKET_IFNAME": "^lo,eth"}, True),
        ({"NCCL_SOCKET_IFNAME": "ib"}, True),
    ],
)
def test_interfaces(asked: dict[str, str], lacking: bool) -> None:  # a table of cases
    verdict = ddp.interface("gpu01", placed(task0={"interface_variables": asked}))
    assert (verdict.outcome is Outcome.FAILED) is lacking


def test_torch_absent_or_of_another_version() -> None:
    none = {"torch": {"version": "", "error": "No module named 'torch'"}}
    assert "No module named" in found(ddp.framework("gpu02", placed(task2=none, task3=none)))
    other = {"torch": {"version": "1.13.0", "error": ""}}
    verdict = ddp.framework("gpu02", _mixed(other))
    assert found(verdict) == "package torch: 1.13.0"
    assert (verdict.action, verdict.findings[0].expected) == (Action.CONFIGURE, "2.13.0, as on 2 of 3 nodes")
    assert ddp.framework("gpu01", _mixed(other)).outcome is Outcome.PASSED
    halves = ddp.framework("gpu01", placed(task2=other, task3=other))
    assert (halves.action, halves.findings[0].setting) == (Action.CONFIGURE, NO_MAJORITY)
    assert (
        halves.findings[0].expected == "one value on all nodes; no majority: 2.13.0 on gpu01, 1.13.0 on gpu02"
    )


def test_master_addresses_without_a_majority_drain_nobody() -> None:
    other = {"given": {"MASTER_ADDR": "gpu02"}}
    verdict = ddp.master_addr("gpu01", placed(task2=other, task3=other))
    assert verdict.action is Action.CONFIGURE
    assert verdict.findings[0].expected == (
        "one value on all tasks; no majority: gpu01 (2) on gpu01, gpu02 (2) on gpu02"
    )


def _mixed(other: dict[str, Any]) -> PayloadResult:
    reported = placed(task2=other, task3=other)
    more = (replace(t, node="gpu03", facts=({**t.facts[0], "node": "gpu03"},)) for t in reported.tasks[:2])
    return replace(reported, tasks=(*reported.tasks, *more))


def test_silent_nodes_are_failures_not_passes() -> None:
    reported = placed()
    silent = replace(
        reported, tasks=(*reported.tasks[:2], PayloadTask(2, "gpu02", 127, None, (), "python: not found"))
    )
    assert found(ddp.framework("gpu02", silent)) == "tasks: task 2: exit status 127: python: not found"
    assert ddp.environment("gpu02", silent, ddp.Setters()).outcome is Outcome.NOT_CHECKED


def test_two_ranks_on_one_device() -> None:
    facts = [{"ddp": "loaded", "seconds": 1.0, "device": {"uuid": "GPU-0", "bus": ""}}]
    assert found(ddp.devices("gpu02", worked(rank2=facts))) == "GPU-0: ranks 0 (gpu01), 2 (gpu02)"


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("AcceleratorError: CUDA error: out of memory", Action.MONITOR),
        (
            "RuntimeError: torch 2.11.0+cu130 sees no GPU: no reason is known (CUDA_VISIBLE_DEVICES=1)",
            Action.CONFIGURE,
        ),
    ],
)
def test_memory_that_others_hold_drains_nobody(reason: str, action: Action) -> None:
    """Recorded on an H200 of whose memory another process held all."""
    verdict = ddp.devices("gpu02", worked(rank2=[{"ddp": "failed", "phase": "take a GPU", "reason": reason}]))
    assert found(verdict) == f"rank 2: take a GPU: {reason}"
    assert verdict.action is action
    assert ("another process uses the memory" in verdict.cause) == (action is Action.MONITOR)


BUSY = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (f"{BUSY}; limits of this process: 40 open files", "low limits"),
        ("CUDA error: out of memory; limits of this process: 32 GiB of address space", "low limits"),
        (
            "torch 2.11.0 sees no GPU: Error 34: CUDA driver is a stub library (CUDA_VISIBLE_DEVICES=0)",
            "driver library",
        ),
        ("torch 2.13.0+cpu sees no GPU: it is a CPU build (CUDA_VISIBLE_DEVICES=0)", "CPU build of torch"),
        (BUSY, ""),
    ],
)
def test_software_that_keeps_cuda_from_a_gpu_drains_nobody(reason: str, cause: str) -> None:
    """Recorded on H200s: the check demanded a drain for a low ulimit and for a stub of libcuda."""
    verdict = ddp.devices("gpu02", worked(rank2=[{"ddp": "failed", "phase": "take a GPU", "reason": reason}]))
    assert not verdict.action.is_repair
    assert verdict.cause.startswith(
        f"{cause}: settings or software of the node" if cause else "tasks share GPUs"
    )


def test_a_killed_rank_comes_before_those_that_felt_it() -> None:
    reported = worked(
        rank0=[
            {"ddp": "joined", "size": 4, "group_rank": 0, "seconds": 1},
            {"ddp": "failed", "phase": "all_reduce", "reason": "Connection closed by peer"},
        ],
        rank3=[{"ddp": "joined", "size": 4, "group_rank": 3, "seconds": 1}],
    )
    killed = replace(reported.tasks[3], rc=137, signal=9)
    reported = replace(reported, tasks=(replace(reported.tasks[0], rc=1), *reported.tasks[1:3], killed))
    verdict = ddp.all_reduce(reported)
    assert verdict.findings[0].part == "rank 3 (gpu02)"
    assert verdict.findings[0].measured == "ended by signal 9 (SIGKILL)"
    assert verdict.findings[1].part == "rank 0 (gpu01)"


def test_wrong_sums_and_unequal_parameters_fail() -> None:
    base = list(worked().tasks[1].facts)
    bad = [dict(fact, wrong=3) if fact["ddp"] == "reduced" else dict(fact) for fact in base]
    assert "3 of 10 elements wrong" in found(ddp.all_reduce(worked(rank1=bad)))
    apart = [dict(fact, after="c") if fact["ddp"] == "trained" else dict(fact) for fact in base]
    assert found(ddp.training(worked(rank1=apart))) == "rank 1 (gpu01): parameters after training: c"
    still = [dict(fact, after="a") if fact["ddp"] == "trained" else dict(fact) for fact in base]
    assert "changed no parameter" in found(ddp.training(worked(rank1=still)))
    nan = [dict(fact, losses=[float("nan")]) if fact["ddp"] == "trained" else dict(fact) for fact in base]
    assert "losses nan" in found(ddp.training(worked(rank1=nan)))


def test_a_lost_rank_that_nobody_notices_fails() -> None:
    reported = worked(
        rank0=[{"ddp": "stuck", "phase": "collective with a lost rank", "seconds": 20.0}],
        rank1=[{"ddp": "noticed", "seconds": 0.1, "reason": "closed"}],
        rank2=[],
        rank3=[{"ddp": "lost"}],
    )
    codes = {0: 4, 1: 9, 2: 0, 3: 137}
    reported = replace(
        reported, rc=137, tasks=tuple(replace(task, rc=codes[task.task]) for task in reported.tasks)
    )
    printed = found(ddp.lost_rank(reported, 20))
    assert printed == "rank 0 (gpu01): still waits after 20 s | rank 2 (gpu02): exit status 0"
    assert ddp.lost_rank(worked(), 20).outcome is Outcome.NOT_CHECKED


def test_torchrun_numbers_every_rank_once() -> None:
    reported = worked()
    tasks = []
    for agent, node in enumerate(NODES):
        facts = []
        for local in range(2):
            rank = agent * 2 + local
            given = {
                "WORLD_SIZE": "4",
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "MASTER_ADDR": "gpu01",
                "MASTER_PORT": "1",
            }
            facts += [
                {"ddp": "given", "rank": rank, "node": node, "given": given},
                *reported.tasks[rank].facts,
            ]
        tasks.append(PayloadTask(agent, node, 0, None, tuple(facts)))
    whole = PayloadResult("ddp", NODES, 2, tuple(tasks))
    assert ddp.torchrun((whole, 2)).outcome is Outcome.PASSED
    half = replace(whole, tasks=(tasks[0], replace(tasks[1], facts=(), rc=1, error="no route to host")))
    assert "agent on gpu02: exit status 1: no route to host" in found(ddp.torchrun((half, 2)))
    late = [replace(task, rc=143, signal=15, facts=()) for task in tasks]
    late_told = replace(whole, tasks=tuple(late), problem="srun: cancelled after 5 min")
    assert found(ddp.torchrun((late_told, 2))).count("cancelled") == 1


@pytest.mark.parametrize(("took", "problem", "timeout"), [(15, "", 300), (120, "", 480), (300, "hung", 300)])
def test_on_a_slow_machine_torchrun_has_more_time(
    monkeypatch: pytest.MonkeyPatch, took: float, problem: str, timeout: float
) -> None:
    asked: list[StepRequest] = []

    def attempt(steps: runner.Ddp, request: StepRequest) -> PayloadResult:
        asked.append(request)
        return steps.nothing()

    monkeypatch.setattr(runner.Ddp, "attempt", attempt)
    simulated = SimpleNamespace(profile=SimpleNamespace(simulated=True))
    cluster: Any = SimpleNamespace(environment=lambda *_: None, group_of=lambda _: simulated)
    allocation: Any = SimpleNamespace(slurm=None)
    steps = runner.Ddp(allocation, cluster, {}, DdpConfig(), NODES)
    monkeypatch.setattr(runner.Ddp, "fit_nodes", NODES)
    steps.done["work", "gloo"] = PayloadResult("ddp", NODES, 4, seconds=took, problem=problem)
    assert steps.torchrun.ntasks == 0
    assert asked[0].timeout == timeout
    assert float(asked[0].argv[asked[0].argv.index("PAYLOAD") - 1]) == timeout / 3


def test_nothing_fit_is_never_a_pass() -> None:
    empty = PayloadResult("ddp", (), 0)
    for verdict in (ddp.group(empty), ddp.all_reduce(empty), ddp.training(empty), ddp.torchrun((empty, 2))):
        assert verdict.outcome is Outcome.NOT_CHECKED


def test_facts_are_read_between_chatter() -> None:
    text = 'W1121 torch says\n[rank0] {"ddp": "done", "rank": 0}\n{"ddp": cut\n{"other": 1}\n'
    assert read_facts(text, "ddp") == ({"ddp": "done", "rank": 0},)


# -- pure parts of the payload ------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_seen() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        assert payload.try_port(["127.0.0.1"], port) == "taken"
    assert payload.try_port(["127.0.0.1"], port) == ""
    assert payload.try_port(["192.0.2.1"], port) == "not local"


def first_facts(rank: int, count: int) -> list[dict[str, Any]]:
    return [dict(fact) for fact in worked().tasks[rank].facts[:count]]


def agents(
    drop: str = "", more: dict[str, Any] | None = None, first: dict[str, str] | None = None, **change: Any
) -> PayloadResult:
    """Return two torchrun agents with two ranks each; the rest changes what rank 0 reported."""
    tasks = []
    for agent, node in enumerate(NODES):
        facts: list[dict[str, Any]] = []
        for local in range(2):
            rank = 2 * agent + local
            given = {"LOCAL_RANK": str(local), "WORLD_SIZE": "4", "MASTER_ADDR": "gpu01", "MASTER_PORT": "1"}
            reported: dict[str, dict[str, Any]] = {
                "given": {"given": {**given, **(first or {} if rank == 0 else {})}},
                "joined": {}, "reduced": {"wrong": 0}, "trained": {"synced": "a", "after": "b", "losses": [1.0]}, "done": {},
            }  # fmt: skip
            for kind, fact in reported.items():
                if rank or kind != drop:
                    extra = change.get(kind, {}) if rank == 0 else {}
                    facts.append({"ddp": kind, "rank": rank, "node": node, **fact, **extra})
        if more and not agent:
            facts.append({"rank": 0, "node": node, **more})
        tasks.append(PayloadTask(agent, node, 0, None, tuple(facts)))
    return PayloadResult("ddp", NODES, 2, tuple(tasks))


def losing(rc: int = 1, problem: str = "") -> PayloadResult:
    """Return two ranks of which the second was killed, and the first noticed."""
    lost = {"ddp": "lost", "rank": 1, "node": "gpu02"}
    noticed = {"ddp": "noticed", "rank": 0, "node": "gpu01", "seconds": 2.5}
    tasks = (PayloadTask(0, "gpu01", 1, None, (noticed,)), PayloadTask(1, "gpu02", 137, 9, (lost, lost)))

    return PayloadResult("ddp", NODES, 2, tasks, problem, rc=rc)


CASES: Table = {
    ddp.framework: [
        ("passed", "gpu01", placed()),
        ("configure: tasks", "gpu09", placed()),
        ("configure: package torch", "gpu02", placed(task3={"torch": {"version": "", "error": "No module"}})),
        (
            "configure: package torch [1.13, 2.13, 2, 3]",
            "gpu02",
            _mixed({"torch": {"version": "1.13.0", "error": ""}}),
        ),
    ],
    ddp.environment: [
        ("not checked", "gpu09", placed(), ddp.Setters()),
        (
            "configure: RANK of task 0; MASTER_ADDR of task 0; MASTER_PORT of task 0; RANK of task 1; MASTER_ADDR of task 1; MASTER_PORT of task 1 [50, 50, 50, 50, 0]",
            "gpu01",
            placed(),
            ddp.Setters(),
            ("RANK", "MASTER_PORT", "MASTER_ADDR"),
        ),
        (
            "configure: WORLD_SIZE of task 0 [8, 4, 3]",
            "gpu01",
            placed(task0={"given": {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "x"}}),
            ddp.Setters(exports={"WORLD_SIZE": "8"}),
        ),
        (
            "configure: LOCAL_RANK of task 0; LOCAL_RANK 1 [1, 0, 0, 1, 1]",
            "gpu01",
            placed(task0={"given": {"LOCAL_RANK": "1"}}),
            ddp.Setters({"LOCAL_RANK": "1"}),
        ),
    ],
    ddp.master_addr: [
        ("not checked", "gpu09", placed()),
        ("passed", "gpu02", placed()),
        (
            "configure: MASTER_ADDR gpu01",
            "gpu02",
            placed(task2={"master": {"addresses": [], "error": "unknown"}}),
        ),
        (
            "configure: MASTER_ADDR gpu01",
            "gpu01",
            placed(task0={"master": {"addresses": [], "error": "unknown"}}),
        ),
        (
            "configure: MASTER_ADDR gpu01; MASTER_ADDR gpu01 [127, 1, 127, 10, 127, 1, 127, 10]",
            "gpu02",
            placed(
                task2={"master": {"addresses": ["127.0.1.1", "::1"], "error": ""}},
                task3={"master": {"addresses": ["127.0.1.1", "10.0.0.1"], "error": ""}},
            ),
        ),
        (
            "passed",
            "gpu02",
            placed(
                **{
                    f"task{n}": {"host": "one", "master": {"addresses": ["127.0.0.1"], "error": ""}}
                    for n in range(4)
                }
            ),
        ),
        (
            "configure: MASTER_ADDR of task 3 [3, 4]",
            "gpu02",
            placed(task3={"given": {"MASTER_ADDR": "gpu02"}}),
        ),
    ],
    ddp.master_port: [
        ("not checked [0]", replace(placed(), tasks=placed().tasks[1:])),
        ("passed", placed()),
        (
            "configure: MASTER_PORT on gpu01 [0, 1, 65535]",
            placed(**{f"task{n}": {"given": {"MASTER_PORT": "0"}} for n in range(4)}),
        ),
        ("passed", placed(**{f"task{n}": {"given": {"MASTER_PORT": "1"}} for n in range(4)})),
        ("passed", placed(**{f"task{n}": {"given": {"MASTER_PORT": "65535"}} for n in range(4)})),
        (
            "configure: MASTER_PORT on gpu01 [65536, 1, 65535]",
            placed(**{f"task{n}": {"given": {"MASTER_PORT": "65536"}} for n in range(4)}),
        ),
        ("configure: MASTER_PORT 20100 on gpu01", placed(task0={"port": "taken"})),
        ("configure: MASTER_ADDR gpu01 [10]", placed(task0={"port": "not local"})),
        ("configure: MASTER_PORT 20100 on gpu01 [0]", placed(task0={"port": "Permission denied"})),
        ("passed", placed(task0={"port": "unknown host", "master": {"addresses": [], "error": "unknown"}})),
        (
            "configure: MASTER_PORT of task 3 on gpu02 [1234, 20100, 0]",
            placed(task3={"given": {"MASTER_PORT": "1234"}}),
        ),
    ],
    ddp.interface: [
        ("not checked", "gpu09", placed()),
        (
            "configure: GLOO_SOCKET_IFNAME; GLOO_SOCKET_IFNAME",
            "gpu01",
            placed(task0={"interface_variables": {"GLOO_SOCKET_IFNAME": "eth0,ib0,,ib1"}}),
        ),
        (
            "configure: GLOO_SOCKET_IFNAME; NCCL_SOCKET_IFNAME; NCCL_SOCKET_IFNAME",
            "gpu01",
            placed(
                task0={
                    "interface_variables": {"NCCL_SOCKET_IFNAME": "ib0,ib1", "GLOO_SOCKET_IFNAME": "eth0"},
                    "interfaces": [f"e{n}" for n in range(9)],
                }
            ),
        ),
        (
            "configure: NCCL_SOCKET_IFNAME",
            "gpu01",
            placed(task0={"interface_variables": {"NCCL_SOCKET_IFNAME": "^eth"}}),
        ),
        ("passed", "gpu01", placed(task0={"interface_variables": {"NCCL_SOCKET_IFNAME": "^ib"}})),
        (
            "configure: NCCL_SOCKET_IFNAME",
            "gpu01",
            placed(task0={"interface_variables": {"NCCL_SOCKET_IFNAME": "=eth"}}),
        ),
        ("passed", "gpu01", placed(task0={"interface_variables": {"NCCL_SOCKET_IFNAME": "=eth0,ib0"}})),
    ],
    ddp.devices: [
        ("not checked", "gpu01", PayloadResult("ddp", (), 0)),
        ("configure: tasks [0]", "gpu01", PayloadResult("ddp", NODES, 4, problem="timed out")),
        ("passed [2]", "gpu01", worked()),
        ("configure: tasks [0]", "gpu09", worked()),
        (
            "configure: GPU-0 [0, 2, 2]",
            "gpu02",
            worked(rank2=[{"ddp": "loaded", "seconds": 1.0, "device": {"uuid": "GPU-0", "bus": ""}}]),
        ),
        (
            "configure: GPU gpu02 0000:1b [2, 3, 1]",
            "gpu02",
            worked(
                **{
                    f"rank{n}": [{"ddp": "loaded", "seconds": 1.0, "device": {"uuid": "", "bus": "0000:1b"}}]
                    for n in (0, 2, 3)
                }
            ),
        ),
        ("configure: rank 2 [1]", "gpu02", worked(rank2=[])),
    ],
    ddp.group: [
        ("not checked", PayloadResult("ddp", (), 0)),
        ("passed [0.1, 1]", worked()),
        (
            "monitor: rank 3 (gpu02) [0, 1, 3, 4, 9, 1]",
            worked(rank3=[{"ddp": "joined", "size": 1, "group_rank": 0, "seconds": 9}]),
        ),
        (
            "monitor: rank 3 (gpu02) [2, 4, 3, 4, 0.1, 1]",
            worked(rank3=[{"ddp": "joined", "size": 4, "group_rank": 2, "seconds": 0.1}]),
        ),
        ("monitor: rank 3 (gpu02) [0.1, 3]", worked(rank3=[{"ddp": "loaded", "seconds": 3, "device": {}}])),
        ("monitor: rank 3 [0.1, 1]", replace(worked(), tasks=worked().tasks[:3])),
        ("monitor: rank 0 [0.1, 1]", replace(worked(), tasks=worked().tasks[1:], problem="timed out")),
        ("monitor: rank 0; rank 1", PayloadResult("ddp", NODES, 2)),
    ],
    ddp.all_reduce: [
        ("not checked", PayloadResult("ddp", (), 0)),
        ("not checked", PayloadResult("ddp", NODES, 2)),
        ("passed [10]", worked()),
        (
            "configure: rank 1 (gpu01) [3, 10, 500]",
            worked(
                rank1=[*first_facts(1, 2), {"ddp": "reduced", "elements": 10, "wrong": 3, "seconds": 0.5}]
            ),
        ),
        ("configure: rank 1 (gpu01) [10]", worked(rank1=[*first_facts(1, 2)])),
    ],
    ddp.training: [
        ("not checked", PayloadResult("ddp", (), 0)),
        ("not checked", PayloadResult("ddp", NODES, 2)),
        ("passed [1]", worked()),
        ("monitor: rank 1 (gpu01) [1]", worked(rank1=[*first_facts(1, 3)])),
        ("monitor: rank 1 (gpu01) [1]", worked(rank1=[*first_facts(1, 4)])),
        (
            "monitor: rank 1 (gpu01) [5]",
            worked(
                rank1=[
                    *first_facts(1, 3),
                    {"ddp": "trained", "synced": "z", "after": "b", "losses": [1.0], "seconds": 5},
                    {"ddp": "done"},
                ]
            ),
        ),
        (
            "monitor: rank 1 (gpu01); rank 1 (gpu01); rank 1 (gpu01) [1, 1]",
            worked(
                rank1=[
                    *first_facts(1, 3),
                    {
                        "ddp": "trained",
                        "synced": "a",
                        "after": "a",
                        "losses": [float("nan"), 1.0],
                        "seconds": 1,
                    },
                    {"ddp": "done"},
                ]
            ),
        ),
        (
            "monitor: rank 0 (gpu01); rank 1 (gpu01); rank 2 (gpu02); rank 3 (gpu02) [0, 1, 2, 3, 1]",
            worked(
                **{
                    f"rank{n}": [
                        *first_facts(n, 3),
                        {"ddp": "trained", "synced": "a", "after": str(n), "losses": [1.0], "seconds": 1},
                        {"ddp": "done"},
                    ]
                    for n in range(4)
                }
            ),
        ),
    ],
    ddp.torchrun: [
        ("not checked", (PayloadResult("ddp", (), 0), 2)),
        ("passed", (agents(), 2)),
        ("monitor: ranks [0, 1, 2, 3, 0, 5]", (agents(), 3)),
        ("monitor: LOCAL_RANK on gpu01 [1, 1, 0, 1]", (agents(first={"LOCAL_RANK": "1"}), 2)),
        ("monitor: WORLD_SIZE [4, 8, 4]", (agents(first={"WORLD_SIZE": "8"}), 2)),
        ("monitor: MASTER_PORT [1, 2]", (agents(first={"MASTER_PORT": "2"}), 2)),
        ("monitor: MASTER_ADDR", (agents(first={"MASTER_ADDR": "b"}), 2)),
        (
            "monitor: WORLD_SIZE [8, 4]",
            (
                replace(
                    agents(),
                    tasks=tuple(
                        replace(
                            t,
                            facts=tuple(
                                {**f, "given": {**f["given"], "WORLD_SIZE": "8"}}
                                if f["ddp"] == "given"
                                else f
                                for f in t.facts
                            ),
                        )
                        for t in agents().tasks
                    ),
                ),
                2,
            ),
        ),
        (
            "monitor: agent on gpu01; ranks [1, 0, 2, 3, 0, 3]",
            (replace(agents(), tasks=(replace(agents().tasks[0], rc=1, facts=()), agents().tasks[1])), 2),
        ),
        (
            "monitor: ranks; step [0, 3]",
            (
                replace(
                    agents(),
                    problem="timed out",
                    tasks=(
                        replace(agents().tasks[0], rc=None, signal=9, facts=()),
                        replace(agents().tasks[1], rc=None, signal=9, facts=()),
                    ),
                ),
                2,
            ),
        ),
        ("monitor: rank 0", (agents(drop="joined"), 2)),
        ("monitor: rank 0", (agents(drop="done"), 2)),
        (
            "monitor: rank 0",
            (agents(drop="trained", more={"ddp": "failed", "phase": "train", "reason": "NaN"}), 2),
        ),
        (
            "monitor: rank 0",
            (agents(drop="reduced", more={"ddp": "stuck", "phase": "reduce", "seconds": 3}), 2),
        ),
        ("monitor: all_reduce [4]", (agents(reduced={"wrong": 4}), 2)),
        ("monitor: parameters [2]", (agents(trained={"after": "c"}), 2)),
    ],
    ddp.lost_rank: [
        ("not checked", PayloadResult("ddp", (), 0), 30),
        ("not checked", PayloadResult("ddp", NODES, 2), 30),
        ("not checked", PayloadResult("ddp", NODES, 2, problem="refused"), 30),
        ("passed [2.5]", losing(), 30),
        ("monitor: step [0, 0, 2.5]", losing(rc=0), 30),
        ("passed [2.5]", losing(rc=0, problem="x"), 30),
        (
            "monitor: rank 1 (gpu02) [0, 0, 2.5]",
            replace(losing(), tasks=(losing().tasks[0], replace(losing().tasks[1], rc=0))),
            30,
        ),
        (
            "monitor: rank 1 (gpu02) [30, 2.5]",
            replace(losing(), tasks=(losing().tasks[0], replace(losing().tasks[1], rc=None))),
            30,
        ),
        (
            "monitor: rank 1 (gpu02) [7.5, 2.5]",
            replace(
                losing(),
                tasks=(
                    losing().tasks[0],
                    replace(
                        losing().tasks[1],
                        facts=(
                            losing().tasks[1].facts[0],
                            {"ddp": "stuck", "rank": 1, "node": "gpu02", "phase": "p", "seconds": 3},
                        ),
                    ),
                ),
            ),
            7.5,
        ),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


def test_an_agent_that_fails_after_all_ranks_are_done_is_reported_and_drains_nobody() -> None:
    whole = agents()
    failed = replace(whole, tasks=(whole.tasks[0], replace(whole.tasks[1], rc=1, error="store is gone")))
    verdict = ddp.torchrun((failed, 2))
    assert verdict.findings == (
        Finding("agent on gpu02", "exit status 1: store is gone", "ends with 0", Action.MONITOR),
    )
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
    late = replace(whole, problem="timed out", tasks=tuple(replace(t, rc=137, signal=9) for t in whole.tasks))
    assert ddp.torchrun((late, 2)).findings == (
        Finding("step", "timed out", "ends by itself", Action.MONITOR),
    )
    early = replace(whole, tasks=(replace(whole.tasks[0], rc=1, facts=()), whole.tasks[1]))
    assert not ddp.torchrun((early, 2)).action.is_repair


def test_what_comes_without_what_goes_before_is_not_judged() -> None:
    """A step that no node was fit for has no ranks, and without a group there is no data to judge."""
    loaded = {"ddp": "loaded", "rank": 0, "node": "gpu01", "seconds": 1.0}
    bad = {"ddp": "reduced", "rank": 0, "node": "gpu01", "seconds": 1.0, "wrong": 1, "elements": 2}
    trained = {
        "ddp": "trained",
        "rank": 0,
        "node": "gpu01",
        "synced": "a",
        "after": "a",
        "losses": [],
        "seconds": 1,
    }

    def reported(ntasks: int, *facts: dict[str, Any]) -> PayloadResult:
        return PayloadResult("ddp", NODES, ntasks, (PayloadTask(0, "gpu01", 0, None, facts),))

    for verdict in (
        ddp.group(reported(0, loaded)),
        ddp.all_reduce(reported(1, bad)),
        ddp.training(reported(1, trained)),
        ddp.torchrun((reported(0, {"ddp": "given", "rank": 7}), 1)),
        ddp.lost_rank(reported(0, {"ddp": "lost"}), 9),
        ddp.lost_rank(reported(1), 9),
    ):
        assert (verdict.outcome, verdict.findings, verdict.metrics) == (Outcome.NOT_CHECKED, (), ())


def test_constants_that_programs_of_others_set() -> None:
    # Enroot's 50-slurm-pytorch.sh: MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))
    assert (ddp.HOOK_FIRST_PORT, ddp.HOOK_PORTS, ddp.MAX_PORT) == (61000, 4536, 65535)


@pytest.mark.parametrize(
    ("name", "given", "version", "job", "by"),
    [
        ("RANK", "1", "2.1", "7", "Pyxis"),
        ("LOCAL_RANK", "1", "2.1", "7", "Pyxis"),
        ("LOCAL_RANK", "1", "", "7", "the image or a hook of Enroot"),
        ("MASTER_PORT", "61007", "2.1", "7", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61007", "", "7", "the image or a hook of Enroot"),
        ("MASTER_PORT", "61000", "2.1", "4536", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "65535", "2.1", "4535", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61000", "2.1", "", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61001", "2.1", None, "the image or a hook of Enroot"),
        ("MASTER_ADDR", None, "2.1", "7", "this suite, from Slurm's variables"),
    ],
)
def test_who_set_a_variable_of_a_job(
    name: str, given: str | None, version: str, job: str | None, by: str
) -> None:
    fact = {"given": {} if given is None else {name: given}, "pytorch_version": version, "job": job}
    assert ddp.who_set(name, fact, ddp.Setters(contained=True)) == by


def placed_verdict(node: str = "gpu02", **change: Any) -> Verdict:
    return ddp.master_addr(node, placed(**change))


def test_the_address_of_the_leader() -> None:
    loop = {"master": {"addresses": ["127.0.1.1"], "error": ""}}
    assert placed_verdict("gpu01", task0=loop, task1=loop).outcome is Outcome.PASSED  # its own name
    assert placed_verdict(task2=loop, task3=loop).findings == (
        (Finding("MASTER_ADDR gpu01", "127.0.1.1: this node itself", "an address of gpu01"),) * 2
    )
    assert placed_verdict("gpu01", task2=loop, task3=loop).outcome is Outcome.PASSED
    silent = PayloadResult("ddp", ("gpu01", "gpu02"), 4, problem="it hung")
    assert as_reported(ddp.master_addr("gpu01", silent)) == (
        Outcome.NOT_CHECKED, "the tasks of the node reported nothing: it hung", (), ()
    )  # fmt: skip


def test_a_leader_that_is_elsewhere_has_all_its_addresses_named() -> None:
    leader = {"port": "not local", "master": {"addresses": ["10.0.0.8", "fe80::8"], "error": ""}}
    assert ddp.master_port(placed(task0=leader)).findings == (
        Finding("MASTER_ADDR gpu01", "10.0.0.8, fe80::8: not of gpu01", "an address of the node"),
    )


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ([{"ddp": "place", "port": "taken", "given": {}}], True),
        ([{"ddp": "place", "port": "taken", "given": {"MASTER_PORT": "1"}}], False),
        ([{"ddp": "place", "port": "", "given": {}}], False),
        ([{"ddp": "place", "port": "", "given": {}}, {"ddp": "failed", "port": 1}], True),
        ([{"ddp": "place", "port": "", "given": {"MASTER_PORT": "1"}}, {"ddp": "failed", "port": 1}], False),
        ([{"ddp": "place", "port": "", "given": {"RANK": "1"}}, {"ddp": "failed", "port": 1}], True),
        ([{"ddp": "place", "port": "", "given": {}}, {"ddp": "failed"}], False),
        ([{"ddp": "failed", "port": 1}], True),
    ],
)
def test_a_port_that_was_drawn_and_is_taken(facts: list[dict[str, Any]], *, taken: bool) -> None:
    step = PayloadResult("ddp", ("n",), 1, (PayloadTask(0, "n", 3, None, tuple(facts)),))
    assert ddp.own_port_taken(step) is taken


def test_the_site_that_sets_the_variables_is_named() -> None:
    verdict = ddp.environment("gpu01", placed(), ddp.Setters(), ddp.VARIABLES)
    hook, pyxis = "set by the site (Enroot's hook 50-slurm-pytorch.sh)", "set by the site (Pyxis)"
    expected = {
        "WORLD_SIZE": hook, "RANK": pyxis, "LOCAL_RANK": pyxis, "MASTER_ADDR": hook, "MASTER_PORT": hook,
    }  # fmt: skip
    assert verdict.findings == tuple(
        Finding(f"{name} of task {task}", "not set", words)
        for task in (0, 1)
        for name, words in expected.items()
    )


def failed(number: int, reason: str = "", **change: Any) -> PayloadTask:
    fact = {"ddp": "failed", "rank": number, "phase": "init", "reason": reason}
    return PayloadTask(number, "n", 1, None, (fact,) if reason else (), **change)


def test_causes_come_before_what_follows_from_them() -> None:
    stuck = {"ddp": "stuck", "rank": 0, "phase": "init", "seconds": 60.0}
    follows = [
        "timeout", "Timeout", "timed out", "time out", "Timedout", "connection closed", "Connection reset",
        "Connection refused", "connection was", "broken pipe", "Broken pipe", "3 of 4 clients joined",
    ]  # fmt: skip
    tasks = [
        PayloadTask(0, "n", 1, None, (stuck,)),
        *(failed(n + 1, printed) for n, printed in enumerate(follows)),
    ]
    tasks += [failed(40, "no CUDA"), PayloadTask(41, "n", None, 9, ())]
    order = [task.task for task in ddp._causes_first(tasks, PayloadResult("ddp", ("n",), 42, tuple(tasks)))]
    assert order == [40, 41, *range(1, 13), 0]


def test_the_last_to_notice_a_lost_rank_counts() -> None:
    facts: list[dict[str, Any]] = [
        {"ddp": "lost", "rank": 3},
        *({"ddp": "noticed", "rank": n, "seconds": n + 1.0} for n in range(3)),
    ]
    tasks = tuple(PayloadTask(int(fact["rank"]), "n", 1, None, (fact,)) for fact in facts)
    assert as_reported(ddp.lost_rank(PayloadResult("ddp", ("n",), 4, tasks, rc=1), 60.0)) == (
        Outcome.PASSED, "", (), (Metric("ddp_lost_rank", 3.0, "s"),)
    )  # fmt: skip
