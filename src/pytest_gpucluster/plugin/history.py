"""--history: store the run at its end, and name what got worse since earlier runs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin import signals
from pytest_gpucluster.plugin.item_result import clean
from pytest_gpucluster.report.history import History
from pytest_gpucluster.report.run_snapshot import recorded

if TYPE_CHECKING:
    from pytest_gpucluster.report.atomic_write import Reports
    from pytest_gpucluster.report.events import EventLog
    from pytest_gpucluster.report.regression import Comparison


class Memory:
    """Registered in the controller of a run with a history. `comparison` is None until the run is stored."""

    def __init__(self, path: Path, log: EventLog, reports: Reports) -> None:
        self.path, self.log, self.reports = path, log, reports
        self.comparison: Comparison | None = None
        with contextlib.closing(History(path, create=True, group=reports.group)):
            pass  # a wrong file is reported before nodes are allocated

    def write(self) -> None:
        """Store the run. The nodes are released by now, so a lock of another writer holds none."""
        with self.reports.writing(self.path):
            try:
                self._store()
            except (GpuClusterError, OSError) as error:
                raise GpuClusterError(f"the run is not in the history: {error}") from error

    def runs(self) -> set[str]:
        """Return the ids of all stored runs; GpuClusterError or OSError if the file cannot be read."""
        if not self.path.exists():
            return set()
        with contextlib.closing(History(self.path)) as history:
            return history.ids()

    def _store(self) -> None:
        if self.log.failed:  # a run with holes would pass for a whole one
            raise GpuClusterError(f"the event log is not whole: {self.log.failed}")
        run = recorded(self.log.model, str(self.log.path))
        group, wait = self.reports.group, signals.pause
        with contextlib.closing(History(self.path, create=True, group=group, wait=wait)) as history:
            history.add(run)
            self.comparison = history.compare(history.find(run.cluster, run.run))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """End with each metric beside its past, and name what got worse: nearest to the prompt."""
        found = self.comparison

        def write(line: str, *, yellow: bool = False) -> None:
            terminalreporter.write_line(clean(line), yellow=yellow)  # another user may have written the file

        if found is not None:
            terminalreporter.section("history")
            verbose = terminalreporter.verbosity > 0
            for line in (found.head, *(["", *found.table(constant=verbose), ""] if found.against else [])):
                write(line)
            for line in found.lines():
                write(line, yellow=True)
            write(found.verdict())


def history_path(option: str | None, key: str | None) -> Path | None:
    """Return the file of --history, else the cluster file's `history`; None where neither is given."""
    chosen = option if option is not None else key
    if chosen is None:
        return None
    if not chosen.strip():
        raise GpuClusterError("--history: names no file")
    return Path(chosen).expanduser()
