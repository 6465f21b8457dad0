"""Each sentence of the pages that promise something names the tests that fail if it is false; these tests exist.

A comment at the end of each paragraph, list item and table row has one entry per sentence, separated by semicolons: names of tests
below `tests/`, or `explanation` if the sentence promises nothing about this product. Headings, heads of tables and code blocks have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from docs_helpers import FENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("safety.md", "drain.md", "bad-input.md", "rights.md")
EXPLANATION = "explanation"
COMMENT = re.compile(r"\s*<!-- proved by\s(.*?)\s*-->\s*(?=\|?\s*$)", re.DOTALL)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
CODE = re.compile(r"`[^`]*`")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"*(\[])")


@dataclass(frozen=True)
class Block:
    """A paragraph, list item or table row of a page, and the entries of its comment."""

    place: str  # PAGE:LINE
    sentences: tuple[str, ...]
    entries: tuple[str, ...]


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page that must name their tests."""
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    lines = [*text.splitlines(), ""]
    begin = 0
    for number, line in enumerate(lines):
        before = lines[begin:number]
        inside = "\n".join(before).count("<!--") > "\n".join(before).count("-->")
        if before and not inside and (not line.strip() or line.lstrip().startswith("|") or ITEM.match(line)):
            if not (before[0].startswith("#") or is_head(before[0], line)):
                yield block(f"{page}:{begin + 1}", "\n".join(before))
            begin = number
        if not line.strip():
            begin = number + 1


def is_head(row: str, following: str) -> bool:
    """Return whether a line is the head of a table, or the line below it."""
    return any(re.fullmatch(r"\s*\|[-| ]+\|", line) for line in (row, following))


def block(place: str, text: str) -> Block:
    comment = COMMENT.search(text)
    entries = tuple(" ".join(entry.split()) for entry in comment[1].split(";")) if comment else ()
    return Block(place, tuple(sentences(COMMENT.sub("", text))), entries)


def sentences(text: str) -> list[str]:
    """Return the sentences of a block. A table row is one, unless a cell has several."""
    codes: list[str] = []

    def hide(code: re.Match[str]) -> str:
        codes.append(code[0])
        return f"`{len(codes) - 1}`"

    text = CODE.sub(hide, ITEM.sub("", " ".join(text.split()), count=1))
    text = re.sub(r"`(\d+)`", lambda number: codes[int(number[1])].replace(" ", "\0"), text)
    return [part.replace("\0", " ") for part in END_OF_SENTENCE.split(text)]
