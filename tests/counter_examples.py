"""Machines that were considered for a check, each with the verdict that a person gave before the check ran (docs/how-it-decides.md).

A module of tests that has such a table names it COUNTER_EXAMPLES; tests/project/test_five_rules.py counts its healthy machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.check import Action, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

PASSED, WARNING = Outcome.PASSED.value, "warning"
NOT_APPLICABLE, NOT_CHECKED = Outcome.NOT_APPLICABLE.value, Outcome.NOT_CHECKED.value
CONFIGURE, MONITOR = Action.CONFIGURE.value, Action.MONITOR.value
REBOOT, DRAIN, VENDOR = Action.REBOOT.value, Action.DRAIN.value, Action.VENDOR.value
STAYS = frozenset({PASSED, WARNING, NOT_APPLICABLE, NOT_CHECKED})  # the check does not fail there


class CounterExample(NamedTuple):
    """A machine, where it was seen or is documented, and what the check must say of it.

    expected: the outcome; of a failure its action; 'warning' for a pass with a warning. sick: a machine that must not pass.
    """

    check: str
    machine: str
    source: str
    expected: str
    judged: Callable[[], Verdict]
    sick: bool = False


def result(verdict: Verdict) -> str:
    """Return what `CounterExample.expected` states."""
    if verdict.outcome is Outcome.FAILED:
        return verdict.action.value
    return WARNING if verdict.outcome is Outcome.PASSED and verdict.advisories else verdict.outcome.value


def name(example: CounterExample) -> str:
    """Return the id of a test."""
    return f"{example.check}: {example.machine}"


def assert_as_expected(example: CounterExample) -> None:
    """Fail with what the check states if its verdict is another one."""
    verdict = example.judged()
    assert verdict.check == example.check
    assert result(verdict) == example.expected, (verdict.findings, verdict.advisories, verdict.reason)
