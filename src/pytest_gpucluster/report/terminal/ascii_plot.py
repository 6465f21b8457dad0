"""A bandwidth curve for the terminal: points -> lines of text. Pure.

The size axis is logarithmic (base 2), the bandwidth axis starts at 0 GB/s. Unicode marks where the terminal can
show them, else plain ASCII. A threshold is drawn as a bar at its size; a point below it is marked.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.report.describe import round_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MIN_WIDTH", "draw", "fits"]

MIN_WIDTH = 30
_MIN_HEIGHT = 3
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # the axis ends at one of these times a power of ten
_GAP = 4  # columns between two size labels, at least
_UNICODE = {"line": "·", "point": "●", "low": "▼", "bound": "━", "axis": "│", "corner": "└", "base": "─", "tick": "┬"}
_ASCII = {"line": ".", "point": "o", "low": "X", "bound": "=", "axis": "|", "corner": "+", "base": "-", "tick": "+"}


def fits(width: int) -> bool:
    """Return True where a curve can be drawn in `width` columns."""
    return width >= MIN_WIDTH


def draw(
    points: Iterable[tuple[int, float]],
    *,
    width: int = 80,
    height: int = 13,
    thresholds: Mapping[int, float] | None = None,
    unicode: bool = True,
    title: str = "",
) -> list[str]:
    """Draw (size in bytes, GB/s) points, no line longer than `width`; [] where nothing can be drawn.

    Sizes of 0 and values that are not finite are left out. `thresholds` is {size: lowest accepted GB/s}.
    """
    bounds = {size: bound for size, bound in (thresholds or {}).items() if size > 0 and math.isfinite(bound)}
    known = sorted((size, value) for size, value in points if size > 0 and math.isfinite(value) and value >= 0)
    if not known or not fits(width):
        return []
    marks = _UNICODE if unicode else _ASCII
    top = round_up(max([value for _, value in known] + [*bounds.values()]), STEPS)
    rows = max(_MIN_HEIGHT, height)
    labels = {number: _label(top * (rows - 1 - number) / (rows - 1)) for number in (0, (rows - 1) // 2, rows - 1)}
    gutter = max(4, *(len(label) for label in labels.values()))
    area = _Area([size for size, _ in known] + [*bounds], top, width - gutter - 3, rows)
    cells = _paint(area, known, bounds, marks)
    lines = [title[:width]] if title else []
    for number, row in enumerate(cells):
        shown = labels.get(number, "")
        lines.append(f"{shown:>{gutter}} {marks['axis']}{''.join(row)}".rstrip())
    lines += _foot(area, gutter, [size for size, _ in known], marks)
    low = "below its bound"
    legend = f"GB/s by size; {marks['point']} measured" + (
        f", {marks['low']} {low}, {marks['bound']} bound" if bounds else ""
    )
    return [*lines, legend[:width]]


class _Area:
    """Where a size and a bandwidth fall on the grid of `columns` x `rows` cells."""

    def __init__(self, sizes: Sequence[int], top: float, columns: int, rows: int) -> None:
        self.columns, self.rows, self.top = columns, rows, top
        self.first, self.last = math.log2(min(sizes)), math.log2(max(sizes))

    def column(self, size: float) -> int:
        if self.last == self.first:
            return self.columns // 2
        return round((math.log2(size) - self.first) / (self.last - self.first) * (self.columns - 1))

    def row(self, value: float) -> int:
        return max(0, self.rows - 1 - round(value / self.top * (self.rows - 1)))


def _paint(
    area: _Area, points: Sequence[tuple[int, float]], bounds: Mapping[int, float], marks: Mapping[str, str]
) -> list[list[str]]:
    cells = [[" "] * area.columns for _ in range(area.rows)]
    for (one, low), (other, high) in itertools.pairwise(points):
        first, last = area.column(one), area.column(other)
        for column in range(first + 1, last):
            share = (column - first) / (last - first)
            cells[area.row(low + (high - low) * share)][column] = marks["line"]
    for size, bound in bounds.items():
        middle = area.column(size)
        for column in range(max(0, middle - 1), min(area.columns, middle + 2)):
            cells[area.row(bound)][column] = marks["bound"]
    for size, value in points:
        low = size in bounds and value < bounds[size]
        cells[area.row(value)][area.column(size)] = marks["low" if low else "point"]
    return cells


def _foot(area: _Area, gutter: int, sizes: Sequence[int], marks: Mapping[str, str]) -> list[str]:
    base = [marks["base"]] * area.columns
    names = [" "] * (area.columns + gutter + 3)
    for size in [sizes[0], sizes[-1], *sizes]:  # the ends are named first, then what finds room
        label = format_size(size).replace(" ", "")
        column = area.column(size)
        start = min(gutter + 2 + column - len(label) // 2, len(names) - len(label))
        if not "".join(names[max(0, start - _GAP) : start + len(label) + _GAP]).strip():
            base[column] = marks["tick"]
            names[start : start + len(label)] = label
    axis = f"{'':>{gutter}} {marks['corner']}{''.join(base)}"
    return [axis, "".join(names).rstrip()]


def _label(value: float) -> str:
    return f"{value:.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"  # no exponent for people
