"""The picture of the fabric for the HTML report: slow links by both ends, slow leaf switches, what is undecided. Pure.

It is made from the findings of nccl.links, whose localisation names them. The leaf switches are Slurm's. A leaf without a
finding is counted, not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pytest_gpucluster.report.describe import folded
from pytest_gpucluster.report.page import svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.report.run_model import FailureGroup, Run

CHECKS = ("nccl.links", "ibfabric.")  # a bad uplink explains a slow leaf: both are one finding
MAX_LINKS = 40
MAX_LEAVES = 12
MAX_NODES = 50  # of a leaf that are drawn; the ends of links first
IN_ROW, LEAST, PITCH, LEFT, LINE = 25, 14, 24, 12, 44  # nodes of a line; pixels
UNKNOWN = "leaf switch not known"


@dataclass
class _Bad:
    """What the findings name, with the measured values."""

    links: dict[tuple[str, str], str] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)  # ends of links, and candidates of what is undecided
    rows: list[dict[str, Any]] = field(default_factory=list)


def fabric(run: Run, anchors: Mapping[int, str]) -> dict[str, Any] | None:
    """Return picture and rows (number, kind, where, measured, anchor) of what is slow between nodes; None if nothing is."""
    bad = _Bad()
    for group in run.groups.values():
        if group.check.startswith(CHECKS):
            for row in _read(bad, group):
                bad.rows.append({**row, "anchor": anchors[id(group)]})
    if not bad.rows:
        return None
    members: dict[str, list[str]] = defaultdict(list)
    for node in dict.fromkeys((*run.selected, *sorted(bad.nodes))):
        switch = run.places[node].switch if node in run.places else ""
        if switch or node in bad.nodes:  # without Slurm's topology the ends alone are drawn
            members[switch or UNKNOWN].append(node)
    marked = [leaf for leaf, nodes in members.items() if leaf in bad.leaves or bad.nodes & set(nodes)]
    shown = {leaf: members[leaf] for leaf in marked[:MAX_LEAVES]}
    return {
        "rows": bad.rows[:MAX_LINKS],
        "more": max(0, len(bad.rows) - MAX_LINKS),
        "picture": _picture(shown, bad) if shown else Markup(),
        "others": len(members) - len(shown),
    }


def _read(bad: _Bad, group: FailureGroup) -> Iterator[dict[str, Any]]:
    for row in group.rows.values():
        part, measured = row.found.part, str(row.found.measured)
        shown: dict[str, Any] = {"number": "", "where": part.name, "measured": measured}
        if part.kind == "pair" and len(part.nodes) == 2:
            one, other = part.nodes
            shown |= {"number": len(bad.links) + 1, "kind": "slow link", "where": f"{one} \N{EN DASH} {other}"}
            bad.links[one, other] = measured
        elif part.kind == "leaf":
            shown["kind"] = "slow leaf switch"
            bad.leaves[part.name] = measured
        elif part.kind == "group":
            shown["kind"] = "one of"
        else:
            continue
        bad.nodes |= set(part.nodes)
        yield shown


def _picture(leaves: Mapping[str, Sequence[str]], bad: _Bad) -> Markup:
    """Draw the leaves with their nodes, and a bow from end to end of each slow link."""
    parts: list[str] = []
    position: dict[str, tuple[int, int]] = {}
    y, most = 0, max(map(len, leaves.values()))
    width = 2 * LEFT + max(LEAST, min(IN_ROW, most)) * PITCH
    for leaf, members in leaves.items():
        chosen = set(sorted(members, key=lambda node: node not in bad.nodes)[:MAX_NODES])
        nodes = [node for node in members if node in chosen]
        lines = -(-len(nodes) // IN_ROW)
        parts.append(_leaf(leaf, members, (width, y), lines, bad.leaves.get(leaf)))
        for number, node in enumerate(nodes):
            at = position[node] = (LEFT + 6 + number % IN_ROW * PITCH, y + 34 + number // IN_ROW * LINE)
            parts.append(_node(node, at, is_bad=node in bad.nodes))
        y += 34 + lines * LINE
    for number, ((one, other), measured) in enumerate(list(bad.links.items())[:MAX_LINKS], 1):
        if one in position and other in position:
            parts += _link(number, f"{one} - {other}: {measured}", position[one], position[other])
    words = [f"slow link {one} - {other}" for one, other in bad.links] + [f"slow leaf switch {it}" for it in bad.leaves]
    return svg.picture(width, y, f"fabric: {', '.join(words[:MAX_LINKS]) or 'undecided'}", parts)


def _leaf(leaf: str, nodes: Sequence[str], at: tuple[int, int], lines: int, slow: str | None) -> str:
    kind, title = ("part bad", f"<title>{escape(slow)}</title>") if slow is not None else ("part", "")
    name = f"{leaf}{': slow' * (slow is not None)} ({folded([nodes[0], nodes[-1]]) if len(nodes) < 3 else f'{nodes[0]} to {nodes[-1]}'})"
    (width, y), height = at, 26 + lines * LINE
    return (
        f'<g>{title}<rect class="{kind}" x="1" y="{y + 1}" width="{width - 2}" height="{height}"/>'
        f'<text x="{LEFT}" y="{y + 17}" class="t name">{escape(name)}</text></g>'
    )


def _node(node: str, at: tuple[int, int], *, is_bad: bool) -> str:
    x, y = at
    shape = f"M{x - 6} {y - 6}h12v12h-12z" if is_bad else f"M{x - 4} {y - 4}h8v8h-8z"
    return f'<path class="part{" bad" * is_bad}" d="{shape}"><title>{escape(node)}</title></path>'


def _link(number: int, text: str, one: tuple[int, int], other: tuple[int, int]) -> Iterator[str]:
    """Draw a bow below the nodes between its ends, and its number in the middle."""
    (x, y), (to_x, to_y) = sorted((one, other))
    low = max(y, to_y) + (34 if y == to_y else 6)
    middle = ((x + 2 * (x + to_x) / 2 + to_x) / 4, (y + 2 * low + to_y) / 4)
    yield (
        f'<path class="link" d="M{x} {y + 6}Q{(x + to_x) / 2:.0f} {low} {to_x} {to_y + 6}"><title>{escape(text)}</title></path>'
        f'<text x="{middle[0]:.0f}" y="{middle[1] + 14:.0f}" class="t mid mark">{number}</text>'
    )
