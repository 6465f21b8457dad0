"""Checks of tensorflow on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.tensorflow import checks, payload

if TYPE_CHECKING:
    from collections.abc import Callable


from pytest_gpucluster.core.check import Action, Finding
from pytest_gpucluster.suites.tensorflow import checks as tensorflow

NODES = ("gpu01", "gpu02")


def worked(size: int = 4, **changes: dict[str, dict[str, Any]]) -> PayloadResult:
    """Return healthy workers, two a node; `worker3={kind: facts}` changes one."""
    tasks = []
    for rank in range(size):
        common = {"rank": rank, "node": NODES[rank // 2]}
        workers = ["a:1", "a:2", "b:3", "b:4"]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        facts: dict[str, dict[str, Any]] = {
            "config": {"config": config, "given": ""},
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


def installed(node: str, **change: str) -> PayloadTask:
    fact = {"tensorflow": "found", "node": node, "error": "", "version": "2.16", **change}
    return PayloadTask(0, node, 0, None, (fact,))


def everyone(**trained: str) -> PayloadResult:
    """Return four workers that all trained to the same other end."""
    return worked(4, **{f"worker{rank}": {"trained": {**trained}} for rank in range(4)})


def found(verdict: Verdict) -> str:
    return " | ".join(f"{x.part}: {x.measured}" for x in verdict.findings)


def test_healthy_facts_pass() -> None:
    reported = worked()
    for verdict in (checks.config(reported), checks.workers(reported, 1), checks.equal(reported)):
        assert verdict.outcome is Outcome.PASSED


def test_wrong_sums_and_unequal_weights_fail() -> None:
    assert "3 elements of the sum wrong" in found(
        checks.workers(worked(worker2={"reduced": {"wrong": 3}}), 1)
    )
    assert found(checks.equal(worked(worker2={"trained": {"after": "c"}}))) == (
        "worker 2 (gpu02): weights after training: c"
    )
    assert "replicas differ" in found(checks.equal(worked(worker2={"trained": {"after": ""}})))
    assert "changed no weight" in found(checks.equal(worked(worker1={"trained": {"after": "a"}})))
    assert "losses nan" in found(checks.equal(worked(worker1={"trained": {"losses": [float("nan")]}})))
    assert "2 replicas" in found(checks.workers(worked(worker0={"joined": {"replicas": 2}}), 1))


def test_a_config_that_the_site_sets_is_named() -> None:
    reported = worked(worker1={"config": {"given": '{"cluster": {}}'}})
    assert found(checks.config(reported)) == 'TF_CONFIG of task 1 on gpu01: {"cluster": {}}'
    assert "task.index" in found(checks.config(replace(reported, tasks=reported.tasks[:3])))


def test_a_worker_that_died_comes_before_those_that_wait_for_it() -> None:
    reported = worked()
    waits = {"tensorflow": "stuck", "rank": 0, "node": "gpu01", "phase": "strategy", "seconds": 30.0}
    tasks = [
        replace(task, rc=137, signal=9, facts=({**waits, "rank": task.task},)) for task in reported.tasks
    ]
    tasks[3] = replace(tasks[3], rc=137, signal=9, facts=())
    verdict = checks.workers(replace(reported, tasks=tuple(tasks)), 1)
    assert verdict.findings[0].part == "worker 3 (gpu02)"
    assert verdict.findings[0].measured == "ended by signal 9 (SIGKILL)"
    assert "strategy: no end after 30 s" in verdict.findings[1].measured


def test_nothing_fit_is_never_a_pass() -> None:
    empty = PayloadResult("tensorflow", (), 0)
    verdicts = (
        checks.config(empty),
        checks.workers(empty, 1),
        checks.equal(empty),
        checks.mirrored("a", empty, 0),
    )
    assert {verdict.outcome for verdict in verdicts} == {Outcome.NOT_CHECKED}


def test_tf_config_is_made_from_the_allocation() -> None:
    env = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    made = payload.cluster("n1=10.0.0.1,n2=10.0.0.2", 20000, env)
    assert made["task"] == {"type": "worker", "index": 2}
    assert made["cluster"]["worker"] == [
        "10.0.0.1:20000",
        "10.0.0.1:20001",
        "10.0.0.2:20002",
        "10.0.0.2:20003",
    ]


CASES: Table = {
    checks.framework: [
        ("configure: python", "gpu01", PayloadResult("tensorflow", NODES, 2)),
        ("passed", "gpu01", PayloadResult("tensorflow", NODES, 2, (installed("gpu01"), installed("gpu02")))),
        (
            "configure: package tensorflow",
            "gpu01",
            PayloadResult("tensorflow", NODES, 2, (installed("gpu01", error="No module"),)),
        ),
        (
            "configure: package tensorflow [2.15, 2.16, 2, 3]",
            "gpu03",
            PayloadResult(
                "tensorflow",
                NODES,
                3,
                (installed("gpu01"), installed("gpu02"), installed("gpu03", version="2.15")),
            ),
        ),
    ],
    checks.mirrored: [
        ("not checked", "gpu01", PayloadResult("tensorflow", (), 0), 0),
        ("monitor: task", "gpu03", worked(), 0),
        ("passed [1]", "gpu01", worked(1, worker0={"joined": {"replicas": 2}}), 0),
        ("monitor: task 0 [2, 8, 1]", "gpu01", worked(1, worker0={"joined": {"replicas": 2}}), 8),
        ("passed [1]", "gpu01", worked(1, worker0={"joined": {"replicas": 8}}), 8),
        (
            "monitor: task 0 [1]",
            "gpu01",
            worked(1, worker0={"joined": {"replicas": 2}, "trained": {"after": ""}}),
            0,
        ),
        (
            "monitor: task 0 [1]",
            "gpu01",
            worked(1, worker0={"joined": {"replicas": 2}, "trained": {"after": "a"}}),
            0,
        ),
        (
            "monitor: task 0 [1, 1]",
            "gpu01",
            worked(1, worker0={"joined": {"replicas": 2}, "reduced": {"wrong": 1}}),
            0,
        ),
    ],
    checks.workers: [
        ("not checked", PayloadResult("tensorflow", (), 0), 1),
        ("passed [0.1]", worked(), 1),
        (
            "monitor: worker 0 (gpu01); worker 1 (gpu01); worker 2 (gpu02); worker 3 (gpu02) [4, 8, 4, 8, 4, 8, 4, 8, 0.1]",
            worked(),
            2,
        ),
        ("passed [7]", worked(worker1={"joined": {"seconds": 7}}), 1),
        ("monitor: worker 1 (gpu01) [5, 0.1]", worked(worker1={"reduced": {"wrong": 5}}), 1),
        ("monitor: worker 0 [0.1]", replace(worked(), tasks=worked().tasks[1:]), 1),
        (
            "monitor: worker 0 [0.1]",
            replace(worked(), tasks=worked().tasks[1:], problem="the step timed out"),
            1,
        ),
        (
            "monitor: worker 0 (gpu01) [3, 0, 0.1]",
            replace(worked(), tasks=(replace(worked().tasks[0], rc=3), *worked().tasks[1:])),
            1,
        ),
        (
            "monitor: worker 0 (gpu01) [0, 0.1]",
            replace(
                worked(),
                problem="cancelled",
                tasks=(replace(worked().tasks[0], rc=None, signal=15, facts=()), *worked().tasks[1:]),
            ),
            1,
        ),
        (
            "monitor: worker 0 (gpu01) [0, 0.1]",
            replace(
                worked(),
                tasks=(
                    replace(
                        worked().tasks[0],
                        facts=(
                            {"tensorflow": "failed", "rank": 0, "phase": "join", "reason": "Unavailable"},
                        ),
                        rc=4,
                    ),
                    *worked().tasks[1:],
                ),
            ),
            1,
        ),
    ],
    checks.config: [
        ("not checked", PayloadResult("tensorflow", (), 0)),
        ("passed", worked()),
        ("configure: task.index [0, 3]", replace(worked(), tasks=())),
        ("configure: task.index [0, 1, 2, 0, 3]", replace(worked(), tasks=worked().tasks[:3])),
        ("configure: TF_CONFIG of task 1 on gpu01", worked(worker1={"config": {"given": "x" * 121}})),
        (
            "configure: cluster [2]",
            worked(worker1={"config": {"config": {"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}}}),
        ),
    ],
    checks.equal: [
        ("not checked", PayloadResult("tensorflow", (), 0)),
        ("not checked", PayloadResult("tensorflow", NODES, 2)),
        ("passed", worked()),
        ("monitor: worker 2 (gpu02)", worked(worker2={"trained": {"before": "c"}})),
        ("monitor: worker 2 (gpu02)", worked(worker2={"trained": {"after": ""}})),
        (
            "monitor: worker 0 (gpu01); worker 1 (gpu01); worker 2 (gpu02); worker 3 (gpu02)",
            everyone(after=""),
        ),
        (
            "monitor: worker 0 (gpu01); worker 1 (gpu01); worker 2 (gpu02); worker 3 (gpu02)",
            everyone(after="a"),
        ),
        ("monitor: worker 1 (gpu01) [1]", worked(worker1={"trained": {"losses": [1.0, float("inf")]}})),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


@pytest.mark.parametrize(
    ("words", "follows"),
    [
        ("no end after 3 s", True), ("Unavailable: x", True), ("Connection refused", True), ("connection lost", True),
        ("DEADLINE_EXCEEDED", True), ("heartbeat", True), ("/job:worker/task:1 died", True), ("task:x", False),
        ("out of memory", False),
    ],
)  # fmt: skip
def test_what_only_follows_comes_after_its_cause(words: str, *, follows: bool) -> None:
    first, other = (
        PayloadTask(0, "gpu01", 1, None, (), words),
        PayloadTask(1, "gpu02", 1, None, (), "Segmentation fault"),
    )
    reported = PayloadResult("tf", ("gpu01", "gpu02"), 2, (first, other))
    assert checks._causes_first(reported) == ([other, first] if follows else [first, other])


def test_the_first_word_on_tensorflow_counts() -> None:
    tasks = [installed("a", error="first"), installed("a", error="last")]
    step = PayloadResult("tensorflow", ("a",), 2, tuple(tasks))
    assert tensorflow.framework("a", step).findings == (
        Finding("package tensorflow", "first", "installed", Action.CONFIGURE),  # no node has it
    )
