"""The HTML page of a history: nodes by runs, ages of verdicts, the worst nodes, drains and resumes. One file, no network.

    write(read_fleet(history, "prod", now=time.time()), Path("fleet.html"))

Of many nodes those with the same states in all runs share a row, so the page grows with what changed, not with nodes times runs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.report.describe import counted, folded
from pytest_gpucluster.report.history.regression import when
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.page import html_page, svg
from pytest_gpucluster.report.page.html_figures import SMALL_FLEET
from pytest_gpucluster.report.proof import CLUSTER, NOT_PROVED, NOT_TESTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.history.fleet_runs import FleetRuns

MAX_ROWS = 1_000  # of the map
PART = 50  # rows of one picture: a page of paper holds it
MAX_AGES = 100  # rows of nodes with verdicts of the same ages
MAX_ACTS = 300  # rows; equal acts of a run are one
MAX_RUNS = 50  # rows of the list of runs
MAX_TEXT = 400  # characters of a text, which another user may have written
DAY = 86_400
ROW, BAR, WIDTH, TOP = 15, 12, 1_095, 18  # pixels: rows, the highest bar, all runs at most, the dates
# state -> class, top and height of its bar: no state is shown by its colour alone
BARS = {
    "failed": ("bad", 0, 12),
    "error": ("err", 2, 8),
    NOT_PROVED: ("err", 4, 4),
    "passed": ("ok", 5, 2),
    NOT_TESTED: ("untested", 11, 1),
}
NAMES = {"passed": "fit"}  # what the other reports call a node that is good in a run


def write(fleet: FleetRuns, path: Path, *, group: int | None = None) -> None:
    """Write the page to `path`, whole or not at all. GpuClusterError where that cannot be."""
    write_whole(path, render(fleet).encode(errors="replace"), group=group)


def render(fleet: FleetRuns) -> str:
    """Return the page as text."""
    rows = _rows(fleet)
    shown, rest = rows[:MAX_ROWS], rows[MAX_ROWS:]
    gutter = round(10 + 7.5 * max((len(_label(nodes)) for nodes, _ in shown), default=0))
    suites = sorted({suite for row in fleet.verdicts.values() for suite in row})
    return html_page.template("fleet.html.j2").render(
        fleet=fleet,
        style=html_page.style(),
        cluster=_text(fleet.cluster),
        began=when(fleet.runs[0].started) if fleet.runs else "",
        ended=when(fleet.runs[-1].started) if fleet.runs else "",
        now=when(fleet.now),
        nodes=[_text(node) for node in fleet.states if node],
        key=[(NAMES.get(state, state), _sample(state)) for state in BARS],
        maps=[_map(fleet, shown[at : at + PART], gutter) for at in range(0, len(shown), PART)],
        shared=[(counted(nodes), folded(nodes)) for nodes, _ in shown if len(nodes) > 1],
        left_out=sum(len(nodes) for nodes, _ in rest),
        suites=[_text(suite) for suite in suites],
        **_ages(fleet, suites),
        worst=[
            {
                "node": _name(one.node),
                "failed": one.failed,
                "runs": one.runs,
                "last": when(one.last),
                "checks": [f"{_text(check)} ({count})" for check, count in one.checks],
            }
            for one in fleet.worst
        ],
        acts=_acts(fleet),
        runs=[
            {"past": run, "when": when(run.started), "id": _text(run.run)} for run in fleet.runs[: -MAX_RUNS - 1 : -1]
        ],
    )


def _rows(fleet: FleetRuns) -> list[tuple[list[str], Sequence[str]]]:
    """Return nodes with the same states in all runs, the worst first; items about no single node come before."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    one_each = len(fleet.states) <= SMALL_FLEET
    for node, states in sorted(fleet.states.items()):
        key = node if one_each or not node else CLUSTER
        alike[key, tuple(states)].append(_name(node))

    def badness(row: tuple[list[str], Sequence[str]]) -> Any:
        count = Counter(row[1])
        worst = tuple(-count[state] for state in BARS if state != "passed")
        return row[0] != [CLUSTER], worst, row[0][0]

    return sorted(((nodes, states) for (_, states), nodes in alike.items()), key=badness)


def _map(fleet: FleetRuns, rows: Sequence[tuple[list[str], Sequence[str]]], gutter: int) -> Markup:
    """Draw a row for equal nodes and a column per run; equal states in a row are one bar."""
    labels = [_label(nodes) for nodes, _ in rows]
    wide = max(3, min(14, WIDTH // len(fleet.runs)))
    paths: dict[str, list[str]] = defaultdict(list)
    named: list[str] = []
    dates = [when(run.started)[:10] for run in fleet.runs]
    parts = list(_dates(dates, gutter, wide))
    for number, ((_, states), label) in enumerate(zip(rows, labels, strict=True)):
        y = TOP + number * ROW
        parts.append(f'<text x="{gutter - 8}" y="{y + 10}" class="t name end">{escape(label)}</text>')
        for state, first, length in _spans(states):
            if state not in BARS:
                continue
            path = _bar(state, gutter + first * wide, y, length * wide)
            if state == "failed":
                last = f" to {dates[first + length - 1]}, {length} runs" if length > 1 else ""
                title = f"<title>{escape(label)}: failed, {dates[first]}{last}</title>"
                named.append(f'<path class="bad" d="{path}">{title}</path>')
            else:
                paths[BARS[state][0]].append(path)
    parts += [f'<path class="{css_class}" d="{"".join(found)}"/>' for css_class, found in paths.items()]
    width, height = gutter + max(len(fleet.runs) * wide, 80), TOP + len(rows) * ROW
    title = f"states of {len(fleet.states)} nodes in {len(fleet.runs)} runs; rows of the worst nodes first"
    return svg.picture(width, height, title, [*parts, *named])


def _label(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else counted(nodes)


def _spans(states: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (state, first column, columns) of equal neighbours."""
    column = 0
    for state, run in groupby(states):
        length = len(list(run))
        yield state, column, length
        column += length


def _bar(state: str, x: int, y: int, width: int) -> str:
    _, top, height = BARS[state]
    return f"M{x} {y + top}h{width}v{height}h-{width}z"


def _dates(dates: Sequence[str], gutter: int, wide: int) -> Iterator[str]:
    free = 0
    for column, date in enumerate(dates):
        x = gutter + column * wide
        fits = column == 0 or x + 70 <= gutter + len(dates) * wide
        if fits and x >= free and (column == 0 or date != dates[column - 1]):
            yield f'<text x="{x}" y="11" class="t">{escape(date)}</text>'
            free = x + 90


def _sample(state: str) -> Markup:
    return svg.picture(
        14, BAR, NAMES.get(state, state), [f'<path class="{BARS[state][0]}" d="{_bar(state, 0, 0, 14)}"/>']
    )


def _ages(fleet: FleetRuns, suites: Sequence[str]) -> dict[str, Any]:
    """Return rows of nodes whose suites were judged equally long ago, the oldest verdict first."""
    alike: dict[tuple[tuple[int, str], ...], list[str]] = defaultdict(list)
    for node, row in sorted(fleet.verdicts.items()):
        alike[tuple(_age(fleet, row, suite) for suite in suites)].append(_name(node))
    rows = sorted(alike.items(), key=lambda one: (-max(days for days, _ in one[0]), one[1][0]))
    shown = [
        {"nodes": nodes, "cells": [{"days": _days(days), "outcome": outcome} for days, outcome in cells]}
        for cells, nodes in rows[:MAX_AGES]
    ]
    return {"ages": shown, "ages_left_out": sum(len(nodes) for _, nodes in rows[MAX_AGES:])}


def _age(fleet: FleetRuns, row: Mapping[str, Any], suite: str) -> tuple[int, str]:
    """Return whole days since the verdict, -1 where there is none, and how it ended."""
    known = row.get(suite)
    return (-1, "") if known is None else (max(0, int((fleet.now - known.started) // DAY)), known.outcome)


def _days(days: int) -> str:
    return "\N{EN DASH}" if days < 0 else "< 1 d" if days == 0 else f"{days} d"


def _acts(fleet: FleetRuns) -> list[dict[str, Any]]:
    """Return rows of acts, newest first; the same act of a run on several nodes is one."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for act in fleet.acts:
        like = re.sub(rf"\b{re.escape(act.node)}\b", "NODE", act.reason)
        row = rows.setdefault(
            (act.run, act.result, act.user, like),
            {"time": when(act.time), "result": _text(act.result), "user": _text(act.user), "run": _text(act.run),
             "reason": _text(act.reason), "nodes": []},
        )  # fmt: skip
        if row["nodes"]:
            row["reason"] = _text(like)
        row["nodes"].append(_name(act.node))
    return list(rows.values())[:MAX_ACTS]


def _name(node: str) -> str:
    return _text(node) or CLUSTER


def _text(text: str) -> str:
    return shorten(printable(text), MAX_TEXT)
