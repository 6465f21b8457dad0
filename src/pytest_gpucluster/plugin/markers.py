"""The words of -m: one that is nearly a marker is a slip, and would silently leave out what was meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config.validation_errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARGUMENTS = re.compile(r"\(\s*\w+\s*=[^)]*\)")  # of pytest 8.3: name(key=value)
_GRAMMAR = {"and", "or", "not"}


def refuse_slips(config: pytest.Config) -> None:
    """Raise UsageError where -m names no known marker, but nearly one; words far from all may be markers of the site."""
    known = [re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")]
    for word in strange_words(config.option.markexpr, known):
        if hint := nearest(word, known):
            raise pytest.UsageError(f"-m: no marker is called {word!r}{hint} (pytest --markers lists them)")


def strange_words(expression: str, known: Iterable[str]) -> list[str]:
    """Return the words of a -m expression that are no known marker, in their order."""
    usual = {*known, *_GRAMMAR}
    return [word for word in re.findall(r"\w+", _ARGUMENTS.sub("", expression)) if word not in usual]
