"""Healthy controllers that look overloaded, and overloaded ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.suites.controller import checks, job_checks
from pytest_gpucluster.suites.controller.checks import ControllerLog, Diagnostics
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import LogLine, Scheduler, parse_sdiag
from pytest_gpucluster.suites.controller.jobs import BurstFacts
from pytest_gpucluster.suites.controller.known_errors import SLURMCTLD, SLURMD, Daemon, sorted_errors

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

CONFIG = ControllerConfig()
SDIAG = "https://slurm.schedmd.com/sdiag.html"
CONF = "https://slurm.schedmd.com/slurm.conf.html"
LIMITS = "https://slurm.schedmd.com/resource_limits.html"
CTLD, DBD = "https://slurm.schedmd.com/slurmctld.html", "https://slurm.schedmd.com/slurmdbd.html"
SLURMD_PAGE, PROLOGS = "https://slurm.schedmd.com/slurmd.html", "https://slurm.schedmd.com/prolog_epilog.html"
HOUR, RUN = 3600.0, 600.0
LOAD = parse_sdiag((ROOT / "tests" / "data" / "controller" / "sdiag-25.11.7.txt").read_text())


def load(
    later: dict[str, Any] | None = None, parameters: str = "", seconds: float = 0.1, **changed: Any
) -> Any:
    settings = {"MessageTimeout": "10 sec", "MaxDBDMsgs": "100000", "SchedulerParameters": parameters}
    second = None if later is None else replace(LOAD, **later)
    return lambda: checks.load(Diagnostics(replace(LOAD, **changed), second, seconds, settings), CONFIG)


def burst(**changed: Any) -> Any:
    found = {"requested": 1000, "accepted": 1000, "seconds": 40.0, "answers": (0.4, 1.2), **changed}
    return lambda: job_checks.burst(BurstFacts(**found), CONFIG)


def log(node: str, daemon: Daemon, text: str, age: float, *, in_service: bool = True) -> Any:
    """Return the check of a log with one line, read at the end of a run of ten minutes."""
    found = tuple(sorted_errors([LogLine(age, text)], daemon, window=24 * HOUR, nodes=("gpu02",)))
    info = NodeInfo("gpu02", "IDLE", frozenset() if in_service else frozenset({"DRAIN"}))

    def judged() -> Verdict:
        if daemon is SLURMD:
            return checks.node_errors(found, RUN, info, CONFIG)
        known = ControllerLog(
            {node: tuple(one for one in found if node in (one.nodes or ("",)))}, run_age=RUN
        )
        return checks.reported(known, node, info, CONFIG) if node else checks.errors(known, CONFIG)

    return judged


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
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
    machine("errors", "a user asks for an account that does not exist", CTLD, PASSED,
        log("", SLURMCTLD, "error: _slurm_rpc_submit_batch_job: Invalid account or account/partition combination specified", 60.0)),
    machine("errors", "slurmdbd was away last night", DBD, WARNING,
        log("", SLURMCTLD, "error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db1:6819: Connection refused", 8 * HOUR)),
    machine("errors", "state cannot be saved now", CTLD, MONITOR,
        log("", SLURMCTLD, "error: Can't save state, create file /var/spool/slurmctld/job_state.new error No space left on device", 20.0), sick=True),
    machine("reported", "the node rebooted", CTLD, PASSED, log("gpu02", SLURMCTLD, "error: Nodes gpu02 not responding", 3 * HOUR)),
    machine("reported", "a prolog failed yesterday, and a person returned the node", PROLOGS, WARNING,
        log("gpu02", SLURMCTLD, "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node", 20 * HOUR)),
    machine("reported", "a prolog failed, and the node is drained", PROLOGS, MONITOR,
        log("gpu02", SLURMCTLD, "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node", 2 * HOUR, in_service=False), sick=True),
    machine("node_errors", "a user's job exceeds its memory", SLURMD_PAGE, PASSED,
        log("gpu02", SLURMD, "error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.", 60.0)),
    machine("node_errors", "the health check failed in the morning, and is well since", PROLOGS, WARNING,
        log("gpu02", SLURMD, "error: health_check failed: rc:1 output:ERROR nhc: Health check failed: check_fs_mount", 6 * HOUR)),
    machine("node_errors", "the health check fails", PROLOGS, MONITOR,
        log("gpu02", SLURMD, "error: health_check failed: rc:1 output:ERROR nhc: Health check failed: check_fs_mount", 60.0), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_controllers_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
