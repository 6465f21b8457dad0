"""Writes metrics.prom into --report-dir, and the file of --metrics, at the end of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.errors import GpuClusterError
from pytest_gpucluster.ownfile import Folder
from pytest_gpucluster.report.events import read_events

if TYPE_CHECKING:
    from pytest_gpucluster.report.events import EventLog
    from pytest_gpucluster.report.files import Reports

NAME = "metrics.prom"
FOR_COLLECTORS = 0o644  # names and numbers alone, for a collector that runs as a user of its own


class Gauges:
    """Registered in the controller. `problems` are what hindered a file, each in one line."""

    def __init__(self, config: pytest.Config, log: EventLog, reports: Reports) -> None:
        asked = config.option.metrics
        if asked is not None:
            refuse(Path(asked))
        self.log, self.reports = log, reports
        self._modes: dict[Path, int | None] = {Path(config.option.report_dir) / NAME: None}
        if asked is not None:
            self._modes[Path(asked)] = FOR_COLLECTORS if reports.group is None else None
        self.problems: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files; one that was asked for and is not there is no success."""
        from pytest_gpucluster.report import prom  # noqa: PLC0415 - the start of a run has no need of it

        for path, mode in self._modes.items() if self._has_events() else ():
            with self.reports.writing(path):
                prom.write(read_events(self.log.path), path, group=self.reports.group, mode=mode)
            if path in self.reports.problems:
                self.problems.append(self.reports.problems[path])
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
        written = [str(path) for path in self._modes if path in self.reports.written]
        if written:
            terminalreporter.write_line(f"metrics: {', '.join(written)}")
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR: {problem}", red=True)


def refuse(path: Path) -> None:
    """Raise GpuClusterError for a file that node_exporter would not read, or that cannot be written."""
    if path.suffix != ".prom":
        raise GpuClusterError(f"--metrics={path}: node_exporter reads files that end in .prom only")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise GpuClusterError(f"--metrics={path}: {path.parent} is not a folder that can be written to")
    try:
        Folder(path.parent).close()
    except OSError as error:
        raise GpuClusterError(
            f"--metrics={path}: {path.parent}: {error.strerror}; name another file"
        ) from error
