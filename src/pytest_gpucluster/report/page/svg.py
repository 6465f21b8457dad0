"""Inline SVG for the HTML report: the map of nodes, bandwidth curves, distributions. Pure; text is escaped.

Colours come from the page's style sheet by class, so that dark mode and print need no second drawing. No state is
shown by colour alone: each has its own shape.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.report.describe import round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Curve", "curves", "histogram", "node_map", "picture", "strip", "suite_map", "trend"]

_CROSSED = (
    "M0 0h10v10h-10zM2.2 3.4l1.6 1.6l-1.6 1.6l1.2 1.2l1.6-1.6l1.6 1.6l1.2-1.2"
    "l-1.6-1.6l1.6-1.6l-1.2-1.2l-1.6 1.6l-1.6-1.6z"
)
# state -> (class, path of its shape in a tile of 10 x 10)
SHAPES = {
    "passed": ("ok", "M2 2h6v6h-6z"),
    "failed": ("bad", _CROSSED),
    "error": ("err", "M5 0l5 10h-10z"),
    "not proved": ("err", "M5 0l5 5l-5 5l-5-5zM5 2.4l-2.6 2.6l2.6 2.6l2.6-2.6z"),
    "not tested": ("untested", "M1 1h8v8h-8zM2.4 2.4v5.2h5.2v-5.2z"),
    "not checked": ("unchecked", "M5 2a3 3 0 1 0 .01 0z"),
    "skipped": ("unchecked", "M5 2a3 3 0 1 0 .01 0z"),
    "waived": ("unchecked", "M2 2h6v6h-6zM3.4 3.4v3.2h3.2v-3.2z"),
    "not applicable": ("na", "M2 4.4h6v1.2h-6z"),
    "accepted": ("ok", "M5 0a5 5 0 1 0 .01 0zM4.3 7.6l-2.3-2.3l1-1l1.3 1.3l2.9-2.9l1 1z"),
    "": ("na", "M4.4 4.4h1.2v1.2h-1.2z"),
}  # fmt: skip
_MOVE = re.compile(r"M([\d.]+) ([\d.]+)")  # the begin of each part of a shape
MANY = 400  # nodes from here on stand 100 in a row
TILE = 12  # pixels from tile to tile
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 130, 24, 30
_BINS = 60
STEPS = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)  # an axis ends at one of these times a power of ten
MAX_LABEL = 40  # characters of a name beside its curve; a longer one is in the tooltip alone
_LABEL_GAP = 13  # pixels between two labels at the end of curves


@dataclass(frozen=True)
class Curve:
    """Points (size in bytes, GB/s) with a name; `mark` for one that stands apart."""

    name: str
    points: Sequence[tuple[int, float]]
    mark: bool = False


@dataclass
class _Plane:
    """From data to pixels: sizes by their logarithm, bandwidths from 0."""

    first: float
    last: float
    top: float
    right: int = 0  # room for the names of the curves

    @property
    def width(self) -> int:
        """The width of the whole picture."""
        return _WIDTH + self.right

    @property
    def edge(self) -> int:
        """Where the axes end."""
        return _WIDTH - _RIGHT

    def x(self, size: float) -> float:
        span = self.last - self.first
        share = (math.log2(size) - self.first) / span if span else 0.5
        return round(_LEFT + share * (self.edge - _LEFT), 1)

    def y(self, value: float) -> float:
        share = min(1.0, max(0.0, value / self.top))
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


# --- the map


def node_map(nodes: Sequence[str], state: Callable[[str], str], *, link: Callable[[str], str]) -> Markup:
    """Draw one tile a node in the order given; rows are labelled by their first node; red tiles link and are named."""
    columns = 100 if len(nodes) > MANY else 50
    rows = [nodes[at : at + columns] for at in range(0, len(nodes), columns)]
    gutter = 10 + 7.5 * max((len(row[0]) for row in rows), default=0)
    labels = [
        f'<text x="{gutter - 8:.0f}" y="{line * TILE + 10}" class="t name end">{escape(row[0])}</text>'
        for line, row in enumerate(rows)
    ]
    tiles = _tiles(
        _Tile(node, state(node), (round(gutter + column * TILE + 1), line * TILE + 1), link(node))
        for line, row in enumerate(rows)
        for column, node in enumerate(row)
    )
    width = gutter + min(columns, max(1, len(nodes))) * TILE
    return picture(width, len(rows) * TILE + 2, f"map of {len(nodes)} nodes", [*labels, *tiles])


def suite_map(
    nodes: Sequence[str], suites: Sequence[str], state: Callable[[str, str], str], *, link: Callable[[str, str], str]
) -> Markup:
    """Draw a line of tiles per suite and a column per node, like the map of nodes; the first and last node are labels."""
    gutter = 10 + 7.5 * max(map(len, suites), default=0)
    first, last = nodes[0], nodes[-1]
    width = gutter + max(len(nodes) * TILE, 7.5 * len(first))
    labels = [f'<text x="{gutter + 1:.0f}" y="11" class="t name">{escape(first)}</text>']
    if len(nodes) * TILE > 7.5 * (len(first) + len(last)) + TILE:
        labels.append(f'<text x="{width:.0f}" y="11" class="t name end">{escape(last)}</text>')
    labels += [
        f'<text x="{gutter - 8:.0f}" y="{line * TILE + 14}" class="t name end">{escape(suite)}</text>'
        for line, suite in enumerate(suites, 1)
    ]
    tiles = _tiles(
        _Tile(
            f"{node} {suite}",
            state(node, suite),
            (round(gutter + column * TILE + 1), line * TILE + 5),
            link(node, suite),
        )
        for line, suite in enumerate(suites, 1)
        for column, node in enumerate(nodes)
    )
    height = (len(suites) + 1) * TILE + 6
    return picture(width, height, f"map of {len(nodes)} nodes by {len(suites)} suites", [*labels, *tiles])


class _Tile(NamedTuple):
    name: str
    state: str
    position: tuple[int, int]
    href: str


def _tiles(tiles: Iterable[_Tile]) -> list[str]:
    """Draw tiles: one path for all of a state, and one with name and link for each that needs attention."""
    paths: dict[str, list[str]] = {}
    named: list[str] = []
    for tile in tiles:
        css_class, shape = SHAPES.get(tile.state, SHAPES[""])
        x, y = tile.position
        if tile.state not in ("failed", "error", "not tested"):
            paths.setdefault(css_class, []).append(_moved(shape, x, y))
            continue
        path = (
            f'<path class="{css_class}" transform="translate({x} {y})" fill-rule="evenodd" d="{shape}">'
            f"<title>{escape(tile.name)}: {escape(tile.state)}</title></path>"
        )
        named.append(f'<a href="{escape(tile.href)}">{path}</a>' if tile.href else path)
    plain = (
        f'<path class="{css_class}" fill-rule="evenodd" d="{"".join(found)}"/>' for css_class, found in paths.items()
    )
    return [*plain, *named]


def _moved(shape: str, x: int, y: int) -> str:
    return _MOVE.sub(lambda at: f"M{x + float(at[1]):g} {y + float(at[2]):g}", shape)


# --- curves


def curves(
    shown: Sequence[Curve],
    *,
    title: str,
    bounds: Mapping[int, float] | None = None,
    band: Sequence[tuple[int, float, float]] = (),
) -> Markup:
    """Draw bandwidth by size. `band` is (size, low, high) of the fleet; a bound is a bar at its size."""
    bounds = {size: value for size, value in (bounds or {}).items() if size > 0}
    curves = [Curve(one.name, [p for p in one.points if p[0] > 0], one.mark) for one in shown]
    curves = [one for one in curves if one.points]
    band = [position for position in band if position[0] > 0]
    sizes = [size for one in curves for size, _ in one.points] + [size for size, *_ in band]
    if not sizes:
        return Markup()
    values = [v for one in curves for _, v in one.points] + [high for *_, high in band] + [*bounds.values()]
    longest = max((len(one.name) for one in curves if len(one.name) <= MAX_LABEL), default=0)
    right = max(0, round(6.5 * longest) + 10 - _RIGHT)
    plane = _Plane(math.log2(min(sizes)), math.log2(max(sizes)), round_up(max(values), STEPS), right)
    parts = [*_axes(plane, sorted(set(sizes)))]
    if band:
        edge = [(plane.x(s), plane.y(high)) for s, _, high in band]
        edge += [(plane.x(s), plane.y(low)) for s, low, _ in reversed(band)]
        parts.append(f'<path class="band" d="M{" L".join(f"{x} {y}" for x, y in edge)}z"/>')
    parts += [line for one in sorted(curves, key=lambda one: one.mark) for line in _line(plane, one, bounds)]
    for size, bound in bounds.items():
        if min(sizes) <= size <= max(sizes):
            x, y = plane.x(size), plane.y(bound)
            parts.append(
                f'<path class="bound" d="M{x - 9} {y}h18"><title>bound {bound:.4g} GB/s at {format_size(size)}'
                "</title></path>"
            )
    parts += _names(plane, curves)
    return picture(plane.width, _HEIGHT, title, parts)


def _line(plane: _Plane, one: Curve, bounds: Mapping[int, float]) -> Iterable[str]:
    path = " L".join(f"{plane.x(size)} {plane.y(value)}" for size, value in one.points)
    yield f'<path class="{"line mark" if one.mark else "line"}" d="M{path}"><title>{escape(one.name)}</title></path>'
    for size, value in one.points:
        low = size in bounds and value < bounds[size]
        if low or len(one.points) == 1:
            x, y = plane.x(size), plane.y(value)
            shape = f"M{x} {y + 5}l-5 -9h10z" if low else f"M{x - 2} {y - 2}h4v4h-4z"
            label = f"{escape(one.name)}: {value:.4g} GB/s at {format_size(size)}"
            label += f", below {bounds[size]:.4g}" if low else ""
            yield f'<path class="{"low" if low else "dot"}" d="{shape}"><title>{label}</title></path>'


def _names(plane: _Plane, curves: Sequence[Curve]) -> Iterable[str]:
    """Name curves at their right end, apart from each other; what finds no room keeps its tooltip."""
    floor = _HEIGHT - _BOTTOM + 8.0
    taken: list[float] = []
    for one in sorted(curves, key=lambda one: (not one.mark, -one.points[-1][1])):
        if not 0 < len(one.name) <= MAX_LABEL:
            continue
        size, value = one.points[-1]
        y = plane.y(value) + 4
        while any(abs(y - other) < _LABEL_GAP for other in taken) and y < floor:
            y += 2
        if y >= floor:
            continue
        taken.append(y)
        css_class = "t mark" if one.mark else "t"
        yield f'<text x="{plane.x(size) + 7}" y="{y:.0f}" class="{css_class}">{escape(one.name)}</text>'


def _axes(plane: _Plane, sizes: Sequence[int]) -> Iterable[str]:
    for step in range(5):
        value = plane.top * step / 4
        y = plane.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y}H{plane.edge}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" class="t end">{value:.4g}</text>'
    yield f'<text x="{_LEFT - 6}" y="10" class="t end">GB/s</text>'
    last = -math.inf
    for size in sizes:
        x = plane.x(size)
        if x - last >= 64:  # room for a label
            yield f'<text x="{x}" y="{_HEIGHT - 10}" class="t mid">{format_size(size)}</text>'
            last = x


# --- distributions


def strip(
    values: Sequence[float], outliers: Sequence[float] = (), bounds: Sequence[float] = (), *, title: str = ""
) -> Markup:
    """Draw a distribution in one line: range, middle half, median, bounds, and what stands apart as diamonds."""
    ends = [*values, *bounds]
    low, span = min(ends), max(ends) - min(ends)
    width, middle = 200, 9

    def x(value: float) -> float:
        return round(6 + ((value - low) / span if span else 0.5) * (width - 12), 1)

    inside = sorted(values)
    parts = [f'<path class="range" d="M{x(inside[0])} {middle}H{x(inside[-1])}"/>']
    if len(inside) >= 4:  # quartiles of fewer say nothing
        first, _, third = statistics.quantiles(inside, n=4, method="inclusive")
        box = max(1.0, x(third) - x(first))
        parts.append(f'<rect class="box" x="{x(first)}" y="{middle - 5}" width="{box:.1f}" height="10"/>')
    else:
        parts += [f'<circle class="dot" cx="{x(value)}" cy="{middle}" r="2.5"/>' for value in inside]
    parts.append(f'<path class="median" d="M{x(statistics.median(inside))} {middle - 7}v14"/>')
    parts += [f'<path class="bound" d="M{x(bound)} {middle - 8}v16"/>' for bound in bounds]
    positions = dict.fromkeys(x(value) for value in outliers)
    parts += [f'<path class="low" d="M{position - 4} {middle}l4 -4l4 4l-4 4z"/>' for position in positions]
    return picture(width, 2 * middle, title, parts)


def trend(values: Sequence[float | None], *, title: str) -> Markup:
    """Draw the values of the last runs, the last as a diamond; dashed: the median of those before it; a gap: no number."""
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return Markup()  # a level line says nothing
    low, span = min(known), max(known) - min(known)
    width, height = 150, 26

    def at(index: int, value: float) -> str:
        share = (value - low) / span
        return f"{6 + index * (width - 12) / (len(values) - 1):.1f} {height - 5 - share * (height - 10):.1f}"

    before = [value for value in values[:-1] if value is not None]
    level = at(0, statistics.median(before)).partition(" ")[2] if before else ""
    parts = [f'<path class="grid" stroke-dasharray="3 3" d="M4 {level}H{width - 4}"/>'] if level else []
    steps = zip(values, (None, *values[:-1]), strict=True)
    line = "".join(
        f"{'L' if earlier is not None else 'M'}{at(index, value)}"
        for index, (value, earlier) in enumerate(steps)
        if value is not None
    )
    parts.append(f'<path class="line" d="{line}"/>')
    if values[-1] is not None:
        parts.append(f'<path class="low" d="M{at(len(values) - 1, values[-1])}m-4 0l4 -4l4 4l-4 4z"/>')
    return picture(width, height, title, parts)


@dataclass
class _Bins:
    """Values sorted into bins of one width, so that no bin reaches over the bound."""

    low: float
    wide: float
    counts: list[int]
    apart: list[int]

    @classmethod
    def of(cls, values: Sequence[float], outliers: Sequence[float], bounds: Sequence[float]) -> _Bins:
        ends = [*values, *bounds]
        low, high = min(ends), max(ends)
        wide = (high - low) / _BINS
        if bounds:
            low = bounds[0] - math.ceil((bounds[0] - low) / wide - 1e-9) * wide
        number = math.floor((high - low) / wide + 1e-9) + 1
        bins = cls(low, wide, [0] * number, [0] * number)
        for into, found in ((bins.counts, values), (bins.apart, outliers)):
            for value in found:
                into[max(0, math.floor((value - low) / wide + 1e-9))] += 1
        return bins

    @property
    def high(self) -> float:
        return self.low + len(self.counts) * self.wide


def histogram(
    values: Sequence[float], outliers: Sequence[float], bounds: Sequence[float], *, unit: str, title: str
) -> Markup:
    """Draw how many nodes measured what. Over bars with outliers stands a diamond, beside their colour."""
    if min(*values, *bounds) == max(*values, *bounds):
        return Markup()
    bins = _Bins.of(values, outliers, bounds)
    width, height, left, foot = _WIDTH - 100, 130, 44, 24

    def across(value: float) -> float:
        return round(left + (value - bins.low) / (bins.high - bins.low) * (width - left - 10), 1)

    parts = [
        f'<path class="grid" d="M{left} {height - foot}H{width - 10}"/>',
        f'<text x="{left - 6}" y="14" class="t end">{max(bins.counts)}</text>',
        f'<text x="{left - 6}" y="{height - foot + 4}" class="t end">0</text>',
    ]
    for index, count in enumerate(bins.counts):
        if count:
            begin = bins.low + index * bins.wide
            bar = max(2.0, count / max(bins.counts) * (height - foot - 14))
            label = escape(f"{count} from {begin:.4g} to {begin + bins.wide:.4g} {unit}")
            parts += _bar(
                across(begin), across(begin + bins.wide), height - foot, bar, apart=bins.apart[index] > 0, label=label
            )  # fmt: skip
    parts += [f'<path class="bound" d="M{across(bound)} 6V{height - foot}"/>' for bound in bounds]
    for share, anchor in ((0, ""), (0.25, " mid"), (0.5, " mid"), (0.75, " mid"), (1, " end")):
        value = bins.low + (bins.high - bins.low) * share
        shown = f"{value:.4g} {escape(unit)}" if share == 1 else f"{value:.4g}"
        parts.append(f'<text x="{across(value):.0f}" y="{height - 8}" class="t{anchor}">{shown}</text>')
    return picture(width, height, title, parts)


def _bar(begin: float, end: float, floor: float, bar: float, *, apart: bool, label: str) -> Iterable[str]:
    css_class = "bar apart" if apart else "bar"
    size = f'width="{end - begin - 1:.1f}" height="{bar:.1f}"'
    yield f'<rect class="{css_class}" x="{begin}" y="{floor - bar:.1f}" {size}><title>{label}</title></rect>'
    if apart:
        yield f'<path class="low" d="M{(begin + end) / 2 - 4:.1f} {floor - bar - 7:.1f}l4 -4l4 4l-4 4z"/>'


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> Markup:
    """Return a picture whose title is read to those who do not see it."""
    head = (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(title)}">'
    )
    return Markup(head + "".join(parts) + "</svg>")  # every text in it went through escape()
