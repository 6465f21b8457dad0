"""The checks of a suite: their facts, marks and order."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import CHECKS, Action, Check, Finding, Verdict, check, revised
from pytest_gpucluster.core.fact import arguments_of
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.core.registry import suites as registered
from pytest_gpucluster.suite import Tests

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.registry import Suite

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


def made() -> list[Check[...]]:
    module = ModuleType("made")
    vars(module).update(each=each, up=up, part=part, again=up, arguments_of=arguments_of)
    return [*Tests(module, module, marks=()).checks()]


def test_checks_stand_in_the_order_of_their_module_and_once() -> None:
    assert [one.name for one in made()] == ["made.each", "made.up"]
    assert [one.marks for one in made()] == [("slow", "exclusive"), ()]


def test_the_parameters_of_a_check_are_its_facts() -> None:
    assert [one.facts for one in made()] == [("numbers", "limit")] * 2


def test_a_check_of_each_allocation_gives_one_verdict() -> None:
    found = [one.of_facts({"numbers": [2, 5, 4], "limit": 3}) for one in made()]
    assert [one.check for one in found] == ["made.each 5", "made.up"]
    assert [[finding.measured for finding in one.findings] for one in found] == [["5", "4"], ["5", "4"]]


@pytest.mark.parametrize("suite", registered(), ids=lambda suite: suite.name)
def test_every_check_has_items_in_its_suite(suite: Suite) -> None:
    import_checks()
    module = importlib.import_module(f"{suite.package}.test_{suite.name}")
    known = {one.name for one in module.TESTS.checks()}
    known |= {f"{suite.name}.{it.removeprefix('test_')}" for it in vars(module) if it.startswith("test_")}
    assert {name for name in CHECKS.keys() - PARTS if name.startswith(f"{suite.name}.")} - known == set()
