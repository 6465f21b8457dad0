"""Nothing is green by absence: what a run should have tested and did not is an error of the run or of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.units import share_of
from pytest_gpucluster.plugin import reporting, summary
from pytest_gpucluster.plugin.item_result import clean
from pytest_gpucluster.plugin.plan import Kind

if TYPE_CHECKING:
    import pytest

    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.report.events import EventLog
    from pytest_gpucluster.report.run_model import Run

MAX_REASONS = 10


class Completeness:
    """Judges what a run covered. `reported`: the nodes whose own items say that they cannot be tested."""

    def __init__(self, config: pytest.Config, session: ClusterSession, log: EventLog | None) -> None:
        self._config, self._session, self._log = config, session, log
        self.reported: set[str] = set()

    @property
    def _model(self) -> Run:
        assert self._log is not None  # only the controller judges
        return self._log.model

    def tested(self) -> set[str]:
        """Return the nodes on which something was executed, and that were there to the end."""
        return {
            node
            for node in self._session.plan.selected
            if self._session.problem(node) is None and summary.was_tested(self._model, node)
        }

    def nothing_executed(self) -> list[str]:
        """Complain where no check was executed, or no node was tested."""
        if not self._model.executed:
            why = clean(summary.only_reason(self._model))
            nothing = "no check was executed: this run says nothing about the cluster"
            return [f"{nothing}: {why}" if why else nothing]
        if self._model.totals["not tested"] and not self._session.plan.judged:
            return ["no node was tested: this run says nothing about the cluster's nodes"]
        return []

    def too_few(self) -> list[str]:
        """Complain where fewer nodes were tested than min_nodes requires: which are missing, and why."""
        required, selected = self._session.cluster.min_nodes, self._session.plan.selected
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
        reported = [self.report(node) for node in self._session.plan.selected]
        session.shouldfail = shouldfail  # --maxfail has nothing left to stop
        return any(reported)

    def report(self, node: str) -> bool:
        """Report a node that should have been tested and could not be; return False for any other node."""
        problem = self._session.problem(node)
        if problem is None or problem.kind is Kind.BUSY or node in self.reported:
            return False
        self.reported.add(node)
        # it is no part of the progress: the terminal is to show it among the errors only
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        others = [terminal] if terminal is not None else []
        log = self._config.pluginmanager.subset_hook_caller("pytest_runtest_logreport", others)
        broken, ended = reporting.untested(node, problem, self._session, self._config)
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
