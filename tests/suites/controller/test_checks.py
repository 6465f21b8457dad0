"""Checks of the controller suite on made-up facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller import checks, job_checks
from pytest_gpucluster.suites.controller.checks import ControllerLog, Controllers, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import ControllerState, Load, LogLine, Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.jobs import BurstFacts, OrderedJob, OrderFacts, parse_jobs, room
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


def parts(verdict: Verdict) -> list[str]:
    assert not verdict.action.is_repair  # no check of this suite drains
    return [finding.part for finding in verdict.findings]


def controllers(*up: bool) -> Controllers:
    roles = ("primary", "backup1", "backup2") if len(up) > 2 else ("primary", "backup")
    states = tuple(
        ControllerState(role, f"ctl{n}", one) for n, (role, one) in enumerate(zip(roles, up, strict=False))
    )
    return Controllers(states, tuple(one.host for one in states))


def test_every_controller_must_answer() -> None:
    assert checks.ping(controllers(True, True), CONFIG).outcome is Outcome.PASSED
    assert parts(checks.ping(controllers(True, False), CONFIG)) == ["backup controller ctl1"]
    assert parts(checks.ping(controllers(False, True, False), CONFIG)) == [
        "primary controller ctl0",
        "backup2 controller ctl2",
    ]
    (silent,) = checks.ping(Controllers(problem="timed out"), CONFIG).findings
    assert silent == Finding("scontrol ping", "timed out", "an answer")
    nothing = checks.ping(Controllers(), CONFIG)  # no controller is named
    assert (nothing.outcome, nothing.metrics) == (Outcome.NOT_CHECKED, ())
    (metric,) = checks.ping(controllers(True, False), CONFIG).metrics
    assert (metric.name, metric.value) == ("controllers", 1)


def test_a_controller_that_ping_does_not_name_is_not_checked() -> None:
    missing = replace(controllers(True), configured=("ctl0", "ctl1"))
    assert checks.ping(missing, CONFIG).outcome is Outcome.NOT_CHECKED


def test_a_backup_controller_is_required_on_request_only() -> None:
    assert checks.ping(controllers(True), CONFIG).outcome is Outcome.PASSED
    (finding,) = checks.ping(controllers(True), ControllerConfig(backup=True)).findings
    assert (finding.part, finding.expected) == ("backup controller", "a second SlurmctldHost")
    assert checks.ping(controllers(True, True), ControllerConfig(backup=True)).outcome is Outcome.PASSED


def judged(
    *, settings: dict[str, str] | None = None, seconds: float = 0.1, later: Load | None = None, **changes: Any
) -> Verdict:
    known = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "20012", **(settings or {})}
    return checks.load(Diagnostics(replace(LOAD, **changes), later, seconds, known), CONFIG)


def test_a_load_within_the_limits_passes() -> None:
    verdict = judged()
    assert verdict.outcome is Outcome.PASSED
    assert {metric.name for metric in verdict.metrics} == {
        "sdiag",
        "threads",
        "agent_queue",
        "dbd_queue",
        "main_scheduler",
        "slowest_request",
    }  # backfill had 5 cycles only
    assert [metric.name for metric in verdict.metrics if metric.detail] == ["slowest_request"]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"threads": 193}, "threads of slurmctld"),
        ({"agent_queue": 1001}, "agent queue"),
        ({"dbd_queue": 10_007}, "records for slurmdbd"),
        ({"main": Scheduler(10, 2.1)}, "main scheduler"),
        ({"main": Scheduler(10, 2.1), "settings": {"MessageTimeout": "x sec"}}, "main scheduler"),
        ({"backfill": Scheduler(10, 31.0)}, "backfill scheduler"),
        ({"rpcs": {"REQUEST_JOB_INFO": (10, 10.1)}}, "request REQUEST_JOB_INFO"),
        ({"seconds": 10.1}, "sdiag"),
        ({"seconds": 6.0, "settings": {"MessageTimeout": "5 sec"}}, "sdiag"),
    ],
)
def test_a_figure_above_its_limit_fails(changes: dict[str, Any], part: str) -> None:
    assert parts(judged(**changes)) == [part]


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 192, "agent_queue": 1000, "dbd_queue": 10_006},
        {"threads": 256, "agent_queue": 5000, "later": LOAD},  # a short peak
        {"main": Scheduler(10, 2.0), "backfill": Scheduler(10, 30.0), "seconds": 10.0},
        {"rpcs": {"REQUEST_JOB_INFO": (10, 10.0)}},
        {"main": Scheduler(9, 9.0), "backfill": Scheduler(9, 99.0)},  # just restarted
        {"rpcs": {"REQUEST_JOB_INFO": (9, 99.0)}},
        {"dbd_queue": 99_999, "settings": {"MaxDBDMsgs": "0"}},  # no slurmdbd
        {"backfill": Scheduler(10, 59.0), "settings": {"SchedulerParameters": "defer,bf_interval=60"}},
        {
            "backfill": Scheduler(10, 99.0),
            "settings": {"SchedulerParameters": "bf_interval=60,bf_max_time=100"},
        },
    ],
)
def test_no_false_alarm(changes: dict[str, Any]) -> None:
    assert judged(**changes).outcome is Outcome.PASSED


def test_either_high_figure_is_read_twice() -> None:
    for threads, queue, high in ((193, 0, True), (0, 1001, True), (192, 1000, False)):
        assert checks.is_high(replace(LOAD, threads=threads, agent_queue=queue), CONFIG, {}) == high
    for waiting in (50, 51):
        records = replace(LOAD, dbd_queue=waiting)
        assert checks.is_high(records, CONFIG, {"MaxDBDMsgs": "100"}) == (waiting == 51)


def test_a_backfill_scheduler_that_rests_is_no_failure() -> None:
    verdict = judged(pending=3, backfilled=LOAD.now - 601)
    assert (verdict.outcome, [one.part for one in verdict.advisories]) == (
        Outcome.PASSED,
        ["backfill scheduler"],
    )
    assert verdict.advisories[0].expected == "within 10 min"
    assert not judged(pending=0, backfilled=LOAD.now - 601).advisories


def test_without_sdiag_nothing_is_judged() -> None:
    assert checks.load(Diagnostics(problem="sdiag: timed out"), CONFIG).outcome is Outcome.NOT_CHECKED


def errors(text: str, age: float | None) -> tuple[LogError, ...]:
    return tuple(sorted_errors([LogLine(age, text)], SLURMCTLD, window=24 * HOUR, nodes=("gpu02",)))


PROLOG = "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node"
CONF = "error: Node gpu02 appears to have a different slurm.conf than the slurmctld."
MISMATCH = "error: Node registration response identity mismatch: expected gpu02, got gpu03"
SILENT = "error: Nodes gpu02 not responding, setting DOWN"


@pytest.mark.parametrize(
    ("text", "age", "info", "fails"),
    [
        (PROLOG, 2 * HOUR, DRAINED, True),
        (PROLOG, 2 * HOUR, IDLE, False),  # somebody has returned it to service
        (PROLOG, 5.0, IDLE, True),  # during the run
        (PROLOG, None, IDLE, False),
        (PROLOG, None, None, True),
        (MISMATCH, 2000.0, IDLE, True),  # slurmd registers every 2000 s at the latest
        (MISMATCH, 2001.0, DRAINED, False),
        (CONF, 9.0, IDLE, False),
        (CONF, None, IDLE, False),
        ("fatal: Unable to use slurm.conf of node gpu02", 1.0, DRAINED, False),  # it runs again
        ("error: Can't save state, create file /x/job_state.new error Permission denied", 300.0, IDLE, True),
        ("error: Can't save state, create file /x/job_state.new error Permission denied", 301.0, IDLE, False),
        ("error: open of a file of node gpu02: Too many open files", 9.0, IDLE, True),
        ("error: open of a file of node gpu02: Too many open files", 60.0, IDLE, False),
    ],
)
def test_when_a_line_is_a_failure(text: str, age: float | None, info: NodeInfo | None, fails: bool) -> None:
    log = ControllerLog({"gpu02": errors(text, age)}, run_age=10.0)
    verdict = checks.reported(log, "gpu02", info, CONFIG)
    assert verdict.outcome is (Outcome.FAILED if fails else Outcome.PASSED)
    assert len(verdict.advisories) == (not fails)
    assert verdict.action is Action.MONITOR
    assert checks.reported(log, "gpu01", info, CONFIG).outcome is Outcome.PASSED
    same = checks.node_errors(log.errors["gpu02"], 10.0, info, CONFIG)
    assert same.outcome is (verdict.outcome if info else Outcome.PASSED)


@pytest.mark.parametrize("text", [SILENT, "error: Munge something of node gpu02"])
def test_what_is_quiet_or_unknown_only_says_why_a_node_is_out_of_service(text: str) -> None:
    log = ControllerLog({"gpu02": errors(text, 1.0)}, run_age=10.0)
    healthy, drained = (checks.reported(log, "gpu02", info, CONFIG) for info in (IDLE, DRAINED))
    assert (healthy.outcome, healthy.findings, healthy.advisories) == (Outcome.PASSED, (), ())
    assert [one.measured for one in drained.advisories] == [f"1 s ago: {text.removeprefix('error: ')}"]
    assert (drained.outcome, drained.findings) == (Outcome.PASSED, ())


def test_of_the_quiet_lines_the_last_is_shown_and_none_beside_a_known_one() -> None:
    later = SILENT.replace(", setting DOWN", "")
    for texts, shown in (([SILENT, later], [later]), ([SILENT, PROLOG, later], [PROLOG])):
        found = tuple(one for text in texts for one in errors(text, 5000.0))
        verdict = checks.reported(ControllerLog({"gpu02": found}, run_age=10.0), "gpu02", DRAINED, CONFIG)
        parts = [one.measured for one in (verdict.findings or verdict.advisories)]
        assert [one.partition(": ")[2] for one in parts] == [it.removeprefix("error: ") for it in shown]


@pytest.mark.parametrize(
    ("daemon", "info", "outcome"),
    [(SLURMD, DRAINED, "failed"), (SLURMD, IDLE, "passed"), (SLURMCTLD, DRAINED, "passed")],
)
@pytest.mark.parametrize("why", ["can't stat gres.conf file /dev/nvidia0: No such file or directory", "odd"])
def test_a_daemon_that_ended_is_a_failure_while_its_node_is_out_of_service(
    why: str, daemon: Daemon, info: NodeInfo, outcome: str
) -> None:
    line = LogLine(60.0, f"fatal: {why}")
    verdict = checks.node_errors(tuple(sorted_errors([line], daemon, window=HOUR)), 5.0, info, CONFIG)
    assert verdict.outcome.value == outcome
    assert len(verdict.findings) + len(verdict.advisories) == 1


def test_the_end_of_a_daemon_is_shown_wherever_it_stands_in_the_log() -> None:
    """And an unknown error of the drained node then needs no warning of its own."""
    quiet, ended = LogLine(90.0, "error: Nodes gpu02 not responding"), LogLine(60.0, "fatal: it ended")
    for lines in ((quiet, ended), (ended, quiet), (quiet, ended, ended, quiet)):
        found = tuple(sorted_errors(lines, SLURMD, window=HOUR))
        verdict = checks.node_errors(found, 5.0, DRAINED, CONFIG)
        assert parts(verdict) == ["the daemon ended"]
        assert verdict.advisories == ()


def test_known_lines_of_the_cluster_file_decide_first() -> None:
    ours = KnownLine(pattern="odd thing", meaning="our patch", reason="ticket 7", action="monitor")
    quiet = KnownLine(pattern="slurm.conf", meaning="two files", reason="by intent")
    lines = [LogLine(1.0, CONF), LogLine(2.0, "debug: odd thing"), LogLine(3.0, "error: odd thing 2")]
    found = tuple(sorted_errors(lines, SLURMCTLD, window=HOUR, of_site=(ours, quiet)))
    verdict = checks.errors(ControllerLog({"": found}, run_age=10.0), CONFIG)
    assert [one.measured for one in verdict.findings] == [
        "2 lines, last 2 s ago: odd thing 2; our patch (known: ticket 7)"
    ]
    warns = ours.model_copy(update={"action": "warn"})
    found = tuple(sorted_errors(lines, SLURMCTLD, window=HOUR, of_site=(warns, quiet)))
    verdict = checks.errors(ControllerLog({"": found}), CONFIG)
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 1)


def test_a_failure_has_the_cause_and_hint_of_its_error() -> None:
    verdict = checks.errors(ControllerLog({"": errors("error: Can't save state, x", 9.0)}), CONFIG)
    assert parts(verdict) == ["state cannot be saved"]
    assert "StateSaveLocation" in verdict.cause
    assert "df -h" in verdict.hint
    assert verdict.findings[0].measured == "9 s ago: Can't save state, x"
    (undated,) = checks.errors(
        ControllerLog({"": errors("error: Can't save state, x", None)}), CONFIG
    ).advisories
    assert undated.measured == "at an unknown time: Can't save state, x"


def test_a_warning_of_a_log_says_what_has_happened_since() -> None:
    prolog = "error: Prolog or job env setup failure on node gpu02, draining the node"
    log = ControllerLog({"gpu02": errors(prolog, HOUR), "": errors("error: Can't save state, x", HOUR)})
    (repaired,) = checks.reported(log, "gpu02", IDLE, CONFIG).advisories
    assert repaired.measured.endswith("; before the last repair: the node is in service again")
    assert checks.reported(log, "gpu02", DRAINED, CONFIG).findings[0].measured.startswith("1 h ago: Prolog")
    (ended,) = checks.errors(log, CONFIG).advisories
    assert ended.measured.endswith("; repeated every 300 s while it lasts, and not since")


def test_a_log_that_was_not_read_is_not_checked() -> None:
    log = ControllerLog(problem="slurmctld's log: cannot be read")
    assert checks.errors(log, CONFIG).outcome is Outcome.NOT_CHECKED
    assert checks.reported(log, "gpu02", IDLE, CONFIG).outcome is Outcome.NOT_CHECKED


def test_equal_lines_are_one_remark_or_finding() -> None:
    many = [LogLine(float(n), f"error: odd {chr(97 + n % 3)} {n}") for n in range(9)]
    log = ControllerLog({"": tuple(sorted_errors([*many, *many], SLURMCTLD, window=24 * HOUR))})
    verdict = checks.errors(log, CONFIG)
    assert [(remark.text, remark.count) for remark in verdict.remarks] == [
        ("odd a 6", 6),
        ("odd b 7", 6),
        ("odd c 8", 6),
    ]
    silent = LogLine(8.0, "error: Munge decode failed: Rewound credential")
    (warning,) = checks.errors(
        ControllerLog({"": tuple(sorted_errors([silent, silent], SLURMCTLD, window=9.0))}), CONFIG
    ).advisories
    assert warning.measured == "2 lines, last 8 s ago: Munge decode failed: Rewound credential"


# --- jobs

HELD = OrderedJob("PENDING", "JobHeldUser", "N/A", "N/A")
WAITS = OrderedJob("PENDING", "Priority", "N/A", "N/A")


def ran(start: str, end: str, state: str = "COMPLETED") -> OrderedJob:
    return OrderedJob(state, "None", f"2026-11-23T15:07:{start}", f"2026-11-23T15:07:{end}")


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (OrderFacts(HELD, WAITS, ran("10", "11")), Outcome.PASSED),
        (OrderFacts(replace(HELD, reason="JobHeldAdmin"), WAITS, ran("10", "11")), Outcome.PASSED),
        (OrderFacts(ran("10", "11"), None, ran("10", "11")), Outcome.FAILED),
        (OrderFacts(HELD, HELD, HELD), Outcome.FAILED),
        (OrderFacts(HELD, WAITS, WAITS), Outcome.NOT_CHECKED),
        (OrderFacts(HELD, WAITS, ran("10", "11", "FAILED")), Outcome.FAILED),
        (OrderFacts(hold_problem="sbatch: Invalid qos"), Outcome.NOT_CHECKED),
        (OrderFacts(), Outcome.NOT_CHECKED),
    ],
)
def test_hold(facts: OrderFacts, outcome: Outcome) -> None:
    assert job_checks.hold(facts).outcome is outcome


@pytest.mark.parametrize(
    ("jobs", "outcome"),
    [
        ((ran("10", "13"), ran("13", "16")), Outcome.PASSED),
        ((ran("13", "16"), ran("10", "13")), Outcome.PASSED),
        ((ran("10", "13"), ran("12", "15")), Outcome.FAILED),
        ((ran("10", "13"), ran("10", "13")), Outcome.FAILED),
        ((ran("10", "13"), WAITS), Outcome.NOT_CHECKED),
        ((ran("10", "13"), None), Outcome.NOT_CHECKED),
        ((), Outcome.NOT_CHECKED),
    ],
)
def test_singleton(jobs: tuple[OrderedJob | None, ...], outcome: Outcome) -> None:
    assert job_checks.singleton(OrderFacts(singletons=jobs)).outcome is outcome


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (BurstFacts(1000, 1000, {}, 10.0, (0.1, 0.2)), Outcome.PASSED),
        (BurstFacts(1000, 1000, {}, 10.0, (10.1,)), Outcome.FAILED),
        (
            BurstFacts(1000, 990, {"Socket timed out on send/recv operation": 10}, 10.0, (0.1,)),
            Outcome.FAILED,
        ),
        (BurstFacts(1000, 60, {}, 120.0, (0.1,), problem="the time limit was reached"), Outcome.FAILED),
        (BurstFacts(1000, 1000, {}, 10.0, (0.1,), left=1), Outcome.FAILED),
        # a limit of the account is no fault: what it allows is judged
        (BurstFacts(1000, 90, {"AssocMaxSubmitJobLimit": 10}, 1.0, (0.1,)), Outcome.PASSED),
        (BurstFacts(1000, 10, {"AssocMaxSubmitJobLimit": 10}, 1.0, (10.0,)), Outcome.PASSED),
        (BurstFacts(1000, 9, {"AssocMaxSubmitJobLimit": 10}, 1.0, (0.1,)), Outcome.NOT_CHECKED),
        (BurstFacts(1000, 0, {"Invalid account or account/partition": 10}, 1.0, (0.1,)), Outcome.NOT_CHECKED),
        (BurstFacts(problem="no room"), Outcome.NOT_CHECKED),
    ],
)
def test_burst(facts: BurstFacts, outcome: Outcome) -> None:
    assert job_checks.burst(facts, CONFIG).outcome is outcome


def test_a_burst_leaves_half_of_the_room_to_others() -> None:
    load = replace(LOAD, pending=9_000, running=500)
    assert room(load, {"MaxJobCount": "10000"}) == 250
    assert room(replace(load, pending=20_000), {"MaxJobCount": "10000"}) == 0
    assert room(load, {}) == 0
    assert room(None, {"MaxJobCount": "10000"}) == 0


def test_squeues_columns_are_read() -> None:
    line = "".join(word.ljust(40) for word in ("1018", "PENDING", "JobHeldUser", "N/A", "N/A"))
    assert parse_jobs(f"\n{line}\n") == {"1018": HELD}
    assert HELD.span is None
    assert ran("10", "13").span is not None


def test_the_words_and_figures_of_findings() -> None:
    """What an operator reads: expected values, units, and the age of the last cycle."""
    (down,) = checks.ping(controllers(False), CONFIG).findings
    assert (down.part, down.measured, down.expected) == ("primary controller ctl0", "DOWN", "UP")
    mean = next(metric for metric in judged().metrics if metric.name == "main_scheduler")
    assert LOAD.main.mean is not None
    assert mean.unit == "ms"
    assert mean.value == pytest.approx(1000 * LOAD.main.mean)
    slow = judged(
        rpcs={"REQUEST_JOB_INFO": (10, 10.1), "REQUEST_PING": (10, 1.0)},
        dbd_queue=10_007,
        seconds=10.1,
        threads=193,
        agent_queue=1001,
        main=Scheduler(10, 2.1),
        backfill=Scheduler(11, 31.0),
    )
    figures = {one.name: (one.value, one.unit) for one in slow.metrics}
    assert figures == {
        "sdiag": (10.1, "s"),
        "threads": (193, "threads"),
        "agent_queue": (1001, "messages"),
        "dbd_queue": (10_007, "messages"),
        "main_scheduler": (2100, "ms"),
        "backfill_scheduler": (31_000, "ms"),
        "slowest_request": (10_100, "ms"),
    }
    assert [(one.measured, one.expected) for one in slow.findings] == [
        ("answered after 10.1 s", "<= 10 s"),
        ("193 of 256", "<= 192"),
        ("1001 messages wait to be sent again", "<= 1000"),
        ("10007 wait", "<= 10006 (half of MaxDBDMsgs)"),
        ("2.1 s per cycle, mean of 10", "<= 2 s"),
        ("31.0 s per cycle, mean of 11", "<= 30 s"),
        ("10.1 s on average", "<= 10 s"),
    ]
    (rests,) = judged(pending=3, backfilled=LOAD.now - 601).advisories
    assert rests.measured == "last ran 10 min 1 s ago; 3 jobs are pending"
    log = ControllerLog({"gpu02": errors(PROLOG, 5.0)}, run_age=10.0)
    assert [one.expected for one in checks.reported(log, "gpu02", IDLE, CONFIG).findings] == ["no such line"]


@pytest.mark.parametrize(
    ("check", "facts", "findings"),
    [
        ("hold", OrderFacts(HELD, HELD, HELD), ["released job: PENDING (JobHeldUser), not held any more"]),
        ("hold", OrderFacts(ran("1", "2")), ["held job: COMPLETED, PENDING (JobHeldUser)"]),
        (
            "hold",
            OrderFacts(replace(WAITS, reason="")),
            ["held job: PENDING, PENDING (JobHeldUser)"],
        ),
        ("hold", OrderFacts(HELD, WAITS, ran("1", "2", "FAILED")), ["released job: FAILED, COMPLETED"]),
        (
            "singleton",
            OrderFacts(singletons=(ran("10", "13"), ran("12", "15"))),
            ["two singletons: 15:07:10 to 15:07:13 and 15:07:12 to 15:07:15, one after the other"],
        ),
        (
            "burst",
            BurstFacts(1000, 600, {"Socket timed out": 20}, 100.4, (0.5, 10.5, 2.0), 3, "no time is left"),
            [
                "cancelled jobs: 3 are still in the queue, none",
                "submissions: 20 of 1000 failed: Socket timed out, all are accepted",
                "submissions: no time is left: 600 of 1000 were confirmed in 100 s, 1000 within 120 s",
                "squeue during the burst: 10.5 s, <= 10 s",
            ],
        ),
    ],
)
def test_the_findings_of_jobs(check: str, facts: Any, findings: list[str]) -> None:
    arguments = (facts, CONFIG) if check == "burst" else (facts,)
    verdict = getattr(job_checks, check)(*arguments)
    assert [f"{one.part}: {one.measured}, {one.expected}" for one in verdict.findings] == findings
    if check == "burst":
        figures = {one.name: (round(one.value, 1), one.unit) for one in verdict.metrics}
        assert figures == {"answer_in_burst": (10.5, "s"), "submission_rate": (6.0, "jobs/s")}


def test_why_jobs_were_not_checked() -> None:
    for facts, reason in (
        (OrderFacts(HELD, WAITS, WAITS), "the released job has not run yet: PENDING (Priority)"),
        (OrderFacts(HELD, None, WAITS), job_checks.FORGOTTEN),
        (OrderFacts(HELD, WAITS, None), job_checks.FORGOTTEN),
    ):
        assert job_checks.hold(facts).reason == reason
    assert job_checks.singleton(OrderFacts(singletons=(WAITS, None))).reason == (
        f"the two jobs have not both run: PENDING (Priority), {job_checks.FORGOTTEN}"
    )
    refused = job_checks.singleton(OrderFacts(singleton_problem="sbatch: odd"))
    assert (refused.outcome, refused.reason) == (Outcome.NOT_CHECKED, "sbatch: odd")
    # an error that is neither a limit nor an outage explains most
    errors = {"AssocMaxSubmitJobLimit": 1, "Invalid qos": 2, "Invalid account": 3}
    assert job_checks.burst(BurstFacts(20, 4, errors, 1.0), CONFIG).reason == "Invalid qos"
    first = {"AssocMaxSubmitJobLimit": 1, "MaxSubmitJobs": 2}
    assert job_checks.burst(BurstFacts(20, 4, first, 1.0), CONFIG).reason == "AssocMaxSubmitJobLimit"


def test_two_singletons_at_once_and_a_limit_of_jobs() -> None:
    both = OrderedJob("COMPLETED", "None", "2026-11-24T10:00:00", "2026-11-24T10:00:09")
    (found,) = job_checks.singleton(OrderFacts(singletons=(both, both))).findings
    assert (found.part, found.expected) == ("two singletons", "one after the other")
    limit = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    full = BurstFacts(requested=200, accepted=100, refused={limit: 100}, seconds=1.0)
    (advice,) = job_checks.burst(full, CONFIG).advisories
    assert (advice.measured, advice.expected) == ("100 were accepted before a limit of jobs", "200")
    none = job_checks.burst(BurstFacts(requested=200, seconds=1.0), CONFIG)
    assert (none.outcome, none.reason) == (Outcome.NOT_CHECKED, "no submission was accepted")
