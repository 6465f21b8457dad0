"""The rule of common cause (core/common_cause.py), applied to the failures that the model of a run holds. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.common_cause import common_findings, telling_factors
from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.report.describe import describe
from pytest_gpucluster.report.proof import NOT_PROVED
from pytest_gpucluster.report.run_model import add_found, cleaned, example_of, failure_key, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.core.common_cause import CommonFinding
    from pytest_gpucluster.report.result import Result
    from pytest_gpucluster.report.run_model import FailureGroup, Run

Entry = tuple["Result", Finding]  # a failure, and one of its findings with the action for it


def settle(run: Run) -> None:
    """Replace what nodes fail alike by findings of the cluster, once per check: when its nodes are judged.

    Changed are `run.common`, `results`, `groups` and `counts`. The totals remain: as many items failed.
    """
    failing = {result.check for result in run.results if result.node and result.outcome == "failed"} - run.settled
    run.settled |= failing
    at: dict[str, list[int]] = defaultdict(list)
    for number, result in enumerate(run.results) if failing else ():
        if result.check in failing and result.node and result.outcome in ("passed", "failed"):
            at[result.check].append(number)
    for check, numbers in at.items():
        failed = [number for number in numbers if run.results[number].outcome == "failed"]
        findings = [
            (one_line(run.results[number].node), finding)
            for number in failed
            for finding in _findings(run.results[number])
        ]
        judged = {one_line(run.results[number].node) for number in numbers}
        found = common_findings(check, findings, judged, run.places)
        if found:
            for it in found:
                it.factors = telling_factors(it.nodes, judged, run.factors)
            run.common += found
            run.changed()
            _regroup(run, [run.results[number] for number in failed], found)
            for number in failed:
                run.results[number] = _rewritten(run, run.results[number], found)


def _findings(result: Result) -> Iterator[Finding]:
    """Yield the findings of a failure, clean, with the action and the setting that apply to each."""
    for verdict in result.verdicts:
        for it in verdict.findings:
            action = it.action or verdict.action
            # what only broken hardware shows is not explained by the setting that the rest of the check compares with
            setting = it.setting or ("" if action.is_repair else verdict.setting)
            yield replace(cleaned(it), action=action, setting=setting)


def _owner(found: Iterable[CommonFinding], result: Result, finding: Finding) -> CommonFinding | None:
    node = one_line(result.node)
    return next((one for one in found if one.has(node, finding)), None)


def _rewritten(run: Run, result: Result, found: Sequence[CommonFinding]) -> Result:
    """Return a failure whose common findings have the action `configure`; its others keep theirs."""
    owners = [(finding.action or Action.MONITOR, _owner(found, result, finding)) for finding in _findings(result)]
    common = next((owner for _, owner in owners if owner is not None), None)
    if common is None:
        return result
    rest = iter(owners)
    verdicts = []
    for verdict in result.verdicts:
        mine = [(it, *next(rest)) for it in verdict.findings]
        findings = tuple(replace(it, action=Action.CONFIGURE if owner else action) for it, action, owner in mine)
        own = [action for _, action, owner in mine if owner is None]
        changed = replace(verdict, findings=findings, action=max(own, key=list(Action).index, default=Action.CONFIGURE))
        if mine and not own:
            changed = replace(changed, cause=_cause(common, verdict.cause), hint=_hint(common, verdict.hint))
        verdicts.append(changed if mine else verdict)
    if any(owner is None for _, owner in owners):
        return replace(result, verdicts=tuple(verdicts))
    counter = run.counts[one_line(result.node)][one_line(result.suite) or "other"]
    counter["failed"] -= 1
    counter[NOT_PROVED] += 1
    described = [describe(it, result.check, result.node) for it in verdicts if it.findings]
    text = "\n".join([*described, *result.annotation.lines])
    return replace(result, verdicts=tuple(verdicts), text=text, common=True)


def _regroup(run: Run, failed: Sequence[Result], found: Sequence[CommonFinding]) -> None:
    """Make a group of each common finding; what nodes fail for themselves stays in the others.

    The first group without other failures becomes that of the common finding, since the terminal already shows it.
    """
    own: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    moved: dict[int, list[Entry]] = defaultdict(list)
    first: dict[int, tuple[str, ...]] = {}
    state: dict[str, str] = {}
    for result in failed:
        key = failure_key(result)
        findings = list(_findings(result))
        if not findings:
            continue  # a plain assertion of a site's test: its group has the message
        own.setdefault(key, [])
        state |= {node: text for text, nodes in run.groups[key].slurm.items() for node in nodes}
        for finding in findings:
            owner = _owner(found, result, finding)
            if owner is None:
                own[key].append((result, finding))
            else:
                number = found.index(owner)
                first.setdefault(number, key)
                moved[number].append((result, replace(finding, action=Action.CONFIGURE)))
    alone = {key: (run.groups[key].cause, run.groups[key].hint) for key in own}
    for key, entries in own.items():
        _fill(run.groups[key], entries, state)
    for number, entries in moved.items():
        common, key = found[number], first[number]
        group = run.groups[key]
        if group.nodes:
            group.split.append(replace(group, nodes={}, rows={}, slurm=defaultdict(list), split=[]))
            group = run.groups[key + (common.where,)] = group.split[-1]  # noqa: RUF005 - a star is Python 3.11
        cause, hint = alone[key]
        group.common, group.action = common.where, Action.CONFIGURE.value
        group.cause, group.hint = _cause(common, cause), _hint(common, hint)
        _fill(group, entries, state)
    for key in own:
        if not run.groups[key].nodes:
            del run.groups[key]


def _fill(group: FailureGroup, entries: Iterable[Entry], state: dict[str, str]) -> None:
    for held in (group.nodes, group.rows, group.slurm):
        held.clear()
    for result, finding in entries:
        node = one_line(result.node)
        if node not in group.nodes and node in state:
            group.slurm[state[node]].append(node)
        if not group.nodes and group.example.get("node") != node:
            group.example = example_of(result)
        group.nodes[node] = None
        add_found(group.rows, finding, node)


def _cause(common: CommonFinding, cause: str) -> str:
    return f"{common.cause}; of one node alone: {cause}" if cause else common.cause


def _hint(common: CommonFinding, hint: str) -> str:
    return f"{common.hint}; {hint}" if hint else common.hint
