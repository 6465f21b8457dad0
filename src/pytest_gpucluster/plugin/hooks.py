"""The hooks of a run: one item a node, setup problems said once, records into reports, nodes given back."""

from __future__ import annotations

import gc
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import hostlist, redact
from pytest_gpucluster.core.errors import GpuClusterError, TransportError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.units import share_of
from pytest_gpucluster.plugin import fixtures, reporting, signals
from pytest_gpucluster.plugin.item_result import (
    NOT_APPLICABLE,
    NOT_CHECKED,
    NOT_TESTED,
    RECORD,
    check_of,
    clean,
    matches,
    node_of,
    one_line,
    record_of,
)
from pytest_gpucluster.plugin.markers import refuse_slips
from pytest_gpucluster.plugin.node_items import Maker, NodeItem, kinds, marks_of
from pytest_gpucluster.plugin.node_partition import PLACE, place_of
from pytest_gpucluster.plugin.plan import Kind
from pytest_gpucluster.plugin.run_end import ENDED, RunEnd
from pytest_gpucluster.plugin.run_metadata import about
from pytest_gpucluster.plugin.session import ClusterSession, Controller, Worker
from pytest_gpucluster.plugin.summary import Tally, classify
from pytest_gpucluster.report import junit
from pytest_gpucluster.report.ascii_plot import draw
from pytest_gpucluster.report.events import read_events
from pytest_gpucluster.suite import asked_by

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.kit.suite_work import LateCheck
    from pytest_gpucluster.report.atomic_write import Reports
    from pytest_gpucluster.report.events import EventLog

MAX_CURVES = 8
MAX_REASONS = 10
NEEDS_NODES = {
    "node",
    "nodes",
    "allocation",
    "fleet",
    "fleet_facts",
    "host",
    "facts",
    "srun",
    "lane_nodes",
}


class Hooks:
    """Registered with pytest once a session is open, in the controller and in every xdist worker."""

    def __init__(
        self, config: pytest.Config, session: ClusterSession, log: EventLog | None, reports: Reports
    ) -> None:
        self.config, self.session, self.log, self.reports = config, session, log, reports
        self.tally = Tally()
        self._refused = False  # Slurm gave no nodes
        self._stopped: int | None = None  # exit code of a run that was stopped
        self.end = RunEnd(session, log, reports, self.tally)
        self._shown = 0  # messages of the session that the summary has shown
        self._spoken: set[str] = set()  # nodes of which an item says that they cannot be tested
        self._lost_logged: set[str] = set()
        self._junit = Path(config.option.junit) if log is not None else None
        self._maker = Maker(config, session, fixtures)
        if log is not None:
            self._log_start(log)

    def _log_start(self, log: EventLog) -> None:
        session = self.session
        log.write(
            "start",
            cluster=session.cluster.name,
            simulated=session.cluster.simulated,
            arguments=redact.words(map(str, self.config.invocation_params.args)),
            slurm=session.slurm.version if session.slurm else None,
            **about(self.config, session),
        )
        log.write(
            "nodes",
            selected=list(session.plan.selected),
            not_tested={node: [p.kind.value, p.text] for node, p in session.plan.problems.items()},
            slurm={
                node: {"state": info.state, "reason": info.reason or ""}
                for node in session.plan.selected
                if (info := session.inventory.get(node)) is not None
            },
        )

    # --- collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Refuse a slip of -m, once everybody has said their markers."""
        if self.log is not None:
            refuse_slips(self.config)

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_sessionstart")
    def pytest_sessionstart_of_workers(self) -> Generator[None, object, object]:
        """Let a worker that is killed while it starts end the run in order: xdist leaves execnet's error to pytest."""
        try:
            return (yield)
        except (EOFError, OSError) as error:
            if not self.config.pluginmanager.has_plugin("dsession"):
                raise
            pytest.exit(f"an xdist worker died as it started ({error}): nothing is tested; run again", 1)

    def pytest_report_header(self) -> list[str]:
        """Say what is under test, and what is not."""
        session, plan = self.session, self.session.plan
        label = "SIMULATED hardware, real Slurm; " if session.cluster.simulated else ""
        lines = [
            *session.notes,
            f"cluster: {session.cluster.name}: {label}{len(plan.testable)} of {len(plan.selected)} nodes",
        ]
        lines += [
            f"not tested: {node}: {clean(problem.text)}" for node, problem in list(plan.problems.items())[:10]
        ]
        if len(plan.problems) > 10:
            lines.append(f"not tested: {len(plan.problems) - 10} more, listed at the end")
        return lines

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item a node of every test that asks for `node`, `host` or facts."""
        if "node" in metafunc.fixturenames:
            self._maker.parametrize(metafunc)

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> Generator[None, Any, Any]:
        """Give a test the items of all its nodes."""
        make = collector.ihook.pytest_pycollect_makeitem
        return self._maker.items((yield), lambda: make(collector=collector, name=name, obj=obj))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Keep the garbage collector off the items: it would look through all of them again and again."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.collect()  # items that were made and not chosen, which freeze() would keep for ever
            gc.freeze()
            gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what the cluster or profile says does not apply, and what takes minutes unless it is asked for."""
        self._leave_out_unasked(items)
        slow_asked = self.config.option.slow or "slow" in self.config.option.markexpr
        for item in items:
            self._skip_by_rule(item, node_of(item), slow=not slow_asked and "slow" in marks_of(item))

    def _leave_out_unasked(self, items: list[pytest.Item]) -> None:
        """Leave suites out of a run that did not ask for them, be it by naming nothing else."""
        for suite in suites():
            if suite.on_request is None or suite.load(suite.on_request).requested(self.config.option):
                continue
            gone = [item for item in items if suite.name in marks_of(item)]
            if gone and len(gone) < len(items):
                self.config.hook.pytest_deselected(items=gone)
                items[:] = [item for item in items if suite.name not in marks_of(item)]

    def _skip_by_rule(self, item: pytest.Item, node: str, *, slow: bool) -> None:
        rules: Mapping[str, str] = self.session.cluster.not_applicable
        if node and (absent := self.session.nodes[node].profile.absent):
            rules = {**rules, **absent}
        pattern = matches(check_of(item), tuple(rules)) if rules else None
        if pattern is not None:
            item.add_marker(pytest.mark.skip(reason=NOT_APPLICABLE + rules[pattern]))
        elif slow:
            item.add_marker(
                pytest.mark.skip(reason=f"{NOT_CHECKED}takes a minute or more: ask for it with --slow")
            )

    # --- the nodes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Get the nodes before the first test, and ask them all that the tests will want to know."""
        if session.config.option.collectonly:
            return
        if any(map(needs_nodes, kinds(session.items))):  # under xdist the controller has no items
            used = {name for item in kinds(session.items) for name in getattr(item, "fixturenames", ())}
            works = ((suite, suite.before_allocation) for suite in suites())
            self._get_nodes([suite for suite, work in works if work is not None and work.fixture in used])
            if self.session.channel is not None:
                self.session.prefetch(self._wanted_probes(session.items))
            for suite in (
                suites() if self.session.allocations and isinstance(self.session, Controller) else ()
            ):
                if suite.before_first_test is not None and suite.before_first_test.fixture in used:
                    self.session.begin(suite)

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtestloop")
    def pytest_runtestloop_ended(self) -> Generator[None, object, object]:
        """With the last item the end of the run begins."""
        try:
            return (yield)
        finally:
            signals.ignore()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the session over to an xdist worker."""
        if not self.config.option.collectonly:
            marks = self.config.option.markexpr  # the controller of xdist collects nothing itself
            self._get_nodes(
                [
                    suite
                    for suite in suites()
                    if suite.before_allocation and (not marks or suite.name in marks)
                ],
                too_early=True,
            )
        if isinstance(self.session, Controller):
            node.workerinput["gpucluster"] = self.session.hand_over(node.workerinput["workercount"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """In an xdist worker: find the place of every item, and tell the controller before the items are."""
        worker = self.session
        if not isinstance(worker, Worker) or worker.relay is None:
            return
        places = [
            item.stash.setdefault(PLACE, place_of(item, worker.nodes, worker.lanes)) for item in session.items
        ]
        worker.orderly = any(place.load for place in places)
        worker.relay.call("places", [place.lane for place in places])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Give loads to the lanes that own the nodes."""
        from pytest_gpucluster.plugin.scheduling import LaneScheduling  # only runs with xdist

        controller = self.session
        return LaneScheduling(config, log, lambda: getattr(controller, "places", None))

    def _get_nodes(self, submitting: list[Suite], *, too_early: bool = False) -> None:
        if not isinstance(self.session, Controller) or self.session.channel is not None:
            return
        try:
            self.session.allocate(self._say, submitting)
        except GpuClusterError as error:
            if self.log is not None:
                self.log.write("error", message=str(error))
            self.session.close()
            self._refused = True
            if too_early:  # for a summary
                pytest.exit(f"no nodes: {clean(one_line(error))}", returncode=4)
            self.session.messages.append(f"no nodes: {clean(str(error))}")
            pytest.exit("no nodes were had: nothing was started", returncode=4)
        if self.log is not None:
            for held in self.session.allocations:
                self.log.write("allocation", job=held.job_id, nodes=list(held.nodes))

    def _say(self, message: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(clean(message))

    def _wanted_probes(self, items: list[pytest.Item]) -> list[Probe[Any]]:
        wanted: dict[str, Probe[Any]] = {}
        nodes, seen = self.session.under_test(), set()
        for item in kinds(items):
            holder = getattr(item, "cls", None) or getattr(item, "module", None)
            for name in getattr(item, "fixturenames", ()):
                if (name, holder) not in seen:
                    seen.add((name, holder))
                    definition = self._maker.definitions.find(name, item.path, holder)
                    for probe in asked_by(definition, self.session.cluster, nodes):
                        wanted[probe.command] = probe
        return list(wanted.values())

    # --- one item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Have the item's nodes from its setup to its teardown."""
        with self.session.turn(item.stash.get(PLACE, None)):
            result = yield
        if type(item) is NodeItem:  # its reports have what it found
            item.user_properties.clear()
            if RECORD in item.stash:
                del item.stash[RECORD]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Do not run an item on a node that cannot be tested: the node has an entry of its own at the end."""
        self.session.record = record_of(item)
        if self.session.stopped and not item.get_closest_marker(self.session.stopped_by):
            raise KeyboardInterrupt(self.session.stopped)
        if self.session.turn_problem:
            raise TransportError(self.session.turn_problem)
        node = node_of(item)
        problem = self.session.problem(node) if node else None
        if problem is not None and not may_run(item, problem.kind):
            pytest.skip(f"{NOT_TESTED}{node}: {problem.text}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put record and annotation into the report."""
        report = yield
        reporting.enrich(item, call, report, self.session)
        return report

    @pytest.hookimpl(wrapper=True, specname="pytest_runtest_logreport")
    def pytest_runtest_logreport_ended(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Keep little of an item that passed: pytest's summary needs its name, its time and its output."""
        result = yield
        if report.passed:
            report.__dict__.pop("gpucluster", None)
            report.keywords, report.user_properties = {}, []
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the item, and write its event. Runs in the controller for all workers."""
        if self.log is None:
            return
        reporting.restore(report)
        message = reporting.message_of(report)
        if str(report.outcome) == "rerun":  # pytest-rerunfailures: it failed, and is tried again
            record = getattr(report, "gpucluster", {})
            attempt = {**reporting.result_event(report, "rerun", message), **record}
            self.log.write("rerun", **attempt)
            return
        outcome = classify(report.when, report.outcome, message)
        if outcome is None:
            return
        if not hasattr(report, "gpucluster"):  # xdist's own report of an item whose worker crashed
            report.__dict__["gpucluster"] = reporting.record_of_nodeid(report.nodeid, self.session)
        if outcome == "error" or (outcome == "failed" and "judges_node" in report.keywords):
            self._spoken.add(report.gpucluster["node"])
        self.tally.add(report.gpucluster, outcome, message)
        event = reporting.result_event(report, outcome, message)
        if reporting.holds_no_secret(event):
            self.log.write("result", {**event, **report.gpucluster})
        else:
            self.log.write("result", report.gpucluster, **event)
        self._log_lost()
        # -x and --maxfail stop at a node that cannot be tested, as at any error; else it is told at the end
        if outcome == "not tested" and self.config.option.maxfail and self._tell(report.gpucluster["node"]):
            self._stop_workers()

    def _log_lost(self) -> None:
        lost = self.session.lost()
        if self.log is not None and len(lost) > len(self._lost_logged):
            for node in set(lost) - self._lost_logged:
                self._lost_logged.add(node)
                self.log.write("lost", node=node, why=lost[node])

    # --- the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing is green by absence: no test executed, or a node lost unsaid, is not a success."""
        signals.ignore()
        self.session.forget_answers()  # all is judged, and reports need memory
        stopped = self.session.stopped or (signals.noted() if session.exitstatus in ENDED else "")
        if stopped:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            self.session.messages.append(stopped)
        distributed = session.config.pluginmanager.has_plugin("dsession")
        if distributed and session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self.session.close()  # first: xdist gives its workers 10 s to end
        if (told := getattr(self.config, "workeroutput", None)) is not None:
            told["gpucluster"] = [(str(path), why) for path, why in self.reports.problems.items()]
        if self.log is not None and not session.config.option.collectonly:
            self._judge_run(session, self.log, distributed=distributed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker could not write."""
        told = getattr(node, "workeroutput", {}).get("gpucluster", ())
        self.reports.problems.update((Path(path), why) for path, why in told)

    def _judge_run(self, session: pytest.Session, log: EventLog, *, distributed: bool) -> None:
        for ended in self.session.ended_early():
            self.session.messages.append(ended)
            log.write("error", message=ended)
        if not distributed:  # workers end later
            self.session.let_agents_leave()
        if session.exitstatus in ENDED:
            complaints = [*self._too_few(), *self._missing_logs(), *self.end.gaps()]
            if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
                complaints = [*self._complaints(), *complaints]
            self.session.messages.extend(complaints)
            if self._tell_untested(session) or complaints:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            status = int(session.exitstatus)
            complaints = [f"the run was stopped (exit {status}): what it had not come to is not tested"]
        self.end.finish(int(session.exitstatus), complaints)

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_sessionfinish")
    def pytest_sessionfinish_reports(self, session: pytest.Session) -> Generator[None, object, object]:
        """Give the nodes back and write the reports, whatever becomes of each, and of other plugins."""
        try:
            return (yield)
        finally:
            self.session.start_giving_back()  # fixtures that need the nodes are torn down
            if not hasattr(self.config, "workerinput"):
                self.end.write(session)

    def write_junit(self) -> None:
        """Write the JUnit file, where there is one."""
        if self._junit is None or self.log is None or self.end.stated is None:
            return
        with self.reports.writing(self._junit):
            junit.write(read_events(self.log.path), self._junit, group=self.reports.group)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember how a run was stopped: before its first test pytest has no pytest_sessionfinish for it."""
        code = getattr(excinfo.value, "returncode", None)
        self._stopped = int(pytest.ExitCode.INTERRUPTED if code is None else code)

    def _complaints(self) -> list[str]:
        complaints = []
        if not self.tally.total("passed", "failed", "error"):
            why = clean(self.tally.only_reason())
            nothing = "no check was executed: this run says nothing about the cluster"
            complaints.append(f"{nothing}: {why}" if why else nothing)
        elif self.tally.total("not tested") and not self.session.plan.testable:
            complaints.append("no node was tested: this run says nothing about the cluster's nodes")
        return complaints

    def _missing_logs(self) -> list[str]:
        """Complain of logs of steps that could not be written; the other reports are written later."""
        missing = list(self.reports.problems.values())
        more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        return [f"logs of steps are missing: {missing[0]}{more}"] if missing else []

    def _tell_untested(self, session: pytest.Session) -> bool:
        """Report each node that should have been tested and could not be, once; return True where there is one."""
        shouldfail = session.shouldfail
        told = [self._tell(node) for node in self.session.plan.selected]
        session.shouldfail = shouldfail  # nothing is left that --maxfail could stop
        return any(told)

    def _tell(self, node: str) -> bool:
        """Report a node that should have been tested and could not be; return False where there is nothing to say."""
        problem = self.session.problem(node)
        if problem is None or problem.kind is Kind.BUSY or node in self._spoken:
            return False
        # it is no part of the progress: the terminal is to show it among the errors only
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        others = [terminal] if terminal is not None else []
        tell = self.config.pluginmanager.subset_hook_caller("pytest_runtest_logreport", others)
        broken, ended = reporting.untested(node, problem, self.session, self.config)
        tell(report=broken)
        tell(report=ended)
        if terminal is not None:
            terminal.stats.setdefault("error", []).append(reporting.named_from_here(broken, self.config))
        return True

    def _stop_workers(self) -> None:
        """Let xdist's loop end where pytest's own would: it counts only what its workers report."""
        distributor, session = map(self.config.pluginmanager.get_plugin, ("dsession", "session"))
        if distributor is not None and session is not None and not distributor.shouldstop:
            distributor.shouldstop = session.shouldfail

    def _tested(self) -> set[str]:
        """Return the nodes on which something was executed, and that were there to the end."""
        return {
            node
            for node in self.session.plan.selected
            if self.session.problem(node) is None and self.tally.looked_at(node)
        }

    def _too_few(self) -> list[str]:
        """Complain where fewer nodes were tested than min_nodes asks for: which are missing, and why."""
        asked, selected = self.session.cluster.min_nodes, self.session.plan.selected
        tested = self._tested()
        if asked is None or len(tested) >= min(share_of(asked, len(selected)), len(selected)):
            return []
        why: dict[str, list[str]] = {}
        for node in selected:
            if node not in tested:
                problem = self.session.problem(node)
                why.setdefault(problem.text if problem else "no check was executed", []).append(node)
        missing = [f"{hostlist.fold(nodes)}: {clean(text)}" for text, nodes in why.items()]
        more = f"; {len(missing) - MAX_REASONS} more reasons" if missing[MAX_REASONS:] else ""
        counts = (
            f"{len(tested)} of {len(selected)} nodes were tested, fewer than min_nodes ({asked}) asks for"
        )
        return [f"{counts}; not tested: {'; '.join(missing[:MAX_REASONS])}{more}"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """End with nodes by suites, the metrics, what was not covered, and what was not tested."""
        if self.log is None or self.config.option.collectonly:
            return
        session = self.session

        def write(line: str) -> None:
            terminalreporter.write_line(clean(line))

        terminalreporter.section(
            f"cluster {session.cluster.name}" + (" (SIMULATED)" if session.cluster.simulated else "")
        )
        verbose = self.config.get_verbosity() > 0
        tables = (
            self.tally.node_table(),
            self.tally.metric_table(constant=verbose),
            *self.tally.suite_tables(),
        )
        for table in () if self._refused else filter(None, tables):
            for line in table:
                write(line)
            write("")
        for curve in self.tally.curves[:MAX_CURVES]:
            width = min(100, get_terminal_size().columns)
            for line in draw(curve["points"], width=width, title=f"{curve['title']}: bus bandwidth, GB/s"):
                write(line)
            write("")
        for line in (
            *(self.tally.unjudged_lines("not applicable") if verbose else ()),
            *self.tally.unjudged_lines("not checked")[:20],
            *self.tally.advisory_lines(),
        ):
            write(line)
        self._write_problems(write)
        write(self.tally.coverage(len(self._tested()), len(session.plan.selected)))
        self._write_files(write)
        for message in session.messages:
            terminalreporter.write_line(clean(f"ERROR: {message}"), red=True)
        self._shown = len(session.messages)

    def _write_files(self, write: Any) -> None:
        files = [(self.log.path, str(self.log.path))] if self.log is not None else []
        if self._junit is not None:
            files.append((self._junit, str(self._junit)))
        written = [name for path, name in files if path in self.reports.written]
        if written:
            write(f"reports: {', '.join(written)}")

    def _write_problems(self, write: Any) -> None:
        by_text: dict[str, list[str]] = {}
        for node in self.session.plan.selected:
            problem = self.session.problem(node)
            if problem is not None:
                by_text.setdefault(problem.text, []).append(node)
        for text, names in by_text.items():
            write(f"not tested: {hostlist.fold(names)}: {text}")

    def pytest_unconfigure(self) -> None:
        """Give the nodes back, whatever happened."""
        signals.ignore()  # a run that is stopped before its first test has had no pytest_sessionfinish
        self.session.give_back()
        if self.log is not None:
            for suite in suites():
                if suite.after_release is not None:
                    self._judge_late(suite.load(suite.after_release), self.log)
        self.session.close()
        for message in getattr(self.session, "left_behind", ()):
            self._say(f"ERROR: {message}")
            if self.log is not None:
                self.log.write("error", message=message)
        alone = hasattr(self.config, "workerinput") or signals.is_only_pytest()
        if alone:
            signals.over()
        self._settle()
        if not alone:
            signals.give_back()

    def _settle(self) -> None:
        """Let everything state the exit status that the process ends with, and tell what no summary has told."""
        session = self.config.pluginmanager.get_plugin("session")
        if self.end.stated is None and self._stopped is not None:
            self.end.finish(self._stopped, [f"the run was stopped (exit {self._stopped}): nothing is tested"])
        elif session is not None:
            self.end.settle(session)
        for message in self.session.messages[self._shown :]:
            self._say(f"ERROR: {message}")
        if self.log is not None:
            self.log.close()

    def _judge_late(self, late: LateCheck, log: EventLog) -> None:
        """Name the nodes that fail a check since they were given back: no item could judge that."""
        from pytest_gpucluster.drain import PREFIX

        later = self.tally.unjudged_on(late.check, late.unjudged)
        session = self.config.pluginmanager.get_plugin("session")
        if not later or session is None or session.exitstatus not in ENDED:
            return
        try:
            found = self.session.last_look(self._say)
        except GpuClusterError as error:
            self._say(
                f"not looked at: {late.subject} of the nodes that were given back: {clean(one_line(error))}"
            )
            return
        unseen = sorted(later - found.keys())
        if unseen and signals.noted():
            self._say(f"not looked at: {late.subject} on {hostlist.fold(unseen)}: {signals.noted()}")
        drained: dict[str, list[str]] = {}
        for node in sorted(later & found.keys()):
            if late.failed(found[node]) and not found[node].reason.startswith(PREFIX):  # which we have told
                drained.setdefault(found[node].why_unavailable() or found[node].reason, []).append(node)
        for why, nodes in drained.items():
            message = (
                f"{late.check} on {hostlist.fold(nodes)}: failed as the nodes were given back, after the reports: "
                f"{clean(why)}; {late.hint}"
            )
            self._say(f"ERROR: {message}")
            log.write("error", message=message)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED


def needs_nodes(item: pytest.Item) -> bool:
    """Return True where an item needs an allocation: it uses nodes, and is not about the inventory only."""
    names = set(getattr(item, "fixturenames", ()))
    works = (suite.before_allocation for suite in suites())
    asking = {work.fixture for work in works if work is not None and work.needs_nodes}
    return bool(names & (NEEDS_NODES | asking)) and not item.get_closest_marker("inventory")


def may_run(item: pytest.Item, problem: Kind) -> bool:
    """Return True for an item that judges just this: why the node cannot be tested."""
    if item.get_closest_marker("inventory"):
        return True
    return problem is Kind.LOST and item.get_closest_marker("judges_node") is not None
