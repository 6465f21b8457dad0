"""Cells of the experiment matrix: how each verdict settles, and what a broken cell reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.plugin.outputs import suite_tables
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.suites.matrix import checks
from pytest_gpucluster.suites.matrix import checks as matrix
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PASSED = Verdict("x", Outcome.PASSED)
SINGLETONS = Verdict("x", Outcome.FAILED, (Finding("singletons", "4 worlds", "one"),))
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
        "srun", "mpi", SINGLETONS, {"srun-mpi": "no PMIx in this image", "srun-gpu": "y"}, pmi_required=False
    )
    assert expected == Cell("srun", "mpi", State.EXPECTED, "no PMIx in this image", SINGLETONS)
    lacking = matrix.settle("srun", "mpi", SINGLETONS, {}, pmi_required=False)
    assert lacking == Cell("srun", "mpi", State.EXPECTED, "no PMI support", SINGLETONS)
    for row, column, verdict, claimed in (
        ("mpirun", "mpi", SINGLETONS, False),
        ("srun", "gpu", SINGLETONS, False),
        ("srun", "mpi", SINGLETONS, True),
        ("srun", "mpi", BROKEN, False),
    ):
        found = matrix.settle(row, column, verdict, {}, pmi_required=claimed)
        assert found == Cell(row, column, State.BROKEN, matrix.first_words(verdict), verdict)
    assert matrix.settle("srun", "mpi", SINGLETONS, {}).state is State.BROKEN
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
    assert state(SINGLETONS, "refused") is State.BROKEN
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


NO_PMI = Finding(
    "MPI without PMI on gpu01", "OMPI was not built with SLURM's PMI support", "a world of 4 ranks"
)
LONELY = Finding("singletons", "4 programs, each rank 0 of 1", "one world")
OTHER = Finding("rank 3", "2 times", "once")


def failed(*findings: Finding) -> Verdict:
    return Verdict("mpi.world", Outcome.FAILED, findings)


@pytest.mark.parametrize(
    ("row", "verdict", "expected", "claimed", "state", "why"),
    [
        ("srun", Verdict("x", Outcome.PASSED), {}, True, State.WORKS, ""),
        ("srun", Verdict("x", Outcome.NOT_APPLICABLE, reason="none"), {}, True, State.NOT_APPLICABLE, "none"),
        ("srun", failed(NO_PMI), {}, False, State.EXPECTED, "no PMI support"),
        ("srun_pyxis", failed(LONELY), {}, False, State.EXPECTED, "no PMI support"),
        ("srun", failed(NO_PMI), {}, True, State.BROKEN, "MPI without PMI on gpu01: OMPI was not built"),
        ("srun", failed(OTHER), {}, False, State.BROKEN, "rank 3: 2 times"),
        ("mpirun", failed(LONELY), {}, False, State.BROKEN, "singletons"),
        ("srun", failed(OTHER), {"srun-mpi": "rank 3: 2 times"}, True, State.EXPECTED, "rank 3: 2 times"),
        ("srun", failed(OTHER), {"mpirun-mpi": "old MPI"}, True, State.BROKEN, "rank 3"),
        ("srun", Verdict("x", Outcome.NOT_CHECKED, reason="no rank told"), {}, True, State.BROKEN, "no rank told"),
        ("srun", Verdict("x", Outcome.PASSED), {"srun-mpi": "old MPI"}, True, State.WORKS, ""),
    ],
)  # fmt: skip
def test_how_a_cell_is_settled(
    *, row: str, verdict: Verdict, expected: Mapping[str, str], claimed: bool, state: State, why: str
) -> None:
    cell = checks.settle(row, "mpi", verdict, expected, pmi_required=claimed)
    assert cell.state is state
    assert cell.why.startswith(why)
    outcome = {State.BROKEN: Outcome.FAILED, State.NOT_APPLICABLE: Outcome.NOT_APPLICABLE}.get(
        state, Outcome.PASSED
    )
    assert checks.cell(cell).outcome is outcome


def test_a_broken_cell_says_launcher_workload_and_part() -> None:
    found = checks.cell(Cell("srun_pyxis", "mpi", State.BROKEN, "x", failed(OTHER))).findings
    assert [finding.part for finding in found] == ["srun + Pyxis with MPI: rank 3"]
    assert checks.cell(Cell("srun", "cpu", State.BROKEN, "why")).findings[0].measured == "why"


NODES = ("gpu01", "gpu02")
GOOD = tuple((node, "8") for node in NODES for _ in range(2))


@pytest.mark.parametrize(
    ("reported", "problem", "printed"),
    [
        (GOOD, "", ""),
        ((*GOOD[:3], ("gpu02", "7")), "", "gpu02: 7 GPUs / 8 GPUs"),
        ((*GOOD[:3], ("gpu02", "nvidia-smi: not found")), "", "gpu02: nvidia-smi: not found / 8 GPUs"),
        (GOOD[:3], "", "gpu02: 1 tasks reported / 2 tasks"),
        ((*GOOD, ("gpu09", "8")), "", "gpu09: ran tasks but was not requested / none"),
        ((), "hangs", "step: hangs / 4 tasks that end by themselves"),
        ((), "", "gpu01: 0 tasks reported / 2 tasks"),
    ],
)
def test_work_without_messages(reported: tuple[tuple[str, str], ...], problem: str, printed: str) -> None:
    verdict = checks.work(CellWork(NODES, 2, reported, "8", "GPUs", problem))
    assert verdict.outcome is (Outcome.FAILED if printed else Outcome.PASSED)
    assert printed in "; ".join(f"{it.part}: {it.measured} / {it.expected}" for it in verdict.findings)


CASES: Table = {
    checks.cell: [
        ("passed", Cell("srun", "cpu", State.WORKS)),
        ("passed", Cell("srun", "cpu", State.EXPECTED, "old", failed(OTHER))),
        ("not applicable", Cell("srun", "cpu", State.NOT_APPLICABLE, "none")),
        ("configure: mpirun with GPU", Cell("mpirun", "gpu", State.BROKEN, "why")),
        (
            "configure: srun + Pyxis, framework image with NCCL",
            Cell("srun_framework", "nccl", State.BROKEN, "why", failed()),
        ),
        (
            "configure: srun + Pyxis with MPI: rank 3; srun + Pyxis with MPI: singletons [2, 4, 0, 1]",
            Cell("srun_pyxis", "mpi", State.BROKEN, "x", failed(OTHER, LONELY)),
        ),
    ],
    checks.work: [
        ("passed", CellWork(NODES, 2, GOOD, "8", "GPUs")),
        ("configure: step [4]", CellWork(NODES, 2, (), "8", "GPUs", "hangs")),
        ("configure: step; gpu02 [4, 1, 2]", CellWork(NODES, 2, GOOD[:3], "8", "GPUs", "hangs")),
        ("configure: gpu01; gpu02 [0, 2, 0, 2]", CellWork(NODES, 2, (), "8", "GPUs")),
        (
            "configure: an unknown host; gpu09",
            CellWork(NODES, 2, (*GOOD, ("gpu09", "8"), ("", "8")), "8", "GPUs"),
        ),
        ("configure: gpu02 [7, 8]", CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "7")), "8", "GPUs")),
        ("configure: gpu02 [7, 8]", CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "7")), "8")),
        (
            "configure: gpu02 [8]",
            CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "nvidia-smi: not found")), "8", "GPUs"),
        ),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


def test_a_long_reason_is_cut_in_the_table() -> None:
    assert Cell("srun", "cpu", State.BROKEN, "x" * 160).note == "x" * 160
    assert Cell("srun", "cpu", State.BROKEN, "x" * 161).note == "x" * 157 + "..."


def test_first_words_of_a_verdict() -> None:
    assert checks.first_words(failed(OTHER, LONELY)) == "rank 3: 2 times"
    assert checks.first_words(Verdict("x", Outcome.NOT_CHECKED, reason="no rank")) == "no rank"
    assert checks.first_words(failed()) == "could not be tried"
    assert checks.name_of("srun_pyxis", "mpi") == "srun_pyxis-mpi"


def test_a_want_of_pmi_is_expected_of_srun_for_mpi_alone() -> None:
    settled = checks.settle("srun", "mpi", failed(NO_PMI), {}, pmi_required=False)
    assert (settled.state, settled.verdict) == (State.EXPECTED, failed(NO_PMI))
    assert checks.settle("srun", "nccl", failed(NO_PMI), {}, pmi_required=False).state is State.BROKEN
    assert checks.settle("mpirun", "mpi", failed(NO_PMI), {}, pmi_required=False).state is State.BROKEN


def test_a_table_of_a_suite_is_in_its_order_and_has_its_notes_below() -> None:
    run = read_run([])
    put = [
        ("mpirun", "MPI", "fails", "no PMI", (1, 1)),
        ("srun", "MPI", "fails", "no PMI", (0, 1)),
        ("srun", "CPU", "works", "", (0, 0)),
    ]
    for row, column, text, note, place in put:
        cell = {"title": "matrix", "row": row, "column": column, "text": text, "note": note, "place": place}
        run.take({"event": "result", "suite": "matrix", "node": "", "outcome": "passed", "cells": [cell]})
    (table,) = suite_tables(run, 200)
    assert [line.split() for line in table] == [
        ["matrix"],
        ["CPU", "MPI"],
        ["------", "-----", "---------"],
        ["srun", "works", "fails", "[1]"],
        ["mpirun", "fails", "[1]"],
        ["[1]", "no", "PMI"],
    ]
    assert not suite_tables(read_run([]), 200)
