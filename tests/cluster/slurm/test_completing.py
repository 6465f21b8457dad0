"""A node that holds on to a job that has ended: for how long it may, and who is named."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from pytest_gpucluster.cluster.plan import ProblemKind, judge_node
from pytest_gpucluster.cluster.slurm import completing
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_nodes
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.slurm import checks

# squeue -h -a -t CG -o '%A|%u|%e|%N', 22.05.8; a job of which no time of its end is known is no evidence
SQUEUE = "12|alice|2026-11-21T03:00:00|gpu[01-02]\n14|bob|2026-11-21T03:09:00|gpu02\n15|eve|N/A|gpu03\n"
NOW = datetime(2026, 11, 21, 3, 10)  # as Slurm writes times


def _nodes(**states: str) -> dict[str, NodeInfo]:
    return parse_nodes("\n".join(f"NodeName={name} CPUTot=4 State={state}" for name, state in states.items()))


def _marked(most: float, **states: str) -> dict[str, NodeInfo]:
    return completing.with_stuck(_nodes(**states), completing.parse_ending(SQUEUE), NOW, most)


@pytest.mark.parametrize("state", ["IDLE+COMPLETING", "MIXED+COMPLETING"])
@pytest.mark.parametrize("wait", [True, False])
def test_a_node_that_is_completing_for_long_is_named_and_not_waited_for(state: str, *, wait: bool) -> None:
    nodes = _marked(300, gpu01=state, gpu02=state, gpu03=state, gpu04="IDLE")
    for node in ("gpu01", "gpu02"):
        problem = judge_node(node, nodes, wait=wait)
        assert problem is not None
        assert problem.kind is ProblemKind.UNAVAILABLE
        assert problem.text.startswith("COMPLETING for 10 min (at most 5 min): job 12 of alice has ended")
        assert checks.completing(nodes[node]).outcome is Outcome.FAILED
        assert checks.schedulable(nodes[node]).outcome is Outcome.NOT_CHECKED
    assert nodes["gpu03"].stuck is None
    assert _marked(300, gpu01="IDLE")["gpu01"].stuck is None  # it let go meanwhile


def test_a_node_that_has_just_begun_to_complete_is_merely_busy() -> None:
    nodes = _marked(600, gpu01="IDLE+COMPLETING")
    problem = judge_node("gpu01", nodes, wait=False)
    assert problem is not None
    assert problem.kind is ProblemKind.BUSY
    assert judge_node("gpu01", nodes, wait=True) is None
    assert checks.completing(nodes["gpu01"]).outcome is Outcome.PASSED


def test_a_node_that_slurm_has_drained_for_it_keeps_slurms_words() -> None:
    why = "Reason=Kill task failed [root@2026-11-21T03:02:00]"
    node = _marked(300, gpu01=f"IDLE+COMPLETING+DRAIN {why}")["gpu01"]
    assert '"Kill task failed" by root since 2026-11-21T03:02:00' in node.why_unavailable()
    assert checks.schedulable(node).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("unkillable", "stated", "seconds"),
    [("900 sec", None, 900), ("900 sec", 3, 3), ("65533", None, 65533), ("65534", None, 300)],
)
def test_patience_is_at_least_slurms_own(unkillable: str, stated: float | None, seconds: float) -> None:
    for name in ("UnkillableStepTimeout", "PrologEpilogTimeout", "EpilogTimeout"):
        assert completing.allowed({name: unkillable}, stated) == seconds
    assert completing.allowed({}, None) == 300


class _Slurm:
    def __init__(self, private: str = "", **answers: str) -> None:
        self.answers, self.asked, self.private = answers, list[str](), private

    def run(self, *argv: str) -> str:
        self.asked.append(argv[0])
        return self.answers[argv[0]]

    def config(self) -> dict[str, str]:
        return {"PrivateData": self.private}


DATE = "2026-11-21T03:10:00\n"


def test_squeue_is_asked_only_where_a_node_is_completing() -> None:
    client: Any = _Slurm(squeue=SQUEUE, date=DATE)
    idle = _nodes(gpu01="IDLE")
    assert completing.mark_stuck(client, idle, None) == idle
    assert client.asked == []
    assert completing.mark_stuck(client, _nodes(gpu01="IDLE+COMPLETING"), None)["gpu01"].stuck is not None


@pytest.mark.parametrize("answers", [{"squeue": ""}, {"squeue": SQUEUE, "date": "date: garbage"}])
def test_nobody_is_accused_where_slurm_shows_no_jobs_or_no_clock_is_read(answers: dict[str, str]) -> None:
    client: Any = _Slurm(**answers)
    nodes = _nodes(gpu01="IDLE+COMPLETING")
    assert completing.mark_stuck(client, nodes, None) == nodes


@pytest.mark.parametrize(
    ("squeue", "private", "outcome"),
    [
        ("", "jobs,usage", Outcome.NOT_CHECKED),
        (SQUEUE, "jobs", Outcome.FAILED),  # of our own, or we are an operator
        ("", "none", Outcome.PASSED),  # it has ended just now
    ],
)
def test_a_node_with_a_hidden_job_does_not_pass(squeue: str, private: str, outcome: Outcome) -> None:
    client: Any = _Slurm(private, squeue=squeue, date=DATE)
    nodes = completing.mark_stuck(client, _nodes(gpu01="IDLE+COMPLETING", gpu04="IDLE"), None)
    assert checks.completing(nodes["gpu01"]).outcome is outcome
    assert checks.completing(nodes["gpu04"]).outcome is Outcome.PASSED


class Looks:
    """Slurm as it answers one look after another, the last one stays; nobody asks about gpu03."""

    def __init__(self, *states: str) -> None:
        self.states, self.now = list(states), 0.0

    def refresh(self) -> None:
        """Forget nothing."""

    def nodes(self) -> dict[str, NodeInfo]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return _nodes(gpu01=state, gpu02="IDLE+DRAIN", gpu03="IDLE+COMPLETING")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("states", "let_go", "slept", "printed"),
    [
        (["IDLE"], ["gpu01", "gpu02"], 0, []),
        (["IDLE+COMPLETING", "IDLE"], ["gpu01", "gpu02"], 0.25, []),
        (["IDLE+COMPLETING"], ["gpu02"], 10, ["waiting for the epilog on gpu01, at most 8 s"]),
    ],
)
def test_nodes_that_were_given_back_are_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, states: list[str], let_go: list[str], slept: float, printed: list[str]
) -> None:
    looks = Looks(*states)
    reported: list[str] = []
    monkeypatch.setattr("pytest_gpucluster.cluster.slurm.completing.time.monotonic", lambda: looks.now)
    slurm: Any = looks
    found = completing.wait_completed(slurm, ["gpu01", "gpu02"], 10, reported.append, looks.sleep)
    assert sorted(found) == let_go
    assert looks.now == slept
    assert reported == printed


def test_a_wait_for_epilogs_ends_where_no_more_waiting_is_wanted() -> None:
    looks = Looks("IDLE+COMPLETING")
    waits: list[float] = []
    slurm: Any = looks

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 2

    assert sorted(completing.wait_completed(slurm, ["gpu01", "gpu02"], 10, print, wait)) == ["gpu02"]
    assert waits == [0.25, 0.5]
