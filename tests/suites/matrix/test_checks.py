"""Cells of the experiment matrix: how each verdict settles, and what a broken cell reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from framework_helpers import Table, decided

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.suites.matrix import checks
from pytest_gpucluster.suites.matrix import checks as matrix
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED = Verdict("x", Outcome.PASSED)
SINGLETONS = Verdict("x", Outcome.FAILED, (Finding("srun", "4 worlds", "one", code="singletons"),))
NOT_CHECKED, NOT_APPLICABLE = Outcome.NOT_CHECKED, Outcome.NOT_APPLICABLE
REFUSED = Finding("step", Quote("refused"), "starts", code="not_started")
MUTE = Finding("n2", "odd words", "tells", code="silent")
BROKEN = Verdict("x", Outcome.FAILED, (REFUSED, MUTE))


def test_an_expected_failure_is_of_the_stated_kind() -> None:
    def state(verdict: Verdict, stated: str, row: str = "srun", column: str = "mpi") -> State:
        return matrix.settle(row, column, verdict, {f"{row}-{column}": stated}).state

    assert state(BROKEN, "Refused") is State.EXPECTED
    assert state(BROKEN, "silent") is State.EXPECTED
    assert state(BROKEN, "odd words") is State.BROKEN  # a sentence of our own decides nothing
    assert state(BROKEN, "no PMI support") is State.BROKEN
    assert state(SINGLETONS, "refused") is State.BROKEN
    other = matrix.settle("srun", "mpi", BROKEN, {"srun-mpi": "known"})
    assert other.why == "step: refused (matrix.expected states another failure: known)"


def cells(**states: State) -> list[Cell]:
    """All cells; those not stated do not apply."""
    return [
        Cell(row, column, states.get(f"{row}_{column}", State.NOT_APPLICABLE), "no image")
        for row in matrix.ROWS
        for column in matrix.COLUMNS
    ]


def test_a_matrix_in_which_no_cell_works_is_not_accepted() -> None:
    good = matrix.works(cells(srun_cpu=State.WORKS, srun_mpi=State.EXPECTED))
    assert (good.outcome, good.metrics[0].value) == (Outcome.PASSED, 1)
    bad = matrix.works(cells(srun_cpu=State.EXPECTED, srun_mpi=State.EXPECTED))
    assert (bad.outcome, bad.action) == (Outcome.FAILED, Action.CONFIGURE)
    assert bad.findings[0].code == "none_works"
    assert matrix.works(cells()).reason == "no cell could be tried: no image"
    lacking = cells(srun_cpu=State.WORKS, srun_nccl=State.LACKING)
    assert matrix.works(lacking).reason == "NCCL ran under no launcher: no image"
    elsewhere = cells(srun_cpu=State.WORKS, srun_nccl=State.LACKING, srun_framework_nccl=State.WORKS)
    assert matrix.works(elsewhere).outcome is Outcome.PASSED
    assert matrix.cell(Cell("srun", "nccl", State.LACKING, "no torch")).outcome is Outcome.NOT_CHECKED


NO_PMI = Finding("gpu01", Quote("OMPI was not built with SLURM's PMI support"), "a world", code="mpi_without_pmi")
LONELY = Finding("srun", "4 programs, each rank 0 of 1", "one world", code="singletons")
OTHER = Finding("rank 3", "2 times", "once", code="repeated")


def failed(*findings: Finding) -> Verdict:
    return Verdict("mpi.world", Outcome.FAILED, findings)


@pytest.mark.parametrize(
    ("row", "verdict", "expected", "claimed", "state", "why"),
    [
        ("srun", Verdict("x", Outcome.PASSED), {}, True, State.WORKS, ""),
        ("srun", Verdict("x", Outcome.NOT_APPLICABLE, reason="none"), {}, True, State.NOT_APPLICABLE, "none"),
        ("srun", failed(NO_PMI), {}, False, State.EXPECTED, "no PMI support"),
        ("srun_pyxis", failed(LONELY), {}, False, State.EXPECTED, "no PMI support"),
        ("srun", failed(NO_PMI), {}, True, State.BROKEN, "gpu01: OMPI was not built"),
        ("srun", failed(OTHER), {}, False, State.BROKEN, "rank 3: 2 times"),
        ("mpirun", failed(LONELY), {}, False, State.BROKEN, "srun: 4 programs"),
        ("srun", failed(OTHER), {"srun-mpi": "repeated"}, True, State.EXPECTED, "repeated"),
        ("srun", failed(OTHER), {"mpirun-mpi": "old MPI"}, True, State.BROKEN, "rank 3"),
        ("srun", failed(LONELY), {"srun-mpi": "no PMIx here"}, False, State.EXPECTED, "no PMIx here"),
        ("srun", Verdict("x", NOT_CHECKED, reason="no rank told"), {}, True, State.BROKEN, "no rank told"),
        ("srun", Verdict("x", Outcome.PASSED), {"srun-mpi": "old MPI"}, True, State.WORKS, ""),
    ],
)
def test_how_a_cell_is_settled(
    *, row: str, verdict: Verdict, expected: Mapping[str, str], claimed: bool, state: State, why: str
) -> None:
    cell = checks.settle(row, "mpi", verdict, expected, pmi_required=claimed)
    assert cell.state is state
    assert cell.why.startswith(why)
    assert cell.verdict == (None if state is State.NOT_APPLICABLE else verdict)
    ends = {State.BROKEN: Outcome.FAILED, State.NOT_APPLICABLE: Outcome.NOT_APPLICABLE}
    assert checks.cell(cell).outcome is ends.get(state, Outcome.PASSED)


NODES = ("gpu01", "gpu02")
GOOD = tuple((node, "8") for node in NODES for _ in range(2))


def broken(column: str, verdict: Verdict | None = None, row: str = "srun_pyxis") -> Cell:
    return Cell(row, column, State.BROKEN, "why", verdict)


def work(*told: tuple[str, str], problem: str = "", gpus: str = "GPUs") -> CellWork:
    return CellWork(NODES, 2, told, "8", gpus, problem)


CASES: Table = {
    checks.cell: [
        ("passed", Cell("srun", "cpu", State.EXPECTED, "why", BROKEN)),
        ("configure: srun with CPU: step not_started; srun with CPU: n2 silent", broken("cpu", BROKEN, "srun")),
        *((f"configure: srun + Pyxis with {it} broken", broken(it.lower())) for it in ("GPU", "NCCL", "CPU")),
        ("configure: srun + Pyxis with MPI: rank 3 repeated [2]", broken("mpi", failed(OTHER))),
        ("passed", Cell("srun", "cpu", State.WORKS)),
        ("not applicable", Cell("srun", "cpu", State.NOT_APPLICABLE, "none")),
        ("configure: mpirun with GPU broken", broken("gpu", None, "mpirun")),
        ("configure: srun + Pyxis, framework image with NCCL broken", broken("nccl", failed(), "srun_framework")),
        (
            "configure: srun + Pyxis with MPI: rank 3 repeated; srun + Pyxis with MPI: srun singletons [2, 4, 0, 1]",
            broken("mpi", failed(OTHER, LONELY)),
        ),
    ],
    checks.work: [
        ("passed", work(*GOOD)),
        ("configure: step step_failed [4]", work(problem="hangs")),
        ("configure: step step_failed; gpu02 task_count [4, 1, 2]", work(*GOOD[:3], problem="hangs")),
        ("configure: gpu01; gpu02 task_count [0, 2, 0, 2]", work()),
        ("configure: an unknown host; gpu09 not_requested", work(*GOOD, ("gpu09", "8"), ("", "8"))),
        ("configure: gpu02 other_value [7, 8]", work(*GOOD[:3], ("gpu02", "7"))),
        ("configure: gpu02 other_value [7, 8]", work(*GOOD[:3], ("gpu02", "7"), gpus="")),
        ("configure: gpu02 no_value [8]", work(*GOOD[:3], ("gpu02", "nvidia-smi: not found"))),
    ],
}
test_each_case_has_its_verdict = decided(CASES)
