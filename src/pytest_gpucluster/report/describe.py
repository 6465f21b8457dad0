"""Words and numbers of the reports for people. Pure."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.finding import summed
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.safe_json import as_dict, as_list, finite
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.proof import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.report.result import DeviatingVerdict
    from pytest_gpucluster.report.run_model import FailureGroup, Run

EXACT = 1e15  # below it a float holds every whole number
_PLACEHOLDER = re.compile(r"\bNODE\b(?! FAILURE)")  # Slurm prints DUE TO NODE FAILURE
TINY = 1e-300  # below it floats are subnormal: no power of ten is near


def labelled(cluster: object, *, simulated: bool) -> str:
    """Return the name of a cluster, marked where its hardware is simulated."""
    return f"{cluster} (SIMULATED)" if simulated else str(cluster)


def folded(nodes: Iterable[str]) -> str:
    """Write node names as Slurm does; what stands for the whole cluster keeps its name."""
    names = list(dict.fromkeys(nodes))
    real = [name for name in names if name != CLUSTER]
    parts = [hostlist.shown(real)] if real else []
    return " ".join(parts + ([CLUSTER] if len(real) < len(names) else []))


def on_request_line(event: Mapping[str, Any]) -> str:
    """Name what a `selection` event left out since it runs on request only; '' where there is nothing."""
    parts = []
    for mark, suites in as_dict(event.get("on_request")).items():
        checks = sum(int(finite(number) or 0) for number in as_dict(suites).values())
        parts.append(f"{count(checks, f'{mark} check')} (--{mark}): {', '.join(sorted(as_dict(suites)))}")
    parts += [f"suite {name} (-m {name})" for name in as_list(event.get("suites_on_request"))]
    return f"on request only: {'; '.join(parts)}" if parts else ""


def short(nodes: Collection[str], room: float) -> str:
    """Name nodes; count them where their names are longer than the room."""
    names = folded(nodes)
    return names if len(names) <= room or names == CLUSTER else counted(nodes)


def for_nodes(text: str, nodes: Iterable[str]) -> str:
    """Put nodes into a command of a hint, where they are the word NODE: Slurm's commands take a list of nodes."""
    names = [node for node in nodes if node != CLUSTER]
    return _PLACEHOLDER.sub(lambda _: hostlist.shown(names), text) if names else text


def to_do(group: FailureGroup) -> str:
    """Write the hint of a group for its nodes, and for its parts if they are those of each node."""
    parts = dict.fromkeys(row.found.part for row in group.rows.values())
    shared = parts if len(parts) == 1 or len(group.nodes) == 1 else ()
    return for_nodes(for_parts(group.hint, shared), group.nodes)


def counted(nodes: Iterable[str]) -> str:
    """Count node names: '12 nodes'; what stands for the whole cluster is no node."""
    names = set(nodes)
    return count(len(names - {CLUSTER}), "node")


def number(value: float | None, none: str = "-") -> str:
    """Write a number with four significant digits, whole numbers whole, `none` where there is no number."""
    if value is None:
        return none
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < EXACT else f"{value:.4g}"


def clock(time: Any, run: Run) -> str:
    """Write a time of an event in the zone of its run: 2026-11-21 02:00:13 +0100."""
    if not isinstance(time, (int, float)):
        return "not known"
    try:
        zone = dt.timezone(dt.timedelta(seconds=finite(run.start.get("utc_offset")) or 0.0))
        return dt.datetime.fromtimestamp(time, zone).strftime("%Y-%m-%d %H:%M:%S %z")
    except (OverflowError, ValueError, OSError):
        return "not known"


def round_up(value: float, steps: Sequence[float]) -> float:
    """Return the next of these steps times a power of ten: a round number to end an axis with."""
    if not math.isfinite(value) or value < TINY:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in steps if step * power >= value * 0.999_999)


_MOST_REMARKS = 50  # kinds of remarks of a check; events.jsonl has all


def remark_lines(run: Run) -> list[str]:
    """Return a line for each kind of remark of each check, the most frequent first: how often, where, and the text."""
    lines = []
    for check, texts in sorted(run.remarks.items()):
        known = sorted(texts.items(), key=lambda one: -one[1].count)
        lines += [
            f"note: {check} on {folded(sorted(noted.nodes))}: {count(noted.count, 'line')}: {text}"
            for text, noted in known[:_MOST_REMARKS]
        ]
        if rest := known[_MOST_REMARKS:]:
            lines.append(f"note: {check}: {len(rest)} more kinds: see events.jsonl")
    return lines


MAX_SHOWN = 20  # findings


def describe(verdict: Verdict | DeviatingVerdict, name: str, node: str) -> str:
    """Write a failed verdict of the check `name`: the first line says it all, the others what to do."""
    where = f" on {node}" if node else ""
    lines = [f"{name}{where}: {summed(verdict.findings)}", *_table(verdict)]
    if verdict.cause:
        lines.append(f"likely cause: {verdict.cause}")
    if verdict.hint:
        hint = for_parts(verdict.hint, [finding.part for finding in verdict.findings])
        lines.append(f"what to do:   {for_nodes(hint, [node] if node else [])}")
    lines.append(f"action:       {verdict.action.value}")
    lines += [f"warning:      {it.words}" for it in verdict.advisories[:MAX_SHOWN]]
    lines += _rest(verdict.advisories, "warnings")
    return "\n".join(lines)


def _table(verdict: Verdict | DeviatingVerdict) -> list[str]:
    findings = verdict.findings
    if len(findings) == 1:
        return []
    actions = [(finding.action or verdict.action).value for finding in findings]
    differ = len(set(actions)) > 1  # else the line below the table says it
    rows = [
        (finding.part, finding.measured, finding.expected, *([action] if differ else []))
        for finding, action in zip(findings, actions, strict=True)
    ]
    headers = ("part", "measured", "expected", *(["action"] if differ else []))
    table = tabulate(rows[:MAX_SHOWN], headers=headers, disable_numparse=True).splitlines()
    return [*table, *_rest(findings, "findings")]


def _rest(found: Sequence[object], what: str) -> list[str]:
    rest = len(found) - MAX_SHOWN
    return [f"... and {rest} more {what}"] if rest > 0 else []
