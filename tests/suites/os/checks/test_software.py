from __future__ import annotations

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, result
from judged import judged
from os_helpers import peers

from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import software as checks
from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, ProcessRow, SystemState


@pytest.mark.parametrize(
    ("installed", "stated", "expected"),
    [
        ("1", "", PASSED),
        ("", "2", CONFIGURE),
        ("1:3", "2*", CONFIGURE),
        ("1:3", "1:3", PASSED),
        ("5:27.1", "4:", CONFIGURE),
        ("3a", "3", PASSED),
        ("3.b1", "3.b", PASSED),
        ("31", "3", CONFIGURE),
        ("22.05.8-4", "22.05.80", CONFIGURE),
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


def test_a_command_drifts_by_its_exit_status_and_in_halves() -> None:
    mine, theirs, failing = CommandOutput("a", 0), CommandOutput("b", 0), CommandOutput("b", 1)
    assert judged(checks.drift({"cmd": failing}, {"cmd": peers(failing, theirs)})) == (CONFIGURE, ["cmd"])
    assert judged(checks.drift({"cmd": theirs}, {"cmd": peers(mine, theirs)})) == (PASSED, [])
    halves = norm({"n1": mine, "n2": failing})
    assert judged(checks.drift({"cmd": mine}, {"cmd": halves})) == (CONFIGURE, ["cmd"])


def test_five_zombies_or_stuck_processes_are_named() -> None:
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


def test_a_dead_systemd_needs_others_that_answer() -> None:
    gone, maintenance = SystemState("", "Connection refused"), SystemState("maintenance")
    for state, answers, expected in (
        (gone, (False, True, True), MONITOR),
        (gone, (False, False, True), NOT_CHECKED),
        (gone, (False,), NOT_CHECKED),
        (SystemState("running"), (True, False, False), PASSED),
        (maintenance, (True,), MONITOR),
    ):
        most = norm({f"n{n}": it for n, it in enumerate(answers, 1)})
        assert result(checks.systemd(state, most)) == expected
