"""Nothing is green by absence: what a run should have tested and did not is an error of the run or of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.text import some
from pytest_gpucluster.core.units import share_of
from pytest_gpucluster.plugin import reporting, summary
from pytest_gpucluster.plugin.item_result import clean
from pytest_gpucluster.plugin.plan import Kind
from pytest_gpucluster.report.proof import CLUSTER, NOT_PROVED, NOT_TESTED
from pytest_gpucluster.report.result import RED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.report.events import EventLog
    from pytest_gpucluster.report.run_model import Run

MAX_REASONS = 10
MAX_CHECKS = 6


class Completeness:
    """Judges what a run covered. `reported`: the nodes whose own items say that they cannot be tested."""

    def __init__(self, config: pytest.Config, session: ClusterSession, log: EventLog | None) -> None:
        self._config, self._session, self._events = config, session, log
        self.reported: set[str] = set()

    @property
    def _model(self) -> Run:
        assert self._events is not None  # only the controller judges
        return self._events.model

    def tested(self) -> set[str]:
        """Return the nodes on which something was executed, and that were there to the end."""
        states = self._model.proofs.nodes
        return {
            node
            for node, state in states.items()
            if state != NOT_TESTED and self._session.problem(node) is None
        }

    def nothing_executed(self) -> list[str]:
        """Complain where no check was executed, or no node was tested."""
        if not self._model.executed:
            why = clean(summary.only_reason(self._model))
            nothing = "no check was executed: this run says nothing about the cluster"
            return [f"{nothing}: {why}" if why else nothing]
        if set(self._model.proofs.nodes.values()) == {NOT_TESTED}:
            return ["no node was tested: this run says nothing about the cluster's nodes"]
        return []

    def not_proved(self) -> list[str]:
        """Complain of nodes that are not proved; their errors say why."""
        nodes = self._model.proofs.of(NOT_PROVED)
        return [f"not proved: {hostlist.shown(nodes)}"] if nodes else []

    def too_few(self) -> list[str]:
        """Complain where fewer nodes were tested than min_nodes requires: which are missing, and why."""
        required, selected = self._session.cluster.min_nodes, self._model.selected
        tested = self.tested()
        if required is None or len(tested) >= min(share_of(required, len(selected)), len(selected)):
            return []
        why: dict[str, list[str]] = {}
        for node in selected:
            if node not in tested:
                problem = self._session.problem(node)
                why.setdefault(problem.text if problem else "no check was executed", []).append(node)
        missing = [f"{hostlist.fold(nodes)}: {clean(text)}" for text, nodes in why.items()]
        more = f"; {len(missing) - MAX_REASONS} more reasons" if missing[MAX_REASONS:] else ""
        counts = f"{len(tested)} of {len(selected)} nodes were tested; min_nodes requires {required}"
        return [f"{counts}; not tested: {'; '.join(missing[:MAX_REASONS])}{more}"]

    def report_untested(self, session: pytest.Session) -> bool:
        """Report each node that should have been tested and could not be; return True where there is one."""
        shouldfail = session.shouldfail
        reported = [self.report(node) for node in self._model.selected]
        session.shouldfail = shouldfail  # --maxfail has nothing left to stop
        return any(reported)

    def report_unproved(self, session: pytest.Session) -> bool:
        """Report each node that a suite has not proved, unless an error or failure of both is reported already."""
        shouldfail = session.shouldfail
        if shouldfail:  # the remaining items did not run
            return False
        groups: dict[Any, list[str]] = {}
        found = False
        for (suite, node), why in self._model.proofs.unproved.items():
            counter = self._model.counts.get(node or CLUSTER, {}).get(suite)
            red = counter is not None and any(counter[outcome] for outcome in (*RED, NOT_PROVED))
            if red or why.reported or self._session.problem(node):
                continue
            waivers = reporting.waivers_of_proof(suite, node, why.checks, self._session.cluster)
            groups.setdefault((suite, *why.key, waivers), []).append(node)
        for (suite, checks, reasons, nothing, waivers), nodes in groups.items():
            message = unproved_message(suite, nodes, checks, reasons, nothing=nothing)
            for node in nodes:
                report = reporting.unproved(suite, node, message, waivers, self._session, self._config)
                found = self._log(report) or found
        session.shouldfail = shouldfail
        return found

    def report(self, node: str) -> bool:
        """Report a node that should have been tested and could not be; return False for any other node."""
        problem = self._session.problem(node)
        if problem is None or problem.kind is Kind.BUSY or node in self.reported:
            return False
        self.reported.add(node)
        return self._log(reporting.untested(node, problem, self._session, self._config))

    def _log(self, reports: list[pytest.TestReport]) -> bool:
        """Report an error that is no part of the progress, so that the terminal shows it among the errors only.

        Return False where a waiver covers it.
        """
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        others = [terminal] if terminal is not None else []
        log = self._config.pluginmanager.subset_hook_caller("pytest_runtest_logreport", others)
        broken, ended = reports
        log(report=broken)
        log(report=ended)
        if broken.skipped:  # a waiver covers it
            if terminal is not None:
                terminal.stats.setdefault("waived", []).append(broken)
            return False
        if terminal is not None:
            shown = broken.__dict__["gpucluster_shown"] = reporting.named_from_here(broken, self._config)
            kind = "error alike" if getattr(broken, "gpucluster_equal", False) else "error"
            terminal.stats.setdefault(kind, []).append(shown)
        return True

    def stop_at(self, node: str) -> None:
        """Report a node that cannot be tested at once: -x and --maxfail stop at it, as at any error."""
        if not self._config.option.maxfail or not self.report(node):
            return
        # xdist's loop counts only what its workers report
        distributor, session = map(self._config.pluginmanager.get_plugin, ("dsession", "session"))
        if distributor is not None and session is not None and not distributor.shouldstop:
            distributor.shouldstop = session.shouldfail


def unproved_message(
    suite: str, nodes: Sequence[str], checks: Sequence[str], reasons: Sequence[str], *, nothing: bool
) -> str:
    """Say that a suite has not proved these nodes, and why: the same text for all of them."""
    where = hostlist.shown([node for node in nodes if node]) if any(nodes) else "the cluster"
    what = f"{suite} measured nothing on {where}" if nothing else f"{suite} has not proved {where}"
    names = f": {some(checks, MAX_CHECKS)}" if checks and not nothing else ""
    more = f"; {len(reasons) - MAX_REASONS} more reasons" if reasons[MAX_REASONS:] else ""
    return clean(f"{what}{names}: {'; '.join(reasons[:MAX_REASONS])}{more}")
