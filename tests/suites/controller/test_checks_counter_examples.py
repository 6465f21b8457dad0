"""Healthy controllers that look overloaded, and overloaded ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.suites.controller import checks, job_checks
from pytest_gpucluster.suites.controller.checks import ControllerLog, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import LogLine, Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.jobs import BurstFacts
from pytest_gpucluster.suites.controller.known_errors import SLURMCTLD, SLURMD, sorted_errors

CONFIG = ControllerConfig()
SDIAG = "https://slurm.schedmd.com/sdiag.html"
CONF = "https://slurm.schedmd.com/slurm.conf.html"
LIMITS = "https://slurm.schedmd.com/resource_limits.html"
PAGE, PROLOGS = "https://slurm.schedmd.com/slurmctld.html", "https://slurm.schedmd.com/prolog_epilog.html"
HOUR, RUN = 3600.0, 600.0
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-25.11.7.txt").read_text())


def load(later: dict[str, Any] | None = None, parameters: str = "", **changed: Any) -> Any:
    settings = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "100000", "SchedulerParameters": parameters}
    second = None if later is None else replace(LOAD, **later)
    return lambda: checks.load(Diagnostics(replace(LOAD, **changed), second, 0.1, settings), CONFIG)


def burst(**changed: Any) -> Any:
    found = {"requested": 1000, "accepted": 1000, "seconds": 40.0, "answers": (0.4, 1.2), **changed}
    return lambda: job_checks.burst(BurstFacts(**found), CONFIG)


def errors(text: str, age: float) -> Any:
    """Return the check of slurmctld's log with one line, read at the end of a run of ten minutes."""
    found = tuple(sorted_errors([LogLine(age, f"error: {text}")], SLURMCTLD, window=24 * HOUR))
    return lambda: checks.errors(ControllerLog({"": found}, run_age=RUN), CONFIG)


def of_node(text: str, age: float, *flags: str) -> Any:
    found = sorted_errors([LogLine(age, f"error: {text}")], SLURMCTLD, window=24 * HOUR, nodes=("gpu02",))
    log = ControllerLog({"gpu02": tuple(found)}, run_age=RUN)
    return lambda: checks.reported(log, "gpu02", NodeInfo("gpu02", "IDLE", frozenset(flags)), CONFIG)


def of_slurmd(text: str, age: float) -> Any:
    found = tuple(sorted_errors([LogLine(age, f"error: {text}")], SLURMD, window=24 * HOUR))
    return lambda: checks.node_errors(found, RUN, NodeInfo("gpu02", "IDLE"), CONFIG)


LIMIT = {"sbatch: error: AssocMaxSubmitJobLimit": 900}
TIMEOUT = {"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation": 500}
ACCOUNT = "_slurm_rpc_submit_batch_job: Invalid account or account/partition combination specified"
AWAY = "slurm_persist_conn_open_without_init: failed to open persistent connection to host:db1:6819: x"
FULL = "Can't save state, create file /var/spool/slurmctld/job_state.new error No space left on device"
PROLOG = "validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node"
OOM = "Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed."
HEALTH = "health_check failed: rc:1 output:ERROR nhc: Health check failed: check_fs_mount"
SLOW = Scheduler(400, 5.0)
LONG: dict[str, Any] = {"parameters": "bf_max_time=300,bf_interval=60", "backfill": Scheduler(40, 62.0)}
MACHINES: tuple[tuple[str, str, str, str, Any], ...] = (
    ("load", "backfill may take five minutes", CONF, PASSED, load(**LONG)),
    ("load", "ten seconds of scheduling", CONF, PASSED, load(parameters="max_sched_time=10", main=SLOW)),
    ("load", "slurmdbd is back", SDIAG, WARNING, load({"dbd_queue": 52_000}, dbd_queue=60_000)),
    ("load", "threads are used up", SDIAG, MONITOR, load({"threads": 256}, threads=255)),
    ("load", "records pile up", SDIAG, MONITOR, load({"dbd_queue": 60_400}, dbd_queue=60_000)),
    ("burst", "all accepted", CONF, PASSED, burst()),
    ("burst", "a limit of the user ends it", LIMITS, WARNING, burst(accepted=100, refused=LIMIT)),
    ("burst", "half of the submissions time out", CONF, MONITOR, burst(accepted=500, refused=TIMEOUT)),
    ("errors", "a user asks for an account that does not exist", PAGE, PASSED, errors(ACCOUNT, 60.0)),
    ("errors", "slurmdbd was away last night", PAGE, WARNING, errors(AWAY, 8 * HOUR)),
    ("errors", "state cannot be saved now", PAGE, MONITOR, errors(FULL, 20.0)),
    ("reported", "the node rebooted", PAGE, PASSED, of_node("Nodes gpu02 not responding", 3 * HOUR)),
    ("reported", "a prolog failed, the node was returned", PROLOGS, WARNING, of_node(PROLOG, 20 * HOUR)),
    ("reported", "a prolog failed", PROLOGS, MONITOR, of_node(PROLOG, 2 * HOUR, "DRAIN")),
    ("node_errors", "a user's job exceeds its memory", PAGE, PASSED, of_slurmd(OOM, 60.0)),
    ("node_errors", "the health check is well since", PROLOGS, WARNING, of_slurmd(HEALTH, 6 * HOUR)),
    ("node_errors", "the health check fails", PROLOGS, MONITOR, of_slurmd(HEALTH, 60.0)),
)
COUNTER_EXAMPLES = tuple(
    CounterExample(f"controller.{check}", machine, source, expected, judge, sick=expected == MONITOR)
    for check, machine, source, expected, judge in MACHINES
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_controllers_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
