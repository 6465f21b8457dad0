"""The end of a run: what was not tested or not proved, the checks that are judged after the release, and the exit status."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.plan import ProblemKind
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.registry import parts_of_suites
from pytest_gpucluster.core.text import some
from pytest_gpucluster.core.units import share_of
from pytest_gpucluster.kit.suite_work import LATER
from pytest_gpucluster.plugin import reporting
from pytest_gpucluster.plugin.items import check_of, phases, record_of
from pytest_gpucluster.plugin.run_outputs import only_reason
from pytest_gpucluster.report.describe import describe
from pytest_gpucluster.report.proof import CLUSTER, NOT_PROVED, NOT_TESTED
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.verdict import counts_of
from pytest_gpucluster.run.item_record import Record, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.kit.suite_work import LateCheck
    from pytest_gpucluster.report.machine.atomic_write import Reports
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.report.run_model import Run
    from pytest_gpucluster.run.session import ClusterSession


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
        return {node for node, state in states.items() if state != NOT_TESTED and self._session.problem(node) is None}

    def nothing_executed(self) -> list[str]:
        """Complain where no check was executed, or no node was tested."""
        if not self._model.executed:
            why = clean(only_reason(self._model))
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
        if problem is None or problem.kind is ProblemKind.BUSY or node in self.reported:
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
            outcome = "error alike" if getattr(broken, "gpucluster_equal", False) else "error"
            terminal.stats.setdefault(outcome, []).append(shown)
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


HELD = "gpucluster_late"  # in the output of an xdist worker
STOPPED = "the run was stopped before the nodes were released"


class LateChecks:
    """Registered in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession, progress: Callable[[str], None]) -> None:
        self._config, self._session, self._progress = config, session, progress
        self._held: list[dict[str, Any]] = []

    @cached_property
    def _of_suites(self) -> dict[str, LateCheck]:
        return {late.check: late for late in parts_of_suites(lambda suite: suite.after_release)}

    # --- one item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run the item of a late check; hold its report if there is no verdict yet."""
        late = self._of_suites.get(check_of(item))
        if late is None:
            return None
        hook = item.ihook
        made = [(call, hook.pytest_runtest_makereport(item=item, call=call)) for call in phases(item, nextitem)]
        held = next((it for _, it in made if it.skipped and _waits(it)), None)
        if held is not None:
            self._held.append(_plain(item, held, self._session))
            return True
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for call, report in made:
            hook.pytest_runtest_logreport(report=report)
            if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
                hook.pytest_exception_interact(node=item, call=call, report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Let an xdist worker send what it holds."""
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[HELD] = json.dumps(self._held)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what an xdist worker holds."""
        self._held += json.loads(getattr(node, "workeroutput", {}).get(HELD, "[]"))

    # --- all items have run

    def judge(self) -> None:
        """Release the nodes and report the held items; nothing happens without any."""
        if not self._held or hasattr(self._config, "workerinput"):
            return
        found: Mapping[str, NodeInfo] = {}
        why = "its job has not ended: the epilog runs for too long (squeue -t CG; slurm.completing judges it in the next run)"
        try:
            self._session.let_agents_leave()
            self._session.release_nodes()
            found = self._session.nodes_after_release(self._progress)
        except GpuClusterError as error:
            why = clean(one_line(error))
        why = signals.noted() or why
        for held in self._held:
            info = found.get(held["record"]["node"])
            self._report(held, self._judged(held, info) if info is not None else _unjudged(held, why))
        self._held.clear()

    def _judged(self, held: Mapping[str, Any], info: NodeInfo) -> Verdict:
        late = self._of_suites.get(held["record"]["check"])
        assert late is not None  # else it would not be held
        try:
            return late.judge(self._session, info)
        except GpuClusterError as error:
            return _unjudged(held, clean(one_line(error)))

    def give_up(self) -> None:
        """Report the held items of a run that was stopped: they have no verdict."""
        for held in self._held if not hasattr(self._config, "workerinput") else ():
            self._report(held, _unjudged(held, STOPPED))
        self._held.clear()

    def _report(self, held: dict[str, Any], verdict: Verdict) -> None:
        hook, where = self._config.hook, {"nodeid": held["nodeid"], "location": tuple(held["location"])}
        hook.pytest_runtest_logstart(**where)
        for report in _reports(held, verdict, self._session, self._config):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(**where)


def _waits(report: pytest.TestReport) -> bool:
    return any(verdict.get("reason_code") == LATER for verdict in report.__dict__["gpucluster"]["verdicts"])


def _plain(item: pytest.Item, report: pytest.TestReport, session: ClusterSession) -> dict[str, Any]:
    """Return what the report of an item needs later, as plain types."""
    return {
        "nodeid": report.nodeid,
        "location": list(report.location),
        "keywords": dict.fromkeys(report.keywords, 1),
        "record": report.__dict__["gpucluster"],
        "annotation": reporting.annotation(item, record_of(item), session),
        "seconds": report.duration,
    }


def _unjudged(held: Mapping[str, Any], why: str) -> Verdict:
    return Verdict(held["record"]["check"], Outcome.NOT_CHECKED, reason=why)


def _reports(
    held: dict[str, Any], verdict: Verdict, session: ClusterSession, config: pytest.Config
) -> list[pytest.TestReport]:
    """Return the reports of set-up, test and teardown, as `expect` would have ended the item."""
    was = held["record"]
    record = Record(was["suite"], was["check"], was["node"])
    record.add(verdict)
    plainly = {**record.as_dict(), "logs": was["logs"]}
    path, line, _ = held["location"]
    outcome = "passed"
    shown: Any = None
    if verdict.outcome is Outcome.FAILED:
        outcome = "failed"
        shown = clean(describe(verdict, record.check, record.node))
    elif verdict.outcome is not Outcome.PASSED:
        plainly |= {"ended": verdict.outcome.value, "reason": clean(verdict.reason)}
        outcome = "skipped"
        shown = (path, (line or 0) + 1, f"{plainly['ended']}: {plainly['reason']}")
    if outcome == "failed":
        plainly["annotation"] = held["annotation"]
        shown = reporting.shown(path, (line or 0) + 1, shown, held["annotation"])
    pairs = reporting.properties(plainly, session) if config.getoption("xmlpath", None) else []
    shared: dict[str, Any] = {
        "nodeid": held["nodeid"],
        "location": tuple(held["location"]),
        "keywords": held["keywords"],
        "user_properties": pairs,
    }
    begun, ended = (
        pytest.TestReport(outcome="passed", longrepr=None, when=when, **shared) for when in ("setup", "teardown")
    )
    report = pytest.TestReport(
        outcome=outcome,  # type: ignore[arg-type] # its literals
        longrepr=shown,
        when="call",
        duration=held["seconds"],
        gpucluster=plainly,
        **shared,
    )
    if report.failed:
        reporting.waive(report, session)
    return [begun, report, ended]


# a run that came to its end
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED)


class RunEnd:
    """Writes the `finish` event and the reports of a run. `log` is None where tests are only collected.

    `writers` write one report each, note what becomes of it in `reports`, and raise nothing. Those of `stating` show
    the exit status, and write again where it has changed.
    """

    def __init__(self, session: ClusterSession, log: EventLog | None, reports: Reports) -> None:
        self.session, self.log, self.reports = session, log, reports
        self.writers: list[Callable[[], None]] = []
        self.stating: list[Callable[[], None]] = []
        self.stated: int | None = None  # the exit status of the last `finish`
        self._shown = 0  # lines of the log that the reports show
        self._complaints: list[str] = []
        self._known: set[str] = set()  # problems that are reported already

    def finish(self, status: int, complaints: Sequence[str]) -> None:
        """Write the `finish` event; of several the last one counts."""
        if self.log is None:
            return
        self.stated, self._complaints = status, [*complaints]
        self._known.update((*self.reports.problems.values(), *complaints))
        slurm = self.session.slurm
        processes = dict(slurm.transport.started) if slurm else {}
        counts = counts_of(self.log.model)
        self.log.write(
            "finish",
            exit=status,
            end=self.log.model.end,
            complaints=self._complaints,
            processes=processes,
            clean=counts,
        )
        self.reports.written[self.log.path] = None
        self.gaps()

    def gaps(self) -> list[str]:
        """Say what the event log lacks; a log with gaps is not among the files that are written."""
        if self.log is None or not self.log.failed:
            return []
        self.reports.written.pop(self.log.path, None)
        return [f"the event log is not whole: {self.log.failed}"]

    def write(self, session: pytest.Session) -> None:
        """Write all reports."""
        self._write(self.writers)
        self.settle(session)

    def _write(self, writers: Sequence[Callable[[], None]]) -> None:
        self._shown = self.log.lines if self.log is not None else 0
        for write in writers:
            write()

    def settle(self, session: pytest.Session) -> None:
        """Tell what is missing, and let the exit status, and all that states it, be the one that comes of that."""
        missing = [it for it in (*self.gaps(), *self.reports.problems.values()) if it not in self._known]
        if missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if signals.noted() and session.exitstatus in ENDED:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            missing.append(f"{signals.noted()} after the last test: the run ends with 2")
        self._known.update(missing)
        self.session.messages.extend(missing)
        if self.stated not in (None, int(session.exitstatus)):
            self.finish(int(session.exitstatus), [*self._complaints, *missing])
        if self._shown and self.log is not None and self.log.lines > self._shown:
            self._write(self.stating)
