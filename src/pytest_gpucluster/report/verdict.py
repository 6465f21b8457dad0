"""The verdict on a cluster, and its failures in the order of their weight; for the HTML report and the terminal. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.text import some
from pytest_gpucluster.core.waivers import AVAILABLE
from pytest_gpucluster.report.proof import ENGINE_CHECK, FAILED, FIT, NOT_PROVED, NOT_TESTED, RUN_SUITE
from pytest_gpucluster.report.run_model import ACTIONS
from pytest_gpucluster.report.waivers import uses
from pytest_gpucluster.report.words import clock, count, folded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucluster.report.run_model import FailureGroup, Run

STOPPED = 2  # pytest's exit status of a run that was interrupted
MAX_NAMES = 6  # of checks in one sentence
TITLES = {
    "accepted": "Accepted",
    "waived": "Accepted, with waivers",
    "rejected": "Not accepted",
    "unproved": "Not proved",
}
COUNTED = ("passed", "failed", "error", "waived", "not checked", "not tested")
BUSY = "busy"
KINDS = {BUSY: "busy", "unavailable": "out of service", "lost": "lost"}  # of cluster/plan.py


@dataclass(frozen=True)
class Judged:
    """The result of a run. `outcome`: a key of TITLES. `nodes`: how many of which it is about, like '14 of 16 nodes (2 busy)'.

    `unjudged`: what is part of no proof and could not be judged; it does not change the result. `waivers`: what the
    cluster file accepts.
    """

    outcome: str
    nodes: str
    sentences: tuple[str, ...]
    waivers: tuple[str, ...]
    unjudged: tuple[str, ...]

    @property
    def title(self) -> str:
        """The verdict in words."""
        return TITLES[self.outcome]


def judge(run: Run) -> Judged:
    """Say in one word what the run says of the cluster. Nothing is accepted by absence."""
    outcome, first = _result(run)
    waivers = tuple(line for use in uses(run) for line in use.lines())
    if outcome == "accepted" and (waivers or run.waived):
        outcome = "waived"
    return Judged(outcome, _nodes(run), (first, *_more(run)), waivers, tuple(_unjudged(run)))


def _nodes(run: Run) -> str:
    """Say how many of the selected nodes are fit, and why the others are none of them."""
    proofs = run.proofs
    fit, total = len(proofs.of(FIT)), len(proofs.nodes)
    why = Counter(_why_not_tested(run, node) for node in proofs.of(NOT_TESTED))
    parts = [f"{len(proofs.of(state)):,} {state}" for state in (FAILED, NOT_PROVED) if proofs.of(state)]
    parts += [f"{number:,} {text}" for text, number in why.items()]
    if not total:
        return "the cluster without its nodes"
    return f"{fit:,} of {count(total, 'node')}" + (f" ({', '.join(parts)})" if parts else "")


def _why_not_tested(run: Run, node: str) -> str:
    if (AVAILABLE, node) in run.waived:
        return "waived"
    kind, _ = run.problems.get(node, ("", ""))
    if kind:
        return KINDS.get(kind, kind)
    return "not applicable" if node in run.counts else "without a result"


def _result(run: Run) -> tuple[str, str]:
    status, failed = run.exit, run.proofs.of(FAILED)
    if run.totals["failed"]:
        whole = "A check of the whole cluster failed."
        some_failed = f"{len(failed):,} of {count(len(run.selected), 'node')} failed at least one check."
        return "rejected", some_failed if failed else whole
    missing = [
        node
        for node in run.proofs.of(NOT_TESTED)
        if run.problems.get(node, (BUSY, ""))[0] != BUSY and (AVAILABLE, node) not in run.waived
    ]
    lacking = ", ".join(dict.fromkeys(suite for suite, _ in run.proofs.unproved))
    reasons = {
        f"The run did not end; its log stops at {clock(run.ended)}.": run.finish is None,
        "The run was stopped before its end.": status == STOPPED,
        f"Nothing failed, but {lacking} did not prove all selected nodes.": lacking,
        "No check was executed: this run says nothing about the cluster.": not run.executed,
        "No node was tested: this run says nothing about the cluster's nodes.": run.selected
        and set(run.proofs.nodes.values()) == {NOT_TESTED},
        f"Without any result: {folded(run.silent)}.": run.silent,
        f"Nothing failed, but these nodes could not be tested: {folded(missing)}.": missing,
        "Nothing failed, but not everything could be judged: see the errors.": run.totals["error"]
        or run.proofs.of(NOT_PROVED),
        f"The run ended with status {status}: see its errors.": status != 0,
    }
    why = next((text for text, holds in reasons.items() if holds), "")
    if why:
        return "unproved", why
    if aside := run.aside:
        return "accepted", f"All that applies is proved; nothing was judged of {some(aside, MAX_NAMES)}."
    return "accepted", "All that was selected is proved."


def _more(run: Run) -> Iterable[str]:
    if run.totals["failed"]:
        if run.finish is None:
            yield f"The run did not end: its log stops at {clock(run.ended)}."
        elif run.exit == STOPPED:
            yield "The run was stopped before its end."
        if broken := ends_of_checks(run)["error"]:
            yield f"{count(broken, 'check')} could not be judged because something broke."
    if run.common:
        alone = "a setting explains what the node fails"  # of one node nothing is common
        why = alone if len(run.proofs.nodes) == 1 else "the nodes fail alike, and none is at fault"
        yield f"{count(len(run.common), 'finding')} of the cluster: {why}."
    if any(act.get("event") == "drain_over_budget" for act in run.acts):
        yield "More nodes failed than the budget allows to drain."
    if run.simulated:
        yield "SIMULATED hardware: this run says nothing about real GPUs."


def counts_of(run: Run) -> dict[str, Any]:
    """Return what the event `finish` states of a run: results by outcome, and selected nodes by state."""
    return {**{outcome: run.totals[outcome] for outcome in COUNTED}, "nodes": run.proofs.counts}


def ends_of_checks(run: Run) -> Counter[str]:
    """Count how checks ended. The entry of a node that was not tested, or that a suite has not proved, is no check."""
    ends = Counter[str]()
    for by_suite in run.counts.values():
        for suite, counter in by_suite.items():
            if suite != RUN_SUITE:
                ends.update(counter)
    ends.subtract(one.outcome for one in run.results if one.check == f"{one.suite}.{ENGINE_CHECK}")
    return ends


def _unjudged(run: Run) -> Iterable[str]:
    flaky = sorted({one["check"] for one in run.retried.values() if one["outcome"] == "passed"})
    if flaky:
        yield f"{count(len(flaky), 'check')} passed only when repeated: {some(flaky, MAX_NAMES)}"
    for outcome in ("not checked", "skipped"):
        if run.totals[outcome]:
            checks = sorted({check for why in run.unjudged[outcome].values() for check in why})
            yield f"{count(run.totals[outcome], 'check')} {outcome}: {some(checks, MAX_NAMES)}"


def ordered(run: Run) -> list[FailureGroup]:
    """Return failures before errors, hard actions before mild, many nodes before few."""
    ranks = {action: rank for rank, action in enumerate(ACTIONS)}
    return sorted(
        run.groups.values(),
        key=lambda g: (g.outcome != "failed", ranks.get(g.action, len(ACTIONS)), -len(g.nodes), g.check),
    )
