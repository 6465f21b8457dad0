"""Writes metrics.prom into --report-dir, and the file of --metrics, as the first reports at the end of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.report.atomic_write import take_away

if TYPE_CHECKING:
    from pytest_gpucluster.report.atomic_write import Reports
    from pytest_gpucluster.report.events import EventLog

NAME = "metrics.prom"
FOR_COLLECTORS = 0o644  # names and numbers alone, for a collector that runs as a user of its own


class Gauges:
    """Registered in the controller."""

    def __init__(self, config: pytest.Config, log: EventLog, reports: Reports) -> None:
        path = config.option.metrics
        if path is not None:
            refuse(Path(path))
        self.log, self.reports = log, reports
        self._modes: dict[Path, int | None] = {reports.folder / NAME: None}
        if path is not None:
            self._modes[Path(path)] = FOR_COLLECTORS if reports.group is None else None
        self._before: dict[Path, str] = {}  # the page of an earlier run
        # of the run before, whose folder is the latest one until the first result
        self._earlier = reports.runs.link.resolve() / NAME if reports.runs is not None else None

    def write(self) -> None:
        """Write the files. Those of an earlier run are removed in any case: they do not describe this run."""
        for path, mode in self._modes.items():
            with self.reports.writing(path):
                try:
                    self._write(path, mode)
                except Exception as error:  # noqa: BLE001 - whatever it is
                    try:
                        take_away(path)
                    except OSError as more:
                        raise GpuClusterError(
                            f"{error}; the file of an earlier run is still there ({more.strerror or more})"
                        ) from error
                    self._write(path, mode)  # its place on a full disk is free

    def _write(self, path: Path, mode: int | None) -> None:
        from pytest_gpucluster.report import prom  # the start of a run has no need of it

        if path not in self._before:
            own = path.parent == self.reports.folder
            self._before[path] = prom.read(self._earlier if own and self._earlier else path)
        prom.write(self.log.model, path, self._before[path], group=self.reports.group, mode=mode)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the file of --metrics."""
        for path in self._modes.keys() & self.reports.written.keys():
            if path.parent != self.reports.folder:
                terminalreporter.write_line(f"metrics: {path}")


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
