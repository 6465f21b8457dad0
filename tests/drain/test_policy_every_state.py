"""Every act on a node, in every state and with every reason: what a person or another tool has touched is left."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest
from drain.test_executor import Client, Log, grounds
from drain.test_executor import World as Memory
from drain.test_retest import World, killed, settled
from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_state
from pytest_gpucluster.drain import Budget, DrainExecutor, Limits, Retest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

# states in which nobody but slurmctld has changed a node that is in service
IN_SERVICE = (
    *("IDLE", "ALLOCATED", "MIXED", "IDLE+MAINTENANCE+RESERVED", "ALLOCATED+MAINT+RESERVED", "MAINT"),
    *("IDLE*", "IDLE~", "IDLE$", "IDLE+NOT_RESPONDING", "MIXED+COMPLETING", "IDLE+INVALID_REG"),
    *("IDLE+CLOUD+POWERED_DOWN", "RESERVED+CLOUD", "IDLE+PLANNED", "ALLOCATED+DYNAMIC_NORM"),
    "ALLOCATED+CLOUD+POWERING_UP+NOT_RESPONDING",
)
DOWN = ("DOWN", "DOWN*", "DOWN+NOT_RESPONDING", "DOWN+MAINTENANCE+RESERVED", "DOWN+POWERED_DOWN")
STARTING = ("UNKNOWN", "UNKNOWN*", "UNKNOWN+NOT_RESPONDING+MAINTENANCE")
TOUCHED = (
    *("FAIL", "IDLE+FAIL", "ALLOCATED+FAIL", "FAILING", "FAILING*", "IDLE+FAIL+NOT_RESPONDING", "DOWN+FAIL"),
    *("UNKNOWN+FAIL", "ERROR", "FUTURE", "IDLE+FAIL+MAINTENANCE+RESERVED", "INACTIVE", "EXTERNAL"),
    *("IDLE+EXTERNAL", "IDLE+REBOOT_REQUESTED", "MIXED+REBOOT", "IDLE@", "IDLE^", "IDLE+REBOOT_ISSUED"),
    *(
        "DOWN+REBOOT_ISSUED",
        "IDLE+POWER_DOWN",
        "IDLE!",
        "ALLOCATED+POWER_DOWN",
        "IDLE+POWERING_DOWN",
        "IDLE%",
    ),
    *("DOWN+POWERING_DOWN", "IDLE+CLOUD+MAINTENANCE+POWERING_DOWN", "IDLE+OF_A_LATER_VERSION"),
    "MIXED+FAIL+REBOOT_REQUESTED+POWER_DOWN",
)
OURS, SILENT = "ours", "ours : Not responding"
REASONS = (
    *("", OURS, "Not responding", SILENT, "of a later run", "copied", "bob: bad cable", "ours bob: keep out"),
    *("ours - ", "bob ours", "ours : reboot issued", "gpucluster:", "bob : Not responding", "ours [bob"),
    "ours [root@2026-11-21T08:53:55]        bob too",
)


class Case(NamedTuple):
    """One node, with its name, as Slurm shows it when gpucluster is about to act."""

    node: str
    state: str
    reason: str
    ours: str
    kind: str
    text: str

    @property
    def drained(self) -> bool:
        return "DRAIN" in self.state

    @property
    def info(self) -> NodeInfo:
        return NodeInfo(self.node, *parse_state(self.state), reason=self.text, partitions=("batch",))


def _cases() -> Iterable[Case]:
    kinds = {"in service": IN_SERVICE, "down": DOWN, "starting": STARTING, "touched": TOUCHED}
    rows = [(kind, state) for kind, states in kinds.items() for state in states]
    for number, ((kind, state), drain, reason) in enumerate(product(rows, ("", "+DRAIN"), REASONS)):
        node = f"gpu{number:04}"
        ours = summed("gpucluster:gpu.count 7<8 GPUs run=old", node)
        texts = {
            "of a later run": summed("gpucluster:gpu.count 7<8 GPUs run=later", node),
            "copied": summed("gpucluster:gpu.count 7<8 GPUs run=old", "gpu99"),
        }
        text = texts.get(reason) or reason.replace("ours", ours)
        yield Case(node, state + drain, reason, ours, kind, text)


CASES = tuple(_cases())


# what gpucluster may change, by what it has written last: nothing, DRAIN with its reason, or UNDRAIN for a test


def may_drain(case: Case) -> bool:
    return case.kind == "in service" and not case.drained and case.reason == ""


def may_undrain(case: Case) -> bool:
    return case.kind == "in service" and case.drained and case.reason == OURS


def may_drain_again(case: Case) -> bool:
    by_slurm = case.reason in {"Not responding", SILENT}
    known = case.kind in {"in service", "starting"} or (case.kind == "down" and by_slurm)
    return known and not case.drained and (by_slurm or case.reason in {"", OURS})


def chosen(rule: Callable[[Case], bool]) -> set[str]:
    return {case.node for case in CASES if rule(case)}


def test_the_table_has_all_combinations() -> None:
    states = len(IN_SERVICE + DOWN + STARTING + TOUCHED)
    assert len(CASES) == states * 2 * len(REASONS) > 1500
    assert [sum(map(rule, CASES)) for rule in (may_drain, may_undrain, may_drain_again)] == [
        len(IN_SERVICE),
        len(IN_SERVICE),
        4 * len(IN_SERVICE + STARTING) + 2 * len(DOWN),
    ]


def _acted(case: Case, act: str) -> bool:
    world = Memory({case.node: case.info})
    executor = DrainExecutor(Client(world), lambda *_, **__: None, "new")  # type: ignore[arg-type] # what it needs of a client
    if act == "drain":
        executor.drain(grounds(case.node), Limits(Budget(5), {case.node: "batch"}), spared={})
    else:
        executor.resume(case.node, case.ours)
    assert world.ran or world.nodes[case.node] == case.info
    return bool(world.ran)


@pytest.mark.parametrize(("act", "rule"), [("drain", may_drain), ("resume", may_undrain)])
def test_the_executor_changes_only_untouched_nodes(act: str, rule: Callable[[Case], bool]) -> None:
    wrong = [case for case in CASES if _acted(case, act) != rule(case)]
    assert wrong == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for case in CASES:
        made.put(case.node, reason=case.ours)
    return made


def a_retest(world: World) -> Retest:
    return Retest(world, {case.node: case.ours for case in CASES}, Log().write, world.folder / "lock")  # type: ignore[arg-type] # what it needs of a client


def put_all(world: World) -> None:
    for case in CASES:
        world.put(case.node, case.state, case.text)


def assert_changed(world: World, expected: set[str], state: str) -> None:
    """Each expected node is as gpucluster sets it, each other one exactly as it was."""
    wrong = []
    for case in CASES:
        by_us = (state, case.ours if "DRAIN" in state else "")
        if world.told(case.node) != (by_us if case.node in expected else (case.state, case.text.strip())):
            wrong.append((case, world.told(case.node)))
    assert wrong == []


@pytest.mark.thorough
def test_the_shell_undrains_only_untouched_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has read the nodes, and people change them before the shell acts."""
    real, before = world.nodes, world.nodes()
    put_all(world)
    expected = chosen(may_undrain)
    retest = a_retest(world)
    monkeypatch.setattr(world, "nodes", lambda: before)
    retest.begin()
    assert set(retest.running) == expected
    assert_changed(world, expected, "IDLE")
    monkeypatch.setattr(world, "nodes", real)
    assert retest.end() == []
    assert {case.node for case in CASES if world.told(case.node) == ("IDLE+DRAIN", case.ours)} >= expected
    assert set(retest.ended) == expected


def assert_reported(problems: list[str], expected: set[str]) -> None:
    """A node that has failed, is left and takes jobs is reported with the command."""
    assert all(" is in service: another user changed it meanwhile (" in problem for problem in problems)
    assert {problem.partition(":")[0] for problem in problems} == {
        case.node
        for case in CASES
        if case.node not in expected
        and case.info.state in {"IDLE", "ALLOCATED", "MIXED"}
        and not case.info.flags & {"DRAIN", "FAIL"}
    }


@pytest.mark.thorough
def test_the_shell_drains_again_only_untouched_nodes(world: World) -> None:
    retest = a_retest(world)
    retest.begin()
    put_all(world)
    problems = retest.end()
    expected = chosen(may_drain_again)
    assert_changed(world, expected, "IDLE+DRAIN")
    assert world.ours == []
    assert_reported(problems, expected)


def test_the_run_drains_again_only_untouched_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell is killed before it drains."""
    (world.folder / "bin" / "sh").write_text("#!/bin/sh\nexec cat >/dev/null\n")  # it does not act
    (world.folder / "bin" / "sh").chmod(0o755)
    monkeypatch.setattr("pytest_gpucluster.drain.retest.BEGIN_WITHIN", 0.0)
    retest, memory = a_retest(world), Memory({case.node: case.info for case in CASES})
    retest.begin()
    monkeypatch.setattr(world, "nodes", memory.show)
    monkeypatch.setattr(world, "run", memory.run)
    killed(world, retest)
    settled(retest, *(case.node for case in CASES))
    expected = chosen(may_drain_again)
    assert sorted(argv[2:] for argv in memory.ran) == sorted(
        (f"NodeName={case.node}", "State=DRAIN", f"Reason={case.ours}")
        for case in CASES
        if case.node in expected
    )
    assert_reported(retest.end(), expected)
    assert world.ran == []
