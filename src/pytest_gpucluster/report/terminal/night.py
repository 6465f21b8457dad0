"""What the newest run of a history changed: new, changed, healed and open findings with their ages, in a few lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.describe import folded
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.result import RED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.report.history.store import History

MAX_LINES = 15
RUNS = 60  # an older finding is as old as the first of them
_MOST = 160  # characters of a line
_KINDS = ("new", "changed", "healed", "open")


class _Verdict(NamedTuple):
    started: float
    outcome: str
    message: str
    codes: str | None  # None without findings


def night(history: History, cluster: str) -> list[str]:
    """Return at most 15 lines on the newest run of a cluster against the runs before it; what it did not judge stays open."""
    newest = history.runs(cluster, 1)
    if not newest:
        return [f"cluster {cluster}: no run is stored"]
    runs = history.runs_of_kind(cluster, simulated=newest[0].simulated, count=RUNS)
    known: defaultdict[tuple[str, str], list[_Verdict]] = defaultdict(list)
    for node, check, *verdict in history.query(
        'SELECT n.name, i."check", v.started, v.outcome, v.message, (SELECT group_concat(DISTINCT f.code || f.kind) '
        "FROM findings f WHERE f.run = v.run AND f.item = v.item) FROM verdicts v JOIN items i ON i.id = v.item "
        "JOIN nodes n ON n.id = i.node WHERE n.cluster = ? AND n.simulated = ? AND v.started >= ? "
        "AND v.outcome IN ('passed', 'failed', 'error') AND i.id IN (SELECT item FROM verdicts "
        "WHERE started >= ? AND outcome IN ('failed', 'error')) ORDER BY v.started",
        (cluster, newest[0].simulated, runs[-1].started, runs[-1].started),
    ):
        known[node, check].append(_Verdict(*verdict))
    rows: defaultdict[tuple[str, float, str], dict[str, str]] = defaultdict(dict)
    for (node, check), verdicts in known.items():
        for kind, since in _change(verdicts, newest[0].started):
            rows[kind, since, check][node] = verdicts[-1].message
    numbers = [sum(len(nodes) for (kind, *_), nodes in rows.items() if kind == it) for it in _KINDS]
    shown = ", ".join(f"{number} {kind}" for number, kind in zip(numbers, _KINDS, strict=True))
    lines = [_line(*key, nodes, newest[0].started) for key, nodes in sorted(rows.items(), key=_order)]
    more = len(lines) - (MAX_LINES - 1)
    if more > 0:
        lines[MAX_LINES - 2 :] = [f"and {more + 1} more lines: gpucluster history NODE"]
    return [f"run {newest[0].run} of cluster {cluster}: {shown}", *lines]


def _change(verdicts: Sequence[_Verdict], newest: float) -> Iterator[tuple[str, float]]:
    """Yield what became of a check of a node, and since when it has failed."""
    *before, last = verdicts
    red = last.outcome in RED
    since = last.started
    for one in reversed(before):
        if one.outcome not in RED:
            break
        since = one.started
    failed_before = bool(before) and before[-1].outcome in RED
    if last.started < newest:
        yield from [("open", since)] if red else []
    elif red and not failed_before:
        yield "new", last.started
    elif red:
        # a history that was converted has no codes of earlier runs
        same = before[-1].outcome == last.outcome and before[-1].codes in (None, "", last.codes)
        yield ("open" if same else "changed"), since
    elif failed_before:
        yield "healed", since


def _order(row: tuple[tuple[str, float, str], dict[str, str]]) -> tuple[int, float, str]:
    (kind, since, check), _ = row
    return _KINDS.index(kind), since, check


def _line(kind: str, since: float, check: str, nodes: dict[str, str], now: float) -> str:
    age = f" for {format_duration(now - since)}" if since < now else ""
    where = f"{kind}{age}: {check} on {folded(one or CLUSTER for one in nodes)}"
    return one_line(where if kind == "healed" else f"{where}: {next(iter(nodes.values()))}", _MOST)
