"""From pytest's reports to annotation, JUnit names and events: everything that is said about one item."""

from __future__ import annotations

import copy
import shlex
import xml.etree.ElementTree as ET
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.expect import CheckFailed
from pytest_gpucluster.plugin.item_result import Record, clean, clean_pair, is_clean, record_of
from pytest_gpucluster.plugin.junit_stream import JUnitFile, Testcases, has_name
from pytest_gpucluster.plugin.plan import Kind
from pytest_gpucluster.plugin.summary import CLUSTER
from pytest_gpucluster.report import junit

if TYPE_CHECKING:
    from pytest_gpucluster.plugin.plan import Problem
    from pytest_gpucluster.plugin.session import ClusterSession

MAX_TEXT = 20_000  # characters of a failure in the event log
LONG_COMMAND = 400  # a longer one is no help to a person at a prompt


def enrich(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, session: ClusterSession
) -> None:
    """Put the item's record, and on failure the annotation, into each report that is counted."""
    # what was captured too: XML cannot hold all that a node prints, and an environment holds secrets
    report.sections = [(clean(name), clean(content)) for name, content in report.sections]
    if report.passed and report.when != "call":
        return  # two of three reports: nobody reads their record
    record = record_of(item)
    plainly = record.as_dict()
    report.__dict__["gpucluster"] = plainly  # extra attributes travel with reports, through xdist too
    if report.when == "call" or not report.passed:
        item.user_properties[:] = [*_foreign(item), *properties(plainly, session)]
        report.user_properties = list(item.user_properties)
    if report.skipped and isinstance(
        report.longrepr, tuple
    ):  # (path, line, reason): the reason is of the node
        path, line, reason = report.longrepr
        report.longrepr = (path, line, clean(reason))
    if not report.failed or call.excinfo is None:
        return
    lines = annotation(item, record, session)
    plainly["annotation"] = lines
    error = call.excinfo.value
    if isinstance(error, GpuClusterError) and report.when == "call":
        report.when = "setup"  # broken infrastructure is JUnit's <error>, wherever it shows
    if isinstance(error, (CheckFailed, GpuClusterError)):
        report.longrepr = plain(item, clean(str(error)), lines)
    elif isinstance(report.longrepr, ExceptionRepr):
        clean_explanation(report.longrepr)
        report.longrepr.addsection(f"node {record.node or CLUSTER}", "\n".join(lines))


def clean_explanation(shown: ExceptionRepr) -> None:
    """Take control characters out of pytest's own words: the diff of an assert shows what a node sent as it is."""
    for traceback, crash, _ in getattr(shown, "chain", ()):
        for entry in traceback.reprentries:
            entry.lines = clean("\n".join(entry.lines)).split("\n")  # at once: a private key has many
            arguments, variables = getattr(entry, "reprfuncargs", None), getattr(entry, "reprlocals", None)
            if arguments is not None:
                arguments.args = [(name, clean(value)) for name, value in arguments.args]
            if variables is not None:
                variables.lines = clean("\n".join(variables.lines)).split("\n")
        if crash is not None:
            crash.message = clean(crash.message)


def plain(item: pytest.Item, message: str, lines: list[str]) -> ReprExceptionInfo:
    """Show a failure by its own words; our traceback would tell an operator nothing."""
    path, line, _ = item.location
    return _shown(path, (line or 0) + 1, message, lines)


def _shown(path: str, line: int, message: str, lines: list[str]) -> ReprExceptionInfo:
    return ReprExceptionInfo(
        reprcrash=ReprFileLocation(path, line, message.splitlines()[0] if message else ""),
        reprtraceback=ReprTraceback(
            [ReprEntryNative(["\n".join((message, *lines)) + "\n"])], None, style="native"
        ),
    )


def annotation(item: pytest.Item, record: Record, session: ClusterSession) -> list[str]:
    """Say of a failing item: what Slurm knows of the node, and how to look again by hand."""
    lines: list[str] = []
    info = session.inventory.get(record.node)
    if info is not None:
        lines.extend(info.annotation())
    lines.extend(f"by hand:      {command}" for command in by_hand(record, session))
    option = shlex.quote(f"--cluster={item.config.option.cluster}")
    lines.append(f"again:        pytest {option} {shlex.quote(_address(item))}")
    return [clean(line) for line in (*lines, *_simulated(session))]


def untested(
    node: str, problem: Problem, session: ClusterSession, config: pytest.Config
) -> list[pytest.TestReport]:
    """Return the reports of a node that should have been tested and could not be: an error of a name that stays.

    As pytest's own: of the set-up, which failed, and of the teardown, which JUnit takes the properties from.
    """
    told = "was lost" if problem.kind in (Kind.LOST, Kind.CUT) else "is not tested"
    message = f"{node} {told}: {clean(problem.text)}"
    name = f"{junit.NODE_TEST}[{node}]"
    record = Record(junit.RUN_SUITE, f"{junit.RUN_SUITE}.available", node).as_dict()
    info = session.inventory.get(node)
    option = shlex.quote(f"--cluster={config.option.cluster}")
    lines = [
        *(info.annotation() if info is not None else ()),
        f"again:        pytest {option} --nodes={node}",
    ]
    lines = record["annotation"] = [clean(line) for line in (*lines, *_simulated(session))]
    shared: dict[str, Any] = {
        "nodeid": f"{junit.RUN_SUITE}::{name}",
        "location": (junit.RUN_SUITE, None, name),
        "keywords": {},
        "user_properties": properties(record, session),
        "gpucluster": record,
    }
    shown = _shown(junit.RUN_SUITE, 0, message, lines)
    # broken infrastructure is an error, never a failure
    broken = pytest.TestReport(outcome="failed", longrepr=shown, when="setup", **shared)
    return [broken, pytest.TestReport(outcome="passed", longrepr=None, when="teardown", **shared)]


def named_from_here(report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    """Return the report with an id that the summary shows as it is: pytest takes an id for a path from the root."""
    here = config.invocation_params.dir
    if here == config.rootpath:
        return report
    shown = copy.copy(report)
    shown.nodeid = f"{here / report.nodeid}"
    return shown


def _simulated(session: ClusterSession) -> list[str]:
    return ["note:         SIMULATED hardware (sandbox)"] if session.cluster.simulated else []


def _address(item: pytest.Item) -> str:
    """Return what names the item to pytest from the folder that this run was started in."""
    file, _, name = item.nodeid.partition("::")
    here = (item.config.invocation_params.dir / file).exists()
    return item.nodeid if here else f"{item.path}::{name}"  # the suites of the installed package


def by_hand(record: Record, session: ClusterSession) -> list[str]:
    """Return the commands that repeat the item's measurements from a login node."""
    if record.commands:
        return record.commands[-1:]
    where = srun_words(record.node, session) if session.slurm is not None else []
    commands = []
    for probe in record.probes:
        command = session.rooted(probe, probe.by_hand or probe.command)
        if len(command) <= LONG_COMMAND:
            words = [*where, "sh", "-c", command]
            if session.cluster.access == "ssh" and record.node:  # a shell of the node reads it once more
                words = ["ssh", record.node, shlex.join(words)]
            commands.append(shlex.join(words))
    return commands


def srun_words(node: str, session: ClusterSession) -> list[str]:
    """Return the srun of a login node's prompt that runs a command on this node."""
    asked = session.cluster.slurm
    options = {
        "partition": session.cluster.group_of(node).partition or asked.partition if node else asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "reservation": asked.reservation,
    }
    return [
        *(["env", f"SLURM_CONF={asked.conf}"] if asked.conf else []),
        *(f"{asked.bin}/srun" if asked.bin else "srun", "-N1"),
        *(["-w", node] if node else []),
        *(f"--{name}={value}" for name, value in options.items() if value),
    ]


def properties(plainly: dict[str, Any], session: ClusterSession) -> list[tuple[str, str]]:
    """Return the JUnit properties of an item: plain text, stable names."""
    info = session.inventory.get(plainly["node"])
    found = junit.properties(
        plainly,
        state=info.state if info is not None else "",
        reason=info.reason or "" if info is not None else "",
        simulated=session.cluster.simulated,
    )
    return [(clean(name), clean(value)) for name, value in found]


OURS = {"suite", "check", "node", "slurm_state", "slurm_reason", "simulated", "action", "finding", "warning"}


def _foreign(item: pytest.Item) -> list[tuple[str, object]]:
    return [(name, clean_pair(name, str(value))) for name, value in item.user_properties if not is_ours(name)]


def is_ours(name: str) -> bool:
    """Return True for the name of a property that this plugin writes."""
    return name in OURS or name.startswith("metric ")


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


def name_testcases(
    config: pytest.Config, reruns: dict[str, list[dict[str, Any]]], *, at_scale: bool
) -> JUnitFile | None:
    """Give every testcase its stable Jenkins name, and the annotation as its output.

    `at_scale`: write them out as they end. None where there is no JUnit.

    pytest opens a second testcase where a failed test's teardown breaks too, and freezes both before any hook sees
    them: so the names are given where testcases are opened. `reruns` are the earlier attempts of items by their id.
    """
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - only runs that write JUnit need it

    xml: Any = config.stash.get(xml_key, None)
    if xml is None:
        return None
    opened = xml._opentestcase  # noqa: SLF001 - pytest has no other door to it

    def named(report: pytest.TestReport) -> Any:
        reporter = opened(report)
        record = getattr(report, "gpucluster", None)
        if record is not None:
            name = junit.name(report.nodeid, record["node"])
            reporter.attrs.update(classname=junit.classname(record["suite"], record["node"]), name=name)
            annotation = record.get("annotation")
            if annotation and not any(node.tag == "system-out" for node in reporter.nodes):
                element = ET.Element("system-out")
                element.text = junit.xml_text("\n".join(annotation))
                reporter.append(element)
            for event in reruns.pop(report.nodeid, ()):
                reporter.append(junit.interim(event, red=report.failed))
        return reporter

    xml._opentestcase = named  # noqa: SLF001
    return JUnitFile(xml, Testcases(xml) if at_scale else None)


def end_junit(config: pytest.Config, session: ClusterSession, run: str, complaints: list[str]) -> None:
    """Say in the JUnit file which run it is of, and what makes it no success beside its testcases."""
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - only runs that write JUnit need it

    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    # a test that was stopped between its set-up and its end has a duration only, and no name
    ordered = xml.node_reporters_ordered
    ordered[:] = [it for it in ordered if has_name(it)]
    for name, value in run_properties(session, run):
        xml.add_global_property(name, value)
    if complaints:
        reporter = xml.node_reporter("gpucluster")
        reporter.attrs.update(zip(("classname", "name"), junit.RUN_CASE, strict=True))
        element = ET.Element("error", message=junit.xml_text(complaints[0]))
        element.text = junit.xml_text("\n".join(complaints))
        reporter.append(element)


def forget_junit(config: pytest.Config) -> None:
    """Let pytest not name a JUnit file as generated which could not be written."""
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - only runs that write JUnit need it

    xml = config.stash.get(xml_key, None)
    if xml is not None:
        del config.stash[xml_key]
        config.pluginmanager.unregister(xml)


def run_properties(session: ClusterSession, run: str) -> list[tuple[str, str]]:
    """Return what the JUnit file says of the run as a whole."""
    cluster = session.cluster
    return junit.run_properties(run, cluster.name, session.plan.selected, simulated=cluster.simulated)


def result_event(report: pytest.TestReport, outcome: str, message: str) -> dict[str, Any]:
    """Return the fields of a `result` event, without those of the item's record."""
    fields: dict[str, Any] = {
        "nodeid": report.nodeid,
        "outcome": outcome,
        "phase": report.when,
        "seconds": round(report.duration, 4),
        "message": message,
    }
    if (
        report.failed or outcome == "rerun"
    ):  # what JUnit and HTML show of it, also where they are made from the log of a killed run
        fields["text"] = shortened(clean(report.longreprtext))
        fields["output"] = shortened(clean("\n".join(text for _, text in report.sections if text)))
    foreign = [(name, str(it)) for name, it in report.user_properties if not is_ours(name)]
    if foreign:
        fields["properties"] = [[clean(name), clean_pair(name, value)] for name, value in foreign]
    return fields


def holds_no_secret(event: dict[str, Any]) -> bool:
    """Return True for the event of an item that passed and said nothing, where its address is one without secrets."""
    if event["message"] or "properties" in event or "text" in event:
        return False
    return all(map(is_clean, event["nodeid"].partition("[")))  # the test, and the node: both come again


def shortened(text: str) -> str:
    """Keep both ends of a text that is too long for a log of thousands of items."""
    half = MAX_TEXT // 2
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
