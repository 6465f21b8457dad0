"""The map of the HTML report: a dot for each node and suite, and rows of nodes that ended alike. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.text import some
from pytest_gpucluster.report.page import svg
from pytest_gpucluster.report.page.html_figures import SMALL_FLEET
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.run_model import STATES
from pytest_gpucluster.report.verdict import ordered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from pytest_gpucluster.report.run_model import Run

MAX_PATTERNS = 80
MAX_COLUMNS = 100  # nodes up to here are columns of one map of all suites
ALL_SUITES = "all suites"
NOT_APPLICABLE = "not applicable"


def fleet_map(run: Run, anchors: Mapping[int, str]) -> dict[str, Any]:
    """Return the map of dots, and the rows of nodes that ended alike. Columns are suites with a result."""
    where: dict[tuple[str, str], str] = {}
    causes: dict[str, list[str]] = defaultdict(list)
    for group in ordered(run):
        for node in group.nodes:
            causes[node].append(anchors[id(group)])
            where.setdefault((node, group.suite), f"#{anchors[id(group)]}")
            where.setdefault((node, ""), f"#{anchors[id(group)]}")
    suites = [suite for suite in run.suites if _has_result(run, suite)]
    return {
        "small": len(run.selected) <= SMALL_FLEET,
        "suites": suites,
        "idle": _idle(run, [suite for suite in run.suites if suite not in suites]),
        "tiles": _tiles(run, suites, where) if run.selected else [],
        "patterns": _patterns(run, suites, where, causes),
    }


def _has_result(run: Run, suite: str) -> bool:
    return any(end != NOT_APPLICABLE for row in run.counts.values() for end in row.get(suite, ()))


def _idle(run: Run, suites: Sequence[str]) -> list[tuple[str, str]]:
    """Return suites without a result by their reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for suite in suites:
        reasons = [
            why
            for why, checks in run.unjudged[NOT_APPLICABLE].items()
            if any(check.partition(".")[0] == suite for check in checks)
        ]
        found[some(reasons, 1)].append(suite)
    return [(", ".join(named), why) for why, named in found.items()]


def _tiles(
    run: Run, suites: Sequence[str], where: Mapping[tuple[str, str], str]
) -> list[tuple[str, list[tuple[str, int]], Markup]]:
    """Draw the selected nodes: all suites in one picture where a line holds them, else one for each suite."""
    if len(run.selected) <= MAX_COLUMNS:
        states = {node: run.state(node) for node in run.selected}

        def of_suite(node: str, suite: str) -> str:
            return states[node] if suite == ALL_SUITES else run.state(node, suite)

        picture = svg.suite_map(
            run.selected,
            [ALL_SUITES, *suites],
            of_suite,
            link=lambda node, suite: where.get((node, "" if suite == ALL_SUITES else suite), ""),
        )
        return [("", _tally(states), picture)]
    return [_map_of(run, suite, where) for suite in ("", *suites)]


def _map_of(run: Run, suite: str, where: Mapping[tuple[str, str], str]) -> tuple[str, list[tuple[str, int]], Markup]:
    states = {node: run.state(node, suite or None) for node in run.selected}
    picture = svg.node_map(run.selected, states.__getitem__, link=lambda node: where.get((node, suite), ""))
    return suite or ALL_SUITES, _tally(states), picture


def _tally(states: Mapping[str, str]) -> list[tuple[str, int]]:
    counts = Counter(states.values())
    return [(state, counts[state]) for state in STATES if counts[state]]


def _patterns(
    run: Run, suites: Sequence[str], where: Mapping[tuple[str, str], str], causes: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """Return rows of nodes whose suites ended alike, by the same causes: by counts where that makes few rows, else by states."""
    names = dict.fromkeys((*run.selected, *run.counts))
    one_each = len(names.keys() - {CLUSTER}) <= SMALL_FLEET
    exact: dict[Any, list[str]] = defaultdict(list)
    rough: dict[Any, list[str]] = defaultdict(list)
    for node in names:
        row = run.counts.get(node, {})
        state = run.state(node)  # a lost node may have passed all that it ran
        why = tuple(causes.get(node, ()))
        key = (state, why, *(tuple(sorted(row[suite].items())) if suite in row else () for suite in suites))
        exact[(node, key) if one_each else key].append(node)
        rough[state, why, tuple(run.state(node, suite) for suite in suites)].append(node)
    chosen = exact if len(exact) <= MAX_PATTERNS else rough
    rows = [_pattern(run, nodes, suites, where) for nodes in chosen.values()]
    if not one_each:
        rows.sort(key=lambda row: STATES.index(row["state"]) if row["state"] in STATES else len(STATES))
    return rows[:MAX_PATTERNS]


def _pattern(run: Run, nodes: list[str], suites: Sequence[str], where: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    cells = []
    for suite in suites:
        counts: Counter[str] = sum((run.counts[n][suite] for n in nodes if suite in run.counts.get(n, {})), Counter())
        state = run.state(nodes[0], suite)
        shown = [f"{counts[one]:,} {one}" for one in STATES if counts[one] and one != NOT_APPLICABLE]
        link = where.get((nodes[0], suite), "")
        cells.append({"suite": suite, "state": state, "text": shown, "link": link})
    return {"nodes": nodes, "cells": cells, "state": run.state(nodes[0])}
