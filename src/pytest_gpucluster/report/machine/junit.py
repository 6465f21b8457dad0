"""JUnit in the xunit2 flavour, as Jenkins and GitLab read it: the names, the properties, and the file of a run. Pure.

`write` makes the file at the end of a run, and again from its log (`gpucluster report`), also of a run that was killed.
One testcase at a time is in memory; junitparser makes each. A testcase is called

    classname gpucluster.SUITE.NODE (NODE is `cluster` for an item about no single node), name TEST[PARAMETERS]

without job ids or measured values, so that Jenkins finds it again night after night. What is no testcase of a suite
but must be red is `gpucluster.run.cluster` `test_finished`: the run was stopped, or tested nothing or too little; and
`gpucluster.run.NODE` `test_available`: a node that should have been tested was drained, down or lost. An item that was
run again (pytest-rerunfailures) keeps its earlier attempts, as flakyFailure where it passed at last.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from junitparser import Element, Error, Failure, Properties, Property, Skipped, SystemOut, xunit2

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.safe_json import as_dict, as_list
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.proof import RUN_SUITE
from pytest_gpucluster.report.run_model import evidence_folder
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.report.result import Result
    from pytest_gpucluster.report.run_model import Run

SUITE_NAME = "pytest"  # pytest's default of junit_suite_name
NODE_TEST = "test_available"
RUN_CASE = (f"gpucluster.{RUN_SUITE}.cluster", "test_finished")
MAX_FINDINGS = 20
_ILLEGAL = re.compile("[^\t\n\r -~\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RED = {"failed": Failure, "error": Error}
# (how an attempt ended, whether the last one passed)
INTERIM = {
    ("failed", True): xunit2.FlakyFailure,
    ("error", True): xunit2.FlakyError,
    ("failed", False): xunit2.RerunFailure,
    ("error", False): xunit2.RerunError,
}


def classname(suite: str, node: str) -> str:
    """Return gpucluster.SUITE.NODE.

    >>> classname("gpu", "gpu03"), classname("nccl", "")
    ('gpucluster.gpu.gpu03', 'gpucluster.nccl.cluster')
    """
    return f"gpucluster.{suite}.{node or 'cluster'}"


def name(nodeid: str, node: str) -> str:
    """Return the test's name without the node in its brackets.

    >>> name("suites/gpu/test_gpu.py::test_count[gpu03]", "gpu03")
    'test_count'
    >>> name("suites/nccl/test_nccl.py::test_busbw[gpu03-4GiB]", "gpu03")
    'test_busbw[4GiB]'
    >>> name("site/test_site.py::TestDisk::test_busbw[sda-gpu03]", "gpu03")
    'TestDisk::test_busbw[sda]'
    """
    test = nodeid.partition("::")[2] or nodeid
    base, bracket, inside = test.partition("[")
    if not bracket or not node:
        return test
    rest = f"-{inside.removesuffix(']')}-".replace(f"-{node}-", "-", 1)[1:-1]
    return f"{base}[{rest}]" if rest else base


def properties(result: Result, *, state: str = "", reason: str = "", simulated: bool = False) -> list[tuple[str, str]]:
    """Return the properties of an item: stable names, plain text. `state` and `reason` are Slurm's of its node.

    What passed on one node has its warnings alone: names and file have the rest, its metrics are in metrics.prom.
    """
    passed = result.outcome == "passed" and bool(result.node)
    found = [] if passed else [("suite", result.suite), ("check", result.check)]
    optional = [("node", result.node), ("slurm_state", state), ("slurm_reason", reason)]
    optional.append(("simulated", "true" if simulated else ""))
    found += [(key, value) for key, value in optional if value and not passed]
    if result.waiver:
        found.append(("waiver", result.waiver.words))
    for verdict in result.verdicts:
        if verdict.findings:
            found.append(("action", verdict.action.value))
        found += [
            (tag, it.words)
            for tag, deviations in (("finding", verdict.findings), ("warning", verdict.advisories))
            for it in deviations[:MAX_FINDINGS]
        ]
        found += [
            ("finding_data", json.dumps(it.as_dict(), separators=(",", ":"))) for it in verdict.findings[:MAX_FINDINGS]
        ]
    for metric in () if passed else result.metrics:
        device = f"[{metric.part}]" if metric.device else ""
        value = json.dumps(metric.value) if metric.number is None else f"{metric.value:g}"  # NaN, Infinity
        found.append((f"metric {metric.name}{device}", f"{value} {metric.unit}"))
    return found


def run_properties(run: str, cluster: str, nodes: Iterable[str], *, simulated: bool) -> list[tuple[str, str]]:
    """Return the properties of the whole file. `nodes` is the scope of items that are about no single node."""
    found = [("run", run), ("cluster", cluster), ("nodes", hostlist.fold(nodes))]
    return [*found, ("simulated", "true")] if simulated else found


def shell_property(run: Run) -> list[tuple[str, str]]:
    """Return the property of the warning about the shell that ran pytest (`shell` of the log), if it may explain a finding."""
    shell = as_dict(run.start.get("shell"))
    found = (getattr(row.found, "setting", "") for group in run.groups.values() for row in group.rows.values())
    return [("warning", str(shell.get("text")))] if shell.get("setting") in found else []


def write(run: Run, path: Path, *, group: int | None = None) -> None:
    """Write the JUnit file of a run, also of one that was killed; GpuClusterError where it cannot be written.

    A run without a `finish` event, or one that finished with complaints, has a testcase in error that says so.
    """
    write_whole(path, pieces(run), group=group)


def pieces(run: Run) -> Iterator[bytes]:
    """Return the file of a run piece by piece."""
    start, red = run.start, {result.nodeid for result in run.results if result.red}
    # what passed before its teardown broke is one testcase, and that is red
    results = [result for result in run.results if result.red or result.nodeid not in red]
    ends = Counter(result.outcome for result in results)
    troubles = _troubles(run)
    counts = {
        "errors": ends["error"] + len(troubles),
        "failures": ends["failed"],
        "skipped": len(results) - ends["error"] - ends["failed"] - ends["passed"],
        "tests": len(results) + len(troubles),
    }
    nodes = run.selected
    of_run = run_properties(str(start.get("run", "")), str(start.get("cluster", "")), nodes, simulated=run.simulated)
    of_run += shell_property(run)
    of_run.append(("verdict", judge(run).title))
    of_run += [(f"nodes {state}", str(number)) for state, number in run.proofs.counts.items()]
    began = dt.datetime.fromtimestamp(run.began or 0.0, tz=dt.timezone.utc).isoformat()
    return document(
        itertools.chain(_cases(run, results), troubles),
        counts,
        of_run if start else [],
        seconds=run.seconds,
        timestamp=began,
    )


def document(
    cases: Iterable[bytes],
    counts: Mapping[str, int],
    properties: Iterable[Iterable[Any]],
    *,
    seconds: float,
    timestamp: str = "",
) -> Iterator[bytes]:
    """Yield the pieces of a file around testcases, which have a line each. `counts`: attributes of the `testsuite`."""
    about = {"name": SUITE_NAME, **counts, "time": f"{seconds:.3f}"}
    about |= {"timestamp": timestamp} if timestamp else {}
    written = "".join(f" {key}={quoteattr(str(value))}" for key, value in about.items())
    yield b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"pytest tests\">\n"
    yield f"<testsuite{written}>\n".encode()
    if pairs := [*properties]:
        yield _properties(pairs).tostring() + b"\n"
    yield from (case + b"\n" for case in cases)
    yield b"</testsuite>\n</testsuites>\n"


def _properties(pairs: Iterable[Iterable[Any]]) -> Any:  # junitparser's methods have no types
    make: type[Any] = Properties
    found = make()
    found.extend(Property(*(xml_text(str(it)) for it in pair)) for pair in pairs)
    return found


def _cases(run: Run, results: Iterable[Result]) -> Iterator[bytes]:
    slurm, reruns = as_dict(run.nodes.get("slurm")), dict(run.reruns)
    for result in results:
        known = as_dict(slurm.get(result.node))
        state, reason = known.get("state", ""), known.get("reason", "")
        case: Any = xunit2.TestCase(
            xml_text(name(result.nodeid, result.node)), xml_text(classname(result.suite, result.node))
        )
        case.time = round(result.seconds, 3)
        pairs = properties(result, state=state, reason=reason, simulated=run.simulated)
        pairs += [("evidence", folder)] if result.red and (folder := evidence_folder(run, result.node)) else []
        if pairs := [*result.properties, *pairs]:
            case.append(_properties(pairs))  # add_property() would search them each time
        case.extend(_ends(result, reruns.pop(result.nodeid, ())))
        yield case.tostring()


def _ends(result: Result, reruns: Iterable[Result]) -> Iterator[Element]:
    """Yield what a testcase holds below its properties."""
    if lines := result.annotation.lines:
        yield SystemOut(xml_text("\n".join(lines)))
    yield from (interim(rerun, red=result.red) for rerun in reruns)
    outcome, message = result.outcome, result.message
    if result.red:
        head = message if outcome == "failed" else f'failed on {result.phase} with "{message}"'
        yield _ended(_RED[outcome](), head, result.text or message)
    elif result.waiver:
        yield _ended(Skipped(type_="gpucluster.waived"), message, result.waiver.text)
    elif outcome != "passed":
        yield _ended(Skipped(type_="pytest.skip"), message, message)


def _troubles(run: Run) -> list[bytes]:
    """Return the testcase with the complaints about the run as a whole; nothing where there are none."""
    if run.finish is None:
        complaints = ["the run did not finish: it was killed, and the remaining items were not tested"]
    else:
        complaints = [str(complaint) for complaint in as_list(run.finish.get("complaints"))]
    if not complaints:
        return []
    of, called = RUN_CASE
    case: Any = xunit2.TestCase(called, of, 0.0)
    case.append(_ended(Error(), complaints[0], "\n".join(complaints)))
    return [case.tostring()]


def interim(rerun: Result, *, red: bool) -> Element:
    """Return the element of an attempt that does not decide. `red`: the last one is red."""
    end = "failed" if rerun.phase == "call" else "error"
    element = INTERIM[end, not red](xml_text(rerun.message), "rerun")
    element.stack_trace = xml_text(rerun.text or rerun.message)
    if lines := rerun.annotation.lines:
        element.system_out = xml_text("\n".join(lines))
    return element


def _ended(element: Any, message: str, text: str) -> Any:
    element.message, element.text = xml_text(message), xml_text(text)
    return element


def xml_text(text: str) -> str:
    """Replace what no XML 1.0 file may hold, not even escaped."""
    return _ILLEGAL.sub("?", text)
