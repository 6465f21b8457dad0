"""The picture of the InfiniBand subnet for the HTML report: switches by level, links by their state. Pure.

It is made from what the suite ibfabric records (its picture.py). Hosts are counted at their leaf, not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from pytest_gpucluster.core.safe_json import as_list, finite, text
from pytest_gpucluster.report.page import svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_SWITCHES, MOST_LINKS = 64, 4096
PITCH, LEVEL, SIDE, LEFT, TOP = 44, 110, 14, 60, 26  # pixels
NAMED, MOST_NAME = 16, 14  # switches of a level whose names fit, and characters of a name


# kind of what is wrong -> what the legend says of it; each has a dash of its own in report.css
KINDS = {
    "bad": "fault of a link, or uplinks missing",
    "swapped": "cables swapped",
    "missing": "planned cable is not there",
    "misplaced": "cable at another port, or at another rail",
}
LEGEND, LEGEND_WIDTH = 18, 364  # pixels: height and width of a line

_NO_LINK = (None, None, None, "", "")


class _Switch(NamedTuple):
    """A switch. hosts: HCAs at it; wrong: '' for nothing; kind: one of KINDS."""

    name: str
    level: int
    hosts: int
    wrong: str
    kind: str


def subnet(found: Mapping[str, Any]) -> Markup:
    """Draw the switches and links that an event holds; empty if it holds none, or what cannot be read."""
    switches = [_switch(row) for row in as_list(found.get("switches"))][:MOST_SWITCHES]
    if not switches:
        return Markup()
    levels: defaultdict[int, list[int]] = defaultdict(list)
    for number in sorted(range(len(switches)), key=lambda number: switches[number].name):
        levels[switches[number].level].append(number)
    width = 2 * LEFT + PITCH * max(map(len, levels.values()))
    rows = [row for _, row in sorted(levels.items(), reverse=True)]
    at = {
        number: (round((place + 0.5) * width / len(row)), TOP + LEVEL * line)
        for line, row in enumerate(rows)
        for place, number in enumerate(row)
    }
    # bad ones are above the others
    lines = sorted(_lines(as_list(found.get("links"))[:MOST_LINKS], switches, at))
    parts = [line for _, line in lines]
    for row in rows:
        for place, number in enumerate(row):
            below = SIDE + 6 + 12 * (place % 2) if row is rows[-1] else 2 - SIDE
            parts += _drawn(switches[number], at[number], below, named=len(row) <= NAMED)
    bad = sum(is_bad for is_bad, _ in lines)
    title = f"InfiniBand subnet: {len(switches)} switches, {bad} of {len(lines)} connections with a finding"
    return svg.picture(width, TOP + LEVEL * (len(rows) - 1) + 3 * SIDE + 18, title, parts)


def legend(found: Mapping[str, Any]) -> Markup:
    """Explain the kinds of findings that the picture has, apart from it: it may be wider than the screen."""
    rows = [_switch(row) for row in as_list(found.get("switches"))[:MOST_SWITCHES]]
    lines = [_filled(row, _NO_LINK) for row in as_list(found.get("links"))[:MOST_LINKS]]
    drawn = {row.kind for row in rows if row.wrong} | {_kind(row[4]) for row in lines if row[3]}
    kinds = [kind for kind in KINDS if kind in drawn]
    parts = [part for number, kind in enumerate(kinds) for part in _explained(kind, LEGEND * number + 14)]
    return svg.picture(LEGEND_WIDTH, LEGEND * len(kinds) + 4, "what the lines mean", parts) if kinds else Markup()


def _switch(row: Any) -> _Switch:
    name, level, hosts, wrong, kind = _filled(row, ("", 0, 0, "", ""))
    return _Switch(text(name), min(9, max(0, _number(level))), _number(hosts), text(wrong), _kind(kind))


def _filled(row: Any, otherwise: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row, those that a damaged log lacks as `otherwise`."""
    known = as_list(row)[: len(otherwise)]
    return (*known, *otherwise[len(known) :])


def _kind(value: Any) -> str:
    return value if isinstance(value, str) and value in KINDS else "bad"


def _number(value: Any) -> int:
    found = finite(value)
    return -1 if found is None else int(found)


def _lines(
    links: Sequence[Any], switches: Sequence[_Switch], at: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[bool, str]]:
    """Yield whether a connection is bad, and its line; links between the same two switches are one."""
    for row in links:
        *numbers, wrong, kind = _filled(row, _NO_LINK)
        one, other, count = map(_number, numbers)
        if one not in at or other not in at:
            continue
        (x, y), (to_x, to_y) = at[one], at[other]
        words = f"{switches[one].name} - {switches[other].name}, {max(0, count)} links"
        title = escape(f"{words}: {text(wrong)}" if wrong else words)
        drawn = f"link {_kind(kind)}" if wrong else "grid"
        yield bool(wrong), f'<path class="{drawn}" d="M{x} {y}L{to_x} {to_y}"><title>{title}</title></path>'


def _drawn(switch: _Switch, at: tuple[int, int], below: int, *, named: bool) -> Iterator[str]:
    """Draw a switch with its name `below` it, in pixels."""
    (x, y), half = at, SIDE // 2
    kind = f"part {switch.kind}" if switch.wrong else "part"
    words = f"{switch.name}, {switch.hosts} HCAs" if switch.hosts > 0 else switch.name
    title = escape(f"{words}: {switch.wrong}" if switch.wrong else words)
    size = f'width="{SIDE}" height="{SIDE}"'
    yield f'<rect class="{kind}" x="{x - half}" y="{y - half}" {size}><title>{title}</title></rect>'
    if named or switch.wrong:
        mark = " mark" if switch.wrong else ""
        yield f'<text x="{x}" y="{y + below}" class="t mid{mark}">{escape(switch.name[:MOST_NAME])}</text>'


def _explained(kind: str, y: int) -> Iterator[str]:
    """Draw a line of the legend."""
    yield f'<path class="link {kind}" d="M2 {y - 4}h40"/>'
    yield f'<rect class="part {kind}" x="52" y="{y - 11}" width="{SIDE}" height="{SIDE}"/>'
    yield f'<text x="76" y="{y}" class="t">{KINDS[kind]}</text>'
