"""Figures and rarer verdicts of the slurm, matrix and monitoring suites, compared exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_state
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.config.models import NodeProfile
from pytest_gpucluster.core.check import CHECKS, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.suites.matrix import checks as matrix
from pytest_gpucluster.suites.monitoring import checks as monitoring
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm.diagnostic_step import DiagnosticTask, NodeDiagnostic


def told(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.outcome, verdict.reason, verdict.findings, verdict.metrics


def test_figures_of_a_node() -> None:
    info = replace(NodeInfo("gpu01", *parse_state("IDLE")), cpus=64, memory=3 * 2**30)
    assert told(checks.cpus(info, NodeProfile(cpus=64))) == (
        Outcome.PASSED, "", (), (Metric("slurm_cpus", 64, "CPUs"),)
    )  # fmt: skip
    assert checks.memory(info, NodeProfile(memory=3 * 2**30)).metrics == (Metric("slurm_memory", 3.0, "GiB"),)


@pytest.mark.parametrize(
    ("gres", "mig"),
    [
        ("gpu:nvidia_a100_1g.5gb", True), ("gpu:1g.10gb", True), ("gpu:1c.3g.20gb", True), ("gpu:7G.80GB", True),
        ("gpu:h200", False), ("gpu:xg.5gb", False), ("gpu:g.5gb", False), ("gpu:1g.gb", False), ("gpu:1g.xgb", False),
        ("gpu:1gx5gb", False),
    ],
)  # fmt: skip
def test_names_of_mig_instances(gres: str, *, mig: bool) -> None:
    assert NodeInfo("gpu01", "IDLE", gres={gres: 7}).allocates_mig is mig


def task(rank: int, **change: Any) -> DiagnosticTask:
    cpus = frozenset({rank})
    whole = DiagnosticTask(rank, rank, 2, str(rank), "", (), "tok", True, 0, None, cpus, 8)  # a record
    return replace(whole, **change)


def exam(*tasks: DiagnosticTask, **change: Any) -> NodeDiagnostic:
    return replace(NodeDiagnostic("gpu01", 2, 2, False, "tok", tasks, 1.5, "srun"), **change)  # a record


def test_figures_of_a_step() -> None:
    whole = exam(task(0), task(1))
    assert told(checks.step(whole)) == (Outcome.PASSED, "", (), (Metric("step", 1.5, "s"),))
    assert told(checks.gpu_binding(whole)) == (Outcome.PASSED, "", (), (Metric("bound_gpus", 2, "GPUs"),))
    assert told(checks.cpu_affinity(whole)) == (Outcome.PASSED, "", (), (Metric("step_cpus", 2, "CPUs"),))


def test_fewer_cpus_than_tasks() -> None:
    few = exam(
        task(0, cpus=frozenset({3, 12}), online=1),
        task(1, cpus=frozenset({12})),
        task(2, cpus=frozenset({3})),
    )
    assert checks.cpu_affinity(few).findings == (Finding("CPUs of 3 tasks", "2 (CPU 3, 12)", "at least 3"),)


def test_of_a_step_that_failed_nothing_else_is_judged() -> None:
    sick = exam(task(0, visible="0,1", token="x", stderr_arrived=False), problem="it hung")
    assert told(checks.step(sick)) == (
        Outcome.FAILED, "", (Finding("step", "it hung", "2 tasks"),), (Metric("step", 1.5, "s"),)
    )  # fmt: skip
    for judge in (checks.output, checks.environment, checks.exit_code, checks.signal, checks.gpu_binding):
        assert told(judge(sick)) == (Outcome.NOT_CHECKED, "it hung", (), ())


def test_devices_that_open_count_where_they_are_as_many_as_named() -> None:
    assert checks.devices_of(task(0, visible="0", openable=("5",))) == ("5",)
    assert checks.devices_of(task(0, visible="0", openable=("5", "6"))) == ("0",)
    assert checks.devices_of(task(0, visible="3", openable=("0",))) == (
        "3",
    )  # not renumbered: no cgroup hides the others
    assert checks.devices_of(task(0, visible="unset", openable=())) == ()
    assert checks.devices_of(task(0, visible="", openable=("5",))) == ()


def test_a_step_of_a_time_limit_has_its_seconds() -> None:
    result = StepResult(143, (TaskResult(0, "gpu01", 143, 15, stderr="LIMIT"),), "DUE TO TIME", 64.4, "srun")
    verdict = checks.time_limit(result)
    assert verdict.metrics == (Metric("time_limit", 64.4, "s", better="neither"),)
    assert verdict.findings == (Finding("step", "ended with 143", "cancelled due to its time limit"),)


def test_causes_and_hints_of_jobs() -> None:
    assert (CHECKS["slurm.dependency"].cause, CHECKS["slurm.begin"].cause, CHECKS["slurm.limits"].hint) == (
        "job dependencies are not resolved", "slurmctld ignores --begin", "scontrol show partition",
    )  # fmt: skip


# --- matrix


def test_words_of_the_matrix() -> None:
    assert matrix.TITLE == "experiment matrix"
    assert [state.value for state in matrix.State] == [
        "works",
        "fails as expected",
        "BROKEN",
        "not checked",
        "n/a",
    ]
    part = Finding("MPI without PMI", "x", "y"), Finding("ranks 0", "told nothing", "all")
    settled = matrix.settle("srun", "mpi", Verdict("mpi.world", Outcome.FAILED, part), {}, pmi_required=False)
    assert (settled.state, settled.why) == (matrix.State.EXPECTED, "no PMI support")


# --- monitoring


def monitored(*targets: Target, **change: Any) -> MonitoringFacts:
    service = Service("Prometheus", "http://p:9090")
    return MonitoringFacts(service, None, {"n": targets}, **{"now": 100.0, **change})


def test_a_target_that_is_missing_among_two() -> None:
    seen = monitored(Target("a", "http://n:1", 1, "up"), Target("b", "http://n:2", 2, "up"))
    assert told(monitoring.target(seen, "n", {"node_exporter": 9100})) == (
        Outcome.FAILED, "",
        (
            Finding(
                "node_exporter on port 9100",
                "not a target of Prometheus (the node has a on port 1, b on port 2)", "a target",
            ),
        ),
        (Metric("node_targets", 2, "targets"),),
    )  # fmt: skip


def test_without_exporters_of_the_cluster_nothing_is_judged() -> None:
    assert told(monitoring.exporters(monitored(), MonitoringConfig(cluster_exporters={}))) == (
        Outcome.NOT_APPLICABLE, "the cluster file sets no monitoring.cluster_exporters", (), ()
    )  # fmt: skip


def test_one_pattern_of_several_is_enough_to_ignore_an_alert() -> None:
    claim = MonitoringConfig(ignored_alerts=("Other*", "Disk*"))
    seen = monitored(alerts={"n": (Alert("DiskFull", "firing"), Alert("Late", "firing", "page", "words"))})
    assert told(monitoring.alerts(seen, "n", claim)) == (
        Outcome.FAILED, "", (Finding("alert Late", "page firing: words", "no firing alert"),),
        (Metric("alerts_firing", 2, "alerts"),),
    )  # fmt: skip
