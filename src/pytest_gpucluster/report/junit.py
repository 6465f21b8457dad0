"""JUnit in the xunit2 flavour, as Jenkins and GitLab read it: the names, the properties, and a file from events. Pure.

`write` makes the file from the events of a run: at its end, and again (`gpucluster report`), also of a run that was
killed. A testcase is called

    classname gpucluster.SUITE.NODE (NODE is `cluster` for an item about no single node), name TEST[PARAMETERS]

without job ids or measured values, so that Jenkins finds it again night after night. What is no testcase of a suite
but has to be red is `gpucluster.run.cluster` `test_finished`: the run was stopped, or tested nothing or too little; and
`gpucluster.run.NODE` `test_available`: a node that should have been tested was drained, down or lost. An item that was
run again (pytest-rerunfailures) keeps its earlier attempts, as flakyFailure where it passed at last.
"""

from __future__ import annotations

import datetime as dt
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.report.atomic_write import write_whole
from pytest_gpucluster.report.run_model import RED, as_dict, as_list, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run

SUITE_NAME = "pytest"  # what pytest calls it where nobody sets junit_suite_name
RUN_SUITE, NODE_TEST = "run", "test_available"
RUN_CASE = (f"gpucluster.{RUN_SUITE}.cluster", "test_finished")
MAX_FINDINGS = 20
_ILLEGAL = re.compile("[^\t\n\r -~\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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
    result: Mapping[str, Any], *, state: str = "", reason: str = "", simulated: bool = False
) -> list[tuple[str, str]]:
    """Return the properties of an item from the plain types of its record: stable names, plain text.

    `state` and `reason` are Slurm's of the item's node.
    """
    found = [("suite", result["suite"]), ("check", result["check"])]
    optional = [("node", result["node"]), ("slurm_state", state), ("slurm_reason", reason)]
    found += [(key, value) for key, value in optional if value]
    if simulated:
        found.append(("simulated", "true"))
    for verdict in result.get("verdicts", ()):
        findings = verdict["findings"]
        if findings:
            found.append(("action", verdict["action"]))
        named = (("finding", findings), ("warning", verdict.get("advisories", ())))
        found += [
            (kind, f"{it['part']}: measured {it['measured']}, expected {it['expected']}")
            for kind, told in named
            for it in told[:MAX_FINDINGS]
        ]
    for metric in result.get("metrics", ()):
        device = f"[{metric['device']}]" if metric["device"] else ""
        found.append((f"metric {metric['name']}{device}", f"{_number(metric['value'])} {metric['unit']}"))
    return found


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"  # the event log writes NaN as a text


def run_properties(run: str, cluster: str, nodes: Iterable[str], *, simulated: bool) -> list[tuple[str, str]]:
    """Return the properties of the whole file. `nodes` is the scope of items that are about no single node."""
    found = [("run", run), ("cluster", cluster), ("nodes", hostlist.fold(nodes))]
    return [*found, ("simulated", "true")] if simulated else found


def write(events: Iterable[dict[str, Any]], path: Path, *, group: int | None = None) -> None:
    """Write the JUnit file of a run's events (report.events.read_events), also of a run that was killed.

    A run without a `finish` event, or one that finished with complaints, has a testcase in error that says so.
    GpuClusterError where the file cannot be written.
    """
    root = tree(events)
    ET.indent(root, " ")
    root.tail = "\n"
    save(root, path, group=group)


def save(root: ET.Element, path: Path, *, group: int | None = None) -> None:
    """Write a document whole; GpuClusterError where it cannot be written."""
    write_whole(path, ET.tostring(root, encoding="utf-8", xml_declaration=True), group=group)


def tree(events: Iterable[dict[str, Any]]) -> ET.Element:
    """Return the `testsuites` element of a run's events."""
    results: list[dict[str, Any]] = []
    reruns: dict[str, list[dict[str, Any]]] = defaultdict(list)
    run = read_run(events, result=results.append, rerun=lambda event: reruns[event["nodeid"]].append(event))
    red = {result["nodeid"] for result in results if result["outcome"] in RED}
    cases = [
        _case(run, result, reruns.pop(result["nodeid"], ()))
        for result in results
        # what passed before its teardown broke is one testcase, and that is red
        if result["outcome"] in RED or result["nodeid"] not in red
    ]
    start = run.start
    nodes = [str(node) for node in as_list(run.nodes.get("selected"))]
    simulated = run.simulated
    of_run = run_properties(
        str(start.get("run", "")), str(start.get("cluster", "")), nodes, simulated=simulated
    )
    began = dt.datetime.fromtimestamp(run.began or 0.0, tz=dt.timezone.utc).isoformat()
    return document([*cases, *_troubles(run)], of_run if start else [], seconds=run.seconds, timestamp=began)


def document(
    cases: Sequence[ET.Element], properties: Iterable[Iterable[Any]], *, seconds: float, timestamp: str = ""
) -> ET.Element:
    """Return the `testsuites` element around testcases."""
    root = ET.Element("testsuites", name="pytest tests")
    suite = ET.SubElement(root, "testsuite", name=SUITE_NAME)
    for many, one in (("errors", "error"), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(many, str(sum(case.find(one) is not None for case in cases)))
    suite.attrib |= {"tests": str(len(cases)), "time": f"{seconds:.3f}"}
    if timestamp:
        suite.set("timestamp", timestamp)
    if pairs := list(properties):
        suite.append(_properties(pairs))
    suite.extend(cases)
    return root


def _case(run: Run, result: Mapping[str, Any], reruns: Iterable[Mapping[str, Any]]) -> ET.Element:
    node, outcome, message = result["node"], result["outcome"], str(result["message"])
    case = _testcase(classname(result["suite"], node), name(result["nodeid"], node), result["seconds"])
    known = as_dict(as_dict(run.nodes.get("slurm")).get(node))
    pairs = properties(
        result, state=known.get("state", ""), reason=known.get("reason", ""), simulated=run.simulated
    )
    case.append(_properties([*result.get("properties", ()), *pairs]))
    if annotation := result.get("annotation"):
        case.append(_text("system-out", "\n".join(annotation)))
    case.extend(interim(event, red=outcome in RED) for event in reruns)
    if outcome in RED:
        told = message if outcome == "failed" else f'failed on {result["phase"]} with "{message}"'
        case.append(_text(_TAGS[outcome], result.get("text") or message, message=told))
    elif outcome != "passed":
        case.append(_text("skipped", message, type="pytest.skip", message=message))
    return case


def _troubles(run: Run) -> Iterator[ET.Element]:
    """Yield the testcase that says why the run as a whole is no success; nothing where it is one."""
    if run.finish is None:
        told = ["the run did not finish: it was killed, and what it had not come to is not tested"]
    else:
        told = [str(complaint) for complaint in run.finish.get("complaints", ())]
    if told:
        case = _testcase(*RUN_CASE, 0.0)
        case.append(_text("error", "\n".join(told), message=told[0]))
        yield case


def interim(rerun: Mapping[str, Any], *, red: bool) -> ET.Element:
    """Return the element of an attempt that does not decide, from its `rerun` event. `red`: the last one is red."""
    kind = "Failure" if rerun["phase"] == "call" else "Error"
    element = _text(f"{'rerun' if red else 'flaky'}{kind}", "", message=str(rerun["message"]), type="rerun")
    element.append(_text("stackTrace", str(rerun.get("text") or rerun["message"])))
    if annotation := rerun.get("annotation"):
        element.append(_text("system-out", "\n".join(annotation)))
    return element


def _testcase(of: str, called: str, seconds: float) -> ET.Element:
    return ET.Element("testcase", classname=xml_text(of), name=xml_text(called), time=f"{seconds:.3f}")


def _properties(pairs: Iterable[Iterable[Any]]) -> ET.Element:
    element = ET.Element("properties")
    for key, value in pairs:
        ET.SubElement(element, "property", name=xml_text(str(key)), value=xml_text(str(value)))
    return element


def _text(tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.Element(tag, {key: xml_text(value) for key, value in attributes.items()})
    element.text = xml_text(text)
    return element


def xml_text(text: str) -> str:
    """Replace what no XML 1.0 file may hold, not even escaped."""
    return _ILLEGAL.sub("?", text)
