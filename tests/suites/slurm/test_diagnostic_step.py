"""The diagnostic step is repeated on nodes whose output is incomplete, and on no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.core.check import Advisory, Outcome
from pytest_gpucluster.core.errors import StepError
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm import diagnostic_step as diagnostic

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.step import StepRequest

HELD: Any = SimpleNamespace(nodes=("gpu01", "gpu02"))
SLURM: Any = SimpleNamespace()


def steps(monkeypatch: pytest.MonkeyPatch, *reports: dict[str, int] | StepError) -> list[tuple[str, ...]]:
    """Replace run_step: of the two tasks of each node so many report in each step. Returns the nodes of the steps."""
    ran: list[tuple[str, ...]] = []

    def run_step(_slurm: object, _allocation: object, request: StepRequest) -> StepResult:
        report = reports[len(ran)]
        ran.append(request.nodes)
        if isinstance(report, StepError):
            raise report
        lines = [(node, i) for node, count in report.items() for i in range(count)]
        tasks = tuple(
            TaskResult(
                rank,
                node,
                (7, None)[i],
                (None, 9)[i],
                f"diagnostic|{rank}|{node}|{i}|2|0|0||0-1|0-1|tok|end\n",
                f"diagnostic-err|{rank}|end\n",
            )
            for rank, (node, i) in enumerate(lines)
        )
        return StepResult(7, tasks, "", 1.0, "srun sh")

    monkeypatch.setattr(diagnostic, "run_step", run_step)
    monkeypatch.setattr(diagnostic, "reproduce_command", lambda *_: "srun sh")
    return ran


def test_each_batch_job_has_a_time_limit_of_a_minute_and_no_limits_of_this_shell() -> None:
    ran: list[tuple[str, ...]] = []

    def run(*argv: str, **_: object) -> str:
        ran.append(argv)
        return "7\n"

    slurm: Any = SimpleNamespace(run=run)
    diagnostic.submit_jobs(slurm, SlurmConfig())
    submitted = [argv for argv in ran if argv[0] == "sbatch"]
    assert len(submitted) == 2
    assert all({"--time=1", "--propagate=NONE"} <= {*argv} for argv in submitted)
    assert sum("--array=0-1" in argv for argv in submitted) == 1  # three jobs in all


def test_a_complete_step_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = steps(monkeypatch, {"gpu01": 2, "gpu02": 2})
    found = diagnostic.run_diagnostic(SLURM, HELD, {})
    assert ran == [("gpu01", "gpu02")]
    assert [it.first_reports for it in found.values()] == [None, None]


def test_output_lost_once_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = steps(monkeypatch, {"gpu01": 2, "gpu02": 1}, {"gpu02": 2})
    found = diagnostic.run_diagnostic(SLURM, HELD, {})
    assert ran == [("gpu01", "gpu02"), ("gpu02",)]
    verdict = checks.output(found["gpu02"])
    assert verdict.outcome is Outcome.PASSED
    assert verdict.advisories == (
        Advisory("output", "incomplete in the first of two steps (1 tasks reported)", "of 2 tasks in both"),
    )
    assert checks.output(found["gpu01"]).advisories == ()


@pytest.mark.parametrize("second", [{"gpu02": 1}, {"gpu02": 0}, StepError("srun: lost")])
def test_output_lost_twice_is_the_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, int] | StepError
) -> None:
    ran = steps(monkeypatch, {"gpu01": 2, "gpu02": 1}, second)
    found = diagnostic.run_diagnostic(SLURM, HELD, {})
    assert len(ran) == 2
    assert checks.output(found["gpu02"]).outcome is Outcome.FAILED
    assert checks.output(found["gpu02"]).findings[0].measured == "of 1 tasks"
