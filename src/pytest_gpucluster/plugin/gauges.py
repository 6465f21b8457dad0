"""Writes metrics.prom into --report-dir, and the file of --metrics, at the end of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.errors import GpuClusterError
from pytest_gpucluster.plugin.record import one_line
from pytest_gpucluster.report.events import read_events

if TYPE_CHECKING:
    from pytest_gpucluster.report.events import EventLog

NAME = "metrics.prom"


class Gauges:
    """Registered in the controller. `problems` are what hindered a file, each in one line."""

    def __init__(self, config: pytest.Config, log: EventLog) -> None:
        asked = config.option.metrics
        if asked is not None:
            refuse(Path(asked))
        self.log = log
        self.paths = [Path(config.option.report_dir) / NAME, *([Path(asked)] if asked is not None else [])]
        self.problems: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files; one that was asked for and is not there is no success."""
        from pytest_gpucluster.report import prom  # noqa: PLC0415 - the start of a run has no need of it

        for path in self.paths if self._has_events() else ():
            try:
                prom.write(read_events(self.log.path), path)
            except GpuClusterError as error:
                self.problems.append(one_line(error))
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _has_events(self) -> bool:
        try:
            return any(True for _ in read_events(self.log.path))
        except OSError as error:
            self.problems.append(
                f"{self.log.path}: cannot be read ({error.strerror}): no metrics are written"
            )
            return False

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the metrics are, and what hindered them."""
        terminalreporter.write_line(f"metrics: {', '.join(map(str, self.paths))}")
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR: {problem}", red=True)


def refuse(path: Path) -> None:
    """Raise GpuClusterError for a file that node_exporter would not read, or that cannot be written."""
    if path.suffix != ".prom":
        raise GpuClusterError(f"--metrics={path}: node_exporter reads files that end in .prom only")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise GpuClusterError(f"--metrics={path}: {path.parent} is not a folder that can be written to")
