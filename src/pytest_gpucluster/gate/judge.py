"""Every check of one node that needs neither Slurm nor another node, judged as in a run of pytest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import given
from pytest_gpucluster.core.check import CHECKS, Check, Outcome, Verdict
from pytest_gpucluster.core.common_cause import common_findings
from pytest_gpucluster.core.errors import GpuClusterError, NotApplicable
from pytest_gpucluster.core.fact import in_order
from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.registry import parts_of_suites, suites
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.run.facts import ItemView, facts_of, make, named, names_of, with_known_cause
from pytest_gpucluster.run.item_record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.fact import Fact
    from pytest_gpucluster.core.finding import Finding
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.run.session import ClusterSession

# what a gate does not have: an allocation, a step, other nodes, pytest, the user of the run that wrote the baseline
FOREIGN = {"allocation", "srun", "lane_nodes", "host", "run", "usual_user", "pytestconfig"}
UNASKED = {"slow", "intrusive"}  # marks of checks that run on request only
PROFILE_FACTS = {given.profile, given.gpu_profile}


@dataclass(frozen=True)
class NodeCheck:
    """One check of a suite, with the facts that it needs in the order in which they are made."""

    suite: str
    check: Check[...]
    arguments: Mapping[str, Fact[Any]]
    steps: Sequence[Fact[Any]]

    def probes(self, session: ClusterSession, node: str) -> Iterator[Probe[Any]]:
        """Yield the probes that can be sent before the first check."""
        for fact in self.steps:
            if fact.probes:
                yield from fact.probes(session.cluster, (node,))


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. `outcome`: passed, failed, waived, not applicable or not checked; `why`: of the last three."""

    check: str
    outcome: str
    verdict: Verdict | None = None
    why: str = ""

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings of a failure, each with its action."""
        if self.verdict is None or self.outcome != Outcome.FAILED.value:
            return ()
        return [replace(it, action=it.action or self.verdict.action) for it in self.verdict.findings]

    @property
    def repair(self) -> Finding | None:
        """The first finding whose action takes the node out of service; None for what a job may have caused."""
        if CHECKS[self.check].of_job:
            return None
        return next((it for it in self.findings if it.action and it.action.is_repair), None)


def node_checks(patterns: Iterable[str]) -> list[NodeCheck]:
    """Return the checks whose names match one of the patterns and that a single node can be judged by."""
    chosen = tuple(patterns)
    wanted = {pattern.partition(".")[0] for pattern in chosen}
    found: list[NodeCheck] = []
    for suite in suites():
        if not any(fnmatchcase(suite.name, name) for name in wanted):
            continue
        module = import_module(f"{suite.package}.test_{suite.name}")
        facts = facts_of(module)
        names = names_of(facts)
        for check in module.TESTS.checks():
            if any(fnmatchcase(check.name, pattern) for pattern in chosen) and not UNASKED & {*check.marks}:
                found += _if_of_node(suite.name, check, facts, names, module.TESTS.needs)
    return found


def _if_of_node(
    suite: str,
    check: Check[...],
    facts: Mapping[str, Fact[Any]],
    names: Mapping[Fact[Any], str],
    needs: Sequence[Fact[Any]],
) -> Iterator[NodeCheck]:
    arguments = named(check.facts, facts, check.name)
    steps = in_order((*needs, *arguments.values()))
    foreign = any(it.values or names.get(it) in FOREIGN for it in steps)
    if given.node in steps and not foreign:
        yield NodeCheck(suite, check, arguments, steps)


def judge_all(checks: Sequence[NodeCheck], session: ClusterSession, node: str) -> list[CheckResult]:
    """Judge every check on this node; the answers of its commands are waited for."""
    by_suites = [found(session.cluster) for found in parts_of_suites(lambda suite: suite.not_applicable)]
    by_suite = {check: why for found in by_suites for check, why in found.items()}
    absent = {**session.cluster.not_applicable, **by_suite, **session.nodes[node].profile.absent}
    group = session.cluster.group_of(node)
    contradicted = (found(session).get(group.nodes) for found in parts_of_suites(lambda suite: suite.contradictions))
    unfit = next((one.reason for one in contradicted if one), "")
    results = []
    for one in checks:
        pattern = next((it for it in absent if fnmatchcase(one.check.name, it)), None)
        if pattern is not None:
            results.append(CheckResult(one.check.name, Outcome.NOT_APPLICABLE.value, why=absent[pattern]))
        elif unfit and not PROFILE_FACTS.isdisjoint(one.steps):
            results.append(CheckResult(one.check.name, Outcome.NOT_CHECKED.value, why=unfit))
        else:
            results.append(_judge(one, session, node))
    return results


def _judge(one: NodeCheck, session: ClusterSession, node: str) -> CheckResult:
    name = one.check.name
    view = ItemView(session, Record(one.suite, name, node))
    try:
        values = make(one.steps, view, {})
        arguments = {name: values[fact] for name, fact in one.arguments.items()}
        verdict = with_known_cause(one.check.of_facts(arguments), view)
    except NotApplicable as error:
        return CheckResult(name, Outcome.NOT_APPLICABLE.value, why=str(error))
    except GpuClusterError as error:  # also an answer that did not come or is not understood
        return CheckResult(name, Outcome.NOT_CHECKED.value, why=str(error))
    except Exception as error:  # noqa: BLE001 - a fault of a check is no verdict on a node
        why = f"an error of gpucluster: {one_line(repr(error))}"
        return CheckResult(name, Outcome.NOT_CHECKED.value, why=why)
    return _concluded(verdict, session, node)


def _concluded(verdict: Verdict, session: ClusterSession, node: str) -> CheckResult:
    name, outcome = verdict.check, verdict.outcome
    if outcome is not Outcome.FAILED:
        return CheckResult(name, outcome.value, verdict, verdict.reason)
    if waivers := session.cluster.waivers_of(name, node, [str(found.part) for found in verdict.findings]):
        return CheckResult(name, "waived", verdict, "; ".join(one.words for one in waivers))
    return CheckResult(name, outcome.value, _without_common(verdict, session, node))


def _without_common(verdict: Verdict, session: ClusterSession, node: str) -> Verdict:
    """Return a failure without repairs for what a setting explains on the only node that is judged."""
    judged = session.nodes
    places = {name: session.place(name) for name in judged}
    known = [
        (node, replace(it, action=it.action or verdict.action, setting=it.setting or verdict.setting))
        for it in verdict.findings
    ]
    shared = common_findings(verdict.check, known, judged, places)
    findings = tuple(
        replace(it, action=Action.CONFIGURE) if any(one.has(node, it) for one in shared) else it for _, it in known
    )
    return replace(verdict, findings=findings)
