"""The experiment matrix: one row per launcher, one column per workload. Pure.

A cell works, fails as expected, is broken, lacks a program, or does not apply. Expected failures are those that
matrix.expected states, and missing PMI if mpi.launchers contains no srun.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.config.validation_errors import nearest
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict, check, combined
from pytest_gpucluster.core.errors import ConfigError, NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, register
from pytest_gpucluster.kit.mpi.mpi_world import PMI_CODES, SINGLETONS
from pytest_gpucluster.suites.matrix.config import MatrixConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Judgement

TITLE = "experiment matrix"
ROWS = {
    "mpirun": "mpirun",
    "srun": "srun",
    "srun_pyxis": "srun + Pyxis",
    "srun_framework": "srun + Pyxis, framework image",
}
COLUMNS = {"cpu": "CPU", "gpu": "GPU", "mpi": "MPI", "nccl": "NCCL"}
_PMI = re.compile(r"\bPMI", re.IGNORECASE)
register("cell", "cell", named=True)
MAX_TEXT = 160  # characters of a reason in the table; the failure has all of it


class State(str, enum.Enum):
    """How a cell ended."""

    WORKS = "works"
    EXPECTED = "fails as expected"
    BROKEN = "BROKEN"
    LACKING = "not checked"
    NOT_APPLICABLE = "n/a"


_WORSE = (State.NOT_APPLICABLE, State.WORKS, State.EXPECTED, State.LACKING, State.BROKEN)


@dataclass(frozen=True)
class Cell:
    """One launcher with one workload. `why`: the reason of a state other than WORKS; `verdict`: that of the workload.

    `speed`: like '12.3 GB/s', '' for a workload without a rate.
    """

    row: str
    column: str
    state: State
    why: str = ""
    verdict: Verdict | None = None
    speed: str = ""

    @property
    def text(self) -> str:
        """The text in the table."""
        return f"{self.state.value}, {self.speed}" if self.speed else self.state.value

    @property
    def note(self) -> str:
        """The text below the table."""
        return self.why if len(self.why) <= MAX_TEXT else self.why[: MAX_TEXT - 3] + "..."


def name_of(row: str, column: str) -> str:
    """Return the name of a cell in matrix.expected and in the id of its item.

    >>> name_of("srun_pyxis", "mpi")
    'srun_pyxis-mpi'
    """
    return f"{row}-{column}"


def refuse_cells(cluster: Cluster) -> None:
    """Raise ConfigError for a cell of matrix.expected that the matrix does not have."""
    cells = [name_of(row, column) for row in ROWS for column in COLUMNS]
    config = cluster.section(MatrixConfig)
    for name in config.expected if config else ():
        if name not in cells:
            guess = nearest(name, cells) or f"; the cells are {', '.join(cells)}"
            raise ConfigError(f"{name!r} is not a cell{guess}")


def settle(row: str, column: str, verdict: Verdict, expected: Mapping[str, str], *, pmi_required: bool = True) -> Cell:
    """Return the cell of a workload with this verdict. `pmi_required`: whether srun must start MPI programs."""
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        return Cell(row, column, State.NOT_APPLICABLE, verdict.reason)
    if verdict.outcome is Outcome.PASSED:
        return Cell(row, column, State.WORKS, verdict=verdict)
    why = expected.get(name_of(row, column), "")
    if not why and column == "mpi" and row != "mpirun" and not pmi_required and _lacks_pmi(verdict):
        why = "no PMI support"
    if why and _is_stated(verdict, why):
        return Cell(row, column, State.EXPECTED, why, verdict)
    other = f" (matrix.expected states another failure: {why})" if why else ""
    return Cell(row, column, State.BROKEN, first_words(verdict) + other, verdict)


def together(cells: Sequence[Cell]) -> Cell:
    """Return one cell for all allocations: the worst state, with the findings of all allocations in that state."""
    state = max((cell.state for cell in cells), key=_WORSE.index)
    same = [cell for cell in cells if cell.state is state]
    verdicts = [cell.verdict for cell in same if cell.verdict]
    speeds = " and ".join(cell.speed for cell in same if cell.speed)
    return replace(same[0], verdict=combined(verdicts) if verdicts else None, speed=speeds)


def first_words(verdict: Verdict) -> str:
    """Return the first finding in one line."""
    found = (f"{it.part}: {it.measured}" for it in verdict.findings)
    return next(found, verdict.reason or "could not be tried")


def _is_stated(verdict: Verdict, stated: str) -> bool:
    """Return whether the failure is the stated one: it lacks PMI, has this code, or a node printed these words."""
    if _PMI.search(stated):
        return _lacks_pmi(verdict)
    printed = (it.measured.text for it in verdict.findings if isinstance(it.measured, Quote))
    return any(it.code == stated for it in verdict.findings) or any(
        stated.casefold() in text.casefold() for text in printed
    )


def _lacks_pmi(verdict: Verdict) -> bool:
    return any(found.code in (*PMI_CODES, SINGLETONS) for found in verdict.findings)


@check(
    "matrix.cell",
    cause="this launcher cannot run this workload",
    hint="compare the other cells of the row and the column: they show whether launcher or workload is the cause",
    action=Action.CONFIGURE,
)
def cell(it: Cell) -> Judgement:
    """Judge a cell: it works, or fails as expected."""
    if it.state is State.NOT_APPLICABLE:
        raise NotApplicable(it.why)
    if it.state is State.LACKING:
        raise NotAvailable(it.why)
    if it.state is not State.BROKEN:
        return
    part = f"{ROWS[it.row]} with {COLUMNS[it.column]}"
    if it.verdict is None or not it.verdict.findings:
        yield Finding(Part("cell", name=part), it.why, "works", code="broken")
        return
    for found in it.verdict.findings:
        yield replace(found, part=Part("cell", name=f"{part}: {found.part}", nodes=found.part.nodes))


@check(
    "matrix.works",
    cause="no launcher runs any workload, and the failures are expected by matrix.expected",
    hint="matrix.expected of the cluster file; mpi and nccl, whose launchers and programs the cells use",
    action=Action.CONFIGURE,
)
def works(cells: Sequence[Cell]) -> Judgement:
    """At least one cell works, and so does each workload, unless hardware or cluster file leave it out or expect a failure."""
    good = [it for it in cells if it.state is State.WORKS]
    tried = [it for it in cells if it.state in (State.WORKS, State.EXPECTED, State.BROKEN)]
    yield Metric("matrix_cells", len(good), "cells")
    if not tried:
        why = "; ".join(dict.fromkeys(it.why for it in cells))
        yield NotAvailable(f"no cell could be tried: {why}")
    elif not good:
        none = Quantity(0, "cells", f"no cell works: {len(tried)} fail")
        one = Quantity(1, "cells", "at least one launcher runs a workload")
        yield Finding(Part("cell", name="matrix"), none, one, code="none_works")
    for column, title in COLUMNS.items():
        here = [it for it in cells if it.column == column]
        lacking = [it.why for it in here if it.state is State.LACKING]
        if tried and lacking and not any(it.column == column for it in tried):
            yield NotAvailable(f"{title} ran under no launcher: {'; '.join(dict.fromkeys(lacking))}")


@dataclass(frozen=True)
class CellWork:
    """A workload without messages between tasks. `reports`: (node, value) of each task; `problem`: why the step failed."""

    nodes: tuple[str, ...]
    ntasks_per_node: int
    reports: tuple[tuple[str, str], ...]
    expected: str
    unit: str = ""
    problem: str = ""


@check(
    "matrix.work",
    item=False,
    cause="the launcher did not start the tasks, or they do not see the devices of the node",
    hint="run one task with srun; for GPUs in a container check NVIDIA_VISIBLE_DEVICES and nvidia-container-cli",
    action=Action.CONFIGURE,
)
def work(it: CellWork) -> Judgement:
    """Judge that each task ran once, on the requested nodes, and reported the expected value."""
    counts = Counter(node for node, _ in it.reports)
    if it.problem:
        wanted = f"{len(it.nodes) * it.ntasks_per_node} tasks that end by themselves"
        yield Finding(Part("step", name="step"), Quote(it.problem), wanted, code="step_failed")
    for node in it.nodes:
        if counts[node] != it.ntasks_per_node and (it.reports or not it.problem):
            reported = Quantity(counts[node], "tasks", f"{counts[node]} tasks reported")
            yield Finding(Part("node", name=node), reported, Quantity(it.ntasks_per_node, "tasks"), code="task_count")
    for node in sorted(set(counts) - set(it.nodes)):
        why = "ran tasks but was not requested"
        yield Finding(Part("node", name=node or "an unknown host"), why, "none", code="not_requested")
    for node, value in it.reports:
        if value != it.expected:
            part, expected = Part("node", name=node), _value(it.expected, it.unit)
            if value.isdigit():
                yield Finding(part, _value(value, it.unit), expected, code="other_value")
            else:  # the reason why there is no number
                yield Finding(part, Quote(value), expected, code="no_value")


def _value(number: str, unit: str) -> Quantity:
    return Quantity(int(number), unit, f"{number} {unit}".rstrip())
