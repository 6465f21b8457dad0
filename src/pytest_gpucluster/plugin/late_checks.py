"""Checks that are judged after the nodes were released: the reports of their items wait until then.

The item runs with the others. Where its check ends with `LateCheck.unjudged`, its report is held; an xdist worker sends it
to the controller at its end. When all items have run, the controller releases the nodes, waits for their epilogs, and
reports each item once, with the verdict on the node as Slurm shows it then.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin import reporting, signals
from pytest_gpucluster.plugin.expect import describe
from pytest_gpucluster.plugin.item_result import Record, clean, one_line
from pytest_gpucluster.plugin.items import check_of, phases, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.kit.suite_work import LateCheck
    from pytest_gpucluster.plugin.session import ClusterSession

HELD = "gpucluster_late"  # in the output of an xdist worker
STOPPED = "the run was stopped before the nodes were released"


class LateChecks:
    """Registered in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession, say: Callable[[str], None]) -> None:
        self._config, self._session, self._say = config, session, say
        self._held: list[dict[str, Any]] = []

    @cached_property
    def _suites(self) -> dict[str, Any]:
        return {suite.name: suite for suite in suites() if suite.after_release is not None}

    def _late(self, check: str) -> LateCheck | None:
        suite = self._suites.get(check.partition(".")[0])
        late: LateCheck | None = suite.load(suite.after_release) if suite is not None else None
        return late if late is not None and late.check == check else None

    # --- one item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run the item of a late check; hold its report if there is no verdict yet."""
        late = self._late(check_of(item))
        if late is None:
            return None
        hook = item.ihook
        made = [
            (call, hook.pytest_runtest_makereport(item=item, call=call)) for call in phases(item, nextitem)
        ]
        held = next((it for _, it in made if it.skipped and _waits(it, late)), None)
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
            found = self._session.nodes_after_release(self._say)
        except GpuClusterError as error:
            why = clean(one_line(error))
        why = signals.noted() or why
        for held in self._held:
            info = found.get(held["record"]["node"])
            self._report(held, self._judged(held, info) if info is not None else _unjudged(held, why))
        self._held.clear()

    def _judged(self, held: Mapping[str, Any], info: NodeInfo) -> Verdict:
        late = self._late(held["record"]["check"])
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


def _waits(report: pytest.TestReport, late: LateCheck) -> bool:
    return any(verdict["reason"] == late.unjudged for verdict in report.__dict__["gpucluster"]["verdicts"])


def _plain(item: pytest.Item, report: pytest.TestReport, session: ClusterSession) -> dict[str, Any]:
    """Return what the report of an item needs later, as plain types."""
    return {
        "nodeid": report.nodeid,
        "location": list(report.location),
        "keywords": dict.fromkeys(report.keywords, 1),
        "record": report.__dict__["gpucluster"],
        "lines": reporting.annotation(item, record_of(item), session),
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
        plainly["ended"] = verdict.outcome.value
        outcome = "skipped"
        shown = (path, (line or 0) + 1, f"{verdict.outcome.value}: {clean(verdict.reason)}")
    if outcome == "failed":
        plainly["annotation"] = held["lines"]
        shown = reporting.shown(path, (line or 0) + 1, shown, held["lines"])
    pairs = reporting.properties(plainly, session) if config.getoption("xmlpath", None) else []
    shared: dict[str, Any] = {
        "nodeid": held["nodeid"],
        "location": tuple(held["location"]),
        "keywords": held["keywords"],
        "user_properties": pairs,
    }
    begun, ended = (
        pytest.TestReport(outcome="passed", longrepr=None, when=when, **shared)
        for when in ("setup", "teardown")
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
