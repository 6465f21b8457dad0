"""The verdict on a cluster, and its failures in the order of their weight; for the HTML report and the terminal. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.text import some
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.run_model import ACTIONS
from pytest_gpucluster.report.words import clock, count, folded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucluster.report.run_model import FailureGroup, Run

UNJUDGED = "could not be judged"
STOPPED = 2  # pytest's exit status of a run that was interrupted
MAX_NAMES = 6  # of checks in one sentence


@dataclass(frozen=True)
class Judged:
    """The result of a run. `kind`: accepted, exceptions, rejected or none."""

    kind: str
    title: str
    sentences: tuple[str, ...]
    exceptions: tuple[str, ...]
    fit: tuple[str, ...]
    unfit: tuple[str, ...]


def judge(run: Run) -> Judged:
    """Say in one word what the run says of the cluster. Nothing is accepted by absence."""
    states = {node: run.state(node) for node in run.selected}
    unfit = tuple(node for node, state in states.items() if state == "failed")
    fit = tuple(
        node for node, state in states.items() if state not in (*RED, "not tested") and _passed(run, node)
    )
    kind, title, first = _result(run, unfit)
    exceptions = tuple(_exceptions(run))
    if kind == "accepted" and exceptions:
        kind, title = "exceptions", "Accepted, with exceptions"
    return Judged(kind, title, (first, *_more(run)), exceptions, fit, unfit)


def node_counts(run: Run, judged: Judged) -> dict[str, int]:
    """Count the selected nodes by their result: each once, so the counts add up to all of them."""
    selected, failed, fit = set(run.selected), set(judged.unfit), set(judged.fit)
    without_test = run.untested
    untested = {node for node in selected - failed if node in without_test or not run.state(node)}
    return {
        "fit": len(fit),
        "failed": len(failed),
        "not tested": len(untested),
        UNJUDGED: len(selected - failed - untested - fit),
    }


def _passed(run: Run, node: str) -> bool:
    return any(counter["passed"] for counter in run.counts.get(node, {}).values())


def _result(run: Run, unfit: tuple[str, ...]) -> tuple[str, str, str]:
    status = run.finish.get("exit") if run.finish else None
    if run.totals["failed"]:
        failed = f"{len(unfit):,} of {count(len(run.selected), 'node')} failed at least one check."
        return "rejected", "Not accepted", failed if unfit else "A check of the whole cluster failed."
    if unsaid := _no_verdict(run, status):
        return "none", "No verdict", unsaid
    if run.totals["error"]:
        return (
            "rejected",
            "Not accepted",
            "No check failed, but not everything could be judged: see the errors.",
        )
    if status == 0:
        return "accepted", "Accepted", "Every check that was judged passed."
    return "rejected", "Not accepted", f"The run ended with status {status}: see its errors."


def _no_verdict(run: Run, status: Any) -> str:
    if run.finish is None:
        return f"The run did not end; its log stops at {clock(run.ended)}."
    if not run.executed:
        return "No check was executed: this run says nothing about the cluster."
    return "The run was stopped before its end." if status == STOPPED else ""


def _more(run: Run) -> Iterable[str]:
    if run.finish is None and run.totals["failed"]:
        yield f"The run did not end: its log stops at {clock(run.ended)}."
    if run.finish is not None and run.finish.get("exit") == STOPPED and run.totals["failed"]:
        yield "The run was stopped before its end."
    if run.totals["error"] and run.totals["failed"]:
        yield f"{count(run.totals['error'], 'check')} could not be judged because something broke."
    if run.common:
        yield f"{count(len(run.common), 'finding')} of the cluster: the nodes fail alike, and none is at fault."
    if any(act.get("event") == "drain_over_budget" for act in run.acts):
        yield "More nodes failed than the budget allows to drain."
    if run.simulated:
        yield "SIMULATED hardware: this run says nothing about real GPUs."


def _exceptions(run: Run) -> Iterable[str]:
    if run.finish is None:
        yield "the run did not end: the remaining checks did not run"
    untested = run.untested
    if untested:
        yield f"{count(len(untested), 'node')} not tested: {folded(untested)}"
    if run.silent:
        yield f"{count(len(run.silent), 'node')} without any result: {folded(run.silent)}"
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
