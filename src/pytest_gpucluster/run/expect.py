"""Where a verdict becomes pytest's outcome, after a cause that a suite already knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tabulate import tabulate

from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.core.by_part import for_parts
from pytest_gpucluster.core.check import Action, Outcome, Verdict, with_cause
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.registry import suite_hooks
from pytest_gpucluster.report.words import for_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.run.facts import ItemView


def with_known_cause(verdict: Verdict, item: ItemView) -> Verdict:
    """Return a verdict that misplaced tasks, or the facts of a suite, explain with that as its cause."""
    failed = verdict.outcome is Outcome.FAILED
    if failed and all(task_place.is_reason(finding.measured) for finding in verdict.findings):
        return with_cause(verdict, "", task_place.CAUSE, task_place.HINT, action=Action.CONFIGURE)
    if verdict.outcome is not Outcome.PASSED:
        for explain in suite_hooks("known_cause"):
            verdict = explain(verdict, item.session, item.record.node)
    return verdict


class CheckFailed(AssertionError):  # reads as what it is
    """The verdict of a check: the node, GPU or link is not as expected."""


def judge(item: ItemView, verdict: Verdict) -> None:
    """Pass, fail with the findings, or end the item as not applicable or not checked. Metrics are always recorded."""
    record, verdict = item.record, with_known_cause(verdict, item)
    record.add(verdict)
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        raise NotApplicable(verdict.reason)
    if verdict.outcome is Outcome.NOT_CHECKED:
        raise NotAvailable(verdict.reason)
    if verdict.outcome is Outcome.FAILED:
        raise CheckFailed(describe(verdict, record.check, record.node))


def describe(verdict: Verdict, name: str, node: str) -> str:
    """Write a failed verdict of the check `name`: the first line says it all, the others what to do."""
    first, where = verdict.findings[0], f" on {node}" if node else ""
    more = f" (and {len(verdict.findings) - 1} more)" if len(verdict.findings) > 1 else ""
    lines = [
        f"{name}{where}: {first.part}: measured {first.measured}, expected {first.expected}{more}",
        *_table(verdict),
    ]
    if verdict.cause:
        lines.append(f"likely cause: {verdict.cause}")
    if verdict.hint:
        hint = for_parts(verdict.hint, [finding.part for finding in verdict.findings])
        lines.append(f"what to do:   {for_nodes(hint, [node] if node else [])}")
    lines.append(f"action:       {verdict.action.value}")
    lines += [
        f"warning:      {it.part}: measured {it.measured}, expected {it.expected}"
        for it in verdict.advisories[:MAX_SHOWN]
    ]
    lines += _rest(verdict.advisories, "warnings")
    return "\n".join(lines)


def _table(verdict: Verdict) -> list[str]:
    findings = verdict.findings
    if len(findings) == 1:
        return []
    actions = [(finding.action or verdict.action).value for finding in findings]
    differ = len(set(actions)) > 1  # else the line below the table says it
    rows = [
        (finding.part, finding.measured, finding.expected, *([action] if differ else []))
        for finding, action in zip(findings, actions, strict=True)
    ]
    headers = ("part", "measured", "expected", *(["action"] if differ else []))
    table = tabulate(rows[:MAX_SHOWN], headers=headers, disable_numparse=True).splitlines()
    return [*table, *_rest(findings, "findings")]


def _rest(found: Sequence[object], what: str) -> list[str]:
    rest = len(found) - MAX_SHOWN
    return [f"... and {rest} more {what}"] if rest > 0 else []


MAX_SHOWN = 20
