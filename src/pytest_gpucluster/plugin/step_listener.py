"""The log of a step belongs to the item that ran the step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.plugin.item_result import Record
from pytest_gpucluster.plugin.items import record_of

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.report.step_logs import StepLogs


class StepListener:
    """Registered where steps are run: writes a log of each, and notes it in the record of the item."""

    def __init__(self, slurm: Slurm, logs: StepLogs) -> None:
        self._logs, self._record = logs, Record("", "", "")
        slurm.on_step = self._keep

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A step that a fixture of a wider scope runs belongs to the item that needs the fixture first."""
        self._record = record_of(item)

    def _keep(self, result: StepResult) -> None:
        own = (
            threading.current_thread() is threading.main_thread()
        )  # work before the first test runs beside the items
        path = self._logs.keep(self._record.check if own else "", result)
        if own and path:
            self._record.logs.append(path)
