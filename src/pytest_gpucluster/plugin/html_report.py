"""Writes report.html into --report-dir at the end of a run, when the model holds everything that it shows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.plugin import runs_tests

if TYPE_CHECKING:
    from pytest_gpucluster.report.atomic_write import Reports
    from pytest_gpucluster.report.events import EventLog
    from pytest_gpucluster.report.regression import ShownComparison


class Pages:
    """Registered in the controller. `gpucluster report` makes the same page from the log."""

    def __init__(self, config: pytest.Config, log: EventLog, reports: Reports) -> None:
        self.config, self.log, self.reports = config, log, reports
        self.path = reports.folder / "report.html"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Make the template ready beside the run: there is time while it waits for its nodes, and none at its end."""
        if runs_tests(self.config.option):
            threading.Thread(target=_prepare, name="template", daemon=True).start()

    def write(self) -> None:
        """Write the page."""
        from pytest_gpucluster.report import html  # the start of a run needs no templates

        with self.reports.writing(self.path):
            comparison, group = self._comparison(), self.reports.group
            html.write(self.log.model, self.path, comparison=comparison, group=group)

    def _comparison(self) -> ShownComparison | None:
        memory = self.config.pluginmanager.get_plugin("gpucluster-history")
        found = getattr(memory, "comparison", None)
        return found.for_html() if found is not None else None


def _prepare() -> None:
    from pytest_gpucluster.report import html  # the start of a run needs no templates

    html.prepare()
