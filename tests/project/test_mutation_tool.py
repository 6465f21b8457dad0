"""tools/mutation.py: what it changes, what it prints, and when it ends."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
import textwrap
import time

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from typing import TYPE_CHECKING

from mutants import changes, mutants  # found by the path above

if TYPE_CHECKING:
    from pathlib import Path

mutation = importlib.import_module("mutation")  # found by the path above
MEMBERS = {"Action": ["DRAIN", "REBOOT"]}

OPERATORS = {
    "a < b": {"a <= b", "a > b"},
    "a in b": {"a not in b"},
    "a not in b": {"a in b"},
    "a is not b": {"a is b"},
    "a and b": {"a or b"},
    "a + b": {"a - b"},
    "not a": {"(a)"},
    "-a": {"(a)"},
    "max(a, b)": {"min(a, b)"},
    "all(a)": {"any(a)"},
    "7": {"8", "6"},
    "0": {"1", "(-1)"},
    "1.5": {"2.5"},
    "True": {"False"},
    "'word'": {'""'},
    "''": {'"x"'},
    "f'{a}'": {'""'},
    "a if b else c": {"a if (not (b)) else c"},
    "a[b:c]": {"a[:c]", "a[b:]"},
    "f(a, b=c)": {"f(a, )"},
    "{a: b, c: d}": {"{c: d}", "{a: b, }"},
    "[a, b, c]": {"[b, c]", "[a, c]"},
    "Action.DRAIN": {"Action.REBOOT"},
    r"re.compile(r'\d\d')": {r"re.compile(r'\w\d')", r"re.compile(r'\d\w')"},
    "'prose of no less than six words'": set(),
}
STATEMENTS = {
    "while a:\n    continue": {"while a:\n    pass", "while not (a):\n    continue"},
    "if a:\n    b": {"if not (a):\n    b"},
    "raise KeyError('x')": {"pass"},
    "a.append(b)": {"pass"},
    "a += b": {"pass", "a -= b"},
    "def f() -> str:\n    return a": {"def f() -> str:\n    return None", 'def f() -> str:\n    return ""'},
    "def f() -> bool:\n    return a": {
        "def f() -> bool:\n    return None",
        "def f() -> bool:\n    return not (a)",
    },
    "def f():\n    yield a": {"def f():\n    yield from ()"},
    "def f(a: 'T') -> 'T':\n    '''Words.'''": set(),
    "if TYPE_CHECKING:\n    a = 1": set(),
    "__all__ = ['a']": set(),
    "log.info('x')": set(),
    "@dataclass(frozen=True)\nclass A:\n    b: int": set(),
}


def changed(source: str) -> set[str]:
    found = set()
    for seed in range(40):  # one change a place: with this many seeds each is chosen once
        for mutant in mutants("m.py", source.encode(), MEMBERS, random.Random(seed)):
            assert changes(mutant, source.encode())
            found.add(mutant.applied(source.encode()).decode())
    return found


@pytest.mark.parametrize(("source", "expected"), OPERATORS.items())
def test_operators_of_expressions(source: str, expected: set[str]) -> None:
    assert changed(f"x({source}, z)\n") == {f"x({text}, z)\n" for text in expected}


@pytest.mark.parametrize(("source", "expected"), STATEMENTS.items())
def test_operators_of_statements(source: str, expected: set[str]) -> None:
    assert changed(f"{source}\n") == {f"{text}\n" for text in expected}


def test_a_change_says_where_it_stands() -> None:
    source = b"LIMIT = 7\n\n\ndef f(a):\n    return (\n        a <\n        LIMIT)\n"
    of_table, *others = mutants("m.py", source, {}, random.Random(1))
    assert (of_table.line, of_table.at_import, of_table.before) == (1, True, "LIMIT = 7")
    compared = next(one for one in others if one.operator == "comparison")
    assert (compared.line, compared.at_import, compared.lines) == (6, False, range(5, 8))
    assert compared.before == "a <"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package whose tests notice a change of `fits` and none of `loose`."""
    files = {
        # pytest rewrites the assertions of plugins, and so would load the package from its files
        "conftest.py": 'pytest_plugins = ["toy"]\n',
        "src/toy/__init__.py": "",
        "src/toy/limits.py": "def fits(a):\n    return a < 7\n\n\ndef loose(a):\n    return a > 3\n",
        "tests/test_limits.py": """
            import subprocess
            import sys
            from toy.limits import fits, loose

            def test_fits():
                assert [fits(6), fits(7)] == [True, False]

            def test_loose():
                assert loose(9) is True

            def test_slow():
                subprocess.run([sys.executable, "-c", ""], check=True)
                assert not loose(3)
        """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def run(project: Path, *options: str) -> str:
    tool = str(ROOT / "tools" / "mutation.py")
    command = [sys.executable, tool, "--root", str(project), "--package", "toy", *options, "limits.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("target", mutation.TARGETS)
def test_each_default_target_exists(target: str) -> None:
    assert mutation.Project(ROOT, mutation.PACKAGE).files([target])


def test_survivors_are_printed_and_killed_changes_are_not(project: Path) -> None:
    before = sorted(project.rglob("*.py"))
    printed = run(project, "--count", "20")
    survivors = re.findall(r"SURVIVED (\S+): (.*)\n *- (.*)\n *\+ (.*)", printed)
    assert {(place, after) for place, _, _, after in survivors} <= {
        (
            "src/toy/limits.py:6",
            "return a >= 3",
        ),  # the test of the boundary starts a process: it is no fast one
        ("src/toy/limits.py:6", "return a > 4"),
        ("src/toy/limits.py:6", "return a > 2"),
    }
    assert survivors
    total = re.search(r"total +(\d+) of +(\d+) killed", printed)
    assert total
    assert int(total[2]) - int(total[1]) == len(survivors)
    assert sorted(project.rglob("*.py")) == before
    assert (project / "src/toy/limits.py").read_text().startswith("def fits(a):\n    return a < 7\n")


def test_a_test_that_fails_alone_proves_nothing(project: Path) -> None:
    tests = project / "tests/test_limits.py"
    first = "import sys\nsys.modules['once'] = sys.modules.get('once', 0)\n"
    tests.write_text(
        first
        + tests.read_text().replace(
            "def test_fits():",
            "def test_first():\n    sys.modules['once'] = 1\n    fits(1)\n\ndef test_fits():\n    assert sys.modules['once']",
        )
    )
    printed = run(project, "--count", "20")
    assert "test_fits fails alone without a change" in printed
    assert "NOT COUNTED" in printed


def test_a_harmless_change_is_subtracted(project: Path) -> None:
    accepted = project / "tools" / "mutation-equivalent.txt"
    accepted.parent.mkdir()
    accepted.write_text(
        "".join(
            f"limits.py\n- return a > 3\n+ return a {other}\n= no value lies there\n\n"
            for other in (">= 3", "> 4", "> 2")
        )
    )
    printed = run(project, "--count", "20")
    assert "SURVIVED" not in printed
    assert "harmless by tools/mutation-equivalent.txt" in printed


def test_no_change_is_tried_after_the_time(project: Path) -> None:
    run(project, "--count", "1")  # measures the tests
    began = time.monotonic()
    printed = run(project, "--count", "20", "--minutes", "0")
    assert "were not tried: time is over" in printed
    assert time.monotonic() - began < 60


def test_the_seed_decides(project: Path) -> None:
    listed = [run(project, "--list", "--count", "3", "--seed", seed) for seed in ("1", "1", "2")]
    assert listed[0] == listed[1] != listed[2]
