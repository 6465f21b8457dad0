"""Checks of tensorflow on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told
from judged import parts

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.tensorflow import checks, payload

if TYPE_CHECKING:
    from collections.abc import Callable


NODES = ("gpu01", "gpu02")


def worked(size: int = 4, **changes: dict[str, dict[str, Any]]) -> PayloadResult:
    """Return healthy workers, two a node; `worker3={kind: facts}` changes one."""
    tasks = []
    for rank in range(size):
        common = {"rank": rank, "node": NODES[rank // 2]}
        cluster = {"worker": ["a:1", "a:2", "b:3", "b:4"]}
        facts: dict[str, dict[str, Any]] = {
            "config": {
                "config": {"cluster": cluster, "task": {"type": "worker", "index": rank}},
                "given": "",
            },
            "loaded": {"seconds": 1.0},
            "joined": {"replicas": size, "seconds": 0.1},
            "reduced": {"wrong": 0},
            "trained": {"before": "a", "after": "b", "losses": [2.0, 1.0]},
            "done": {},
        }
        for kind, change in changes.get(f"worker{rank}", {}).items():
            facts[kind] = {**facts.get(kind, {}), **change}
        reported = tuple({"tensorflow": kind, **common, **fact} for kind, fact in facts.items())
        tasks.append(PayloadTask(rank, NODES[rank // 2], 0, None, reported))
    return PayloadResult("tensorflow", NODES, size, tuple(tasks))


def installed(*nodes: str, **change: dict[str, str]) -> PayloadResult:
    """Return what the nodes have installed; `gpu03={...}` changes the last fact of one."""
    tasks = []
    for node in nodes:
        fact = {"tensorflow": "found", "node": node, "error": "", "version": "2.16", **change.get(node, {})}
        tasks.append(PayloadTask(0, node, 0, None, (fact,)))
    return PayloadResult("tensorflow", nodes, len(nodes), tuple(tasks))


def everyone(**trained: str) -> PayloadResult:
    """Return four workers that all trained to the same other end."""
    return worked(4, **{f"worker{rank}": {"trained": {**trained}} for rank in range(4)})


def alone(**changes: dict[str, Any]) -> PayloadResult:
    return worked(1, worker0={"joined": {"replicas": 2}, **changes})


def first(problem: str = "", **ended: Any) -> PayloadResult:
    """Return workers of which the first ended otherwise, or did not start."""
    one, *others = worked().tasks
    return replace(worked(), problem=problem, tasks=(*([replace(one, **ended)] if ended else []), *others))


def test_tf_config_is_made_from_the_allocation() -> None:
    env = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    made = payload.cluster("n1=10.0.0.1,n2=10.0.0.2", 20000, env)
    assert made["task"] == {"type": "worker", "index": 2}
    ports = ["10.0.0.1:20000", "10.0.0.1:20001", "10.0.0.2:20002", "10.0.0.2:20003"]
    assert made["cluster"]["worker"] == ports


NONE = PayloadResult("tensorflow", (), 0)
UNAVAILABLE = {"tensorflow": "failed", "rank": 0, "phase": "join", "reason": "Unavailable"}
ALL = "worker 0 (gpu01); worker 1 (gpu01); worker 2 (gpu02); worker 3 (gpu02)"
SHORT = {"config": {"config": {"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}}}
THREE = ("gpu01", "gpu02", "gpu03")
CASES: Table = {
    checks.framework: [
        ("configure: python", "gpu01", PayloadResult("tensorflow", NODES, 2)),
        ("passed", "gpu01", installed("gpu01", "gpu02")),
        ("configure: package tensorflow", "gpu01", installed("gpu01", gpu01={"error": "No module"})),
        (
            "configure: package tensorflow [2.15, 2.16, 2, 3]",
            *("gpu03", installed(*THREE, gpu03={"version": "2.15"})),
        ),
    ],
    checks.mirrored: [
        ("not checked", "gpu01", NONE, 0),
        ("monitor: task", "gpu03", worked(), 0),
        ("passed [1]", "gpu01", alone(), 0),
        ("monitor: task 0 [2, 8, 1]", "gpu01", alone(), 8),
        ("passed [1]", "gpu01", alone(joined={"replicas": 8}), 8),
        ("monitor: task 0 [1]", "gpu01", alone(trained={"after": ""}), 0),
        ("monitor: task 0 [1]", "gpu01", alone(trained={"after": "a"}), 0),
        ("monitor: task 0 [1, 1]", "gpu01", alone(reduced={"wrong": 1}), 0),
    ],
    checks.workers: [
        ("monitor: worker 0 (gpu01) [2, 4, 0.1]", worked(worker0={"joined": {"replicas": 2}}), 1),
        ("monitor: worker 2 (gpu02) [3, 0.1]", worked(worker2={"reduced": {"wrong": 3}}), 1),
        ("not checked", NONE, 1),
        ("passed [0.1]", worked(), 1),
        (f"monitor: {ALL} [4, 8, 4, 8, 4, 8, 4, 8, 0.1]", worked(), 2),
        ("passed [7]", worked(worker1={"joined": {"seconds": 7}}), 1),
        ("monitor: worker 0 [0.1]", first(), 1),
        ("monitor: worker 0 [0.1]", first("the step timed out"), 1),
        ("monitor: worker 0 (gpu01) [3, 0, 0.1]", first(rc=3), 1),
        ("monitor: worker 0 (gpu01) [0, 0.1]", first("cancelled", rc=None, signal=15, facts=()), 1),
        ("monitor: worker 0 (gpu01) [0, 0.1]", first(rc=4, facts=(UNAVAILABLE,)), 1),
    ],
    checks.config: [
        ("configure: task.index [0, 1, 2, 0, 3]", replace(worked(), tasks=worked().tasks[:3])),
        ("configure: TF_CONFIG of task 1 on gpu01", worked(worker1={"config": {"given": '{"cluster": {}}'}})),
        ("not checked", NONE),
        ("passed", worked()),
        ("configure: task.index [0, 3]", replace(worked(), tasks=())),
        ("configure: TF_CONFIG of task 1 on gpu01", worked(worker1={"config": {"given": "x" * 121}})),
        ("configure: cluster [2]", worked(worker1=SHORT)),
    ],
    checks.equal: [
        ("monitor: worker 1 (gpu01)", worked(worker1={"trained": {"losses": [float("nan")]}})),
        ("monitor: worker 1 (gpu01); worker 1 (gpu01)", worked(worker1={"trained": {"after": "a"}})),
        ("monitor: worker 2 (gpu02)", worked(worker2={"trained": {"after": ""}})),
        ("monitor: worker 2 (gpu02)", worked(worker2={"trained": {"after": "c"}})),
        ("not checked", NONE),
        ("not checked", PayloadResult("tensorflow", NODES, 2)),
        ("passed", worked()),
        ("monitor: worker 2 (gpu02)", worked(worker2={"trained": {"before": "c"}})),
        (f"monitor: {ALL}", everyone(after="")),
        (f"monitor: {ALL}", everyone(after="a")),
        ("monitor: worker 1 (gpu01) [1]", worked(worker1={"trained": {"losses": [1.0, float("inf")]}})),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


FOLLOWS = (
    *("no end after 3 s", "Unavailable: x", "Connection refused", "connection lost", "DEADLINE_EXCEEDED"),
    *("heartbeat", "/job:worker/task:1 died"),
)


@pytest.mark.parametrize("words", [*FOLLOWS, "task:x", "out of memory"])
def test_what_only_follows_comes_after_its_cause(words: str) -> None:
    tasks = [PayloadTask(0, "gpu01", 1, None, (), words), PayloadTask(1, "gpu02", 137, 9, ())]
    named = parts(checks.workers(PayloadResult("tensorflow", NODES, 2, tuple(tasks)), 1))
    assert named == sorted(["worker 0 (gpu01)", "worker 1 (gpu02)"], reverse=words in FOLLOWS)
