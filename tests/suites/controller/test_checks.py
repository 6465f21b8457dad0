"""Checks of the controller suite on made-up facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_CHECKED, PASSED, WARNING, result
from judged import figures
from judged import judged as verdict_of
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller import checks, job_checks
from pytest_gpucluster.suites.controller.checks import ControllerLog, Controllers, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import ControllerState, Load, LogLine, Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.jobs import BurstFacts, OrderedJob, OrderFacts
from pytest_gpucluster.suites.controller.known_errors import (
    SLURMCTLD,
    SLURMD,
    Daemon,
    LogError,
    sorted_errors,
)

CONFIG = ControllerConfig()
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-22.05.8.txt").read_text())
IDLE, DRAINED = NodeInfo("gpu02", "IDLE"), NodeInfo("gpu02", "IDLE", frozenset({"DRAIN"}))
HOUR = 3600.0


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
    *, settings: dict[str, str] | None = None, seconds: float = 0.1, later: Load | None = None, **changes: Any
) -> Verdict:
    known = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "20012", **(settings or {})}
    return checks.load(Diagnostics(replace(LOAD, **changes), later, seconds, known), CONFIG)


AT_LIMIT: dict[str, Any] = {"threads": 192, "agent_queue": 1000, "dbd_queue": 10_006, "seconds": 10.0}
AT_LIMIT |= {"main": Scheduler(10, 2.0), "backfill": Scheduler(10, 30.0), "rpcs": {"REQUEST_X": (10, 10.0)}}
PARAMETERS = "SchedulerParameters"


@pytest.mark.parametrize(
    ("changes", "part", "shown"),
    [
        ({"threads": 193}, "threads of slurmctld", [193, 256, 192]),
        ({"agent_queue": 1001}, "agent queue", [1001, 1000]),
        ({"dbd_queue": 10_007}, "records for slurmdbd", [10007, 10006]),
        ({"main": Scheduler(10, 2.1)}, "main scheduler", [2.1, 10, 2]),
        ({"backfill": Scheduler(11, 31.0)}, "backfill scheduler", [31, 11, 30]),
        ({"rpcs": {"REQUEST_X": (10, 10.1)}}, "request REQUEST_X", [10.1, 10]),
        ({"seconds": 10.1, "settings": {"MessageTimeout": "x sec"}}, "sdiag", [10.1, 10]),
        ({"seconds": 6.0, "settings": {"MessageTimeout": "5 sec"}}, "sdiag", [6, 5]),
        (AT_LIMIT, "", []),
        ({"threads": 256, "agent_queue": 5000, "later": LOAD}, "", []),  # a short peak
        ({"main": Scheduler(9, 9.0), "backfill": Scheduler(9, 99.0)}, "", []),  # just restarted
        ({"rpcs": {"REQUEST_X": (9, 99.0)}}, "", []),
        ({"dbd_queue": 99_999, "settings": {"MaxDBDMsgs": "0"}}, "", []),  # no slurmdbd
        ({"backfill": Scheduler(10, 59.0), "settings": {PARAMETERS: "defer,bf_interval=60"}}, "", []),
    ],
)
def test_a_figure_above_its_limit_fails(changes: dict[str, Any], part: str, shown: list[float]) -> None:
    verdict = judged(**changes)
    assert verdict_of(verdict) == ((MONITOR, [part]) if part else (PASSED, []))
    assert figures(" ".join(f"{one.measured} / {one.expected}" for one in verdict.findings)) == shown


def test_metrics_of_the_load() -> None:
    known = judged(**{**AT_LIMIT, "rpcs": {"A": (10, 10.0), "B": (10, 1.0)}})
    figures_of = {"threads": 192, "agent_queue": 1000, "dbd_queue": 10_006, "sdiag": 10.0}
    times = {"main_scheduler": 2000, "backfill_scheduler": 30_000, "slowest_request": 10_000}
    assert {one.name: one.value for one in known.metrics} == figures_of | times


@pytest.mark.parametrize(
    ("threads", "queue", "records", "high"),
    [(193, 0, 0, True), (0, 1001, 0, True), (192, 1000, 50, False), (0, 0, 51, True)],
)
def test_either_high_figure_is_read_twice(threads: int, queue: int, records: int, high: bool) -> None:
    load = replace(LOAD, threads=threads, agent_queue=queue, dbd_queue=records)
    assert checks.is_high(load, CONFIG, {"MaxDBDMsgs": "100"}) is high
    assert checks.is_high(load, CONFIG, {}) is (high and records == 0)


def test_a_backfill_scheduler_that_rests_is_no_failure() -> None:
    verdict = judged(pending=3, backfilled=LOAD.now - 601)
    assert verdict_of(verdict) == (WARNING, ["backfill scheduler"])
    assert figures(verdict.advisories[0].measured) == [10, 1, 3]
    for pending, age in ((0, 601), (3, 600)):
        assert verdict_of(judged(pending=pending, backfilled=LOAD.now - age)) == (PASSED, [])


def errors(text: str, age: float | None) -> tuple[LogError, ...]:
    return tuple(sorted_errors([LogLine(age, text)], SLURMCTLD, window=24 * HOUR, nodes=("gpu02",)))


PROLOG = "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node"
CONF = "error: Node gpu02 appears to have a different slurm.conf than the slurmctld."


SAVE = "error: Can't save state, create file /x/job_state.new error Permission denied"


@pytest.mark.parametrize(
    ("text", "age", "info", "fails"),
    [
        (PROLOG, 2 * HOUR, DRAINED, True),
        (PROLOG, 2 * HOUR, IDLE, False),  # somebody has returned it to service
        (PROLOG, 5.0, IDLE, True),  # during the run
        (PROLOG, None, IDLE, False),
        (PROLOG, None, None, True),
        (CONF, None, IDLE, False),
        ("fatal: Unable to use slurm.conf of node gpu02", 1.0, DRAINED, False),  # it runs again
        (SAVE, 300.0, IDLE, True),
        (SAVE, 301.0, IDLE, False),
    ],
)
def test_when_a_line_is_a_failure(text: str, age: float | None, info: NodeInfo | None, fails: bool) -> None:
    log = ControllerLog({"gpu02": errors(text, age)}, run_age=10.0)
    verdict = checks.reported(log, "gpu02", info, CONFIG)
    assert result(verdict) == (MONITOR if fails else WARNING)
    assert result(checks.reported(log, "gpu01", info, CONFIG)) == PASSED
    same = checks.node_errors(log.errors["gpu02"], 10.0, info, CONFIG)
    assert same.outcome is (verdict.outcome if info else Outcome.PASSED)


@pytest.mark.parametrize(
    ("daemon", "info", "outcome"),
    [(SLURMD, DRAINED, MONITOR), (SLURMD, IDLE, WARNING), (SLURMCTLD, DRAINED, WARNING)],
)
@pytest.mark.parametrize("why", ["can't stat gres.conf file /dev/nvidia0: No such file or directory", "odd"])
def test_daemon_that_ended_fails_its_node(why: str, daemon: Daemon, info: NodeInfo, outcome: str) -> None:
    found = tuple(sorted_errors([LogLine(60.0, f"fatal: {why}")], daemon, window=HOUR))
    assert result(checks.node_errors(found, 5.0, info, CONFIG)) == outcome


def test_what_is_unknown_only_says_why_a_node_is_out_of_service() -> None:
    log = ControllerLog({"gpu02": errors("error: Munge something of node gpu02", 1.0)}, run_age=10.0)
    assert verdict_of(checks.reported(log, "gpu02", IDLE, CONFIG)) == (PASSED, [])
    assert verdict_of(checks.reported(log, "gpu02", DRAINED, CONFIG))[0] == WARNING


def test_known_lines_of_the_cluster_file_decide_first() -> None:
    ours = KnownLine(pattern="odd thing", meaning="our patch", reason="ticket 7", action="monitor")
    quiet = KnownLine(pattern="slurm.conf", meaning="two files", reason="by intent")
    lines = [LogLine(1.0, CONF), LogLine(2.0, "debug: odd thing"), LogLine(3.0, "error: odd thing 2")]
    for known, word in ((ours, MONITOR), (ours.model_copy(update={"action": "warn"}), WARNING)):
        found = tuple(sorted_errors(lines, SLURMCTLD, window=HOUR, of_site=(known, quiet)))
        verdict = checks.errors(ControllerLog({"": found}, run_age=10.0), CONFIG)
        assert verdict_of(verdict) == (word, ["our patch"])
        said = [one.measured for one in verdict.findings] or [one.measured for one in verdict.advisories]
        assert said == ["2 lines, last 2 s ago: odd thing 2; our patch (known: ticket 7)"]


def test_what_was_not_read_is_not_checked() -> None:
    log = ControllerLog(problem="slurmctld's log: cannot be read")
    for verdict in (
        checks.errors(log, CONFIG),
        checks.reported(log, "gpu02", IDLE, CONFIG),
        checks.load(Diagnostics(problem="sdiag: timed out"), CONFIG),
    ):
        assert result(verdict) == NOT_CHECKED


# --- jobs

HELD = OrderedJob("PENDING", "JobHeldUser", "N/A", "N/A")
WAITS = OrderedJob("PENDING", "Priority", "N/A", "N/A")


def ran(start: str, end: str, state: str = "COMPLETED") -> OrderedJob:
    return OrderedJob(state, "None", f"2026-11-23T15:07:{start}", f"2026-11-23T15:07:{end}")


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (OrderFacts(HELD, WAITS, ran("10", "11")), PASSED),
        (OrderFacts(replace(HELD, reason="JobHeldAdmin"), WAITS, ran("10", "11")), PASSED),
        (OrderFacts(ran("10", "11"), None, ran("10", "11")), CONFIGURE),
        (OrderFacts(HELD, HELD, HELD), CONFIGURE),
        (OrderFacts(HELD, WAITS, WAITS), NOT_CHECKED),
        (OrderFacts(HELD, WAITS, ran("10", "11", "FAILED")), CONFIGURE),
        (OrderFacts(HELD, None, ran("10", "11")), NOT_CHECKED),
        (OrderFacts(hold_problem="sbatch: Invalid qos"), NOT_CHECKED),
        (OrderFacts(), NOT_CHECKED),
    ],
)
def test_hold(facts: OrderFacts, outcome: str) -> None:
    assert result(job_checks.hold(facts)) == outcome


@pytest.mark.parametrize(
    ("jobs", "outcome"),
    [
        ((ran("10", "13"), ran("13", "16")), PASSED),
        ((ran("13", "16"), ran("10", "13")), PASSED),
        ((ran("10", "13"), ran("12", "15")), CONFIGURE),
        ((ran("10", "13"), WAITS), NOT_CHECKED),
        ((ran("10", "13"), None), NOT_CHECKED),
        ((), NOT_CHECKED),
    ],
)
def test_singleton(jobs: tuple[OrderedJob | None, ...], outcome: str) -> None:
    assert result(job_checks.singleton(OrderFacts(singletons=jobs))) == outcome


LIMIT = {"AssocMaxSubmitJobLimit": 10}


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (BurstFacts(1000, 1000, {}, 10.0, (0.1, 10.0)), PASSED),
        (BurstFacts(1000, 1000, {}, 10.0, (0.1, 10.1)), MONITOR),
        (BurstFacts(1000, 60, {}, 120.0, (0.1,), problem="the time limit was reached"), MONITOR),
        (BurstFacts(1000, 1000, {}, 10.0, (0.1,), left=1), MONITOR),
        # a limit of the account is no fault: what it allows is judged
        (BurstFacts(1000, 10, LIMIT, 1.0, (10.0,)), WARNING),
        (BurstFacts(1000, 9, LIMIT, 1.0, (0.1,)), NOT_CHECKED),
        (BurstFacts(1000, 0, {"Invalid account or account/partition": 10}, 1.0, (0.1,)), NOT_CHECKED),
        (BurstFacts(problem="no room"), NOT_CHECKED),
    ],
)
def test_burst(facts: BurstFacts, outcome: str) -> None:
    assert result(job_checks.burst(facts, CONFIG)) == outcome
