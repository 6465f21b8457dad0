"""--evidence: what a vendor asks for is read of nodes with a failed part, while they are held and as they failed.

It happens after the last test, before a failed item is repeated, and before a node is drained or released. Under xdist the
process that ran the item reads it. Nothing that goes wrong here fails the run: what was not read is named.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import count
from pytest_gpucluster.evidence.capture import Capture, read_capture, stored
from pytest_gpucluster.evidence.case_file import deciding
from pytest_gpucluster.evidence.tools import ANSWER, FULL, command_for
from pytest_gpucluster.plugin.option_table import runs_tests
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import EVIDENCE
from pytest_gpucluster.run.item_record import clean

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.report.machine.atomic_write import Reports
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.run.session import ClusterSession

OF_RUN = 2.0 * FULL  # seconds for all nodes of a run
AT_ONCE = 8  # nodes; the channel has its own limit
KEY = "gpucluster_evidence"  # of xdist's workeroutput


def register_evidence(config: pytest.Config, session: ClusterSession, log: EventLog | None, reports: Reports) -> None:
    """Register the plugin, unless the evidence is off; after that of the drain, which then acts later."""
    when = config.option.evidence or session.cluster.evidence.when
    if when != "off":
        plugin = EvidencePlugin(config, session, log, reports, every=when == "all")
        config.pluginmanager.register(plugin, "gpucluster-evidence")


class EvidencePlugin:
    """Registered in the controller, which has the log, and in every xdist worker, unless the evidence is off."""

    def __init__(
        self, config: pytest.Config, session: ClusterSession, log: EventLog | None, reports: Reports, *, every: bool
    ) -> None:
        self.config, self.session, self.log, self.reports, self.every = config, session, log, reports, every
        self._parts: dict[str, dict[Part, str]] = {}  # node -> failed part -> item
        self._taken: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember the parts for which an item fails."""
        report = yield
        plain = getattr(report, "gpucluster", None)
        if report.when == "call" and report.failed and plain:
            result = read_result({**plain, "outcome": "failed", "nodeid": report.nodeid})
            for _, _, finding in deciding([result], every=self.every):
                self._parts.setdefault(result.node, {}).setdefault(finding.part.exchanged, report.nodeid)
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)  # registered after the drain's: before it repeats anything
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Read the evidence while the nodes are held, also where --maxfail ended the run."""
        try:
            result = yield
        except session.Failed:
            self._take()
            raise
        self._take()
        return result

    def _take(self) -> None:
        if not runs_tests(self.config.option):
            return
        plan = self._plan()
        if plan:
            self._read(plan)
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[KEY] = json.dumps(self._taken)
        elif self.log is not None:
            self._write(self.log)

    def _plan(self) -> dict[str, list[Part]]:
        """Return the failed parts of the nodes that answer; a finding of the cluster is the fault of no part."""
        common: set[str] = set()
        if self.log is not None and not self.every:
            settle(self.log.model)
            common = {result.nodeid for result in self.log.model.results if result.common}
        found = {
            node: [part for part, nodeid in parts.items() if nodeid not in common]
            for node, parts in self._parts.items()
        }
        return {node: parts for node, parts in found.items() if parts and self.session.problem(node) is None}

    def _read(self, plan: Mapping[str, Sequence[Part]]) -> None:
        until = time.monotonic() + OF_RUN
        if self.log is not None:
            hooks: Any = self.config.pluginmanager.get_plugin("gpucluster-hooks")
            hooks.write_message(
                f"reading the evidence of {hostlist.shown([*plan])}: at most {FULL // 60} minutes per node"
            )
        threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="evidence")
        try:
            pending = [threads.submit(self._of_node, node, parts, until) for node, parts in plan.items()]
            self._taken += [future.result() for future in pending]
        finally:  # a run that is stopped waits for no tool: its channel ends what still runs
            threads.shutdown(wait=False, cancel_futures=True)

    def _of_node(self, node: str, parts: Sequence[Part], until: float) -> dict[str, Any]:
        """Return the fields of the event of one node, whatever goes wrong."""
        try:
            return stored(self._capture(node, parts, until), self.reports.folder, self.reports.group, until=until)
        except Exception as error:  # noqa: BLE001 - evidence never ends a run
            return {"node": node, "problem": clean(one_line(error))}

    def _capture(self, node: str, parts: Sequence[Part], until: float) -> Capture:
        left = until - time.monotonic()
        if left < FULL:
            return Capture(node, problem=f"not read: the evidence of other nodes took {OF_RUN - left:.0f} s")
        mark = secrets.token_hex(12)
        log = self.session.cluster.evidence.field_diagnostic or ""
        command = command_for(parts, mark, full=True, inventory=not self._has_inventory(node), log=log)
        with contextlib.suppress(GpuClusterError):
            answer = self.session.need_channel().ask_node(
                node, self.session.facts.as_root(command), timeout=FULL + 30.0, cap=ANSWER, fresh=True
            )
            return read_capture(answer, mark)
        return read_capture(Answer(node, None, problem="the node did not answer"), mark)

    def _has_inventory(self, node: str) -> bool:
        return self.log is not None and node in self.log.model.parts

    # --- the controller

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # xdist's own names
        """Take what an xdist worker has read."""
        taken = getattr(node, "workeroutput", {}).get(KEY)
        self._taken += json.loads(taken) if taken else []

    def _write(self, log: EventLog) -> None:
        for fields in self._taken:
            log.write("evidence", **fields)
        self._taken = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say of which nodes there is evidence, and of which there is none."""
        found = self.log.model.evidence if self.log is not None else {}
        read = [node for node, event in found.items() if event.get("files")]
        if read:
            files = sum(len(found[node]["files"]) for node in read)
            terminalreporter.write_line(
                f"evidence of {hostlist.shown(read)}: {count(files, 'file')} in {self.reports.folder / EVIDENCE}; "
                f"gpucluster evidence {self.reports.folder} lists the case of each part"
            )
        for node, event in found.items():
            if event.get("problem"):
                terminalreporter.write_line(clean(f"evidence of {node} is not complete: {event['problem']}"))
