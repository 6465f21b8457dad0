from __future__ import annotations

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, result
from judged import judged
from os_helpers import PLAIN, peers

from pytest_gpucluster.config.models import Group
from pytest_gpucluster.kit.node.peers import Peers, norm
from pytest_gpucluster.suites.os.checks import software as checks
from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, ProcessRow, SystemState


@pytest.mark.parametrize(
    ("installed", "stated", "expected"),
    [
        ("1", "", PASSED),
        ("", "", CONFIGURE),
        ("", "2", CONFIGURE),
        ("1:3", "2*", CONFIGURE),
        ("1:3", "3", PASSED),
        ("1:3", "1:3", PASSED),
        ("5:27.1", "4:", CONFIGURE),
        ("3a", "3", PASSED),
        ("3.b1", "3.b", PASSED),
        ("31", "3", CONFIGURE),
        ("22.05.8-4", "22.05.80", CONFIGURE),
        ("5.2.1", "5.2*", PASSED),
    ],
)
def test_versions_of_packages(installed: str, stated: str, expected: str) -> None:
    verdict = checks.packages({"a": installed}, {"a": stated})
    assert judged(verdict) == (expected, ["a"] if expected != PASSED else [])


def test_services_and_failed_units_do_not_both_fail() -> None:
    services = checks.services({"munge": "failed", "sssd": "active"}, ("munge", "sssd"))
    assert judged(services) == (CONFIGURE, ["munge"])
    assert judged(checks.failed_units(("a.service", "b.timer"), ("a", "b.timer"))) == (PASSED, [])
    assert judged(checks.failed_units(("a.timer", "x.mount"), ("a",))) == (MONITOR, ["a.timer", "x.mount"])
    assert result(checks.services({}, ())) == NOT_APPLICABLE


def test_drift_of_further_commands() -> None:
    mine, theirs, failing = CommandOutput("a", 0), CommandOutput("b", 0), CommandOutput("b", 1)
    assert judged(checks.drift({"cmd": mine}, {"cmd": peers(mine, theirs)})) == (CONFIGURE, ["cmd"])
    assert judged(checks.drift({"cmd": failing}, {"cmd": peers(failing, theirs)})) == (CONFIGURE, ["cmd"])
    assert judged(checks.drift({"cmd": theirs}, {"cmd": peers(mine, theirs)})) == (PASSED, [])
    halves = norm({"n1": mine, "n2": failing})
    assert judged(checks.drift({"cmd": mine}, {"cmd": halves})) == (CONFIGURE, ["cmd"])


def test_zombies_and_stuck_processes_are_named() -> None:
    dead = Processes(9, tuple(ProcessRow(n, 1, "Z", 90, "root", f"p{n}") for n in range(6)))
    assert judged(checks.zombies(dead, 6)) == (PASSED, [])
    verdict = checks.zombies(dead, 5)
    assert judged(verdict) == (MONITOR, ["processes"])
    assert verdict.findings[0].measured.count("parent 1") == 5
    assert [(it.name, it.value) for it in verdict.metrics] == [("zombies", 6)]
    stuck = Processes(9, tuple(ProcessRow(n, 1, "Ds", None if n else 120, "root", "cat") for n in range(6)))
    verdict = checks.dstate(stuck)
    assert judged(verdict) == (MONITOR, [f"pid {n}" for n in range(5)])
    assert [(it.name, it.value) for it in verdict.metrics] == [("dstate", 6)]
    assert judged(checks.dstate(dead)) == (PASSED, [])


UP, GONE = SystemState("running"), SystemState("", "Failed to connect to bus: Connection refused")


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        ((GONE, UP, UP), MONITOR),
        ((GONE, GONE, UP), NOT_CHECKED),
        ((GONE,), NOT_CHECKED),
        ((UP, GONE, GONE), PASSED),
        ((SystemState("degraded"), UP, UP), PASSED),  # os.failed_units says more
        ((SystemState("offline"), UP, UP), NOT_APPLICABLE),
        ((SystemState("stopping"), UP, UP), NOT_CHECKED),
        ((SystemState("maintenance"),), MONITOR),
    ],
)
def test_a_dead_systemd_needs_others_that_answer(fleet: tuple[SystemState, ...], expected: str) -> None:
    facts = dict(zip(("n1", "n2", "n3"), fleet, strict=False))
    most = Peers(facts).of(Group(nodes="n[1-3]", profile=PLAIN), "answers")
    assert result(checks.systemd(fleet[0], most)) == expected
