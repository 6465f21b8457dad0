"""Tables that are never wider than the terminal, and lines that break between words. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GAP = 2  # between two columns
PADDING = 2  # tabulate has a column at least so much wider than its header
NARROWEST = 20  # room of a text beside its name


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int) -> list[str]:
    """Draw rows below their headers; columns without room follow below, behind the first column again."""
    body = [[str(value) for value in row] for row in rows]
    if not body:
        return []
    widths = [max(len(header) + PADDING, *map(len, column)) for header, *column in zip(headers, *body, strict=True)]
    lines: list[str] = []
    for columns in _blocks(widths, width):
        chosen = [[row[at] for at in columns] for row in (headers, *body)]
        if len(columns) == GAP:  # a text beside its name
            room = max(NARROWEST, width - GAP - widths[0])
            chosen = [[first, "\n".join(_broken(text, room))] for first, text in chosen]
        lines += ["", *_drawn(chosen)] if lines else _drawn(chosen)
    return lines


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines that break between words, further ones two columns to the right."""
    for line in lines:
        yield from _broken(line, width, "  ")


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the numbers of the columns that fit side by side; the first is in each of them."""
    block, used = [0], widths[0]
    for number, needed in enumerate(widths[1:], 1):
        if len(block) > 1 and used + GAP + needed > width:
            yield block
            block, used = [0], widths[0]
        block.append(number)
        used += GAP + needed
    yield block


def _drawn(rows: Sequence[Sequence[str]]) -> list[str]:
    return tabulate(rows[1:], headers=rows[0], disable_numparse=True).splitlines()


def _broken(text: str, width: int, indent: str = "") -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
