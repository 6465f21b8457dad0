"""Tests made of checks: their facts, marks and order, what a report shows of them, and what a site may replace."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import names, on, run_pytest

from pytest_gpucluster.core.check import CHECKS, Action, Finding, Verdict, check, revised
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.core.registry import suites as registered
from pytest_gpucluster.suite import arguments_of, checks_as_tests

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.sandbox import Sandbox

PARTS = {"matrix.work", "nccl.bandwidth"}  # of other checks


@check("made.up", cause="", hint="", action=Action.MONITOR)
def up(numbers: list[int], limit: int = 3) -> Judgement:
    """Numbers are within the limit."""
    yield from (Finding(str(one), str(one), str(limit)) for one in numbers if one > limit)


@revised(lambda verdict, number, *_: Verdict(f"{verdict.check} {number}", verdict.outcome, verdict.findings))
@check("made.each", cause="", hint="", action=Action.MONITOR, marks=("slow", "exclusive"), each="numbers")
def each(number: int, limit: int) -> Judgement:
    """Each number is within the limit."""
    if number > limit:
        yield Finding("number", str(number), str(limit))


@check("made.part", item=False, cause="", hint="", action=Action.MONITOR)
def part(number: int) -> Judgement:
    """Nothing is wrong."""
    yield from ()


def made() -> dict[str, Any]:
    module = ModuleType("made")
    vars(module).update(each=each, up=up, part=part, arguments_of=arguments_of)
    return checks_as_tests(module)


def test_each_check_becomes_a_test_in_the_order_of_the_module() -> None:
    assert [*made()] == ["test_each", "test_up"]
    assert made()["test_up"].__doc__ == "Numbers are within the limit."
    assert [mark.name for mark in made()["test_each"].pytestmark] == ["slow", "exclusive"]


def test_the_parameters_of_a_check_are_the_facts_of_its_test() -> None:
    assert arguments_of(made()["test_up"]) == ("numbers", "limit", "expect")
    assert arguments_of(made()["test_each"]) == ("numbers", "limit", "expect")
    assert inspect.unwrap(made()["test_each"]).__code__.co_filename == __file__


def test_a_check_of_each_allocation_gives_one_verdict() -> None:
    found: list[Verdict] = []
    for test in made().values():
        test(numbers=[2, 5, 4], limit=3, expect=found.append)
    assert [one.check for one in found] == ["made.each 5", "made.up"]
    assert [[finding.measured for finding in one.findings] for one in found] == [["5", "4"], ["5", "4"]]


@pytest.mark.parametrize("suite", registered(), ids=lambda suite: suite.name)
def test_every_check_has_a_test_in_its_suite(suite: Any) -> None:
    import_checks()
    module = importlib.import_module(f"{suite.package}.test_{suite.name}")
    checks = {name.partition(".")[2] for name in CHECKS.keys() - PARTS if name.startswith(f"{suite.name}.")}
    assert {name for name in checks if not callable(getattr(module, f"test_{name}", None))} == set()


MADE = """
from pytest_gpucluster.core.check import Action, Finding, check


@check("made.sound", cause="wear", hint="replace it", action=Action.MONITOR)
def sound(shown, node_name):
    \"\"\"The node is sound.\"\"\"
    if node_name == "gpu02":
        yield Finding("part", shown, "sound")


@check("made.torn", cause="wear", hint="replace it", action=Action.MONITOR, marks=("slow",))
def torn(shown):
    \"\"\"The node is whole.\"\"\"
    yield Finding("part", {}[shown], "sound")
"""
SUITE = """
import made

from pytest_gpucluster.suite import checks_as_tests, fact

shown = fact(lambda node: f"worn on {node}")
globals().update(checks_as_tests(made))
"""
KINDS = """
import sys

import pytest

sys.path.insert(0, ".")


def pytest_collection_modifyitems(items):
    print("KINDS", {type(item).__name__ for item in items}, {item.reportinfo()[0].name for item in items})
"""
REPLACED = """

@pytest.fixture
def node_name(node):
    yield node.name
"""


@pytest.mark.parametrize(("more", "kind"), [("", "NodeItem"), (REPLACED, "Function")])
def test_both_kinds_of_items_of_a_check_report_the_same(
    sandbox: Sandbox, tmp_path: Path, more: str, kind: str
) -> None:
    files = {"made.py": MADE, "test_made.py": SUITE, "conftest.py": KINDS + more}
    run = run_pytest(tmp_path, on(sandbox), "-s", "--slow", files=files)
    assert f"'{kind}'" in run.out
    assert "{'made.py'}" in run.out
    assert names(run.outcomes, "passed") == [f"test_sound[gpu0{number}]" for number in (1, 3, 4)]
    assert "made.sound on gpu02: part: measured worn on gpu02, expected sound" in run.out
    assert 'yield Finding("part", {}[shown], "sound")' in run.out  # a traceback shows the check
    assert "of_facts" not in run.out
    assert run.rc == 1


def test_a_check_without_its_fact_is_an_error_that_names_it(sandbox: Sandbox, tmp_path: Path) -> None:
    files = {"made.py": MADE, "test_made.py": SUITE.replace("shown =", "other ="), "conftest.py": KINDS}
    run = run_pytest(tmp_path, on(sandbox), "-k", "sound", files=files)
    assert "fixture 'shown' not found" in run.out
    assert run.rc == 1
