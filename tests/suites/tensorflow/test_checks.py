"""Checks of tensorflow on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled

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


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (
        lambda: checks.framework("gpu01", PayloadResult("tensorflow", NODES, 2)),
        "failed",
        "",
        ["python: no task started there / reports whether tensorflow is installed"],
        [],
    ),
    (
        lambda: checks.framework(
            "gpu01", PayloadResult("tensorflow", NODES, 2, (installed("gpu01"), installed("gpu02")))
        ),
        "passed",
        "",
        [],
        [],
    ),
    (
        lambda: checks.framework(
            "gpu01", PayloadResult("tensorflow", NODES, 2, (installed("gpu01", error="No module"),))
        ),
        "failed",
        "",
        ["package tensorflow: No module / installed"],
        [],
    ),
    (
        lambda: checks.framework(
            "gpu03",
            PayloadResult(
                "tensorflow",
                NODES,
                3,
                (installed("gpu01"), installed("gpu02"), installed("gpu03", version="2.15")),
            ),
        ),
        "failed",
        "",
        ["package tensorflow: 2.15 / 2.16, as on 2 of 3 nodes"],
        [],
    ),
    (
        lambda: checks.mirrored("gpu01", PayloadResult("tensorflow", (), 0), 0),
        "not checked",
        "no node has tensorflow: see tensorflow.framework",
        [],
        [],
    ),
    (
        lambda: checks.mirrored("gpu03", worked(), 0),
        "failed",
        "",
        ["task: no task started there / starts"],
        [],
    ),
    (
        lambda: checks.mirrored("gpu01", worked(1, worker0={"joined": {"replicas": 2}}), 0),
        "passed",
        "",
        [],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.mirrored("gpu01", worked(1, worker0={"joined": {"replicas": 2}}), 8),
        "failed",
        "",
        ["task 0: 2 replicas / 8"],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.mirrored("gpu01", worked(1, worker0={"joined": {"replicas": 8}}), 8),
        "passed",
        "",
        [],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.mirrored(
            "gpu01", worked(1, worker0={"joined": {"replicas": 2}, "trained": {"after": ""}}), 0
        ),
        "failed",
        "",
        ["task 0: replicas differ after training / equal weights"],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.mirrored(
            "gpu01", worked(1, worker0={"joined": {"replicas": 2}, "trained": {"after": "a"}}), 0
        ),
        "failed",
        "",
        ["task 0: training changed no weight / other weights"],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.mirrored(
            "gpu01", worked(1, worker0={"joined": {"replicas": 2}, "reduced": {"wrong": 1}}), 0
        ),
        "failed",
        "",
        ["task 0: 1 elements of the sum wrong / none"],
        ["tensorflow_import 1 s"],
    ),
    (
        lambda: checks.workers(PayloadResult("tensorflow", (), 0), 1),
        "not checked",
        "no node has tensorflow: see tensorflow.framework",
        [],
        [],
    ),
    (lambda: checks.workers(worked(), 1), "passed", "", [], ["tensorflow_join 0.1 s"]),
    (
        lambda: checks.workers(worked(), 2),
        "failed",
        "",
        [
            "worker 0 (gpu01): 4 replicas / 8",
            "worker 1 (gpu01): 4 replicas / 8",
            "worker 2 (gpu02): 4 replicas / 8",
            "worker 3 (gpu02): 4 replicas / 8",
        ],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(worked(worker1={"joined": {"seconds": 7}}), 1),
        "passed",
        "",
        [],
        ["tensorflow_join 7 s"],
    ),
    (
        lambda: checks.workers(worked(worker1={"reduced": {"wrong": 5}}), 1),
        "failed",
        "",
        ["worker 1 (gpu01): 5 elements of the sum wrong / none"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(replace(worked(), tasks=worked().tasks[1:]), 1),
        "failed",
        "",
        ["worker 0: did not start / takes part"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(replace(worked(), tasks=worked().tasks[1:], problem="the step timed out"), 1),
        "failed",
        "",
        ["worker 0: the step timed out / takes part"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(
            replace(worked(), tasks=(replace(worked().tasks[0], rc=3), *worked().tasks[1:])), 1
        ),
        "failed",
        "",
        ["worker 0 (gpu01): exit status 3 / joins, sums, trains and ends with 0"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(
            replace(
                worked(),
                problem="cancelled",
                tasks=(replace(worked().tasks[0], rc=None, signal=15, facts=()), *worked().tasks[1:]),
            ),
            1,
        ),
        "failed",
        "",
        ["worker 0 (gpu01): cancelled / joins, sums, trains and ends with 0"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.workers(
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
        "failed",
        "",
        ["worker 0 (gpu01): join: Unavailable / joins, sums, trains and ends with 0"],
        ["tensorflow_join 0.1 s"],
    ),
    (
        lambda: checks.config(PayloadResult("tensorflow", (), 0)),
        "not checked",
        "no node has tensorflow: see tensorflow.framework",
        [],
        [],
    ),
    (lambda: checks.config(worked()), "passed", "", [], []),
    (
        lambda: checks.config(replace(worked(), tasks=())),
        "failed",
        "",
        ["task.index: none / 0 to 3, once each"],
        [],
    ),
    (
        lambda: checks.config(replace(worked(), tasks=worked().tasks[:3])),
        "failed",
        "",
        ["task.index: 0, 1, 2 / 0 to 3, once each"],
        [],
    ),
    (
        lambda: checks.config(worked(worker1={"config": {"given": "x" * 121}})),
        "failed",
        "",
        [f"TF_CONFIG of task 1 on gpu01: {'x' * 120} / not set"],
        [],
    ),
    (
        lambda: checks.config(
            worked(worker1={"config": {"config": {"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}}})
        ),
        "failed",
        "",
        ["cluster: 2 different lists of workers / one"],
        [],
    ),
    (
        lambda: checks.equal(PayloadResult("tensorflow", (), 0)),
        "not checked",
        "no node has tensorflow: see tensorflow.framework",
        [],
        [],
    ),
    (
        lambda: checks.equal(PayloadResult("tensorflow", NODES, 2)),
        "not checked",
        "no worker trained: see tensorflow.workers",
        [],
        [],
    ),
    (lambda: checks.equal(worked()), "passed", "", [], []),
    (
        lambda: checks.equal(worked(worker2={"trained": {"before": "c"}})),
        "failed",
        "",
        ["worker 2 (gpu02): weights before training: c / a"],
        [],
    ),
    (
        lambda: checks.equal(worked(worker2={"trained": {"after": ""}})),
        "failed",
        "",
        ["worker 2 (gpu02): weights after training: replicas differ within the worker / b"],
        [],
    ),
    (
        lambda: checks.equal(everyone(after="")),
        "failed",
        "",
        [
            "worker 0 (gpu01): weights after training: replicas differ within the worker / equal on all",
            "worker 1 (gpu01): weights after training: replicas differ within the worker / equal on all",
            "worker 2 (gpu02): weights after training: replicas differ within the worker / equal on all",
            "worker 3 (gpu02): weights after training: replicas differ within the worker / equal on all",
        ],
        [],
    ),
    (
        lambda: checks.equal(everyone(after="a")),
        "failed",
        "",
        [
            "worker 0 (gpu01): training changed no weight / other weights",
            "worker 1 (gpu01): training changed no weight / other weights",
            "worker 2 (gpu02): training changed no weight / other weights",
            "worker 3 (gpu02): training changed no weight / other weights",
        ],
        [],
    ),
    (
        lambda: checks.equal(worked(worker1={"trained": {"losses": [1.0, float("inf")]}})),
        "failed",
        "",
        ["worker 1 (gpu01): losses 1.0, inf / finite numbers"],
        [],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


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
    tasks = [
        installed("a", error="first"),
        installed("a", error="last"),
    ]
    step = PayloadResult("tensorflow", ("a",), 2, tuple(tasks))
    assert tensorflow.framework("a", step).findings == (
        Finding("package tensorflow", "first", "installed", Action.CONFIGURE),  # no node has it
    )
