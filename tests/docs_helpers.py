"""What the pages of the documentation hold: shell blocks, commands in the text, code, links."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/pytest-gpucluster/pytest-gpucluster"
IN_CHECKOUT = re.compile(rf"{HOME}/(blob|tree)/main/")  # links of the README, which index pages show too
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
# inline, or the definition of a reference
LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
SHELL = "sh"
# a command in the text is run as well where it begins with one of these and has arguments
IN_TEXT = re.compile(r"`((?:pytest --|gpucluster [a-z]|make [a-z]|python benchmarks|PYTHONPATH=)[^`\n]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a page: what a reader would type."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str | None = None, page: str | None = None) -> Iterator[Block]:
    """Yield the fenced blocks of all pages, or of one page or language."""
    for path in PAGES:
        for found in FENCE.finditer(path.read_text()):
            block = Block(name_of(path), found["language"], textwrap.dedent(found["text"]))
            if language in (None, block.language) and page in (None, block.page):
                yield block


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a shell block: lines, with what a backslash continues."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            if shlex.split(part, comments=True):
                yield part.strip()


def commands() -> Iterator[Command]:
    """Yield every command of the pages: those of shell blocks and those in the text."""
    for block in blocks(SHELL):
        yield from (Command(block.page, line) for line in lines(block.text))
    for path in PAGES:
        prose = FENCE.sub("", path.read_text())
        yield from (Command(name_of(path), text) for text in IN_TEXT.findall(prose))


def links(path: Path) -> Iterator[str]:
    """Yield the targets of a page's links that lead to files of ours."""
    prose = FENCE.sub("", path.read_text())
    for target in LINK.findall(prose):
        target = IN_CHECKOUT.sub(f"{ROOT}/", target)
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
