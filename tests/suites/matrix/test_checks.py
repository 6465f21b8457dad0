"""Cells of the experiment matrix: how each verdict settles, and what a broken cell says."""

from __future__ import annotations

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.suites.matrix import checks as matrix
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State

PASSED = Verdict("x", Outcome.PASSED)
NO_PMI = Verdict("x", Outcome.FAILED, (Finding("singletons", "4 worlds", "one"),))
BROKEN = Verdict(
    "x", Outcome.FAILED, (Finding("step", "refused", "starts"), Finding("n2", "silent", "tells"))
)


def test_how_a_verdict_settles() -> None:
    away = Verdict("x", Outcome.NOT_APPLICABLE, reason="no GPU")
    assert matrix.settle("srun", "gpu", away, {"srun-gpu": "x"}) == Cell(
        "srun", "gpu", State.NOT_APPLICABLE, "no GPU"
    )
    assert matrix.settle("srun", "mpi", PASSED, {}) == Cell("srun", "mpi", State.WORKS, "", PASSED)
    expected = matrix.settle(
        "srun", "mpi", NO_PMI, {"srun-mpi": "no PMIx in this image", "srun-gpu": "y"}, pmi_required=False
    )
    assert expected == Cell("srun", "mpi", State.EXPECTED, "no PMIx in this image", NO_PMI)
    lacking = matrix.settle("srun", "mpi", NO_PMI, {}, pmi_required=False)
    assert lacking == Cell("srun", "mpi", State.EXPECTED, "no PMI support", NO_PMI)
    for row, column, verdict, claimed in (
        ("mpirun", "mpi", NO_PMI, False),
        ("srun", "gpu", NO_PMI, False),
        ("srun", "mpi", NO_PMI, True),
        ("srun", "mpi", BROKEN, False),
    ):
        found = matrix.settle(row, column, verdict, {}, pmi_required=claimed)
        assert found == Cell(row, column, State.BROKEN, matrix.first_words(verdict), verdict)
    assert matrix.settle("srun", "mpi", NO_PMI, {}).state is State.BROKEN
    unchecked = Verdict("x", Outcome.NOT_CHECKED, reason="no node")
    assert matrix.settle("srun", "cpu", unchecked, {}).why == "no node"
    assert matrix.first_words(Verdict("x", Outcome.NOT_CHECKED)) == "could not be tried"
    assert matrix.first_words(BROKEN) == "step: refused"


def test_an_expected_failure_is_of_the_stated_kind() -> None:
    def state(verdict: Verdict, stated: str, row: str = "srun", column: str = "mpi") -> State:
        return matrix.settle(row, column, verdict, {f"{row}-{column}": stated}).state

    assert state(BROKEN, "step: Refused") is State.EXPECTED
    assert state(BROKEN, "n2: silent, expected tells") is State.EXPECTED
    assert state(BROKEN, "no PMI support") is State.BROKEN
    assert state(NO_PMI, "refused") is State.BROKEN
    assert (
        state(Verdict("x", Outcome.FAILED, BROKEN.findings, cause="the image has no MPI"), "no MPI")
        is State.EXPECTED
    )
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
    assert bad.findings[0].measured == "no cell works: 2 fail"
    assert matrix.works(cells()).reason == "no cell could be tried: no image"
    lacking = cells(srun_cpu=State.WORKS, srun_nccl=State.LACKING)
    assert matrix.works(lacking).reason == "NCCL ran under no launcher: no image"
    elsewhere = cells(srun_cpu=State.WORKS, srun_nccl=State.LACKING, srun_framework_nccl=State.WORKS)
    assert matrix.works(elsewhere).outcome is Outcome.PASSED
    assert matrix.cell(Cell("srun", "nccl", State.LACKING, "no torch")).outcome is Outcome.NOT_CHECKED


def test_what_a_cell_says() -> None:
    assert Cell("srun", "cpu", State.BROKEN, "x" * 160).note == "x" * 160
    assert Cell("srun", "cpu", State.BROKEN, "x" * 161).note == "x" * 157 + "..."
    names = [matrix.ROWS[row] for row in ("mpirun", "srun", "srun_pyxis", "srun_framework")]
    assert names == ["mpirun", "srun", "srun + Pyxis", "srun + Pyxis, framework image"]
    parts = [
        "srun + Pyxis with CPU",
        "srun + Pyxis with GPU",
        "srun + Pyxis with MPI",
        "srun + Pyxis with NCCL",
    ]
    for column, part in zip(("cpu", "gpu", "mpi", "nccl"), parts, strict=True):
        alone = matrix.cell(Cell("srun_pyxis", column, State.BROKEN, "why"))
        assert (alone.findings, alone.action) == ((Finding(part, "why", "works"),), Action.CONFIGURE)
    both = matrix.cell(Cell("srun", "cpu", State.BROKEN, "why", BROKEN))
    assert both.findings == (
        Finding("srun with CPU: step", "refused", "starts"),
        Finding("srun with CPU: n2", "silent", "tells"),
    )
    for state in (State.WORKS, State.EXPECTED):
        assert matrix.cell(Cell("srun", "cpu", state, "why", BROKEN)).outcome is Outcome.PASSED
    away = matrix.cell(Cell("srun", "cpu", State.NOT_APPLICABLE, "no GPU"))
    assert (away.outcome, away.reason) == (Outcome.NOT_APPLICABLE, "no GPU")


def test_what_work_says() -> None:
    def judged(*told: tuple[str, str], problem: str = "") -> tuple[Finding, ...]:
        return matrix.work(CellWork(("a", "b"), 2, told, "8", "GPUs", problem)).findings

    good = ("a", "8"), ("a", "8"), ("b", "8")
    assert judged(*good, ("b", "8")) == ()
    assert judged(*good) == (Finding("b", "1 tasks reported", "2 tasks"),)
    assert judged(*good, ("b", "8"), ("c", "8"), ("", "8")) == (
        Finding("an unknown host", "ran tasks but was not requested", "none"),
        Finding("c", "ran tasks but was not requested", "none"),
    )
    assert judged(*good, ("b", "7")) == (Finding("b", "7 GPUs", "8 GPUs"),)
    assert judged(*good, ("b", "no nvidia-smi")) == (Finding("b", "no nvidia-smi", "8 GPUs"),)
    step = Finding("step", "hung", "4 tasks that end by themselves")
    assert judged(problem="hung") == (step,)
    assert judged(*good, problem="hung") == (step, Finding("b", "1 tasks reported", "2 tasks"))
    assert matrix.work(CellWork(("a",), 1, (("a", "7"),), "8")).findings == (Finding("a", "7", "8"),)
