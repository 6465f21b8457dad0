"""What the terminal shows last: equal failures as one block, the verdict, and what to do. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.report.describe import folded, for_nodes, short, to_do
from pytest_gpucluster.report.verdict import judge, ordered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.report.run_model import FailureGroup, FindingRow, Run
HEIGHT = 25  # lines of the verdict and its table, for any number of nodes
MAX_FINDINGS = 4  # lines of one block
MAX_VALUES = 3  # of what is no number
MAX_WAIVERS = 5
NODES_SHARE = 0.24  # of the width, at most, for names of nodes; more of them are counted
MAX_LINES = 2  # of one finding
NARROWEST = 20  # columns for a finding beside its check


def where(group: FailureGroup) -> str:
    """Write where a group failed: 'gpu01', or '6 nodes: gpu[01-06]'."""
    nodes = folded(group.nodes)
    return f"{len(group.nodes)} nodes: {nodes}" if len(group.nodes) > 1 else nodes


def findings(group: FailureGroup, *, brief: bool = False) -> list[str]:
    """Write the deviations of a group: one text per kind of part and expectation, with the range of measured values.

    `brief`: a GPU without its UUID, and without the word for what was measured.
    """
    alike: dict[tuple[object, ...], list[FindingRow]] = {}
    for row in group.rows.values():
        found = row.found
        of = found.part.of.likeness if found.part.of else ()
        alike.setdefault((found.code, found.part.likeness, of, str(found.expected)), []).append(row)
    texts = []
    for (*_, expected), rows in alike.items():
        part = _several([row.found.part.brief if brief else str(row.found.part) for row in rows])
        measured = _values([row.found.measured for row in rows])
        text = (
            f"{part}: {'' if brief else 'measured '}{measured}, expected {expected}"
            if part
            else for_nodes(measured, group.nodes)
        )
        nodes = dict.fromkeys(node for row in rows for node in row.nodes)
        texts.append(text if len(nodes) == len(group.nodes) else f"{text} ({folded(nodes)})")
    return texts


def block(group: FailureGroup, rerun: str) -> list[str]:
    """Return the lines of equal failures of several nodes. `rerun`: the command that repeats them all."""
    first, *others = findings(group) or [""]
    more = len(others) - MAX_FINDINGS
    lines = [f"{group.check} on {where(group)}: {first}", *others[:MAX_FINDINGS]]
    lines += [f"and {more} more kinds of findings: see report.html"] if more > 0 else []
    lines += [f"likely cause: {group.cause}"] if group.cause else []
    lines += [f"what to do:   {to_do(group)}"] if group.hint else []
    lines += [f"action:       {group.action}"] if group.action else []
    lines += [
        f"Slurm state: {state}" + (f" ({folded(nodes)})" if len(nodes) < len(group.nodes) else "")
        for state, nodes in list(group.slurm.items())[:MAX_FINDINGS]
    ]
    node = group.example["node"]
    lines += [f"reproduce:    {command}  # on {node}" for command in group.example["by_hand"][:1]]
    return [*lines, f"rerun:        {rerun}"]


def closing(run: Run, width: int, height: int = HEIGHT) -> list[str]:
    """Return the verdict, the counts of nodes, and a table of what to do, in at most `height` lines."""
    judged = judge(run)
    sentence = " ".join(judged.sentences)
    lines = [*textwrap.wrap(f"{judged.title.upper()}: {judged.nodes}. {sentence}", width), counts(run)]
    for text in judged.waivers[:MAX_WAIVERS]:
        lines += textwrap.wrap(f"- waived: {text}", width, subsequent_indent="  ")
    if more := judged.waivers[MAX_WAIVERS:]:
        lines.append(f"- waived: {len(more)} more: see report.html")
    groups = ordered(run)
    if groups:
        lines += ["", *_table(groups, width, height - len(lines) - 1)]
    return lines


def colour_of(outcome: str) -> str:
    """Return the colour of the line with the verdict."""
    return {"rejected": "red", "unproved": "yellow"}.get(outcome, "green")


def counts(run: Run) -> str:
    """Count the selected nodes by their state; the counts add up to all of them."""
    found = run.proofs.counts
    shown = (f"{number:,} {state}" for state, number in found.items())
    return f"{count(sum(found.values()), 'node')}: {', '.join(shown)}"


def _table(groups: Sequence[FailureGroup], width: int, height: int) -> list[str]:
    """Return the findings below their actions, the hardest first, a line or two for each."""
    names = [short(group.nodes, width * NODES_SHARE) for group in groups]
    wide, check = max(map(len, names)), max(len(group.check) for group in groups)
    lines: list[str] = []
    heading = ""
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        action = (group.action if group.outcome == "failed" else "") or "inspect"
        row = [] if action == heading else [f"{action}:"]
        row += _row(f"  {name:{wide}}  {group.check:{check}}  ", group, width)
        if len(lines) + len(row) > height - (number < len(groups) - 1):
            nodes = {node for group in groups[number:] for node in group.nodes}
            more = count(len(groups) - number, "more finding")
            return [*lines, f"and {more} on {count(len(nodes), 'node')}: see report.html"]
        lines += row
        heading = action
    return lines


def _row(begin: str, group: FailureGroup, width: int) -> list[str]:
    """Write one finding behind the names of its nodes and its check; below them where these are long."""
    room = width - len(begin)
    text = _finding(group, room)
    if room < NARROWEST:
        return textwrap.wrap(f"{begin.strip()}: {text}", width, initial_indent="  ", subsequent_indent="    ")
    lines = textwrap.wrap(text, room, max_lines=MAX_LINES, placeholder=" ...", break_on_hyphens=False) or [""]
    return [(begin + lines[0]).rstrip(), *(" " * len(begin) + line for line in lines[1:])]


def _finding(group: FailureGroup, room: int) -> str:
    """Write the first finding of a group on one line where that can be: the cause goes first."""
    first, *others = findings(group, brief=True) or [""]
    text = first + f" (and {len(others)} more)" * bool(others)
    whole = f"{first}; {group.cause}" + f" (and {len(others)} more)" * bool(others)
    return whole if group.cause and len(whole) <= room else text


def _several(texts: Sequence[str]) -> str:
    known = list(dict.fromkeys(texts))
    return some(known, MAX_VALUES) if any(known) else ""


def _values(measured: Sequence[Measure]) -> str:
    """Write measured values: one, the range of quantities of one unit, or some of them."""
    known = sorted({one for one in measured if isinstance(one, Quantity)}, key=lambda one: one.number)
    if len(known) < 2 or len(known) < len(set(measured)) or len({one.unit for one in known}) > 1:
        return _several([str(one) for one in measured])
    return f"{known[0].number:g} to {Quantity(known[-1].number, known[-1].unit)}"
