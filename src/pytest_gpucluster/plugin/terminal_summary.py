"""What the terminal shows of a run: the header, and at the end tables, what was not covered, and errors."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.plugin.item_result import clean
from pytest_gpucluster.report.ascii_plot import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.plugin.summary import Tally

MAX_CURVES = 8
MAX_PROBLEMS, MAX_UNJUDGED = 10, 20  # lines


def header(session: ClusterSession) -> list[str]:
    """Return what is under test, and what is not."""
    plan = session.plan
    label = "SIMULATED hardware, real Slurm; " if session.cluster.simulated else ""
    lines = [
        *session.notes,
        f"cluster: {session.cluster.name}: {label}{len(plan.testable)} of {len(plan.selected)} nodes",
    ]
    known = list(plan.problems.items())
    lines += [f"not tested: {node}: {clean(problem.text)}" for node, problem in known[:MAX_PROBLEMS]]
    if known[MAX_PROBLEMS:]:
        lines.append(f"not tested: {len(known) - MAX_PROBLEMS} more, listed at the end")
    return lines


def summary(session: ClusterSession, tally: Tally, tested: int, *, verbose: bool) -> Iterator[str]:
    """Yield nodes by suites, the metrics, what was not covered, and what was not tested."""
    tables = (tally.node_table(), tally.metric_table(constant=verbose), *tally.suite_tables())
    for table in filter(None, tables):
        yield from (*table, "")
    for curve in tally.curves[:MAX_CURVES]:
        width = min(100, get_terminal_size().columns)
        yield from draw(curve["points"], width=width, title=f"{curve['title']}: bus bandwidth, GB/s")
        yield ""
    yield from tally.unjudged_lines("not applicable") if verbose else ()
    yield from tally.unjudged_lines("not checked")[:MAX_UNJUDGED]
    yield from tally.advisory_lines()
    by_text: dict[str, list[str]] = {}
    for node in session.plan.selected:
        problem = session.problem(node)
        if problem is not None:
            by_text.setdefault(problem.text, []).append(node)
    yield from (f"not tested: {hostlist.fold(names)}: {text}" for text, names in by_text.items())
    yield tally.coverage(tested, len(session.plan.selected))
