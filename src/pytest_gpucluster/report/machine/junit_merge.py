"""One JUnit file of several: shards of a cluster, and repeated runs. What was once red stays visible.

A testcase that is in several files was tried several times, in the order of the files' timestamps:

- the last attempt that was not skipped decides; a red one before it becomes `flakyFailure` or `flakyError` where the
  last one passed, `rerunFailure` or `rerunError` where it did not (Surefire's words, which xunit2 and Jenkins know);
- the property `attempts` lists how each ended: `failed, passed`;
- a node that could not be tested (`gpucluster.run.NODE` `test_available`) and was in a later file has come back:
  passed.

An item about no single node (class gpucluster.SUITE.cluster) judges the nodes of its run. In runs on other nodes it is
another item of the same name: the worst of them decides, and the property `scopes` says how each ended.
"""

from __future__ import annotations

import copy
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from junitparser import Error, Failure, JUnitXmlError, Skipped, xunit2

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.machine.junit import INTERIM, NODE_TEST
from pytest_gpucluster.report.proof import RUN_SUITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Merged", "merge"]

RANK = ("failed", "error", "passed", "skipped")  # the worst first


@dataclass(frozen=True)
class Merged:
    """What a merged file holds: testcases by how they ended, those that passed only when repeated, files read."""

    files: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: int

    def __str__(self) -> str:
        total = self.passed + self.failed + self.errors + self.skipped
        return (
            f"{total} testcases of {self.files} files: {self.passed} passed ({self.flaky} of them flaky), "
            f"{self.failed} failed, {self.errors} errors, {self.skipped} skipped"
        )


@dataclass(frozen=True)
class Attempt:
    """One testcase of one file: how it ended, and the nodes that it judges where it is about no single one."""

    case: Any
    end: str
    scope: str


def merge(inputs: Sequence[Path], out: Path, *, group: int | None = None) -> Merged:
    """Write the testcases of all files into one; GpuClusterError where one cannot be read or holds no testcase."""
    suites = _in_order([suite for path in inputs for suite in _read(path)])
    attempts: dict[tuple[str, str], list[Attempt]] = {}
    for suite in suites:
        scope = _property(suite, "nodes")
        found = _by_name(suite)
        for name, back in _back(attempts.keys() - found.keys(), found):
            attempts[name].append(Attempt(back, "passed", ""))
        for name, cases in found.items():
            whole = name[0].startswith("gpucluster.") and name[0].endswith(".cluster")
            case = _together(cases)
            attempts.setdefault(name, []).append(Attempt(case, _end(case), scope if whole else ""))
    decided = [_decide(tries) for tries in attempts.values()]
    _write(decided, suites, out, group)
    ends = [_end(case) for case in decided]
    return Merged(
        files=len(inputs),
        passed=ends.count("passed"),
        failed=ends.count("failed"),
        errors=ends.count("error"),
        skipped=ends.count("skipped"),
        flaky=sum(case.is_flaky for case in decided),
    )


def _in_order(suites: list[Any]) -> list[Any]:
    """Sort by timestamp; where one has none, the order of the files counts."""
    times = [_time(suite.timestamp) for suite in suites]
    known = [time for time in times if time is not None]
    if len(known) < len(suites):
        return suites
    return [suites[at] for _, at in sorted(zip(known, range(len(suites)), strict=True))]


def _time(stamp: str | None) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(str(stamp).replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.timezone.utc)


def _by_name(suite: Any) -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for case in suite:
        found.setdefault((case.classname or "", case.name or ""), []).append(case)
    return found


def _back(
    names: Iterable[tuple[str, str]], found: Mapping[tuple[str, str], list[Any]]
) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the entry of each node that could not be tested before, and was in this file."""
    judged = {
        name[0].split(".", 2)[-1]
        for name, cases in found.items()
        if name[0].startswith("gpucluster.") and any(_end(it) != "skipped" for it in cases)
    }
    for name in names:
        node = name[0].removeprefix(f"gpucluster.{RUN_SUITE}.")
        if name[1] == NODE_TEST and node != name[0] and node in judged:
            back = xunit2.TestCase(NODE_TEST, time=0.0)
            back.classname = name[0]
            yield name, back


def _together(cases: list[Any]) -> Any:
    """Return one testcase of those of one name in one file: pytest writes two where the teardown broke as well."""
    worst = min(cases, key=lambda case: RANK.index(_end(case)))
    for other in cases:
        if other is not worst:
            _tell(worst, "again in this run", other)
    return worst


def _read(path: Path) -> list[Any]:
    try:
        suites = list(xunit2.JUnitXml.fromstring(path.read_bytes()))
        if not any(True for suite in suites for _ in suite):
            raise GpuClusterError(f"{path}: holds no testcase: that run tested nothing; leave it out or repeat it")
    except OSError as error:
        raise GpuClusterError(f"{path}: cannot be read ({error.strerror})") from error
    except (JUnitXmlError, SyntaxError) as error:  # ElementTree's ParseError is a SyntaxError
        raise GpuClusterError(
            f"{path}: is not JUnit ({error}); `gpucluster report` makes it again from a run's events.jsonl"
        ) from error
    return suites


def _end(case: Any) -> str:
    types = {type(result) for result in case.result}
    if Failure in types:
        return "failed"
    if Error in types:
        return "error"
    return "skipped" if Skipped in types else "passed"


def _decide(attempts: list[Attempt]) -> Any:
    """Return the testcase that stands for all attempts."""
    scopes: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        scopes.setdefault(attempt.scope, []).append(attempt)
    decided = {scope: _last(tries) for scope, tries in scopes.items()}
    if len(decided) == 1:
        return next(iter(decided.values()))
    worst = min(decided, key=lambda scope: RANK.index(_end(decided[scope])))
    case = decided.pop(worst)
    ends = [(worst, _end(case)), *((scope, _end(other)) for scope, other in decided.items())]
    case.add_property("scopes", "; ".join(f"{scope or '?'}: {end}" for scope, end in ends))
    for scope, other in decided.items():
        _tell(case, f"nodes {scope or '?'}", other)
    return case


def _tell(case: Any, title: str, other: Any) -> None:
    """Put what else is red into the testcase that stands for all; Jenkins reads its first result only."""
    for result in other.result:
        if isinstance(result, (Failure, Error)):
            first = case.result[0]
            first.text = f"{first.text or ''}\n--- {title}\n{result.text or result.message or ''}"
    for interim in other.interim_result:
        case.add_interim_result(interim)


def _last(attempts: list[Attempt]) -> Any:
    """Return the last attempt that was not skipped, with the output of the others."""
    judged = [attempt for attempt in attempts if attempt.end != "skipped"] or attempts
    last, earlier = judged[-1], judged[:-1]
    case = copy.deepcopy(last.case)
    if len(attempts) == 1:
        return case
    case.add_property("attempts", ", ".join(attempt.end for attempt in attempts))
    for attempt in earlier:
        for interim in attempt.case.interim_result:
            case.add_interim_result(interim)
        for result in attempt.case.result:
            if isinstance(result, (Failure, Error)):
                case.add_interim_result(_interim(result, attempt, passed=last.end == "passed"))
    return case


def _interim(result: Any, attempt: Attempt, *, passed: bool) -> Any:
    interim_type = INTERIM["failed" if isinstance(result, Failure) else "error", passed]
    interim = interim_type(result.message or "", result.type or attempt.end)  # xunit2 wants a type
    interim.stack_trace = result.text or ""
    if attempt.case.system_out:
        interim.system_out = attempt.case.system_out
    return interim


def _property(suite: Any, name: str) -> str:
    return next((found.value or "" for found in suite.properties() if found.name == name), "")


def _write(cases: list[Any], suites: list[Any], out: Path, group: int | None) -> None:
    pairs = {
        (found.name, found.value): None
        for suite in suites
        for found in suite.properties()
        if not found.name.startswith(("verdict", "nodes "))  # of one run only
    }
    counts = {
        "errors": sum(case.is_error for case in cases),
        "failures": sum(case.is_failure for case in cases),
        "skipped": sum(case.is_skipped for case in cases),
        "tests": len(cases),
    }
    pieces = junit.document(
        (case.tostring().strip() for case in cases),  # without the blanks behind it in the file that it is of
        counts,
        pairs,
        seconds=sum(case.time or 0.0 for case in cases),
        timestamp=min((suite.timestamp for suite in suites if suite.timestamp), default=""),
    )
    write_whole(out, pieces, group=group)
