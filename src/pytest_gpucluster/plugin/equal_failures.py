"""Equal failures of many nodes: one block on the terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.plugin.reporting import Crash
from pytest_gpucluster.report.proof import CLUSTER, ENGINE_CHECK
from pytest_gpucluster.report.run_model import failure_key
from pytest_gpucluster.report.terminal.last_screen import block, findings, where
from pytest_gpucluster.run.item_record import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.report.run_model import FailureGroup, Run


class GroupedFailure:
    """The `longrepr` of the first of equal failures: as it was while it is the only one, else of all of them."""

    def __init__(self, first: Any, group: FailureGroup, command: str, address: Sequence[str]) -> None:
        self._first, self._group, self._command, self._address = first, group, command, address

    @property
    def _is_alone(self) -> bool:
        return len(self._group.nodes) < 2 and not self._group.common

    @property
    def _is_of_the_run(self) -> bool:
        """Whether no test of pytest's has failed: the block has all that the first one says."""
        return self._group.check.partition(".")[2] == ENGINE_CHECK

    @property
    def reprcrash(self) -> Any:
        """Path, line and message, as pytest's summary shows them."""
        crash = getattr(self._first, "reprcrash", None)
        if crash is None or self._is_alone:
            return crash
        text = next(iter(findings(self._group)), "")
        return Crash(str(crash.path), crash.lineno, clean(f"{self._group.check} on {where(self._group)}: {text}"))

    def addsection(self, name: str, content: str, sep: str = "-") -> None:
        """Add a section with a heading."""
        self._first.addsection(name, content, sep)

    def toterminal(self, out: Any) -> None:
        """Write the text to pytest's terminal."""
        if not self._group.nodes:
            out.line(f"{self._group.check}: a part of the finding of the cluster in another block")
        # with the traceback of a site's own test
        elif self._is_alone or not (self._group.cause or self._is_of_the_run):
            if hasattr(self._first, "toterminal"):
                self._first.toterminal(out)
            else:  # a text: xdist's report of a worker that died
                out.line(str(self._first))
        if self._group.nodes and not self._is_alone:
            lines = block(self._group, self._rerun(self._group))
            for line in lines if self._group.cause else [lines[0], lines[-1]]:
                out.line(clean(line))
        for group in self._group.split:
            for line in ("", *block(group, self._rerun(group))):
                out.line(clean(line))

    def _rerun(self, group: FailureGroup) -> str:
        nodes = [node for node in group.nodes if node != CLUSTER]
        words = [f"--nodes={hostlist.shown(nodes)}"] if nodes else []
        return " ".join((self._command, *map(shlex.quote, (*words, *self._address))))

    def __str__(self) -> str:
        return str(self._first)


class EqualFailures:
    """Registered in the controller of a run without -v."""

    def __init__(self, run: Run, config: pytest.Config) -> None:
        self._run = run
        self._command = f"pytest {shlex.quote(f'--cluster={config.option.cluster}')}"
        self._first: dict[tuple[str, ...], tuple[pytest.TestReport, FailureGroup]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take a failure whose event was logged: make it the first of its group, or mark it as equal to that."""
        key = failure_key(self._run.results[-1])
        if key in self._first:
            report.__dict__["gpucluster_equal"] = True
            return
        group = self._run.groups[key]
        self._first[key] = report, group
        alike = self._run.results[-1].annotation.alike
        report.longrepr = GroupedFailure(report.longrepr, group, self._command, alike)  # type: ignore[assignment] # shown by toterminal()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count a failure that is equal to an earlier one apart: pytest lists the category `failed` only."""
        if not getattr(report, "gpucluster_equal", False):
            return None
        category = "failed" if report.when == "call" else "error"
        return f"{category} alike", category[0].upper(), category.upper()

    def name_groups(self) -> None:
        """Put the nodes into the headings of the blocks, once all failures are known."""
        for report, group in self._first.values():
            if len(group.nodes) > 1 or group.common:
                path, line, _ = report.location
                for one in (report, getattr(report, "gpucluster_shown", report)):
                    one.location = path, line, clean(f"{group.check} on {where(group)}")
