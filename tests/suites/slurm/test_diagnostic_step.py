"""The diagnostic step is repeated on nodes whose output is incomplete, and on no others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from judged import judged

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.core.errors import StepError
from pytest_gpucluster.suites.slurm import checks
from pytest_gpucluster.suites.slurm import diagnostic_step as diagnostic

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.step import StepRequest


@dataclass
class Held:
    """An allocation as far as the step looks at it."""

    nodes: tuple[str, ...] = ("gpu01", "gpu02")


@dataclass
class Controller:
    """A Slurm that accepts each job."""

    ran: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, *argv: str, **_: object) -> str:
        self.ran.append(argv)
        return "7\n"


def reported(rank: int, node: str, local: int) -> TaskResult:
    line = f"diagnostic|{rank}|{node}|{local}|2|0|0||0-1|0-1|tok|end\n"
    return TaskResult(rank, node, (7, None)[local], (None, 9)[local], line, f"diagnostic-err|{rank}|end\n")


Ran = tuple[list[tuple[str, ...]], dict[str, diagnostic.NodeDiagnostic]]


def run(monkeypatch: pytest.MonkeyPatch, *reports: dict[str, int] | StepError) -> Ran:
    """Run the diagnostic where of the two tasks of a node so many report in each step; return the steps' nodes, too."""
    ran: list[tuple[str, ...]] = []

    def run_step(_slurm: object, _allocation: object, request: StepRequest) -> StepResult:
        report = reports[len(ran)]
        ran.append(request.nodes)
        if isinstance(report, StepError):
            raise report
        lines = [(node, local) for node, count in report.items() for local in range(count)]
        return StepResult(7, tuple(reported(rank, *it) for rank, it in enumerate(lines)), "", 1.0, "srun sh")

    monkeypatch.setattr(diagnostic, "run_step", run_step)
    monkeypatch.setattr(diagnostic, "reproduce_command", lambda *_: "srun sh")
    slurm: Any = Controller()
    held: Any = Held()
    return ran, diagnostic.run_diagnostic(slurm, held, {})


def test_each_batch_job_has_a_time_limit_of_a_minute_and_no_limits_of_this_shell() -> None:
    slurm: Any = Controller()
    diagnostic.submit_jobs(slurm, SlurmConfig())
    submitted = [argv for argv in slurm.ran if argv[0] == "sbatch"]
    assert len(submitted) == 2
    assert all({"--time=1", "--propagate=NONE"} <= {*argv} for argv in submitted)
    assert sum("--array=0-1" in argv for argv in submitted) == 1  # three jobs in all


def test_a_complete_step_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, found = run(monkeypatch, {"gpu01": 2, "gpu02": 2})
    assert ran == [("gpu01", "gpu02")]
    assert [it.first_reports for it in found.values()] == [None, None]


def test_output_lost_once_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, found = run(monkeypatch, {"gpu01": 2, "gpu02": 1}, {"gpu02": 2})
    assert ran == [("gpu01", "gpu02"), ("gpu02",)]
    assert judged(checks.output(found["gpu02"])) == ("warning", ["stdout"])
    assert found["gpu02"].first_reports == 1
    assert judged(checks.output(found["gpu01"])) == ("passed", [])


@pytest.mark.parametrize("second", [{"gpu02": 1}, {"gpu02": 0}, StepError("srun: lost")])
def test_output_lost_twice_is_the_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, int] | StepError
) -> None:
    ran, found = run(monkeypatch, {"gpu01": 2, "gpu02": 1}, second)
    assert len(ran) == 2
    verdict = checks.output(found["gpu02"])
    assert judged(verdict) == ("configure", ["stdout"])
    assert str(verdict.findings[0].measured) == "1 task"


def test_a_slow_machine_accuses_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepError):  # no verdict where most nodes have no report
        run(monkeypatch, StepError("srun: cancelled after 60 s"))
    assert diagnostic.diagnostic_request(("n",) * 200, 8, "tok").timeout >= 400
