"""What to do, for the HTML report: a card for each bad node with cause and picture, the hardest action first. Pure.

Nodes with the same findings share a card; a finding of the cluster has a card of its own. Nodes beyond the limit of cards
are rows of their hardest failure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.core.text import quantity
from pytest_gpucluster.report.describe import for_nodes, number
from pytest_gpucluster.report.page import html_node, svg
from pytest_gpucluster.report.proof import NOT_TESTED
from pytest_gpucluster.report.run_model import ACTIONS, evidence_folder
from pytest_gpucluster.report.verdict import ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.report.history.regression import Compared, ShownComparison
    from pytest_gpucluster.report.run_model import FailureGroup, FindingRow, Run

MAX_CARDS = 24
MAX_FAILURES = 6  # of a card; its map row and the sections of failures have all
MAX_FINDINGS = 4  # of a failure
MAX_TRENDS = 3  # of a card
MAX_NAME = 120  # characters of what another user may have written into the history
INSPECT = "inspect: could not be judged"

Entry = tuple["FailureGroup", "FindingRow"]


def work(run: Run, anchors: Mapping[int, str], comparison: ShownComparison | None = None) -> dict[str, Any]:
    """Return the cards, and rows for nodes beyond their limit: action, check, cause, nodes."""
    alike = list(_alike(run))
    rest: dict[int, tuple[FailureGroup, list[str]]] = {}
    for entries, nodes in alike[MAX_CARDS:]:
        rest.setdefault(id(entries[0][0]), (entries[0][0], []))[1].extend(nodes)
    worse: dict[str, list[Compared]] = defaultdict(list)
    for one in comparison.rows if comparison else ():
        if one.worse:
            worse[one.node].append(one)
    cards = [_card(run, entries, nodes, anchors) for entries, nodes in alike[:MAX_CARDS]]
    for card in cards:
        trends = (trend(one) for node in card["nodes"] for one in worse[node])
        card["trends"] = [one for one in trends if one][:MAX_TRENDS]
    whole = {one["anchor"] for card in cards for one in card["failures"]}
    cut = {one["anchor"] for card in cards for one in card["failures"] if one["more"] > 0}
    cut |= {anchors[id(group)] for entries, _ in alike[MAX_CARDS:] for group, _ in entries}
    cut |= {anchor for card in cards for anchor in card["cut"]}
    return {
        "cards": cards,
        "carded": whole - cut,  # failures of which the cards have all that is signed
        "rest": [
            {"action": _action(group), "group": group, "nodes": nodes, "anchor": anchors[key]}
            for key, (group, nodes) in rest.items()
        ],
    }


def trend(one: Compared) -> dict[str, Any] | None:
    """Return picture and text of a metric over the last runs; None where it never changed."""
    known = {value for value in one.values if value is not None}
    if len(known) < 2:
        return None
    metric = one.metric
    name = shorten(printable(f"{metric.name} {metric.device}".strip()), MAX_NAME)
    unit = shorten(printable(metric.unit), MAX_NAME)
    text = f"{name}: {quantity(number(metric.value), unit)}; {number(min(known))} to {number(max(known))} in {len(one.values)} runs"
    values = ", ".join(map(number, one.values))
    return {"picture": svg.trend(one.values, title=f"{name} in the last runs: {values}"), "text": text}


def _alike(run: Run) -> Iterable[tuple[list[Entry], list[str]]]:
    """Yield nodes with the same findings, the hardest failure of each node first, and the hardest nodes first."""
    held: dict[str, list[Entry]] = defaultdict(list)  # a common finding has its group's id instead of a node
    common: dict[str, list[str]] = {}
    for group in ordered(run):
        if group.common:
            common[f"/{id(group)}"] = list(group.nodes)
        for row in group.rows.values():
            for owner in (f"/{id(group)}",) if group.common else row.nodes:
                held[owner].append((group, row))
    cards: dict[tuple[int, ...], tuple[list[Entry], list[str]]] = {}
    for owner, entries in held.items():
        key = tuple(id(row) for _, row in entries)
        cards.setdefault(key, (entries, []))[1].extend(common.get(owner, [owner]))
    return cards.values()


def _card(run: Run, entries: Sequence[Entry], nodes: Sequence[str], anchors: Mapping[int, str]) -> dict[str, Any]:
    rows: dict[int, list[FindingRow]] = defaultdict(list)
    groups = {id(group): group for group, _ in entries}
    for group, row in entries:
        rows[id(group)].append(row)
    hardest = entries[0][0]
    found = [_failure(groups[key], rows[key], nodes, anchors[key]) for key in rows]
    return {
        "nodes": nodes,
        "action": _action(hardest),
        "outcome": hardest.outcome,
        "common": hardest.common,
        "failures": found[:MAX_FAILURES],
        "cut": [one["anchor"] for one in found[MAX_FAILURES:]],
        "evidence": [(node, folder) for node in nodes if (folder := evidence_folder(run, node))][:MAX_FAILURES],
        "slurm": [text for text, named in hardest.slurm.items() if set(nodes) & set(named)][:2],
        # of a node that was not tested no part is known
        "picture": ""
        if {run.proofs.nodes.get(node) for node in nodes} == {NOT_TESTED}
        else html_node.picture(run, nodes, [(group.suite, row.found) for group, row in entries]),
    }


def _failure(group: FailureGroup, rows: Sequence[FindingRow], nodes: Sequence[str], anchor: str) -> dict[str, Any]:
    parts = [row.found.part for row in rows]
    return {
        "check": group.check,
        "anchor": anchor,
        "action": _action(group),
        "findings": [
            (row.found.part, for_nodes(str(row.found.measured), nodes), row.found.expected)
            for row in rows[:MAX_FINDINGS]
        ],
        "more": len(rows) - MAX_FINDINGS,
        "cause": group.cause,
        "to_do": for_nodes(for_parts(group.hint, parts), nodes) if group.hint else "",
    }


def _action(group: FailureGroup) -> str:
    if group.outcome != "failed":
        return INSPECT
    return group.action if group.action in ACTIONS else "monitor"
