"""Healthy controllers that look overloaded, and overloaded ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from counter_examples import MONITOR, PASSED, WARNING, CounterExample
from paths import ROOT
from suite_helpers import considered

from pytest_gpucluster.suites.controller import checks
from pytest_gpucluster.suites.controller.checks import DaemonLog, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import LogLine, Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.log_lines import folded

CONFIG = ControllerConfig()
SDIAG = "https://slurm.schedmd.com/sdiag.html"
CONF = "https://slurm.schedmd.com/slurm.conf.html"
PAGE = "https://slurm.schedmd.com/slurmctld.html"
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-25.11.7.txt").read_text())


def load(later: dict[str, Any] | None = None, parameters: str = "", **changed: Any) -> Any:
    settings = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "100000", "SchedulerParameters": parameters}
    second = None if later is None else replace(LOAD, **later)
    return lambda: checks.load(Diagnostics(replace(LOAD, **changed), second, 0.1, settings), CONFIG)


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
    CounterExample(
        f"controller.{check}", machine, source, expected, judge, sick=expected == MONITOR or machine in ODD
    )
    for check, machine, source, expected, judge in MACHINES
)
test_controllers_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
