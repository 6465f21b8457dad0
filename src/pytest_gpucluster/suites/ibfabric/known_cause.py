"""The cause that the subnet gives for a slow leaf of nccl: an uplink of it is down, slow or counts errors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import CHECKS, Outcome, Verdict
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.suites.ibfabric import checks, test_ibfabric
from pytest_gpucluster.suites.ibfabric.picture import bad_links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Finding
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts
    from pytest_gpucluster.suites.ibfabric.judge import Owned


def with_known_cause(verdict: Verdict, session: ClusterSession, _own: str) -> Verdict:
    """Return a failure of nccl.links that bad uplinks explain under the check that found them: both are one finding.

    Only what this run has already found counts; no command is sent.
    """
    if verdict.check != "nccl.links" or verdict.outcome is not Outcome.FAILED:
        return verdict
    fabric = session.made.known(test_ibfabric.fabric)
    links = session.made.known(test_ibfabric.links)
    if fabric is None or links is None:
        return verdict
    leaves = session.made.known(test_ibfabric.slurm_leaves) or {}
    return explained(verdict, bad_uplinks(fabric, links), leaves, links)


def bad_uplinks(fabric: FabricFacts, links: Owned) -> dict[str, tuple[str, str]]:
    """Return {name of a leaf: (the check that found it, what is wrong with an uplink)}."""
    bad = {
        it.part.name: ("ibfabric.balance", f"{it.part} has {it.measured}")
        for it in checks.balance(fabric, links).findings
    }
    for check, link, finding in bad_links(fabric):
        for end in link.ends:
            if end.node_guid in fabric.subnet.leaves:
                bad[end.node] = check, f"{finding.part}: {finding.measured}"
    return bad


def explained(verdict: Verdict, bad: Mapping[str, tuple[str, str]], leaves: Mapping[str, str], links: Owned) -> Verdict:
    """Return the verdict with the check and the cause of the uplinks, if they explain all of its findings."""
    causes = [_cause(finding, bad, leaves, links) for finding in verdict.findings]
    known = [cause for cause in causes if cause is not None]
    if not known or len(known) < len(causes):
        return verdict
    check, text = known[0]
    like = CHECKS[check]
    findings = []
    for it in verdict.findings:
        both = f"{it.measured}; {text}"
        measured = replace(it.measured, text=both) if isinstance(it.measured, Quantity) else both
        findings.append(replace(it, measured=measured, action=None))
    return replace(
        verdict, findings=tuple(findings), cause=like.cause, hint=like.hint, action=like.action, explained_by=check
    )


def _cause(
    finding: Finding, bad: Mapping[str, tuple[str, str]], leaves: Mapping[str, str], links: Owned
) -> tuple[str, str] | None:
    """Return why a leaf or link is slow; a leaf of Slurm is that of its name, or those of its nodes."""
    if finding.part.kind not in ("leaf", "pair", "group"):
        return None
    ends = {finding.part.name, *finding.part.nodes}
    nodes = {node for node, leaf in leaves.items() if leaf in ends} | ends
    switches = ends | {it.link.z.node for node in nodes for it in links.of.get(node, ())}
    return next((bad[name] for name in sorted(switches) if name in bad), None)
