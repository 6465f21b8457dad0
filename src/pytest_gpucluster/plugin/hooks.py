"""The hooks of a run: its start, the course of its items, and its end in order."""

from __future__ import annotations

import shlex
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.errors import GpuClusterError, NotJudged
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.text import count
from pytest_gpucluster.gate import baseline
from pytest_gpucluster.plugin import reporting
from pytest_gpucluster.plugin.collection import idle, left_out
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.fixtures import LIVE
from pytest_gpucluster.plugin.items import CheckItem, node_of, record_of
from pytest_gpucluster.plugin.option_table import runs_tests
from pytest_gpucluster.plugin.options import refuse_slips
from pytest_gpucluster.plugin.run_end import ENDED, Completeness, LateChecks, RunEnd
from pytest_gpucluster.plugin.run_outputs import about, header, summary
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.describe import labelled
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.machine.run_folder import OF_CAMPAIGN, runs_in_reasons
from pytest_gpucluster.report.run_model import TAKEN_BACK
from pytest_gpucluster.report.terminal.last_screen import closing, colour_of
from pytest_gpucluster.report.terminal.progress import Reminder, progress_now
from pytest_gpucluster.report.terminal.tables import wrapped
from pytest_gpucluster.report.verdict import judge
from pytest_gpucluster.report.waivers import expired
from pytest_gpucluster.run.item_record import clean, one_line

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pytest_gpucluster.report.machine.atomic_write import Reports
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.run.session import ClusterSession


@contextmanager
def ends_unjudged(item: pytest.Item) -> Generator[None, None, None]:
    """Turn NotJudged into pytest's skip, and keep what kind it is for the report."""
    try:
        yield
    except NotJudged as error:
        record_of(item).ended, record_of(item).reason = error.outcome, str(error)
        pytest.skip(f"{error.outcome}: {error}")


STDOUT = 1
LEAST_VERBOSE = -1  # -q; with -qq pytest shows no progress


class Hooks:
    """Registered with pytest once a session is open, in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession, log: EventLog | None, reports: Reports) -> None:
        self.config, self.session, self.log, self.reports = config, session, log, reports
        self.completeness = Completeness(config, session, log)
        self.item_reports = reporting.ItemReports(session, log, reports, self.completeness)
        self.end = RunEnd(session, log, reports)
        self._stopped: int | None = None  # exit code of a run that was stopped
        self._shown = 0  # messages of the session that the summary has shown
        self.late = LateChecks(config, session, self.write_message)
        self._problems_logged = dict(session.plan.problems)
        self._selection_logged = False
        self._reminder: Reminder | None = None
        self.junit_file = reports.folder / "junit.xml" if log is not None else None
        if log is not None:
            self._log_start(log)

    def _log_start(self, log: EventLog) -> None:
        session = self.session
        log.write(
            "start",
            cluster=session.cluster.name,
            simulated=session.simulated,
            arguments=redact.words(map(str, self.config.invocation_params.args)),
            slurm=session.slurm.version if session.slurm else None,
            **about(self.config, session),
        )
        log.write(
            "nodes",
            selected=list(session.plan.selected),
            not_tested={node: [p.kind.value, p.text] for node, p in session.plan.problems.items()},
            slurm={
                node: {"state": info.full_state, "reason": info.reason or ""}
                for node in session.plan.selected
                if (info := session.inventory.get(node)) is not None
            },
            places=self._places(),
            factors=session.cluster.stated_factors(session.plan.selected),
        )

    def _places(self) -> list[dict[str, Any]]:
        """Return what nodes share, with the nodes that share it: the rule of common cause compares within it."""
        session, found = self.session, defaultdict(list)
        leaves = session.leaves() if isinstance(session, Controller) else {}
        for node in session.plan.selected:
            found[session.place(node, leaves)].append(node)
        return [{**vars(place), "nodes": nodes} for place, nodes in found.items()]

    def write_message(self, message: str, **markup: bool) -> None:
        """Write a line to the terminal, with pytest's markup."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(clean(message), **markup)

    # --- the start

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Refuse a slip of -m, once all plugins have named their markers."""
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
        return [
            *header(self.session, left_out(self.config, self.session.cluster)),
            *(
                f"nothing to test: {name}: {clean(why)}"
                for name, why in idle(self.config, self.session.slurm, self.session.cluster).items()
            ),
        ]

    # --- one item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Release the record of an item with the item: its reports have what it found."""
        self.session.last_command(node_of(item))  # of an earlier item
        result = yield
        if type(item) is CheckItem:
            item.record = None
        return result

    def pytest_runtest_logstart(self) -> None:
        """The reports are the latest ones from the first item on, in whatever process it runs."""
        if self.log is not None:
            self._log_selection(self.log)
            self.reports.publish()
            if self._reminder is None and self.config.option.verbose >= LEAST_VERBOSE:
                self._reminder = Reminder(self._how_far, STDOUT)

    def _how_far(self) -> str:
        """Say how far the run is; '' where a suite has just written a line of its own."""
        live = self.config.stash.get(LIVE, None)
        return "" if self.log is None or (live and live.is_recent) else self.log.with_model(progress_now)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """End an item whose facts or fixtures say that it cannot be judged."""
        self.session.item = item
        with ends_unjudged(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """End an item whose check says so."""
        with ends_unjudged(item):
            return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Let the facts of the run clean up after the last item."""
        if nextitem is None:
            self.session.made.end()

    def _log_selection(self, log: EventLog) -> None:
        """Log what the run must prove, before its first result, and which nodes went before they were allocated."""
        if self._selection_logged or self.session.selection is None:
            return
        self._selection_logged = True
        log.write("selection", clean=self.session.selection)
        problems = self.session.plan.problems
        gone = {node: [it.kind.value, it.text] for node, it in problems.items() if node not in self._problems_logged}
        if gone:
            log.write("not_tested", nodes=gone)

    # --- the end

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside that of the terminal, which then ends the progress
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """With the last item the end of the run begins: what is judged after the release of the nodes is judged now."""
        try:
            result = yield
        except BaseException:
            signals.ignore()
            self.late.give_up()
            raise
        signals.ignore()
        self.late.judge()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing is green by absence: no test executed, or a node lost and not reported, is not a success."""
        signals.ignore()
        if self._reminder is not None:
            self._reminder.close()
        try:
            self.session.made.end()  # a run that is stopped has no last item
        except Exception as error:  # noqa: BLE001 - by whatever suite; reports are written and nodes released all the same
            self.session.messages.append(f"a suite could not clean up: {one_line(error)}")
        if self.log is not None:
            self._write_baseline(self.log)
        self.session.forget_answers()  # all is judged, and reports need memory
        stopped = self.session.stopped or (signals.noted() if session.exitstatus in ENDED else "")
        if stopped:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            self.session.messages.append(f"{stopped}{self._way_on()}")
        distributed = session.config.pluginmanager.has_plugin("dsession")
        if distributed and session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self.session.close()  # first: xdist gives its workers 10 s to end
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output["gpucluster"] = [(str(path), why) for path, why in self.reports.problems.items()]
        if self.log is not None and runs_tests(session.config.option):
            self._judge_run(session, self.log, distributed=distributed)

    def _way_on(self) -> str:
        """Return the command that goes on with a suite that was stopped."""
        suite = next((one for one in suites() if one.name == self.session.stopped_by), None)
        if suite is None or not suite.resume or self.log is None:
            return ""
        words = [*reporting.under_conditions(self.config), "-m", suite.name, f"{suite.resume}={self.log.path}"]
        return f"; go on with: {shlex.join(words)}"

    def _write_baseline(self, log: EventLog) -> None:
        """Write the file that gates compare their nodes with, where accepted nodes were compared."""
        path, run = self.session.cluster.gate.baseline, log.model
        if path is None or self.session.channel is None:
            return
        try:
            accepted = [node for node in self.session.under_test() if run.state(node) == "passed"]
            found = baseline.of_session(self.session, accepted, log.run)
            if any(found.answers.values()):
                write_whole(Path(path), baseline.encode(found).encode(), mode=0o644)
        except (GpuClusterError, OSError) as error:
            self.session.messages.append(f"gate.baseline: {error}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker could not write."""
        problems = getattr(node, "workeroutput", {}).get("gpucluster", ())
        self.reports.problems.update((Path(path), why) for path, why in problems)

    def _judge_run(self, session: pytest.Session, log: EventLog, *, distributed: bool) -> None:
        settle(log.model)
        for ended in self.session.ended_early():
            self.session.messages.append(ended)
            log.write("error", message=ended, end=TAKEN_BACK if self.session.taken_back else "")
        self._log_selection(log)
        if not distributed:  # workers end later
            self.session.let_agents_leave()
        if session.exitstatus in ENDED:
            untested = self.completeness.report_untested(session)
            unproved = self.completeness.report_unproved(session)
            complaints = [*expired(log.model), *self.completeness.too_few(), *self._missing_logs(), *self.end.gaps()]
            if session.exitstatus != pytest.ExitCode.TESTS_FAILED and not unproved:
                nothing = self.completeness.nothing_executed()
                complaints = [*(nothing or ([] if untested else self.completeness.not_proved())), *complaints]
            self.session.messages.extend(complaints)
            nothing_chosen = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
            if nothing_chosen and not (untested or unproved):
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
            elif untested or unproved or complaints:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            status = int(session.exitstatus)
            complaints = [f"the run was stopped (exit {status}): the remaining items were not tested"]
        self.end.finish(int(session.exitstatus), complaints)

    def _missing_logs(self) -> list[str]:
        """Complain of logs of steps that could not be written; the other reports are written later."""
        missing = list(self.reports.problems.values())
        more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        return [f"reports are missing: {missing[0]}{more}"] if missing else []

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_sessionfinish")
    def pytest_sessionfinish_reports(self, session: pytest.Session) -> Generator[None, object, object]:
        """Release the nodes and write the reports, even where one of them or another plugin fails."""
        try:
            return (yield)
        finally:
            if self.item_reports.equal is not None:
                self.item_reports.equal.name_groups()
            elif self.log is not None:
                self._name_common(self.log)
            self.session.start_releasing()  # fixtures that need the nodes are torn down
            if not hasattr(self.config, "workerinput"):
                self.end.write(session)

    def _name_common(self, log: EventLog) -> None:
        """With -v: put the cause of a finding of the cluster into the failure of each of its nodes."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        failed = {report.nodeid: report for report in (terminal.stats.get("failed", ()) if terminal else ())}
        for result in log.model.results:
            report = failed.get(result.nodeid) if result.common else None
            if report is not None and isinstance(report.longrepr, reporting.FailureText):
                report.longrepr.text = result.text

    def write_junit(self) -> None:
        """Write the JUnit file, where there is one."""
        if self.junit_file is None or self.log is None or self.end.stated is None:
            return
        with self.reports.writing(self.junit_file):
            junit.write(self.log.model, self.junit_file, group=self.reports.group)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember how a run was stopped: before its first test pytest has no pytest_sessionfinish for it."""
        code = getattr(excinfo.value, "returncode", None)
        self._stopped = int(pytest.ExitCode.INTERRUPTED if code is None else code)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """End with nodes by suites, the metrics, what was not covered, the files, and errors."""
        if self.log is None or not runs_tests(self.config.option):
            return
        session = self.session
        terminalreporter.section(f"cluster {labelled(session.cluster.name, simulated=session.simulated)}")
        lines: Iterable[str] = summary(session, self.log.model, verbose=self.config.get_verbosity() > 0)
        if terminalreporter.isatty:  # a file is searched by whole lines
            lines = wrapped(lines, get_terminal_size().columns)
        for line in lines:
            terminalreporter.write_line(clean(line))
        for message in session.messages:
            terminalreporter.write_line(clean(f"ERROR: {message}"), red=True)
        self._shown = len(session.messages)

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_sessionfinish")
    def pytest_sessionfinish_last_screen(self) -> Generator[None, object, object]:
        """Show the verdict below the last line of pytest: nearest to the prompt."""
        result = yield
        if self.log is not None and self.reports.is_published:
            verdict, *lines = closing(self.log.model, get_terminal_size().columns)
            self.write_message(verdict, bold=True, **{colour_of(judge(self.log.model).outcome): True})
            for line in lines:
                self.write_message(line)
            names = [path.name for path in self.reports.written if path.parent == self.reports.folder]
            if names:
                self.write_message(f"reports: {self.reports.folder}: {', '.join(sorted(names))}")
        return result

    def pytest_unconfigure(self) -> None:
        """Release the nodes in any case."""
        signals.ignore()  # a run that is stopped before its first test has no pytest_sessionfinish
        self.session.release_nodes()
        self.session.close()
        for message in getattr(self.session, "left_behind", ()):
            self.write_message(f"ERROR: {message}")
            if self.log is not None:
                self.log.write("error", message=message)
        alone = hasattr(self.config, "workerinput") or signals.is_only_pytest()
        if alone:
            signals.over()
        self._settle()
        self._remove_old_reports()
        if not alone:
            signals.restore_handlers()

    def _remove_old_reports(self) -> None:
        """Remove the reports of old runs that nothing names, and print which."""
        if not self.reports.is_published:
            if not OF_CAMPAIGN:  # which reads how it ended
                self.reports.close()  # the folder of this run
            return
        named = runs_in_reasons({info.reason or "" for info in self.session.inventory.values()})
        memory = self.config.pluginmanager.get_plugin("gpucluster-history")
        try:
            named |= memory.runs() if memory is not None else set()
        except (GpuClusterError, OSError) as error:
            self.write_message(f"reports of old runs stay: the history cannot be read: {error}")
            return
        removed = self.reports.close(named)
        if removed:
            most = self.session.cluster.reports.keep
            self.write_message(
                f"reports of {count(len(removed), 'old run')} removed (reports.keep: {most}): {', '.join(removed)}"
            )

    def _settle(self) -> None:
        """State the exit status that the process ends with everywhere; show messages that no summary has shown."""
        session = self.config.pluginmanager.get_plugin("session")
        if self.end.stated is None and self._stopped is not None:
            self.end.finish(self._stopped, [f"the run was stopped (exit {self._stopped}): nothing is tested"])
        elif session is not None:
            self.end.settle(session)
        for message in self.session.messages[self._shown :]:
            self.write_message(f"ERROR: {message}")
        if self.log is not None:
            self.log.close()
