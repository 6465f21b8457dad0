"""The cause that other facts of a run give for a failure: tasks that ran elsewhere than stated, or what a suite knows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.core.check import Action, Outcome, Verdict, with_cause
from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from pytest_gpucluster.plugin.facts import ItemView


def with_known_cause(verdict: Verdict, item: ItemView) -> Verdict:
    """Return a verdict that misplaced tasks, or the facts of a suite, explain with that as its cause."""
    failed = verdict.outcome is Outcome.FAILED
    if failed and all(task_place.is_reason(finding.measured) for finding in verdict.findings):
        return with_cause(verdict, "", task_place.CAUSE, task_place.HINT, action=Action.CONFIGURE)
    if verdict.outcome is not Outcome.PASSED:
        for explain in _of_suites():
            verdict = explain(verdict, item.session, item.record.node)
    return verdict


@cache
def _of_suites() -> tuple[Any, ...]:
    return tuple(suite.load(suite.known_cause) for suite in suites() if suite.known_cause is not None)
