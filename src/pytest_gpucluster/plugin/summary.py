"""What the terminal shows of a run: its header, and tables made from the model of the run. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.safe_json import as_dict
from pytest_gpucluster.core.text import some
from pytest_gpucluster.plugin.item_result import WAIVED, clean
from pytest_gpucluster.plugin.selection import on_request_line
from pytest_gpucluster.report.ascii_plot import draw
from pytest_gpucluster.report.junit import shell_property
from pytest_gpucluster.report.proof import CLUSTER, NOT_PROVED
from pytest_gpucluster.report.verdict import ends_of_checks
from pytest_gpucluster.report.waivers import unused, uses
from pytest_gpucluster.report.words import folded, number, remark_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pytest

    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.report.run_model import Run

UNJUDGED = ("not checked", "not applicable")
MAX_NAMES = 4
MAX_CURVES = 8
MAX_ROWS = 15  # of nodes by suites
NO_EXPECTATION = "the cluster file states "  # as checks say why they do not apply
MAX_PROBLEMS, MAX_UNJUDGED, MAX_WARNINGS = 10, 20, 20  # lines


def classify(report: pytest.TestReport) -> str | None:
    """Return what one phase of an item says: passed, failed, error, or why it was skipped; None: nothing yet.

    An exception in setup or teardown is an error (the infrastructure broke), in the test a failure (the node is
    bad).
    """
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    if report.outcome == "skipped":
        record = getattr(report, "gpucluster", {})
        return WAIVED if "waiver" in record else record.get("ended") or "skipped"
    return "passed" if report.when == "call" else None


def node_table(run: Run) -> list[str]:
    """Draw nodes by suites; nodes with the same cells share a row. Bad rows come last, nearest to the prompt.

    Suites of which nothing applies share one line below.
    """
    suites = [suite for suite in run.suites if any(_applies(row.get(suite)) for row in run.counts.values())]
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, by_suite in run.counts.items():
        if any(suite in by_suite for suite in suites):
            rows[tuple(cell(by_suite.get(suite, Counter())) for suite in suites)].append(node)
    ordered = sorted(rows.items(), key=lambda row: any("FAILED" in c or "ERROR" in c for c in row[0]))
    left_out = max(0, len(ordered) - MAX_ROWS)
    body = [(folded(nodes), *cells) for cells, nodes in ordered[left_out:]]
    table = tabulate(body, headers=("nodes", *suites), disable_numparse=True).splitlines() if body else []
    table += [f"and {left_out} more kinds of nodes: see report.html"] if left_out else []
    aside = ", ".join(suite for suite in run.suites if suite not in suites)
    return [*table, f"not applicable here: {aside} (-v says why)"] if aside else table


def _applies(counter: Counter[str] | None) -> bool:
    """Whether anything of a suite was more than not applicable."""
    return counter is not None and counter.total() > counter["not applicable"]


def metric_table(run: Run) -> list[str]:
    """Draw one row per metric: how many values, least, median and greatest, and where the ends were measured."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for result in run.results:
        for it in result.metrics:
            if not it.detail:
                place = f"{result.node or CLUSTER} {it.device.partition(' (')[0]}".strip()
                found[it.name, it.unit].append((float(it.value), place))
    rows = []
    for (name, unit), values in sorted(found.items()):
        low, high = min(values), max(values)
        spread: tuple[str, ...] = ()  # one value needs no range
        if len(values) > 1:
            middle = statistics.median(value for value, _ in values)
            spread = (number(middle), number(high[0]), high[1])
        rows.append((name, unit, len(values), number(low[0]), low[1], *spread))
    headers = ("metric", "unit", "n", "min", "at", "median", "max", "at")
    return tabulate(rows, headers=headers, disable_numparse=True).splitlines() if rows else []


def suite_tables(run: Run) -> list[list[str]]:
    """Draw the tables that suites have filled; rows and columns by their place, notes below."""
    return [[title, *draw_cells(cells)] for title, cells in run.cells.items()]


def only_reason(run: Run) -> str:
    """Return the one reason of all that was not judged; '' where there are several, or none."""
    reasons = {why for kind in UNJUDGED for why in run.unjudged.get(kind, ())}
    return reasons.pop() if len(reasons) == 1 else ""


def unjudged_lines(run: Run, kind: str) -> list[str]:
    """Say what was not checked or not applicable, and why: one line a reason, checks and nodes folded."""
    lines = []
    for why, checks in run.unjudged.get(kind, {}).items():
        names = sorted(checks)
        lines.append(
            f"{kind}: {some(names, MAX_NAMES)} on {folded(sorted(set().union(*checks.values())))}: {why}"
        )
    return lines


def without_expectation(run: Run) -> list[str]:
    """Name the checks that the cluster file states nothing for, in one line."""
    reasons = run.unjudged.get("not applicable", {})
    checks = {check for why, found in reasons.items() if why.startswith(NO_EXPECTATION) for check in found}
    if not checks:
        return []
    draft = "gpucluster init --from-nodes drafts what most nodes have"
    return [f"no expectation in the cluster file: {', '.join(sorted(checks))} ({draft})"]


def advisory_lines(run: Run) -> list[str]:
    """Write the warnings that fail no check: one line for each text, nodes folded."""
    lines = [
        f"warning: {check} on {folded(row.nodes)}: {part}: measured {measured}, expected {expected}"
        for (check, part, measured, expected, _), row in run.warnings.items()
    ]
    rest = len(lines) - MAX_WARNINGS
    more = f"warning: {rest} more kinds: see report.html"
    return [*lines[:MAX_WARNINGS], more] if rest > 0 else lines


def coverage(run: Run) -> str:
    """Say in a line how many checks were really judged."""
    ends = ends_of_checks(run)
    judged = sum(ends[end] for end in ("passed", "failed", NOT_PROVED))  # the last: all nodes fail alike
    parts = [f"{judged} of {ends.total()} checks judged"]
    parts += [
        f"{count} {kind}"
        for kind in (WAIVED, "not applicable", "not checked", "not tested", "error", "skipped")
        if (count := ends[kind])
    ]
    return f"coverage: {', '.join(parts)}"


def draw_cells(cells: Iterable[dict[str, Any]]) -> list[str]:
    """Draw one table of cells (row, column, text, note, place), each note once below it."""
    known = list(cells)
    rows = list(dict.fromkeys(put["row"] for put in sorted(known, key=lambda put: put["place"][0])))
    columns = list(dict.fromkeys(put["column"] for put in sorted(known, key=lambda put: put["place"][1])))
    ordered = sorted(known, key=lambda put: (rows.index(put["row"]), columns.index(put["column"])))
    notes = list(dict.fromkeys(put["note"] for put in ordered if put["note"]))
    texts = {
        (put["row"], put["column"]): put["text"]
        + (f" [{notes.index(put['note']) + 1}]" if put["note"] else "")
        for put in ordered
    }
    lines = [(row, *(texts.get((row, column), "") for column in columns)) for row in rows]
    table = tabulate(lines, headers=("", *columns), disable_numparse=True).splitlines()
    return [*table, *(f"[{number}] {note}" for number, note in enumerate(notes, 1))]


def cell(counter: Counter[str]) -> str:
    """Write one cell: '24 ok', '23 ok, 1 FAILED'. What is not applicable is left out."""
    shown = {
        "passed": "ok",
        "failed": "FAILED",
        "error": "ERROR",
        NOT_PROVED: "failed alike",  # on all nodes: none of them is at fault
        "waived": "waived",
        "not checked": "not checked",
        "not tested": "not tested",
    }
    return ", ".join(f"{counter[kind]} {word}" for kind, word in shown.items() if counter[kind]) or "-"


def header(session: ClusterSession, without_section: Sequence[str] = ()) -> list[str]:
    """Return what is under test, and what is not. `without_section`: suites that the cluster file has no section for."""
    plan = session.plan
    slurm = ", real Slurm" if session.slurm is not None else ""
    label = f"SIMULATED hardware{slurm}; " if session.cluster.simulated else ""
    lines = [
        *session.notes,
        f"cluster: {session.cluster.name}: {label}{len(plan.judged)} of {len(plan.selected)} nodes",
    ]
    known = list(plan.problems.items())
    lines += [f"not tested: {node}: {clean(problem.text)}" for node, problem in known[:MAX_PROBLEMS]]
    if known[MAX_PROBLEMS:]:
        lines.append(f"not tested: {len(known) - MAX_PROBLEMS} more, listed at the end")
    if without_section:
        lines.append(f"no section in the cluster file, not tested: {', '.join(without_section)}")
    return lines


def summary(session: ClusterSession, run: Run, *, verbose: bool) -> Iterator[str]:
    """Yield nodes by suites, the metrics, what was not covered, and what was not tested."""
    tables = (node_table(run), metric_table(run) if verbose else [], *suite_tables(run))
    for table in filter(None, tables):
        yield from (*table, "")
    for curve in run.curves[:MAX_CURVES]:
        width = min(100, get_terminal_size().columns)
        yield from draw(curve["points"], width=width, title=f"{curve['title']}: bus bandwidth, GB/s")
        yield ""
    yield from unjudged_lines(run, "not applicable") if verbose else ()
    yield from unjudged_lines(run, "not checked")[:MAX_UNJUDGED]
    yield from without_expectation(run)
    yield from advisory_lines(run)
    yield from remark_lines(run) if verbose else ()
    yield from (f"warning: {text}" for _, text in shell_property(as_dict(run.start.get("shell"))))
    yield from (f"waived: {line}" for use in uses(run) for line in use.lines())
    yield from (f"warning: {line}" for line in unused(run))
    by_text: dict[str, list[str]] = {}
    for node in run.selected:
        problem = session.problem(node)
        if problem is not None:
            by_text.setdefault(problem.text, []).append(node)
    yield from (f"not tested: {hostlist.fold(names)}: {text}" for text, names in by_text.items())
    if line := on_request_line(session.selection or {}):
        yield line
    yield coverage(run)
