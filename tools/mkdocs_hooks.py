"""Hooks of MkDocs: pages from outside docs/, links as they are in the repository."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/pytest-gpucluster/pytest-gpucluster"
# file of the repository: page of the site; those in docs/ keep their names
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s#]*)", re.MULTILINE)
ROW = re.compile(r"^\|.*", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
# for maintainers: marks of generated parts
COMMENT = re.compile(r"^<!--.*?-->\n", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> None:
    """Add the pages from outside docs/."""
    from mkdocs.structure.files import File  # not in the environment of the tests

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))


def on_page_markdown(markdown: str, page: Any, **_unused: Any) -> str:
    """Adapt a page to the site."""
    return adapted(markdown, page.file.src_uri)


def adapted(markdown: str, page: str) -> str:
    """Return the text of a page of the site, given by its name there, without its comments.

    Links lead to pages of the site or to files on GitHub. A bar in the code of a table loses its backslash, which
    GitHub removes and Python-Markdown prints.
    """
    pages = {there: here for here, there in OUTSIDE.items()}
    source = pages.get(page, f"docs/{page}")
    markdown = COMMENT.sub("", markdown)

    def prose(text: str) -> str:
        text = LINK.sub(lambda link: link[1] + target(link[2], source, page), text)
        return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)

    return "".join(part if FENCE.match(part) else prose(part) for part in FENCE.split(markdown))


def target(link: str, source: str, page: str) -> str:
    """Return the target of a link in a file of the repository, as seen from its page of the site."""
    absolute = re.fullmatch(rf"{HOME}/(?:blob|tree)/main/(.*)", link)
    if not link or (re.match(r"[a-z]+:", link) and not absolute):
        return link
    path = absolute[1] if absolute else posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    found = OUTSIDE.get(path) or (path.removeprefix("docs/") if re.match(r"docs/.*\.md$", path) else None)
    if found:
        return os.path.relpath(found, posixpath.dirname(page) or ".")
    if not (ROOT / path).exists():
        return link  # MkDocs reports it
    return f"{HOME}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
