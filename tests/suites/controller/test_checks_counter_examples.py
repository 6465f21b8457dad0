"""Healthy controllers that look overloaded, and overloaded ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name
from paths import ROOT

from pytest_gpucluster.suites.controller import checks, job_checks
from pytest_gpucluster.suites.controller.checks import Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.jobs import BurstFacts

CONFIG = ControllerConfig()
SDIAG = "https://slurm.schedmd.com/sdiag.html"
CONF = "https://slurm.schedmd.com/slurm.conf.html"
LIMITS = "https://slurm.schedmd.com/resource_limits.html"
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-25.11.7.txt").read_text())


def load(later: dict[str, Any] | None = None, parameters: str = "", seconds: float = 0.1, **changed: Any) -> Any:
    settings = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "100000", "SchedulerParameters": parameters}
    second = None if later is None else replace(LOAD, **later)
    return lambda: checks.load(Diagnostics(replace(LOAD, **changed), second, seconds, settings), CONFIG)


def burst(**changed: Any) -> Any:
    found = {"requested": 1000, "accepted": 1000, "seconds": 40.0, "answers": (0.4, 1.2), **changed}
    return lambda: job_checks.burst(BurstFacts(**found), CONFIG)


def machine(check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False) -> CounterExample:
    return CounterExample(f"controller.{check}", name, source, expected, judged, sick=sick)


SUBMIT = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
COUNTER_EXAMPLES = (
    machine("load", "250 threads for a moment", SDIAG, PASSED, load({"threads": 4}, threads=250)),
    machine("load", "backfill may take five minutes", CONF, PASSED, load(parameters="bf_max_time=300,bf_interval=60", backfill=Scheduler(40, 62.0))),
    machine("load", "the main scheduler may take ten seconds", CONF, PASSED, load(parameters="max_sched_time=10", main=Scheduler(400, 5.0))),
    machine("load", "slurmdbd was restarted, and takes the records that waited", SDIAG, WARNING, load({"dbd_queue": 52_000}, dbd_queue=60_000)),
    machine("load", "one slow request since the start: a reconfiguration", SDIAG, PASSED, load(rpcs={"REQUEST_RECONFIGURE": (3, 25.0)})),
    machine("load", "threads are used up", SDIAG, MONITOR, load({"threads": 256}, threads=255), sick=True),
    machine("load", "records for slurmdbd pile up", SDIAG, MONITOR, load({"dbd_queue": 60_400}, dbd_queue=60_000), sick=True),
    machine("load", "cycles of the main scheduler are cut", CONF, MONITOR, load(main=Scheduler(400, 5.0)), sick=True),
    machine("load", "a kind of request takes longer than clients wait", SDIAG, MONITOR, load(rpcs={"REQUEST_SUBMIT_BATCH_JOB": (900, 14.0)}), sick=True),
    machine("burst", "all accepted", CONF, PASSED, burst()),
    machine("burst", "a limit of the user ends it", LIMITS, WARNING, burst(accepted=100, refused={SUBMIT: 900})),
    machine("burst", "rate limits of users slow it", "https://slurm.schedmd.com/slurm.conf.html#OPT_rl_enable", PASSED, burst(seconds=110.0)),
    machine("burst", "half of the submissions time out", CONF, MONITOR, burst(accepted=500, refused={TIMEOUT: 500}), sick=True),
    machine("burst", "squeue answers after 14 s", CONF, MONITOR, burst(answers=(0.5, 14.0)), sick=True),
    machine("burst", "cancelled jobs stay", CONF, MONITOR, burst(left=3), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_controllers_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
