"""The submitit suite: verdicts on plain facts, and the real submitit on virtual nodes, healthy and with faults."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled
from paths import ROOT
from plugin_helpers import Run, cluster_file, command, jobs_so_far, names, run_pytest
from sandbox_helpers import environment, left_in_queue, queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadTask
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.submitit import checks
from pytest_gpucluster.suites.submitit import steps as runner
from pytest_gpucluster.suites.submitit.checks import SubmititResult
from slurm_sandbox import slurmconf
from slurm_sandbox.slurmconf import slurm_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slurm_sandbox.layout import Layout

SUITE = ROOT / "suites" / "submitit" / "test_submitit.py"
PATIENCE = 400  # seconds; a run takes a tenth of it on a quiet machine
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"
ALL = (
    checks.framework,
    checks.add,
    checks.array,
    checks.multitask,
    checks.failure,
    checks.cancel,
)


# -- verdicts on plain facts --------------------------------------------------------------------------------------


def result(*facts: Mapping[str, Any], accounting: bool = False, problem: str = "") -> SubmititResult:
    """Return the result of a driver that printed these facts."""
    task = PayloadTask(0, "", None, None, facts)
    return SubmititResult("submitit", (), 1, (task,), problem, accounting=accounting)


def reported(*, accounting: bool = False, **changes: dict[str, Any] | None) -> SubmititResult:
    """Return what a healthy driver tells; `add={...}` replaces one result, None leaves it away."""
    places = [{"rank": rank, "tasks": 3, "slurm": rank, "node": "gpu01"} for rank in range(3)]
    results: dict[str, dict[str, Any] | None] = {
        "add": {"value": [12], "state": "COMPLETED"},
        "array": {"value": [11, 22, 33]},
        "multitask": {"value": places},
        "failure": {"error": "FailedJobError", "text": f"Traceback\nValueError: {checks.FAILURE}"},
        "cancel": {"over": True, "slurm": "", "known": accounting, "state": "CANCELLED by 0", "seconds": 1.0},
        **changes,
    }
    facts: list[dict[str, Any]] = [{"submitit": "submitted", "version": "1.5", "jobs": ["1"]}]
    facts += [{"submitit": name, **fact} for name, fact in results.items() if fact]
    return result(*facts, accounting=accounting)


def found(verdict: Verdict) -> str:
    return " | ".join(f"{x.part}: {x.measured}" for x in verdict.findings)


@pytest.mark.parametrize("accounting", [False, True])
def test_healthy_results_pass(accounting: bool) -> None:  # a table of cases
    for check in ALL:
        assert check(reported(accounting=accounting)).outcome is Outcome.PASSED
    expected = Outcome.PASSED if accounting else Outcome.NOT_CHECKED
    assert checks.accounting(reported(accounting=accounting)).outcome is expected


@pytest.mark.parametrize(
    ("check", "change", "printed"),
    [
        (checks.add, {"add": {"value": [13]}}, "result: [13]"),
        (checks.add, {"add": {"error": "late", "text": "PENDING"}}, "did not end in time: PENDING"),
        (
            checks.add,
            {"add": {"error": "UncompletedJobError", "text": "no\nfile"}},
            "UncompletedJobError: file",
        ),
        (checks.array, {"array": {"value": [11, 33, 22]}}, "[11, 33, 22]"),
        (
            checks.multitask,
            {"multitask": {"value": [{"rank": 0, "tasks": 1, "slurm": 0, "node": "a"}]}},
            "ranks: 0",
        ),
        (
            checks.multitask,
            {"multitask": {"value": [{"rank": r, "tasks": 3, "slurm": 0, "node": "a"} for r in range(3)]}},
            "rank 1 of 3, Slurm's task 0",
        ),
        (checks.failure, {"failure": {"value": [None]}}, "job: the value [None]"),
        (
            checks.failure,
            {"failure": {"error": "UncompletedJobError", "text": "x"}},
            "UncompletedJobError: x",
        ),
        (checks.cancel, {"cancel": {"over": False, "slurm": "RUNNING", "seconds": 30.0}}, "still RUNNING"),
        (checks.cancel, {"cancel": None}, "result of cancel: the driver ended without a message"),
    ],
)
def test_what_is_wrong_fails(check: Any, change: dict[str, Any], printed: str) -> None:
    verdict = check(reported(**change))
    assert verdict.outcome is Outcome.FAILED
    assert printed in found(verdict)


def test_with_accounting_submitit_has_to_know_the_states() -> None:
    unknown = {"over": True, "slurm": "", "known": False, "state": "UNKNOWN", "seconds": 1.0}
    assert (
        found(checks.cancel(reported(accounting=True, cancel=unknown)))
        == "submitit's state of the job: UNKNOWN"
    )
    assert checks.cancel(reported(cancel=unknown)).outcome is Outcome.PASSED
    assert checks.accounting(reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})).findings


def test_nothing_submitted_is_one_failure_and_never_a_pass() -> None:
    failed = {"submitit": "failed", "phase": "submit", "error": "ModuleNotFoundError", "text": "No module"}
    nothing = result(failed)
    assert found(checks.framework(nothing)) == "package submitit: ModuleNotFoundError: No module"
    assert {check(nothing).outcome for check in ALL[1:]} == {Outcome.NOT_CHECKED}
    assert found(checks.framework(result(problem="python: not found"))) == "submission: python: not found"


CONTINUED = {"sum": 36, "runs": [{"restart": 0, "step": 0}, {"restart": 1, "step": 4}]}


@pytest.mark.parametrize(
    ("fact", "printed"),
    [
        ({"value": [CONTINUED]}, ""),
        (
            {"value": [{"sum": 36, "runs": [{"restart": 1, "step": 0}]}]},
            "runs: restart 1 from step 0",
        ),
        (
            {"value": [{"sum": 36, "runs": [{"restart": 0, "step": 0}]}]},
            "runs: restart 0 from step 0",
        ),
        (
            {"value": [{"sum": 36, "runs": [{"restart": 0, "step": 0}, {"restart": 1, "step": 0}]}]},
            "runs: restart 0 from step 0, restart 1 from step 0",
        ),
        ({"value": [{**CONTINUED, "sum": 26}]}, "sum over both runs: 26"),
        ({"error": "late", "text": "PENDING"}, "job: did not end in time: PENDING"),
        (
            {"error": "FailedJobError", "text": "Traceback\nscontrol requeue: exit 1"},
            "job: FailedJobError: scontrol requeue: exit 1",
        ),
        (None, "result of checkpoint: the driver ended without a message"),
    ],
)
def test_a_requeued_job_continues(fact: dict[str, Any] | None, printed: str) -> None:
    verdict = checks.checkpoint(replace(reported(checkpoint=fact), checkpoint=True))
    assert found(verdict) == printed
    assert verdict.outcome is (Outcome.FAILED if printed else Outcome.PASSED)


def test_without_the_key_no_job_is_requeued() -> None:
    assert checks.checkpoint(reported()).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("auth", "seconds"),
    [("(null)", 120), ("socket=/run/munge,cred_expire=15", 15), ("cred_expire=1200,ttl=3", 1200)],
)
def test_the_delay_of_a_requeue_is_that_of_slurm(auth: str, seconds: float) -> None:
    assert runner.requeue_delay({"AuthInfo": auth}) == seconds
    assert runner.requeue_delay({}) == 120


def test_records_are_kept_where_slurm_says_so() -> None:
    assert not runner.stores_records({})
    assert not runner.stores_records({"AccountingStorageType": "accounting_storage/none"})
    assert runner.stores_records({"AccountingStorageType": "accounting_storage/slurmdbd"})


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (lambda: checks.framework(reported()), "passed", "", [], []),
    (
        lambda: checks.framework(result()),
        "failed",
        "",
        ["submission: the driver sent no report / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result(problem="python: not found")),
        "failed",
        "",
        ["submission: python: not found / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result({"submitit": "failed", "error": "ImportError", "text": "t"})),
        "failed",
        "",
        ["package submitit: ImportError: t / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(result({"submitit": "failed", "error": "ModuleNotFoundError", "text": "t"})),
        "failed",
        "",
        ["package submitit: ModuleNotFoundError: t / submits jobs"],
        [],
    ),
    (
        lambda: checks.framework(
            result({"submitit": "failed", "error": "FailedJobError", "text": "sbatch: refused"})
        ),
        "failed",
        "",
        ["submission: FailedJobError: sbatch: refused / submits jobs"],
        [],
    ),
    (lambda: checks.add(reported(add={"value": [13]})), "failed", "", ["result: [13] / [12]"], []),
    (
        lambda: checks.add(reported(add={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "late", "text": ""})),
        "failed",
        "",
        ["job: did not end in time: unknown to Slurm, without a result / runs and ends"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "UncompletedJobError", "text": "no\nfile\n"})),
        "failed",
        "",
        ["job: UncompletedJobError: file / a result"],
        [],
    ),
    (
        lambda: checks.add(reported(add={"error": "UncompletedJobError", "text": ""})),
        "failed",
        "",
        ["job: UncompletedJobError:  / a result"],
        [],
    ),
    (
        lambda: checks.add(reported(add=None)),
        "failed",
        "",
        ["result of add: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.add(
            result(
                *reported(add=None).tasks[0].facts, {"submitit": "failed", "error": "OSError", "text": "t"}
            )
        ),
        "failed",
        "",
        ["result of add: OSError: t / returned"],
        [],
    ),
    (
        lambda: checks.add(replace(reported(add=None), problem="killed")),
        "failed",
        "",
        ["result of add: killed / returned"],
        [],
    ),
    (
        lambda: checks.add(result()),
        "not checked",
        "nothing was submitted: see submitit.framework",
        [],
        [],
    ),
    (
        lambda: checks.array(reported(array={"value": [11, 33, 22]})),
        "failed",
        "",
        ["result: [11, 33, 22] / [11, 22, 33]"],
        [],
    ),
    (
        lambda: checks.array(reported(array=None)),
        "failed",
        "",
        ["result of array: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask=None)),
        "failed",
        "",
        ["result of multitask: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.multitask(reported(multitask={"value": []})),
        "failed",
        "",
        ["ranks: none / 0 to 2, once each"],
        [],
    ),
    (
        lambda: checks.multitask(
            reported(
                multitask={"value": [{"rank": r, "tasks": 3, "slurm": 0, "node": "a"} for r in range(3)]}
            )
        ),
        "failed",
        "",
        [
            "task on a: rank 1 of 3, Slurm's task 0 / the same rank, of 3",
            "task on a: rank 2 of 3, Slurm's task 0 / the same rank, of 3",
        ],
        [],
    ),
    (
        lambda: checks.multitask(
            reported(multitask={"value": [{"rank": 0, "tasks": 1, "slurm": 0, "node": "a"}]})
        ),
        "failed",
        "",
        ["ranks: 0 / 0 to 2, once each", "task on a: rank 0 of 1, Slurm's task 0 / the same rank, of 3"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure=None)),
        "failed",
        "",
        ["result of failure: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"value": [None]})),
        "failed",
        "",
        ["job: the value [None] / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "FailedJobError", "text": "another"})),
        "failed",
        "",
        ["job: FailedJobError: another / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "UncompletedJobError", "text": checks.FAILURE})),
        "failed",
        "",
        [
            "job: UncompletedJobError: gpucluster: expected failure / FailedJobError: gpucluster: expected failure"
        ],
        [],
    ),
    (
        lambda: checks.failure(reported(failure={"error": "UncompletedJobError", "text": "y" + "x" * 200})),
        "failed",
        "",
        ["job: UncompletedJobError: " + "x" * 200 + " / FailedJobError: gpucluster: expected failure"],
        [],
    ),
    (lambda: checks.cancel(reported()), "passed", "", [], ["submitit_cancel 1 s"]),
    (lambda: checks.cancel(reported(accounting=True)), "passed", "", [], ["submitit_cancel 1 s"]),
    (
        lambda: checks.cancel(reported(cancel=None)),
        "failed",
        "",
        ["result of cancel: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.cancel(reported(cancel={"error": "late", "text": "PENDING"})),
        "failed",
        "",
        ["job: did not end in time: PENDING / runs and ends"],
        [],
    ),
    (
        lambda: checks.cancel(reported(cancel={"over": False, "slurm": "RUNNING", "seconds": 30.0})),
        "failed",
        "",
        ["job: still RUNNING / cancelled"],
        ["submitit_cancel 30 s"],
    ),
    (
        lambda: checks.cancel(
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": False, "state": "CANCELLED", "seconds": 2},
            )
        ),
        "failed",
        "",
        ["submitit's state of the job: CANCELLED / CANCELLED, from sacct"],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.cancel(
            reported(
                accounting=True,
                cancel={"over": True, "slurm": "", "known": True, "state": "COMPLETED", "seconds": 2},
            )
        ),
        "failed",
        "",
        ["submitit's state of the job: COMPLETED / CANCELLED, from sacct"],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.cancel(
            reported(cancel={"over": True, "slurm": "", "known": False, "state": "UNKNOWN", "seconds": 2})
        ),
        "passed",
        "",
        [],
        ["submitit_cancel 2 s"],
    ),
    (
        lambda: checks.accounting(reported()),
        "not checked",
        "Slurm stores no job records, so submitit uses its result files: set AccountingStorageType of slurm.conf, or list "
        "submitit.accounting under `not_applicable`",
        [],
        [],
    ),
    (lambda: checks.accounting(reported(accounting=True)), "passed", "", [], []),
    (
        lambda: checks.accounting(reported(accounting=True, add=None)),
        "failed",
        "",
        ["result of add: the driver ended without a message / returned"],
        [],
    ),
    (
        lambda: checks.accounting(reported(accounting=True, add={"value": [12], "state": "UNKNOWN"})),
        "failed",
        "",
        ["state of the job: UNKNOWN / COMPLETED"],
        [],
    ),
    (
        lambda: checks.accounting(reported(accounting=True, add={"value": [12]})),
        "failed",
        "",
        ["state of the job: none / COMPLETED"],
        [],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


# -- the real submitit on virtual nodes ---------------------------------------------------------------------------


def claimed(
    sandbox: Sandbox,
    where: Path,
    *,
    python: Path = PYTHON,
    nodes: str = "gpu[01-04]",
    queue_wait: str = "300s",
    **claim: Any,
) -> Path:
    """Write a cluster file that claims submitit on all nodes."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make .cache/frameworks")
    shared = where / "shared"
    shared.mkdir(exist_ok=True)
    return cluster_file(
        sandbox,
        where,
        nodes=nodes,
        slurm={"partition": "batch", "queue_wait": queue_wait},
        environments={"ours": {"python": str(python)}},
        submitit={"environment": "ours", "folder": str(shared), **claim},
    )


def run_suite(path: Path, *args: str, where: tuple[str, ...] = (str(SUITE),)) -> Run:
    return run_pytest(
        path.parent,
        f"--cluster={path}",
        "-p",
        "no:cacheprovider",
        *args,
        timeout=PATIENCE,
        where=where,
        constants={"submitit": {"wait": 60}},
    )


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path))
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 6
    assert names(done.outcomes, "not applicable") == ["test_checkpoint"]
    assert names(done.outcomes, "not checked") == ["test_accounting"]
    assert not list((tmp_path / "shared").iterdir())
    assert left_in_queue(sandbox) == []


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.nightly)])
def test_the_jobs_go_before_the_nodes_are_held(sandbox: Sandbox, tmp_path: Path, workers: str) -> None:
    path = claimed(sandbox, tmp_path)
    (tmp_path / "test_held.py").write_text(
        "def test_held(gpucluster_allocation, gpucluster_node):\n    assert gpucluster_node.name in gpucluster_allocation.nodes\n"
    )
    done = run_suite(path, "-n", workers, where=(str(SUITE), "test_held.py"))
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 6 + 4
    assert left_in_queue(sandbox) == []


def test_what_is_not_claimed_is_not_applicable(sandbox: Sandbox, tmp_path: Path) -> None:
    before = jobs_so_far(sandbox)
    done = run_suite(cluster_file(sandbox, tmp_path, nodes="gpu01"), "-v")
    assert set(done.outcomes.values()) == {"error"}
    assert "no section `submitit` (add `submitit:`)" in " ".join(done.out.split())
    assert jobs_so_far(sandbox) == before


def test_submitit_absent(sandbox: Sandbox, tmp_path: Path) -> None:
    base = tmp_path / "python"
    base.write_text(f'#!/bin/sh\nexec {os.path.realpath(PYTHON)} -I "$@"\n')
    base.chmod(0o755)
    done = run_suite(claimed(sandbox, tmp_path, python=base))
    assert names(done.outcomes, "failed") == ["test_framework"], done.out
    assert "package submitit: measured ModuleNotFoundError: No module named 'submitit'" in done.out
    assert not names(done.outcomes, "passed")


def test_a_python_that_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path, python=tmp_path / "nosuch"))
    assert names(done.outcomes, "failed") == ["test_framework"], done.out
    assert "nosuch: not found" in done.out


def test_a_folder_that_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path, folder=str(tmp_path / "nosuch")))
    assert names(done.outcomes, "failed") == ["test_framework"], done.out
    assert "FileNotFoundError" in done.out


def test_without_a_shared_folder_nothing_can_be_asked(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path, folder=None))
    assert set(done.outcomes.values()) == {"error"}
    assert "needs a folder that all nodes share" in done.out


def test_the_first_shared_storage_is_the_default(sandbox: Sandbox) -> None:
    cluster = load_cluster(str(sandbox.cluster_file))
    claim = cluster.model_copy(update={"submitit": None})
    assert runner.shared_folder(claim, _claim()) == cluster.section(OsConfig).shared_storage[0]


def _claim() -> Any:
    from pytest_gpucluster.suites.submitit.config import SubmititConfig  # used here alone

    return SubmititConfig()


def reconfigure(own: Sandbox, old: str, new: str) -> None:
    """Replace a setting of slurm.conf."""
    conf = Path(own.env["SLURM_CONF"])
    text = conf.read_text()
    assert old in text
    conf.write_text(text.replace(old, new))
    slurm(own, "scontrol", "reconfigure")
    wait_for(lambda: new.partition("=")[2] in slurm(own, "scontrol", "show", "config"), "the setting is read")


@pytest.mark.nightly
def test_with_accounting_and_a_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_requeue(layout: Layout, *args: Any, **options: Any) -> str:
        socket = f"AuthInfo=socket={layout.munge_socket}"
        return slurm_conf(layout, *args, **options).replace(socket, f"{socket},cred_expire=6")

    monkeypatch.setattr(slurmconf, "slurm_conf", short_requeue)
    with sandbox_folder() as folder:
        own = Sandbox(folder / "s")
        own.up(nodes=2, accounting=True)
        for name, value in own.env.items():
            monkeypatch.setenv(name, value)
        path = claimed(own, tmp_path, nodes="gpu[01-02]", checkpoint=True)
        (tmp_path / "test_held.py").write_text(
            "def test_held(gpucluster_allocation, gpucluster_node):\n    assert gpucluster_node.name in gpucluster_allocation.nodes\n"
        )
        done = run_suite(path, where=(str(SUITE), "test_held.py"))
        assert set(done.outcomes.values()) == {"passed"}, done.out
        assert len(done.outcomes) == 8 + 2

        reconfigure(own, "JobRequeue=1", "JobRequeue=0")
        done = run_suite(path)
        assert names(done.outcomes, "failed") == ["test_checkpoint"], done.out
        assert "scontrol" in done.out
        assert left_in_queue(own) == []


def test_a_requeue_needs_a_longer_wait_in_the_queue(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path, checkpoint=True, queue_wait="149s"))
    assert set(done.outcomes.values()) == {"error"}
    assert "set slurm.queue_wait to at least 150 s" in done.out
    assert left_in_queue(sandbox) == []


def test_no_job_outlives_us(sandbox: Sandbox, tmp_path: Path) -> None:
    path = claimed(sandbox, tmp_path)
    slurm(sandbox, "scontrol", "update", "PartitionName=batch", "State=DOWN")  # the jobs wait
    try:
        with subprocess.Popen(
            command(f"--cluster={path}", "-p", "no:cacheprovider", str(SUITE)),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_for(lambda: len(queue(sandbox)) >= 5, "the jobs are submitted")
            finally:  # else a failure would wait for its end
                process.kill()
        wait_for(lambda: not queue(sandbox), "the jobs are cancelled")
        wait_for(lambda: not list((tmp_path / "shared").iterdir()), "the folder is removed")
    finally:
        slurm(sandbox, "scontrol", "update", "PartitionName=batch", "State=UP")
