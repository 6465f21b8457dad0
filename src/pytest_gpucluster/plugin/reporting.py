"""From pytest's reports to annotation, JUnit names and events: all that is reported about one item."""

from __future__ import annotations

import copy
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.waivers import AVAILABLE
from pytest_gpucluster.drain.policy import own_reason
from pytest_gpucluster.plugin.collection import NAME
from pytest_gpucluster.plugin.items import WAIVED, CheckItem, marks_of, needs_nodes, node_of, record_of, suite_of
from pytest_gpucluster.plugin.option_table import attribute_of
from pytest_gpucluster.report.describe import describe
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.proof import CLUSTER, ENGINE_CHECK, RUN_SUITE
from pytest_gpucluster.report.result import RED, Annotation, read_result
from pytest_gpucluster.run.facts import CheckFailed
from pytest_gpucluster.run.item_record import Record, clean, clean_all, clean_pair, is_clean

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.plan import Problem
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.waivers import Waiver
    from pytest_gpucluster.plugin.equal_failures import EqualFailures
    from pytest_gpucluster.plugin.run_end import Completeness
    from pytest_gpucluster.report.machine.atomic_write import Reports
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.run.session import ClusterSession


NO_KEYWORDS: Mapping[str, Literal[1]] = MappingProxyType({})
MAX_TEXT = 20_000  # characters of a failure in the event log
LONG_COMMAND = 400  # a longer one is no help to a person at a prompt


@dataclass
class Crash:
    """Where and why an item failed, as pytest's summary shows it."""

    path: str
    lineno: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}"


@dataclass
class FailureText:
    """The text of a failure, as pytest shows a `longrepr`."""

    text: str
    reprcrash: Crash
    sections: list[tuple[str, str]] = field(default_factory=list)

    def addsection(self, name: str, content: str) -> None:
        """Add a section with a heading."""
        self.sections.append((name, content))

    def toterminal(self, out: Any) -> None:
        """Write the text to pytest's terminal."""
        out.line(self.text)
        for name, content in self.sections:
            out.sep("-", name)
            out.line(content)

    def __str__(self) -> str:
        sections = (f"{f' {name} ':-^80}\n{content}" for name, content in self.sections)
        return "\n".join((self.text, *sections))


def is_waived(report: pytest.TestReport) -> bool:
    """Return True for a failure or an error that a waiver of the cluster file covers."""
    return report.skipped and "waiver" in getattr(report, "gpucluster", {})


class ItemReports:
    """Registered with pytest: the reports of items, in the controller and in every xdist worker.

    `equal`: in the controller, without -v.
    """

    def __init__(
        self, session: ClusterSession, log: EventLog | None, reports: Reports, completeness: Completeness
    ) -> None:
        self.session, self.log, self.reports, self.completeness = session, log, reports, completeness
        self.equal: EqualFailures | None = None
        self._subtests: dict[str, pytest.TestReport] = {}  # item -> its first failing subtest
        self._lost_logged: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put record and annotation into the report."""
        report = yield
        enrich(item, call, report, self.session)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Count the item, and write its event; retain little of one that passed: what pytest's summary shows of it."""
        if self.log is not None and not (report.passed and report.when != "call"):
            if getattr(report, "context", None) is None:
                failed = self._subtests.pop(report.nodeid, report) if report.when == "call" else report
                self._count(failed, self.log)
            elif report.failed:  # a subtest: the item is one result
                self._subtests.setdefault(report.nodeid, report)
        result = yield
        if report.passed:
            report.__dict__.pop("gpucluster", None)
            report.keywords, report.user_properties = NO_KEYWORDS, []
        return result

    def _count(self, report: pytest.TestReport, log: EventLog) -> None:
        """Count an item and write its event: in the controller, for all workers."""
        restore(report)
        message = message_of(report)
        if str(report.outcome) == "rerun":  # pytest-rerunfailures: it failed, and is tried again
            record = getattr(report, "gpucluster", {})
            attempt = {**result_event(report, "rerun", message), **record}
            log.write("rerun", **attempt)
            return
        outcome = classify(report)
        if outcome is None:
            return
        if not hasattr(report, "gpucluster"):  # xdist's own report of an item whose worker crashed
            report.__dict__["gpucluster"] = record_of_nodeid(report.nodeid, self.session)
        for key in ("ended", "contradicted"):  # the outcome and the reason have it
            report.gpucluster.pop(key, None)
        node = report.gpucluster["node"]
        if outcome == "error" or (outcome == "failed" and "judges_node" in report.keywords):
            self.completeness.reported.add(node)
        self.reports.publish()
        event = result_event(report, outcome, message)
        if holds_no_secret(event):
            log.write("result", clean={**event, **report.gpucluster})
        else:
            log.write("result", clean=report.gpucluster, **event)
        if self.equal is not None and outcome in RED:
            self.equal.add(report)
        self._log_lost(log)
        if outcome == "not tested":
            self.completeness.stop_at(node)

    def _log_lost(self, log: EventLog) -> None:
        lost = self.session.lost()
        if len(lost) > len(self._lost_logged):
            for node in set(lost) - self._lost_logged:
                self._lost_logged.add(node)
                log.write("lost", node=node, why=lost[node].text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count what a waiver covers apart from skips."""
        return ("waived", "w", "WAIVED") if is_waived(report) else None


def classify(report: pytest.TestReport) -> str | None:
    """Return what one phase of an item says: passed, failed, error, or why it was skipped; None: nothing yet.

    An exception in setup or teardown is an error (the infrastructure broke), in the test a failure (the node is
    bad).
    """
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    if report.outcome == "skipped":
        record = getattr(report, "gpucluster", {})
        return WAIVED if "waiver" in record else record.get("ended") or "skipped"
    return "passed" if report.when == "call" else None


def enrich(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, session: ClusterSession) -> None:
    """Put the item's record, and on failure the annotation, into each report that is counted."""
    # what was captured too: XML cannot hold all that a node prints, and an environment holds secrets
    if report.sections:
        report.sections = [(clean(name), clean(content)) for name, content in report.sections]
    if report.passed and report.when != "call":
        return  # two of three reports: their record is not used
    record = record_of(item)
    plainly = record.as_dict()
    report.__dict__["gpucluster"] = plainly  # extra attributes travel with reports, through xdist too
    _add_properties(item, report, plainly, session)
    # (path, line, reason): the reason is of the node
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        if record.ended:  # where the check is, not where its facts are made
            where, first, _ = item.reportinfo()
            path, line = str(where), (first or 0) + 1
        report.longrepr = (path, line, clean(reason))
    if report.failed and call.excinfo is not None:
        _show_failure(item, call.excinfo, report, session)


def _show_failure(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], report: pytest.TestReport, session: ClusterSession
) -> None:
    record, plainly = record_of(item), report.__dict__["gpucluster"]
    told = plainly["annotation"] = annotation(item, record, session)
    error = excinfo.value
    if report.when == "call" and not isinstance(error, (AssertionError, pytest.fail.Exception)):
        report.when = (
            "setup"  # broken infrastructure or code is JUnit's <error>, wherever it shows: no verdict on the node
        )
    if isinstance(error, (CheckFailed, GpuClusterError)):
        path, line, _ = item.location  # our traceback would tell an operator nothing
        report.longrepr = shown(path, (line or 0) + 1, clean(str(error)), told)
    else:
        if isinstance(item, CheckItem):
            report.longrepr = item.repr_failure(excinfo)  # in its setup too
        report.longrepr = text = redacted(report)
        text.addsection(f"node {record.node or CLUSTER}", "\n".join(Annotation.read(told).lines))
    if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        report.__dict__["gpucluster_crash"] = [str(crash.path), crash.lineno, crash.message]
    if report.when != "teardown":  # what breaks there is no result of the check
        waive(report, session)


def waive(report: pytest.TestReport, session: ClusterSession) -> bool:
    """Let a failure or an error that a waiver of the cluster file covers not fail the run; return whether one does.

    pytest gets a skip with the reason and the failure. What was found stays in the record, which all reports show.
    """
    record = report.__dict__["gpucluster"]
    parts = [str(Part.read(found["part"])) for verdict in record["verdicts"] for found in verdict["findings"]]
    waivers = session.cluster.waivers_of(record["check"], record["node"], parts)
    if not waivers and "judges_node" in report.keywords:  # that the node is out of service in Slurm
        waivers = session.cluster.waivers_of(AVAILABLE, record["node"], ())
    if not waivers:
        return False
    _waive(report, waivers)
    return True


def _waive(report: pytest.TestReport, waivers: tuple[Waiver, ...]) -> None:
    record = report.__dict__["gpucluster"]
    message, words = message_of(report), clean("; ".join(waiver.words for waiver in waivers))
    record["waiver"] = {
        "at": [clean(waiver.at) for waiver in waivers],
        "words": words,
        "outcome": "failed" if report.when == "call" else "error",
        "message": message,
        "text": shortened(clean(report.longreprtext)),
    }
    path, line, _ = report.location
    report.outcome = "skipped"
    report.longrepr = (path, (line or 0) + 1, f"{WAIVED}: {words}; {message}")


def _add_properties(
    item: pytest.Item, report: pytest.TestReport, plainly: dict[str, Any], session: ClusterSession
) -> None:
    foreign = ((name, str(value)) for name, value in item.user_properties if not is_own_property(name))
    # nothing else reads them
    own = properties({**plainly, "outcome": report.outcome}, session) if item.config.getoption("xmlpath", None) else ()
    item.user_properties[:] = [*((clean(name), clean_pair(name, value)) for name, value in foreign), *own]
    report.user_properties = list(item.user_properties)


def redacted(report: pytest.TestReport) -> Any:
    """Return what shows a failure, without secrets and control characters: a diff shows what a node sent as it is."""
    shown: Any = report.longrepr
    text = str(shown)
    if clean(text) == text and hasattr(shown, "addsection"):
        return shown
    crash = getattr(shown, "reprcrash", None)
    path, line = (crash.path, crash.lineno) if crash is not None else (report.location[0], 0)
    message = crash.message if crash is not None else next(iter(text.splitlines()), "")
    return FailureText(clean(text), Crash(str(path), line, clean(message)))


def restore(report: pytest.TestReport) -> None:
    """Give a report that has come from an xdist worker as text back what pytest's summary shows of its failure."""
    crash = getattr(report, "gpucluster_crash", None)
    if crash is not None and isinstance(report.longrepr, str):
        report.longrepr = FailureText(report.longrepr, Crash(*crash))  # type: ignore[assignment] # shown by toterminal()


def shown(path: str, line: int, message: str, told: dict[str, Any]) -> Any:
    """Show a failure by its message and the lines of its annotation."""
    lines = Annotation.read(told).lines
    return FailureText("\n".join((message, *lines)), Crash(path, line, next(iter(message.splitlines()), "")))


def annotation(item: pytest.Item, record: Record, session: ClusterSession) -> dict[str, Any]:
    """Return the annotation of a failing item: the node's state in Slurm, and the commands that reproduce it."""
    # without its option such an item is left out
    required = [f"--{mark}" for mark in ("slow", "intrusive") if mark in marks_of(item)]
    nodes = session.under_test() if not node_of(item) and needs_nodes(item) else ()
    fewer = 0 < len(nodes) < sum(len(group.names) for group in session.cluster.groups)
    words = [*under_conditions(item.config, suite_of(item)), *required]
    only, test = hostlist.fold(nodes) if fewer else "", [_address(item)]
    return _annotated(session, record.node, by_hand(record, session) or None, words, only, test)


def _annotated(
    session: ClusterSession,
    node: str,
    reproduce: Sequence[str] | None,
    words: Sequence[str],
    only: str = "",
    test: Sequence[str] = (),
) -> dict[str, Any]:
    """Return an annotation. `reproduce`: None for the command that runs the test again; `words`: of that, before nodes and test."""
    state, reason = info.annotation() if (info := session.entry(node)) else ("", "")
    rerun = shlex.join([*words, *([f"--nodes={only}"] if only else []), *test])
    alike = (*words[2:], *(one.partition("[")[0] for one in test))  # without pytest --cluster=NAME
    commands = (rerun,) if reproduce is None else tuple(reproduce)
    note = "SIMULATED hardware (sandbox)" if session.simulated else ""
    plain: dict[str, Any] = clean_all(Annotation(state, reason, commands, rerun, note, alike)._asdict())
    return plain


def under_conditions(config: pytest.Config, suite: str = "") -> list[str]:
    """Return the words of a command that starts a run on the same cluster, under the same conditions."""
    option = config.option
    given = [word for text in option.set for word in ("--set", text)]
    values = {"--profile": option.profile}
    for one in (one for one in suites() if one.name == suite):
        values |= {name: getattr(option, attribute_of(name, **one.options[name])) for name in one.again}
    return [
        *("pytest", f"--cluster={option.cluster}", *given),
        *(f"{name}={value}" for name, value in values.items() if value),
    ]


def after_return(node: str, session: ClusterSession, config: pytest.Config) -> str:
    """Return the command that tests a node which this run could not get: Slurm gives a drained one to no job."""
    info = session.entry(node)
    if session.slurm is None or info is None or "DRAIN" not in info.flags:
        return shlex.join([*under_conditions(config), f"--nodes={node}"])
    if (mine := own_reason(info)) is not None:
        return retest_line([node], mine.checks, session, config)
    # no `&&`: a pasted line must not put into service what somebody drained for a reason
    return f"{shlex.join([*under_conditions(config), f'--nodes={node}'])}  # first let who drained {node} resume it"


def retest_line(nodes: Sequence[str], checks: Iterable[str], session: ClusterSession, config: pytest.Config) -> str:
    """Return the line that tests nodes which gpucluster drained for these checks, in a reservation, and resumes what passes."""
    known = {one.name for one in suites()}
    chosen = list(dict.fromkeys(check.partition(".")[0] for check in checks))
    only = ["-m", " or ".join(chosen)] if known.issuperset(chosen) else []
    folded, conditions = hostlist.fold(nodes), under_conditions(config, *chosen[:1])
    words = shlex.join([*conditions, *only, f"--nodes={folded}", "--resume-passing"])
    if session.cluster.slurm.reservation:
        return words
    name = f"retest-{nodes[0]}"
    scontrol = shlex.join([*slurm_conf(session), "scontrol"])
    made = f"Nodes={shlex.quote(folded)} Users=$(id -un) Flags=maint,ignore_jobs StartTime=now Duration=1-0"
    return (
        f"{scontrol} create reservation ReservationName={name} {made} && "
        f"{words} --set slurm.reservation={name}; {scontrol} delete ReservationName={name}"
    )


def untested(node: str, problem: Problem, session: ClusterSession, config: pytest.Config) -> list[pytest.TestReport]:
    """Return the reports of a node that should have been tested and could not be: an error of a name that stays.

    As pytest's own: of the set-up, which failed, and of the teardown, after which other plugins take an item as ended.
    """
    state = "was lost" if problem.lost else "is not tested"
    message = f"{node} {state}: {clean(problem.text)}"
    name = f"{junit.NODE_TEST}[{node}]"
    state_of = ["scontrol", "show", "node", node] if session.slurm is not None else ["ssh", node, "true"]
    shown_by = [shlex.join([*slurm_conf(session), *state_of])]
    told = _annotated(session, node, shown_by, under_conditions(config), node)
    told["rerun"] = clean(after_return(node, session, config))
    waiver = session.cluster.waiver(AVAILABLE, node)
    waivers = (waiver,) if waiver is not None else ()
    return _broken(RUN_SUITE, AVAILABLE.partition(".")[2], node, name, message, told, waivers)


def waivers_of_proof(suite: str, node: str, checks: Sequence[str], cluster: Cluster) -> tuple[Waiver, ...]:
    """Return the waivers that cover what a suite has not proved of a node: of SUITE.proved, or of every check that lacks a result."""
    whole = cluster.waiver(f"{suite}.{ENGINE_CHECK}", node)
    if whole is not None:
        return (whole,)
    # a check of the cluster as a whole may be part of the proof of each node
    of_checks = [cluster.waiver(check, node) or cluster.waiver(check, "") for check in checks]
    known = tuple(dict.fromkeys(waiver for waiver in of_checks if waiver is not None))
    return known if of_checks and None not in of_checks else ()


def unproved(
    suite: str, node: str, message: str, waivers: tuple[Waiver, ...], session: ClusterSession, config: pytest.Config
) -> list[pytest.TestReport]:
    """Return the reports of a node ('': the cluster) that a suite has not proved: an error of a name that stays."""
    test: Sequence[str] = ()
    if suite in {one.name for one in suites()}:
        test = "-m", suite
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        test = config.args
    told = _annotated(session, "", (), under_conditions(config, suite), node, test)
    name = f"test_{ENGINE_CHECK}[{node}]" if node else f"test_{ENGINE_CHECK}"
    return _broken(suite, ENGINE_CHECK, node, name, message, told, waivers)


def _broken(
    suite: str, check: str, node: str, name: str, message: str, told: dict[str, Any], waivers: tuple[Waiver, ...]
) -> list[pytest.TestReport]:
    """Return the reports of an item that pytest does not have: of its set-up, which failed, and of its teardown."""
    record = Record(suite, f"{suite}.{check}", node).as_dict() | {"annotation": told}
    shared: dict[str, Any] = {
        "nodeid": f"{suite}::{name}",
        "location": (suite, None, name),
        "keywords": {},
        "gpucluster": record,
    }
    text = shown(suite, 0, message, told)
    # broken infrastructure is an error, never a failure
    broken = pytest.TestReport(outcome="failed", longrepr=text, when="setup", **shared)
    if waivers:
        _waive(broken, waivers)
    return [broken, pytest.TestReport(outcome="passed", longrepr=None, when="teardown", **shared)]


def of_run(verdict: Verdict, name: str, session: ClusterSession, config: pytest.Config) -> list[pytest.TestReport]:
    """Return the reports of a failure that no item has, since it is of the cluster file: of its call, and of the teardown."""
    record = Record(RUN_SUITE, verdict.check, "")
    record.add(verdict)
    told = _annotated(session, "", (), under_conditions(config))
    plainly = record.as_dict() | {"annotation": told}
    test = f"test_{verdict.check.partition('.')[2]}[{name}]"
    shared: dict[str, Any] = {
        "nodeid": f"{RUN_SUITE}::{test}",
        "location": (RUN_SUITE, None, test),
        "keywords": {},
        "gpucluster": plainly,
    }
    text = shown(RUN_SUITE, 0, clean(describe(verdict, verdict.check, "")), told)
    failed = pytest.TestReport(outcome="failed", longrepr=text, when="call", **shared)
    waive(failed, session)
    return [failed, pytest.TestReport(outcome="passed", longrepr=None, when="teardown", **shared)]


def log_apart(reports: list[pytest.TestReport], config: pytest.Config) -> bool:
    """Log reports that are no part of the progress: the terminal shows the first among the failures; False: it is waived."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    log = config.pluginmanager.subset_hook_caller(
        "pytest_runtest_logreport", [terminal] if terminal is not None else []
    )
    for report in reports:
        log(report=report)
    first = reports[0]
    if terminal is not None:
        apart = first.__dict__["gpucluster_shown"] = named_from_here(first, config)
        category = "waived" if first.skipped else "failed" if first.when == "call" else "error"
        alike = " alike" if getattr(first, "gpucluster_equal", False) else ""
        terminal.stats.setdefault(f"{category}{alike}", []).append(apart)
    return not first.skipped


def named_from_here(report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    """Return the report with an id that the summary shows as it is: pytest takes an id for a path from the root."""
    here = config.invocation_params.dir
    if here == config.rootpath:
        return report
    shown = copy.copy(report)
    shown.nodeid = f"{here / report.nodeid}"
    return shown


def _address(item: pytest.Item) -> str:
    """Return what names the item to pytest from the folder that this run was started in."""
    file, _, name = item.nodeid.partition("::")
    here = (item.config.invocation_params.dir / file).exists()
    return item.nodeid if here or file.startswith(f"{NAME}/") else f"{item.path}::{name}"


def by_hand(record: Record, session: ClusterSession) -> list[str]:
    """Return the commands that repeat the item's measurements from a login node."""
    shown_by = [verdict.shown_by for verdict in record.verdicts if verdict.shown_by]
    if of_steps := shown_by or record.commands[-1:]:
        conf = shlex.join(slurm_conf(session))
        return [f"{conf} {command.removeprefix('env ')}" if conf else command for command in of_steps]
    commands: list[str] = []
    where = srun_words(record.node, session) if session.slurm is not None else []
    parts = [finding.part for verdict in record.verdicts for finding in verdict.findings]
    shell = [session.facts.rooted(probe, probe.by_hand or probe.command) for probe in record.probes]
    if (about := CHECKS.get(record.check)) and about.show:
        shell = [about.show]
    shell = [command for verdict in record.verdicts for command in verdict.shell] or shell
    shell = [for_parts(command, parts) for command in shell]
    for command in shell or filter(None, [session.last_command(record.node)]):
        if len(command) <= LONG_COMMAND:
            words = [*where, "sh", "-c", command]
            if session.cluster.access == "ssh" and record.node:  # a shell of the node reads it once more
                words = ["ssh", record.node, shlex.join(words)]
            commands.append(shlex.join(words))
    return commands


def slurm_conf(session: ClusterSession) -> list[str]:
    """Return the words before a command of Slurm that name the cluster's slurm.conf; [] for the usual one."""
    conf = session.cluster.slurm.conf
    return ["env", f"SLURM_CONF={conf}"] if conf else []


def srun_words(node: str, session: ClusterSession) -> list[str]:
    """Return the srun of a login node's prompt that runs a command on this node."""
    slurm = session.cluster.slurm
    options = {
        "partition": session.cluster.group_of(node).partition or slurm.partition if node else slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "reservation": slurm.reservation,
    }
    return [
        *slurm_conf(session),
        *(f"{slurm.bin}/srun" if slurm.bin else "srun", "-N1"),
        *(["-w", node] if node else []),
        *(f"--{name}={value}" for name, value in options.items() if value),
    ]


def properties(plainly: dict[str, Any], session: ClusterSession) -> list[tuple[str, str]]:
    """Return the JUnit properties of an item: plain text, stable names."""
    info = session.inventory.get(plainly["node"])
    found = junit.properties(
        read_result(plainly),
        state=info.full_state if info is not None else "",
        reason=info.reason or "" if info is not None else "",
        simulated=session.simulated,
    )
    return [(clean(name), clean(value)) for name, value in found]


OWN_PROPERTIES = {
    "suite", "check", "node", "slurm_state", "slurm_reason", "simulated",
    "action", "finding", "finding_data", "warning", "waiver",
}  # fmt: skip


def is_own_property(name: str) -> bool:
    """Return True for the name of a property that this plugin writes."""
    return name in OWN_PROPERTIES or name.startswith("metric ")


def message_of(report: pytest.TestReport) -> str:
    """Return the first line of why a report is not green."""
    if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr or "")
    return text.splitlines()[0] if text else ""


def record_of_nodeid(nodeid: str, session: ClusterSession) -> dict[str, Any]:
    """Return the record of an item that is known by its id only."""
    path, _, rest = nodeid.partition("::")
    name, _, inside = rest.rpartition("::")[2].partition("[")
    suite = PurePath(path).stem.removeprefix("test_")
    inside = f"-{inside.removesuffix(']')}-"
    node = max((node for node in session.nodes if f"-{node}-" in inside), key=len, default="")
    return Record(suite, f"{suite}.{name.removeprefix('test_')}", node).as_dict()


def result_event(report: pytest.TestReport, outcome: str, message: str) -> dict[str, Any]:
    """Return the fields of a `result` event, without those of the item's record."""
    fields: dict[str, Any] = {
        "nodeid": report.nodeid,
        "outcome": outcome,
        "phase": report.when,
        "seconds": round(report.duration, 4),
        "message": message,
    }
    # what JUnit and HTML show of it, also where they are made from the log of a killed run
    if report.failed or outcome == "rerun":
        fields["text"] = shortened(clean(report.longreprtext))
        fields["output"] = shortened(clean("\n".join(text for _, text in report.sections if text)))
    if foreign := [list(pair) for pair in report.user_properties if not is_own_property(pair[0])]:
        fields["properties"] = foreign
    return fields


def holds_no_secret(event: dict[str, Any]) -> bool:
    """Return True for the event of an item that passed without output, where its node id holds no secret."""
    if event["message"] or "properties" in event or "text" in event:
        return False
    return all(map(is_clean, event["nodeid"].partition("[")))  # the test, and the node: both come again


def shortened(text: str) -> str:
    """Keep both ends of a text that is too long for a log of thousands of items."""
    half = MAX_TEXT // 2
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
