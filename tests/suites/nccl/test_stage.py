"""What a step, its tasks and their logs prove about the nodes of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm.result import TaskResult
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput
from pytest_gpucluster.suites.nccl import stage

if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = ("n02", "n03")


def measured(*tasks: TaskResult, problem: str = "", misplaced: Mapping[str, str] | None = None) -> NcclMeasurement:
    log = nccl_log.NcclLog()
    return NcclMeasurement(NcclOutput(()), log, {}, problem=problem, tasks=tasks, misplaced=misplaced or {})


def failing(*codes: str) -> Verdict:
    made = tuple(Finding(Part("node", name="n02"), "bad", "good", code=code) for code in codes)
    return Verdict("nccl.alone", Outcome.FAILED, made, cause="as it is", hint="look")


PASSED = Verdict("nccl.alone", Outcome.PASSED)


def test_exit_codes_alone_are_reported_task_by_task() -> None:
    """Recorded on 2 H200: rank 1 was killed, and rank 0 crashed for it; the highest exit code is not the cause."""
    torn = TaskResult(1, "n02", 137, 9, stderr="libx: fatal: no map\n")
    tasks = (TaskResult(0, "n02", 139, 11), torn, TaskResult(2, "n03", 0))
    only = failing("exit_code")
    verdict = stage.with_endings(only, measured(*tasks), "")
    assert [(str(it.part), it.code, str(it.measured)) for it in verdict.findings] == [
        ("task 0 on n02", "signal", "ended by signal 11 (SIGSEGV)"),
        ("task 1 on n02", "signal", "ended by signal 9 (SIGKILL); first complaint: libx: fatal: no map"),
    ]
    known = failing("out_of_memory", "exit_code")
    assert stage.with_endings(known, measured(*tasks), "n02") is known
    cancelled = measured(*tasks[1:], problem="srun: cancelled")  # then we have killed it
    assert stage.with_endings(only, cancelled, "n02") is only


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ("out_of_memory", ["out_of_memory", "hangs"]),
        ("incomplete_table", ["hangs", "incomplete_table"]),
        ("timeout", ["hangs", "timeout"]),
    ],
)
def test_a_hang_is_reported_after_its_reason(said: str, codes: list[str]) -> None:
    step = measured(TaskResult(0, "n02", 137, 9), TaskResult(1, "n02", 1), problem="srun: cancelled")
    verdict = stage.with_hang(failing(said), step, "n02")
    assert [it.code for it in verdict.findings] == codes


def test_the_loss_of_a_node_comes_before_the_findings_of_the_others() -> None:
    only = stage.with_loss(failing("exit_code"), ["n02"], {"n02": "Node failure"})
    assert [(str(it.part), it.code) for it in only.findings] == [("n02", "lost")]
    assert (only.outcome, only.action) == (Outcome.FAILED, Action.DRAIN)
    both = stage.with_loss(failing("slow"), NODES, {"n02": "Node failure"})
    assert [it.code for it in both.findings] == ["lost", "slow"]
    assert stage.with_loss(PASSED, ["n03"], {"n02": "Node failure"}) is PASSED


@pytest.mark.parametrize(("sound", "action"), [(2, Action.DRAIN), (1, Action.MONITOR)])
def test_wrong_sums_drain_a_node_if_two_others_add_right(sound: int, action: Action) -> None:
    verdicts = {f"n{number}": PASSED for number in range(sound)}
    wrong = {"bad": failing("wrong_elements", "out_of_bounds"), "slow": failing("wrong_elements", "rank_count")}
    found = stage.with_corruption({**verdicts, **wrong})
    assert found["bad"].action == action
    assert found["slow"] is wrong["slow"]


def test_what_misplaced_tasks_printed_is_no_result() -> None:
    step = measured(misplaced={"n02": "the task ran on the host"})
    verdict = stage.unless_misplaced(failing("wrong_elements"), step, NODES)
    assert [(str(it.part), it.code) for it in verdict.findings] == [("n02", "misplaced")]
    assert stage.unless_misplaced(PASSED, step, ["n03"]) is PASSED


@pytest.mark.parametrize(
    ("apart", "last_rc", "asked"),
    [
        (False, 0, [("a", "b", "c"), ("a", "b")]),
        (True, 0, [("a", "b", "c")]),
        (True, None, [("a", "b", "c"), ("a", "b")]),
    ],
)
def test_a_step_is_repeated_without_the_nodes_that_it_lost(
    asked: list[tuple[str, ...]], last_rc: int | None, *, apart: bool
) -> None:
    lost: dict[str, str] = {}
    seen: list[tuple[str, ...]] = []

    def measure(nodes: tuple[str, ...]) -> NcclMeasurement:
        seen.append(nodes)
        lost["c"] = "Node failure"
        return measured(TaskResult(0, "a", 0), TaskResult(1, "b", last_rc))

    stage.without_lost_nodes(measure, ("a", "b", "c"), lost, apart=apart)
    assert seen == asked
