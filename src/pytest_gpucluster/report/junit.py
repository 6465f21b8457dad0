"""JUnit in the xunit2 flavour, as Jenkins and GitLab read it: the names, the properties, and the file of a run. Pure.

`write` makes the file at the end of a run, and again from its log (`gpucluster report`), also of a run that was killed.
One testcase at a time is in memory. A testcase is called

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
import xml.etree.ElementTree as ET
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.safe_json import as_dict, as_list
from pytest_gpucluster.report.atomic_write import write_whole
from pytest_gpucluster.report.proof import RUN_SUITE
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
_IN_ATTRIBUTES = {'"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#09;"}
_TAGS = {"failed": "failure", "error": "error"}


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


def properties(
    result: Result, *, state: str = "", reason: str = "", simulated: bool = False
) -> list[tuple[str, str]]:
    """Return the properties of an item: stable names, plain text. `state` and `reason` are Slurm's of its node."""
    found = [("suite", result.suite), ("check", result.check)]
    optional = [("node", result.node), ("slurm_state", state), ("slurm_reason", reason)]
    found += [(key, value) for key, value in optional if value]
    if simulated:
        found.append(("simulated", "true"))
    if result.waiver:
        found.append(("waiver", result.waiver.words))
    for verdict in result.verdicts:
        if verdict.findings:
            found.append(("action", verdict.action.value))
        found += [
            (tag, f"{it.part}: measured {it.measured}, expected {it.expected}")
            for tag, deviations in (("finding", verdict.findings), ("warning", verdict.advisories))
            for it in deviations[:MAX_FINDINGS]
        ]
    for metric in result.metrics:
        device = f"[{metric.device}]" if metric.device else ""
        value = json.dumps(metric.value) if metric.number is None else f"{metric.value:g}"  # NaN, Infinity
        found.append((f"metric {metric.name}{device}", f"{value} {metric.unit}"))
    return found


def run_properties(run: str, cluster: str, nodes: Iterable[str], *, simulated: bool) -> list[tuple[str, str]]:
    """Return the properties of the whole file. `nodes` is the scope of items that are about no single node."""
    found = [("run", run), ("cluster", cluster), ("nodes", hostlist.fold(nodes))]
    return [*found, ("simulated", "true")] if simulated else found


def shell_property(shell: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the property of the warning about the shell that ran pytest (`shell` of the log), if there is one."""
    return [("warning", str(shell["text"]))] if shell.get("text") else []


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
    ends = [_TAGS.get(result.outcome, "skipped") for result in results if result.outcome != "passed"]
    troubles = _troubles(run)
    counts = {
        "errors": ends.count("error") + len(troubles),
        "failures": ends.count("failure"),
        "skipped": ends.count("skipped"),
        "tests": len(results) + len(troubles),
    }
    nodes = run.selected
    of_run = run_properties(
        str(start.get("run", "")), str(start.get("cluster", "")), nodes, simulated=run.simulated
    )
    of_run += shell_property(as_dict(start.get("shell")))
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
    cases: Iterable[str],
    counts: Mapping[str, int],
    properties: Iterable[Iterable[Any]],
    *,
    seconds: float,
    timestamp: str = "",
    indented: bool = True,
) -> Iterator[bytes]:
    """Yield the pieces of a file around testcases. `counts`: attributes of the `testsuite`."""
    about = {"name": SUITE_NAME, **counts, "time": f"{seconds:.3f}"} | (
        {"timestamp": timestamp} if timestamp else {}
    )
    end, level = ("\n", 1) if indented else ("", None)
    yield f"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"pytest tests\">{end}".encode()
    yield f"{' ' * (level or 0)}<testsuite{_attributes(about)}>{end}".encode()
    yield _properties(properties, level and level + 1).encode()
    yield from (case.encode() for case in cases)
    yield f"{' ' * (level or 0)}</testsuite>{end}</testsuites>{end}".encode()


def _cases(run: Run, results: Iterable[Result]) -> Iterator[str]:
    slurm, reruns = as_dict(run.nodes.get("slurm")), dict(run.reruns)
    for result in results:
        known = as_dict(slurm.get(result.node))
        state, reason = known.get("state", ""), known.get("reason", "")
        pairs = properties(result, state=state, reason=reason, simulated=run.simulated)
        inside = _ends(result, reruns.pop(result.nodeid, ()))
        called = name(result.nodeid, result.node)
        yield _testcase(
            classname(result.suite, result.node), called, result.seconds, [*result.properties, *pairs], inside
        )


def _ends(result: Result, reruns: Iterable[Result]) -> list[ET.Element]:
    """Return what a testcase holds below its properties."""
    found = [_text("system-out", "\n".join(result.annotation))] if result.annotation else []
    found += [interim(rerun, red=result.red) for rerun in reruns]
    outcome, message = result.outcome, result.message
    if result.red:
        head = message if outcome == "failed" else f'failed on {result.phase} with "{message}"'
        found.append(_text(_TAGS[outcome], result.text or message, message=head))
    elif result.waiver:
        found.append(_text("skipped", result.waiver.text, type="gpucluster.waived", message=message))
    elif outcome != "passed":
        found.append(_text("skipped", message, type="pytest.skip", message=message))
    return found


def _troubles(run: Run) -> list[str]:
    """Return the testcase with the complaints about the run as a whole; nothing where there are none."""
    if run.finish is None:
        complaints = ["the run did not finish: it was killed, and the remaining items were not tested"]
    else:
        complaints = [str(complaint) for complaint in as_list(run.finish.get("complaints"))]
    if not complaints:
        return []
    return [_testcase(*RUN_CASE, 0.0, [], [_text("error", "\n".join(complaints), message=complaints[0])])]


def interim(rerun: Result, *, red: bool) -> ET.Element:
    """Return the element of an attempt that does not decide. `red`: the last one is red."""
    outcome = "Failure" if rerun.phase == "call" else "Error"
    element = _text(f"{'rerun' if red else 'flaky'}{outcome}", "", message=rerun.message, type="rerun")
    element.append(_text("stackTrace", rerun.text or rerun.message))
    if rerun.annotation:
        element.append(_text("system-out", "\n".join(rerun.annotation)))
    return element


def _testcase(
    of: str, called: str, seconds: float, pairs: Iterable[Iterable[Any]], inside: Iterable[ET.Element]
) -> str:
    """Return the lines of a testcase, which has properties or something else inside."""
    head = _attributes({"classname": of, "name": called, "time": f"{seconds:.3f}"})
    return f"  <testcase{head}>\n{_properties(pairs, 3)}{''.join(map(_indented, inside))}  </testcase>\n"


def _indented(element: ET.Element) -> str:
    """Return the lines of an element of a testcase."""
    ET.indent(element, " ", level=3)
    return f"   {ET.tostring(element, encoding='unicode')}\n"


def _properties(pairs: Iterable[Iterable[Any]], level: int | None) -> str:
    """Return the lines of an item's or a file's properties; without a level they are one line."""
    pad, end = ("\n" + " " * level, "\n") if level else ("", "")
    inside = "".join(f"{pad}{' ' * bool(level)}{_property(str(key), str(value))}" for key, value in pairs)
    return inside and f"{pad[1:]}<properties>{inside}{pad}</properties>{end}"


@lru_cache(1 << 14)  # most are the same for many items
def _property(key: str, value: str) -> str:
    return f"<property{_attributes({'name': key, 'value': value})} />"


def _attributes(pairs: Mapping[str, object]) -> str:
    return "".join(f' {key}="{escape(xml_text(str(value)), _IN_ATTRIBUTES)}"' for key, value in pairs.items())


def _text(tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.Element(tag, {key: xml_text(value) for key, value in attributes.items()})
    element.text = xml_text(text)
    return element


def xml_text(text: str) -> str:
    """Replace what no XML 1.0 file may hold, not even escaped."""
    return _ILLEGAL.sub("?", text)
