"""What all HTML pages share: templates, their filters, style and script. Pure, but for the package's own files.

Every text is escaped by jinja2.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pytest_gpucluster.report.describe import counted, folded, for_nodes, number, to_do
from pytest_gpucluster.report.page import svg

if TYPE_CHECKING:
    from jinja2 import Template

LONG_WORD = 24  # characters from which on a word may be broken
_PIECES = re.compile(r"[^,/_.:;=&?@\]-]{0,40}[,/_.:;=&?@\]-]+|[^,/_.:;=&?@\]-]{1,40}")
_SPACES = re.compile(r"(\s+)")
_BREAK = Markup("<wbr>")
_MARK = Markup('<svg class="mark {}" viewBox="0 0 10 10" aria-hidden="true"><path fill-rule="evenodd" d="{}"/></svg>')


@lru_cache
def template(name: str) -> Template:
    """Return a template, compiled once. A value that it misses is an error."""
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pytest_gpucluster.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "for_nodes": for_nodes,
        "to_do": to_do,
        "nodes": folded,
        "counted": counted,
        "number": partial(number, none="\N{EN DASH}"),
        "mark": mark,
        "breakable": breakable,
    }
    return environment


def resource(name: str) -> str:
    """Return a file of the package beside the templates."""
    return (files("pytest_gpucluster.report.page") / "templates" / name).read_text(encoding="utf-8")


def style() -> Markup:
    """Return the style sheet of all pages."""
    return Markup(resource("report.css"))


def mark(state: str) -> Markup:
    """Draw a state's shape; its name is for readers who do not see it."""
    css_class, shape = svg.SHAPES.get(state, svg.SHAPES[""])
    return _MARK.format(css_class, shape)


def breakable(text: object) -> Markup:
    """Let a browser break a long word behind its separators; only where it has none, every 40 characters."""
    words = (
        word if len(word) <= LONG_WORD else _BREAK.join(_PIECES.findall(word)) for word in _SPACES.split(str(text))
    )
    return Markup("").join(words)
