"""Checks of the controller suite on made-up facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_CHECKED, PASSED, WARNING, CounterExample, result
from judged import figures
from judged import judged as verdict_of
from paths import ROOT
from suite_helpers import considered

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.suites.controller import checks
from pytest_gpucluster.suites.controller.checks import Controllers, DaemonLog, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import ControllerState, LogLine, Scheduler, SdiagStats, parse_sdiag
from pytest_gpucluster.suites.controller.log_lines import ErrorKind, folded

CONFIG = ControllerConfig()
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-22.05.8.txt").read_text())


def controllers(*up: bool) -> Controllers:
    roles = ("primary", "backup1", "backup2") if len(up) > 2 else ("primary", "backup")
    named = enumerate(zip(roles, up, strict=False))
    states = tuple(ControllerState(role, f"ctl{number}", one) for number, (role, one) in named)
    return Controllers(states, tuple(one.host for one in states))


BOTH_OF_THREE = ["primary controller ctl0", "backup2 controller ctl2"]


@pytest.mark.parametrize(
    ("found", "backup", "expected"),
    [
        (controllers(True, True), True, (PASSED, [])),
        (controllers(True), False, (PASSED, [])),
        (controllers(True), True, (CONFIGURE, ["backup controller"])),
        (controllers(False, True, False), False, (CONFIGURE, BOTH_OF_THREE)),
        (Controllers(problem="timed out"), False, (CONFIGURE, ["scontrol ping"])),
        (Controllers(), False, (NOT_CHECKED, [])),  # no controller is named
        (replace(controllers(True), configured=("ctl0", "ctl1")), False, (NOT_CHECKED, [])),
    ],
)
def test_every_controller_must_answer(found: Controllers, backup: bool, expected: object) -> None:
    verdict = checks.ping(found, ControllerConfig(backup=backup))
    assert verdict_of(verdict) == expected
    up = [sum(one.up for one in found.states)] if found.states else []
    assert [one.value for one in verdict.metrics] == up


def judged(
    *, settings: dict[str, str] | None = None, seconds: float = 0.1, later: SdiagStats | None = None, **changes: Any
) -> Verdict:
    known = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "20012", **(settings or {})}
    return checks.load(Diagnostics(replace(LOAD, **changes), later, seconds, known), CONFIG)


AT_LIMIT: dict[str, Any] = {"threads": 192, "agent_queue": 1000, "dbd_queue": 10_006, "seconds": 10.0}
AT_LIMIT |= {"main": Scheduler(10, 2.0), "backfill": Scheduler(10, 30.0), "rpcs": {"REQUEST_X": (10, 10.0)}}
PARAMETERS = "SchedulerParameters"


@pytest.mark.parametrize(
    ("changes", "part", "shown", "code"),
    [
        ({"threads": 193}, "threads of slurmctld", [193, 256, 192], "busy"),
        ({"agent_queue": 1001}, "agent queue", [1001, 1000], "unsent_messages"),
        ({"dbd_queue": 10_007}, "records for slurmdbd", [10007, 10006], "unsent_records"),
        ({"main": Scheduler(10, 2.1)}, "main scheduler", [2.1, 10, 2], "slow_cycle"),
        ({"backfill": Scheduler(11, 31.0)}, "backfill scheduler", [31, 11, 30], "slow_cycle"),
        ({"rpcs": {"REQUEST_X": (10, 10.1)}}, "request REQUEST_X", [10.1, 10], "slow_request"),
        ({"seconds": 10.1, "settings": {"MessageTimeout": "x sec"}}, "sdiag", [10.1, 10], "slow_answer"),
        ({"seconds": 6.0, "settings": {"MessageTimeout": "5 sec"}}, "sdiag", [6, 5], "slow_answer"),
        (AT_LIMIT, "", [], ""),
        ({"threads": 256, "agent_queue": 5000, "later": LOAD}, "", [], ""),  # a short peak
        ({"main": Scheduler(9, 9.0), "backfill": Scheduler(9, 99.0)}, "", [], ""),  # just restarted
        ({"rpcs": {"REQUEST_X": (9, 99.0)}}, "", [], ""),
        ({"dbd_queue": 99_999, "settings": {"MaxDBDMsgs": "0"}}, "", [], ""),  # no slurmdbd
        ({"backfill": Scheduler(10, 59.0), "settings": {PARAMETERS: "defer,bf_interval=60"}}, "", [], ""),
    ],
)
def test_a_figure_over_limit_fails(changes: dict[str, Any], part: str, shown: list[float], code: str) -> None:
    verdict = judged(**changes)
    assert verdict_of(verdict) == ((MONITOR, [part]) if part else (PASSED, []))
    assert [(one.code, one.relation) for one in verdict.findings] == [(code, ">")] * bool(part)
    assert figures(" ".join(f"{one.measured} / {one.expected}" for one in verdict.findings)) == shown


def test_a_backfill_scheduler_that_rests_is_no_failure() -> None:
    verdict = judged(pending=3, backfilled=LOAD.now - 601)
    assert verdict_of(verdict) == (WARNING, ["backfill scheduler"])
    assert figures(str(verdict.advisories[0].measured)) == [10, 1, 3]
    for pending, age in ((0, 601), (3, 600)):
        assert verdict_of(judged(pending=pending, backfilled=LOAD.now - age)) == (PASSED, [])


MANY = tuple(ErrorKind(f"error: {letter * 100}", 2, 60.0) for letter in "abcdefghij")


@pytest.mark.parametrize("check", [checks.errors, checks.node_errors])
@pytest.mark.parametrize(
    ("log", "expected", "lines"),
    [
        (DaemonLog(), PASSED, []),
        (DaemonLog((ErrorKind("fatal: odd", 2, 7300.0, ("gpu01", "gpu02"), "ours"),)), WARNING, [2]),
        (DaemonLog((ErrorKind("error: odd", 1, None), *MANY[:3])), WARNING, [7]),
        (DaemonLog(MANY), WARNING, [20]),
        (DaemonLog(problem="cannot be read"), NOT_CHECKED, []),
        (DaemonLog(MANY, "gpu07: cannot be read"), NOT_CHECKED, [20]),
    ],
)
def test_errors_of_a_log_are_one_warning(check: Any, log: DaemonLog, expected: str, lines: list[int]) -> None:
    verdict = check(log)
    assert (result(verdict), verdict.reason) == (expected, log.problem)
    assert [int(figures(str(one.measured))[0]) for one in verdict.advisories] == lines
    shown = "".join(str(one.measured) for one in verdict.advisories)
    assert all(kind.example in shown for kind in log.kinds[:3])
    assert len(shown) < 600
    rest = [(it.example, it.count) for it in log.kinds if it.example not in shown]
    assert [(it.text, it.count) for it in verdict.remarks] == rest * bool(shown)
    assert len(rest) == (7 if len(log.kinds) == 10 else 0)


def test_a_load_that_was_not_read_is_not_checked() -> None:
    assert result(checks.load(Diagnostics(problem="sdiag: timed out"), CONFIG)) == NOT_CHECKED


# --- healthy controllers that look overloaded, and overloaded ones that look well (docs/how-it-decides.md)

SDIAG = "https://slurm.schedmd.com/sdiag.html"
CONF = "https://slurm.schedmd.com/slurm.conf.html"
PAGE = "https://slurm.schedmd.com/slurmctld.html"


def load(later: dict[str, Any] | None = None, parameters: str = "", **changed: Any) -> Any:
    settings = {"MaxDBDMsgs": "100000", "SchedulerParameters": parameters}
    return lambda: judged(settings=settings, later=replace(LOAD, **later) if later else None, **changed)


def log(*texts: str) -> Any:
    """Return a log with these lines, an hour old."""
    lines = [("", LogLine(3600.0, f"error: {text}")) for text in texts]
    return DaemonLog(folded(lines, window=86_400.0))


FULL = "Can't save state, create file /var/spool/slurmctld/job_state.new error No space left on device"
OOM = "Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed."
SLOW = Scheduler(400, 5.0)
LONG: dict[str, Any] = {"parameters": "bf_max_time=300,bf_interval=60", "backfill": Scheduler(40, 62.0)}
MACHINES: tuple[tuple[str, str, str, str, Any], ...] = (
    ("load", "backfill may take five minutes", CONF, PASSED, load(**LONG)),
    ("load", "ten seconds of scheduling", CONF, PASSED, load(parameters="max_sched_time=10", main=SLOW)),
    ("load", "slurmdbd is back", SDIAG, WARNING, load({"dbd_queue": 52_000}, dbd_queue=60_000)),
    ("load", "threads are used up", SDIAG, MONITOR, load({"threads": 256}, threads=255)),
    ("load", "records pile up", SDIAG, MONITOR, load({"dbd_queue": 60_400}, dbd_queue=60_000)),
    ("errors", "a quiet night", PAGE, PASSED, lambda: checks.errors(log())),
    ("errors", "state could not be saved", PAGE, WARNING, lambda: checks.errors(log(FULL))),
    ("node_errors", "a quiet night", PAGE, PASSED, lambda: checks.node_errors(log())),
    ("node_errors", "a user's job exceeded its memory", PAGE, WARNING, lambda: checks.node_errors(log(OOM))),
)
ODD = ("state could not be saved", "a user's job exceeded its memory")  # a log proves no fault of now
COUNTER_EXAMPLES = tuple(
    CounterExample(f"controller.{check}", machine, source, expected, judge, sick=expected == MONITOR or machine in ODD)
    for check, machine, source, expected, judge in MACHINES
)
test_controllers_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
