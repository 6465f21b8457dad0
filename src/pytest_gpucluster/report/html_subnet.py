"""The picture of the InfiniBand subnet for the HTML report: switches by level, links by their state. Pure.

It is made from what the suite ibfabric records (its picture.py). Hosts are counted at their leaf, not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from pytest_gpucluster.core.safe_json import as_list, finite, text
from pytest_gpucluster.report import svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_SWITCHES, MOST_LINKS = 64, 4096
PITCH, LEVEL, SIDE, LEFT, TOP = 44, 110, 14, 60, 26  # pixels
NAMED, MOST_NAME = 16, 14  # switches of a level whose names fit, and characters of a name


class _Switch(NamedTuple):
    """A switch. hosts: HCAs at it; wrong: '' for nothing."""

    name: str
    level: int
    hosts: int
    wrong: str


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


def _switch(row: Any) -> _Switch:
    name, level, hosts, wrong = (*as_list(row), "", 0, 0, "")[:4]
    return _Switch(text(name), min(9, max(0, _number(level))), _number(hosts), text(wrong))


def _number(value: Any) -> int:
    found = finite(value)
    return -1 if found is None else int(found)


def _lines(
    links: Sequence[Any], switches: Sequence[_Switch], at: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[bool, str]]:
    """Yield whether a connection is bad, and its line; links between the same two switches are one."""
    for row in links:
        *numbers, wrong = (*as_list(row), None, None, None, "")[:4]
        one, other, count = map(_number, numbers)
        if one not in at or other not in at:
            continue
        (x, y), (to_x, to_y) = at[one], at[other]
        words = f"{switches[one].name} - {switches[other].name}, {count} links"
        title = escape(f"{words}: {text(wrong)}" if wrong else words)
        kind = "link" if wrong else "grid"
        yield bool(wrong), f'<path class="{kind}" d="M{x} {y}L{to_x} {to_y}"><title>{title}</title></path>'


def _drawn(switch: _Switch, at: tuple[int, int], below: int, *, named: bool) -> Iterator[str]:
    """Draw a switch with its name `below` it, in pixels."""
    (x, y), half = at, SIDE // 2
    kind = "part bad" if switch.wrong else "part"
    words = f"{switch.name}, {switch.hosts} HCAs" if switch.hosts > 0 else switch.name
    title = escape(f"{words}: {switch.wrong}" if switch.wrong else words)
    size = f'width="{SIDE}" height="{SIDE}"'
    yield f'<rect class="{kind}" x="{x - half}" y="{y - half}" {size}><title>{title}</title></rect>'
    if named or switch.wrong:
        mark = " mark" if switch.wrong else ""
        yield f'<text x="{x}" y="{y + below}" class="t mid{mark}">{escape(switch.name[:MOST_NAME])}</text>'
