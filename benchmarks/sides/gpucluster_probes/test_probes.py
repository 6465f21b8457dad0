"""The 40 checks as probes of this plugin: their commands go to the nodes in one batch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from questions import Question, asked

from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.suite import Tests, of_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.probe import Answer


def text_of(answer: Answer) -> str:
    """Read an answer: the same standard output that the other sides search."""
    return answer.out


def judge(question: Question) -> Callable[..., None]:
    """Return the test of one check; it needs the fact of its name."""

    def test(**facts: str) -> None:
        assert question.right(facts[question.name])

    only = inspect.Parameter(question.name, inspect.Parameter.KEYWORD_ONLY)
    test.__signature__ = inspect.Signature([only])  # type: ignore[attr-defined]
    return test


MADE: dict[str, Any] = {}
for each in asked()[0]:
    MADE[each.name] = of_node(Probe(each.name, each.command, text_of))
    MADE[f"test_{each.name}"] = judge(each)
globals().update(MADE)

TESTS = Tests(marks=("probes",))
