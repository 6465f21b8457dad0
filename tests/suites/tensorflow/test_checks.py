"""Checks of tensorflow on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED
from framework_helpers import Table, decided
from judged import parts
from suite_helpers import considered, machine

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.tensorflow import checks, payload

NODES = ("gpu01", "gpu02")


def worked(size: int = 4, **changes: dict[str, dict[str, Any]]) -> PayloadResult:
    """Return healthy workers, two a node; `worker3={kind: facts}` changes one."""
    tasks = []
    for rank in range(size):
        common = {"rank": rank, "node": NODES[rank // 2]}
        cluster = {"worker": ["a:1", "a:2", "b:3", "b:4"]}
        facts: dict[str, dict[str, Any]] = {
            "config": {"config": {"cluster": cluster, "task": {"type": "worker", "index": rank}}, "given": ""},
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
ALL = "gpu01 rank 0; gpu01 rank 1; gpu02 rank 2; gpu02 rank 3"
SPLIT = worked(worker1={"trained": {"after": "a"}})
SHORT = {"config": {"config": {"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}}}
CLUSTER = worked(worker1={"config": {"given": '{"cluster": {}}'}})
PACKAGE, MIXED = "package tensorflow", installed("gpu01", "gpu02", "gpu03", gpu03={"version": "2.15"})
CASES: Table = {
    checks.framework: [
        ("configure: python no_task", "gpu01", PayloadResult("tensorflow", NODES, 2)),
        ("passed", "gpu01", installed("gpu01", "gpu02")),
        (f"configure: {PACKAGE} not_installed", "gpu01", installed("gpu01", gpu01={"error": "No module"})),
        (f"configure: {PACKAGE} differs_from_peers [2.15, 2.16, 2, 3]", "gpu03", MIXED),
    ],
    checks.mirrored: [
        ("not checked", "gpu01", NONE, 0),
        ("monitor: task no_task", "gpu03", worked(), 0),
        ("passed [1]", "gpu01", alone(), 0),
        ("monitor: rank 0 other_replicas [2, 8, 1]", "gpu01", alone(), 8),
        ("monitor: rank 0 unequal_replicas [1]", "gpu01", alone(trained={"after": ""}), 0),
        ("monitor: rank 0 wrong_data [1, 1]", "gpu01", alone(reduced={"wrong": 1}), 0),
    ],
    checks.workers: [
        ("monitor: gpu01 rank 0 other_replicas [2, 4, 0.1]", worked(worker0={"joined": {"replicas": 2}}), 1),
        ("monitor: gpu02 rank 2 wrong_data [3, 0.1]", worked(worker2={"reduced": {"wrong": 3}}), 1),
        (f"monitor: {ALL} other_replicas [4, 8, 4, 8, 4, 8, 4, 8, 0.1]", worked(), 2),
        ("monitor: rank 0 timed_out [0, 0.1]", first("the step timed out"), 1),
        ("monitor: gpu01 rank 0 exit_status [3, 0, 0.1]", first(rc=3), 1),
        ("monitor: gpu01 rank 0 peer_lost [0, 0.1]", first(rc=4, facts=(UNAVAILABLE,)), 1),
    ],
    checks.config: [
        ("configure: task.index other_ranks [0, 1, 2, 0, 3]", replace(worked(), tasks=worked().tasks[:3])),
        ("configure: gpu01 rank 1 TF_CONFIG set_before", CLUSTER),
        ("not checked", NONE),
        ("passed", worked()),
        ("configure: cluster several_clusters [2]", worked(worker1=SHORT)),
    ],
    checks.equal: [
        ("monitor: gpu01 rank 1 not_finite [1]", worked(worker1={"trained": {"losses": [float("nan")]}})),
        ("monitor: gpu01 rank 1 unequal_after; gpu01 rank 1 unchanged", SPLIT),
        ("monitor: gpu02 rank 2 unequal_after", worked(worker2={"trained": {"after": "c"}})),
        ("not checked", NONE),
        ("passed", worked()),
        ("monitor: gpu02 rank 2 unequal_before", worked(worker2={"trained": {"before": "c"}})),
        (
            f"monitor: {ALL} unequal_after_replicas",
            worked(4, **{f"worker{rank}": {"trained": {"after": ""}} for rank in range(4)}),
        ),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


FOLLOWS = ("Unavailable: x", "Connection refused", "connection lost", "DEADLINE_EXCEEDED", "heartbeat", "task:1")


@pytest.mark.parametrize("words", [*FOLLOWS, "task:x", "out of memory"])
def test_what_only_follows_comes_after_its_cause(words: str) -> None:
    tasks = [PayloadTask(0, "gpu01", 1, None, (), words), PayloadTask(1, "gpu02", 137, 9, ())]
    named = parts(checks.workers(PayloadResult("tensorflow", NODES, 2, tuple(tasks)), 1))
    assert named == sorted(["gpu01 rank 0", "gpu02 rank 1"], reverse=words in FOLLOWS)


def eight(**changes: dict[str, Any]) -> PayloadResult:
    return alone(**{"joined": {"replicas": 8}, **changes})


GUIDE = "https://www.tensorflow.org/guide/distributed_training"
WORKERS = "https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras"
CUDNN = first(error="E0000 cuda_dnn.cc:8579] Unable to register cuDNN factory")
HANGS = {"tensorflow": "stuck", "rank": 0, "node": "gpu01", "phase": "join", "seconds": 100}
ABSENT = first(rc=137, signal=9, facts=(HANGS,))
SINGLE = worked(4, **{f"worker{rank}": {"joined": {"replicas": 1}} for rank in range(4)})
OWN_DATA = worked(worker1={"trained": {"losses": [0.5, 0.4]}})
UNTRAINED = replace(worked(), tasks=tuple(replace(it, facts=it.facts[:3]) for it in worked().tasks))
mirrored, workers, equal = checks.mirrored, checks.workers, checks.equal
COUNTER_EXAMPLES = (
    machine(mirrored, "eight replicas on eight GPUs", GUIDE, PASSED, "gpu01", eight(), 8),
    machine(mirrored, "two replicas on logical CPUs", GUIDE, PASSED, "gpu01", alone(), 2),
    machine(mirrored, "the loss rises", GUIDE, PASSED, "gpu01", eight(trained={"losses": [1.0, 3.0]}), 8),
    machine(mirrored, "a GPU is lost", GUIDE, MONITOR, "gpu01", alone(joined={"replicas": 7}), 8, sick=True),
    machine(workers, "a worker is late", WORKERS, PASSED, worked(worker3={"joined": {"seconds": 90.0}}), 1),
    machine(workers, "a worker warns on stderr and ends with 0", WORKERS, PASSED, CUDNN, 1),
    machine(workers, "a worker does not join", WORKERS, MONITOR, ABSENT, 1, sick=True),
    machine(workers, "each worker is alone", WORKERS, MONITOR, SINGLE, 1, sick=True),
    machine(equal, "losses differ: the data do", WORKERS, PASSED, OWN_DATA),
    machine(equal, "no worker trained", WORKERS, NOT_CHECKED, UNTRAINED),
    machine(equal, "one differs", WORKERS, MONITOR, worked(worker1={"trained": {"after": "c"}}), sick=True),
)
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
