from __future__ import annotations

from os_helpers import PLAIN, failed, not_applicable, passed, peers

from pytest_gpucluster.config.models import Group
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.kit.node.peers import Peers, norm
from pytest_gpucluster.suites.os.checks import software as checks
from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, ProcessRow, SystemState


def test_packages() -> None:
    found = {"slurm": "22.05.8-4", "munge": "", "docker": "5:27.1"}
    passed(checks.packages(found, {"slurm": "22.05", "docker": "27"}))
    failed(
        checks.packages(found, {"slurm": "22.05.80", "munge": "", "docker": "4:"}), "slurm", "munge", "docker"
    )
    failed(checks.packages({"bash": "5.20"}, {"bash": "5.2"}), "bash")
    passed(checks.packages({"bash": "5.2.1"}, {"bash": "5.2*"}))
    assert not_applicable(checks.packages({}, {}))


def test_services_and_failed_units_do_not_both_fail() -> None:
    failed(checks.services({"munge": "failed", "sssd": "active"}, ("munge", "sssd")), "munge")
    passed(checks.failed_units(("munge.service",), ("munge",)))
    failed(checks.failed_units(("x.mount",), ("munge",)), "x.mount")
    assert not_applicable(checks.services({}, ()))


def test_drift_of_further_commands() -> None:
    mine, theirs = CommandOutput("a", 0), CommandOutput("b", 0)
    failed(checks.drift({"cmd": mine}, {"cmd": peers(mine, theirs)}), "cmd")
    assert "exit 1" in failed(
        checks.drift({"cmd": CommandOutput("b", 1)}, {"cmd": peers(CommandOutput("b", 1), theirs)}), "cmd"
    )
    passed(checks.drift({"cmd": theirs}, {"cmd": peers(mine, theirs)}))
    assert not_applicable(checks.drift({"cmd": mine}, {"cmd": norm({"n1": mine})}))
    assert not_applicable(checks.drift({}, {}))


def test_zombies_and_stuck_processes_are_named() -> None:
    dead = tuple(ProcessRow(n, 1, "Z", 90, "root", f"p{n}") for n in range(6))
    passed(checks.zombies(Processes(9, dead), 6))
    verdict = checks.zombies(Processes(9, dead), 5)
    named = ", ".join(f"p{n} (pid {n}, parent 1)" for n in range(5))
    assert verdict.findings == (Finding("processes", f"6 zombies: {named}", "at most 5"),)
    assert verdict.metrics == (Metric("zombies", 6, "processes"),)
    stuck = tuple(ProcessRow(n, 1, "D", None if n else 120, "root", "cat") for n in range(6))
    verdict = checks.dstate(Processes(9, stuck))
    assert verdict.findings[:2] == (
        Finding("pid 0", "cat of root in D state, 2 min old", "not in D state"),
        Finding("pid 1", "cat of root in D state", "not in D state"),
    )
    assert (len(verdict.findings), verdict.metrics[0].value, verdict.action) == (5, 6, Action.MONITOR)


def test_processes_in_words() -> None:
    old = Processes(9, (ProcessRow(7, 1, "Ds", 150, "ada", "dd"), ProcessRow(8, 2, "Z", None, "ada", "sh")))
    assert checks.zombies(old, 0).findings == (
        Finding("processes", "1 zombies: sh (pid 8, parent 2)", "at most 0"),
    )
    verdict = checks.dstate(old)
    assert verdict.findings == (Finding("pid 7", "dd of ada in D state, 2 min 30 s old", "not in D state"),)
    assert verdict.metrics == (Metric("dstate", 1, "processes"),)


FOUR = ("n1", "n2", "n3", "n4")


def _systemd(mine: SystemState, *others: SystemState) -> Verdict:
    facts = dict(zip(FOUR, (mine, *others), strict=False))
    return checks.systemd(mine, Peers(facts).of(Group(nodes="n[1-4]", profile=PLAIN), "answers"))


UP, GONE = SystemState("running"), SystemState("", "Failed to connect to bus: Connection refused")


def test_a_dead_systemd_needs_others_that_answer() -> None:
    assert _systemd(GONE, UP, UP).outcome is Outcome.FAILED
    assert _systemd(GONE, GONE, UP).outcome is Outcome.NOT_CHECKED
    assert _systemd(GONE).outcome is Outcome.NOT_CHECKED
    assert _systemd(UP, GONE, GONE).outcome is Outcome.PASSED
    assert _systemd(SystemState("degraded"), UP, UP).outcome is Outcome.PASSED  # os.failed_units says more
    assert _systemd(SystemState("offline"), UP, UP).outcome is Outcome.NOT_APPLICABLE
    assert _systemd(SystemState("maintenance"), UP, UP).outcome is Outcome.FAILED
