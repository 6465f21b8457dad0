"""The verdict on a cluster, and its failures in the order of their weight; for the HTML report and the terminal. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.safe_json import as_dict
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.core.waivers import AVAILABLE
from pytest_gpucluster.report.describe import clock, folded
from pytest_gpucluster.report.proof import ENGINE_CHECK, FAILED, FIT, JUDGED, NOT_PROVED, NOT_TESTED, RUN_SUITE
from pytest_gpucluster.report.run_model import ACTIONS
from pytest_gpucluster.report.waivers import uses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucluster.report.run_model import FailureGroup, Run

STOPPED = 2  # pytest's exit status of a run that was interrupted
MAX_NAMES = 6  # of checks in one sentence
PUNCHLIST, BUDGET = "--punchlist", "--budget"
NARROWING, MAX_OPTION = ("-m", "-k", "--nodes", "--exclude-nodes", PUNCHLIST, BUDGET), 40
TITLES = {
    "accepted": "Accepted",
    "waived": "Accepted, with waivers",
    "passed": "Passed",
    "rejected": "Not accepted",
    "unproved": "Not proved",
}
COUNTED = ("passed", "failed", "error", "waived", "not checked", "not tested")
BUSY = "busy"
KINDS = {BUSY: "busy", "unavailable": "out of service", "lost": "lost"}  # of cluster/plan.py


@dataclass(frozen=True)
class RunVerdict:
    """The result of a run. `outcome`: a key of TITLES. `nodes`: of how many it is true, like '2 of 8 nodes failed'.

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


def judge(run: Run) -> RunVerdict:
    """Say in one word what the run says of the cluster. Nothing is accepted by absence."""
    outcome, first = _result(run)
    waivers = tuple(line for use in uses(run) for line in use.lines())
    if outcome == "accepted" and (waivers or run.waived):
        outcome = "waived"
    if outcome in ("accepted", "waived") and {PUNCHLIST, BUDGET} & as_dict(run.start.get("scope")).keys():
        outcome = "passed"  # a run of the punch list, or of a part of the nodes that a budget chose, accepts nothing
    sentences = tuple(text for text in (first, *_more(run)) if text)
    return RunVerdict(outcome, _nodes(run, outcome), sentences, waivers, tuple(_unjudged(run)))


def _nodes(run: Run, outcome: str) -> str:
    """Say of how many of the selected nodes the verdict is true; of an accepted cluster also why others are not fit."""
    proofs, total = run.proofs, len(run.proofs.nodes)
    if not total:
        return "the cluster without its nodes"
    if outcome == "rejected":
        return f"{len(proofs.of(FAILED)):,} of {count(total, 'node')} failed"
    if outcome == "unproved":
        without = len(proofs.of(NOT_PROVED)) + len(_untested(run))
        if not without:  # the run itself has none
            return f"{len(proofs.of(FIT)):,} of {count(total, 'node')} fit"
        return f"{without:,} of {count(total, 'node')} {'has' if without == 1 else 'have'} no proof"
    why = Counter(_why_not_tested(run, node) for node in proofs.of(NOT_TESTED))
    others = f" ({', '.join(f'{number:,} {text}' for text, number in why.items())})" if why else ""
    return f"{len(proofs.of(FIT)):,} of {count(total, 'node')}{others}"


def _untested(run: Run) -> list[str]:
    """Return the nodes that were not tested, but for busy and waived ones."""
    return [
        node
        for node in run.proofs.of(NOT_TESTED)
        if run.problems.get(node, ("", ""))[0] != BUSY and (AVAILABLE, node) not in run.waived
    ]


def _why_not_tested(run: Run, node: str) -> str:
    if (AVAILABLE, node) in run.waived:
        return "waived"
    kind, _ = run.problems.get(node, ("", ""))
    if kind:
        return KINDS.get(kind, kind)
    return "not applicable" if node in run.counts else "without a result"


def _result(run: Run) -> tuple[str, str]:
    status, missing = run.exit, [node for node in _untested(run) if node in run.problems]
    if run.totals["failed"]:
        return "rejected", "" if run.proofs.of(FAILED) else "A check of the whole cluster failed."
    lacking = ", ".join(dict.fromkeys(suite for suite, _ in run.proofs.unproved))
    reasons = {
        f"The run did not end; its log stops at {clock(run.ended, run)}.": run.finish is None,
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
    options, judged = narrowing(run), judged_suites(run)
    narrowed = f" by {options}" if options else ""
    if aside := [suite for suite in run.suites if suite not in judged]:
        return ("accepted", f"All that applies is proved{narrowed}; nothing was judged of {some(aside, MAX_NAMES)}.")
    return "accepted", f"All that was selected{narrowed} is proved."


def judged_suites(run: Run) -> list[str]:
    """Return the suites with a result on any node; all others have judged nothing, whatever the reason."""
    rows = run.counts.values()
    return [
        suite
        for suite in run.suites
        if suite != RUN_SUITE and any(row[suite][end] for row in rows if suite in row for end in JUDGED)
    ]


def narrowing(run: Run, most: int = MAX_OPTION) -> str:
    """Name the options that left out suites, checks or nodes of the cluster file; '' for none."""
    given = as_dict(run.start.get("scope"))
    chosen = [f"{name} {one_line(given[name], most)}" for name in NARROWING if name in given]
    if not chosen and run.start.get("full") is False:
        chosen = ["a path or another option"]
    return " and ".join(chosen)


def _more(run: Run) -> Iterable[str]:
    if run.totals["failed"]:
        if run.finish is None:
            yield f"The run did not end: its log stops at {clock(run.ended, run)}."
        elif run.exit == STOPPED:
            yield "The run was stopped before its end."
        if broken := ends_of_checks(run)["error"]:
            yield f"{count(broken, 'check')} could not be judged because something broke."
    alone = sum(one.judged == 1 for one in run.common)  # of one node nothing is common
    for number, why in (
        (len(run.common) - alone, "the nodes fail alike: look first at what they share"),
        (alone, "a setting explains what the only node of a group fails"),
    ):
        if number:
            yield f"{count(number, 'finding')} of the cluster: {why}."
    if len(run.proofs.nodes) == 1 and not run.totals["failed"]:
        yield "With one node, nothing between nodes was tested."
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
