"""The record of acceptance as plain data: what a delivery is signed with. Pure; equal logs make equal records."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.safe_json import as_dict, as_dicts
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import folded
from pytest_gpucluster.report.page.html_figures import is_signed, ordered_spreads, where_measured
from pytest_gpucluster.report.proof import CLUSTER, NOT_TESTED, RUN_SUITE
from pytest_gpucluster.report.run_model import one_line
from pytest_gpucluster.report.verdict import judge, judged_suites, narrowing, ordered
from pytest_gpucluster.report.waivers import all_waivers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.core.part import InstalledPart
    from pytest_gpucluster.report.run_model import FindingRow, MetricSpread, Run

RECORD = "record.json"
MAX_REASONS, MAX_OPTIONS = 12, 2000


def render(run: Run) -> bytes:
    """Return the record as JSON."""
    return json.dumps(record_of(run), allow_nan=False).encode() + b"\n"


def record_of(run: Run) -> dict[str, Any]:
    """Return verdict, nodes by state, criteria, failures, figures, waivers and the parts of each node. Times are seconds since the epoch."""
    verdict, start, judged = judge(run), run.start, judged_suites(run)
    nodes = grouped((state, node) for node, state in run.proofs.nodes.items())
    return {
        "cluster": one_line(start.get("cluster")),
        "simulated": run.simulated,
        "run": run.run,
        "began": run.began,
        "ended": run.ended,
        "by": one_line(start.get("user")),
        "verdict": {
            "outcome": verdict.outcome,
            "title": verdict.title,
            "nodes": verdict.nodes,
            "sentences": verdict.sentences,
        },
        "nodes": {state: hostlist.shown(names) for state, names in nodes.items()},
        "not_tested": not_tested(run),
        "not_judged": verdict.unjudged,
        "suites": judged,
        "without_result": [it for it in run.suites if it not in (*judged, RUN_SUITE)],
        "narrowed_by": narrowing(run, MAX_OPTIONS),
        "criteria": [
            {key: one_line(group.get(key)) for key in ("nodes", "profile", "source", "sha256")}
            for group in as_dicts(start.get("groups"))
        ],
        "not_applicable": {one_line(key): one_line(why) for key, why in as_dict(start.get("not_applicable")).items()},
        "failures": [
            {
                "check": it.check,
                "outcome": it.outcome,
                "action": it.action,
                "nodes": folded(it.nodes),
                "findings": [_finding(row) for row in it.rows.values()],
            }
            for it in ordered(run)
        ],
        "figures": [_figure(spread) for spread in ordered_spreads(run) if is_signed(spread)],
        "waivers": [
            {
                "checks": use.checks,
                "nodes": use.nodes,
                "reason": use.reason,
                "ticket": use.ticket,
                "until": use.until,
                "covers": [
                    {
                        "check": it.check,
                        "finding": it.finding,
                        "nodes": hostlist.shown(it.nodes) if CLUSTER not in it.nodes else "",
                    }
                    for it in use.covered.values()
                ],
            }
            for use in all_waivers(run)
        ],
        "parts_by_kind": parts_by_kind(run),
        "parts_not_read": parts_not_read(run),
        "parts": {node: [_row(like, parts) for like, parts in _alike(parts)] for node, parts in run.parts.items()},
    }


def _finding(row: FindingRow) -> dict[str, str]:
    found = row.found
    return {
        "part": str(found.part),
        "measured": str(found.measured),
        "expected": str(found.expected),
        "nodes": folded(row.nodes),
    }


def untested_nodes(run: Run) -> dict[str, list[str]]:
    """Return why nodes have no result, and which."""
    nodes = grouped((why, node) for node, why in run.untested.items())
    if run.silent:
        nodes["the run ended before any check of them"] = run.silent
    return nodes


def not_tested(run: Run) -> list[str]:
    """Return the nodes and the checks that a record leaves open, and why."""
    found = [f"{hostlist.shown(names)}: {why}" for why, names in sorted(untested_nodes(run).items())]
    more = [f"{len(found) - MAX_REASONS} further reasons"] if found[MAX_REASONS:] else []
    checks = [f"{count(number, 'check')} of these nodes"] if (number := run.totals[NOT_TESTED]) else []
    return [*found[:MAX_REASONS], *more, *checks, *([run.on_request] if run.on_request else [])]


def _figure(spread: MetricSpread) -> dict[str, Any]:
    measured = [
        (metric.value, where_measured(node, metric)) for node, metric in zip(spread.nodes, spread.metrics, strict=True)
    ]
    # of equal ones the first, as the page has it
    least, greatest = min(measured, key=itemgetter(0)), max(measured, key=itemgetter(0))
    values = [value for value, _ in measured]
    return {
        "suite": spread.suite,
        "profile": spread.kind,
        "metric": spread.name,
        "unit": spread.unit,
        "measurements": len(measured),
        "least": least[0],
        "least_at": least[1],
        "median": statistics.median_low(values) / 2 + statistics.median_high(values) / 2,  # no sum is infinite
        "greatest": greatest[0],
        "greatest_at": greatest[1],
        "bounds": [{"bound": bound, "words": words} for bound, words in spread.bounds.items()],
    }


_LIKE = ("kind", "model", "vendor", "number", "firmware", "length")


def _alike(parts: Iterable[InstalledPart]) -> Iterable[tuple[tuple[str, ...], list[InstalledPart]]]:
    """Return the parts that differ in serial number and place alone, with what they share: the values of _LIKE."""
    return grouped(
        ((it.part.kind, it.part.model, it.vendor, it.number, it.firmware, it.length), it) for it in parts
    ).items()


def _row(like: tuple[str, ...], parts: Sequence[InstalledPart]) -> dict[str, Any]:
    shared = {key: value for key, value in zip(_LIKE, like, strict=True) if value}
    columns = {
        "slots": [it.slot for it in parts],
        "names": [it.part.name for it in parts],
        "serials": [it.part.serial for it in parts],
    }
    return shared | columns


def parts_by_kind(run: Run) -> list[str]:
    """Return how many parts of each kind the nodes have, like '8 gpu on each of gpu[01-24] (192)': a part that lacks shows."""
    counts = {node: Counter(it.part.kind for it in parts) for node, parts in run.parts.items()}
    kinds = dict.fromkeys(it.part.kind for parts in run.parts.values() for it in parts)
    alike = grouped(((kind, found[kind]), node) for kind in kinds for node, found in counts.items())
    return [
        f"{number} {kind} on {'each of ' if nodes[1:] else ''}{folded(nodes)} ({number * len(nodes):,})"
        for (kind, number), nodes in alike.items()
    ]


def parts_not_read(run: Run) -> list[str]:
    """Return which sources of parts could not be read, and where."""
    return [f"{words} on {folded(it.nodes)}" for words, it in run.remarks.get("parts.inventory", {}).items()]


def parts_table(run: Run) -> Iterator[tuple[str, str, str, str, str, list[str]]]:
    """Yield node, kind, vendor with model, part number and firmware of like parts, and their serial numbers."""
    for node, parts in sorted(run.parts.items()):
        for (kind, model, vendor, number, firmware, length), found in _alike(parts):
            made = ("" if model.startswith(vendor) else vendor, model, length and f"{length} m")
            yield (node, kind, " ".join(filter(None, made)), number, firmware, [it.part.serial or "-" for it in found])
