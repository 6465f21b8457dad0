"""The codes of findings that a package states, read from its sources; `*` stands for what a code takes from a name or tool."""

from __future__ import annotations

import ast
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAKERS = {"Finding": 5, "Advisory": 3, "Explanation": 0}  # class -> place of its code


def codes_of(package: str) -> list[str]:
    """Return the codes of a package, sorted."""
    return sorted({code for module in _modules(Path(str(files(package)))) for code in _codes(ast.parse(module))})


def _modules(folder: Path) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))


def _codes(module: ast.Module) -> Iterator[str]:
    assigned = [pair for one in ast.walk(module) if isinstance(one, ast.Assign) for pair in _assigned(one)]
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        stated = [one.value for one in node.keywords if one.arg == "code"]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not stated and name in _MAKERS and len(node.args) > _MAKERS[name]:
            stated = [node.args[_MAKERS[name]]]
        for value in stated:
            yield from _words(value)
            if isinstance(value, ast.Name):
                yield from (word for known, of in assigned if known == value.id for word in _words(of))


def _assigned(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that the statement gives a value, and the value: also of `a, b = 1, 2`."""
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple):
        branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
        tuples = (it for it in branches if isinstance(it, ast.Tuple) and len(it.elts) == len(target.elts))
        pairs = [pair for it in tuples for pair in zip(target.elts, it.elts, strict=True)]
    yield from ((name.id, it) for name, it in pairs if isinstance(name, ast.Name))


def _words(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from (*_words(value.body), *_words(value.orelse))
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in value.values)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
        yield value.value
