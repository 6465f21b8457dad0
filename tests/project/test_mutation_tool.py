"""tools/mutation.py: what mutmut is given to change, and which tests must detect it. test_make.py runs it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
mutation = importlib.import_module("mutation")  # found by the path above

DECORATED = '''
import functools

def twice(function):
    return functools.wraps(function)(lambda *args: 2 * function(*args))

def plus(number):
    return lambda function: functools.wraps(function)(lambda *args: number + function(*args))

@plus(
    number=1,
)
@twice
def value(x):
    """Give x."""
    return x

class Outer:
    class Inner:
        @property
        def size(self):
            return 3

        @size.setter
        def size(self, new):
            self.new = new

    @staticmethod
    def plain(x): return value(x)
'''


def _run(source: str) -> object:
    scope: dict[str, object] = {}
    exec(source, scope)
    return eval("value(4), value.__doc__, Outer.Inner().size, Outer.plain(5)", scope)


def test_moved_decorators_change_no_behaviour() -> None:
    moved = mutation.decorators_below(DECORATED)
    assert _run(moved) == _run(DECORATED) == (9, "Give x.", 3, 11)
    above = [line.strip() for line in moved.splitlines() if line.strip().startswith("@")]
    assert above == ["@property", "@size.setter", "@staticmethod"]


def test_every_module_compiles_with_its_decorators_moved() -> None:
    for path in (ROOT / mutation.SOURCE).rglob("*.py"):
        compile(mutation.decorators_below(path.read_text(encoding="utf-8")), path, "exec")


def test_default_modules_have_tests_at_the_mirrored_path() -> None:
    for path in mutation.modules(mutation.DEFAULT):
        assert all(Path(test).name.startswith(f"test_{path.stem}") for test in mutation.tests_of(path)), path


def test_module_without_tests_of_its_own_has_those_of_the_nearest_folder() -> None:
    assert mutation.tests_of(mutation.SOURCE / "core/no_such_module.py") == ["tests/core"]
    assert mutation.tests_of(mutation.SOURCE / "no/such/package/module.py") == ["tests"]


def test_path_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        SystemExit, match=r"gone/module\.py does not exist; name a module or a package below src"
    ):
        mutation.modules(["gone/module.py"])
