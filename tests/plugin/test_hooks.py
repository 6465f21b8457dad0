"""Which reports of old runs the end of a run removes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_gpucluster.config.models import ReportsConfig
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.hooks import Hooks

REASON = "gpucluster:gpu.count 7<8 GPUs repair=reboot run=20261101T060003-3 sum=0123abcd"


class History:
    """A history that names one run."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def runs(self) -> set[str]:
        if self._error:
            raise self._error
        return {"20261101T060002-2"}


def ended(history: History | None) -> tuple[Any, list[set[str]], list[str]]:
    """Return the hooks of a run that has ended, the runs that must stay, and what the terminal shows."""
    kept: list[set[str]] = []
    printed: list[str] = []

    def close(named: set[str]) -> list[str]:
        kept.append(named)
        return ["20261101T060001-1"]

    nodes = {"gpu01": SimpleNamespace(reason=REASON), "gpu02": SimpleNamespace(reason=None)}
    hooks: Any = object.__new__(Hooks)
    hooks.session = SimpleNamespace(inventory=nodes, cluster=SimpleNamespace(reports=ReportsConfig(keep=1)))
    hooks.reports = SimpleNamespace(is_published=True, close=close)
    hooks.config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _name: history))
    hooks.write_message = printed.append
    return hooks, kept, printed


def test_runs_that_a_reason_or_the_history_names_stay_and_what_is_removed_is_printed() -> None:
    hooks, kept, printed = ended(History())
    hooks._remove_old_reports()
    assert kept == [{"20261101T060003-3", "20261101T060002-2"}]
    assert printed == ["reports of 1 old run removed (reports.keep: 1): 20261101T060001-1"]
    hooks, kept, _ = ended(None)
    hooks._remove_old_reports()
    assert kept == [{"20261101T060003-3"}]


def test_without_a_readable_history_nothing_is_removed() -> None:
    hooks, kept, printed = ended(History(GpuClusterError("locked")))
    hooks._remove_old_reports()
    assert kept == []
    assert printed == ["reports of old runs stay: the history cannot be read: locked"]
